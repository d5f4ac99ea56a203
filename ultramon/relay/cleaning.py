"""Removes what a relay has made for a run: its worktree, its merged branch, its folder.

What is nowhere else stays, or is kept first. Killed at any moment, it can be repeated.
"""

from __future__ import annotations

import os
import shlex
import shutil
import stat
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from ultramon.backends.opening import open_backend
from ultramon.errors import ConfigurationError, StateError, WorkspaceError
from ultramon.fleet.supervise.children import process_facts
from ultramon.relay.disk_space import taken_bytes
from ultramon.relay.run_folder import (
    LOCK_FILES,
    WORKERS,
    run_directory,
    run_lock,
    worker_numbers,
)
from ultramon.relay.runs.run_reader import RunReader
from ultramon.relay.unmerged_work import (
    ask,
    destinations,
    ignored_files,
    is_reachable,
    merged_refs,
    missing_commits,
    repositories_with_work,
)
from ultramon.relay.workspace import BRANCHES, WORKTREE, RelayWorkspace
from ultramon.relay.workspace_opening import is_worktree
from ultramon.relay.workspace_record import RECORD, WorkspaceRecord
from ultramon.system.git import find_commit, read_status, run_git, tree_with
from ultramon.system.git_trees import QUIET
from ultramon.system.ids import check_agent_id
from ultramon.system.process_search import processes_with
from ultramon.system.processes import working_directory
from ultramon.system.terminal_text import first_of
from ultramon.system.wording import byte_size, plural

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ultramon.fleet.supervise.result import ItemCounts

REMOVING = "worktree.removed"
"""The worktree on its way out: whole under its own name, in any state under this one."""
UNCOMMITTED = "uncommitted"
"""Label of the kept tree of what was in the worktree and in no commit."""
_GIT_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Remainder:
    """Something that stays.

    Attributes:
        what: In words.
        command: What removes it; empty = nothing has to.
    """

    what: str
    command: str = ""


@dataclass(slots=True)
class CleanedRun:
    """What became of a run.

    Attributes:
        run: Its name.
        removed: What was removed, each in words.
        kept: What was kept before, each in words.
        stays: What is still there.
    """

    run: str
    removed: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    stays: list[Remainder] = field(default_factory=list)

    def lines(self) -> Iterator[str]:
        """Yield it for people."""
        yield from (f"kept: {one}" for one in self.kept)
        yield from (f"removed: {one}" for one in self.removed or ["nothing"])
        for one in self.stays:
            yield f"stays: {one.what}"
            if one.command:
                yield f"  to remove it: {one.command}"

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return asdict(self)


def clean_run(
    run: str, *, state_directory: str, tell: Callable[[str], object] = lambda line: None
) -> CleanedRun:
    """Remove what a relay has made for a run, but for work that is nowhere else.

    Uncommitted files are kept as a commit under the private refs of the run first. Its branch is
    removed when it is merged into the branch that it came from, and a kept tree when all that is in
    it is merged. The record of the workspace stays, so that no run takes the name again, whose
    items its events would take for done.

    Args:
        run: The relay.
        state_directory: Where states are kept.
        tell: Called with a line about a step that may take long.

    Raises:
        ConfigurationError: There is no such run.
        StateError: A relay or a context of it runs, or its folder cannot be used.
        WorkspaceError: git refused, or a repository inside the worktree holds work of its own.
    """
    check_agent_id(run, "run")
    folder = run_directory(state_directory, run)
    if not os.path.isdir(folder):
        raise ConfigurationError("run", run, "a relay that was begun")
    cleaned = CleanedRun(run)
    with run_lock(folder):
        items = _check_idle(run, state_directory)
        record = WorkspaceRecord.load(folder)
        if record is None and os.path.lexists(os.path.join(folder, WORKTREE)):
            reason, advice = "the record of its worktree is not there", "look at it by yourself"
            raise StateError(f"run {run}", reason, advice)
        if record is not None and record.common is not None:
            for number in worker_numbers(folder):
                place = os.path.join(folder, WORKERS, number)
                worker = WorkspaceRecord.load(place)
                if worker is not None:
                    _Repository(run, place, worker, cleaned, tell).clean_worktree()
            _Repository(run, folder, record, cleaned, tell).clean()
        if _remove_files(folder, record):
            left = (
                f"; {items.left:,} of {plural(items.assigned, 'item')} left" if items.left else ""
            )
            what = f"its choices, and what its contexts printed, in {folder}"
            cleaned.removed.append(f"{what}: it cannot continue{left}")
    if record is None:
        with suppress(OSError):
            os.rmdir(folder)
    else:
        cleaned.stays.append(
            Remainder(
                "the states and events of its contexts; `ultramon backend prune` ages them out"
            )
        )
    return cleaned


