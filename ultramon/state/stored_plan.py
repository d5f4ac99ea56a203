"""The plan in a stored state, changed by a hook or a command in place of the agent's program.

Standard library only: hooks load it. Works on a state inside its lock; nothing here reads or writes
a file.
"""

from __future__ import annotations

from ultramon.state.plan import (
    DONE,
    IN_PROGRESS,
    MAX_PLAN_BYTES,
    MAX_RESULTS_BYTES,
    PENDING,
    item_bytes,
    result_bytes,
)
from ultramon.system.compact_json import dumps

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from ultramon.state.record import StateRecord

CREATED = "created"
CHANGED = "changed"
LISTED = "listed"
"""All tasks there are: what is missing was deleted."""
DELETED = "deleted"
MAX_NAME_CHARS = 200
"""A longer name of a reported task is cut: its id tells it apart."""
_ID_FRAME_BYTES = len('"id":,')


class ReportedTask:
    """One task as a client reports it.

    Attributes:
        id: The client's id.
        name: Its subject; empty = not reported.
        status: A status of a plan, or `DELETED`; None = unchanged.
        former_status: The status before; None = not reported.
    """

    __slots__ = ("former_status", "id", "name", "status")

    def __init__(
        self, id: str, name: str, status: str | None, former_status: str | None = None
    ) -> None:
        self.id = id
        # Cut first: a client's subject may be a whole text.
        self.name = " ".join(name[: 4 * MAX_NAME_CHARS].split())
        if len(self.name) > MAX_NAME_CHARS:
            self.name = self.name[: MAX_NAME_CHARS - 1] + "…"
        self.status = status
        self.former_status = former_status


class TaskReport:
    """What one tool call says about the tasks.

    Attributes:
        kind: `CREATED`, `CHANGED` or `LISTED`.
        tasks: What it names.
        is_shared: Whether a session and its subagents have one list; else each has its own.
    """

    def __init__(self, kind: str, tasks: list[ReportedTask], *, is_shared: bool = True) -> None:
        self.kind = kind
        self.tasks = tasks
        self.is_shared = is_shared


