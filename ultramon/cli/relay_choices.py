"""The choices of a relay, new or continued, from the options of its command."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from ultramon.cli.output import plural
from ultramon.cli.selection import present_directory
from ultramon.errors import ConfigurationError
from ultramon.relay.choices import RelayChoices, read_items, read_planned_items

if TYPE_CHECKING:
    from typing import TextIO

_FIXED = ("agent", "in_place")
"""What a run keeps: its worktree and the names of its items follow from them."""


def new_choices(goal: str | None, given: dict[str, Any]) -> tuple[RelayChoices, list[str]]:
    """Return the choices of a new run, and what there is to say about them."""
    if goal is None:
        raise click.UsageError("name a GOAL, or continue with --resume RUN")
    chosen, notes = _chosen(given)
    return RelayChoices(goal=goal, cwd=present_directory(), **chosen), notes


def stored_choices(
    directory: str, run: str, goal: str | None, given: dict[str, Any]
) -> tuple[RelayChoices, list[str]]:
    """Return the choices of a run that is continued: its own, but those that are given again."""
    stored = RelayChoices.load(directory, run)
    chosen, notes = _chosen(given)
    context = click.get_current_context()
    changed = {}
    for name, value in chosen.items():
        source = context.get_parameter_source(name)
        is_given = source in (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT)
        # A default is no choice: it must not replace what the run was begun with.
        if (is_given or (name == "arguments" and value)) and value != getattr(stored, name):
            changed[name] = value
    for name in _FIXED:
        if name in changed:
            raise click.UsageError(
                f"--{name.replace('_', '-')} cannot change when a run is continued"
            )
    if goal is not None and goal != stored.goal:
        changed["goal"] = goal
    if changed.get("items") is not None:
        if stored.items is None:
            raise click.UsageError("this run was begun without --items")
        # Only added to, as the journal knows the items that the run was begun with.
        changed["items"] = tuple(dict.fromkeys((*stored.items, *changed["items"])))
        for name in ("item_paths", "item_after"):
            if more := chosen.get(name):
                changed[name] = {**getattr(stored, name), **more}
    if changed:
        notes.append(f"changed: {', '.join(name.replace('_', ' ') for name in sorted(changed))}")
    return replace(stored, **changed), notes


def _chosen(given: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the options, named as the choices, and what there is to say about them."""
    items: TextIO | None = given["items"]
    program: str | None = given["program"]
    if program is not None and os.path.dirname(program):
        program = os.path.abspath(program)  # a run is continued from any directory
    chosen = {**given, "items": None, "program": program}
    if items is None:
        return chosen, []
    try:
        if items.name.endswith((".tsv", ".jsonl", ".ndjson")):
            chosen["items"], repeats, plan = read_planned_items(items, items.name)
            chosen |= {"item_paths": plan.paths, "item_after": plan.after}
        else:
            chosen["items"], repeats = read_items(items)
    except ConfigurationError as error:
        raise click.UsageError(str(error)) from error
    return chosen, [f"{plural(repeats, 'line')} of the items repeated"] if repeats else []