def discard_run(run: str, *, state_directory: str) -> None:
    """Remove what was made for a run that never began a context: its name is free again.

    Args:
        run: The run.
        state_directory: Where states are kept.

    Raises:
        StateError: As `clean_run`.
        WorkspaceError: As `clean_run`.
    """
    clean_run(run, state_directory=state_directory)
    shutil.rmtree(run_directory(state_directory, run))


def _check_idle(run: str, state_directory: str) -> ItemCounts:
    """Check that no process of the run works; return what has become of its items.

    Raises:
        StateError: One does.
    """
    backend = open_backend(state_directory)
    marks = (
        {"ULTRAMON_BACKEND": backend.url},
        {"ULTRAMON_STATE_DIR": os.path.abspath(state_directory)},
    )
    found = {one.pid for mark in marks for one in processes_with({"ULTRAMON_RELAY": run, **mark})}
    view = RunReader(backend, run)
    view.read()
    for context in view.pool.contexts.values():
        known = context.process
        if context.closed is None and known is not None:
            facts = process_facts(known["pid"])
            if facts["pidStartedAt"] and facts.items() <= known.items():
                found.add(known["pid"])
    if found:
        named = first_of([str(pid) for pid in sorted(found)])
        pids = " ".join(map(str, sorted(found)))
        advice = f"`ultramon relay --resume {run}` takes its context over; or end it: kill {pids}"
        raise StateError(f"run {run}", f"still works: process {named}", advice)
    return view.pool.counts


