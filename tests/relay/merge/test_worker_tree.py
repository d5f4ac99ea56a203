"""The tree of a worker: what it hands to the queue, what it keeps, how it begins."""

from pathlib import Path

import pytest
from helpers.merging import BRANCH, Project, git

from ultramon.errors import WorkspaceError
from ultramon.relay.merge.branch import MergedItem, RunBranch
from ultramon.relay.merge.worker_tree import MAX_STEP_COMMITS, WorkerTree

REFS = "refs/ultramon/job"


@pytest.fixture
def project(tmp_path):
    made = Project(tmp_path)
    made.create({"a.txt": "a\n", "b.txt": "b\n"})
    return made


@pytest.fixture
def place(project, tmp_path):
    """Where the worker works."""
    path = tmp_path / "worker"
    git(project.top, "worktree", "add", "-q", "--detach", str(path), "main")
    return path


@pytest.fixture
def tree(project, place, tmp_path):
    branch = RunBranch(str(project.top), BRANCH, project.base)
    made = WorkerTree(str(place), str(tmp_path), 1, REFS, branch)
    made.begin(None)
    return made


def item(number, agent_id="job.1"):
    return MergedItem(number, agent_id)


def changed(project, change):
    """The files that a change touches."""
    said = git(project.top, "diff", "--name-only", change.before, change.commit)
    return said.splitlines()


def begin_elsewhere(project, folder):
    """Begin a context that continues the first one, in the tree of another worker."""
    place = folder / "other"
    git(project.top, "worktree", "add", "-q", "--detach", str(place), "main")
    branch = RunBranch(str(project.top), BRANCH, project.base)
    tree = WorkerTree(str(place), str(folder), 2, REFS, branch)
    assert tree.begin(1) is None
    return place, tree


def test_an_item_is_what_has_changed_since_the_one_before(project, place, tree):
    (place / "one.txt").write_text("1\n")
    first = tree.take(item(1), "one")
    (place / "two.txt").write_text("2\n")
    (place / "b.txt").unlink()
    second = tree.take(item(2), "two")
    assert (changed(project, first), changed(project, second)) == (
        ["one.txt"],
        ["b.txt", "two.txt"],
    )
    assert (first.message, first.author_of) == ("one", first.commit)
    queue = project.queue()
    assert (queue.merge(second), queue.merge(first)) == (True, True)
    assert set(project.files(project.tip)) == {"a.txt", "one.txt", "two.txt"}


def test_commits_of_the_agent_are_its_items_in_its_words(project, place, tree):
    (place / "one.txt").write_text("1\n")
    git(place, "add", "one.txt")
    git(place, "commit", "-q", "-m", "Add one")
    (place / "half.txt").write_text("begun\n")
    first = tree.take(item(1), "one")
    assert changed(project, first) == ["one.txt"]
    assert project.queue().merge(first) is True
    assert git(project.top, "log", "-1", "--format=%an: %s", BRANCH) == "Ada: Add one"
    # Without a commit of its own the next item is all that is there.
    second = tree.take(item(2), "half")
    assert changed(project, second) == ["half.txt"]


def test_commits_that_name_their_items_are_told_apart(project, place, tree):
    """Both were there when the first claim was seen; a later commit may belong to the first one."""
    for name, message in (("1", "Do 1."), ("11", "Do 11"), ("2", "Do 2"), ("late", "11, mended")):
        (place / f"{name}.txt").write_text(f"{name}\n")
        git(place, "add", f"{name}.txt")
        git(place, "commit", "-q", "-m", message)
    taken = [tree.take(item(number), name) for number, name in enumerate(("1", "11", "2"), 1)]
    assert [changed(project, change) for change in taken] == [
        ["1.txt"], ["11.txt", "2.txt", "late.txt"], []
    ]  # fmt: skip
    assert [change.message for change in taken] == ["Do 1.", "11, mended", "2"]
    assert taken[2].together_with == item(2)


def test_a_false_claim_takes_no_work_of_later_items_with_it(project, place, tree):
    """Their commits were there when the false claim was seen."""

    def commit(name, message):
        (place / f"{name}.txt").write_text(f"{name}\n")
        git(place, "add", f"{name}.txt")
        git(place, "commit", "-q", "-m", message)

    commit("early", "Something before")
    for name in ("two", "three"):
        commit(name, f"Do {name}")
    first = tree.take(item(1), "one", ["two", "three"])
    assert changed(project, first) == ["early.txt"]
    false = tree.take(item(4), "four", ["two", "three"])
    assert changed(project, false) == []
    second, third = tree.take(item(2), "two", ["three"]), tree.take(item(3), "three")
    assert (changed(project, second), changed(project, third)) == (["two.txt"], ["three.txt"])
    queue = project.queue()
    assert (queue.merge(second), queue.merge(third)) == (True, True)
    # It is done after all; by a commit that names what was merged long ago.
    commit("four", "Like two")
    again = tree.take(item(4), "four")
    assert changed(project, again) == ["four.txt"]
    assert queue.merge(again) is True


