"""The merge queue on real repositories: what it merges, what it refuses, and that it lies never."""

import os
import stat
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from helpers.merging import BRANCH, CANDIDATE, Project, git
from helpers.waiting import until
from hypothesis import given, settings
from hypothesis import strategies as st

from ultramon.errors import WorkspaceError
from ultramon.fleet.supervise.verification import Rejection
from ultramon.relay.merge.trees import changed_files, merge_trees

LINES = "".join(f"line {number}\n" for number in range(40))


@pytest.fixture
def project(tmp_path):
    made = Project(tmp_path)
    made.create({"a.txt": LINES, "b.txt": "b\n", "tests/t.py": "t\n"})
    return made


def together(project, changes, *, batch=4):
    """Merge an item, and others that all wait, in their order, when it is done."""
    gate = threading.Event()

    def check():
        gate.wait()
        return project.check_tree()

    queue = project.queue(batch=batch, tree=check)
    with ThreadPoolExecutor(len(changes) + 1) as threads, ExitStack() as stack:
        stack.callback(gate.set)
        first = threads.submit(queue.merge, project.change(100, {"100.txt": "100\n"}))
        until(lambda: queue.counts.checks)
        answers = []
        for number, change in enumerate(changes, 1):
            answers.append(threads.submit(queue.merge, change))
            until(lambda n=number: queue.waiting_count == n)
        gate.set()
        assert first.result() is True
        return queue, [answer.result() for answer in answers]


def test_items_are_merged_one_commit_each_by_their_author_in_their_words(project):
    changes = [project.change(number, {f"{number}.txt": f"{number}\n"}) for number in (1, 2, 3)]
    queue, verdicts = together(project, changes)
    assert verdicts == [True] * 3
    assert set(project.files(project.tip)) >= {"1.txt", "2.txt", "3.txt"}
    told = git(project.top, "log", "--format=%an|%s|%(trailers:key=Ultramon-Item,valueonly)",
               f"main..{BRANCH}")  # fmt: skip
    assert [line for line in told.splitlines() if line] == [
        f"Ada|Write {number}.txt|{number} job.1" for number in (3, 2, 1, 100)
    ]
    assert (queue.counts.merged, queue.counts.checks) == (4, 2)
    assert project.base == git(project.top, "rev-parse", "main")
    assert git(project.top, "status", "--porcelain") == ""


def test_what_two_items_change_in_other_lines_of_a_file_fits(project):
    first = project.change(1, {"a.txt": LINES.replace("line 3\n", "three\n")})
    second = project.change(2, {"a.txt": LINES.replace("line 33\n", "thirty-three\n")})
    queue = project.queue()
    assert (queue.merge(first), queue.merge(second)) == (True, True)
    merged = project.files(project.tip)["a.txt"]
    assert "three" in merged
    assert "thirty-three" in merged


def test_a_conflict_names_the_other_item_the_file_and_the_lines(project):
    first = project.change(1, {"a.txt": LINES.replace("line 3\n", "three\n")})
    second = project.change(2, {"a.txt": LINES.replace("line 3\n", "drei\n"), "c.txt": "c\n"})
    queue = project.queue()
    assert queue.merge(first) is True
    tip = project.tip
    assert queue.merge(second) == Rejection("conflict with Write a.txt: a.txt:4-8")
    assert project.tip == tip
    assert (queue.counts.merged, queue.counts.conflicts) == (1, 1)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [({"b.txt": None}, {"b.txt": "changed\n"}), ({"b.txt": "\0ours"}, {"b.txt": "\0theirs"})],
)
def test_a_file_that_one_deletes_or_that_is_no_text_conflicts_as_a_whole(project, ours, theirs):
    changes = [project.change(1, ours), project.change(2, theirs)]
    queue = project.queue(tree=None)
    assert queue.merge(changes[0]) is True
    assert queue.merge(changes[1]) == Rejection("conflict with Write b.txt: b.txt")


