"""`ultramon host pin`: rules that a session is given back after each compaction."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import click

from ultramon.cli.output import print_result, say
from ultramon.cli.selection import (
    chosen_directory,
    find_agent_id,
    json_option,
    open_store,
    present_directory,
    state_dir_option,
)

if TYPE_CHECKING:
    from ultramon.state.pins import Pin

_MAX_SHOWN_CHARS = 200


@click.command("pin", epilog="Example: ultramon host pin 'Never push to main'")
@click.argument("text", required=False)
@click.option(
    "--file",
    type=click.Path(dir_okay=False),
    metavar="PATH",
    help="Pin a file: it is read at each compaction, up to 64 KiB.",
)
@click.option("--session", metavar="AGENT", help="Pin for one session, not for the project.")
@click.option(
    "--project",
    type=click.Path(file_okay=False, exists=True),
    metavar="DIR",
    help="Pin for the sessions in this directory.  [default: the working directory]",
)
@click.option("--list", "is_list", is_flag=True, help="Only list the pins.  [default without TEXT]")
@click.option("--remove", type=click.IntRange(min=1), metavar="N", help="Remove pin number N.")
@state_dir_option()
@json_option
def command(
    *,
    text: str | None,
    file: str | None,
    session: str | None,
    project: str | None,
    is_list: bool,
    remove: int | None,
    state_dir: str | None,
    json: bool,
) -> None:
    """Pin a rule that a compaction must not lose.

    Where `ultramon install claude-code --pins` was run, every session in the project, and in
    folders below it, is given its pins back word for word after each compaction. TEXT is one rule
    of at most 4,000 characters; `-` reads it from stdin.
    """
    from ultramon.state.pins import Pin, Pins

    if (text is not None) + (file is not None) + is_list + (remove is not None) > 1:
        raise click.UsageError("TEXT, --file, --list and --remove exclude each other")
    if session is not None and project is not None:
        raise click.UsageError("--session and --project exclude each other")
    is_session = session is not None
    # Hooks compare real paths: a session may be started through a link.
    owner = os.path.realpath(project or present_directory())
    if session is not None:
        owner = find_agent_id(open_store(state_dir), session)
    pins = Pins(chosen_directory(state_dir))
    if remove is not None:
        pins.remove(owner, remove, is_session=is_session)
        say(f"removed pin {remove} of {owner}")
    elif text is not None or file is not None:
        if text == "-":
            text = sys.stdin.read().strip()
        pin = Pin(owner, text, None if file is None else os.path.abspath(file))
        number = pins.add(pin, is_session=is_session)
        say(f"pinned as number {number} of {owner}")
    found = pins.stored(owner, is_session=is_session)
    print_result(
        {"session" if is_session else "project": owner, "path": pins.path,
         "pins": [pin.to_json() for pin in found]},
        *(_shown(number, pin) for number, pin in enumerate(found, 1)),
        as_json=json,
    )  # fmt: skip
    if not found:
        say(f"nothing is pinned for {owner}")


def _shown(number: int, pin: Pin) -> str:
    if pin.file is not None:
        return f"{number}  file {pin.file}"
    line = " ".join((pin.text or "").split())
    more = "…" if len(line) > _MAX_SHOWN_CHARS else ""
    return f"{number}  {line[:_MAX_SHOWN_CHARS]}{more}"
