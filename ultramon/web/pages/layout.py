"""The frame of every page: head, navigation, and the content with its live updates."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlencode

from ultramon.pictures.elements import Element, element, to_html
from ultramon.system.wording import moment

if TYPE_CHECKING:
    from collections.abc import Mapping

_NAVIGATION = (("/", "Fleet"), ("/jobs", "Jobs"), ("/events", "Events"))
# No setting may make htmx write a style or run a text: the page's policy forbids both.
_HTMX = {
    "extensions": '"sse"',
    "history": "false",
    "includeIndicatorCSS": "false",
    "metaCharacter": '"-"',
    "morphIgnore": '["data-htmx-powered","open"]',
    "prefix": '"hx-"',
}
LIVE_PATH = "/live"


def url(path: str, parameters: Mapping[str, str | int | None]) -> str:
    """Return an address on this server; a parameter that is None is left out."""
    kept = {name: value for name, value in parameters.items() if value is not None}
    return f"{path}?{urlencode(kept, errors='replace')}" if kept else path


def agent_url(agent_id: str) -> str:
    """Return the address of an agent's page."""
    return url("/agent", {"id": agent_id})


def job_url(run: str) -> str:
    """Return the address of a run's page."""
    return url("/jobs", {"run": run})


def whole_page(title: str, path: str, address: str, content: Element) -> bytes:
    """Return a page.

    Args:
        title: Of the window.
        path: Of the page, for the navigation.
        address: Path and query of the page.
        content: What `live_content` returned.
    """
    config = ",".join(f'"{name}":{value}' for name, value in _HTMX.items())
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("meta", name="htmx-config", content=f"{{{config}}}"),
        element("title", f"{title} · ultramon"),
        element("link", rel="stylesheet", href="/static/style.css"),
        element("link", rel="icon", href="/static/icon.svg", type="image/svg+xml"),
        # Not deferred: htmx would begin between both, without what it needs for the stream.
        element("script", src="/static/htmx.min.js"),
        element("script", src="/static/hx-sse.min.js"),
    )
    links = [
        element("a", name, href=to, aria_current="page" if to == path else None)
        for to, name in _NAVIGATION
    ]
    leave = element(
        "form", element("button", "Sign out", type="submit"), method="post", action="/logout"
    )
    body = element(
        "body",
        element("a", "Skip to the content", class_="skip", href="#content"),
        element("header", element("b", "ultramon"), element("nav", *links), leave),
        element(
            "main",
            content,
            id="content",
            tabindex="-1",
            hx_sse_connect=LIVE_PATH + address,
            # Only what differs is replaced: focus, selection and scroll place stay.
            hx_swap="innerMorph",
        ),
    )
    return _document(element("html", head, body, lang="en"))


def plain_page(title: str, *words: str) -> bytes:
    """Return a page of some sentences, for those who are not logged in."""
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", f"{title} · ultramon"),
        element("link", rel="stylesheet", href="/static/style.css"),
    )
    sentences = [element("p", one) for one in words]
    body = element("body", element("main", element("h1", title), *sentences, id="content"))
    return _document(element("html", head, body, lang="en"))


def _document(root: Element) -> bytes:
    return f"<!DOCTYPE html>\n{to_html(root)}\n".encode()


def live_content(shown: Element | None, number: int, at: float, problem: str | None) -> Element:
    """Return what is sent again and again.

    Where nothing is sent for some time, the style sheet shows the sentence about a lost connection:
    the number makes its element a new one each time.

    Args:
        shown: The content; None = the store has never answered.
        number: Differs from that of the content before.
        at: When the store was read, epoch seconds.
        problem: Why the store does not answer; None while it does.
    """
    silent = "Nothing has come from ultramon web for 20 s: what is below may be old."
    # A new id is a new element, so the 20 s of its animation begin anew with every message.
    state = element("p", silent, class_="silent bad", role="alert", id=f"beat-{number}")
    trouble = None
    if problem is not None:
        since = f"what is below is from {moment(at)}" if shown is not None else "nothing is known"
        words = f"The store does not answer, {since}: {problem}"
        trouble = element("p", words, class_="trouble bad", role="alert")
    stamp = element("p", f"as of {moment(at)}", class_="stamp dim", id="stamp")
    return element("div", state, trouble, shown, stamp, class_="view")


def number_cell(text: str, value: object = None, *, class_: str = "number") -> Element:
    """Return a right-aligned cell; the exact value is beside the written one for programs."""
    exact = None if value is None else str(value)
    return element("td", text, class_=class_, data_value=exact)


def facts_list(facts: list[tuple[str, str | Element]]) -> Element:
    """Return names and values as a list; those without a value are left out."""
    listed = element("dl", class_="facts")
    for name, value in facts:
        if not isinstance(value, str) or value:
            listed.extend([element("dt", name), element("dd", value)])
    return listed
