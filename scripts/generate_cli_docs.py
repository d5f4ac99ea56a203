"""Write every command's help text into docs/cli.md, between the marks that name the command.

Run it after a change of a command: python scripts/generate_cli_docs.py
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click

from ultramon.cli import COMMANDS, PLUMBING, cli

DOCS = Path(__file__).parent.parent / "docs" / "cli.md"
_SETTINGS: dict[str, Any] = {"terminal_width": 80}
_SECTION = re.compile(r"(<!-- help: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def help_text(name: str) -> str:
    """Return what `ultramon <name> --help` prints on a terminal of 80 columns."""
    root = cli.make_context("ultramon", [], resilient_parsing=True, **_SETTINGS)
    if name == "ultramon":
        return cli.get_help(root)
    command = cli.get_command(root, name)
    if command is None:
        raise SystemExit(f"docs/cli.md names an unknown command: {name}")
    return command.get_help(click.Context(command, parent=root, info_name=name, terminal_width=80))


def render(document: str) -> str:
    """Return the document with fresh help texts."""
    return _SECTION.sub(
        lambda match: f"{match[1]}```text\n{help_text(match[2])}\n```\n{match[3]}", document
    )


if __name__ == "__main__":
    names = (*COMMANDS, *PLUMBING)
    missing = [name for name in names if f"<!-- help: {name} -->" not in DOCS.read_text()]
    if missing:
        raise SystemExit(f"docs/cli.md has no section for: {', '.join(missing)}")
    DOCS.write_text(render(DOCS.read_text()))