def test_an_item_that_is_claimed_again_has_what_was_mended_since(project, place, tree):
    (place / "one.txt").write_text("BAD\n")
    queue = project.queue()
    assert not queue.merge(tree.take(item(1), "one"))
    (place / "two.txt").write_text("2\n")
    assert queue.merge(tree.take(item(2), "two")) is True
    (place / "one.txt").write_text("1\n")
    again = tree.take(item(1), "one")
    assert changed(project, again) == ["one.txt"]
    assert queue.merge(again) is True
    assert set(project.files(project.tip)) == {"a.txt", "b.txt", "one.txt", "two.txt"}
    # Killed between the merge and the note of it, it is claimed once more.
    tip = project.tip
    assert queue.merge(tree.take(item(1), "one")) is True
    assert project.tip == tip


def test_an_item_whose_work_came_with_another_one_shares_its_fate(project, place, tree):
    """Both were done when the first claim was seen."""
    (place / "one.txt").write_text("BAD\n")
    (place / "two.txt").write_text("2\n")
    first, second = tree.take(item(1), "one"), tree.take(item(2), "two")
    assert (changed(project, second), second.together_with) == ([], item(1))
    queue = project.queue()
    assert not queue.merge(first)
    assert queue.merge(second).reason == "its work came with item 1, which was not merged"


def test_a_fresh_context_begins_at_the_branch_and_ignored_files_stay(project, place, tree):
    (place / ".gitignore").write_text("built/\n")
    (place / "one.txt").write_text("1\n")
    assert project.queue().merge(tree.take(item(1), "one")) is True
    (place / "built").mkdir()
    (place / "built" / "x").touch()
    (place / "half.txt").write_text("half\n")
    tree.leave(1)
    assert tree.begin(None) is None
    assert sorted(path.name for path in place.iterdir() if path.name != ".git") == [
        ".gitignore", "a.txt", "b.txt", "built", "one.txt"
    ]  # fmt: skip
    assert git(place, "status", "--porcelain") == ""
    assert git(place, "rev-parse", "HEAD") == project.tip


def test_what_was_left_half_done_is_there_for_who_continues(project, place, tree, tmp_path):
    """In any worker's tree, on top of what was merged meanwhile."""
    (place / "half.txt").write_text("half\n")
    (place / "b.txt").unlink()
    tree.leave(1)
    assert project.queue().merge(project.change(9, {"9.txt": "9\n"})) is True
    other_place, other = begin_elsewhere(project, tmp_path)
    names = {path.name for path in other_place.iterdir() if path.name != ".git"}
    assert names == {"a.txt", "half.txt", "9.txt"}
    assert git(other_place, "rev-parse", "HEAD") == project.tip
    assert changed(project, other.take(item(1, "job.2"), "one")) == ["b.txt", "half.txt"]


def commit(place, name, text, message):
    (place / name).write_text(text)
    git(place, "add", name)
    git(place, "commit", "-q", "-m", message)
    return git(place, "rev-parse", "HEAD")


def test_commits_inside_an_item_are_there_for_who_continues(project, place, tree):
    """As they are, where nothing was merged meanwhile; what was not committed is not."""
    commit(place, "one.txt", "1\n", "Add one")
    last = commit(place, "two.txt", "2\n", "Add two\n\nIts body.")
    (place / "half.txt").write_text("half\n")
    tree.begin(None, before=1)
    assert git(place, "rev-parse", "HEAD") == project.tip
    tree.begin(1, before=1)
    assert git(place, "rev-parse", "HEAD") == last
    assert git(place, "status", "--porcelain") == "?? half.txt"
    # The context that continues is killed, too.
    commit(place, "half.txt", "whole\n", "Finish it")
    tree.leave(2)
    tree.begin(2, before=2)
    subjects = git(place, "log", "--format=%s", f"{project.tip}..").splitlines()
    assert subjects == ["Finish it", "Add two", "Add one"]
    change = tree.take(item(1, "job.3"), "an item")
    assert changed(project, change) == ["half.txt", "one.txt", "two.txt"]
    assert project.queue().merge(change) is True


