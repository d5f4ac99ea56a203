"""`ultramon replay`: what a monitor would have reported over a recording."""

from __future__ import annotations

import os
from typing import Any

import click

from ultramon.cli.exit_codes import CommandFailed, SeveralFound
from ultramon.cli.output import make_console, print_json, say_by_reason
from ultramon.cli.selection import json_option
from ultramon.system.terminal_text import first_of

_TOKENS = click.IntRange(min=1, max=1_000_000_000)


@click.command("replay", epilog="Example: ultramon replay session.jsonl --limit 200000")
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=click.Path())
@click.option(
    "--limit", "context_limit_tokens", type=_TOKENS, help="Cap on the context limit, in tokens."
)
@click.option(
    "--window",
    "context_window_tokens",
    type=_TOKENS,
    help="Context window of the model, in tokens.  [default: as recorded, else by model]",
)
@click.option("--model", help="Model to assume.  [default: as recorded]")
@click.option(
    "--warning",
    "warning_threshold",
    type=float,
    metavar="RATIO",
    help="Usage ratio of the warning level.  [default: Claude Code 0.65, others 0.70]",
)
@click.option(
    "--critical",
    "critical_threshold",
    type=float,
    metavar="RATIO",
    help="Usage ratio of the critical level.  [default: Claude Code 0.75, others 0.85]",
)
@click.option("--no-plot", is_flag=True, help="Leave the chart out.")
@json_option
def command(*, paths: tuple[str, ...], no_plot: bool, json: bool, **settings: Any) -> None:
    """Show what a monitor would have reported over a recording.

    PATH is a transcript of Claude Code, Copilot CLI, Gemini CLI, Kimi or Qwen Code (with its
    subagents), a rollout of Codex, the database of Crush, Goose, Kilo, MiMo Code or opencode, JSON
    lines of {"text": ...} and {"usage": {...}}, a text, or a directory: all recordings in it or,
    without any, its text files as one agent would read them.
    The beginning of a session's id, as `ultramon report` shows it, finds the transcript where its
    host keeps it.

    Files of any size are streamed. Files that are no recordings are named on stderr.
    """
    from ultramon.context.config import ContextConfig
    from ultramon.recordings.recordings import find_recordings
    from ultramon.recordings.replay import replay

    found = find_recordings([path if _is_there(path) else _find(path) for path in paths])
    skipped = [(one.path, one.reason) for one in found.skipped]
    if not found.recordings:
        say_by_reason("skipped", skipped)
        raise CommandFailed("nothing to replay: no recording, no text")
    given = {name: value for name, value in settings.items() if value is not None}
    config = ContextConfig(**given)
    timelines = (replay(recording, config) for recording in found.recordings)
    if json:
        agents = [one.model_dump(mode="json", by_alias=True) for one in timelines]
        shown = [{"path": path, "reason": reason} for path, reason in skipped]
        print_json({"agents": agents, "skipped": shown})
        return
    from ultramon.cli.views.replay_screen import print_timeline

    console = make_console()
    for number, timeline in enumerate(timelines):
        if number:
            console.print()
        print_timeline(console, timeline, with_plot=not no_plot)
    say_by_reason("skipped", skipped)


def _is_there(path: str) -> bool:
    """Return whether a path is a file, a directory, or a transcript in a file with others."""
    from ultramon.hosts.transcripts.stored import file_of

    return os.path.exists(path) or file_of(path) is not None


def _find(name: str) -> str:
    """Return the one transcript whose id begins like this."""
    from ultramon.recordings.clients import find_by_id

    found = find_by_id(name, os.environ)
    if not found:
        reason = f"{name!r} is no path, and no transcript on this machine has an id like it."
        raise click.BadParameter(reason, param_hint="'PATH...'")
    if len(found) > 1:
        names = first_of([os.path.basename(path) for path in found])
        raise SeveralFound(f"id {name} fits {len(found)} transcripts: {names}")
    return found[0]
