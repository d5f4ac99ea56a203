"""What `ultramon backend stats` prints of a store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ultramon.cli.output import age, field
from ultramon.system.wording import byte_size

if TYPE_CHECKING:
    from collections.abc import Iterator

_SHOWN_INDEXES = 5


def stats_lines(stats: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of what was measured."""
    agents = stats["agents"]
    size = f", {byte_size(agents['bytes'])}" if "bytes" in agents else ""
    yield f"agents       {agents['stored']:,} stored, {agents['active']:,} active{size}"
    if "events" in stats:
        events = stats["events"]
        since = f", the oldest of {events['oldestAt']}" if events.get("oldestAt") else ""
        yield f"events       {events['stored']:,}{since}"
    if "journal" in stats:
        yield f"journal      {byte_size(stats['journal']['bytes'])}"
    messages = stats["messages"]
    yield f"messages     {messages['waiting']:,} waiting, {messages['dead']:,} dead"
    for one in messages["recipients"]:
        yield f"             {one['waiting']:,} for {field(one['agentId'])}"
    if "tables" in stats:
        yield from _server_lines(stats)


def _server_lines(stats: dict[str, Any]) -> Iterator[str]:
    kept = stats["outbox"]
    waiting = f"states {kept['states']:,}, messages {kept['messages']:,}"
    waits = "nothing waits" if kept["oldestAt"] is None else f"waiting: {waiting}"
    yield f"on this machine {waits}"
    holder = stats["tailHolder"]
    if holder is None:
        yield "event tail   nothing holds it back"
    else:
        who = field(holder["application"]) or "no name"
        pid = "" if holder["pid"] is None else f"process {holder['pid']} of the server, "
        since = "" if holder["seconds"] is None else f", for {age(holder['seconds'])}"
        yield f"event tail   held back by {pid}{who}{since}"
    used = stats["connections"]
    yield f"connections  {used['used']} of {used['max']}, {used['ofUltramon']} of ultramon"
    total = sum(one["tableBytes"] + one["indexBytes"] for one in stats["tables"])
    yield f"tables       {byte_size(total)}"
    for one in stats["tables"]:
        sizes = f"{byte_size(one['tableBytes']):>9}  {byte_size(one['indexBytes']):>9} in indexes"
        yield f"  {one['name']:<16} {sizes}  {one['rows']:,} rows, {one['deadRows']:,} dead"
    yield "largest indexes"
    for one in stats["indexes"][:_SHOWN_INDEXES]:
        yield f"  {one['name']:<26} {byte_size(one['bytes']):>9}"
