"""Carries a job of a coding agent across fresh contexts, one at a time or one for each worker.

Built on `Fleet.supervise`: a context is a job of it. What the supervisor cannot know is in this
room: how the host ended, what it said last, what it cost, and whether the provider takes requests.
"""

from __future__ import annotations

import os
from contextlib import ExitStack, closing, nullcontext, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from ultramon.errors import WorkspaceError
from ultramon.fleet.supervise.pool import VERIFIED
from ultramon.relay.item_names import ItemNames
from ultramon.relay.launchers.outcome import LIMITED
from ultramon.relay.run_folder import run_lock
from ultramon.relay.runs.briefing import Briefing
from ultramon.relay.runs.chunks import most_items
from ultramon.relay.runs.context_process import ContextProcess
from ultramon.relay.runs.idle import IdleContexts
from ultramon.relay.runs.judge import Judge
from ultramon.relay.runs.merging import Merging
from ultramon.relay.runs.pause import (
    FIRST_LIMIT_PAUSE_SECONDS,
    BudgetPause,
    PlanPause,
    continuation,
)
from ultramon.relay.runs.result import RelayResult, Stop
from ultramon.relay.runs.run_reader import number_of
from ultramon.relay.runs.setup import WorktreeSetup
from ultramon.relay.runs.start import StartedContext, begin
from ultramon.relay.runs.steps import Steps
from ultramon.relay.runs.verification import CommandCheck
from ultramon.system.wording import plural

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

    from ultramon.fleet.supervise.jobs import Job
    from ultramon.fleet.supervise.result import ItemCounts
    from ultramon.fleet.supervise.verification import Verdict
    from ultramon.recordings.budget_look import BudgetLook
    from ultramon.relay.runs.context_process import Continuation
    from ultramon.relay.runs.run import Run
    from ultramon.state.plan_limits import PlanLimits

MAX_RESTARTS = 3