def test_an_item_that_breaks_the_tree_is_found_among_those_beside_it(project):
    changes = [project.change(number, {f"{number}.txt": f"{number}\n"}) for number in range(1, 8)]
    changes[4] = project.change(5, {"5.txt": "BAD\n"})
    queue, verdicts = together(project, changes, batch=7)
    # One of all seven, two to find it, itself included in neither of the last; then the two behind.
    assert queue.counts.checks == 6
    assert [n for n, verdict in enumerate(verdicts, 1) if verdict is not True] == [5]
    assert verdicts[4] == Rejection("merged, the whole tree fails its check: BAD is there")
    assert set(project.files(project.tip)) >= {f"{n}.txt" for n in range(1, 8) if n != 5}


def test_two_items_that_fit_as_text_and_break_the_tree_together_are_found(project):
    """Each passes alone; the second one is refused."""
    changes = [project.change(1, {"1.txt": "same\n"}), project.change(2, {"2.txt": "same\n"})]
    _, verdicts = together(project, changes)
    assert verdicts == [True, Rejection("merged, the whole tree fails its check: two are the same")]


def test_a_conflict_with_an_item_that_is_not_merged_is_none(project):
    bad = project.change(1, {"a.txt": "BAD\n"})
    good = project.change(2, {"a.txt": LINES.replace("line 3\n", "three\n")})
    _, verdicts = together(project, [bad, good])
    assert verdicts == [Rejection("merged, the whole tree fails its check: BAD is there"), True]


def test_each_item_is_checked_in_the_tree_that_the_branch_would_name(project):
    """An item that passes alone may be undone by another one."""
    project.write({"deleted.txt": "x\n"})
    git(project.top, "update-ref", BRANCH, "main")
    first = project.change(1, {"mine.txt": "mine\n"}, name="deleted.txt")
    second = project.change(2, {"deleted.txt": None}, name="mine.txt")

    def check(name):
        return (project.checked / name).exists() or Rejection("it is gone")

    queue = project.queue(item=check)
    assert (queue.merge(first), queue.merge(second)) == (True, True)
    third = project.change(3, {"3.txt": "3\n"}, name="deleted.txt")
    said = Rejection("merged, the check of deleted.txt fails: it is gone")
    assert queue.merge(third) == said


def test_what_is_protected_is_changed_by_no_item(project):
    queue = project.queue(protected=("tests/", "*.cfg"))
    reason = "it changes tests/t.py, which --protect keeps from items"
    assert queue.merge(project.change(1, {"tests/t.py": "weaker\n"})) == Rejection(reason, True)
    assert queue.merge(project.change(2, {"deep/setup.cfg": "x\n"})).is_final
    assert queue.merge(project.change(3, {"tested.py": "x\n"})) is True


def test_an_item_that_was_merged_is_not_merged_again(project):
    """Its relay was killed before it could store that."""
    change = project.change(1, {"1.txt": "1\n"})
    assert project.queue().merge(change) is True
    tip = project.tip
    assert project.queue().merge(change) is True
    assert project.tip == tip
    # A later context does it anew, where a check has denied it since.
    again = project.change(1, {"1.txt": "1\n", "more.txt": "m\n"}, agent_id="job.7")
    assert project.queue().merge(again) is True
    assert "more.txt" in project.files(project.tip)


def test_what_the_user_commits_on_the_branch_stays(project):
    change = project.change(1, {"1.txt": "1\n"})
    mine = project.write({"mine.txt": "mine\n"})
    moves = [mine]

    def check_and_meanwhile():
        if moves:
            git(project.top, "update-ref", BRANCH, moves.pop())
        return project.check_tree()

    queue = project.queue(tree=check_and_meanwhile)
    assert queue.merge(change) is True
    assert set(project.files(project.tip)) >= {"1.txt", "mine.txt"}
    assert git(project.top, "merge-base", mine, BRANCH) == mine
    assert queue.counts.foreign == 1
    assert [line for line in project.lines if "by somebody else" in line] == [
        f"ultramon/job was moved to {mine[:9]} by somebody else: what is there now is checked with "
        "the next items, and was not before"
    ]
    assert queue.look() == project.tip
    assert queue.counts.foreign == 1


