"""A long job for the agent of `real_client.item_agent`: a repository, items, and their check."""

from __future__ import annotations

import random
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

SOURCE_CHARS = 12_000
"""Of the file that an item makes an agent read: with four characters a token 3,000."""
GOAL = (
    "Write a note for each item: notes/ITEM.md holds the line `code word: WORD`, with the code "
    "word that stands somewhere in source/ITEM.txt."
)
RULES = (
    "Never change a file in source/: auditors compare them  byte by byte.",
    "Leave `notes/README.md` to Ada, who writes it by hand.",
    "No network, no package manager, and no `git push`.",
)
_CHECK = """\
import pathlib
import re
import sys

item = sys.argv[1]
word = re.search("code word: (\\\\w+)", pathlib.Path(f"source/{item}.txt").read_text())[1]
note = pathlib.Path(f"notes/{item}.md")
sys.exit(not note.exists() or note.read_text() != f"code word: {word}\\n")
"""
_WORDS = [
    "the",
    "parser",
    "reads",
    "a",
    "line",
    "and",
    "keeps",
    "each",
    "value",
    "until",
    "its",
    "end",
]


class ItemJob:
    """A git repository with a source file for each item, and the check of an item's note.

    Args:
        directory: An empty directory, which becomes the repository.
        count: How many items there are.
    """

    def __init__(self, directory: Path, count: int) -> None:
        self.directory = directory
        self.items = [f"part {number:02}" for number in range(1, count + 1)]
        (directory / "source").mkdir()
        for item in self.items:
            (directory / "source" / f"{item}.txt").write_text(_source(item))
        (directory / "check.py").write_text(_CHECK)
        (directory / "items.txt").write_text("".join(f"{item}\n" for item in self.items))
        git = ["git", "-C", str(directory), "-c", "user.name=Ada", "-c", "user.email=ada@localhost"]
        for arguments in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "The sources"]):
            subprocess.run([*git, *arguments], check=True)

    def prompt(self, items: Sequence[str]) -> str:
        """Return goal, rules and items as a person writes them into one prompt."""
        rules = [f"{number}. {rule}" for number, rule in enumerate(RULES, 1)]
        listed = [f"- {item}" for item in items]
        return "\n".join([GOAL, "", "Rules:", *rules, "", "Items:", *listed, ""])

    @property
    def check_command(self) -> str:
        """The check of ``{item}``, which is given a directory to work in."""
        return f"{shlex.quote(sys.executable)} check.py {{item}}"

    def verified(self, directory: Path | None = None) -> set[str]:
        """Return the items whose notes are right, in the repository or in another tree of it."""
        return {
            item
            for item in self.items
            if subprocess.run(
                [sys.executable, "check.py", item], cwd=directory or self.directory, check=False
            ).returncode
            == 0
        }


def _source(item: str) -> str:
    """Return a text with a code word somewhere, the same at every call."""
    chance = random.Random(item)
    lines = []
    while sum(map(len, lines)) < SOURCE_CHARS:
        lines.append(" ".join(chance.choices(_WORDS, k=14)) + "\n")
    word = f"code word: {chance.getrandbits(32):08x}\n"
    lines.insert(chance.randrange(len(lines)), word)
    return "".join(lines)
