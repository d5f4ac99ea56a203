"""Git in the trees of a relay, whatever becomes of it."""

import os
import shutil
import subprocess

import pytest

from ultramon.errors import WorkspaceError
from ultramon.system.git_trees import BoundedGit


@pytest.mark.parametrize(("kills", "answer"), [(0, "true"), (2, "true"), (3, None)])
def test_a_git_that_a_signal_ends_is_run_again(tmp_path, monkeypatch, kills, answer):
    """Twice at most: one that is ended each time is an error."""
    subprocess.run(["git", "init", "-q", str(tmp_path / "shop")], check=True)
    programs = tmp_path / "programs"
    programs.mkdir()
    git, left = programs / "git", tmp_path / "left"
    left.write_text("x" * kills)
    git.write_text(
        f"#!/bin/sh\nif [ -s {left} ]; then truncate -s -1 {left}; kill -9 $$; fi\n"
        f'exec {shutil.which("git")} "$@"\n'
    )
    git.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    run = BoundedGit(str(tmp_path / "shop"), 30)
    if answer is None:
        with pytest.raises(WorkspaceError, match="git rev-parse failed"):
            run("rev-parse", "--is-inside-work-tree")
        assert left.read_text() == ""
    else:
        assert run("rev-parse", "--is-inside-work-tree") == answer
