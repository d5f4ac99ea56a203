"""What the folder of a run remembers of its workspace, and of the setup of its worktree."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field
from typing import Any

from ultramon.relay.run_folder import read_run_file, write_run_file

RECORD = "workspace.json"


@dataclass(slots=True)
class SetupRecord:
    """The setup of a worktree.

    Attributes:
        command: What was run.
        is_done: Whether it has succeeded in the present worktree.
        seconds: How long it took then.
        bare_bytes: What the worktree took on disk before the first setup; None = not known.
        made_bytes: What setup made in a worktree of this run, the present one or one before; None =
            none has succeeded.
        made_files: Paths in the tree that setup made and git does not ignore, folders as a whole:
            they are no work of an agent.
    """

    command: str
    is_done: bool = False
    seconds: float | None = None
    bare_bytes: int | None = None
    made_bytes: int | None = None
    made_files: list[str] = field(default_factory=list)


@dataclass(slots=True)
class WorkspaceRecord:
    """The workspace of a run.

    Attributes:
        in_place: Whether it is the user's own tree.
        common: The directory that all worktrees of the repository share; None outside of git.
        prefix: The user's directory below the top of the tree; outside of git the directory.
        base: The commit at which the run began; None before the first one.
        branch: The branch of the run; in place the user's own, None with a detached head.
        ready: Whether it was made.
        origin: The branch that the user had at the start; None with a detached head, or in records
            from before it was kept.
        setup: Of the worktree; None = none was begun.
        is_detached: Whether the worktree is at no branch: what is done in it is merged into the
            branch of the run.
        is_cleaned: Whether `relay --clean` has removed the worktree: the run cannot continue.
    """

    in_place: bool
    common: str | None
    prefix: str
    base: str | None
    branch: str | None
    ready: bool = False
    origin: str | None = None
    setup: SetupRecord | None = None
    is_cleaned: bool = False
    is_detached: bool = False

    @classmethod
    def load(cls, folder: str) -> WorkspaceRecord | None:
        """Read the record of a run; None where there is none.

        Raises:
            StateCorruptError: It is not what a relay wrote.
        """
        try:
            return read_run_file(os.path.join(folder, RECORD), cls._decode)
        except FileNotFoundError:
            return None

    def save(self, folder: str) -> None:
        """Write the record into the folder of the run.

        Raises:
            StateError: The system refused.
        """
        write_run_file(os.path.join(folder, RECORD), asdict(self))

    @classmethod
    def _decode(cls, value: dict[str, Any]) -> WorkspaceRecord:
        if value.get("setup") is not None:
            value["setup"] = SetupRecord(**value["setup"])
        return cls(**value)
