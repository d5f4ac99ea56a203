"""Checks the result of `ultramon demo` against the notes of its workers and the stored records."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ultramon.cli.demo.orchestrator import ERRORS
from ultramon.cli.demo.worker import BEGUN, DONE, read_notes
from ultramon.fleet.supervise.ledger import events_of, read_ledger
from ultramon.system.terminal_text import first_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ultramon.backends.base import Backend
    from ultramon.fleet.supervise.ledger import Ledger
    from ultramon.fleet.supervise.result import SupervisorResult

    Notes = Sequence[tuple[str, str]]


def prove(
    backend: Backend, names: Sequence[str], result: SupervisorResult, folder: str
) -> dict[str, Any]:
    """Return the members that ``--json`` prints.

    Args:
        backend: The store of the run.
        names: The items to be done, each once.
        result: What the supervisor says.
        folder: With the workers' notes and errors.
    """
    notes, handoffs = read_notes(folder), Counter[str]()
    for event in events_of(backend, result.run):
        if event["type"] == "handoff_ready":
            handoffs[event["handoff"]["reason"]] += 1
    problems = [
        *find_failures(result, folder),
        *find_problems(names, result, notes, read_ledger(backend, result.run)),
    ]
    agents = [agent.record for agent in backend.list_agents(result.run)]
    lost = len(never_done(names, notes))
    return {
        "run": result.run,
        "items": len(names),
        "itemsDone": len(names) - lost,
        "itemsBegunAgain": len(begun_again(notes)),
        "itemsLost": lost,
        "agents": len(result.contexts),
        "kills": result.killed,
        "handoffs": handoffs.total(),
        "handoffReasons": dict(handoffs),
        "tokens": sum(record.estimated_tokens for record in agents if record is not None),
        "everyItemDoneOnce": not problems,
        "problems": problems,
    }


def find_failures(result: SupervisorResult, folder: str) -> Iterator[str]:
    """Yield which workers failed, and what they printed last."""
    failed = [
        f"{context.agent_id} {context.reason}"
        for context in result.contexts
        if not context.is_killed and context.reason not in ("completed", "returned")
    ]
    if failed:
        printed = Path(folder, ERRORS).read_text(encoding="utf-8", errors="replace")
        yield f"{first_of(failed)}: {(printed.splitlines() or ['nothing was printed'])[-1]}"


def find_problems(
    names: Sequence[str], result: SupervisorResult, notes: Notes, ledger: Ledger
) -> Iterator[str]:
    """Yield what contradicts that every item was done once, and one more per kill was begun again.

    Args:
        names: The items to be done, each once.
        result: What the supervisor says.
        notes: What the workers noted themselves.
        ledger: What the stored states and events say.
    """
    unread = never_done(names, notes)
    again = begun_again(notes)
    several = [name for name in ledger.completed if len(ledger.done_by(name)) > 1]
    for what, items in (
        ("never read", unread),
        ("read, but not counted", {*result.left, *result.set_aside, *result.lost} - {*unread}),
        ("counted as read more than once", several),
        ("begun again, but not counted", {*again} - {*result.begun_again}),
    ):
        if items:
            yield f"{what}: {first_of(sorted(items))}"
    if result.counts.claimed:
        yield f"read, but not verified: {result.counts.claimed}"
    if len(again) > result.killed:
        yield f"{len(again)} items were begun again, with {result.killed} kills"


def never_done(names: Iterable[str], notes: Notes) -> list[str]:
    """Return the items that no worker noted as done."""
    done = {name for what, name in notes if what == DONE}
    return [name for name in names if name not in done]


def begun_again(notes: Notes) -> list[str]:
    """Return the items that were begun more than once."""
    begun = Counter(name for what, name in notes if what == BEGUN)
    return [name for name, count in begun.items() if count > 1]
