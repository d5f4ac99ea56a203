"""RESULTS.md in its sections: each is written by the run that measured it."""

from __future__ import annotations

import re
from pathlib import Path

PATH = Path(__file__).resolve().parent / "RESULTS.md"


def replace_section(title: str, body: str, path: Path = PATH) -> None:
    """Write one section in the place of that title, or at the end."""
    text = path.read_text(encoding="utf-8")
    section = f"## {title}\n\n{body.strip()}\n"
    old = re.search(rf"^## {re.escape(title)}\n.*?(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    if old is None:
        text = f"{text.rstrip()}\n\n{section}"
    else:
        rest = text[old.end() :]
        text = text[: old.start()] + section + ("\n" + rest if rest else "")
    path.write_text(text, encoding="utf-8")


def replace_head(head: str, path: Path = PATH) -> None:
    """Write what stands above the first section."""
    text = path.read_text(encoding="utf-8")
    path.write_text(f"{head.strip()}\n\n{text[text.index('## ') :]}", encoding="utf-8")
