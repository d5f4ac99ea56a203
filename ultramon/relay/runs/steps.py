"""Follows the steps of a relay's supervisor: says them, keeps what is verified, stops in time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ultramon.errors import WorkspaceError
from ultramon.fleet.supervise.pool import VERIFIED
from ultramon.prices.cost import dollars
from ultramon.relay.launchers.outcome import FAILED
from ultramon.relay.runs.result import Stop, millions
from ultramon.relay.runs.run_reader import number_of
from ultramon.relay.runs.verification import last_lines
from ultramon.system.wording import plural

if TYPE_CHECKING:
    from ultramon.fleet.supervise.result import ItemCounts, SupervisorEvent
    from ultramon.relay.runs.run import Run

MAX_REFUSED_CONTEXTS = 3
"""So many contexts in a row with refused calls and without progress end the run."""


class Steps:
    """What became of a run so far, as its supervisor reports it.

    Args:
        run: The run.
        is_checked: Whether a command checks what agents claim.

    Attributes:
        counts: The items after the last step; None before the first.
    """

    def __init__(self, run: Run, *, is_checked: bool) -> None:
        self.counts: ItemCounts | None = None
        self._run = run
        self._is_checked = is_checked
        self._numbers = {name: number for number, name in enumerate(run.items, 1)}
        self._refused_in_a_row = 0
        self._has_estimated = False
        self._progress: dict[str, set[str]] = {}

    def follow(self, event: SupervisorEvent) -> None:
        """Take a step."""
        run = self._run
        self.counts = event.counts
        if event.name == "stopping":
            run.is_stopping = True
            return
        if event.name == "rechecking":
            run.tell(f"all is done: {plural(len(event.items), 'item')} checked once more")
            return
        if event.name == "reopened":
            for name in event.items:
                run.tell(f"not confirmed any more: {name}")
            return
        assert event.agent_id is not None
        made = self._progress.setdefault(event.agent_id, set())
        if event.name == "verified" or (event.name == "claimed" and not self._is_checked):
            made.update(event.items)
            self._keep(event)
        elif event.name == "rejected":
            run.view.read()
            for name in event.items:
                run.tell(f"not confirmed: {name} ({run.view.pool.item(name).reason})")
        elif event.name == "set_aside":
            for name in event.items:
                run.tell(f"set aside: {name}")
        elif event.name == "ended":
            self._context_ended(event, made)

    def _keep(self, event: SupervisorEvent) -> None:
        run, counts = self._run, event.counts
        done = counts.verified + (counts.claimed if not self._is_checked else 0)
        for number, name in enumerate(event.items, done - len(event.items) + 1):
            run.tell(f"{event.name}: {name} ({number} of {counts.assigned})")
            # What is merged was kept as it was claimed.
            if event.name == "verified" and run.judged is None:
                try:
                    run.workspace.keep(self._numbers.get(name, 0), f"{name} verified")
                except WorkspaceError as error:
                    run.tell(f"{name} is not kept: {error}")

    def keep_missing(self) -> None:
        """Keep what was verified in the moment in which an earlier relay was killed.

        Raises:
            WorkspaceError: git refused.
        """
        run = self._run
        if run.judged is not None:
            return
        run.view.read()
        verified = [name for name, _ in run.view.pool.with_status(VERIFIED)]
        kept = run.workspace.kept() if verified else {}
        for name in verified:
            label = self._numbers.get(name, 0)
            if str(label) not in kept:
                run.workspace.keep(label, f"{name} verified")

    def _context_ended(self, event: SupervisorEvent, made: set[str]) -> None:
        assert event.agent_id is not None
        run, record = self._run, self._run.contexts.of(event.agent_id)
        cost = "" if record is None or record.usd is None else f", {dollars(record.usd)}"
        said = ""
        if record is not None and record.end == FAILED:
            said = "".join(f": {line}" for line in last_lines(run.contexts.errors(record), 1))
        run.tell(f"context {number_of(event.agent_id)} ended: {event.reason}{cost}{said}")
        if record is None:
            return
        has_changed = run.workspace.is_checkpointed and not record.is_idle
        is_blocked = bool(record.refused_count) and not made and not has_changed
        self._refused_in_a_row = self._refused_in_a_row + 1 if is_blocked else 0
        if self._refused_in_a_row >= MAX_REFUSED_CONTEXTS and event.counts.left:
            launcher = run.launchers.of(record.agent)
            advice = dict.fromkeys(map(launcher.describe_refused, record.refused))
            run.stop_for(Stop.refused(record.refused_count, [one for one in advice if one]))
        self._check_budget(event, made)

    def _check_budget(self, event: SupervisorEvent, made: set[str]) -> None:
        run, counts = self._run, event.counts
        usd, tokens = run.spending.usd, run.spending.tokens
        if not self._has_estimated and tokens and made and counts.left:
            self._has_estimated = True
            of_all = counts.assigned / (counts.assigned - counts.left)
            so_far, whole = f"{millions(tokens)} tokens", f"{millions(round(tokens * of_all))}"
            if usd:
                so_far = f"{dollars(usd)} at list price, {so_far}"
                whole = f"{dollars(usd * of_all)}, {whole}"
            run.tell(f"so far {so_far}; at this rate {whole} for all")
        if counts.left and (stop := run.spending.stop()) is not None:
            run.stop_for(stop)
