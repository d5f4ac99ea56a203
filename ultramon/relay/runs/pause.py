"""How a context waits for its provider or the user's plan, and when another host takes over."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ultramon.errors import StateError
from ultramon.fleet.supervise.jobs import name_in_run
from ultramon.relay.launchers.outcome import USAGE
from ultramon.relay.runs.context_process import Continuation
from ultramon.relay.runs.result import Stop, duration
from ultramon.state.plan_limits import finite_number, plan_limit
from ultramon.state.plan_words import reset_words
from ultramon.system.clock import SYSTEM_CLOCK
from ultramon.system.timestamps import clock_time

if TYPE_CHECKING:
    from collections.abc import Callable

    from ultramon.recordings.budget_look import BudgetLook
    from ultramon.relay.launchers.outcome import ContextOutcome, ProviderLimit
    from ultramon.relay.launchers.port import AgentLauncher
    from ultramon.relay.runs.context_record import ContextRecord
    from ultramon.relay.runs.run import Run
    from ultramon.relay.runs.start import StartedContext
    from ultramon.state.plan_limits import AccountPlan, PlanLimit, PlanLimits

FIRST_LIMIT_PAUSE_SECONDS = 60.0
LONGEST_LIMIT_PAUSE_SECONDS = 900.0
"""Where the provider does not say when its limit ends: doubled each time."""


def continuation(
    context: StartedContext,
    limit: ProviderLimit,
    close: Callable[[], object],
    first_pause_seconds: float = FIRST_LIMIT_PAUSE_SECONDS,
) -> Continuation | None:
    """Return how the session of a context continues once its provider takes requests again.

    None where a usage limit ends the context, for another host is free. One that is free before the
    limit has ended takes over as well.

    Args:
        context: The context.
        limit: What its process met.
        close: Called when the context is over instead.
        first_pause_seconds: The first pause at a limit whose end is not known.
    """
    run, record = context.run, context.record
    now = SYSTEM_CLOCK.now()
    # A bounded exponent: beyond 2**1023 a float overflows.
    pause = first_pause_seconds * 2 ** min(record.parts - 1, 20)
    until = now + min(pause, LONGEST_LIMIT_PAUSE_SECONDS)
    if limit.ends_at is not None and limit.ends_at > now:
        until = limit.ends_at
    # A usage limit lasts hours, a rate limit seconds: only the first is worth another host.
    if limit.kind == USAGE:
        run.launchers.limit(record.agent, until)
        if (other := run.launchers.free_beside(record.agent)) is not None:
            run.tell(
                f"context {record.number} met the usage limit of {record.agent}, which ends "
                f"{clock_time(until, now)}: {other} takes over"
            )
            return None
        # Another host, whose plan is used up, may be free before the limit of this one ends.
        soonest = run.launchers.free_at(run.launchers.next_name())
        if is_too_long(run, soonest - now):
            run.stop_for(too_long(run, _limit_met(record.agent), clock_time(until, now)))
            return None
    ends = clock_time(until, now)
    run.tell(f"context {record.number} waits for the {limit.kind} limit until {ends}")

    def is_over() -> bool:
        if run.is_stopping:
            return True
        if limit.kind != USAGE or run.launchers.free_beside(record.agent) is None:
            return False
        close()
        return True

    # By the wall clock, which runs while the machine is suspended.
    return Continuation(lambda: SYSTEM_CLOCK.now() >= until, is_over, context.resume)


class PlanPause:
    """Begins no context while the user's plan is used up to the share that is left to the user.

    Args:
        run: The run.
        plans: The limits of the user's accounts, as the sessions on this machine report them.
    """

    def __init__(self, run: Run, plans: PlanLimits) -> None:
        self._run = run
        self._plans = plans
        self._told = ""

    def may_start(self) -> bool:
        """Return whether a context may begin now; a wait is reported once, one too long stops.

        An account of which nothing is known holds nothing back, nor does a limit past its reset.
        """
        run, now = self._run, SYSTEM_CLOCK.now()
        found = {name: self._held(one, now) for name, one in run.launchers.by_name.items()}
        held = {name: one for name, one in found.items() if one is not None}
        run.launchers.hold({name: limit.resets_at for name, (_, limit) in held.items()})
        name = run.launchers.next_name()
        until = run.launchers.free_at(name)
        if not held or until <= now:
            return True
        mine = ""
        if name in held:
            account, limit = held[name]
            what = f"{account.name} has used {limit.percent} % of its {limit.name} limit"
            ends = reset_words(limit, now, utc=True)
            if left := run.choices.leave_plan:
                mine = f", {left:.0%} of it are yours"
        else:  # it is free again before the plan of another one
            what, ends = _limit_met(name), clock_time(until, now)
        if is_too_long(run, until - now):
            run.stop_for(too_long(run, what, ends))
        elif ends != self._told:
            self._told = ends
            run.tell(f"{what}{mine}: the next context begins after its reset at {ends}")
        return False

    def learn(self, record: ContextRecord, outcome: ContextOutcome) -> None:
        """Keep what a host said of the plan: of a session without a terminal nothing else does."""
        launcher = self._run.launchers.of(record.agent)
        host, directory = account_of(launcher)
        if host is None or not outcome.plan or record.ended_at is None:
            return
        limits = [
            limit
            for name, used_ratio, resets_at in outcome.plan
            if (limit := _limit(name, used_ratio, resets_at, record.ended_at)) is not None
        ]
        try:
            self._plans.record(host, directory, limits, SYSTEM_CLOCK.now())
        except StateError as error:
            self._run.tell(f"limits of the plan are not kept: {error}")

    def _held(self, launcher: AgentLauncher, now: float) -> tuple[AccountPlan, PlanLimit] | None:
        """Return the limit that holds a host back, the one that resets last; None = none does."""
        host, directory = account_of(launcher)
        if host is None:
            return None
        account = self._plans.account(host, directory, now)
        most = 1.0 - self._run.choices.leave_plan
        # In whole percents: 1 - 0.2 is a hair below 0.8. A limit of one model is named after it.
        used_up = [
            one
            for one in account.limits
            if one.percent >= round(most * 100) and "." not in one.name
        ]
        last = max(used_up, key=lambda one: one.resets_at, default=None)
        return None if last is None else (account, last)


def account_of(launcher: AgentLauncher) -> tuple[str | None, str]:
    """Return the name of a launcher's host and its account; None where it tells of no plan."""
    host = getattr(launcher, "host", None)
    directory = "" if host is None else host.dialect.account_directory(os.environ)
    return (host.name, os.path.abspath(directory)) if host and directory else (None, "")