def test_commits_inside_an_item_are_made_anew_on_what_was_merged_meanwhile(
    project, place, tree, tmp_path
):
    """By their authors, in any worker's tree; those of items that were claimed are not."""
    commit(place, "claimed.txt", "claimed\n", "Do claimed")
    tree.take(item(1), "claimed")
    commit(place, "one.txt", "1\n", "Add one")
    git(place, "commit", "-q", "--allow-empty", "-m", "Nothing")
    git(place, "rm", "-q", "b.txt")
    git(place, "commit", "-q", "-m", "Remove b\n\nIt was odd.")
    (place / "half.txt").write_text("half\n")
    tree.leave(1)
    assert project.queue().merge(project.change(9, {"9.txt": "9\n"})) is True
    other_place, other = begin_elsewhere(project, tmp_path)
    said = git(other_place, "log", "--format=%an: %B", f"{project.tip}..")
    assert " ".join(said.split()) == "Ada: Remove b It was odd. Ada: Add one"
    assert git(other_place, "status", "--porcelain") == "?? half.txt"
    names = {path.name for path in other_place.iterdir() if path.name != ".git"}
    assert names == {"a.txt", "one.txt", "half.txt", "9.txt"}
    assert changed(project, other.take(item(2, "job.2"), "an item")) == ["b.txt", "one.txt"]


def test_of_commits_that_do_not_fit_by_themselves_the_whole_is_there(project, place, tree):
    commit(place, "one.txt", "1\n", "Add one")
    commit(place, "a.txt", "mine\n", "Change a")
    commit(place, "two.txt", "2\n", "Add two")
    commit(place, "a.txt", "a\n", "Change a back")
    tree.leave(1)
    assert project.queue().merge(project.change(9, {"a.txt": "nine\n"})) is True
    assert tree.begin(1) is None
    assert git(place, "log", "--format=%s", f"{project.tip}..") == "Add one"
    assert git(place, "status", "--porcelain") == "?? two.txt"
    assert (place / "a.txt").read_text() == "nine\n"


def test_commits_that_git_has_forgotten_are_there_uncommitted(project, place, tree):
    commit(place, "one.txt", "1\n", "Add one")
    tree.leave(1)
    tree.begin(None)
    git(place, "reflog", "expire", "--expire=now", "--all")
    git(project.top, "gc", "-q", "--prune=now")
    assert tree.begin(1) is None
    assert git(place, "rev-parse", "HEAD") == project.tip
    assert git(place, "status", "--porcelain") == "?? one.txt"


def test_of_too_many_commits_none_is_made_anew(project, place, tree):
    for number in range(MAX_STEP_COMMITS + 1):
        commit(place, "one.txt", f"{number}\n", f"Step {number}")
    tree.leave(1)
    assert tree.begin(1) is None
    assert git(place, "status", "--porcelain") == "?? one.txt"


def test_what_does_not_fit_any_more_is_kept_and_said(project, place, tree):
    (place / "a.txt").write_text("half\n")
    tree.leave(1)
    assert project.queue().merge(project.change(9, {"a.txt": "nine\n"})) is True
    note = tree.begin(1)
    left = git(project.top, "rev-parse", f"{REFS}/left-1")
    assert f"git show {left[:12]}" in note
    assert "a.txt:1-5" in note
    assert (place / "a.txt").read_text() == "nine\n"
    assert git(project.top, "show", f"{left}:a.txt") == "half"


def test_a_context_that_leaves_nothing_keeps_nothing(project, place, tree):
    (place / "one.txt").write_text("1\n")
    tree.take(item(1), "one")
    tree.leave(1)
    assert git(project.top, "for-each-ref", f"{REFS}/left-1") == ""


def test_a_beginning_that_was_cut_off_is_made_again(project, place, tree):
    """Its git was killed while it wrote the files."""
    (place / "half.txt").write_text("half\n")
    tree.leave(1)
    tree.begin(1)
    (place / "half.txt").unlink()
    (project.top / ".git" / "worktrees" / "worker" / "index.lock").touch()
    tree.begin(1)
    assert (place / "half.txt").read_text() == "half\n"


def test_an_item_that_was_taken_is_kept_when_another_context_has_begun(project, place, tree):
    (place / "one.txt").write_text("1\n")
    taken = tree.take(item(1), "one")
    tree.leave(1)
    tree.begin(None)
    (place / "other.txt").write_text("of the next one\n")
    kept = tree.kept(item(1), "one")
    assert (changed(project, kept), kept.commit) == (["one.txt"], taken.commit)
    assert project.queue().merge(kept) is True
    with pytest.raises(WorkspaceError, match="was not kept"):
        tree.kept(item(1, "job.2"), "one")
    with pytest.raises(WorkspaceError, match="was not kept"):
        tree.kept(item(2), "two")


