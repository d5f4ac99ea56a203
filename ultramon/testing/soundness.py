"""Proof, from the journal and from what was really done, that a supervised run was sound."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from ultramon.fleet.journal_event import JournalEvent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from ultramon.fleet.supervise.result import SupervisorResult


def assert_run_is_sound(
    result: SupervisorResult,
    events: Iterable[dict[str, Any]],
    really_done: Iterable[tuple[str, str]],
) -> None:
    """Assert that a supervised run kept its promises, whatever its agents did.

    - Each item is verified, claimed, set aside or left, and none is lost.
    - No item is verified that was not really done.
    - No item is done by a second context, unless the first one died, or its claim was rejected.
    - No item belongs to two contexts at a time, and none is assigned that was claimed for good.
    - Each context is assigned once and closed once; after an early stop at most once.

    Args:
        result: Of `Fleet.supervise`; of the last call.
        events: The journal of the run, oldest first.
        really_done: (agent id, item) of all that was done, in order.

    Raises:
        AssertionError: Lists all that is wrong.
    """
    history = _History(list(really_done))
    for event in events:
        history.read(event)
    wrong = [*_wrong_counts(result), *history.wrong(result)]
    if wrong:
        raise AssertionError("\n  ".join([f"run {result.run} is not sound: {result}", *wrong]))


def _wrong_counts(result: SupervisorResult) -> list[str]:
    counts = result.counts
    wrong = []
    if counts.assigned != counts.verified + counts.claimed + counts.set_aside + counts.left:
        wrong.append(f"the counts do not add up: {counts}")
    if len(result.left) != counts.left or len(result.set_aside) != counts.set_aside:
        wrong.append(f"the counts are not those of the items: {counts}")
    if result.lost:
        wrong.append(f"counted as done, and recorded nowhere: {', '.join(result.lost)}")
    if result.left and not result.stopped:
        wrong.append(f"it ended by itself and left {', '.join(result.left)}")
    return wrong


class _History:
    """The contexts and items of a run, in the order of its journal."""

    def __init__(self, really_done: list[tuple[str, str]]) -> None:
        self._really_done = really_done
        self._items: set[str] = set()
        self._has: dict[str, str] = {}
        """The context that has an item now."""
        self._claims: set[tuple[str, str]] = set()
        self._rejections: Counter[tuple[str, str]] = Counter()
        self._verified: set[str] = set()
        self._assigned: Counter[str] = Counter()
        self._closed: Counter[str] = Counter()
        self._died: set[str] = set()
        self._wrong: list[str] = []
        self._readers: dict[str, Callable[[dict[str, Any]], None]] = {
            "items_added": lambda event: self._items.update(event["items"]),
            "agent_assigned": self._assign,
            "items_claimed": self._claim,
            "items_rejected": self._reject,
            "items_verified": lambda event: self._verified.update(event["items"]),
            "items_reopened": self._reopen,
            "context_closed": self._close,
        }

    def read(self, event: dict[str, Any]) -> None:
        """Learn from the next event."""
        if event["type"] in self._readers:
            self._readers[event["type"]](event)

    def wrong(self, result: SupervisorResult) -> list[str]:
        """Return what is wrong with the whole run."""
        wrong = list(self._wrong)
        done = {item for _, item in self._really_done}
        wrong += [f"{item}: verified, not done" for item in sorted(self._verified - done)]
        if len(self._verified) != result.counts.verified:
            wrong.append(f"the journal has {len(self._verified)} items as verified")
        for agent_id, times in self._assigned.items():
            closed = self._closed[agent_id]
            # Only a run that was stopped may leave contexts open.
            if times > 1 or closed > 1 or not (closed or result.stopped):
                wrong.append(f"{agent_id}: assigned {times} times, closed {closed} times")
        return wrong + self._done_twice()

    def _done_twice(self) -> list[str]:
        wrong = []
        before: dict[str, str] = {}
        for agent_id, item in self._really_done:
            first = before.get(item, agent_id)
            # A death or a rejection puts an item back, so another agent may do it again.
            may_differ = first in self._died or self._rejections[first, item]
            if first != agent_id and not may_differ:
                wrong.append(f"{item}: done by {first}, which lived, and again by {agent_id}")
            before[item] = agent_id
        return wrong

    def _assign(self, event: dict[str, Any]) -> None:
        agent_id = event["agentId"]
        if event.get("supervisor") is None:
            return
        self._assigned[agent_id] += 1
        for item in JournalEvent.of(event).work:
            if item not in self._items:
                continue  # the agent before planned it itself
            if item in self._has:
                self._wrong.append(f"{item}: {agent_id} was assigned what {self._has[item]} had")
            self._has[item] = agent_id

    def _claim(self, event: dict[str, Any]) -> None:
        for item in event["items"]:
            if self._has.get(item) != event["agentId"]:
                self._wrong.append(f"{item}: claimed by {event['agentId']}, which has it not")
            self._claims.add((event["agentId"], item))

    def _reject(self, event: dict[str, Any]) -> None:
        for item in event["items"]:
            self._rejections[event["agentId"], item] += 1
            # After the first rejection the claim is verified once more, when its context ends.
            if event["attempt"] > 1:
                self._claims.discard((event["agentId"], item))

    def _reopen(self, event: dict[str, Any]) -> None:
        """A check denied what it had confirmed: others may do it again."""
        self._verified.difference_update(event["items"])
        for item in event["items"]:
            self._rejections[self._has.pop(item, ""), item] += 1

    def _close(self, event: dict[str, Any]) -> None:
        agent_id = event["agentId"]
        self._closed[agent_id] += 1
        if event["died"]:
            self._died.add(agent_id)
        # An item that is claimed for good is no agent's work any more: it stays with its context.
        put_back = [item for item, holder in self._has.items() if holder == agent_id]
        for item in put_back:
            if (agent_id, item) not in self._claims:
                del self._has[item]
