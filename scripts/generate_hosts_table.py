"""Write the table of hosts into docs/hosts.md, from what their code shows and their packages say.

Run it after a change of a host: python scripts/generate_hosts_table.py
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from ultramon.hosts.capabilities import COLUMNS, can, has_hooks
from ultramon.hosts.port import Host
from ultramon.hosts.registry import find_hosts
from ultramon.relay.opening import launched_hosts

DOCS = Path(__file__).parent.parent / "docs" / "hosts.md"
_MARKED = re.compile(r"(<!-- hosts -->\n).*?(<!-- end -->)", re.DOTALL)
_NONE = "—"


def built_in() -> list[Host]:
    """Return the hosts that ultramon brings, those with hooks first, each by its product."""
    own = [host for host in find_hosts().usable if host.package.startswith("ultramon.")]
    return sorted(own, key=lambda host: (not has_hooks(host), name_of(host).lower()))


def name_of(host: Host) -> str:
    """Return what people call a host."""
    return host.capabilities.product or host.name


def _cell(host: Host, column: str) -> str:
    if can(host, column, has_launcher=host.name in launched_hosts()):
        return host.capabilities.how.get(column, "yes")
    return "no" if has_hooks(host) else _NONE


def _options(host: Host) -> str:
    names = [name for name in host.setup.own_options if not name.endswith(("_run", "_parts"))]
    return ", ".join(f"`--{name.replace('_', '-')}`" for name in names) or _NONE


def _table() -> Iterator[str]:
    yield f"| host | {' | '.join(COLUMNS)} | options |"
    yield f"|---|{'---|' * len(COLUMNS)}---|"
    for host in built_in():
        name = f"{name_of(host)} {host.capabilities.version}".rstrip()
        cells = [_cell(host, column) for column in COLUMNS]
        yield f"| {' | '.join([name, *cells, _options(host)])} |"
    yield ""
    for column, meaning in COLUMNS.items():
        yield f"- **{column}**: {meaning}."
    yield "- **options**: of `install`, beyond those of every host."
    lacking = [(host, *one) for host in built_in() for one in host.capabilities.lacks.items()]
    if lacking:
        yield ""
    for host, column, reason in lacking:
        yield f"{name_of(host)} lacks *{column}*: {reason}."


def render(document: str) -> str:
    """Return the document with a fresh table."""
    table = "\n".join(_table())
    return _MARKED.sub(lambda match: f"{match[1]}{table}\n{match[2]}", document)


if __name__ == "__main__":
    DOCS.write_text(render(DOCS.read_text(encoding="utf-8")), encoding="utf-8")
