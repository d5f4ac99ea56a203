"""Write every command's help text into docs/cli.md, between the marks that name the command.

Run it after a change of a command: python scripts/generate_cli_docs.py
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click

from ultramon.cli import COMMANDS, GROUPS, cli

DOCS = Path(__file__).parent.parent / "docs" / "cli.md"
_SETTINGS: dict[str, Any] = {"terminal_width": 80}
_SECTION = re.compile(r"(<!-- help: ([\w -]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def help_text(words: str) -> str:
    """Return what `<words> --help` prints on a terminal of 80 columns."""
    context = cli.make_context("ultramon", [], resilient_parsing=True, **_SETTINGS)
    for name in words.split()[1:]:
        group = context.command
        command = group.get_command(context, name) if isinstance(group, click.Group) else None
        if command is None:
            raise SystemExit(f"docs/cli.md names an unknown command: {words}")
        context = click.Context(command, parent=context, info_name=name, **_SETTINGS)
    return context.get_help()


def render(document: str) -> str:
    """Return the document with fresh help texts."""
    return _SECTION.sub(
        lambda match: f"{match[1]}```text\n{help_text(match[2])}\n```\n{match[3]}", document
    )


if __name__ == "__main__":
    inner = [
        f"{group} {name}"
        for group, commands in GROUPS.items()
        for name, place in commands.places.items()
        if place not in ((name, "command") for name in COMMANDS)
    ]
    for words in ("ultramon", *(f"ultramon {name}" for name in (*COMMANDS, *GROUPS, *inner))):
        if f"<!-- help: {words} -->" not in DOCS.read_text():
            raise SystemExit(f"docs/cli.md has no section for: {words}")
    DOCS.write_text(render(DOCS.read_text()))