class Relay:
    """One call of a relay: a new run, or one that is continued.

    Args:
        run: The run; `AgentLauncher.prepare` of its launchers is called here.
        first_pause_seconds: The first pause at a limit whose end is not known.
        recheck: Whether to check again what an earlier call has verified; see `SupervisorOptions`.
        plans: The limits of the user's plans, which contexts wait for; None = they do not.
        budgets: What the user's budgets amount to: one that is enforced and used up lets no context
            begin; None = none does.
    """

    def __init__(
        self,
        run: Run,
        *,
        plans: PlanLimits | None = None,
        budgets: BudgetLook | None = None,
        first_pause_seconds: float = FIRST_LIMIT_PAUSE_SECONDS,
        recheck: bool = False,
    ) -> None:
        self._run = run
        self._first_pause_seconds = first_pause_seconds
        self._recheck = recheck
        self._plan = None if plans is None else PlanPause(run, plans)
        self._budget = None if budgets is None else BudgetPause(run, budgets)
        self._check: CommandCheck | None = None
        self._merging: Merging | None = None
        choices = run.choices
        if choices.verify is not None and run.judged is None:
            environ = {**os.environ, "ULTRAMON_RELAY": run.name, **run.workspace.variables}
            path, seconds = run.workspace.path, choices.verify_seconds
            self._check = CommandCheck(choices.verify, path, seconds, environ)
        self._briefing = Briefing(run)
        self._judge = Judge(run)
        self._idle = IdleContexts(run, self._judge.fingerprint)
        self._is_checked = self._check is not None or run.judged is not None
        self._steps = Steps(run, is_checked=self._is_checked)

    @property
    def counts(self) -> ItemCounts | None:
        """The items after the last step; None before the first."""
        return self._steps.counts

    def run(self) -> RelayResult:
        """Work until every item is settled, or there is a reason to stop; return the result.

        Raises:
            StateError: The store refused, or another relay works on this run.
            SetupError: The setup of a worktree failed; no context was begun.
            WorkspaceError: git refused, or the run was cleaned; or the check of the whole tree
                fails where the run begins.
        """
        run, choices, check = self._run, self._run.choices, self._check
        with (
            run_lock(run.workspace.folder),
            nullcontext() if check is None else closing(check),
            closing(run.fleet),
            ExitStack() as stack,
        ):
            run.workspace.check()
            run.contexts.read()
            places = [one for one in (*run.workspaces, run.judged) if one is not None]
            setups = [WorktreeSetup(run, place) for place in places]
            for setup in setups:
                setup.check()
            choices.save(run.workspace.folder)
            for setup in setups:
                setup.run()
            if run.judged is not None:
                self._merging = stack.enter_context(closing(Merging(run)))
                self._merging.check_base()
            for launcher in run.launchers:
                launcher.prepare()
            self._steps.keep_missing()
            spent = run.spending.stop()
            if spent is not None:
                run.stop = spent
            work = run.fleet.supervise(
                self._spawn,
                list(run.items),
                workers=len(run.workspaces),
                verify=self._verify if self._is_checked else None,
                # The one session of a comparison has no relay that asks it to hand over.
                enforce=not run.is_single,
                grace_seconds=choices.grace_seconds,
                max_restarts=MAX_RESTARTS,
                # The budget is that of the run, over all calls.
                max_contexts=0 if spent else max(0, choices.max_contexts - len(run.contexts)),
                deadline_seconds=choices.deadline_seconds,
                on_event=self._steps.follow,
                adopt=self._adopt,
                recheck=self._recheck,
                # Of a merged branch every value was checked as a whole, if anything does that.
                recheck_at_end=self._check is not None
                and choices.check_at_end
                and len(run.items) > 1,
                item_of=ItemNames(run.items).find,
                may_start=self._may_start,
                may_take=self._may_take if choices.plan.is_known and not run.is_single else None,
                # A program with the SDK has its items as its plan, which costs it no tokens.
                most_items=None if run.is_single or run.launchers.uses_sdk else self._most_items,
            )
            # Number 0 stands for the contexts of the run that this one was rewound from.
            own = tuple(one for one in work.contexts if number_of(one.agent_id))
            work = replace(work, contexts=own)
            if self._merging is not None:
                with suppress(WorkspaceError):  # such as of a branch that was deleted
                    self._merging.queue.look()
            stop = run.stop or Stop.of(work, choices)
            # Whatever it was, nothing was left to be stopped.
            was_stopped = work.left or (run.stop is not None and work.unverified)
            return RelayResult(
                run=run.name,
                work=work,
                has_items=run.has_items,
                is_checked=self._is_checked,
                stop=stop if was_stopped else None,
                contexts=tuple(run.contexts),
                compactions=sum(max(0, one.epoch - 1) for one in run.view.sessions()),
                tasks=None if run.has_items else run.view.tasks(),
                workspace=run.workspace.summarise(of_branch=run.judged is not None),
                merges=None if self._merging is None else self._merging.queue.counts,
                is_tree_checked=bool(choices.verify_all),
                waits_for=choices.plan.stuck(work.set_aside),
                kept={} if self._merging is None else self._merging.kept(work.set_aside),
            )

    def _may_start(self) -> bool:
        pauses = (self._plan, self._budget)
        return all(one is None or one.may_start() for one in pauses)

    def _most_items(self) -> int:
        self._run.view.read()
        return most_items(self._run.view.pool)

    def _verify(self, name: str) -> Verdict:
        if self._merging is not None:
            return self._merging.verify(name)
        assert self._check is not None
        return self._check(self._run.items.get(name, name))

    def _may_take(self, held: frozenset[str]) -> Callable[[str], bool]:
        run, items = self._run, self._run.items
        run.view.read()
        verified = [items.get(one, one) for one, _ in run.view.pool.with_status(VERIFIED)]
        may_begin = run.choices.plan.gate([items.get(one, one) for one in held], verified)
        return lambda name: may_begin(items.get(name, name))

    def _spawn(self, job: Job) -> ContextProcess:
        """Start the context of a job."""
        run, number = self._run, number_of(job.agent_id)
        place, note = run.workspace, None
        if self._merging is not None:
            place, note = self._merging.begin(job)
            if note is not None:
                run.tell(note)
        prompt = self._briefing.write(job, number, place, note)
        context, process = begin(run, job, prompt, self._judge.fingerprint(place), place.worker)
        count = sum(name in run.items for name in job.items)
        what = f": {plural(count, 'item')}" if run.has_items else ""
        who = f" with {context.record.agent}" if len(run.choices.agents) > 1 else ""
        run.tell(f"context {number} begins{who}{what}")
        return self._watch(context, process)

    def _adopt(self, agent_id: str) -> ContextProcess | None:
        """Take over a context of a relay before this one: one that runs, or its end."""
        run, record = self._run, self._run.contexts.of(agent_id)
        if record is None:
            return None
        context = StartedContext(run, record, agent_id, run.fleet.env(agent_id))
        pid = context.find_process()
        if pid:
            run.tell(f"context {record.number} still runs")
        return self._watch(context, None, pid=pid)

    def _watch(
        self, context: StartedContext, process: subprocess.Popen[bytes] | None, *, pid: int = 0
    ) -> ContextProcess:
        return ContextProcess(
            process,
            lambda code: self._end(context, code),
            lambda code, seconds: self._judge.has_settled(context, code, seconds),
            lambda: self._look_at(context),
            pid=pid,
        )

    def _look_at(self, context: StartedContext) -> None:
        self._run.spending.follow(context.agent_id)
        if not self._run.launchers.uses_sdk:
            self._idle.look(context)

    def _end(self, context: StartedContext, code: int | None) -> Continuation | None:
        """Judge how a process of a context ended; return how the context continues, if it does."""
        outcome = self._judge.take_end(context, code)
        if self._plan is not None:
            self._plan.learn(context.record, outcome)

        def close() -> None:
            if (stop := self._judge.close(context, outcome)) is not None:
                self._run.stop_for(stop)
            if self._merging is not None:
                self._merging.leave(context)

        limit = outcome.limit if outcome.end == LIMITED else None
        if limit is not None and not self._run.is_stopping:
            following = continuation(context, limit, close, self._first_pause_seconds)
            if following is not None:
                return following
        close()
        return None
