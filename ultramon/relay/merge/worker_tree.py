"""The working tree of one worker: brought up to date for each context, and cut into items."""

from __future__ import annotations

import shutil
import threading
from glob import escape, glob
from typing import TYPE_CHECKING

from ultramon.errors import WorkspaceError
from ultramon.relay.item_names import ItemNames
from ultramon.relay.merge.branch import TRAILER, MergedItem
from ultramon.relay.merge.candidate import Change, author_environ
from ultramon.relay.merge.queue import kept_by_clean
from ultramon.relay.merge.tree_git import GIT_SECONDS, TreeGit
from ultramon.relay.merge.trees import merge_trees
from ultramon.state.prompt_text import one_line
from ultramon.system.files import delete_quietly
from ultramon.system.git import find_commit
from ultramon.system.git_trees import BoundedGit, write_tree
from ultramon.system.terminal_text import first_of, sanitize

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ultramon.relay.merge.branch import RunBranch

_HEAD = "Ultramon-Head"
"""The commit that was checked out when a tree was taken."""
MAX_STEP_COMMITS = 50
"""So many commits inside an item are made anew where another context begins; of more, none."""
_IN_PROGRESS = ("rebase-merge", "rebase-apply", "sequencer")
"""What git keeps of a command that its agent has neither continued nor aborted."""


class LostWorkError(WorkspaceError):
    """The work of an item was not kept: it has to be done again."""


