"""The merge queue of a run: its branch only ever names commits that were checked as a whole."""

from __future__ import annotations

import os
import re
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, NamedTuple

from ultramon.errors import WorkspaceError
from ultramon.fleet.supervise.verification import Rejection, reason_of
from ultramon.relay.merge.branch import CheckedOutError
from ultramon.relay.merge.candidate import build
from ultramon.relay.merge.tree_git import GIT_SECONDS, TreeGit
from ultramon.relay.merge.trees import changed_files
from ultramon.system.terminal_text import first_of, sanitize
from ultramon.system.wording import plural

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ultramon.fleet.supervise.verification import Verdict
    from ultramon.relay.merge.branch import RunBranch
    from ultramon.relay.merge.candidate import Candidate, Change
    from ultramon.relay.merge.trees import Conflict

MAX_MOVES = 5
"""So often in a row the branch may be moved by somebody else before a merge gives up."""
_LOOK_SECONDS = 1.0
"""Between two looks whether the user still has the branch checked out."""


class RedBranchError(WorkspaceError):
    """The tree of the branch itself does not pass its check any more."""


class Checks(NamedTuple):
    """What decides whether a tree may become that of the branch; each runs in the queue's tree."""

    item: Callable[[str], Verdict] | None
    """Of an item by its name; None = none."""
    tree: Callable[[], Verdict] | None
    """Of the whole tree; None = none."""
    protected: tuple[str, ...] = ()
    """Pathspecs of git: an item that changes such a file is rejected."""
    left_out: tuple[str, ...] = ()
    """Paths in the tree that belong to no commit, and stay: what its setup has made."""
    prefix: str = ""
    """Folder in the tree that protected pathspecs are relative to; empty = its top."""


class MergeCounts(NamedTuple):
    """What a queue has done since it was made."""

    merged: int = 0
    conflicts: int = 0
    red: int = 0
    """Items whose tree did not pass."""
    checks: int = 0
    """Trees that were checked."""
    foreign: int = 0
    """Moves of the branch that were seen and not made by a queue: nothing has checked those."""