def test_an_error_reaches_everybody_who_waits_and_the_queue_works_on(project):
    changes = [project.change(number, {f"{number}.txt": f"{number}\n"}) for number in (1, 2)]
    queue = project.queue()
    git(project.top, "update-ref", "-d", BRANCH)
    with pytest.raises(WorkspaceError):
        queue.merge(changes[0])
    git(project.top, "update-ref", BRANCH, "main")
    assert queue.merge(changes[1]) is True


@pytest.mark.parametrize("name", [f"{BRANCH}.lock", "worktrees/checked/index.lock"])
def test_a_lock_that_a_killed_git_left_is_deleted(project, name):
    path = project.top / ".git" / name
    change = project.change(1, {"1.txt": "1\n"})
    path.touch()
    assert project.queue().merge(change) is True


def test_a_lock_of_a_git_that_runs_is_left_alone(project):
    lock = project.top / ".git" / f"{BRANCH}.lock"
    change = project.change(1, {"1.txt": "1\n"})
    lock.touch()
    with subprocess.Popen(
        ["git", "cat-file", "--batch"], cwd=project.top, stdin=subprocess.PIPE
    ) as running:
        with pytest.raises(WorkspaceError, match=r"job\.lock is there"):
            project.queue(lock_seconds=0).merge(change)
        assert lock.exists()
        running.stdin.close()
    assert project.queue().merge(change) is True


def test_no_hook_runs_and_nothing_is_signed(project):
    hooks = project.top / ".git" / "hooks"
    change = project.change(1, {"1.txt": "1\n"})
    for name in ("post-checkout", "reference-transaction", "pre-commit", "post-index-change"):
        (hooks / name).write_text("#!/bin/sh\ntouch ../ran\nexit 1\n")
        (hooks / name).chmod(stat.S_IRWXU)
    for name, value in {"commit.gpgSign": "true", "gpg.program": "false"}.items():
        git(project.top, "config", name, value)
    assert project.queue().merge(change) is True
    assert not (project.top.parent / "ran").exists()


def test_a_tree_that_fails_by_itself_blames_no_item(project):
    """The check depends on something else: no item would pass any more."""
    state = ["good"]
    queue = project.queue(tree=lambda: state[0] == "good" or Rejection("the server is away"))
    assert queue.check_base() is True
    change = project.change(1, {"1.txt": "1\n"})
    state[0] = "bad"
    with pytest.raises(WorkspaceError, match="without any item: the server is away"):
        queue.merge(change)


def test_a_candidate_is_kept_until_the_queue_is_closed(project):
    queue = project.queue()
    queue.merge(project.change(1, {"1.txt": "1\n"}))
    assert git(project.top, "rev-parse", CANDIDATE) == project.tip
    queue.close()
    queue.close()
    assert git(project.top, "for-each-ref", CANDIDATE) == ""


def test_trees_are_compared_by_the_pathspecs_of_git(project):
    before = project.base
    after = project.change(1, {"tests/new.py": "n\n", "b.txt": "c\n"}).commit
    found = changed_files(str(project.top), before, after, seconds=30)
    assert found == ["b.txt", "tests/new.py"]
    assert changed_files(str(project.top), before, after, seconds=30, among=["tests"]) == found[1:]


def test_a_tree_that_is_none_is_refused(project):
    with pytest.raises(WorkspaceError, match="commit-tree failed"):
        merge_trees(str(project.top), "0" * 40, "0" * 40, "0" * 40, seconds=30)


@settings(max_examples=6)
@given(
    st.lists(st.sampled_from(["own", "shared", "same", "bad"]), min_size=1, max_size=8),
    st.integers(1, 5),
)
def test_every_commit_that_the_branch_has_named_is_green(tmp_path_factory, kinds, batch):
    """Whatever the items do to each other; what is refused is on it never, the rest is."""
    project = Project(tmp_path_factory.mktemp("shop"))
    project.create({"a.txt": LINES})
    texts = {"own": "{n}\n", "shared": "x{n}\n", "same": "same\n", "bad": "BAD\n"}
    names = {"shared": "shared.txt"}
    changes = [
        project.change(n, {names.get(kind, f"{n}.txt"): texts[kind].format(n=n)})
        for n, kind in enumerate(kinds, 1)
    ]
    queue, verdicts = together(project, changes, batch=batch)
    merged = [n for n, verdict in enumerate(verdicts, 1) if verdict is True]
    assert queue.counts.merged == len(merged) + 1
    for kind, at_most in {"shared": 1, "same": 1, "bad": 0}.items():
        count = sum(kinds[n - 1] == kind for n in merged)
        assert count == min(at_most, kinds.count(kind))
    assert all(n in merged for n, kind in enumerate(kinds, 1) if kind == "own")
    for commit in project.values():
        texts_of = [text for name, text in project.files(commit).items() if name.endswith(".txt")]
        assert "BAD" not in texts_of
        assert len(set(texts_of)) == len(texts_of)