class StoredPlan:
    """The tasks in a state, each with a name of its own. `save` writes them back.

    Tasks beyond 640 KiB are counted and not stored: finished ones first, then the last. The record
    says how many: ``tasks_total`` and ``tasks_completed`` count them, ``tasks`` lacks them.

    Args:
        record: The state.

    Attributes:
        tasks: The tasks as in the state file; copies, until `save`.
    """

    def __init__(self, record: StateRecord) -> None:
        self._record = record
        self.tasks = [dict(task) for task in record.tasks or ()]
        self._index()
        self._running_before = self._running()
        self._begun: str | None = None
        done = self._count_done()
        self._more_done = max(0, record.tasks_completed - done)
        more = (record.tasks_total or 0) - len(self.tasks)
        self._more = max(0, self._more_done, more)
        self._was_whole = not self._more

    @property
    def agent_id(self) -> str:
        """The agent whose plan it is."""
        return self._record.agent_id

    @property
    def more_count(self) -> int:
        """Tasks that are counted and not stored."""
        return self._more

    @property
    def ids(self) -> set[str]:
        """The ids of the client's tasks."""
        return set(self._by_id)

    @property
    def has_overflowed(self) -> bool:
        """Whether it is only now that tasks are counted and not stored."""
        return self._was_whole and self._more > 0

    def _index(self) -> None:
        self._by_id = {task["id"]: task for task in self.tasks if _is_listed(task)}
        self._names = {task["name"] for task in self.tasks}

    def add(self, name: str) -> dict[str, Any]:
        """Append a task with a name that is free; return it."""
        task: dict[str, Any] = {"name": name, "status": PENDING, "result": None}
        self.tasks.append(task)
        self._names.add(name)
        return task

    def set_status(self, task: dict[str, Any], status: str) -> None:
        """Give a task another status; the one begun last is the current one."""
        # A task that is reported again in its status has not begun now.
        if status == IN_PROGRESS != task["status"]:
            self._begun = task["name"]
        task["status"] = status

    def put(self, reported: ReportedTask) -> None:
        """Change a client's task, or append it; one without a subject is named after its id."""
        task = self._by_id.get(reported.id)
        if task is None:
            self._append(reported)
        else:
            self._update(task, reported)

    def change(self, reported: ReportedTask) -> bool:
        """Change a client's task; return whether it is in this plan, stored or only counted."""
        task = self._by_id.get(reported.id)
        if task is not None:
            self._update(task, reported)
            return True
        former, status = reported.former_status, reported.status
        if not self._more or former is None:
            return False
        self._more -= status == DELETED
        self._more_done += (status == DONE) - (former == DONE)
        self._more_done = min(max(0, self._more_done), self._more)
        return True

    def adopt(self, reported: ReportedTask) -> None:
        """Append a client's task whose creation was not reported, unless it may be counted."""
        # While some are only counted, one of an unknown id may be among them.
        if not self._more:
            self.put(reported)

    def replace(self, reported: Iterable[ReportedTask]) -> None:
        """Make the client's tasks these; tasks that no client lists stay behind them."""
        listed = {one.id: one for one in reported if one.status != DELETED}
        own = [task for task in self.tasks if not _is_listed(task)]
        self.remove(self.ids - listed.keys())
        self._more = self._more_done = 0
        for one in listed.values():
            self.put(one)
        self.tasks = [*(self._by_id[task_id] for task_id in listed), *own]

    def remove(self, ids: set[str]) -> None:
        """Take the client's tasks with these ids out of the plan."""
        self.tasks = [t for t in self.tasks if not (_is_listed(t) and t["id"] in ids)]
        self._index()

    def save(self) -> None:
        """Write the tasks, their counts and the current task into the state."""
        self._fit()
        record = self._record
        record.tasks = self.tasks or None
        record.tasks_completed = self._count_done() + self._more_done
        record.tasks_total = len(self.tasks) + self._more or None
        running = self._running()
        if self._begun in running:
            record.current_task = self._begun
        elif record.current_task not in running and running:
            record.current_task = running[-1]
        elif record.current_task in self._running_before and not running:
            record.current_task = None

    @property
    def stored_bytes(self) -> int:
        """What the tasks count towards `MAX_PLAN_BYTES`."""
        return sum(map(_task_bytes, self.tasks))

    @property
    def fits(self) -> bool:
        """Whether a state has room for every task and every result."""
        results = (task.get("result") for task in self.tasks)
        results_bytes = sum(result_bytes(result) for result in results if isinstance(result, str))
        return self.stored_bytes <= MAX_PLAN_BYTES and results_bytes <= MAX_RESULTS_BYTES

    @property
    def current_name(self) -> str | None:
        """The current task, where it is in progress."""
        current = self._record.current_task
        return current if current in self._running() else None

    def _append(self, reported: ReportedTask) -> None:
        if reported.status == DELETED:
            return
        task = self.add(self._free_name(reported))
        task["id"] = reported.id
        self._by_id[reported.id] = task
        self.set_status(task, reported.status or PENDING)

    def _update(self, task: dict[str, Any], reported: ReportedTask) -> None:
        if reported.status == DELETED:
            self.remove({reported.id})
            return
        # A task that has its id in its name, beside one of the same subject, keeps that name.
        if reported.name and task["name"] not in (reported.name, _numbered(reported)):
            is_current = self._record.current_task == task["name"]
            self._names.discard(task["name"])
            task["name"] = self._free_name(reported)
            self._names.add(task["name"])
            if is_current:
                self._begun = task["name"]
        if reported.status is not None:
            self.set_status(task, reported.status)

    def _free_name(self, reported: ReportedTask) -> str:
        """Return the subject, with the id where another task has that name: names are unique."""
        name = reported.name or f"task {reported.id}"
        if name in self._names:
            name = _numbered(reported)
        while name in self._names:
            name += "'"
        return name

    def _running(self) -> list[str]:
        return [task["name"] for task in self.tasks if task["status"] == IN_PROGRESS]

    def _count_done(self) -> int:
        return sum(task["status"] == DONE for task in self.tasks)

    def _fit(self) -> None:
        size = self.stored_bytes
        if size <= MAX_PLAN_BYTES:
            return
        # What is left to do matters to a successor, what is done only counts.
        candidates = [task for task in self.tasks if task["status"] == DONE]
        candidates += [task for task in reversed(self.tasks) if task["status"] != DONE]
        dropped = set()
        for task in candidates:
            if size <= MAX_PLAN_BYTES:
                break
            size -= _task_bytes(task)
            dropped.add(id(task))
            self._more += 1
            self._more_done += task["status"] == DONE
        self.tasks = [task for task in self.tasks if id(task) not in dropped]


def open_tasks(record: StateRecord) -> list[str]:
    """Return the tasks of a plan that are not done, by name, with a word for one that is begun."""
    return [
        f"{task.get('name')}{' (in progress)' if task.get('status') == 'in_progress' else ''}"
        for task in record.tasks or ()
        if task.get("status") != "done"
    ]


def has_begun_task(record: StateRecord) -> bool:
    """Return whether the plan in a state has a task in progress."""
    return any(task["status"] == IN_PROGRESS for task in record.tasks or ())


def _numbered(reported: ReportedTask) -> str:
    return f"{reported.name or 'task'} (#{reported.id})"


def _task_bytes(task: dict[str, Any]) -> int:
    size = item_bytes(task["name"])
    return size + len(dumps(task["id"])) + _ID_FRAME_BYTES if _is_listed(task) else size


def _is_listed(task: dict[str, Any]) -> bool:
    return isinstance(task.get("id"), str)
