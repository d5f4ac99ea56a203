"""`ultramon explain` for people: one bar, one sentence, three facts, and what fills the window."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from rich.text import Text

from ultramon.cli.output import (
    field,
    make_console,
    make_table,
    percent,
    short_tokens,
    tokens,
)
from ultramon.context.level_words import level_words
from ultramon.context.limits import limit_words
from ultramon.context.tracker import STANDING as UNNAMED
from ultramon.recordings.source_words import REST, parts_by_words, source_words
from ultramon.recordings.standing import is_standing
from ultramon.recordings.transcript_summary import UNRECORDED
from ultramon.state.agent_rows import name_of
from ultramon.state.liveness import ALIVE, ENDED, LOST

if TYPE_CHECKING:
    from ultramon.context.explanation import Explanation
    from ultramon.state.record import StateRecord

STANDING, CALLS, TALK, FREE = "standing", "results of calls", "conversation", "free"
_STYLES = {STANDING: "magenta", CALLS: "cyan", TALK: "green", REST: "yellow", FREE: "dim"}
_CELLS = {STANDING: "▓", CALLS: "█", TALK: "▒", REST: "░", FREE: "·"}
_ASCII_CELLS = {STANDING: "%", CALLS: "#", TALK: "=", REST: "?", FREE: "."}
_MOST_PARTS = 8
_LEAST_NAMED_RATIO = 0.1
_MAX_WIDTH = 76


def print_explanation(record: StateRecord, found: Explanation) -> None:
    """Print the explanation of an agent.

    Args:
        record: The agent's state, sanitised.
        found: What explains it.
    """
    console = make_console()
    width = min(console.width, _MAX_WIDTH)
    groups = _groups(found)
    facts = (record.host, record.model or "model not named")
    console.print(Text.assemble((str(name_of(record)), "bold"), f"  {'  '.join(facts)}"))
    cells = _ASCII_CELLS if console.options.ascii_only else _CELLS
    if groups:
        console.print(_bar(groups, width, cells))
    console.print(Text(_sentence(found, groups)), soft_wrap=True)
    console.print()
    for name, words in _facts(found):
        console.print(Text.assemble((f"  {name:<10}", "dim"), words), soft_wrap=True)
    if groups:
        console.print()
        console.print(_legend(groups, cells))
        _print_parts(found)
    command = f"ultramon explain {shlex.quote(record.agent_id)} --details"
    console.print()
    words = "limits, levels, settings and history: "
    console.print(Text.assemble((words, "dim"), (command, "cyan")), soft_wrap=True)


def _group_of(source: str) -> str:
    if source == UNNAMED or is_standing(source):
        return STANDING
    if source == UNRECORDED:
        return REST
    return CALLS if source.startswith("tool:") else TALK


def _groups(found: Explanation) -> dict[str, float]:
    """Return tokens by group, with what is free where the limit is known; empty = unknown."""
    groups: dict[str, float] = {}
    for source, count in found.filled_by.items():
        group = _group_of(source)
        groups[group] = groups.get(group, 0.0) + count
    held, limit = sum(groups.values()), found.state.context_limit
    ordered = {name: groups[name] for name in (STANDING, CALLS, TALK, REST) if name in groups}
    if held and limit is not None and limit > held:
        ordered[FREE] = limit - held
    return ordered if held else {}


def _bar(groups: dict[str, float], width: int, cells: dict[str, str]) -> Text:
    """Draw the groups side by side, each at least one cell wide."""
    total, bar, left = sum(groups.values()), Text(), width
    for number, (name, count) in enumerate(groups.items(), 1):
        size = left if number == len(groups) else max(1, round(count / total * width))
        size = max(0, min(size, left))
        bar.append(cells[name] * size, _STYLES[name])
        left -= size
    return bar


def _legend(groups: dict[str, float], cells: dict[str, str]) -> Text:
    legend = Text()
    for name, count in groups.items():
        legend.append(f"{'  ' if legend else ''}{cells[name]}", _STYLES[name])
        legend.append(f" {name} {short_tokens(round(count))}")
    return legend


def _sentence(found: Explanation, groups: dict[str, float]) -> str:
    held, limit = found.held_words, found.state.context_limit
    share = "" if found.percent is None else f"{found.percent} %: "
    words = f"{share}{held} of {'an unknown limit' if limit is None else f'{limit:,}'} tokens"
    if not groups:
        return f"{words}."
    known = {one: count for one, count in found.filled_by.items() if one != UNRECORDED}
    total = sum(found.filled_by.values())
    if known:
        source, count = max(known.items(), key=lambda one: one[1])
        words += (
            f"; the largest part is {field(source_words(source))} with {percent(count / total)}"
        )
    if standing := groups.get(STANDING):
        words += f", and {short_tokens(round(standing))} stand in every request"
    return f"{words}."


def _facts(found: Explanation) -> list[tuple[str, str]]:
    state = found.state
    age = "" if found.reading_age_words is None else f", {found.reading_age_words}"
    facts = [
        ("tokens", f"{found.source_words}{age}"),
        ("limit", f"{limit_words(state.context_limit, state.limit_source)} ({state.limit_source})"),
    ]
    ahead = next((rung for rung in found.rungs if not rung.reached), None)
    is_over = found.liveness in (ENDED, LOST)
    if is_over:
        facts.append((found.liveness, found.liveness_reason))
    elif ahead is not None:
        share = f"{round(ahead.usage_ratio * 100, 1):g} %"
        words = f"{ahead.name} at {share}, {ahead.tokens:,} tokens: {found.ahead(ahead)}"
        facts.append(("next", words))
    elif found.rungs:
        facts.append(("next", f"none above {level_words(state)}"))
    if found.likely_compaction is not None and not is_over:
        facts.append(("", found.likely_compaction))
    if found.liveness != ALIVE and not is_over:
        facts.append((found.liveness, found.liveness_reason))
    if found.enforcement is not None:
        facts.append(("enforced", found.enforcement))
    return [(name, field(words)) for name, words in facts]


def _print_parts(found: Explanation) -> None:
    table = make_table()
    for _ in range(2):
        table.add_column("", justify="right", no_wrap=True)
    table.add_column("", style="dim", no_wrap=True)
    table.add_column("", overflow="fold")
    total = sum(found.filled_by.values())
    largest = parts_by_words(found.filled_by, found.provenance)
    for name, count, provenance in largest[:_MOST_PARTS]:
        share = percent(count / total)
        table.add_row(share, tokens(round(count)), provenance or "", Text(field(name)))
    if len(largest) > _MOST_PARTS:
        rest = round(sum(one.tokens for one in largest[_MOST_PARTS:]))
        more = f"{len(largest) - _MOST_PARTS} smaller parts"
        table.add_row(percent(rest / total), tokens(rest), "", more)
    table.show_header = False
    make_console().print(table)
