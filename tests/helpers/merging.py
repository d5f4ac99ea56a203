"""A repository with a branch of a run, and work of items that is merged into it."""

import os
import subprocess
from pathlib import Path

from ultramon.fleet.supervise.verification import Rejection
from ultramon.relay.merge.branch import MergedItem, RunBranch
from ultramon.relay.merge.candidate import Change
from ultramon.relay.merge.queue import Checks, MergeQueue

BRANCH = "refs/heads/ultramon/job"
CANDIDATE = "refs/ultramon/job/candidate"


def git(cwd, *arguments, check=True):
    """Run git as somebody with a name."""
    done = subprocess.run(
        ["git", "-c", "user.name=Ada", "-c", "user.email=ada@example.org", *arguments],
        cwd=cwd, check=check, capture_output=True,
    )  # fmt: skip
    return os.fsdecode(done.stdout).strip("\n")


def hide_git_settings(place: Path, monkeypatch) -> None:
    """Have git be that of nobody in particular, in no repository above a folder."""
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_SYSTEM", os.devnull)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(place))


class Project:
    """A repository, its branch of a run, and a tree of its own for the queue."""

    def __init__(self, folder: Path) -> None:
        self.top = folder / "shop"
        self.checked = folder / "checked"
        self.lines: list[str] = []

    def create(self, files: dict[str, str]) -> None:
        """Make the first commit, the branch and the tree."""
        self.top.mkdir()
        git(self.top, "init", "-q", "-b", "main")
        self.write(files)
        git(self.top, "branch", "-q", BRANCH.removeprefix("refs/heads/"))
        git(self.top, "worktree", "add", "-q", "--detach", str(self.checked), "main")

    def write(self, files: dict[str, str | None]) -> str:
        """Commit files in the user's tree; return the commit."""
        for name, text in files.items():
            path = self.top / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if text is None:
                path.unlink()
            else:
                path.write_text(text)
        git(self.top, "add", "-A", ".")
        git(self.top, "commit", "-q", "--allow-empty", "-m", f"Write {', '.join(files)}")
        return git(self.top, "rev-parse", "HEAD")

    @property
    def base(self) -> str:
        return git(self.top, "rev-parse", "main")

    @property
    def tip(self) -> str:
        return git(self.top, "rev-parse", BRANCH)

    def change(self, number: int, files: dict[str, str | None], **more: str) -> Change:
        """Do an item, from the first commit on, beside all others."""
        git(self.top, "checkout", "-q", "--detach", "main")
        commit = self.write(files)
        git(self.top, "checkout", "-q", "main")
        name = more.get("name", f"item {number}")
        item = MergedItem(number, more.get("agent_id", "job.1"))
        before = git(self.top, "rev-parse", "main^{tree}")
        message = git(self.top, "log", "-1", "--format=%B", commit)
        return Change(item, name, before, commit, message, commit)

    def queue(
        self, *, batch: int = 4, folder: str | None = None, lock_seconds: float = 10, **checks
    ) -> MergeQueue:
        """Return a queue; its tree is green while no file has a line BAD."""
        branch = RunBranch(str(self.top), BRANCH, self.base, folder, lock_seconds=lock_seconds)
        given = {"item": None, "tree": self.check_tree, **checks}
        return MergeQueue(
            str(self.checked), branch, CANDIDATE, Checks(**given), batch=batch,
            tell=self.lines.append,
        )  # fmt: skip

    def check_tree(self) -> bool | Rejection:
        """Whether no two files say the same, and none says BAD."""
        texts = [path.read_text() for path in sorted(self.checked.glob("*.txt"))]
        if "BAD\n" in texts:
            return Rejection("BAD is there")
        return len(set(texts)) == len(texts) or Rejection("two are the same")

    def files(self, commit: str) -> dict[str, str]:
        """Return the text files of a commit."""
        names = git(self.top, "ls-tree", "-r", "--name-only", commit).splitlines()
        return {name: git(self.top, "show", f"{commit}:{name}") for name in names}

    def values(self) -> list[str]:
        """Return every commit that the branch has named, the first one first."""
        return git(self.top, "reflog", "--format=%H", BRANCH).splitlines()[::-1]
