"""The pages are plain English: a few rules, each about what readers stumbled over."""

from __future__ import annotations

import re

import pytest
from helpers import ROOT

GENERATED = {"cli.md", "settings.md", "api.md", "errors.md", "metrics.md"}
"""Their words are those of the program, where rules of their own hold."""
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *(page for page in sorted((ROOT / "docs").rglob("*.md")) if page.name not in GENERATED),
]
BETTER = {
    r"goes? on|going on|went on": "continues",
    r"told": "notified, or said",
    r"nobody": "no agent, no person",
    r"whoever": "an agent that, a person who",
    r"of ours": "our",
    r"rungs?": "level, threshold",
    r"for ever": "forever",
    r"e\.g\.": "for example",
    r"i\.e\.": "that is",
}
EPOCH = {"state-file.md", "server.md", "backends.md", "signals.md", "concepts.md"}
"""Pages of those who read or write the field of that name; elsewhere it is the last compaction."""
MAX_WORDS = 40
NO_PROSE = re.compile(r"^```.*?^```$|<!--.*?-->|^ *\|.*?$|^#.*?$", re.MULTILINE | re.DOTALL)
PARAGRAPHS = re.compile(r"\n\s*\n|\n(?=\s*[-*\d])")


def sentences(page):
    """Return the sentences of a page's prose; what is code in it is one word."""
    text = NO_PROSE.sub("\n\n", page.read_text(encoding="utf-8"))
    text = re.sub(r"`[^`]*`", "CODE", re.sub(r"\]\([^)]*\)", "]", text))
    paragraphs = (" ".join(one.split()) for one in PARAGRAPHS.split(text))
    return [one for each in paragraphs for one in re.split(r"(?<=[.!?:;])\s+", each) if one]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_is_plain_english(page):
    """No word that has a plainer one, and no sentence that must be read twice."""
    found = []
    for sentence in sentences(page):
        words = [
            f"say {better!r}"
            for word, better in BETTER.items()
            if re.search(rf"\b(?:{word})(?!\w)", sentence, re.IGNORECASE)
        ]
        if page.name not in EPOCH and re.search(r"\bepochs?\b", sentence, re.IGNORECASE):
            words.append("say 'since the last compaction or clear'")
        if len(sentence.split()) > MAX_WORDS:
            words.append(f"{len(sentence.split())} words, {MAX_WORDS} at most")
        found += [f"{', '.join(words)}: {sentence}"] if words else []
    assert not found, "\n".join(found)
