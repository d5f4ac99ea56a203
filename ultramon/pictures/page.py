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
body { margin: 0 auto; max-width: 68rem; padding: 1rem; background: var(--paper);
  color: var(--ink); font: 1rem/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; margin: 0 0 .25rem; } h2 { font-size: 1.15rem; margin: 1.75rem 0 .5rem; }
h3 { font-size: 1rem; margin: 0; } p { margin: .25rem 0; } .dim { color: var(--dim); }
.bad { color: var(--bad); font-weight: 600; }
.grid { display: grid; gap: .75rem; grid-template-columns: repeat(auto-fit, minmax(15rem, 1fr));
  margin-bottom: .75rem; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: .5rem;
  padding: .75rem; min-width: 0; margin-bottom: .75rem; }
.grid .card { margin-bottom: 0; }
.number { font-size: 1.6rem; font-weight: 600; line-height: 1.2; }
dl { display: grid; grid-template-columns: 1fr auto; gap: .1rem .75rem; margin: .5rem 0 0; }
dt, dd { margin: 0; min-width: 0; } dd { text-align: right; color: var(--dim); }
.facts { grid-template-columns: max-content 1fr; } .facts dd { text-align: left; }
svg { display: block; width: 100%; } .bar { height: .4rem; } .wide { grid-column: 1 / -1; }
.timeline { height: 5rem; margin: .5rem 0; }
.track { fill: var(--line); } .fill { fill: var(--fill); }
.limit, .rung, .mark { vector-effect: non-scaling-stroke; stroke-width: 1.5; }
.limit { stroke: var(--bad); } .rung { stroke: var(--dim); stroke-dasharray: 3 4; }
.mark { stroke: var(--mark); stroke-dasharray: 2 2; }
code { font: .875em ui-monospace, Menlo, Consolas, monospace; user-select: all; }
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
