"""One agent over time: its window, what filled it, its plan, its handoffs, its events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ultramon.context.forecast import describe_compaction
from ultramon.context.level_words import level_words
from ultramon.context.limits import limit_words
from ultramon.pictures.charts import Mark, Point, Rung, glyph, token_chart
from ultramon.pictures.drawings import bar
from ultramon.pictures.elements import Element, element
from ultramon.recordings.source_words import Part, parts_by_words
from ultramon.state.agent_rows import end_words, name_of, need_of, runway_to_limit
from ultramon.state.liveness import ENDED
from ultramon.state.usage_percent import usage_words
from ultramon.system.counts import short_tokens
from ultramon.system.wording import age, field, moment, percent, plural, tokens
from ultramon.web.pages.event_list import event_table
from ultramon.web.pages.fleet import held_words, level_class, rungs_of, state_words, usage_bar
from ultramon.web.pages.layout import agent_url, facts_list, job_url

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ultramon.prices.cost import Cost
    from ultramon.recordings.transcript_summary import FilledWindow
    from ultramon.state.history import HistoryPoint
    from ultramon.state.observed import ObservedAgent
    from ultramon.web.event_reader import PastEvent

_MOST_SHARES = 12
_LEAST_SHARE = 0.0005
"""A smaller one is shown as 0.0 %."""
_MOST_TASKS = 200
_MOST_MARKS = 60
_MARKS = {
    "context_epoch_started": "compaction",
    "handoff_ready": "handoff",
    "agent_lost": "kill",
    "agent_expired": "kill",
}
_TASK_SIGNS = {"done": "✓", "in_progress": "▶", "interrupted": "!", "pending": "·"}


class Filling(NamedTuple):
    """What fills a window."""

    window: FilledWindow
    words: str
    """Where the numbers are from."""


class AgentFacts(NamedTuple):
    """What is known about one agent."""

    one: ObservedAgent
    history: Sequence[HistoryPoint]
    events: Sequence[PastEvent]
    """The latest first."""
    filling: Filling | None
    now: float
    cost: Cost | None = None
    """What it cost so far, None where no transcript says it."""


def agent_content(facts: AgentFacts) -> Element:
    """Return the content of the page."""
    one, record = facts.one, facts.one.record
    name = name_of(record)
    words, class_ = state_words(one, need_of(one))
    level = field(level_words(record))
    usage = f"{usage_words(record)} · {held_words(one)} of {tokens(record.context_limit)}"
    return element(
        "div",
        element("h1", field(str(name))),
        element(
            "p",
            element("code", field(record.agent_id)), " · run ",
            element("a", field(record.run), href=job_url(record.run)),
            class_="dim",
        ),
        element(
            "section",
            element(
                "p",
                element("span", level, class_="level"), f" {usage} tokens ",
                element("span", words, class_=f"state {class_}".strip()),
                class_="head-line",
            ),
            usage_bar(one),
            _timeline(facts),
            class_=f"card {level_class(one)}",
            data_agent=record.agent_id,
        ),
        element(
            "div",
            element("section", element("h2", "Facts"), _facts(facts), class_="card"),
            _filled(facts.filling, record.cwd),
            _tasks(record.tasks),
            _handoff(record.handoff),
            class_="columns",
        ),
        element("h2", "Events"),
        event_table(facts.events, None),
    )  # fmt: skip


def _timeline(facts: AgentFacts) -> Element:
    record = facts.one.record
    points = [Point(point.at, point.used_tokens, point.epoch) for point in facts.history]
    if not points:
        points = list(_points_of_events(facts))
    marks = list(_marks(facts.events))
    if not points:
        return element("p", "No reading yet.", class_="dim")
    # After its end an agent measures nothing: an axis until now would squeeze its curve.
    is_over = facts.one.liveness.verdict == ENDED
    end = max((record.last_activity if is_over else facts.now), points[-1].at)
    if not is_over:
        points.append(points[-1]._replace(at=end))  # nothing has come since
    begin = min(points[0].at, record.started_at or points[0].at)
    limit = record.context_limit
    rungs = [Rung(rung.name, rung.tokens(limit)) for rung in rungs_of(facts.one)] if limit else []
    epochs = plural(len({point.epoch for point in points}), "epoch")
    words = f"Tokens over time: {tokens(points[-1].tokens)} now, {epochs}"
    chart = token_chart(
        points,
        words,
        begin=begin,
        end=end,
        limit_tokens=limit,
        rungs=rungs,
        marks=marks,
    )
    kinds = sorted({mark.kind for mark in marks})
    legend = [element("span", glyph(kind), kind) for kind in kinds]
    return element(
        "figure", chart, element("figcaption", *legend, " times are UTC", class_="legend dim")
    )


def _points_of_events(facts: AgentFacts) -> Iterator[Point]:
    """Yield the readings in events, where no history is kept, and the present one."""
    for event in reversed(facts.events):
        if event.tokens is None:
            continue
        is_epoch = event.kind == "context_epoch_started"
        # The tokens of an epoch's event were counted before it began.
        yield Point(event.at, event.tokens, event.epoch - is_epoch)
        if is_epoch and event.tokens_after is not None:
            yield Point(event.at, event.tokens_after, event.epoch)
    record = facts.one.record
    if record.measured_at is not None:
        yield Point(record.measured_at, record.estimated_tokens, record.epoch)


def _marks(events: Sequence[PastEvent]) -> Iterator[Mark]:
    for event in events[:_MOST_MARKS]:
        kind = _MARKS.get(event.kind)
        if event.kind == "context_threshold_reached":
            # Rungs can have any name; the action that one asks for says which mark it is.
            kind = "critical" if "force_return" in event.words else "warning"
        if kind is not None:
            words = f"{moment(event.at)} {event.kind.replace('_', ' ')}: {event.words}"
            yield Mark(event.at, kind, words)


def _facts(facts: AgentFacts) -> Element:
    one, now, cost = facts.one, facts.now, facts.cost
    record = one.record
    left = runway_to_limit(record)
    likely = None if record.forecast is None else describe_compaction(record.forecast)
    beat = age(one.liveness.heartbeat_age_seconds)
    parent, before = record.parent_id, record.predecessor_id
    return facts_list(
        [
            ("host", field(record.host)),
            ("model", field(record.model)),
            ("cost", f"{cost.words} (list price)" if cost is not None and cost.words else ""),
            ("limit", f"{limit_words(record.context_limit, record.limit_source)}"
             f" ({field(record.limit_source)})"),
            ("reading", f"{field(record.tokens_source)}, {age(_since(record.measured_at, now))} ago"
             if record.measured_at else "none yet"),
            ("next level", str(one.runway or "")),
            (f"to {end_words(record)}" if likely is None else f"to a {likely[1]}",
             str(left or "")),
            ("epoch", f"{record.epoch:,}"),
            ("generation", f"{record.generation:,}"),
            ("doing", field(record.current_task)),
            ("started", moment(record.started_at) if record.started_at else ""),
            ("last activity", moment(record.last_activity) if record.last_activity else ""),
            ("heartbeat", f"{beat} ago" if beat else ""),
            ("parent", _link(parent) if parent else ""),
            ("continues", _link(before) if before else ""),
            ("folder", field(record.cwd)),
        ]
    )  # fmt: skip


def _since(at: float | None, now: float) -> float | None:
    return None if at is None else max(0.0, now - at)


def _link(agent_id: str) -> Element:
    return element("a", field(agent_id), href=agent_url(agent_id))


def _filled(filling: Filling | None, cwd: str | None) -> Element:
    title = element("h2", "What filled the window")
    if filling is None or not filling.window.by_source:
        none = "Nothing is recorded by source."
        return element("section", title, element("p", none, class_="dim"), class_="card")
    inside = f"{cwd}/" if cwd else ""
    files = [
        Part(name.removeprefix(inside), tokens, None)
        for name, tokens in filling.window.by_file.items()
    ]
    return element(
        "section",
        title,
        _shares(parts_by_words(filling.window.by_source, filling.window.provenance)),
        element("h3", "By file") if files else None,
        _shares(files) if files else None,
        element("p", filling.words, class_="dim"),
        class_="card",
    )


def _shares(parts: Sequence[Part]) -> Element:
    total = sum(one.tokens for one in parts) or 1.0
    ordered = sorted(parts, key=lambda one: (-one.tokens, one.name))
    largest = [one for one in ordered if one.tokens >= _LEAST_SHARE * total][:_MOST_SHARES]
    rows = element("dl", class_="shares")
    for name, count, provenance in largest:
        share = count / total
        words = f"{short_tokens(round(count))} · {percent(share)}"
        words += f" · {provenance}" if provenance else ""
        rows.extend(
            [
                element("dt", field(name) or "unnamed"),
                element("dd", words),
                element("dd", bar(share, f"{percent(share)}"), class_="wide"),
            ]
        )
    smaller = sum(one.tokens for one in ordered[len(largest) :])
    if smaller:
        words = f"{short_tokens(round(smaller))} · {percent(smaller / total)}"
        title = f"and {len(ordered) - len(largest):,} smaller ones"
        rows.extend([element("dt", title, class_="dim"), element("dd", words, class_="dim")])
    return rows


def _tasks(tasks: list[dict[str, Any]] | None) -> Element | None:
    if not tasks:
        return None
    rows = []
    for task in tasks[:_MOST_TASKS]:
        # The sign is for the eye, the word for screen readers.
        status = str(task.get("status"))
        sign = element("span", _TASK_SIGNS.get(status, "·"), aria_hidden="true", class_="sign")
        words = element("span", f"{field(status)}: ", class_="heard")
        row = element("li", sign, words, field(str(task.get("name"))), class_=f"task {status}")
        rows.append(row)
    beyond = len(tasks) - _MOST_TASKS
    if beyond > 0:
        rows.append(element("li", f"and {beyond:,} more", class_="dim"))
    return element(
        "section", element("h2", "Plan"), element("ol", *rows, class_="tasks"), class_="card"
    )


def _handoff(handoff: dict[str, Any] | None) -> Element | None:
    if not handoff:
        return None
    counts = [
        f"{len(handoff[name]):,} {name}"
        for name in ("completed", "interrupted", "remaining")
        if isinstance(handoff.get(name), list) and handoff[name]
    ]
    facts: list[tuple[str, str | Element]] = [
        ("reason", field(str(handoff.get("reason")))),
        ("left at", field(str(handoff.get("createdAt") or ""))),
        ("work", ", ".join(counts)),
    ]
    for name, key in (("goal", "goal"), ("next step", "nextStep"), ("notes", "notes")):
        value = handoff.get(key)
        facts.append((name, field(value) if isinstance(value, str) else ""))
    return element("section", element("h2", "Handoff"), facts_list(facts), class_="card")
