"""What each context of a relay reads at its start, from what is known then."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ultramon.fleet.item_pool import ASSIGNED, CLAIMED, OPEN, SET_ASIDE, VERIFIED
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
from ultramon.relay.run_reader import number_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ultramon.fleet.jobs import Job
    from ultramon.relay.context_record import ContextRecord
    from ultramon.relay.prompts import RelayGoal
    from ultramon.relay.run_reader import RunReader
    from ultramon.relay.verification import CommandCheck
    from ultramon.relay.workspace import RelayWorkspace

_STATUSES = (OPEN, ASSIGNED, CLAIMED, VERIFIED, SET_ASIDE)
_ENDS = {
    COMPLETED: "its turn ended",
    STOPPED: "its turn was ended, for its window was full",
    OVERFLOWED: "its window was full",
    LIMITED: "its provider took no more requests",
    CUT_OFF: "its process was ended in the middle of its work",
}


class Briefing:
    """Writes the prompts of a run.

    Args:
        words: Goal and rules.
        items: Names of the items, with the items.
        view: The run.
        workspace: Where it works.
        check: What checks items, if anything does.
        has_items: Whether there is a list; else the one item is the goal.
        uses_sdk: Whether agents record items by commands of the SDK.
        is_single: Whether there is one context and no relay.
    """

    def __init__(
        self,
        words: RelayGoal,
        items: Mapping[str, str],
        view: RunReader,
        workspace: RelayWorkspace,
        check: CommandCheck | None,
        *,
        has_items: bool,
        uses_sdk: bool,
        is_single: bool,
    ) -> None:
        self._words = words
        self._items = items
        self._view = view
        self._workspace = workspace
        self._check = check
        self._has_items = has_items
        self._uses_sdk = uses_sdk
        self._is_single = is_single

    def write(self, job: Job, number: int, contexts: Sequence[ContextRecord]) -> str:
        """Return the first message to a context.

        Args:
            job: Of the context.
            number: Of the context.
            contexts: Those before it.

        Raises:
            WorkspaceError: git refused.
        """
        words, has_items = self._words, self._has_items
        items = [name for name in job.items if name in self._items] if has_items else []
        if self._is_single:
            return single_prompt(words, items).text
        recorded_by = BY_COMMAND if self._uses_sdk else TASK_LIST
        before = self._view.last_closed()
        if before is None:
            return first_prompt(words, items, recorded_by=recorded_by).text
        handoff = job.handoff
        open_tasks = (*handoff.interrupted, *handoff.remaining) if handoff is not None else ()
        summary = self._workspace.summarise() if self._workspace.is_checkpointed else None
        predecessor = Predecessor(
            _describe_end(before, contexts),
            None if handoff is None else handoff.notes,
            self._work_state(before["begun"]) if has_items else WorkState(),
            summary,
            tuple(self._facts(items if has_items else list(self._items))),
            tuple(name for name in open_tasks if name not in self._items),
        )
        return successor_prompt(words, number, predecessor, items, recorded_by=recorded_by).text

    def _work_state(self, begun: list[str]) -> WorkState:
        pool = self._view.pool
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

    def _facts(self, names: list[str]) -> Iterator[str]:
        yield from self._workspace.notes
        for name in names:
            item = self._items.get(name, name)
            if self._check is not None and item in self._check.failures:
                what = f"{name!r}" if self._has_items else "the goal"
                yield f"the check of {what} failed: {self._check.failures[item]}"


def _describe_end(closed: dict[str, Any], contexts: Sequence[ContextRecord]) -> str:
    number = number_of(str(closed["agentId"]))
    record = next((one for one in contexts if one.number == number), None)
    if record is not None and record.end in _ENDS:
        return _ENDS[record.end]
    return str(closed["reason"])
