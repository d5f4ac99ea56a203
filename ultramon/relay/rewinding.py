"""A new run that begins where another one was before an item: its branch, its items, its notes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ultramon.backends.opening import open_backend
from ultramon.errors import ConfigurationError
from ultramon.fleet.journal_event import Closing, JournalEvent
from ultramon.fleet.supervise.jobs import POOL, added, make_event, name_in_run
from ultramon.fleet.supervise.ledger import events_of
from ultramon.fleet.supervise.pool import ItemPool
from ultramon.handoff import HandoffRecord
from ultramon.relay.choices import RelayChoices, task_name
from ultramon.relay.merge.branch import RunBranch
from ultramon.relay.option_values import COMMAND
from ultramon.relay.run_folder import run_directory, run_lock
from ultramon.relay.runs.run import agent_names
from ultramon.relay.workspace import BRANCHES, QUICK_SECONDS, TREE_SECONDS, kept_trees
from ultramon.relay.workspace_record import WorkspaceRecord
from ultramon.state.plan import Plan
from ultramon.state.record import StateRecord
from ultramon.state.stored_handoff import put_handoff
from ultramon.system.clock import SYSTEM_CLOCK
from ultramon.system.git import find_commit
from ultramon.system.git_trees import BoundedGit
from ultramon.system.processes import this_machine

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ultramon.backends.base import Backend
    from ultramon.fleet.supervise.pool import WorkerContext


@dataclass(frozen=True, slots=True)
class Point:
    """Where a run was before an item.

    Attributes:
        run: The run.
        item: The item, as its user spells it.
        commit: At which the branch of a new run begins.
        origin: The branch from which the run's own was made; None = unknown.
        verified: The names of the items that were verified, in the order in which they were.
        held: Those of the items beside them that the context in work then had.
        handoff: What that context had been given by the one before it; None = nothing.
        kept: The ids of the trees that were kept of the verified items, by label.
    """

    run: str
    item: str
    commit: str
    origin: str | None
    verified: tuple[str, ...]
    held: tuple[str, ...]
    handoff: HandoffRecord | None
    kept: dict[str, str]

    def __str__(self) -> str:
        count = len(self.verified)
        items = "no item is" if not count else f"{count:,} item{'s are' if count > 1 else ' is'}"
        return f"{items} verified, as {self.run} was before {self.item}, at {self.commit[:7]}"


def find_point(run: str, item: str, *, state_directory: str) -> Point:
    """Return where a run was before one of its items was claimed, or begun where it never was.

    Args:
        run: A run with a list of items, in worktrees.
        item: Of the list.
        state_directory: Where states are kept.

    Raises:
        ConfigurationError: There is no such run or item, or it keeps no such points.
        StateError: The store refused.
        WorkspaceError: git refused, or a commit is not there any more.
    """
    choices = RelayChoices.load(state_directory, run)
    record = WorkspaceRecord.load(run_directory(state_directory, run))
    if choices.items is None or record is None or record.in_place or record.base is None:
        allowed = "a run with --items in a worktree of its own"
        raise ConfigurationError("rewind", run, allowed)
    wanted = task_name(item)
    found = next((one for one in choices.items if task_name(one) == wanted), None)
    if found is None:
        raise ConfigurationError("rewind", item, f"an item of the run {run}")
    names = agent_names(choices, uses_sdk=choices.agent == COMMAND)
    numbers = {name: number for number, name in enumerate(names, 1)}
    name = next(one for one, spelt in names.items() if spelt == found)
    order, context = _verified_before(run, name, open_backend(state_directory))
    root = choices.cwd
    kept = kept_trees(root, run)
    trees = {one: kept[str(numbers[one])] for one in order if str(numbers[one]) in kept}
    if record.is_detached:
        commit, verified = _merged_before(root, record, order, numbers, name)
    else:
        commit, verified = _kept_before(root, record.base, order, trees)
    held = () if context is None else tuple(one for one in context.items if one not in verified)
    labels = {str(numbers[one]) for one in verified}
    kept = {label: tree for label, tree in kept.items() if label in labels}
    handoff = None if context is None else context.handoff
    return Point(run, found, commit, record.origin, verified, held, handoff, kept)


def begin_at(point: Point, run: str, choices: RelayChoices, *, state_directory: str) -> None:
    """Let a new run know what was verified before, as if its own contexts had done it.

    One agent, or more of a long list, stands for the contexts of the other run: it has done these
    items and leaves the notes. Repeating it is harmless until a context has begun.

    Args:
        point: Where it begins.
        run: The new run, whose workspace is there.
        choices: Its choices.
        state_directory: Where states are kept.

    Raises:
        StateError: The store refused, or another relay works on the run.
        WorkspaceError: git refused.
    """
    with run_lock(run_directory(state_directory, run)):
        lines = (f"update refs/{BRANCHES}/{run}/{one} {tree}\n" for one, tree in point.kept.items())
        BoundedGit(choices.cwd, TREE_SECONDS)("update-ref", "--stdin", given="".join(lines))
        names = agent_names(choices, uses_sdk=choices.agent == COMMAND)
        source, at = f"relay:{run}", SYSTEM_CLOCK.now()
        backend = open_backend(state_directory)
        events = list(added(run, name_in_run(run, POOL), names, source=source, at=at))
        backend.append_events(events)
        for number, event in enumerate(events):
            # All are number 0: the first context of the run is number 1.
            agent_id = name_in_run(run, "0" * (number + 1))
            _stand_for(point, run, agent_id, event["items"], backend)


def _stand_for(
    point: Point, run: str, agent_id: str, items: Sequence[str], backend: Backend
) -> None:
    own, held = set(items), set(point.held)
    done = [name for name in point.verified if name in own]
    left = [name for name in items if name in held]
    if not done and not left:
        return
    source, at = f"relay:{run}", SYSTEM_CLOCK.now()

    def event(kind: str, **facts: Any) -> dict[str, Any]:
        return make_event(run, agent_id, kind, source=source, at=at, **facts)

    backend.append_events([event("agent_assigned", items=[*done, *left], supervisor=source)])

    def build(_: StateRecord | None, generation: int) -> tuple[StateRecord, list[dict[str, Any]]]:
        plan = Plan()
        plan.add([*done, *left])
        for name in done:
            plan.complete(name, None)
        record = StateRecord(
            agent_id, run=run, label=f"stands for {point.run}", generation=generation, epoch=1,
            started_at=at, last_heartbeat=at, last_activity=at, active=False, outcome="completed",
            tasks=plan.to_json(), tasks_total=plan.total_count,
            tasks_completed=plan.completed_count, announced={"epoch": 1, "rungs": {}},
        )  # fmt: skip
        notes = None if point.handoff is None else point.handoff.notes
        handoff = HandoffRecord.of(record, record.tasks or [], now=at, reason="clear", notes=notes)
        return record, [
            record.event("agent_started", at=at, n=0),
            put_handoff(record, handoff.to_json(), at),
            record.event("agent_stopped", at=at, n=0, outcome="completed"),
        ]

    backend.start_agent(agent_id, build, takeover=True, now=at, machine=this_machine())
    # One by one, so that each is a point of the new run.
    kinds = ("items_claimed", "items_verified")
    events = [event(kind, items=[name]) for name in done for kind in kinds]
    closing = Closing(f"it was rewound to before {point.item}", False, False, True, [], [], [])
    backend.append_events([*events, event("context_closed", **closing.to_json())])


def _verified_before(
    run: str, name: str, backend: Backend
) -> tuple[list[str], WorkerContext | None]:
    """Return what was verified before an item was claimed, in order, and the context that had it.

    Before the claim that was verified, else before the last one; an item that was never claimed:
    before it was assigned last.
    """
    events = [JournalEvent.of(one) for one in events_of(backend, run)]
    place, agent_id = _place_before(events, name)
    pool, order = ItemPool(1), dict[str, None]()
    for event in events[:place]:
        for step in pool.read(event, None):
            if step.name in ("verified", "reopened"):
                for one in step.items:
                    order.pop(one, None)
                    if step.name == "verified":
                        order[one] = None
    return list(order), pool.contexts.get(agent_id)


def _place_before(events: list[JournalEvent], name: str) -> tuple[int, str]:
    places: dict[str, tuple[int, str]] = {}
    for place, event in enumerate(events):
        if event.kind == "items_claimed" and name in event.items:
            places["claimed"] = place, event.agent_id
        elif event.kind == "agent_assigned" and name in event.work:
            places["assigned"] = place, event.agent_id
        elif event.kind == "items_verified" and name in event.items:
            break
    return places.get("claimed") or places.get("assigned") or (len(events), "")


def _kept_before(
    root: str, base: str, order: list[str], trees: dict[str, str]
) -> tuple[str, tuple[str, ...]]:
    """Return the newest tree that was kept of a verified item, and what was verified by then."""
    count = max((place for place, name in enumerate(order, 1) if name in trees), default=0)
    commit = _without_empty(root, trees[order[count - 1]]) if count else base
    return commit, tuple(order[:count])


def _without_empty(root: str, commit: str) -> str:
    """Return the parent of a kept tree that has nothing beside the commit that it was made on."""
    git = BoundedGit(root, QUICK_SECONDS)
    parent = find_commit(root, f"{commit}^", seconds=QUICK_SECONDS)
    trees = {git("rev-parse", f"{one}^{{tree}}") for one in (commit, parent) if one is not None}
    return parent if parent is not None and len(trees) == 1 else commit


def _merged_before(
    root: str, record: WorkspaceRecord, order: list[str], numbers: dict[str, int], name: str
) -> tuple[str, tuple[str, ...]]:
    """Return the commit on the branch before that of an item, and the items that are on it."""
    assert record.base is not None
    branch = RunBranch(root, f"refs/heads/{record.branch}", record.base)
    newest_first = [(item.number, commit) for item, commit in branch.merged().items()]
    own = next((commit for number, commit in newest_first if number == numbers[name]), None)
    known = {numbers[one] for one in order}
    if own is not None:
        tip = find_commit(root, f"{own}^", seconds=QUICK_SECONDS) or record.base
    else:
        tip = next((commit for number, commit in newest_first if number in known), record.base)
    listed = BoundedGit(root, TREE_SECONDS)("rev-list", f"{record.base}..{tip}").split()
    commits, names = set(listed), {number: name for name, number in numbers.items()}
    on_it = [
        names[number]
        for number, commit in reversed(newest_first)
        if commit in commits and number in names
    ]
    # What a run that was rewound itself has from before is on no commit of its branch.
    merged = {number for number, _ in newest_first}
    earlier = [one for one in order if numbers[one] not in merged]
    return tip, tuple(dict.fromkeys([*earlier, *on_it]))
