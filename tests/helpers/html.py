"""Texts that attack a page, and what a browser would see of one."""

from html.parser import HTMLParser

HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</style><script>x</script>",
    "' onload='x",
    "&lt;b&gt; &amp; ]]> <!-- -->",
    "javascript:alert(1)",
    "\u202eevil\u2066\x00\x1b[31m\ud800",
]


class Parsed(HTMLParser):
    """What a browser sees: tags with their attributes, and texts."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.texts, self.attributes = [], [], []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes.extend((tag, *pair) for pair in attrs)

    def handle_data(self, data):
        self.texts.append(data)