def test_a_beginning_that_was_cut_off_is_not_taken_for_another_one(project, place, tree):
    """It was made for the work of one context, and the next that begins here continues another."""
    for number in (1, 2):
        (place / f"half-{number}.txt").write_text("half\n")
        tree.leave(number)
        (place / f"half-{number}.txt").unlink()
    (project.top / ".git" / "worktrees" / "worker" / "HEAD.lock").mkdir()
    with pytest.raises(WorkspaceError):
        tree.begin(1)
    (project.top / ".git" / "worktrees" / "worker" / "HEAD.lock").rmdir()
    tree.begin(2)
    assert {path.name for path in place.glob("half-*")} == {"half-2.txt"}


def test_a_context_begins_in_no_rebase_of_the_one_before(project, place, tree):
    """`git rebase --abort` would bring back the commits of another context."""
    for text in ("one\n", "two\n"):
        git(place, "checkout", "-q", "--detach", "main")
        (place / "a.txt").write_text(text)
        git(place, "commit", "-qam", text)
        git(place, "tag", f"at-{text.strip()}")
    assert "CONFLICT" in git(place, "rebase", "at-one", check=False)
    tree.leave(1)
    tree.begin(None)
    assert "rebase" not in git(place, "status")
    assert git(place, "status", "--porcelain") == ""
    assert git(place, "rev-parse", "HEAD") == project.tip


def test_a_repository_that_a_context_has_left_in_its_tree_is_not_deleted(project, place, tree):
    """What was committed in it is nowhere else."""
    inner = place / "inner"
    inner.mkdir()
    git(inner, "init", "-q")
    git(inner, "commit", "-q", "--allow-empty", "-m", "of the agent")
    tree.leave(1)
    tree.begin(None)
    assert git(inner, "log", "--format=%s") == "of the agent"


@pytest.mark.parametrize(
    "config", ["core.autocrlf=true", "core.autocrlf=input", "core.safecrlf=true"]
)
def test_line_ends_that_git_converts_are_no_change(project, place, tree, config):
    git(project.top, "config", *config.split("="))
    (place / "one.txt").write_bytes(b"1\n")
    (place / "two.txt").write_bytes(b"2\r\n")
    first = tree.take(item(1), "one")
    assert changed(project, first) == ["one.txt", "two.txt"]
    assert project.queue().merge(first) is True
    tree.leave(1)
    tree.begin(None)
    assert git(place, "status", "--porcelain") == ""
    (place / "3.txt").write_bytes(b"3\r\n")
    assert changed(project, tree.take(item(2), "two")) == ["3.txt"]


def test_what_a_context_left_is_kept_at_last_when_another_one_begins(project, place, tree):
    """The git that should have kept it was killed, or its relay was."""
    (place / "half.txt").write_text("half\n")
    tree.begin(None, before=1)
    assert not (place / "half.txt").exists()
    assert git(project.top, "show", f"{REFS}/left-1:half.txt") == "half"
    tree.begin(1, before=1)
    assert (place / "half.txt").exists()
    # What is kept is not replaced by what was made of it.
    (place / "half.txt").unlink()
    tree.begin(None, before=1)
    assert git(project.top, "show", f"{REFS}/left-1:half.txt") == "half"


def test_a_file_that_git_does_not_take_is_said(project, place, tree, tmp_path):
    """Here one outside of what the user's sparse checkout has."""
    git(place, "sparse-checkout", "set", "--no-cone", "/*.txt")
    said = []
    branch = RunBranch(str(project.top), BRANCH, project.base)
    other = WorkerTree(str(place), str(tmp_path), 1, REFS, branch, tell=said.append)
    (place / "odd").mkdir()
    (place / "odd" / "one.c").write_text("1\n")
    (place / "one.txt").write_text("1\n")
    assert changed(project, other.take(item(1), "one")) == ["one.txt"]
    other.leave(1)
    assert len(said) == 1
    assert "not every file could be kept" in said[0]


def test_what_a_commit_that_was_killed_has_left_goes_when_its_context_has_ended(place, tree):
    """Git names it after its process: it blocks nobody, and nobody else would delete it."""
    path = git(place, "rev-parse", "--path-format=absolute", "--git-path", "next-index-6363.lock")
    Path(path).touch()
    tree.leave(1)
    assert not Path(path).exists()