def _limit(name: str, used_ratio: object, resets_at: object, at: float) -> PlanLimit | None:
    used = finite_number(used_ratio)
    return None if used is None else plan_limit(name, used * 100, resets_at, at)


def _limit_met(name: str) -> str:
    return f"the usage limit of {name} is met"


class BudgetPause:
    """Begins no context while a budget of the user that a setting enforces is used up, or unknown.

    Args:
        run: The run.
        budgets: The look at the user's budgets.
    """

    def __init__(self, run: Run, budgets: BudgetLook) -> None:
        self._run = run
        self._budgets = budgets
        self._has_told = False

    def may_start(self) -> bool:
        """Return whether a context may begin now; a budget that is used up stops the run.

        Only a budget that counts what the next context spends.
        """
        run = self._run
        run.view.read()
        names = [name_in_run(run.name, run.view.pool.last_number + 1)]
        meant = {
            one.name
            for one in self._budgets.budgets
            if one.enforce and one.scope.includes(run.workspace.path, run.name, names)
        }
        if not meant:
            return True
        readings = self._budgets.look_now(SYSTEM_CLOCK.now())
        if readings is None:
            if not self._has_told:
                run.tell(
                    "the transcripts of this machine are read for your budgets:"
                    " the next context begins after that"
                )
            self._has_told = True
            return False
        self._has_told = False
        used_up = next((one for one in readings if one.name in meant and one.is_used_up), None)
        if used_up is not None:
            run.stop_for(Stop.budget(f"budget {used_up.name} is used up: {used_up.spent_words}"))
        return used_up is None


def is_too_long(run: Run, seconds: float) -> bool:
    """Return whether a wait is longer than the user allows."""
    longest = run.choices.wait_at_most_seconds
    return longest is not None and seconds > longest


def too_long(run: Run, what: str, ends: str) -> Stop:
    """Return the stop at a wait that is longer than the user allows."""
    longest = duration(run.choices.wait_at_most_seconds or 0.0)
    return Stop.budget(f"{what}, and resets at {ends}: later than in {longest}")
