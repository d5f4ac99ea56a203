"""What a relay was asked to do, kept in the folder of its run so that it can be continued."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from ultramon.context.ladder import FORCE_RETURN, PREPARE_HANDOFF
from ultramon.errors import ConfigurationError
from ultramon.relay.item_plan import ItemPlan, read_rows
from ultramon.relay.option_values import (
    CLAUDE,
    COMMAND,
    CRITICAL,
    DEFAULT_GRACE_MINUTES,
    DEFAULT_IDLE_REQUESTS,
    DEFAULT_MAX_CONTEXTS,
    DEFAULT_SETUP_MINUTES,
    DEFAULT_VERIFY_MINUTES,
    HOSTS,
    WARNING,
)
from ultramon.relay.prompts import RelayGoal
from ultramon.relay.run_folder import read_run_file, run_directory, write_run_file
from ultramon.relay.workspace_record import WorkspaceRecord
from ultramon.state.stored_plan import MAX_NAME_CHARS

if TYPE_CHECKING:
    from collections.abc import Iterable

FILE = "relay.json"
NEXT_ARGUMENTS = "--"
"""Between the arguments of one host and those of the next one."""
LEVELS = {WARNING: PREPARE_HANDOFF, CRITICAL: FORCE_RETURN}
"""Where a context may be asked to hand over: the action of the rung, by its usual name."""


@dataclass(frozen=True, slots=True)
class RelayChoices:
    """The choices of one run.

    Attributes:
        goal: What is to be reached.
        cwd: The user's directory.
        rules: What holds on the way.
        items: One line for each; None = the goal is the only one.
        verify: The command that checks an item, with ``{item}`` for it; None = no check.
        verify_seconds: After these the check has failed.
        agent: ``command``, or one or more hosts in the order in which they are preferred, with
            commas: ``claude``, ``codex``, ``copilot``, ``gemini``, ``opencode``,
            ``qwen``.
        arguments: Of the host; or the command with its arguments. Those of several hosts are
            apart by `NEXT_ARGUMENTS`.
        hand_over_at: ``warning`` or ``critical``.
        in_place: Whether to work in the user's own tree.
        max_contexts: Most contexts of the run, over all calls.
        max_usd: Most dollars of the run at list price; None = any.
        max_tokens: Most tokens of the run, input and output, cached or not; None = any.
        prices: A file of the user's own prices; None = list prices.
        leave_plan: The share of each limit of the user's plan that is left to the user, 0.0-1.0: no
            context begins beyond it.
        wait_at_most_seconds: The longest wait for the reset of a limit; None = as long as it takes.
        deadline_seconds: Of one call; None = none.
        grace_seconds: How long a context has to hand over when it must.
        idle_requests: A context that makes so many requests, completes no task and changes no file
            is asked to hand over; 0 = never. Not for ``command``.
        program: Name or path of the one host; None = its usual name.
        compare: Whether the same job then runs in one session without a relay.
        setup: The command that prepares the worktree before its first context, for a shell; None
            or empty = there is nothing to prepare.
        setup_seconds: After these it has failed.
        verify_all: The command that checks the whole tree before a merge; None = none is checked.
        workers: How many contexts work at the same time, 1 and more.
        protect: Pathspecs of git: an item that changes such a file is set aside.
        item_paths: What items touch, by item; see `ItemPlan`.
        item_after: What items wait for, likewise.
        may_pay: The agents that may work although they pay otherwise than by a subscription,
            beside the first one.
        paid_by: What the first agent paid by when the run began; None = nothing said it.
        check_at_end: Whether the check runs once more for every item when all are done, where
            nothing is merged.
    """

    goal: str
    cwd: str
    rules: tuple[str, ...] = ()
    items: tuple[str, ...] | None = None
    verify: str | None = None
    verify_seconds: float = 60.0 * DEFAULT_VERIFY_MINUTES
    agent: str = CLAUDE
    arguments: tuple[str, ...] = ()
    hand_over_at: str = WARNING
    in_place: bool = False
    max_contexts: int = DEFAULT_MAX_CONTEXTS
    max_usd: float | None = None
    max_tokens: int | None = None
    prices: str | None = None
    leave_plan: float = 0.0
    wait_at_most_seconds: float | None = None
    deadline_seconds: float | None = None
    grace_seconds: float = 60.0 * DEFAULT_GRACE_MINUTES
    idle_requests: int = DEFAULT_IDLE_REQUESTS
    program: str | None = None
    compare: bool = False
    setup: str | None = None
    setup_seconds: float = 60.0 * DEFAULT_SETUP_MINUTES
    verify_all: str | None = None
    workers: int = 1
    protect: tuple[str, ...] = ()
    item_paths: dict[str, tuple[str, ...]] = field(default_factory=dict)
    item_after: dict[str, tuple[str, ...]] = field(default_factory=dict)
    may_pay: tuple[str, ...] = ()
    paid_by: str | None = None
    check_at_end: bool = True

    @property
    def is_merged(self) -> bool:
        """Whether what is verified is merged into the branch of the run."""
        return self.workers > 1 or self.verify_all is not None

    @property
    def plan(self) -> ItemPlan:
        """Which items may be out at the same time."""
        return ItemPlan(self.item_paths, self.item_after)

    @property
    def words(self) -> RelayGoal:
        """Goal and rules, checked.

        Raises:
            ConfigurationError: As `RelayGoal`.
        """
        return RelayGoal(self.goal, self.rules)

    @property
    def agents(self) -> dict[str, tuple[str, ...]]:
        """The agents in the order in which they are preferred, each with its arguments.

        Raises:
            ConfigurationError: There is no such agent, one is named twice, or there are arguments
                for more.
        """
        names = self.agent.split(",")
        if len(set(names)) < len(names) or not (names == [COMMAND] or set(names) <= set(HOSTS)):
            allowed = f"{COMMAND}, or one or more of {', '.join(HOSTS)}, each once, with commas"
            raise ConfigurationError("agent", self.agent, allowed)
        if len(names) == 1:
            return {names[0]: self.arguments}
        groups: list[tuple[str, ...]] = [()]
        for argument in self.arguments:
            if argument == NEXT_ARGUMENTS:
                groups.append(())
            else:
                groups[-1] += (argument,)
        if len(groups) > len(names):
            allowed = f"at most {len(names)} groups, one for each agent, with -- between them"
            raise ConfigurationError("arguments", " ".join(self.arguments), allowed)
        return dict(zip(names, groups + [()] * (len(names) - len(groups)), strict=True))

    def check_merged(self) -> None:
        """Check that a run can merge as it was asked to, and that every item can begin once.

        Raises:
            ConfigurationError: It cannot; or an item waits for what is none, or for itself.
        """
        self.plan.check(self.items or ())
        if self.workers < 1:
            raise ConfigurationError("workers", self.workers, "1 and more")
        if self.protect and not self.is_merged:
            allowed = "left out where nothing is merged: see workers and verify_all"
            raise ConfigurationError("protect", self.protect[0], allowed)
        if not self.is_merged:
            return
        name, value = ("verify_all", self.verify_all)
        if self.workers > 1:
            name, value = "workers", str(self.workers)
        if self.items is None:
            raise ConfigurationError(
                name, value, "left out without items: there is nothing to part"
            )
        if self.in_place:
            raise ConfigurationError(name, value, "left out with in_place")
        if self.verify is None and self.verify_all is None:
            allowed = "given with verify or verify_all: what is merged has passed a check"
            raise ConfigurationError(name, value, allowed)

    def save(self, folder: str) -> None:
        """Write the choices into the folder of the run, readable by this user alone.

        Raises:
            StateError: The system refused.
        """
        write_run_file(os.path.join(folder, FILE), asdict(self))

    @classmethod
    def load(cls, state_directory: str, run: str) -> RelayChoices:
        """Read the choices of a run.

        Raises:
            ConfigurationError: There is no such run.
            StateCorruptError: They are not what a relay wrote.
        """
        path = os.path.join(run_directory(state_directory, run), FILE)
        try:
            return read_run_file(path, cls._decode)
        except FileNotFoundError:
            gone = "; this one was removed by --clean" if is_run(state_directory, run) else ""
            raise ConfigurationError("run", run, f"a relay that was begun{gone}") from None

    @classmethod
    def _decode(cls, value: dict[str, Any]) -> RelayChoices:
        for name in ("rules", "items", "arguments"):
            value[name] = None if value[name] is None else tuple(value[name])
        for name in ("protect", "may_pay"):
            value[name] = tuple(value.get(name, ()))
        for name in ("item_paths", "item_after"):
            value[name] = {item: tuple(them) for item, them in value.get(name, {}).items()}
        return cls(**value)


def is_run(state_directory: str, run: str) -> bool:
    """Return whether a relay of that name was begun, also one that was cleaned since."""
    folder = run_directory(state_directory, run)
    if os.path.lexists(os.path.join(folder, FILE)):
        return True
    record = WorkspaceRecord.load(folder)
    return record is not None and record.is_cleaned


def read_items(lines: Iterable[str]) -> tuple[tuple[str, ...], int]:
    """Return the items of a list, one a line, and how many lines repeated another.

    Blank lines are left out, and white space around an item.

    Raises:
        ConfigurationError: There is none, or one is too long for a task list.
    """
    found = [line.strip() for line in lines if line.strip()]
    for item in found:
        if len(item) > MAX_NAME_CHARS or "\0" in item:
            allowed = f"lines of at most {MAX_NAME_CHARS} characters, without NUL"
            raise ConfigurationError("items", f"{item[:40]}…", allowed)
    # Two items that a task list cannot tell apart would be one.
    items = {task_name(item): item for item in reversed(found)}
    if not items:
        raise ConfigurationError("items", "", "at least one line")
    return tuple(reversed(items.values())), len(found) - len(items)


def read_planned_items(
    lines: Iterable[str], file_name: str
) -> tuple[tuple[str, ...], int, ItemPlan]:
    """Return the items of a list with what they touch and wait for, and how many were repeated.

    Args:
        lines: As `read_rows` takes them.
        file_name: Of the list.

    Raises:
        ConfigurationError: As `read_items` and `read_rows`.
    """
    rows = read_rows(lines, file_name)
    items, repeats = read_items(row["item"] for row in rows)
    names = {task_name(item): item for item in items}

    def known(name: str) -> str:
        return names.get(task_name(name), name)

    paths = {known(row["item"]): tuple(row["paths"]) for row in rows if row["paths"]}
    after = {known(row["item"]): tuple(map(known, row["after"])) for row in rows if row["after"]}
    return items, repeats, ItemPlan(paths, after)


def task_name(item: str) -> str:
    """Return an item as a task list spells it: each run of white space is one space."""
    return " ".join(item.split())
