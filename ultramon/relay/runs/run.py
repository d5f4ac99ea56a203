"""One call of a relay: what all that works on its run shares."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ultramon.fleet.fleet import Fleet
from ultramon.prices.price_list import open_prices
from ultramon.relay.choices import task_name
from ultramon.relay.runs.context_record import ContextRecords
from ultramon.relay.runs.run_reader import RunReader
from ultramon.relay.runs.spending import RunSpending

if TYPE_CHECKING:
    from collections.abc import Callable

    from ultramon.backends.base import Backend
    from ultramon.relay.choices import RelayChoices
    from ultramon.relay.launcher_order import Launchers
    from ultramon.relay.runs.context_record import ContextRecord
    from ultramon.relay.runs.result import Stop
    from ultramon.relay.workspace import RelayWorkspace

GOAL = "(the goal)"
"""The one item of a job without a list, where the agent names its own tasks."""
_POLL_SECONDS = 0.5


@dataclass(slots=True)
class Run:
    """A run that a relay begins or continues.

    Attributes:
        name: Its name.
        choices: What was asked for.
        launchers: What starts contexts.
        workspaces: Where it works: one for each worker.
        judged: Where what is to be merged is checked; None = nothing is merged, and there is one
            worker.
        backend: The store; the directory of its states is that of the launchers' hooks.
        tell: Called with a line about each step.
        confirm: Asked with a question before the run begins.
        is_single: Whether there is one context, which is not asked to hand over: for a comparison.
        retired: Where workers of an earlier call have worked, which this one has not: no context
            begins there, but what is there may be to be judged.
        is_stopping: Whether it stops early: no context shall continue.
        stop: Why, where a context is the reason; None = it is not.
        items: What was asked for, by the names that the agents know.
        fleet: Supervises its contexts.
        view: Its journal and states.
        contexts: The contexts so far.
        spending: What they have spent, and the caps.
    """

    name: str
    choices: RelayChoices
    launchers: Launchers
    workspaces: tuple[RelayWorkspace, ...]
    judged: RelayWorkspace | None
    backend: Backend
    tell: Callable[[str], object]
    confirm: Callable[[str], bool] = lambda question: False
    is_single: bool = False
    retired: tuple[RelayWorkspace, ...] = ()
    is_stopping: bool = field(default=False, init=False)
    stop: Stop | None = field(default=None, init=False)
    items: dict[str, str] = field(init=False)
    fleet: Fleet = field(init=False)
    view: RunReader = field(init=False)
    contexts: ContextRecords = field(init=False)
    spending: RunSpending = field(init=False)

    def __post_init__(self) -> None:
        choices = self.choices
        self.items = agent_names(choices, uses_sdk=self.launchers.uses_sdk)
        self.fleet = Fleet(self.name, backend=self.backend, poll_interval_seconds=_POLL_SECONDS)
        self.view = RunReader(self.backend, self.name)
        self.contexts = ContextRecords(self.workspace.folder)
        self.spending = RunSpending(
            choices, self.workspace.folder, self.contexts, self.tell, open_prices(choices.prices)
        )

    @property
    def workspace(self) -> RelayWorkspace:
        """That of the first worker; its folder is that of the run."""
        return self.workspaces[0]

    def workspace_of(self, record: ContextRecord) -> RelayWorkspace:
        """Return where a context works; the first worker's where its own is gone."""
        places = (*self.workspaces, *self.retired)
        found = (one for one in places if one.worker == record.worker)
        return next(found, self.workspace)

    @property
    def has_items(self) -> bool:
        """Whether there is a list; else the one item is the goal."""
        return self.choices.items is not None

    def stop_for(self, stop: Stop) -> None:
        """Have the supervisor stop early; the first reason counts."""
        self.stop = self.stop or stop
        self.fleet.stop()


def agent_names(choices: RelayChoices, *, uses_sdk: bool) -> dict[str, str]:
    """Return the items of a run as its user spells them, by the names that its agents know.

    A task list joins white space, so an item is known by the name that it has there; the SDK keeps
    names.
    """
    if choices.items is None:
        return {choices.goal if uses_sdk else GOAL: choices.goal}
    return {item if uses_sdk else task_name(item): item for item in choices.items}
