"""One page that needs nothing else: no network, no script; dark and light, on a phone too."""

from __future__ import annotations

import base64
import hashlib

from ultramon.pictures.elements import Element, element, to_html

STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --dim: #59636e; --paper: #fff; --card: #f6f8fa;
  --line: #d1d9e0; --fill: #4c8dd6; --bad: #c4252d; --mark: #8250df; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --dim: #9198a1; --paper: #0d1117;
  --card: #151b23; --line: #3d444d; --fill: #4c8dd6; --bad: #ff6b66; --mark: #ab7df8; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 72rem; padding: 1rem; background: var(--paper);
  color: var(--ink); font: 1rem/1.45 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.35rem; font-weight: 400; line-height: 1.4; margin: .25rem 0 .75rem; }
h2 { font-size: 1.1rem; margin: 1.25rem 0 .25rem; } h3 { font-size: .95rem; margin: .5rem 0 0; }
p { margin: .25rem 0; color: var(--dim); font-size: .875rem; }
strong { font-weight: 650; } .bad { color: var(--bad); font-weight: 600; }
dl { margin: 0; } dt, dd { margin: 0; min-width: 0; }
.facts { display: grid; grid-template-columns: max-content 1fr; gap: 0 .75rem;
  font-size: .875rem; } .facts dd { color: var(--dim); }
.pair { display: grid; gap: 0 2rem; grid-template-columns: repeat(auto-fit, minmax(22rem, 1fr)); }
.rows > div { display: grid; grid-template-columns: minmax(25%, 1fr) auto minmax(3.5rem, auto);
  gap: 0 .75rem; font-size: .875rem; padding: .15rem 0; align-items: baseline; }
.rows dd { text-align: right; } .rows .note { color: var(--dim); }
.note span { white-space: nowrap; }
.rows .wide { grid-column: 1 / -1; }
svg { display: block; width: 100%; }
.bar { height: .25rem; border-radius: .125rem; overflow: hidden; }
.timeline { height: 5rem; margin: .5rem 0; }
.track { fill: var(--line); } .fill { fill: var(--fill); }
.limit, .rung, .mark { vector-effect: non-scaling-stroke; stroke-width: 1.5; }
.limit { stroke: var(--bad); } .rung { stroke: var(--dim); stroke-dasharray: 3 4; }
.mark { stroke: var(--mark); stroke-dasharray: 2 2; }
code { font: .875em ui-monospace, Menlo, Consolas, monospace; user-select: all; }
summary { cursor: pointer; color: var(--dim); font-size: .875rem; }
.sessions { border-top: 1px solid var(--line); }
.sessions > * { border-bottom: 1px solid var(--line); }
.sessions details[open] { padding-bottom: .5rem; }
.line { display: grid; gap: 0 .6rem; padding: .25rem 0; font-size: .875rem; color: var(--ink);
  grid-template-columns: .8rem 6rem 7rem 1fr 3rem 4.5rem 3rem 5.5rem 5.2rem; list-style: none; }
.line::-webkit-details-marker { display: none; }
summary.line::before { content: "\\25B8"; color: var(--dim); grid-column: 1; }
details[open] > summary.line::before { content: "\\25BE"; }
.line > span { grid-row: 1; min-width: 0; white-space: nowrap; overflow: hidden;
  text-overflow: ellipsis; }
.head > span, .host, .last, .project, .subagents { color: var(--dim); } .head { color: var(--dim); }
.host { grid-column: 2; } .project { grid-column: 3; } .began-with { grid-column: 4; }
.last { grid-column: 5; } .cost { grid-column: 6; } .peak { grid-column: 7; }
.compacted { grid-column: 8; } .subagents { grid-column: 9; }
.cost, .peak, .compacted, .subagents { text-align: right; } .subagents.bad { color: var(--bad); }
details[open] > .line > .began-with { white-space: normal; }
.unit { position: absolute; clip-path: inset(50%); width: 1px; height: 1px; overflow: hidden; }
@media screen and (max-width: 48rem) {
  .pair { grid-template-columns: 1fr; } .sessions .head { display: none; }
  .rows > div { grid-template-columns: 1fr auto; }
  .rows .note { grid-row: 2; grid-column: 1 / -1; text-align: left; }
  summary.line { display: flex; flex-wrap: wrap; }
  .line > .project { flex: 1; color: var(--ink); }
  .line > .began-with { order: 1; flex-basis: 100%; white-space: normal; }
  .line > .host, .line > .last, .line > .peak, .line > .compacted, .line > .subagents { order: 2; }
  .unit { position: static; clip-path: none; }
}
@media print {
  @page { margin: 12mm; }
  :root { color-scheme: light; --ink: #1b1f24; --dim: #59636e; --paper: #fff; --card: #f6f8fa;
    --line: #d1d9e0; --fill: #4c8dd6; --bad: #c4252d; --mark: #8250df; font-size: 9.5pt; }
  body { max-width: none; padding: 0; }
  .pair { grid-template-columns: 1fr 1fr; }
  .rows > div, .sessions > *, h2, h3 { break-inside: avoid; } h2, h3 { break-after: avoid; }
  summary.line::before { content: ""; }
}
"""
_HASH = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
CONTENT_POLICY = (
    f"default-src 'none'; style-src 'sha256-{_HASH}'; base-uri 'none'; form-action 'none'"
)
"""What a browser lets the page do: show its own style, and nothing else."""


def write_page(title: str, *content: Element) -> str:
    """Return a whole page.

    Args:
        title: Of the window.
        content: The elements of its body.
    """
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=CONTENT_POLICY),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="referrer", content="no-referrer"),
        element("title", title),
        _style(),
    )
    page = element("html", head, element("body", element("main", *content)), lang="en")
    return f"<!DOCTYPE html>\n{to_html(page)}\n"


def _style() -> Element:
    style = Element("style")
    style.text = STYLE  # the one text that is no text of a person, and is written as it is
    return style
