"""The items of a run with what each touches and waits for: which may be out at the same time."""

from __future__ import annotations

import json
import posixpath
from dataclasses import dataclass, field
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from ultramon.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

COLUMNS = ("item", "paths", "after")
_SHOWN_CHARS = 60


@dataclass(frozen=True, slots=True)
class ItemPlan:
    """What is known of the items beside their names.

    Attributes:
        paths: Files and folders that an item touches, by item; none = not known.
        after: Items that must be verified before an item begins.
    """

    paths: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    after: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def is_known(self) -> bool:
        """Whether there is anything to keep to."""
        return bool(self.paths or self.after)

    def check(self, items: Collection[str]) -> None:
        """Check that every item can begin once.

        Raises:
            ConfigurationError: One waits for what is no item, or for itself, by way of others.
        """
        for name, others in self.after.items():
            for other in others:
                if other not in items:
                    raise ConfigurationError("items", f"{name} after {other}", "names of items")
        try:
            TopologicalSorter(self.after).prepare()
        except CycleError as error:
            # It is found from the last item to the first one.
            circle = " after ".join(reversed(error.args[1]))
            raise ConfigurationError("items", circle, "no circle") from None

    def gate(self, held: Collection[str], verified: Collection[str]) -> Callable[[str], bool]:
        """Return what says of an item whether it may begin.

        Two items exclude each other where a path of one is that of the other, or is in it.

        Args:
            held: Those that running contexts have, or that are being verified.
            verified: Those that are done.
        """
        done = frozenset(verified)
        taken = {_parts(path) for name in held for path in self.paths.get(name, ())}
        above = {parts[:depth] for parts in taken for depth in range(len(parts))}

        def is_free(path: str) -> bool:
            parts = _parts(path)
            holders = {parts[:depth] for depth in range(len(parts) + 1)}
            return parts not in above and taken.isdisjoint(holders)

        def may_begin(name: str) -> bool:
            is_due = done.issuperset(self.after.get(name, ()))
            return is_due and all(map(is_free, self.paths.get(name, ())))

        return may_begin

    def stuck(self, given_up: Collection[str]) -> dict[str, str]:
        """Return the items that can never begin, each with an item that it waits for.

        Args:
            given_up: Items that are set aside.
        """
        found: dict[str, str] = {}
        for name in TopologicalSorter(self.after).static_order():
            for other in self.after.get(name, ()):
                if other in given_up or other in found:
                    found[name] = other
        return found


@cache
def _parts(path: str) -> tuple[str, ...]:
    return PurePosixPath(posixpath.normpath(path)).parts


def read_rows(lines: Iterable[str], name: str) -> list[dict[str, Any]]:
    """Return the items of a file with columns, as text, lists and lists.

    Args:
        lines: A table with tabs whose first line names its columns, ``item`` among them, and in
            which several paths or items are apart by commas; or JSON Lines with these members.
        name: Of the file: ``.tsv`` is a table.

    Raises:
        ConfigurationError: A line is neither; it is named.
    """
    rows = []
    columns: list[str] | None = None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        if not name.endswith(".tsv"):
            rows.append(_from_json(line, number))
        elif columns is None:
            columns = [cell.strip() for cell in line.rstrip("\r\n").split("\t")]
            if "item" not in columns or not set(columns) <= set(COLUMNS):
                allowed = f"a first line that names the columns: {', '.join(COLUMNS)}"
                raise ConfigurationError("items", line.strip()[:_SHOWN_CHARS], allowed)
        else:
            cells = line.rstrip("\r\n").split("\t")
            if len(cells) > len(columns):
                allowed = f"at most {len(columns)} columns in line {number}"
                raise ConfigurationError("items", line.strip()[:_SHOWN_CHARS], allowed)
            row = dict(zip(columns, cells, strict=False))
            rows.append(
                {"item": row.get("item", "")}
                | {key: _split(row.get(key, "")) for key in COLUMNS[1:]}
            )
    return rows


def _from_json(line: str, number: int) -> dict[str, Any]:
    try:
        row = json.loads(line)
        lists = {key: row.pop(key, []) for key in COLUMNS[1:]}
        item = row.pop("item")
    except (ValueError, KeyError, AttributeError, TypeError):
        row, item, lists = None, None, {}
    are_texts = all(
        isinstance(value, list) and all(isinstance(one, str) for one in value)
        for value in lists.values()
    )
    if row != {} or not isinstance(item, str) or not are_texts:
        allowed = f'in line {number} an object with "item", "paths" and "after", the last two lists'
        raise ConfigurationError("items", line.strip()[:_SHOWN_CHARS], allowed)
    return {"item": item, **lists}


def _split(cell: str) -> list[str]:
    return [part.strip() for part in cell.split(",") if part.strip()]