class WorkerTree:
    """The tree of a worker, which is detached: agents commit in it as they like.

    Everything is kept by private refs below `refs`: ``worker-<number>`` is where the next item
    begins, ``<item>`` an item as it was claimed, ``left-<context>`` what a context left half done.

    Args:
        root: The top of the tree.
        folder: Of the worker, for what is temporary.
        number: Of the worker, from 1.
        refs: What the refs of the run begin with, such as ``refs/ultramon/port-1``.
        branch: Of the run.
        left_out: Paths in the tree that are no work of an agent, and stay.
        tell: Called once with a line for each reason why files are not kept.
    """

    def __init__(
        self,
        root: str,
        folder: str,
        number: int,
        refs: str,
        branch: RunBranch,
        *,
        left_out: Sequence[str] = (),
        tell: Callable[[str], object] = lambda line: None,
    ) -> None:
        self.number = number
        self._root = root
        self._git = TreeGit(root)
        self._folder = folder
        self._refs = refs
        self._branch = branch
        self._left_out = left_out
        self._tell = tell
        self._told: set[str] = set()
        self._lock = threading.Lock()

    def begin(self, continued: int | None, before: int | None = None) -> str | None:
        """Check out the branch as it is now, for a context that begins.

        Args:
            continued: The number of the context whose work it continues: what that one has
                committed inside an item is put on top as commits, and what else it left half done
                on top of that, uncommitted. None = it continues none.
            before: The number of the context that was in this tree last; what that one left is
                kept now, where it was not. None = there was none.

        Returns:
            What there is to say where that does not fit any more; else None.

        Raises:
            WorkspaceError: git refused, or took too long.
        """
        with self._lock:
            if before is not None and self._find(f"left-{before}") is None:
                self._leave(before)
            tip = self._branch.tip
            tree, head, note = self._prepare(continued, tip)
            for name in _IN_PROGRESS:
                shutil.rmtree(self._git_path(name), ignore_errors=True)
            self._git("checkout", "--quiet", "--force", "--detach", head)
            # All of it is kept: what a context left, when it ended. Repositories in it stay.
            self._git("clean", "-fdq", *kept_by_clean(self._left_out))
            self._git("read-tree", "--reset", "-u", tree)
            self._git("reset", "--quiet")
            self._git("update-ref", f"{self._refs}/worker-{self.number}", tip)
            return note

    def take(self, item: MergedItem, name: str, later: Iterable[str] = ()) -> Change:
        """Return the work of an item that its agent has claimed, and keep it.

        It is what has changed since the item before it: the agent's commits, where it has made any
        since, up to the last one that names the item; where none does, up to the first one that
        names an item that is taken later; without commits all files. One that is claimed again is
        what it was, with what changed since.

        Args:
            item: The item.
            name: Its name.
            later: The names of further items of its context, whose work is not taken yet.

        Raises:
            WorkspaceError: git refused, or took too long.
        """
        with self._lock:
            last = self._last()
            head_before = self._head_of(last)
            found = self._commit_of(name, head_before, ItemNames(later))
            head = found or head_before
            has_commits = head != head_before
            if has_commits:
                tree = self._git("rev-parse", f"{head}^{{tree}}")
            elif found is None:
                tree = self._git("rev-parse", f"{last}^{{tree}}")
            else:
                tree = self._write()
            before, known = last, self._find(str(item.number))
            if known is not None and self._item_of(known) == item:
                before = self._git("rev-parse", f"{known}^")
                whole = self._merged(last, known, tree)
                commit = self._commit(whole, before, name, item, head)
                chain = self._commit(tree, last, name, self._item_of(last), head)
            else:
                commit = chain = self._commit(tree, last, name, item, head)
            self._update(
                f"update {self._refs}/{item.number} {commit}",
                f"update {self._refs}/worker-{self.number} {chain}",
            )
            tree_before = self._git("rev-parse", f"{before}^{{tree}}")
            is_empty = tree_before == self._git("rev-parse", f"{commit}^{{tree}}")
            message = self._git("log", "-1", "--format=%B", head).strip() if has_commits else name
            return Change(
                item,
                name,
                tree_before,
                commit,
                message,
                head if has_commits else commit,
                self._item_of(last) if is_empty and before == last else None,
            )

    def kept(self, item: MergedItem, name: str) -> Change:
        """Return the work of an item as it was taken, whatever is in the tree now.

        Raises:
            LostWorkError: It was not taken.
            WorkspaceError: git refused, or took too long.
        """
        commit = self._find(str(item.number))
        if commit is None or self._item_of(commit) != item:
            reason = f"the work of {name!r} by {item.agent_id} was not kept"
            raise LostWorkError(self._root, reason)
        before = self._git("rev-parse", f"{commit}^{{tree}}", f"{commit}^^{{tree}}")
        tree, tree_before = before.splitlines()
        other = self._item_of(f"{commit}^") if tree == tree_before else None
        return Change(item, name, tree_before, commit, name, commit, other)

    def leave(self, context: int) -> None:
        """Keep what a context that has ended leaves beside its claimed items.

        Raises:
            WorkspaceError: git refused, or took too long.
        """
        with self._lock:
            self._leave(context)

    def _leave(self, context: int) -> None:
        # Of a commit of some files that was killed with its agent: git names it after its process.
        for path in glob(f"{escape(self._git_path('next-index'))}-*.lock"):
            delete_quietly(path)
        last, tree = self._last(), self._write()
        if tree == self._git("rev-parse", f"{last}^{{tree}}"):
            return
        head = self._git("rev-parse", "HEAD")
        left = self._commit(tree, last, f"Left by context {context}", None, head)
        self._git("update-ref", f"{self._refs}/left-{context}", left)

    def _commit_of(self, name: str, before: str, later: ItemNames) -> str | None:
        """Return the last commit since another one that names an item.

        Where none does, the last one in front of those that name later items; None = those are
        all. Without any commit the one before.
        """
        form = "--format=%H%x00%B%x01"
        log = self._git("log", "--no-show-signature", "--first-parent", form, f"{before}..HEAD")
        entries = [entry.strip().partition("\0") for entry in log.split("\1") if entry.strip()]
        if not entries:
            return before
        own = ItemNames((name,))
        found = None
        for commit, _, message in entries:
            subject = one_line(message)
            if own.find(subject):
                return commit
            if later.find(subject):
                found = None
            elif found is None:
                found = commit
        return found

    def _prepare(self, continued: int | None, tip: str) -> tuple[str, str, str | None]:
        """Return the tree with which the next context begins, its commit on a tip, and a note."""
        tree, head, note = self._git("rev-parse", f"{tip}^{{tree}}"), tip, None
        left = None if continued is None else self._find(f"left-{continued}")
        if left is not None:
            base = self._git("rev-parse", f"{left}^^{{tree}}")
            theirs = self._git("rev-parse", f"{left}^{{tree}}")
            merged = merge_trees(self._root, base, tree, theirs, seconds=GIT_SECONDS)
            if merged.conflicts:
                files = sanitize(first_of([str(one) for one in merged.conflicts]))
                note = (
                    f"what context {continued} left half done does not fit on the branch any more "
                    f"({files}): it is kept as {left[:12]}, see `git show {left[:12]}`"
                )
            else:
                tree, head = merged.tree, self._with_steps_of(left, tip)
        return tree, head, note

    def _with_steps_of(self, left: str, tip: str) -> str:
        """Return a commit on a tip, with those that a context has made inside the item it left.

        Its own, where the tip is what it began with. Behind one that does not fit by itself, none
        is made: the whole of what was left does fit, and is there uncommitted.
        """
        begun_at, head = self._head_of(f"{left}^"), self._head_of(left)
        git = BoundedGit(self._root, GIT_SECONDS)
        # Only the tree's own log leads to them, which forgets.
        listed = git.attempt(
            "rev-list", "--first-parent", "--reverse", head, f"^{begun_at}", f"^{tip}"
        )
        if listed is None or listed.returncode:
            return tip
        commits = listed.stdout.decode().split()
        if len(commits) > MAX_STEP_COMMITS:
            return tip
        on = tip
        for commit in commits:
            parent, before = git("rev-parse", f"{commit}^", f"{commit}^^{{tree}}").splitlines()
            if parent == on:
                on = commit
                continue
            ours, theirs = git("rev-parse", f"{on}^{{tree}}", f"{commit}^{{tree}}").splitlines()
            merged = merge_trees(self._root, before, ours, theirs, seconds=GIT_SECONDS)
            if merged.conflicts:
                break
            if merged.tree != ours:
                message = git("log", "-1", "--no-show-signature", "--format=%B", commit)
                environ = author_environ(git, commit)
                on = git("commit-tree", merged.tree, "-p", on, environ=environ, given=message)
        return on

    def _merged(self, last: str, known: str, tree: str) -> str:
        """Return an item as it was, with what has changed in the tree since the last one."""
        base, ours = (self._git("rev-parse", f"{one}^{{tree}}") for one in (last, known))
        if base == tree:
            return ours
        merged = merge_trees(self._root, base, ours, tree, seconds=GIT_SECONDS)
        return ours if merged.conflicts else merged.tree

    def _last(self) -> str:
        """Return the commit at which the next item begins."""
        found = self._find(f"worker-{self.number}")
        return self._branch.base if found is None else found

    def _write(self) -> str:
        listed = self._git("ls-files", "--others", "--exclude-standard", "-z").split("\0")
        # A repository in the tree: of one all that could be stored is the id of its commit.
        left_out = (*self._left_out, *(name for name in listed if name.endswith("/")))
        written = write_tree(
            self._root, folder=self._folder, seconds=GIT_SECONDS, left_out=left_out
        )
        if written.note is not None and written.note not in self._told:
            self._told.add(written.note)
            self._tell(f"worker {self.number}: {written.note}")
        return written.tree

    def _commit(self, tree: str, parent: str, name: str, item: MergedItem | None, head: str) -> str:
        facts = [f"{_HEAD}: {head}"]
        if item is not None:
            facts.append(f"{TRAILER}: {item.number} {item.agent_id}")
        return self._git(
            "commit-tree", tree, "-p", parent, "-m", name or "-", "-m", "\n".join(facts)
        )

    def _head_of(self, commit: str) -> str:
        """Return what was checked out when a commit was made of the tree."""
        return self._trailer(commit, _HEAD) or commit

    def _item_of(self, commit: str) -> MergedItem | None:
        number, _, agent_id = self._trailer(commit, TRAILER).partition(" ")
        # What is on the branch has its item, too: no tree begins behind that one.
        is_own = bool(self._trailer(commit, _HEAD))
        return MergedItem(int(number), agent_id) if number.isdecimal() and is_own else None

    def _trailer(self, commit: str, key: str) -> str:
        form = f"--format=%(trailers:key={key},valueonly,separator=%x2C)"
        return self._git("log", "-1", "--no-show-signature", form, commit).rpartition(",")[2]

    def _git_path(self, name: str) -> str:
        return self._git("rev-parse", "--path-format=absolute", "--git-path", name)

    def _find(self, label: str) -> str | None:
        return find_commit(self._root, f"{self._refs}/{label}", seconds=GIT_SECONDS)

    def _update(self, *lines: str) -> None:
        """Change several refs at once, or none of them."""
        self._git("update-ref", "--stdin", given="".join(f"{line}\n" for line in lines))
