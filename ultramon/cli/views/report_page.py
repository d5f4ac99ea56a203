"""The report as one page for a browser: a sentence, what to change, and a line for each session."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from ultramon.cli.output import percent, plural, short_tokens, tokens
from ultramon.cli.views.report_screen import (
    ORDER,
    compacted,
    compacted_words,
    file_names,
    left_out_words,
    part_name,
    price_words,
    replay_command,
    source_name,
    standing_words,
    subagents,
    used_words,
)
from ultramon.hosts.transcripts.records import AGENTS, HOOKS, MCP, MEMORY, SKILLS
from ultramon.pictures.drawings import bar, timeline
from ultramon.pictures.elements import Element, element
from ultramon.pictures.page import write_page
from ultramon.prices.cost import cost_words, dollars, range_words
from ultramon.recordings.standing import is_standing
from ultramon.state.usage_percent import whole_percent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ultramon.recordings.bills import CostFacts
    from ultramon.recordings.survey_models import SessionFacts, StandingCost, Survey

_SHOWN_ROWS, _SHOWN_DAYS = 8, 5
"""Of a list; the others open on request."""
_MOST_ROWS = 50
_RUNGS = (0.75, 0.95)
_AT = {
    "list": " at list prices",
    "own": " at your prices",
    "host": " by the host's own count",
}


class _Row(NamedTuple):
    """One line of a list."""

    name: str
    facts: Sequence[str]
    value: str
    ratio: float
    """How long its bar is, 0.0-1.0."""


def report_page(found: Survey) -> str:
    """Return the page of a survey."""
    period = "" if found.days is None else f"{plural(found.days, 'day')} until "
    subject = [
        "ultramon report",
        f"{period}{found.generated_at:%Y-%m-%d %H:%M} UTC",
        ", ".join(found.hosts),
    ]
    return write_page(
        "ultramon report",
        element("p", " · ".join(filter(None, subject)), class_="dim"),
        element("h1", *_sentence(found)),
        _facts(found),
        element("div", _standing(found), _costs(found), class_="pair"),
        *_sessions(found),
        *_filled(found),
        element("p", *_remarks(found), class_="dim"),
    )


def _sentence(found: Survey) -> Iterator[str | Element]:
    """Yield what it cost, what was lost, and what to remove first."""
    if not found.sessions:
        yield "No session."
        return
    yield plural(found.sessions, "session")
    if found.subagents:
        yield f" and {plural(found.subagents, 'subagent')}"
    yield f" in {plural(found.projects, 'project')} "
    cost = _cost(found)
    if found.cost_usd is None and found.unpriced_sessions:
        verb = "has " if found.sessions + found.subagents == 1 else "have "
        yield from (verb, element("strong", "no known price"))
    else:
        yield from ("cost ", element("strong", cost), _AT.get(found.cost_source or "", ""))
    yield "; "
    yield from _lost(found)
    part = _first_to_remove(found)
    if part is not None:
        yield from ("; remove first: ", element("strong", part_name(part)))
        yield f", {tokens(part.tokens)} tokens in every request"
        if part.cost_usd is not None:
            yield f", ≈ {dollars(part.cost_usd)}"
        if part.sessions_used is not None:
            used = f"{part.sessions_used:,}" if part.sessions_used else "none"
            yield f", used in {used} of {plural(part.sessions, 'session')}"
    yield "."


def _lost(found: Survey) -> Iterator[str | Element]:
    """Yield what was lost, as clauses of one sentence."""
    clauses: list[tuple[str, str, str]] = []
    if found.compactions:
        causes = plural(found.compactions, "compaction")
        is_known = found.unmeasured_compactions < found.compactions
        lost = "an unknown number of tokens"
        if is_known:
            lost = f"at least {short_tokens(found.discarded_tokens)} tokens"
        clauses.append((f"{causes} threw away ", lost, ""))
    if found.subagents_empty:
        clauses.append(("", plural(found.subagents_empty, "subagent"), " came back empty"))
    if found.overflows:
        refused = plural(found.overflows, "request")
        clauses.append(("the provider refused ", refused, " as too large"))
    if not clauses:
        yield "nothing was thrown away"
    for number, (before, what, behind) in enumerate(clauses):
        if number:
            yield " and " if number == len(clauses) - 1 else ", "
        yield from (before, element("strong", what), behind)


def _first_to_remove(found: Survey) -> StandingCost | None:
    """Return the dearest part of every request that a person can take out of it.

    A part that is called, as the tools of a server, counts with the share of its sessions that did
    not call it.
    """

    def unused(one: StandingCost) -> float:
        share = 1.0 - (one.sessions_used or 0) / max(1, one.sessions)
        return _weight(one) * share

    own = (SKILLS, AGENTS, HOOKS)
    removable = [
        one
        for one in found.by_standing
        if one.source is not None and (one.source in own or one.source.startswith((MCP, MEMORY)))
    ]
    best = max(removable, key=unused, default=None)
    return best if best is not None and unused(best) > 0 else None


def _weight(one: StandingCost) -> float:
    """Return what sorts parts: their cost, or their tokens where nothing has a price."""
    return float(one.request_tokens) if one.cost_usd is None else one.cost_usd


def _facts(found: Survey) -> Element:
    """Draw what the sentence leaves out."""
    near = f"{plural(found.sessions_near_limit, 'session')}, "
    near += f"{plural(found.subagents_near_limit, 'subagent')} ended within "
    near += f"{(1 - found.near_limit_ratio) * 100:.0f} % of it"
    unknown = [
        form.format(plural(count, name))
        for count, name, form in (
            (found.subagents_return_unknown, "subagent", "whether {} came back empty"),
            (
                found.sessions_end_unknown + found.subagents_end_unknown,
                "agent",
                "how full {} ended",
            ),
            (found.unmeasured_compactions, "compaction", "what {} threw away"),
        )
        if count
    ]
    prices = price_words(found.price_data).removeprefix("prices ")
    if prices and found.unpriced_sessions:
        prices += f"; {plural(found.unpriced_sessions, 'session')} unpriced, in full or in part"
    rows = (
        ("compacted", compacted_words(found)),
        ("near the limit", near if found.sessions_near_limit or found.subagents_near_limit else ""),
        ("to read again", f"{again} of the cost" if (again := _again(found)) else ""),
        ("prices", prices),
        ("unknown", ", ".join(unknown)),
        ("left out", left_out_words(found) if found.unreadable else ""),
    )
    facts = element("dl", class_="facts")
    for name, words in rows:
        if words:
            facts.extend([element("dt", name), element("dd", words)])
    return facts


def _again(one: CostFacts) -> str:
    most = one.read_again_most_usd or 0.0
    return range_words(one.read_again_usd or 0.0, most) if most else ""


def _cost(one: CostFacts) -> str:
    is_whole = not one.unpriced_sessions
    return cost_words(one.cost_usd, is_whole=is_whole) or ("$0" if is_whole else "unpriced")


def _standing(found: Survey) -> Element | None:
    """Draw what stood in every request, the dearest first."""
    words = standing_words(found)
    if not words:
        return None
    largest = max(map(_weight, found.by_standing), default=0.0) or 1.0
    rows = [
        _Row(
            part_name(one),
            (f"{tokens(one.tokens)} {one.provenance}", used_words(one, found.sessions)),
            "" if one.cost_usd is None else dollars(one.cost_usd),
            _weight(one) / largest,
        )
        for one in found.by_standing
    ]
    return element(
        "section",
        element("h2", "What stands in every request"),
        element("p", f"{words}. A part costs its share of the requests, without replies."),
        _list(rows),
    )


def _costs(found: Survey) -> Element:
    """Draw what was spent, or filled windows, by project, model and day."""
    whole = found.cost_usd or 0.0

    def row(name: str | None, one: CostFacts, *facts: str, ratio: float = 0.0) -> _Row:
        again = _again(one)
        notes = [*facts, f"{again} to read again"] if again else facts
        share = (one.cost_usd or 0.0) / whole if whole else ratio
        return _Row(name or "unknown", notes, _cost(one) if whole else "", share)

    projects = [
        row(
            one.name,
            one,
            plural(one.sessions, "session"),
            f"{percent(one.share_ratio)} of tokens",
            ratio=one.share_ratio,
        )
        for one in sorted(found.by_project, key=lambda one: -(one.cost_usd or 0.0))
    ]
    models = [row(one.model, one, plural(one.sessions, "session")) for one in found.by_model]
    days = [
        row(f"{one.day or 'unknown'}", one, plural(one.sessions, "session"))
        for one in reversed(found.by_day)
    ]
    drawn = [element("h3", "Projects"), _list(projects)]
    if whole:
        drawn += [element("h3", "Models"), _list(models)]
        drawn += [element("h3", "Days"), _list(days, shown_rows=_SHOWN_DAYS)]
    title = "What it cost" if whole else "Who filled the windows"
    return element("section", element("h2", title), *drawn)


def _filled(found: Survey) -> list[Element]:
    """Draw which texts filled the windows, what stands in every request as one of them."""
    standing = [one for one in found.by_source if one.name is not None and is_standing(one.name)]
    sources = [one for one in found.by_source if one not in standing]
    rows = [
        (one.estimated_tokens, source_name(one.name, found), one.share_ratio) for one in sources
    ]
    if standing:
        together = sum(one.estimated_tokens for one in standing)
        share = sum(one.share_ratio for one in standing)
        rows.append((together, "what stands in every request", share))
    rows.sort(key=lambda row: -row[0])
    files = zip(found.by_file, file_names(found.by_file), strict=True)
    parts = (
        ("Sources", rows),
        ("Files", [(one.estimated_tokens, name, one.share_ratio) for one, name in files]),
    )
    return [
        element("h2", "What filled the windows"),
        element(
            "p",
            f"{tokens(found.estimated_tokens)} tokens entered windows, each text counted once. "
            "Which of them a text brought is estimated.",
        ),
        element(
            "div",
            *(
                element(
                    "section",
                    element("h3", title),
                    _list([
                        _Row(name, (percent(share),), short_tokens(count), share)
                        for count, name, share in shares
                    ])
                    if shares
                    else element("p", "none named"),
                )
                for title, shares in parts
            ),
            class_="pair",
        ),
    ]  # fmt: skip


def _list(rows: Sequence[_Row], *, shown_rows: int = _SHOWN_ROWS) -> Element:
    """Draw rows, of a long list the first ones and the others on request."""
    shown, others = rows[:shown_rows], rows[shown_rows:_MOST_ROWS]
    # One row more is as short as the line that would open it.
    if len(others) == 1:
        shown, others = rows, ()
    return element(
        "div",
        element("dl", *map(_row, shown), class_="rows"),
        element(
            "details",
            element("summary", f"{len(others):,} more"),
            element("dl", *map(_row, others), class_="rows"),
        )
        if others
        else None,
    )


def _row(row: _Row) -> Element:
    note = element("dd", class_="note")
    for number, fact in enumerate(row.facts, 1):
        # Each an element of its own: a line breaks between facts only.
        one = element("span", fact if number == len(row.facts) else f"{fact} ·")
        one.tail = " "
        note.append(one)
    words = f"{row.name}: {row.value or ', '.join(row.facts)}"
    return element(
        "div",
        element("dt", row.name),
        note,
        element("dd", row.value),
        element("dd", bar(row.ratio, words), class_="wide"),
    )


def _sessions(found: Survey) -> list[Element]:
    """Draw the worst sessions, and the dearest of the others, in a line each."""
    if not found.worst_sessions:
        return []
    worst = {(one.host, one.id) for one in found.worst_sessions}
    dearest = [one for one in found.dearest_sessions if (one.host, one.id) not in worst]
    columns = ("host", "project", "began with", "last", "cost", "peak", "compacted", "subagents")
    names = [element("span", name, class_=_class(name)) for name in columns]
    return [
        element("h2", "Sessions"),
        element(
            "p",
            f"{ORDER[0].upper()}{ORDER[1:]}. Subagents: in trouble, of all. A line opens: tokens "
            "in the window at each reply, the limit as a solid line, 75 % and 95 % of it dotted, "
            "compactions dashed.",
        ),
        element(
            "div",
            element("div", *names, class_="line head", aria_hidden="true"),
            *map(_session, found.worst_sessions),
            class_="sessions",
        ),
        *(
            [
                element("h3", "Dearest of the others"),
                element("div", *map(_session, dearest), class_="sessions"),
            ]
            if dearest
            else []
        ),
    ]


def _class(column: str) -> str:
    return column.replace(" ", "-")


def _session(one: SessionFacts) -> Element:
    peak = one.peak_ratio
    bad = "bad" if one.subagents_in_trouble else ""
    # As hooks decide, and as every other face of a coding agent shows it.
    fullness = "?" if peak is None else f"{whole_percent(peak, rounds=True)} %"
    cost = _cost(one) if one.cost_usd is not None or one.unpriced_sessions else ""
    is_full = peak is not None and peak >= _RUNGS[1]
    cells = (
        ("host", "", one.host, "", ""),
        ("project", "", one.project or "unknown", "", ""),
        ("began with", "", f"“{one.first_prompt}”" if one.first_prompt else "", "", ""),
        ("last", "last ", f"{one.ended_at:%m-%d}" if one.ended_at else "", "", ""),
        ("cost", "", cost, "", ""),
        ("peak", "peak ", fullness, "", "bad" if is_full else ""),
        ("compacted", "compacted ", compacted(one), " tokens", ""),
        ("subagents", "", subagents(one), " subagents", bad),
    )  # fmt: skip
    line = [
        element(
            "span",
            # Beside the names of columns these words are for screen readers.
            element("span", before, class_="unit") if before else None,
            text,
            element("span", behind, class_="unit") if behind else None,
            class_=f"{_class(name)} {style}".rstrip(),
        )
        for name, before, text, behind, style in cells
        if text
    ]
    limit = "limit unknown"
    if one.context_limit_tokens is not None:
        limit = f"of {tokens(one.context_limit_tokens)}"
    peak_words = f"peak {tokens(one.peak_tokens)} tokens {limit}"
    period = "time unknown"
    if one.ended_at is not None:
        began = one.started_at or one.ended_at
        period = f"{began:%Y-%m-%d %H:%M} to {one.ended_at:%Y-%m-%d %H:%M} UTC"
    facts = [one.model or "model unknown", period, peak_words]
    if one.subagent_compactions:
        lost = short_tokens(one.subagent_discarded_tokens)
        facts.append(f"its subagents compacted {one.subagent_compactions}x {lost} tokens")
    trouble = _trouble(one)
    command = replay_command(one)
    return element(
        "details",
        element("summary", *line, class_="line"),
        element("p", " · ".join(facts)),
        element("p", "; ".join(trouble), class_="bad") if trouble else None,
        timeline(
            one.points,
            peak_words,
            limit_tokens=one.context_limit_tokens,
            marks=one.compaction_points,
            lines=_RUNGS,
        ),
        element("p", element("code", command)) if command else None,
    )


def _trouble(one: SessionFacts) -> list[str]:
    near = plural(one.subagents_near_limit, "subagent")
    facts = (
        (one.overflows, plural(one.overflows, "request") + " refused as too large"),
        (one.subagents_empty, plural(one.subagents_empty, "subagent") + " came back empty"),
        (one.subagents_near_limit, f"{near} ended near the limit"),
        (one.is_near_limit, "its last reply left almost no room"),
    )
    return [words for count, words in facts if count]


def _remarks(found: Survey) -> list[str]:
    words = []
    if found.standing is not None:
        words.append(
            "Measured: the provider's count, shared out over texts that are all recorded; "
            "estimated: from one text. "
        )
    if found.read_again_most_usd:
        words.append(
            "To read again: input behind compactions and restarts that no cache held, and at most "
            "what was read from a cache there and for the summaries. "
        )
    if found.copied_transcripts:
        copied = plural(found.copied_transcripts, "transcript")
        words.append(f"History copied into {copied} is counted once. ")
    if found.broken_lines:
        words.append(f"{plural(found.broken_lines, 'line')} could not be read. ")
    if found.older_transcripts:
        words.append(f"{plural(found.older_transcripts, 'older transcript')} left out. ")
    words.append("Made on this machine; the page loads nothing.")
    return words
