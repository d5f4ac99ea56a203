"""The items an agent works through: what is done, what may be half done, what is left."""

from __future__ import annotations

import os

from ultramon.errors import ConfigurationError
from ultramon.system.compact_json import dumps

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

PENDING = "pending"
IN_PROGRESS = "in_progress"
DONE = "done"
INTERRUPTED = "interrupted"

MAX_TOTAL = 1_000_000_000
MAX_PLAN_BYTES = 640 * 1024
"""Largest size of the items in a state, which is read back up to 1 MiB: some 3,400 paths of 40
characters. Each name is stored up to three times: tasks, handoff, result in the handoff."""

MAX_RESULTS_BYTES = 128 * 1024
"""Largest size of the results on top of that; a result is a reference, not the work itself."""

_MAX_TEXT_CHARS = 1000
_CUT = "…"
_ITEM_FRAME_BYTES = len('{"name":,"status":"in_progress","result":"\\u2026"},,:"\\u2026",')


def item_bytes(name: str) -> int:
    """Return what an item counts towards `MAX_PLAN_BYTES`."""
    return 3 * len(dumps(name)) + _ITEM_FRAME_BYTES


def result_bytes(result: str) -> int:
    """Return what a result counts towards `MAX_RESULTS_BYTES`."""
    return 2 * len(dumps(result))


def name_of(item: object) -> str:
    """Return the name of an item, which is a text or a path.

    Raises:
        ConfigurationError: It is neither, or empty.
    """
    if isinstance(item, os.PathLike):
        item = os.fspath(item)
    if not isinstance(item, str) or not item:
        raise ConfigurationError("plan item", item, "non-empty text or a path")
    return item