class MergeQueue:
    """Merges items in the order in which they come, several at a time.

    Args:
        root: A working tree of its own, detached; nothing else works in it.
        branch: Where the items go to.
        candidate_ref: Full name of the ref that keeps what is being checked.
        checks: What a tree must pass.
        batch: How many items are checked together.
        tell: Called with a line for each move.

    Raises:
        WorkspaceError: git refused, such as a pathspec.
    """

    def __init__(
        self,
        root: str,
        branch: RunBranch,
        candidate_ref: str,
        checks: Checks,
        *,
        batch: int,
        tell: Callable[[str], object],
    ) -> None:
        self.counts = MergeCounts()
        self._root = root
        self._git = TreeGit(root)
        self._branch = branch
        self._candidate_ref = candidate_ref
        self._checks = checks
        self._batch = batch
        self._tell = tell
        self._waiting: list[tuple[Change, Future[Verdict]]] = []
        self._lock = threading.Lock()
        self._turn = threading.Lock()
        self._closed = threading.Event()
        self._known = {branch.tip}
        self._protected_in(branch.base, branch.base)

    def look(self) -> str:
        """Return the commit that the branch names; where somebody else has moved it, that is told.

        Raises:
            WorkspaceError: git refused.
        """
        tip = self._branch.tip
        if tip not in self._known:
            self._known.add(tip)
            self._count(foreign=1)
            self._tell(
                f"{self._short_name} was moved to {tip[:9]} by somebody else: what is there now is "
                "checked with the next items, and was not before"
            )
        return tip

    @property
    def _short_name(self) -> str:
        return self._branch.name.removeprefix("refs/heads/")

    @property
    def waiting_count(self) -> int:
        """How many items wait for their turn."""
        return len(self._waiting)

    def check_base(self) -> Verdict:
        """Check the tree that the branch names now.

        Raises:
            WorkspaceError: git refused.
        """
        with self._turn:
            self._check_out(self._branch.tip)
            return True if self._checks.tree is None else self._checks.tree()

    def check_again(self, name: str) -> Verdict:
        """Check an item on the branch as it is now.

        Raises:
            WorkspaceError: git refused.
        """
        if self._checks.item is None:
            return self.check_base()
        with self._turn:
            self._check_out(self._branch.tip)
            return self._checks.item(name)

    def merge(self, change: Change) -> Verdict:
        """Merge an item, and return when it is on the branch, or why it is not.

        Several threads may call: one of them merges for all that wait. While the user has the
        branch checked out, they wait for the end of that.

        Raises:
            RedBranchError: No item is the reason.
            WorkspaceError: git refused, or the branch cannot be moved.
        """
        if change.item in self._branch.merged():
            return True  # and its caller was killed before it could say so
        if (reason := self._refuse(change)) is not None:
            return reason
        answer: Future[Verdict] = Future()
        with self._lock:
            self._waiting.append((change, answer))
        with self._turn:
            while not answer.done():
                with self._lock:
                    taken = dict(self._waiting[: self._batch])
                    del self._waiting[: self._batch]
                try:
                    self._merge_all(taken)
                except (WorkspaceError, OSError) as error:
                    for one in taken.values():
                        if not one.done():
                            one.set_exception(error)
                finally:
                    for one in taken.values():
                        one.cancel()  # no caller waits for ever, whatever went wrong
        return answer.result()

    def close(self) -> None:
        """End a merge that waits, and let go of the last candidate."""
        self._closed.set()
        self._git("update-ref", "-d", self._candidate_ref)

    def _refuse(self, change: Change) -> Rejection | None:
        """Return why an item is not even tried."""
        files = self._protected_in(change.before, change.commit)
        if not files:
            return None
        return Rejection(
            sanitize(f"it changes {first_of(files)}, which --protect keeps from items"), True
        )

    def _protected_in(self, before: str, after: str) -> list[str]:
        """Return the protected files in which two trees differ."""
        protected = self._checks.protected
        if not protected:
            return []
        place = os.path.join(self._root, self._checks.prefix)
        os.makedirs(place, exist_ok=True)  # an item may have emptied it
        return changed_files(place, before, after, seconds=GIT_SECONDS, among=protected)

    def _merge_all(self, answers: dict[Change, Future[Verdict]]) -> None:
        """Merge a batch, until each has its answer.

        What conflicts waits for the others: the conflict may be with one that is not merged.
        """
        left, moves = list(answers), 0
        while left:
            tip = self.look()
            left = self._without_orphans(left, answers)
            candidate = build(self._root, tip, left)
            if not candidate.changes:
                for change, conflicts in candidate.conflicts.items():
                    self._count(conflicts=1)
                    answers[change].set_result(self._describe(conflicts, tip))
                return
            good, verdict = self._find_good(candidate)
            if good and not self._move(candidate, good):
                moves += 1
                if moves > MAX_MOVES:
                    raise WorkspaceError(self._root, f"{self._branch.name} is moved by others")
                continue  # all is built anew on what it names now
            for change in candidate.changes[:good]:
                answers[change].set_result(True)
            if verdict is not True:
                if not good:
                    self._check_branch(tip)
                self._count(red=1)
                answers[candidate.changes[good]].set_result(verdict)
            left = [change for change in left if not answers[change].done()]

    def _without_orphans(
        self, left: list[Change], answers: dict[Change, Future[Verdict]]
    ) -> list[Change]:
        """Reject those whose work came with an item that was not merged; return the others."""
        merged, waiting = self._branch.merged(), {change.item for change in left}
        kept = []
        for change in left:
            other = change.together_with
            if other is None or other in merged or other in waiting:
                kept.append(change)
            else:
                reason = f"its work came with item {other.number}, which was not merged"
                answers[change].set_result(Rejection(reason))
        return kept

    def _check_branch(self, tip: str) -> None:
        """Check the branch itself, on which an item has failed alone."""
        if self._checks.tree is None:
            return
        self._check_out(tip)
        if not (found := self._checks.tree()):
            advice = "it depends on something outside of the tree, or is not always the same"
            raise RedBranchError(
                self._root,
                f"the check of the whole tree fails without any item: {reason_of(found)}",
                advice,
            )

    def _find_good(self, candidate: Candidate) -> tuple[int, Verdict]:
        """Return how many of a candidate's items pass together, and why not one more.

        Each prefix that is called good was checked itself.
        """
        count = len(candidate.changes)
        good, bad = 0, count + 1
        verdict: Verdict = True
        tried = count
        while bad - good > 1:
            found = self._check(candidate, tried)
            if found is True:
                good = tried
            else:
                bad, verdict = tried, found
            tried = (good + bad) // 2
        return good, verdict

    def _check(self, candidate: Candidate, count: int) -> Verdict:
        """Check the tree with the first items of a candidate."""
        commit = candidate.commits[count - 1]
        self._git("update-ref", self._candidate_ref, commit)
        self._check_out(commit)
        self._count(checks=1)
        for change in candidate.changes[:count]:
            if self._checks.item is not None and not (found := self._checks.item(change.name)):
                beside = "" if count == 1 else f" beside {plural(count - 1, 'other item')}"
                why = reason_of(found)
                return Rejection(f"merged{beside}, the check of {change.name} fails: {why}")
        if self._checks.tree is None or (found := self._checks.tree()):
            return True
        return Rejection(f"merged, the whole tree fails its check: {reason_of(found)}")

    def _move(self, candidate: Candidate, count: int) -> bool:
        commit = candidate.commits[count - 1]
        is_said = False
        self._known.add(commit)
        while True:
            try:
                if not self._branch.move(commit, candidate.base):
                    return False
                break
            except CheckedOutError as error:
                if self._closed.is_set():
                    raise
                if not is_said:
                    self._tell(f"merging waits: {error}")
                is_said = True
                self._closed.wait(_LOOK_SECONDS)
        self._count(merged=count)
        names = first_of([change.name for change in candidate.changes[:count]])
        self._tell(f"merged: {names} ({self._short_name}@{commit[:9]})")
        return True

    def _describe(self, conflicts: Sequence[Conflict], tip: str) -> Rejection:
        """Return the facts of a conflict: files, lines, and with whose work."""
        path = conflicts[0].path
        other = self._branch.last_change(path, self._branch.base, tip)
        whose = "" if other is None else f" with {other[:80]}"
        # The name of a file may be no text, which the store would refuse.
        return Rejection(sanitize(f"conflict{whose}: {first_of([str(one) for one in conflicts])}"))

    def _check_out(self, commit: str) -> None:
        self._git("checkout", "--quiet", "--detach", "--force", commit)
        # What an earlier check left, but for what the project ignores: that may be its setup.
        self._git("clean", "-ffdq", *kept_by_clean(self._checks.left_out))

    def _count(self, **more: int) -> None:
        old = self.counts._asdict()
        self.counts = MergeCounts(**{name: old[name] + more.get(name, 0) for name in old})


def kept_by_clean(paths: Sequence[str]) -> list[str]:
    """Return the options of `git clean` with which paths from the top stay."""
    # As a pattern: what stands for itself in a path is no wildcard.
    escaped = (re.sub(r"([\\*?\[])", r"\\\1", path) for path in paths)
    return [part for path in escaped for part in ("-e", f"/{path}")]