class _Repository:
    """The part of a run that is in its repository.

    Args:
        run: The run, whose lock is held.
        folder: Its folder.
        record: Its workspace.
        cleaned: Takes what becomes of it.
        tell: As for `clean_run`.
    """

    def __init__(
        self,
        run: str,
        folder: str,
        record: WorkspaceRecord,
        cleaned: CleanedRun,
        tell: Callable[[str], object],
    ) -> None:
        assert record.common is not None
        self._run = run
        self._folder = folder
        self._record = record
        self._common = record.common
        self._cleaned = cleaned
        self._tell = tell
        self._root = os.path.join(folder, WORKTREE)
        self._has_workers = bool(worker_numbers(folder))
        self._refs = f"refs/{BRANCHES}/{run}/"
        tree = self._common.removesuffix(f"{os.sep}.git")
        here = os.path.join(working_directory() or "", "")
        is_inside = here.startswith(os.path.join(tree, ""))
        self._git = "git" if is_inside else f"git -C {shlex.quote(tree)}"

    def clean(self) -> None:
        """Remove worktree, branch and kept trees, as far as nothing is lost."""
        record = self._record
        self.clean_worktree()
        origin = record.branch if record.in_place else record.origin
        places = destinations(self._common, origin)
        if not record.in_place:
            self._remove_branch(places)
        self._remove_kept(places)

    def clean_worktree(self) -> None:
        """Remove the worktree alone; what is in no commit is kept first."""
        if not os.path.isdir(self._common):
            reason = f"the repository of the run {self._run} is not there"
            advice = f"move it back, or remove {self._folder} by yourself"
            raise WorkspaceError(self._common, reason, advice)
        if not self._record.in_place:
            self._remove_worktree()

    def _remove_worktree(self) -> None:
        removing = os.path.join(self._folder, REMOVING)
        # What a killed call has left: its uncommitted files are kept.
        if os.path.lexists(removing):
            _remove_tree(removing)
            self._cleaned.removed.append("what an earlier call has left of the worktree")
        if os.path.lexists(self._root):
            # Where the state directory was moved, git knows the worktree by its old path.
            repair = ("worktree", "repair", self._root)
            run_git(self._common, *QUIET, *repair, seconds=_GIT_SECONDS)
            what = f"the worktree {self._root}"
            if self._record.ready:
                what += self._keep()
            else:
                what += ", which was half made"
            self._tell(f"removing {self._root}")
            os.rename(self._root, removing)
            self._close()
            _remove_tree(removing)
            self._cleaned.removed.append(what)
        self._close()
        # Twice forced: also one that was locked. It is not registered any more where git has
        # pruned it.
        given = ("worktree", "remove", "--force", "--force", self._root)
        run_git(self._common, *QUIET, *given, seconds=_GIT_SECONDS)

    def _close(self) -> None:
        """Store that the run cannot continue."""
        if not self._record.is_cleaned:
            self._record.is_cleaned = True
            self._record.save(self._folder)

    def _keep(self) -> str:
        """Keep what is in the worktree and in no commit; return what else is removed with it."""
        root = self._root
        if not is_worktree(root, self._common):
            advice = "move it away, then clean again"
            raise WorkspaceError(root, f"is no worktree of {self._common} any more", advice)
        if inside := repositories_with_work(root):
            reason = f"{first_of(inside)}: a repository inside it with work that is nowhere else"
            raise WorkspaceError(
                root, reason, "push or commit that, or delete it, then clean again"
            )
        status = read_status(root, seconds=_GIT_SECONDS)
        if status is None:
            raise WorkspaceError(root, "git status failed, or took too long")
        head = find_commit(root, "HEAD", seconds=_GIT_SECONDS)
        if status.files or (head is not None and not is_reachable(root, head)):
            self._keep_tree(status.files)
        if status.branch not in (None, self._record.branch):
            self._stays(f"the branch {status.branch}, which was checked out in the worktree", "")
        ignored = ignored_files(root)
        others = f", and {first_of(ignored)}, which git ignores" if ignored else ""
        return f" ({byte_size(taken_bytes(root))}){others}"

    def _keep_tree(self, files: tuple[str, ...]) -> None:
        root = self._root
        place = RelayWorkspace(
            self._run,
            root,
            root,
            self._folder,
            self._record.base,
            self._record.branch,
            in_place=False,
            is_checkpointed=True,
        )
        tree = place.tree()
        number, known = 1, place.kept()
        while (label := UNCOMMITTED if number == 1 else f"{UNCOMMITTED}-{number}") in known:
            if ask(root, "rev-parse", f"{known[label]}^{{tree}}").strip() == tree:
                break  # a call that was killed has kept it
            number += 1
        place.keep(label, f"uncommitted files of the run {self._run}")
        if place.notes:
            raise WorkspaceError(root, place.notes[0], "save or delete it, then clean again")
        what = (
            f"{plural(len(files), 'uncommitted file')} ({first_of(files)})" if files else "commits"
        )
        self._cleaned.kept.append(f"{what} as {self._refs}{label}")

    def _remove_branch(self, places: list[str]) -> None:
        branch = self._record.branch
        tip = find_commit(self._common, f"refs/heads/{branch}", seconds=_GIT_SECONDS)
        if branch is None or tip is None:
            return
        shown = _shown(places)
        trees = ask(self._common, "worktree", "list", "--porcelain")
        missing = missing_commits(self._common, tip, places)
        if missing:
            what = f"the branch {branch}: {plural(missing, 'commit')} that {shown} does not have"
            self._stays(what, f"{self._git} branch -D {shlex.quote(branch)}")
        elif (path := tree_with(trees, f"refs/heads/{branch}")) is not None:
            what = f"the branch {branch}, which is checked out in {path}"
            self._stays(what, f"{self._git} branch -d {shlex.quote(branch)}, once it is not")
        else:
            # With the commit that was looked at: one that is added meanwhile is not lost.
            ask(self._common, "update-ref", "-d", f"refs/heads/{branch}", tip)
            section = ("config", "--remove-section", f"branch.{branch}")
            run_git(self._common, *QUIET, *section, seconds=_GIT_SECONDS)
            self._cleaned.removed.append(f"the branch {branch}, merged into {shown}")

    def _remove_kept(self, places: list[str]) -> None:
        listed = ask(self._common, "for-each-ref", "--format=%(objectname) %(refname)", self._refs)
        pairs = (line.split(" ", 1) for line in listed.splitlines())
        kept = {name: commit for commit, name in pairs}
        # An earlier call has removed their folders.
        of_workers = f"{self._refs}{UNCOMMITTED}-"
        are_rebased = self._has_workers or any(name.startswith(of_workers) for name in kept)
        merged = merged_refs(
            self._common, self._refs, self._record.base, places, are_rebased=are_rebased
        )
        for name in merged:
            ask(self._common, "update-ref", "-d", name, kept[name])
        # What this call itself has kept of a worktree, and the branch has as other commits.
        self._cleaned.kept[:] = [
            one for one in self._cleaned.kept if one.rpartition(" as ")[2] not in merged
        ]
        shown = _shown(places)
        if merged:
            trees = plural(len(merged), "kept tree")
            self._cleaned.removed.append(f"{trees} below {self._refs}, all in {shown}")
        if left := [name.removeprefix(self._refs) for name in kept if name not in merged]:
            trees = f"{plural(len(left), 'kept tree')} below {self._refs} ({first_of(left)})"
            listing = f"{self._git} for-each-ref --format='delete %(refname)' {self._refs}"
            self._stays(
                f"{trees}: not all of it is in {shown}",
                f"{listing} | {self._git} update-ref --stdin",
            )

    def _stays(self, what: str, command: str) -> None:
        self._cleaned.stays.append(Remainder(what, command))


