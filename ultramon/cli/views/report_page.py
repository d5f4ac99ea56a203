"""The report as one page for a browser."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from ultramon.cli.output import percent, plural, short_tokens, tokens
from ultramon.cli.views.report_screen import (
    ORDER,
    compacted,
    facts_of,
    file_names,
    part_name,
    price_words,
    replay_command,
    source_name,
    standing_words,
    title_of,
    used_words,
)
from ultramon.pictures.drawings import bar, timeline
from ultramon.pictures.elements import Element, element
from ultramon.pictures.page import write_page
from ultramon.prices.cost import cost_words, dollars, range_words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ultramon.recordings.bills import CostFacts
    from ultramon.recordings.survey_models import ProjectUse, SessionFacts, Share, Survey

_MOST_ROWS = 20
_RUNGS = (0.75, 0.95)


def report_page(found: Survey) -> str:
    """Return the page of a survey."""
    sessions, subagents = plural(found.sessions, "session"), plural(found.subagents, "subagent")
    thrown = f"tokens thrown away by {plural(found.compactions, 'compaction')}"
    near = f"subagents ended within {(1 - found.near_limit_ratio) * 100:.0f} % of their limit"
    numbers = [
        _number(_cost(found), price_words(found.price_data) or "no prices"),
        _number(f"{found.sessions_compacted:,}", f"of {sessions} compacted"),
        _number(f"≥ {short_tokens(found.discarded_tokens)}", thrown),
        _number(f"{found.subagents_empty:,}", f"of {subagents} came back empty"),
        _number(f"{found.subagents_near_limit:,}", near),
    ]
    facts = element("dl", class_="facts")
    for name, words, _ in facts_of(found):
        facts.extend([element("dt", name), element("dd", words)])
    sources = [source_name(one.name) for one in found.by_source]
    projects = [one.name or "unknown" for one in found.by_project]
    filled = [
        _shares("By source", found.by_source, sources),
        _shares("By file", found.by_file, file_names(found.by_file)),
        _shares("By project", found.by_project, projects),
    ]
    return write_page(
        "ultramon report",
        element("h1", title_of(found)),
        element("p", f"ultramon report, {found.generated_at:%Y-%m-%d %H:%M} UTC", class_="dim"),
        element("div", *numbers, class_="grid"),
        element("div", facts, class_="card"),
        *_costs(found),
        *_standing(found),
        element("h2", "What filled the windows"),
        element(
            "p",
            f"{tokens(found.estimated_tokens)} tokens entered windows, each text counted once. "
            "Which of them a text brought is estimated.",
            class_="dim",
        ),
        element("div", *filled, class_="grid"),
        element("h2", "Worst sessions"),
        element(
            "p",
            "Tokens in the window at each reply. The solid line is the limit, dotted lines are "
            f"75 % and 95 % of it, dashed ones compactions. In this order: {ORDER}.",
            class_="dim",
        ),
        *map(_session, found.worst_sessions),
        element("p", *_left_out(found), class_="dim"),
    )


def _number(number: str, words: str) -> Element:
    return element(
        "div", element("div", number, class_="number"), element("div", words, class_="dim"),
        class_="card",
    )  # fmt: skip


def _cost(one: CostFacts) -> str:
    is_whole = not one.unpriced_sessions
    return cost_words(one.cost_usd, is_whole=is_whole) or ("$0" if is_whole else "unpriced")


def _costs(found: Survey) -> list[Element]:
    """Draw what was spent by model, project, day and session."""
    if found.cost_usd is None:
        return []
    largest = found.dearest_sessions
    groups: list[tuple[str, list[tuple[str, CostFacts]]]] = [
        ("By model", [(one.model or "unknown", one) for one in found.by_model]),
        ("By project", [(one.name or "unknown", one) for one in _dearest(found.by_project)]),
        ("By day", [(f"{one.day or 'unknown'}", one) for one in reversed(found.by_day)]),
        (
            "Dearest sessions",
            [(f"{one.project or 'unknown'} {one.id[:8]}", one) for one in largest],
        ),
    ]
    words = [
        "List prices times the tokens that the provider counted, not a bill. To read again: input "
        "behind compactions and restarts that no cache held, and at most what was read from a "
        "cache there and for the summaries.",
    ]
    if found.unpriced_sessions:
        words.append(f" {plural(found.unpriced_sessions, 'session')} unpriced, in full or in part.")
    return [
        element("h2", "What it cost"),
        element("p", *words, class_="dim"),
        element("div", *(_cost_table(title, rows, found) for title, rows in groups), class_="grid"),
    ]


def _dearest(projects: Sequence[ProjectUse]) -> list[ProjectUse]:
    return sorted(projects, key=lambda one: -(one.cost_usd or 0.0))


def _cost_table(title: str, rows: Sequence[tuple[str, CostFacts]], found: Survey) -> Element:
    table = element("dl")
    for name, one in rows[:_MOST_ROWS]:
        cost, most = _cost(one), one.read_again_most_usd or 0.0
        again = f"{range_words(one.read_again_usd or 0.0, most)} to read again" if most else ""
        share = (one.cost_usd or 0.0) / (found.cost_usd or 1.0)
        table.extend(
            [
                element("dt", name),
                element("dd", cost),
                element(
                    "dd",
                    bar(share, f"{name}: {cost}"),
                    element("small", again, class_="dim") if again else None,
                    class_="wide",
                ),
            ]
        )
    return element("section", element("h3", title), table, class_="card")


def _standing(found: Survey) -> list[Element]:
    """Draw what stood in every request, the dearest first."""
    words = standing_words(found)
    if not words:
        return []
    table = element("dl")
    largest = max((one.tokens for one in found.by_standing), default=1)
    for one in found.by_standing[:_MOST_ROWS]:
        name, cost = part_name(one), "" if one.cost_usd is None else f" · {dollars(one.cost_usd)}"
        size = f"{tokens(one.tokens)} {one.provenance}"
        used = used_words(one, found.sessions)
        table.extend(
            [
                element("dt", name),
                element("dd", f"{size}{cost}"),
                element(
                    "dd",
                    bar(one.tokens / max(1, largest), f"{name}: {size}"),
                    element("small", used, class_="dim"),
                    class_="wide",
                ),
            ]
        )
    return [
        element("h2", "What stands in every request"),
        element(
            "p",
            f"{words}. Measured: the provider's count, shared out over texts that are all "
            "recorded. Estimated: from one text. A cost is the part's share of what the requests "
            "cost without their replies.",
            class_="dim",
        ),
        element("section", table, class_="card"),
    ]


def _shares(title: str, shares: Sequence[Share], names: Sequence[str]) -> Element:
    rows = element("dl")
    for one, name in zip(shares[:_MOST_ROWS], names, strict=False):
        share = percent(one.share_ratio)
        rows.extend(
            [
                element("dt", name),
                element("dd", f"{short_tokens(one.estimated_tokens)} · {share}"),
                element("dd", bar(one.share_ratio, f"{name}: {share}"), class_="wide"),
            ]
        )
    none = None if shares else element("p", "none named", class_="dim")
    return element("section", element("h3", title), rows, none, class_="card")


def _session(one: SessionFacts) -> Element:
    limit = "limit unknown"
    if one.context_limit_tokens is not None:
        limit = f"of {tokens(one.context_limit_tokens)}, {percent(one.peak_ratio)}"
    period = "time unknown"
    if one.ended_at is not None:
        began = one.started_at or one.ended_at
        period = f"{began:%Y-%m-%d %H:%M} to {one.ended_at:%Y-%m-%d %H:%M} UTC"
    trouble = [
        words
        for count, words in (
            (one.overflows, plural(one.overflows, "request") + " refused as too large"),
            (one.subagents_empty, plural(one.subagents_empty, "subagent") + " came back empty"),
            (
                one.subagents_near_limit,
                plural(one.subagents_near_limit, "subagent") + " ended near the limit",
            ),
            (one.is_near_limit, "its last reply left almost no room"),
        )
        if count
    ]
    peak = f"peak {tokens(one.peak_tokens)} tokens {limit}"
    facts = [peak, plural(one.subagents, "subagent")]
    if one.cost_usd is not None:
        facts.insert(0, _cost(one))
    if one.compactions:
        facts.append(f"compacted {compacted(one)} tokens")
    if one.subagent_compactions:
        lost = short_tokens(one.subagent_discarded_tokens)
        facts.append(f"its subagents {one.subagent_compactions}x {lost} tokens")
    command = replay_command(one)
    return element(
        "article",
        element("h3", one.project or "unknown project"),
        element("p", f"{one.host} · {one.model or 'model unknown'} · {period}", class_="dim"),
        element("p", f"“{one.first_prompt}”") if one.first_prompt else None,
        element("p", " · ".join(facts)),
        element("p", "; ".join(trouble), class_="bad") if trouble else None,
        timeline(
            one.points,
            peak,
            limit_tokens=one.context_limit_tokens,
            marks=one.compaction_points,
            lines=_RUNGS,
        ),
        element("p", element("code", command)) if command else None,
        class_="card",
    )


def _left_out(found: Survey) -> list[str]:
    words = []
    for reason, count in Counter(one.reason for one in found.unreadable).items():
        words.append(f"{plural(count, 'file')} left out: {reason}. ")
    if found.copied_transcripts:
        copied = plural(found.copied_transcripts, "transcript")
        words.append(f"{copied} with the history of another one, which is counted once. ")
    if found.broken_lines:
        words.append(f"{plural(found.broken_lines, 'line')} could not be read. ")
    if found.older_transcripts:
        words.append(f"{plural(found.older_transcripts, 'older transcript')} left out. ")
    words.append("Made on this machine; the page loads nothing.")
    return words
