"""Counters of what happened since a process began to export, fed by the journal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ultramon.backends.toolkit import last_cursor
from ultramon.metrics.definitions import (
    AGENTS_ENDED,
    BUDGET_CROSSINGS,
    COMPACTIONS,
    CROSSINGS,
    HANDOFFS,
    OTHER,
    PLAN_CROSSINGS,
    UNKNOWN,
    plain,
    plain_path,
)
from ultramon.state.liveness import OUTCOMES

if TYPE_CHECKING:
    from collections.abc import Callable

    from ultramon.backends.base import Backend
    from ultramon.metrics.definitions import Metric, Samples

WRITTEN = "written"
REBUILT = "rebuilt"
OFFERED_AGAIN = "offered_again"

_PAGE = 1_000
_COMPACTION_REASONS = ("compaction", "fall")
_PLAN_LEVEL = "plan_threshold_reached"
_BUDGET_LEVEL = "budget_threshold_reached"
_SHOWN_FROM_ZERO: tuple[tuple[Metric, tuple[str, ...]], ...] = (
    *((CROSSINGS, (level,)) for level in ("warning", "critical")),
    (COMPACTIONS, ()),
    *((HANDOFFS, (outcome,)) for outcome in (WRITTEN, REBUILT)),
    *((AGENTS_ENDED, (outcome,)) for outcome in OUTCOMES),
)


class JournalCounters:
    """Counts the events that are stored after `begin`.

    A count of the whole journal would fall with each prune, and Prometheus takes a fall for a
    restart: it would add everything that is left.

    Args:
        backend: The store.
        run: Only events of this run; None = of all runs.

    Attributes:
        samples: The counts.
    """

    def __init__(self, backend: Backend, run: str | None) -> None:
        counted = (
            CROSSINGS, COMPACTIONS, HANDOFFS, AGENTS_ENDED, PLAN_CROSSINGS, BUDGET_CROSSINGS,
        )  # fmt: skip
        self.samples: Samples = {metric: {} for metric in counted}
        self._backend = backend
        self._run = run
        self._cursor: str | None = None
        self._has_begun = False

    def begin(self) -> None:
        """Count what is stored from now on; later calls do nothing.

        Raises:
            StateError: The store refused.
        """
        if not self._has_begun:
            self._cursor = last_cursor(self._backend)
            self._has_begun = True

    def show(self, run: str, host: str) -> None:
        """Show the usual counters of a run and host, from 0 on.

        A series that begins with its first event would hide that event from `increase()`.
        """
        for metric, rest in _SHOWN_FROM_ZERO:
            self.samples[metric].setdefault((run, host, *rest), 0.0)

    def show_plan(self, account: str, host: str, limit: str) -> None:
        """Show the counters of a limit, from 0 on, as `show`."""
        for level in ("warning", "critical"):
            self.samples[PLAN_CROSSINGS].setdefault((account, host, limit, level), 0.0)

    def show_budget(self, name: str) -> None:
        """Show the counters of a budget, from 0 on, as `show`."""
        for level in ("warning", "critical"):
            self.samples[BUDGET_CROSSINGS].setdefault((name, level), 0.0)

    def read(self, labels_of: Callable[[str, str], tuple[str, str]]) -> None:
        """Count the events stored since the last call.

        Args:
            labels_of: Returns the labels run and host, by the agent and the run of an event.

        Raises:
            StateError: The store refused; what was read is counted once.
        """
        self.begin()
        while True:
            page = self._backend.events(self._cursor, _PAGE)
            self._cursor = page.cursor
            for event in page.events:
                if event["type"] == _PLAN_LEVEL:
                    # Of no run: an account is shared by all of them.
                    account, *names = (event.get(name) for name in PLAN_CROSSINGS.labels)
                    self._count(PLAN_CROSSINGS, (plain_path(str(account)), *map(plain, names)))
                elif event["type"] == _BUDGET_LEVEL:
                    labels = (plain(event.get(name)) for name in BUDGET_CROSSINGS.labels)
                    self._count(BUDGET_CROSSINGS, tuple(labels))
                elif self._run in (None, event.get("run")) and (found := classify(event)):
                    metric, rest = found
                    of_agent = labels_of(str(event["agentId"]), str(event["run"]))
                    self._count(metric, (*of_agent, *rest))
            # A short page is the last one; asking once more would be one query too many at each
            # scrape.
            if len(page.events) < _PAGE:
                return

    def _count(self, metric: Metric, labels: tuple[str, ...]) -> None:
        counts = self.samples[metric]
        counts[labels] = counts.get(labels, 0.0) + 1


def classify(event: dict[str, Any]) -> tuple[Metric, tuple[str, ...]] | None:
    """Return the metric that counts an event, with its labels beyond run and host; else None."""
    kind = event["type"]
    if kind == "context_threshold_reached":
        return CROSSINGS, (plain(event.get("level")),)
    if kind == "context_epoch_started" and event.get("reason") in _COMPACTION_REASONS:
        return COMPACTIONS, ()
    if kind == "handoff_ready":
        if "releasedFrom" in event:
            return HANDOFFS, (OFFERED_AGAIN,)
        # Who wrote it says whether the agent handed over or another process rebuilt it.
        is_own = event["source"] == f"agent:{event['agentId']}"
        return HANDOFFS, (WRITTEN if is_own else REBUILT,)
    if kind in ("agent_stopped", "agent_lost", "agent_expired"):
        outcome = event.get("outcome") or ("lost" if kind == "agent_lost" else UNKNOWN)
        return AGENTS_ENDED, (outcome if outcome in OUTCOMES else OTHER,)
    return None
