"""Several workers of one run: each has a tree of its own, and what is verified is merged."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from ultramon.errors import WorkspaceError
from ultramon.fleet.supervise.pool import ASSIGNED, CLAIMED, VERIFIED
from ultramon.fleet.supervise.verification import Undecided, reason_of
from ultramon.relay.item_names import ItemNames
from ultramon.relay.merge.branch import MergedItem, RunBranch
from ultramon.relay.merge.queue import Checks, MergeQueue, RedBranchError
from ultramon.relay.merge.worker_tree import LostWorkError, WorkerTree
from ultramon.relay.runs.result import Stop
from ultramon.relay.runs.run_reader import RunReader
from ultramon.relay.runs.setup import made_by_setup
from ultramon.relay.runs.verification import CommandCheck, TreeCheck
from ultramon.relay.workspace import BRANCHES
from ultramon.state.plan import DONE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ultramon.fleet.supervise.jobs import Job
    from ultramon.fleet.supervise.verification import Verdict
    from ultramon.relay.merge.candidate import Change
    from ultramon.relay.runs.run import Run
    from ultramon.relay.runs.start import StartedContext
    from ultramon.relay.workspace import RelayWorkspace

CHECKING = 0
"""The number of the tree in which candidates are checked; those of workers begin at 1."""
TREE_OUTPUT = "verify-all.out"


class _Worker(NamedTuple):
    workspace: RelayWorkspace
    tree: WorkerTree
    check: CommandCheck | None


class Merging:
    """The workers and the merge queue of a run.

    Args:
        run: The run, whose lock is held.
    """

    def __init__(self, run: Run) -> None:
        judged, choices = run.judged, run.choices
        assert judged is not None
        assert judged.base is not None
        self._run = run
        refs = f"refs/{BRANCHES}/{run.name}"
        self._branch = branch = RunBranch(
            judged.root, f"refs/heads/{judged.branch}", judged.base, run.workspace.folder
        )
        self._numbers = {name: number for number, name in enumerate(run.items, 1)}
        self._workers = {
            one.worker: _Worker(
                one,
                WorkerTree(
                    one.root,
                    one.folder,
                    one.worker,
                    refs,
                    branch,
                    left_out=made_by_setup(one),
                    tell=run.tell,
                ),
                self._item_check(one),
            )
            for one in (*run.workspaces, *run.retired)
        }
        # The run's own is read by the supervisor's thread.
        self._view = RunReader(run.backend, run.name)
        self._taking = threading.Lock()
        self._begins_red = False
        self._taken: dict[tuple[str, str], Change] = {}
        self._item = self._item_check(judged)
        self._tree = None
        if choices.verify_all:
            output_path = os.path.join(judged.folder, TREE_OUTPUT)
            self._tree = TreeCheck(
                choices.verify_all, judged.path, choices.verify_seconds, self._environ(judged),
                output_path,
            )  # fmt: skip
        item = None if self._item is None else self._check_item
        self.queue = MergeQueue(
            judged.root,
            branch,
            f"{refs}/candidate",
            Checks(
                item,
                self._tree,
                choices.protect,
                made_by_setup(judged),
                os.path.relpath(judged.path, judged.root),
            ),
            batch=max(2, len(run.workspaces)),
            tell=run.tell,
        )

    def check_base(self) -> None:
        """Check the whole tree where the run begins; what is merged later was checked then.

        Raises:
            WorkspaceError: It fails, and the answer is that the run shall not begin.
        """
        run, branch = self._run, self._branch
        if self._tree is None or branch.tip != branch.base:
            return
        run.tell(f"checking the whole tree at {branch.base[:7]}: `{run.choices.verify_all}`")
        found = self.queue.check_base()
        if found:
            run.tell("the whole tree is green")
            return
        problem = f"the check of the whole tree fails before any item: {reason_of(found)}"
        if not run.confirm(f"{problem}. No item is merged before one mends it. Begin?"):
            advice = "mend it first, or choose another check"
            raise WorkspaceError(run.workspace.path, problem, advice)
        self._begins_red = True

    def begin(self, job: Job) -> tuple[RelayWorkspace, str | None]:
        """Return the workspace of a context that begins, brought up to date, and a note for it.

        Raises:
            WorkspaceError: git refused.
        """
        run = self._run
        run.view.read()
        busy = {
            record.worker
            for context in run.view.pool.running_on
            if (record := run.contexts.of(context.agent_id)) is not None
            and context.agent_id != job.agent_id
        }
        before = None if job.handoff is None else run.contexts.of(job.handoff.agent_id)
        free = [one.worker for one in run.workspaces if one.worker not in busy]
        if not free:
            raise WorkspaceError(run.workspace.root, "no worker is free")
        # What git ignores is in its tree still: what it has built.
        number = before.worker if before is not None and before.worker in free else free[0]
        worker = self._workers[number]
        there = [one.number for one in run.contexts if one.worker == number]
        continued = None if before is None else before.number
        return worker.workspace, worker.tree.begin(continued, max(there, default=None))

    def verify(self, name: str) -> Verdict:
        """Return whether an item is on the branch: checked where it was made, then merged.

        One that was merged is checked again on the branch. Where git refuses, or the branch itself
        fails the check of the whole tree, the run stops, and no item is rejected for it.

        Raises:
            WorkspaceError: The work of the item is not there any more, or the branch was red when
                the run began and is still.
        """
        try:
            return self._verify(name)
        except LostWorkError:
            raise
        except (WorkspaceError, OSError) as error:
            is_known = isinstance(error, RedBranchError) and self._begins_red
            if is_known and self._branch.tip == self._branch.base:
                raise  # as the user was told, who had it begun all the same
            self._run.stop_for(Stop.failed(str(error)))
            return Undecided()

    def _verify(self, name: str) -> Verdict:
        run = self._run
        with self._taking:
            self._view.read()
            item = self._view.pool.item(name)
            if item.status != VERIFIED:
                agent_id = item.context or ""
                worker = self._worker_of(agent_id)
                change = self._take(worker, agent_id, name)
        if item.status == VERIFIED:
            return self.queue.check_again(name)
        if worker.check is not None and not (found := worker.check(run.items.get(name, name))):
            return found
        return self.queue.merge(change)

    def _worker_of(self, agent_id: str) -> _Worker:
        record = self._run.contexts.of(agent_id)
        worker = None if record is None else self._workers.get(record.worker)
        if worker is None:
            root = self._run.workspace.root
            raise LostWorkError(root, f"the worktree of {agent_id} is not there")
        return worker

    def _take(self, worker: _Worker, agent_id: str, name: str) -> Change:
        """Return the work of an item; what its agent has claimed before it is taken first."""
        for other in self._view.pool.claims().get(agent_id, ()):
            if other == name:
                break
            self._take_once(worker, agent_id, other)
        known = self._taken.get((agent_id, name))
        # One that was rejected is taken again: its agent may have mended it.
        if known is None or (self._view.pool.item(name).rejections and self._works(agent_id)):
            known = self._taken[agent_id, name] = self._take_now(worker, agent_id, name)
        return known

    def _take_once(self, worker: _Worker, agent_id: str, name: str) -> None:
        if (agent_id, name) not in self._taken and not self._view.pool.item(name).rejections:
            self._taken[agent_id, name] = self._take_now(worker, agent_id, name)

    def _take_now(self, worker: _Worker, agent_id: str, name: str) -> Change:
        item = self._merged_item(agent_id, name)
        if not self._works(agent_id):
            return worker.tree.kept(item, name)
        context = self._view.pool.contexts.get(agent_id)
        held = [] if context is None else context.items
        # An agent may be items ahead of its claims: a false one must not take their work with it.
        later = [one for one in held if one != name and (agent_id, one) not in self._taken]
        return worker.tree.take(item, name, later)

    def _works(self, agent_id: str) -> bool:
        """Return whether the tree of a context is still its own: no other has begun there."""
        contexts = self._run.contexts
        own = contexts.of(agent_id)
        others = [one.number for one in contexts if own is not None and one.worker == own.worker]
        return own is not None and own.number == max(others)

    def _merged_item(self, agent_id: str, name: str) -> MergedItem:
        return MergedItem(self._numbers.get(name, 0), agent_id)

    def leave(self, context: StartedContext) -> None:
        """Take what a context that has ended has claimed, and keep what it leaves half done.

        Another one may begin in its tree before the claims are judged.
        """
        agent_id, record = context.agent_id, context.record
        worker = self._workers.get(record.worker)
        if worker is None or not self._works(agent_id):
            return
        try:
            with self._taking:
                self._view.read()
                for name in self._claimed_by(agent_id):
                    if self._view.pool.item(name).rejections:
                        self._taken[agent_id, name] = self._take_now(worker, agent_id, name)
                    else:
                        self._take_once(worker, agent_id, name)
                worker.tree.leave(record.number)
        except WorkspaceError as error:
            self._run.tell(f"what context {record.number} left is not kept: {error}")

    def _claimed_by(self, agent_id: str) -> list[str]:
        """Return the items that a context says are done and that are not merged, in its order."""
        pool = self._view.pool
        context, state = pool.contexts.get(agent_id), self._view.state(agent_id)
        done = [] if context is None or context.left is None else list(context.left.completed)
        if state is not None:
            done += [task["name"] for task in state.tasks or () if task["status"] == DONE]
        names = ItemNames(self._run.items)
        found = {name for task in done if (name := names.find(task)) is not None}
        held = [] if context is None else context.items
        return [
            name
            for name in held
            if name in found
            and pool.item(name).context == agent_id
            and pool.item(name).status in (ASSIGNED, CLAIMED)
        ]

    def kept(self, names: Iterable[str]) -> dict[str, str]:
        """Return the refs below which the work of items is kept, of those that have any."""
        known = self._run.workspace.kept()
        numbers = {name: str(self._numbers.get(name, 0)) for name in names}
        prefix = f"refs/{BRANCHES}/{self._run.name}"
        return {name: f"{prefix}/{number}" for name, number in numbers.items() if number in known}

    def close(self) -> None:
        """End the checks that run, and let go of the last candidate."""
        with suppress(WorkspaceError):
            self.queue.close()
        for check in (*(one.check for one in self._workers.values()), self._item, self._tree):
            if check is not None:
                check.close()

    def _check_item(self, name: str) -> Verdict:
        assert self._item is not None
        return self._item(self._run.items.get(name, name))

    def _item_check(self, place: RelayWorkspace) -> CommandCheck | None:
        choices = self._run.choices
        if choices.verify is None:
            return None
        return CommandCheck(
            choices.verify, place.path, choices.verify_seconds, self._environ(place)
        )

    def _environ(self, place: RelayWorkspace) -> dict[str, str]:
        return {**os.environ, "ULTRAMON_RELAY": self._run.name, **place.variables}
