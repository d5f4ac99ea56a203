"""The task list of a host, taken into the plans of its agents: the same for every host.

Standard library only; loaded by the calls that report tasks, which are rare. The plan is stored
with everything else that the call changes, at once: so a `SIGKILL` loses no task. Like every call
without an event it syncs the file and not the directory: a power cut may bring the state before it.

A host may keep one list for a session and its subagents, or one for each. A task belongs to the
agent that created it. When a subagent ends, the session takes over what it left.
"""

from __future__ import annotations

from ultramon.errors import StateError
from ultramon.state.plan import DONE
from ultramon.state.stored_plan import (
    CHANGED,
    CREATED,
    LISTED,
    ReportedTask,
    StoredPlan,
    TaskReport,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ultramon.hosts.calls.hosted_agent import HostedAgent
    from ultramon.hosts.calls.store import HookStore
    from ultramon.state.record import StateRecord


class TaskSharing:
    """One report, on its way to the agents that the tasks belong to.

    Args:
        store: Where they are.
        session_id: The session.
        agent_id: The agent that called the tool: the session or one of its subagents.
        report: The report.
    """

    def __init__(
        self, store: HookStore, session_id: str, agent_id: str, report: TaskReport
    ) -> None:
        self._store = store
        self._session_id = session_id
        self._agent_id = agent_id
        self._report = report
        self._left: list[ReportedTask] = []

    def apply(self, agent: HostedAgent) -> None:
        """Change the plan of the agent that called the tool. Call inside its lock."""
        plan = StoredPlan(agent.record)
        tasks, kind = self._report.tasks, self._report.kind
        self._left = []
        if kind == CREATED:
            for task in tasks:
                plan.put(task)
        elif not self._report.is_shared:
            plan.replace(tasks)
        elif kind == CHANGED:
            self._left = [task for task in tasks if not plan.change(task)]
        else:
            # A subagent's list is also that of its session, which takes what is not its own.
            is_session = self._agent_id == self._session_id
            other = self._ids_of_others() if is_session else {one.id for one in tasks} - plan.ids
            plan.replace(task for task in tasks if task.id not in other)
            self._left = [task for task in tasks if task.id in other]
        self._save(plan)

    def hand_on(self) -> None:
        """Change the plans of the others, each inside its own lock; what fails is logged."""
        if not self._report.is_shared:
            return
        try:
            if self._report.kind == LISTED:
                self._hand_on_list()
            for task in self._left if self._report.kind == CHANGED else ():
                self._hand_on_change(task)
        except StateError as error:
            self._store.fail(self._agent_id, f"tasks of its session: {error}")

    def _hand_on_change(self, task: ReportedTask) -> None:
        for other in self._others():
            if task.id in StoredPlan(other).ids:
                self._change(other.agent_id, lambda plan: plan.change(task))
                return
        if task.status is not None:
            self._change(self._agent_id, lambda plan: plan.adopt(task))

    def _hand_on_list(self) -> None:
        taken: set[str] = set()
        session: StateRecord | None = None
        for other in self._others():
            if other.agent_id == self._session_id:
                session = other
            elif own := StoredPlan(other).ids:
                taken |= own
                self._replace(other, [task for task in self._left if task.id in own])
        if session is not None:
            self._replace(session, [task for task in self._left if task.id not in taken])

    def _replace(self, other: StateRecord, share: list[ReportedTask]) -> None:
        before = other.to_json()
        plan = StoredPlan(other)
        plan.replace(share)
        plan.save()
        # A save that changes nothing would only make the other agent look active.
        if other.to_json() != before:
            self._change(other.agent_id, lambda plan: plan.replace(share))

    def _change(self, agent_id: str, step: Callable[[StoredPlan], object]) -> None:
        def change(agent: HostedAgent) -> None:
            plan = StoredPlan(agent.record)
            step(plan)
            self._save(plan)

        self._store.update(agent_id, change, create=False, journals=False)

    def _save(self, plan: StoredPlan) -> None:
        plan.save()
        if plan.has_overflowed:
            text = "its plan is full: further tasks are counted, their names are not stored"
            self._store.fail(plan.agent_id, text)

    def _ids_of_others(self) -> set[str]:
        return set().union(*(StoredPlan(other).ids for other in self._others()))

    def _others(self) -> Iterator[StateRecord]:
        """Yield the session and its running subagents, but for the caller."""
        if self._agent_id != self._session_id:
            session = self._store.find(self._session_id)
            if session is not None:
                yield session
        for child_id in self._store.children(self._session_id):
            child = self._store.find(child_id) if child_id != self._agent_id else None
            if child is not None and child.active:
                yield child


def give_back(store: HookStore, session_id: str, subagent: StateRecord) -> None:
    """Leave to the session what a subagent that ended has not finished.

    A kill in between leaves those tasks in both plans, and none in neither.

    Raises:
        StateError: One of the states could not be stored.
    """
    plan = StoredPlan(subagent)
    left = [
        ReportedTask(task["id"], task["name"], task["status"])
        for task in plan.tasks
        if task["status"] != DONE and task.get("id") in plan.ids
    ]
    if not left:
        return

    def take(agent: HostedAgent) -> None:
        own = StoredPlan(agent.record)
        for task in left:
            own.put(task)
        own.save()

    def leave(agent: HostedAgent) -> None:
        own = StoredPlan(agent.record)
        own.remove({task.id for task in left})
        own.save()

    # The session takes first: a kill in between leaves a task in both plans, not in neither.
    if store.update(session_id, take, create=False, journals=False) is not None:
        store.update(subagent.agent_id, leave, create=False, journals=False)
