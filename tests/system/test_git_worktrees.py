"""A path in a git worktree is found in the tree that the worktree was made from."""

import subprocess

import pytest

from ultramon.system.git_worktrees import path_in_main_tree


@pytest.fixture
def trees(tmp_path):
    main, worktree = tmp_path / "main", tmp_path / "worktree"
    who = ["-c", "user.name=A", "-c", "user.email=a@example.org"]
    for arguments in (
        ["init", "-q"],
        [*who, "commit", "-q", "--allow-empty", "-m", "begun"],
        ["worktree", "add", "-q", str(worktree)],
    ):
        main.mkdir(exist_ok=True)
        subprocess.run(["git", "-C", str(main), *arguments], check=True)
    return main, worktree


def test_a_path_below_a_worktree_is_one_below_the_main_tree(trees):
    """With a separator at its end or without, and where it does not exist."""
    main, worktree = trees
    assert path_in_main_tree(str(worktree)) == str(main)
    assert path_in_main_tree(f"{worktree}/") == str(main)
    assert path_in_main_tree(f"{worktree}/gone/sub") == str(main / "gone" / "sub")
    assert path_in_main_tree(f"{worktree}/gone/sub/") == str(main / "gone" / "sub")
    assert path_in_main_tree(str(main)) is None
    assert path_in_main_tree("/") is None


@pytest.mark.parametrize("path", ["", "sub", "C:\\other\\project", ".", "\0", "\ud800"])
def test_a_path_that_is_not_absolute_here_is_in_no_worktree(trees, monkeypatch, path):
    """The directory of the process does not answer for a path of another system."""
    monkeypatch.chdir(trees[1])
    assert path_in_main_tree(path) is None


@pytest.mark.parametrize("name", ["odd \0 name", "half \ud800 character", "x" * 300])
def test_a_name_that_no_file_can_have_is_no_error(trees, name):
    """Transcripts hold any text as the directory of a session."""
    main, worktree = trees
    assert path_in_main_tree(f"/{name}") is None
    assert path_in_main_tree(f"{worktree}/{name}") == f"{main}/{name}"
