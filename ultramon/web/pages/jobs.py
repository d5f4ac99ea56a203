"""Long jobs over time: the agents of a run as a chain, with what happened to them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ultramon.pictures.charts import GLYPHS, Lane, Mark, Span, glyph, plan_chart
from ultramon.pictures.elements import Element, element
from ultramon.state.liveness import ENDED, LOST
from ultramon.system.wording import age, field, moment, plural
from ultramon.web.pages.event_list import event_table, shown_name
from ultramon.web.pages.layout import agent_url, job_url, url

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ultramon.state.observed import ObservedAgent
    from ultramon.web.agent_reader import Run
    from ultramon.web.event_reader import PastEvent

MAX_LANES = 60
_MOST_MARKS = 40
_MARKS = {
    "context_epoch_started": "compaction",
    "handoff_ready": "handoff",
    "agent_expired": "kill",
    "agent_lost": "kill",
    "items_rejected": "rejected",
    "items_verified": "verified",
}
_BEGINNINGS = ("agent_assigned", "agent_started", "context_spawned", "agent_recovered")
_ENDS = ("agent_stopped", "agent_lost", "agent_expired", "agent_refused", "context_closed")


class Life(NamedTuple):
    """One agent of a run, by its events."""

    agent_id: str
    begin: float
    end: float | None
    kind: str
    """``working``, ``ended``, ``killed`` or ``lost``."""
    how: str
    """How it ended, for people."""
    marks: tuple[Mark, ...]


def lives_of(events: Sequence[PastEvent], states: Mapping[str, ObservedAgent]) -> list[Life]:
    """Return the agents of a run in the order of their beginnings.

    Args:
        events: Of the run, the latest first.
        states: Its agents by id, as far as they are stored.
    """
    by_agent: dict[str, list[PastEvent]] = {}
    for event in reversed(events):
        by_agent.setdefault(event.agent_id, []).append(event)
    # An agent whose events were pruned, or not read, still has its state.
    for agent_id in states:
        by_agent.setdefault(agent_id, [])
    lives = [_life(agent_id, own, states.get(agent_id)) for agent_id, own in by_agent.items()]
    return sorted((one for one in lives if one is not None), key=lambda one: one.begin)


def _life(agent_id: str, events: Sequence[PastEvent], state: ObservedAgent | None) -> Life | None:
    begins = [event.at for event in events if event.kind in _BEGINNINGS]
    if state is not None and state.record.started_at:
        begins.append(state.record.started_at)
    if not begins:
        return None
    marks = [mark for mark in map(_mark, events) if mark is not None][-_MOST_MARKS:]
    last = next((event for event in reversed(events) if event.kind in _ENDS), None)
    verdict = None if state is None else state.liveness.verdict
    is_over = state is None or verdict in (ENDED, LOST) or not state.record.active
    kind, how, end = "working", "", None
    # An agent that was started again has ended before, and works now.
    if last is not None and (is_over or last.kind == "agent_lost"):
        end = last.at
        was_killed = any(event.was_killed for event in events)
        kind = "killed" if was_killed else "lost" if last.kind == "agent_lost" else "ended"
        how = last.words
    elif is_over:
        kind = "lost" if verdict == LOST else "ended"
        # Its end is in no event, so the latest time that is known of it stands for it.
        end = max([*begins, *(event.at for event in events)])
        if state is not None:
            end, how = max(end, state.record.last_activity), field(state.record.outcome)
    return Life(agent_id, min(begins), end, kind, how, tuple(marks))


def _mark(event: PastEvent) -> Mark | None:
    kind = _MARKS.get(event.kind)
    if event.kind == "context_threshold_reached":
        # Rungs can have any name; the action that one asks for says which mark it is.
        kind = "critical" if "force_return" in event.words else "warning"
    elif event.kind == "context_closed" and event.was_killed:
        kind = "kill"
    if kind is None:
        return None
    return Mark(event.at, kind, f"{moment(event.at)} {event.kind.replace('_', ' ')}: {event.words}")


def jobs_content(runs: Sequence[Run], *, now: float) -> Element:
    """Return the list of runs, the latest first.

    Args:
        runs: What is known about each.
        now: Epoch seconds.
    """
    has_tasks = any(run.tasks_completed for run in runs)
    names = ("run", "agents", *(("tasks done",) if has_tasks else ()), "began", "last seen")
    head = element("tr", *(element("th", name, scope="col") for name in names))
    rows = [_run_row(run, now, has_tasks=has_tasks) for run in runs]
    table = element(
        "table", element("thead", head), element("tbody", *rows), class_="jobs", aria_label="Jobs"
    )
    return element(
        "div",
        element("h1", "Jobs"),
        element("p", "The agents of each run over time. Times are UTC.", class_="dim"),
        table if runs else element("p", "No runs.", class_="dim"),
    )


def _run_row(run: Run, now: float, *, has_tasks: bool) -> Element:
    counts = [f"{run.agents:,}"]
    counts += [f"{run.working:,} at work"] if run.working else []
    lost = element("span", f", {run.lost:,} lost", class_="bad") if run.lost else None
    return element(
        "tr",
        element("th", element("a", field(run.name), href=job_url(run.name)), scope="row"),
        element("td", ", ".join(counts), lost),
        element("td", f"{run.tasks_completed:,}" if run.tasks_completed else "")
        if has_tasks
        else None,
        element("td", moment(run.began_at) if run.began_at else ""),
        element("td", f"{age(max(0.0, now - run.last_at))} ago" if run.last_at else ""),
    )


def job_content(
    run: str,
    events: Sequence[PastEvent],
    states: Mapping[str, ObservedAgent],
    *,
    names: Mapping[str, str],
    dropped: int,
    now: float,
) -> Element:
    """Return the content of a run's page.

    Args:
        run: The run.
        events: Its events, the latest first.
        states: Its agents by id.
        names: How agents are called, by id.
        dropped: How many older events of all runs are not known.
        now: Epoch seconds.
    """
    everyone = lives_of(events, states)
    lives = everyone[-MAX_LANES:]
    hidden = len(everyone) - len(lives)
    what = [plural(len(everyone), "agent")]
    counts = {kind: sum(life.kind == kind for life in everyone) for kind in ("killed", "lost")}
    happened = [mark.kind for life in everyone for mark in life.marks]
    what += [f"{count:,} {kind}" for kind, count in counts.items() if count]
    for kind in ("compaction", "handoff"):
        if count := happened.count(kind):
            what.append(plural(count, kind))
    plan: Element = element("p", "Nothing is known about this run.", class_="dim")
    if lives:
        begin = min(life.begin for life in lives)
        end = max([life.end or now for life in lives])
        lanes = [_lane(life, states.get(life.agent_id), names, now) for life in lives]
        words = f"The agents of run {field(run)} over time"
        plan = plan_chart(lanes, words, begin=begin, end=end)
    kinds = [kind for kind in GLYPHS if kind in happened]
    legend = [element("span", glyph(kind), kind) for kind in kinds]
    notes = []
    if hidden:
        notes.append(f"{plural(hidden, 'earlier agent')} not drawn. ")
    if dropped:
        notes.append(f"{plural(dropped, 'older event')} of this store not read. ")
    now_link = element("a", "agents now", href=url("/", {"run": run}))
    return element(
        "div",
        element("h1", f"Job {field(run)}"),
        element("p", " · ".join(what), " · ", now_link, class_="dim"),
        element("section", plan, element("p", *legend, " times are UTC", class_="legend dim"),
                element("p", *notes, class_="dim") if notes else None, class_="card"),
        element("h2", "Events"),
        event_table(events[:100], names),
    )  # fmt: skip


def _lane(life: Life, state: ObservedAgent | None, names: Mapping[str, str], now: float) -> Lane:
    end = life.end if life.end is not None else now
    until = moment(life.end) if life.end is not None else "now"
    how = f", {life.how}" if life.how else ""
    name = shown_name(life.agent_id, names)
    words = f"{name} {life.kind}{how}: {moment(life.begin)} to {until}"
    facts = ""
    if state is not None:
        done, total = state.record.tasks_completed, state.record.tasks_total
        facts = f"{done:,}/{total:,}" if total is not None else ""
    # A pruned agent has events and no page any more.
    link = agent_url(life.agent_id) if state is not None else None
    return Lane(name, link, facts, [Span(life.begin, end, life.kind, words)], life.marks)
