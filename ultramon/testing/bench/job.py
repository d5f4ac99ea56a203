"""The job of one seed: its repository, its items, and what is done of them in a tree."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import sys
from dataclasses import asdict, dataclass

from ultramon.testing.bench.faults import DEFAULT_RATIO, FAULTS

REPOSITORY, ITEMS, ANSWER, SCRATCH = "repository", "items", "answer", "scratch"
AGENT, CHECK = "agent", "check"
_HISTORY = "history.jsonl"
_SETTINGS = "job.json"
_WORD = re.compile(r"[\w-]+")
DEFAULT_REQUEST_SECONDS = 0.05
_GIT_SECONDS = 60.0
_SHARING_RATIO = 0.3
"""Of the items: 12 of 40."""


@dataclass(frozen=True, slots=True)
class BenchJob:
    """What a command of the bench is to have done.

    Each item is a file ``out/ITEM`` with a code that only its agent knows; an item that shares a
    file with another one has a line there as well.

    Attributes:
        folder: Where all of it is; see `create`.
        seed: Decides all faults.
        count: Number of items, 1 and more.
        faults: Which of `FAULTS` may happen.
        fault_ratio: See `draw_attempt`.
        request_seconds: How long a request to the model takes; 0 = no time.
    """

    folder: str
    seed: int
    count: int = 40
    faults: tuple[str, ...] = tuple(FAULTS)
    fault_ratio: float = DEFAULT_RATIO
    request_seconds: float = DEFAULT_REQUEST_SECONDS

    @classmethod
    def load(cls, folder: str) -> BenchJob:
        """Return the job that was made in a folder."""
        with open(os.path.join(folder, _SETTINGS), encoding="utf-8") as file:
            given = json.load(file)
        return cls(**given | {"folder": folder, "faults": tuple(given["faults"])})

    @property
    def items(self) -> list[str]:
        """The items, in their order."""
        return [f"item-{number:03}" for number in range(1, self.count + 1)]

    @property
    def history_path(self) -> str:
        """Where agents note what they do: the orchestrator does not know it."""
        return self.path(_HISTORY)

    def path(self, name: str) -> str:
        """Return the path of one of its files."""
        return os.path.join(self.folder, name)

    def create(self) -> None:
        """Make the repository with one commit, the list of items, and the two programs.

        Raises:
            OSError: There is no git, or something cannot be written.
        """
        for name in (REPOSITORY, SCRATCH):
            os.makedirs(self.path(name))
        with open(self.path(_SETTINGS), "w", encoding="utf-8") as file:
            json.dump(asdict(self), file)
        with open(self.path(ITEMS), "w", encoding="utf-8") as file:
            file.writelines(f"{item}\n" for item in self.items)
        for name in (AGENT, CHECK):
            words = (sys.executable, "-P", "-m", f"{__package__}.{name}", self.folder)
            with open(self.path(name), "w", encoding="utf-8") as file:
                file.write(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
            os.chmod(self.path(name), 0o755)
        os.mkdir(self.path(f"{REPOSITORY}/shared"))
        for name in filter(None, {self.shared_file(item) for item in self.items}):
            with open(self.path(f"{REPOSITORY}/{name}"), "w", encoding="utf-8") as file:
                file.write(f"# {name}\n")
        with open(self.path(f"{REPOSITORY}/README"), "w", encoding="utf-8") as file:
            file.write("Each item has a file in out/; some have a line in shared/ too.\n")
        self._commit()

    def _commit(self) -> None:
        from ultramon.system.git import run_git

        # Nothing of the user's git: a hook or a signature would be measured as well.
        settings = {
            "user.name": "bench",
            "user.email": "bench@example.org",
            "commit.gpgsign": "false",
            "core.hooksPath": os.devnull,
        }
        steps = [["init", "-q", "-b", "main"]]
        steps += [["config", name, value] for name, value in settings.items()]
        steps += [["add", "-A"], ["commit", "-q", "-m", "The state before the job"]]
        for step in steps:
            done = run_git(self.path(REPOSITORY), *step, seconds=_GIT_SECONDS)
            if done is None or done.returncode:
                why = "no git, or it took too long" if done is None else done.stderr.decode()
                raise OSError(f"git {step[0]}: {why.strip()}")

    def named_in(self, text: str) -> list[str]:
        """Return the items whose names stand in a text, each once, in the order of the text."""
        known = set(self.items)
        return [word for word in dict.fromkeys(_WORD.findall(text)) if word in known]

    def shared_file(self, item: str) -> str | None:
        """Return the file that an item shares with one other; None = it shares none.

        The two stand far apart in the list, so that one context seldom does both.
        """
        number, half = int(item.partition("-")[2]) - 1, self.count // 2
        pair = number - half if number >= half else number
        is_one = pair < int(self.count * _SHARING_RATIO) // 2
        return f"shared/file-{pair + 1:03}" if is_one else None

    def text_of(self, item: str) -> str:
        """Return what the file of an item must say."""
        code = hashlib.sha256(f"{self.seed} {item}".encode()).hexdigest()[:16]
        return f"{item}\n{code}\n"

    def line_of(self, item: str) -> str:
        """Return what an item must say in the file that it shares."""
        return " ".join(self.text_of(item).split())

    def is_done(self, tree: str, item: str) -> bool:
        """Return whether an item is really done in a tree."""
        if _read(os.path.join(tree, "out", item)) != self.text_of(item):
            return False
        shared = self.shared_file(item)
        return shared is None or self.line_of(item) in lines_of(os.path.join(tree, shared))

    def damaged(self, tree: str) -> list[str]:
        """Return the items that a tree has something of, and not all."""
        begun = [item for item in self.items if os.path.lexists(os.path.join(tree, "out", item))]
        return [item for item in begun if not self.is_done(tree, item)]


def lines_of(path: str) -> list[str]:
    """Return the lines of a text file; none where it cannot be read."""
    return (_read(path) or "").splitlines()


def _read(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return None