class Plan:
    """The items of an agent by name, in order; not thread-safe: the monitor's lock guards it."""

    def __init__(self) -> None:
        self._tasks: dict[str, dict[str, Any]] = {}
        """By name, each as a state file has it."""
        self._size_bytes = 0
        self._results_bytes = 0
        self._is_planned = False
        self._unnamed_done = 0
        self._total: int | None = None
        self._current: list[str] = []

    def add(self, items: Iterable[object]) -> None:
        """Add items that are not in the plan yet.

        Raises:
            ConfigurationError: An item is no text or path, two have one name, or the plan grows
                beyond 640 KiB as a state stores it; then nothing is added.
        """
        if isinstance(items, str | bytes):
            raise ConfigurationError("plan", items, "a list of items, not one text")
        names: dict[str, int] = {}
        for name in map(name_of, items):
            names[name] = names.get(name, 0) + 1
        for name, count in names.items():
            if count > 1:
                allowed = f"there once, not {count} times: number items that are to be done again"
                raise ConfigurationError("plan item", name, allowed)
        self._add(names)
        self._is_planned = bool(self._tasks)

    def _add(self, names: Iterable[str]) -> None:
        names = [name for name in names if name not in self._tasks]
        added = sum(map(item_bytes, names))
        if self._size_bytes + added > MAX_PLAN_BYTES:
            raise ConfigurationError(
                "plan",
                f"{len(self._tasks) + len(names)} items, {self._size_bytes + added} bytes",
                f"at most {MAX_PLAN_BYTES} bytes as stored: give each agent a part of the work",
            )
        self._size_bytes += added
        for name in names:
            self._tasks[name] = {"name": name, "status": PENDING, "result": None}

    def pending(self) -> list[str]:
        """Return the items that are not done, interrupted ones included, in order."""
        return [name for name, task in self._tasks.items() if task["status"] != DONE]

    def begin(self, item: object) -> str:
        """Mark an item as in progress, adding a new one; return its name."""
        name = name_of(item)
        self._add([name])
        self._tasks[name]["status"] = IN_PROGRESS
        self._current.append(name)
        return name

    def finish(self, name: str) -> str | None:
        """Mark an item that was begun as done, as `complete`, unless it is done already."""
        if self._tasks[name]["status"] != DONE:
            return self.complete(name, None)
        self._leave(name)
        return None

    def interrupt(self, name: str) -> None:
        """Mark an item that was begun as possibly half done."""
        self._leave(name)
        task = self._tasks.get(name, {})
        if task.get("status") == IN_PROGRESS:
            task["status"] = INTERRUPTED

    def complete(self, item: object | None, result: str | None) -> str | None:
        """Mark an item as done; None = the current one, or one without a name.

        Returns:
            A contradiction in words, else None: an item was done already and gets no result, or
            more tasks are done than there are in all; the total then follows.
        """
        if item is None and not self._current:
            self._unnamed_done += 1
            return self._raise_total()
        name = name_of(self._current[-1] if item is None else item)
        self._add([name])
        self._leave(name)
        task = self._tasks[name]
        was_done, task["status"] = task["status"] == DONE, DONE
        if result is not None:
            self._keep_result(task, str(result)[:_MAX_TEXT_CHARS])
        elif was_done:
            return f"task {name!r} was done already and counts once"
        return self._raise_total()

    def _raise_total(self) -> str | None:
        total = self._total
        if total is None or (done := self.completed_count) <= total:
            return None
        self._total = done
        return f"{done} tasks are done, the total was {total} and follows"

    def _keep_result(self, task: dict[str, Any], result: str) -> None:
        if task["result"] is not None:
            self._results_bytes -= result_bytes(task["result"])
        # The work is done; a result without room must not undo that.
        if self._results_bytes + result_bytes(result) > MAX_RESULTS_BYTES:
            result = _CUT
        self._results_bytes += result_bytes(result)
        task["result"] = result

    def _leave(self, name: str) -> None:
        if name in self._current:
            self._current.remove(name)

    def set_current(self, item: object | None) -> None:
        """Name the current task without adding it to the plan; None = no task."""
        self._current = [] if item is None else [name_of(item)[:_MAX_TEXT_CHARS]]

    def set_total(self, total: int | None) -> None:
        """Fix the number of tasks; None = as many as the plan has.

        Raises:
            ConfigurationError: Not a whole number from 0 to a billion, or fewer than are done.
        """
        if total is not None and (
            not isinstance(total, int) or isinstance(total, bool) or not 0 <= total <= MAX_TOTAL
        ):
            allowed = f"None or a whole number from 0 to {MAX_TOTAL:,}"
            raise ConfigurationError("tasks_total", total, allowed)
        if total is not None and total < (done := self.completed_count):
            raise ConfigurationError("tasks_total", total, f"at least the {done} that are done")
        self._total = total

    @property
    def current(self) -> str | None:
        """The task begun last and not finished."""
        return self._current[-1] if self._current else None

    @property
    def completed_count(self) -> int:
        """Tasks done, with and without a name."""
        return self._unnamed_done + len(self._tasks) - len(self.pending())

    @property
    def total_count(self) -> int | None:
        """Tasks in all; None = unknown."""
        if self._total is not None:
            return self._total
        return len(self._tasks) + self._unnamed_done if self._is_planned else None

    def to_json(self) -> list[dict[str, Any]] | None:
        """Return the items in the form of a state file, None without a plan."""
        return [dict(task) for task in self._tasks.values()] or None

    def restore(
        self, tasks: Iterable[dict[str, Any]] | None, completed: int, total: int | None
    ) -> None:
        """Continue the plan of an agent that vanished: its items in progress may be half done."""
        for task in tasks or ():
            # Without its result: `_keep_result` puts that back and counts its bytes.
            again = self._tasks[task["name"]] = {**task, "result": None}
            if task["status"] == IN_PROGRESS:
                again["status"] = INTERRUPTED
            if task.get("result") is not None:
                self._keep_result(again, task["result"])
        self._size_bytes = sum(map(item_bytes, self._tasks))
        self._is_planned = total is not None and bool(self._tasks)
        self._unnamed_done = max(0, completed - self.completed_count)
        if total is not None and total != self.total_count:
            self._total = total
