"""Events, queues and dead letters."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ultramon.pictures.elements import Element, element
from ultramon.system.ids import is_agent_id
from ultramon.system.wording import age, field, moment, plural
from ultramon.web.pages.layout import agent_url, url

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ultramon.backends.queue import Depth
    from ultramon.notices.message import Message
    from ultramon.web.event_reader import PastEvent

_BAD = {"agent_lost", "agent_expired", "dead_letter", "items_rejected", "return_enforced", "audit"}
_COUNTS = ("ready", "waiting", "claimed", "dead", "dropped", "expired")
_MOST_LETTERS = 100
# A whole UUID takes two lines on a phone.
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def shown_name(agent_id: str, names: Mapping[str, str]) -> str:
    """Return how an agent is called; of one that is not known, eight characters of a UUID."""
    known = names.get(agent_id)
    if known is not None:
        return field(known)
    return field(_UUID.sub(lambda found: found[0][:8], agent_id, count=1))


def event_table(events: Sequence[PastEvent], names: Mapping[str, str] | None) -> Element:
    """Return events as a table, in their order.

    Args:
        events: The events.
        names: How agents are called, by id; None = all are of one agent, which is not named.
    """
    if not events:
        return element("p", "No events.", class_="dim")
    rows = []
    for event in events:
        class_ = "kind bad" if event.kind in _BAD else "kind"
        rows.append(
            element(
                "tr",
                element("td", moment(event.at), class_="when"),
                element("td", event.kind.replace("_", " "), class_=class_),
                None if names is None else _who(event.agent_id, names),
                element("td", event.words, class_="words"),
            )
        )
    titles = ("time (UTC)", "event", *(("agent",) if names is not None else ()), "details")
    head = element("tr", *(element("th", title, scope="col") for title in titles))
    return element(
        "table", element("thead", head), element("tbody", *rows), class_="events",
        aria_label="Events",
    )  # fmt: skip


def _who(agent_id: str, names: Mapping[str, str]) -> Element:
    if not is_agent_id(agent_id):
        return element("td", field(agent_id), class_="who")  # about what several agents share
    link = element(
        "a", shown_name(agent_id, names), href=agent_url(agent_id), title=field(agent_id)
    )
    return element("td", link, class_="who")


def events_content(
    events: Sequence[PastEvent],
    depths: Sequence[Depth] | None,
    dead: Sequence[Message],
    *,
    names: Mapping[str, str],
    limit: int,
    more: int,
    now: float,
) -> Element:
    """Return the content of the page.

    Args:
        events: The latest first.
        depths: The messages of each recipient; None = the store keeps none.
        dead: Messages that were not acknowledged.
        names: How agents are called, by id.
        limit: How many events may be shown.
        more: How many the link to more asks for.
        now: Epoch seconds.
    """
    further = None
    # Without a full list, or at the highest limit, a longer one would be the same.
    if len(events) >= limit and more > limit:
        further = element("p", element("a", "Show more", href=url("/events", {"limit": more})))
    return element(
        "div",
        element("h1", "Events and messages"),
        element(
            "div",
            element(
                "section", element("h2", "Messages"), _queues(depths, names, now), class_="card"
            ),
            element("section", element("h2", "Dead letters"), _dead(dead, names), class_="card"),
            class_="columns",
        ),
        element("h2", "Latest events"),
        event_table(events, names),
        further,
    )


def _queues(depths: Sequence[Depth] | None, names: Mapping[str, str], now: float) -> Element:
    if not depths:
        words = "This store keeps no messages." if depths is None else "Nothing waits."
        return element("p", words, class_="dim")
    rows = []
    for one in depths:
        counts = [f"{getattr(one, name):,} {name}" for name in _COUNTS if getattr(one, name)]
        oldest = "" if one.oldest_at is None else f"{age(max(0.0, now - one.oldest_at))} ago"
        rows.append(
            element(
                "tr",
                element("th", shown_name(one.recipient, names), scope="row"),
                element("td", ", ".join(counts)),
                element("td", oldest, class_="number"),
            )
        )
    head = element(
        "tr", *(element("th", name, scope="col") for name in ("recipient", "messages", "oldest"))
    )
    return element("table", element("thead", head), element("tbody", *rows), class_="queues")


def _dead(dead: Sequence[Message], names: Mapping[str, str]) -> Element:
    if not dead:
        return element("p", "None.", class_="dim")
    items = []
    for one in dead[:_MOST_LETTERS]:
        words = f"{one.id}, {moment(one.queued_at)}, {plural(one.attempts, 'attempt')}: "
        words += field(one.last_error) or "no reason given"
        items.append(
            element(
                "li",
                element("b", f"to {shown_name(one.recipient, names)} "),
                element("span", words, class_="dim"),
                element("div", field(one.text)),
            )
        )
    cure = "`ultramon queue retry` gives a message five new attempts."
    return element("div", element("ul", *items, class_="letters"), element("p", cure, class_="dim"))
