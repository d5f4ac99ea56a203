"""Begins a relay or continues one: its workspace, its host, what is printed first."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ultramon.backends.opening import open_backend
from ultramon.errors import ConfigurationError
from ultramon.relay.choices import LEVELS, RelayChoices, is_run
from ultramon.relay.launcher_order import Launchers
from ultramon.relay.launchers.claude_code import ClaudeCodeLauncher
from ultramon.relay.launchers.codex import CodexLauncher
from ultramon.relay.launchers.command import CommandLauncher
from ultramon.relay.launchers.copilot import CopilotLauncher
from ultramon.relay.launchers.gemini import GeminiLauncher
from ultramon.relay.launchers.opencode import OpencodeLauncher
from ultramon.relay.launchers.qwen import QwenLauncher
from ultramon.relay.option_values import CLAUDE, CODEX, COMMAND, COPILOT, GEMINI, OPENCODE, QWEN
from ultramon.relay.paying import Payers
from ultramon.relay.prompts import hand_over_note
from ultramon.relay.run_folder import run_directory, worker_directory, worker_numbers
from ultramon.relay.runs.merging import CHECKING
from ultramon.relay.runs.pause import FIRST_LIMIT_PAUSE_SECONDS
from ultramon.relay.runs.relay import Relay
from ultramon.relay.runs.result import duration, millions
from ultramon.relay.runs.run import Run
from ultramon.relay.workspace import TREE_SECONDS, WORKTREE
from ultramon.relay.workspace_opening import StartPoint, open_workspace
from ultramon.state.plan_limits import PlanLimits
from ultramon.system.clock import SYSTEM_CLOCK
from ultramon.system.git import read_status
from ultramon.system.ids import check_agent_id
from ultramon.system.wording import plural

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ultramon.recordings.budget_look import BudgetLook
    from ultramon.relay.launchers.hooked_launcher import HookedLauncher
    from ultramon.relay.launchers.port import AgentLauncher, CheckedProgram
    from ultramon.relay.workspace import RelayWorkspace

_LAUNCHERS: dict[str, type[HookedLauncher]] = {
    CLAUDE: ClaudeCodeLauncher,
    CODEX: CodexLauncher,
    COPILOT: CopilotLauncher,
    GEMINI: GeminiLauncher,
    OPENCODE: OpencodeLauncher,
    QWEN: QwenLauncher,
}


def launched_hosts() -> dict[str, str]:
    """Return the hosts that a relay can start, each with the version that the tests drive."""
    return {one.host.name: ".".join(map(str, one.tested_version)) for one in _LAUNCHERS.values()}


_LIMITS = {
    "trigger": " (the host's compaction trigger)",
    "refusal": " (where the host refuses)",
    "limit": " (your own limit)",
    "window": "",
}


@dataclass(slots=True)
class OpenedRelay:
    """A relay that can run.

    Attributes:
        run: Its name.
        choices: What was asked for.
        launchers: Of the hosts, by the agent's name, in the order of the choices.
        programs: The programs as they were found, likewise.
        workspaces: Where it works: one for each worker.
        judged: Where what is to be merged is checked; None = nothing is merged.
        retired: As in `Run`.
        state_directory: Where states are kept.
        notes: Sentences for the user.
        is_single: Whether it has one context that is not asked to hand over.
        recheck: Whether to check again what an earlier call has verified.
        confirm: Asked with a question before the run begins.
        payers: What its agents pay by.
    """

    run: str
    choices: RelayChoices
    launchers: dict[str, AgentLauncher]
    programs: dict[str, CheckedProgram]
    workspaces: tuple[RelayWorkspace, ...]
    judged: RelayWorkspace | None
    retired: tuple[RelayWorkspace, ...]
    state_directory: str
    payers: Payers
    notes: list[str] = field(default_factory=list)
    is_single: bool = False
    recheck: bool = False
    confirm: Callable[[str], bool] = lambda question: False

    @property
    def workspace(self) -> RelayWorkspace:
        """That of the first worker."""
        return self.workspaces[0]

    def relay(
        self,
        tell: Callable[[str], object],
        *,
        budgets: BudgetLook | None = None,
        first_pause_seconds: float = FIRST_LIMIT_PAUSE_SECONDS,
    ) -> Relay:
        """Return the relay, which tells each step; see `Relay` for the budgets and the pause."""
        run = Run(
            self.run,
            self.choices,
            Launchers(self.launchers, SYSTEM_CLOCK, self.payers.allowed),
            self.workspaces,
            self.judged,
            open_backend(self.state_directory),
            tell,
            self.confirm,
            self.is_single,
            self.retired,
        )
        return Relay(
            run,
            plans=PlanLimits(self.state_directory),
            budgets=budgets,
            first_pause_seconds=first_pause_seconds,
            recheck=self.recheck,
        )

    def head(self) -> Iterator[str]:
        """Yield the lines that a person reads first."""
        for name, found in self.programs.items():
            program = f"{name} {found.version or found.program}"
            permissions = self.launchers[name].describe_permissions()
            yield f"{program} · {permissions}" if permissions else program
            if found.warning:
                yield found.warning
        plans, now = PlanLimits(self.state_directory), SYSTEM_CLOCK.now()
        if pays := " · ".join(self.payers.describe(plans, now)):
            yield f"pays: {pays}"
        yield self._describe_workspace()
        places = [one for one in (*self.workspaces, self.judged) if one is not None]
        if (disk := self.workspace.disk) is not None:
            has_setup = bool(self.choices.setup)
            yield f"disk: {disk.describe(has_setup=has_setup, count=len(places))}"
        yield from self._describe_merging()
        levels = {name: self._describe_level(one) for name, one in self.launchers.items()}
        shown = list(levels.values())
        if len(levels) > 1:
            shown = [f"{name} {level}" for name, level in levels.items()]
        yield " · ".join((*shown, self._describe_budget()))
        yield (
            f"follow: ultramon watch --run {self.run} · Ctrl-C hands over · "
            f"continue: ultramon relay --resume {self.run}"
        )
        yield from dict.fromkeys((*(note for one in places for note in one.notes), *self.notes))

    def _describe_workspace(self) -> str:
        place = self.workspace
        if not place.is_checkpointed:
            return f"in place: {place.path}"
        base = (place.base or "no commit")[:7]
        status = read_status(self.choices.cwd, seconds=TREE_SECONDS)
        if status is not None and status.branch and (status.head or "-")[:7] == base:
            base = f"{status.branch}@{base}"
        if place.in_place:
            return f"git: in place, from {base}"
        if self.judged is not None:
            workers = plural(len(self.workspaces), "worker")
            return f"git: {workers} from {base} → branch {place.branch}; your tree is untouched"
        return f"git: worktree and branch {place.branch} from {base}; your tree is untouched"

    def _describe_merging(self) -> Iterator[str]:
        choices = self.choices
        if self.judged is None:
            return
        tree = f"`{choices.verify_all}` before each move of the branch"
        checks = f"item `{choices.verify}`" if choices.verify else ""
        whole = (
            f"tree {tree}" if choices.verify_all else "no check of the whole tree (--verify-all)"
        )
        parts = [
            checks,
            whole,
            f"protected {', '.join(choices.protect)}" if choices.protect else "",
        ]
        yield f"check: {' · '.join(part for part in parts if part)}"
        if choices.plan.is_known:
            with_paths = sum(bool(paths) for paths in choices.item_paths.values())
            counts = f"{with_paths} with paths, {len(choices.item_after)} that wait for others"
            yield f"items: {len(choices.items or ())}, {counts}"

    def _describe_level(self, launcher: AgentLauncher) -> str:
        if self.is_single:
            return "one session, which is not asked to hand over"
        level = launcher.hand_over_level(self.workspace.path, os.environ)
        if level is None:
            return "hands over when the program decides it"
        if level.limit_tokens is None:
            return f"hands over at {level.ratio:.0%} of the window, known from the first reply on"
        at = int(level.ratio * level.limit_tokens)
        limit = millions(level.limit_tokens) + " tokens" + _LIMITS.get(level.limit_name or "", "")
        return f"hands over at {millions(at)} of {limit}"

    def _describe_budget(self) -> str:
        choices = self.choices
        parts = [plural(choices.max_contexts, "context")]
        if choices.max_usd is not None:
            parts.append(f"${choices.max_usd:.2f} at list price")
        if choices.max_tokens is not None:
            parts.append(f"{millions(choices.max_tokens)} tokens")
        if choices.deadline_seconds is not None:
            parts.append(duration(choices.deadline_seconds))
        kept = (
            f" · leaves {choices.leave_plan:.0%} of the plan to you" if choices.leave_plan else ""
        )
        return f"stops at {', '.join(parts)}{kept}"


def open_relay(
    run: str,
    choices: RelayChoices,
    *,
    state_directory: str,
    is_single: bool = False,
    confirm: Callable[[str], bool] = lambda question: False,
    begins_at: StartPoint | None = None,
) -> OpenedRelay:
    """Open a run.

    Args:
        run: Its name; one that was begun is continued.
        choices: What is asked for.
        state_directory: Where states are kept.
        is_single: Whether it has one context that is not asked to hand over, for a comparison.
        confirm: As for `open_workspace`.
        begins_at: Likewise.

    Raises:
        ConfigurationError: A choice is not allowed, or there is no such host.
        InvalidAgentIdError: No run can have that name.
        WorkspaceError: The directory cannot be used so.
        StateError: The state directory cannot be used.
    """
    check_agent_id(run, "run")
    state_directory = os.path.abspath(state_directory)
    _ = choices.words  # before anything is made
    agents = choices.agents
    if choices.program is not None and len(agents) > 1:
        allowed = "left out: several hosts are found on PATH"
        raise ConfigurationError("program", choices.program, allowed)
    if choices.setup and choices.in_place:
        allowed = "left out with in_place: your own tree is prepared by you"
        raise ConfigurationError("setup", choices.setup, allowed)
    launchers: dict[str, AgentLauncher] = {}
    for name, arguments in agents.items():
        if name == COMMAND:
            launchers[name] = CommandLauncher(run, arguments)
            continue
        launchers[name] = _LAUNCHERS[name](
            run,
            state_directory,
            program=choices.program,
            arguments=arguments,
            hand_over_note=hand_over_note(),
            hand_over_from=LEVELS[choices.hand_over_at],
            warns=not is_single,
            enforce=not is_single,
        )
    checked = {name: one.check(choices.cwd) for name, one in launchers.items()}
    payers = Payers(launchers, choices)
    payers.check(confirm)
    choices = replace(choices, paid_by=payers.first_kind)
    is_merged = choices.is_merged and not is_single
    choices.check_merged()

    def open_worker(worker: int) -> RelayWorkspace:
        return open_workspace(
            run,
            cwd=choices.cwd,
            state_directory=state_directory,
            in_place=choices.in_place,
            confirm=confirm,
            worker=worker,
            is_detached=is_merged,
            begins_at=begins_at,
        )

    count = choices.workers if is_merged else 1
    return OpenedRelay(
        run,
        choices,
        launchers,
        checked,
        tuple(open_worker(number) for number in range(1, count + 1)),
        open_worker(CHECKING) if is_merged else None,
        tuple(map(open_worker, _retired(state_directory, run, count))) if is_merged else (),
        state_directory,
        payers,
        is_single=is_single,
        confirm=confirm,
    )


def _retired(state_directory: str, run: str, count: int) -> list[int]:
    """Return the workers of earlier calls behind those of this one whose worktrees are there."""
    names = worker_numbers(run_directory(state_directory, run))
    return [
        number
        for number in sorted(map(int, filter(str.isdecimal, names)))
        if number > count
        and os.path.isdir(os.path.join(worker_directory(state_directory, run, number), WORKTREE))
    ]


def free_name(state_directory: str, goal: str) -> str:
    """Return a name for a new run: the first word of its goal, with a number that is free."""
    words = "".join(c if c.isascii() and c.isalnum() else " " for c in goal.lower()).split()
    word = next((word for word in words if len(word) > 2), "relay")[:20]
    number = 1
    while is_run(state_directory, f"{word}-{number}"):
        number += 1
    return f"{word}-{number}"