def test_a_file_whose_name_is_no_text_can_be_named_in_a_reason(project):
    """What is said of it is stored as UTF-8, and shown to people."""
    name = os.fsdecode(b"odd-\xff\n.txt")
    queue = project.queue()
    assert queue.merge(project.change(1, {name: "one\n"})) is True
    found = queue.merge(project.change(2, {name: "two\n"}))
    assert "odd-" in found.reason
    assert found.reason.encode()
    assert "\n" not in found.reason
    strict = project.queue(protected=("odd*",))
    found = strict.merge(project.change(3, {name: "three\n"}))
    assert found.is_final
    assert found.reason.encode()


def test_a_git_that_was_killed_in_the_queues_tree_stops_no_later_merge(project):
    queue = project.queue()
    (project.top / ".git" / "worktrees" / "checked" / "index.lock").touch()
    assert queue.merge(project.change(1, {"1.txt": "one\n"})) is True
    (project.top / ".git" / "worktrees" / "checked" / "HEAD.lock").touch()
    assert queue.merge(project.change(2, {"2.txt": "two\n"})) is True
    (project.top / ".git" / "refs" / "ultramon" / "job" / "candidate.lock").touch()
    assert queue.merge(project.change(3, {"3.txt": "three\n"})) is True


def test_a_merge_waits_while_the_user_has_the_branch_checked_out(project):
    """It is no item's fault: none is rejected for it, and none is done again."""
    queue = project.queue()
    change = project.change(1, {"1.txt": "one\n"})
    git(project.top, "checkout", "-q", "ultramon/job")
    with ThreadPoolExecutor(1) as threads:
        answer = threads.submit(queue.merge, change)
        until(lambda: any("waits" in line for line in project.lines))
        assert project.tip == project.base
        (project.top / "mine.txt").write_text("mine\n")
        git(project.top, "add", "mine.txt")
        git(project.top, "commit", "-qm", "Of the user")
        assert not answer.done()
        git(project.top, "checkout", "-q", "main")
        assert answer.result() is True
    assert set(project.files(project.tip)) >= {"1.txt", "mine.txt"}
    assert len([line for line in project.lines if "waits" in line]) == 1


def test_a_merge_that_waits_ends_with_the_relay(project):
    queue = project.queue()
    change = project.change(1, {"1.txt": "one\n"})
    git(project.top, "checkout", "-q", "ultramon/job")
    with ThreadPoolExecutor(1) as threads:
        answer = threads.submit(queue.merge, change)
        until(lambda: any("waits" in line for line in project.lines))
        queue.close()
        with pytest.raises(WorkspaceError, match="has refs/heads/ultramon/job checked out"):
            answer.result()


def test_an_agent_that_checks_the_branch_out_keeps_no_item_from_it(project):
    """Its tree is one of the run's own: its files and its index stay as they are."""
    place = project.top.parent / "workers" / "2"
    git(project.top, "worktree", "add", "-q", str(place), "ultramon/job")
    (place / "begun.txt").write_text("begun\n")
    queue = project.queue(folder=str(project.top.parent / "workers"))
    assert queue.merge(project.change(1, {"1.txt": "one\n"})) is True
    assert git(place, "rev-parse", "--abbrev-ref", "HEAD") == "HEAD"
    assert git(place, "rev-parse", "HEAD") == project.base
    assert git(place, "status", "--porcelain") == "?? begun.txt"
