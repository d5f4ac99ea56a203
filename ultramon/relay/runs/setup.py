"""Prepares the worktree of a run by a command of the user: once, before its first context."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ultramon.errors import SetupError, StateError
from ultramon.relay.disk_space import taken_bytes
from ultramon.relay.runs.context_process import end_left_over
from ultramon.relay.runs.result import duration
from ultramon.relay.runs.start import running_contexts
from ultramon.relay.runs.verification import SHELL, UserCommand, last_lines
from ultramon.relay.workspace import TREE_SECONDS
from ultramon.relay.workspace_record import SetupRecord, WorkspaceRecord
from ultramon.system.git_trees import BoundedGit
from ultramon.system.wording import byte_size, field

if TYPE_CHECKING:
    from ultramon.relay.runs.run import Run
    from ultramon.relay.workspace import RelayWorkspace

OUTPUT = "setup.out"
MAX_LINES = 10


class WorktreeSetup:
    """The setup of the worktree of a run; the record of its workspace knows whether it is done.

    A shell reads the command, as no item is put into it. One that was killed before its success was
    stored runs again, and so does one that has changed.

    Args:
        run: The run, whose lock is held.
        place: Whose worktree.
    """

    def __init__(self, run: Run, place: RelayWorkspace) -> None:
        self._run = run
        self._place = place
        self._command = (run.choices.setup or "").strip()
        record = WorkspaceRecord.load(place.folder)
        assert record is not None  # it was saved when the workspace was opened
        self._record = record

    @property
    def is_due(self) -> bool:
        """Whether it has to run."""
        known = self._record.setup
        is_done = known is not None and known.is_done and known.command == self._command
        return bool(self._command) and not is_done

    def check(self) -> None:
        """Check that it may run where it has to.

        Raises:
            StateError: A context of an earlier relay still works in the worktree.
        """
        for number, pid in running_contexts(self._run) if self.is_due else ():
            raise StateError(
                f"run {self._run.name}",
                f"its context {number} still runs (process {pid}), and setup would change files "
                "under it",
                f"continue with the setup of before, or end it: kill -- -{pid}",
            )

    def run(self) -> None:
        """Run it where it has to.

        Raises:
            SetupError: It failed.
            StateError: The system refused.
        """
        if not self.is_due:
            return
        place, known = self._place, self._record.setup
        # What a killed relay has left of it would write beside it.
        end_left_over(self._marks)
        setup = SetupRecord(self._command)
        if known is not None:
            setup.bare_bytes, setup.made_bytes = known.bare_bytes, known.made_bytes
        if setup.bare_bytes is None:
            setup.bare_bytes = taken_bytes(place.root)
        self._record.setup = setup
        self._record.save(place.folder)
        output_path = os.path.join(place.folder, OUTPUT)
        self._run.tell(f"setup: `{field(self._command)}` runs, its output goes to {output_path}")
        environ = {**os.environ, "PWD": place.path, **self._marks}
        command = UserCommand(place.path, self._run.choices.setup_seconds, environ)
        try:
            problem, seconds = command.run((SHELL, "-c", self._command), output_path)
        finally:
            # An interrupt may come while it is started, and its process is not known then.
            end_left_over(self._marks)
        if problem:
            for line in last_lines(output_path, MAX_LINES):
                self._run.tell(f"  | {line}")
            raise SetupError(self._run.name, self._command, problem, output_path)
        setup.is_done, setup.seconds = True, round(seconds, 3)
        setup.made_bytes = max(0, taken_bytes(place.root) - setup.bare_bytes)
        setup.made_files = _untracked(place)
        self._record.save(place.folder)
        self._run.tell(f"setup: ok, {duration(seconds)}, {byte_size(setup.made_bytes)}")
        place.forget_submodules()

    @property
    def _marks(self) -> dict[str, str]:
        """The variables by which its processes are found.

        Contexts have them too, and background processes of theirs: no context runs when it is due.
        """
        folder = self._run.workspace.folder
        return {
            "ULTRAMON_RELAY": self._run.name,
            "ULTRAMON_STATE_DIR": os.path.dirname(os.path.dirname(folder)),
            **self._place.variables,
        }


def made_by_setup(place: RelayWorkspace) -> tuple[str, ...]:
    """Return the paths that the setup of a worktree has made and git does not ignore."""
    record = WorkspaceRecord.load(place.folder)
    return () if record is None or record.setup is None else tuple(record.setup.made_files)


def _untracked(place: RelayWorkspace) -> list[str]:
    if not place.is_checkpointed:
        return []
    listed = ("ls-files", "--others", "--exclude-standard", "--directory", "-z")
    names = BoundedGit(place.root, TREE_SECONDS)(*listed).split("\0")
    return [name for name in names if name]
