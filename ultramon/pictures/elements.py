"""Elements of HTML and SVG. Whatever text is put into one stays text.

A tree of `xml.etree.ElementTree`, which escapes when it is written: there is no way to forget it,
as there is with templates, and no dependency.
"""

from __future__ import annotations

from xml.etree import ElementTree

from ultramon.system.terminal_text import sanitize

Element = ElementTree.Element


def element(tag: str, *children: Element | str | None, **attributes: object) -> Element:
    """Return an element.

    Args:
        tag: Its name, never a foreign text; neither are the names of attributes.
        children: Elements and texts in their order; None is left out.
        attributes: ``class_`` is ``class``, other underscores are hyphens; None is left out.
    """
    # Sanitized: XML has no form for control characters.
    made = Element(tag)
    for name, value in attributes.items():
        if value is not None:
            made.set(name.rstrip("_").replace("_", "-"), sanitize(str(value)))
    last: Element | None = None
    for child in children:
        if isinstance(child, str):
            text = sanitize(child)
            if last is None:
                made.text = (made.text or "") + text
            else:
                # A text behind an element is kept at that element, not at the one around both.
                last.tail = (last.tail or "") + text
        elif child is not None:
            made.append(child)
            last = child
    return made


def to_html(root: Element) -> str:
    """Write an element as HTML."""
    return ElementTree.tostring(root, encoding="unicode", method="html")