def _shown(places: list[str]) -> str:
    names = [name.removeprefix("refs/heads/").removeprefix("refs/remotes/") for name in places]
    return " or ".join(names[:2]) if 0 < len(names) < 3 else "any other branch"


def _remove_files(folder: str, record: WorkspaceRecord | None) -> bool:
    """Remove the files of a run, but for its record; return whether there were any."""
    if record is not None and not record.is_cleaned:
        record.is_cleaned = True
        record.save(folder)
    names = [name for name in os.listdir(folder) if name != RECORD and name not in LOCK_FILES]
    for name in names:
        path = os.path.join(folder, name)
        if os.path.isdir(path) and not os.path.islink(path):
            _remove_tree(path)
        else:
            os.unlink(path)
    # Last, while they are held: a relay that waits for them looks again whose file it is.
    for name in LOCK_FILES:
        with suppress(FileNotFoundError):
            os.unlink(os.path.join(folder, name))
    return bool(names)


def _remove_tree(path: str) -> None:
    """Remove a directory if it is there.

    Raises:
        OSError: Something in it cannot be removed, such as a file in a directory of another user.
    """
    if not os.path.lexists(path):
        return
    # Some tools write-protect what they unpack; a directory is entered after its name was listed.
    for parent, names, _ in os.walk(path):
        for name in names:
            directory = os.path.join(parent, name)
            mode = os.lstat(directory).st_mode
            if stat.S_ISDIR(mode) and mode & stat.S_IRWXU != stat.S_IRWXU:
                with suppress(OSError):
                    os.chmod(directory, stat.S_IRWXU)
    shutil.rmtree(path)
