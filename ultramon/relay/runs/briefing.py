"""What each context of a relay reads at its start, from what is known then."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ultramon.fleet.supervise.pool import ASSIGNED, CLAIMED, OPEN, SET_ASIDE, VERIFIED
from ultramon.relay.item_commits import commits_in_work
from ultramon.relay.launchers.outcome import COMPLETED, CUT_OFF, LIMITED, OVERFLOWED, STOPPED
from ultramon.relay.prompts import COMMAND as BY_COMMAND
from ultramon.relay.prompts import (
    TASK_LIST,
    Predecessor,
    WorkState,
    first_prompt,
    single_prompt,
    successor_prompt,
)
from ultramon.system.compact_json import dumps

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from ultramon.fleet.journal_event import Closing
    from ultramon.fleet.supervise.jobs import Job
    from ultramon.relay.runs.run import Run
    from ultramon.relay.workspace import RelayWorkspace

_STATUSES = (OPEN, ASSIGNED, CLAIMED, VERIFIED, SET_ASIDE)
_ENDS = {
    COMPLETED: "its turn ended",
    STOPPED: "its turn was ended, for its window was full",
    OVERFLOWED: "its window was full",
    LIMITED: "its provider took no more requests",
    CUT_OFF: "its process was ended in the middle of its work",
}


@dataclass(frozen=True, slots=True)
class Briefing:
    """Writes the prompts of a run.

    Attributes:
        run: The run.
    """

    run: Run

    def write(self, job: Job, number: int, place: RelayWorkspace, note: str | None) -> str:
        """Return the first prompt of a context.

        Args:
            job: Of the context.
            number: Of the context.
            place: Where it works.
            note: What there is to say about that; None = nothing.

        Raises:
            WorkspaceError: git refused.
        """
        run, words = self.run, self.run.choices.words
        items = [name for name in job.items if name in run.items] if run.has_items else []
        if run.is_single:
            return single_prompt(words, items).text
        recorded_by = BY_COMMAND if run.launchers.uses_sdk else TASK_LIST
        is_merged = run.judged is not None
        before, handoff = run.view.last_closed(), job.handoff
        if is_merged and handoff is not None:
            # The last one may be that of another worker.
            before = run.view.closed(handoff.agent_id) or before
        if before is None:
            return first_prompt(words, items, recorded_by=recorded_by, is_merged=is_merged).text
        open_tasks = (*handoff.interrupted, *handoff.remaining) if handoff is not None else ()
        predecessor = Predecessor(
            self._describe_end(*before),
            self._notes_of(before[0]) if handoff is None else handoff.notes,
            self._work_state(before[1].begun) if run.has_items else WorkState(),
            place.summarise() if place.is_checkpointed else None,
            tuple(self._facts(items if run.has_items else list(run.items), place, note)),
            # Items are listed with their own state already.
            tuple(name for name in open_tasks if name not in run.items),
            commits_in_work(place, run.items, items, is_merged=is_merged) if items else (),
            tuple(_steps_of(job.steps)),
        )
        return successor_prompt(
            words, number, predecessor, items, recorded_by=recorded_by, is_merged=is_merged
        ).text

    def _notes_of(self, agent_id: str) -> str | None:
        """Return the last words of a context that left no items: its successor has fresh ones."""
        left = self.run.view.pool.contexts[agent_id].left
        return None if left is None else left.notes

    def _work_state(self, begun: list[str]) -> WorkState:
        pool = self.run.view.pool
        statuses = {name: item.status for name, item in pool.with_status(*_STATUSES)}

        def having(*wanted: str) -> tuple[str, ...]:
            return tuple(name for name, status in statuses.items() if status in wanted)

        left = having(OPEN, ASSIGNED)
        in_work = tuple(name for name in begun if name in left)
        return WorkState(
            verified=having(VERIFIED),
            claimed=having(CLAIMED),
            in_work=in_work,
            left=tuple(name for name in left if name not in in_work),
            set_aside=having(SET_ASIDE),
        )

    def _facts(self, names: list[str], place: RelayWorkspace, note: str | None) -> Iterator[str]:
        yield from place.notes
        if note is not None:
            yield note
        for name in names:
            item = self.run.view.pool.item(name)
            if item.reason is not None and item.status != VERIFIED:
                what = f"{name!r}" if self.run.has_items else "the goal"
                yield f"the check of {what} failed: {item.reason}"

    def _describe_end(self, agent_id: str, closing: Closing) -> str:
        record = self.run.contexts.of(agent_id)
        if record is not None and record.end in _ENDS:
            return _ENDS[record.end]
        return closing.reason


def _steps_of(steps: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield a line for each step that is stored."""
    for item, results in steps.items():
        for step, result in results.items():
            yield f"{item}: {step}" + ("" if result is None else f" = {dumps(result)}")
