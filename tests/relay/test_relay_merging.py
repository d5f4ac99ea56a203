"""Relays with several workers: every item is merged into a branch that was green at each move."""

import os
import signal
import sys
from collections import Counter
from contextlib import suppress

import pytest
from helpers import IMPORT_PATH, relayed
from helpers.relayed import finish, marks_of
from helpers.waiting import until

from ultramon.relay.choices import RelayChoices
from ultramon.relay.opening import open_relay
from ultramon.system.process_search import processes_with

CHECK = ("--verify", "grep -Fxqre {item} made")
TREE = ("--verify-all", "! grep -rq bad made")
BRANCH = "ultramon/job"
SECONDS = 240


def begin(project, *arguments, mode="commits", **more):
    return project.begin(mode, *arguments, **project.workers_environ(**more))


def counts(result):
    return {name: count for name, count in result["work"]["counts"].items() if count}


def merged(project, commit=BRANCH):
    """The lines of every file that a commit has below `made`."""
    names = project.git("ls-tree", "-r", "--name-only", commit, "made").splitlines()
    return [line for name in names for line in project.git("show", f"{commit}:{name}").splitlines()]


def values(project):
    return project.git("reflog", "--format=%H", BRANCH).split()[::-1]


def workers(project):
    text = (project.directory / "workers").read_text()
    return Counter(line.split()[0] for line in text.splitlines())


def assert_untouched(project):
    """The user's own tree and branch are as they were."""
    assert project.git("status", "--porcelain") == ""
    assert project.git("rev-parse", "main") == project.git("rev-parse", "HEAD")
    assert project.git("log", "--oneline").count("\n") == 1


def test_four_workers_carry_a_list_into_one_green_branch(project):
    names = [f"{number}" for number in range(16)]
    items = project.items(*names)
    code, result, told = finish(begin(project, *items, *CHECK, *TREE, "--workers", "4"), SECONDS)
    assert (code, counts(result)) == (0, {"assigned": 16, "verified": 16}), told
    assert sorted(merged(project)) == sorted(names)
    assert set(workers(project)) == {"1", "2", "3", "4"}
    for commit in values(project)[1:]:
        assert "bad" not in merged(project, commit)
    subjects = project.git("log", "--format=%an %s", f"main..{BRANCH}").splitlines()
    assert sorted(subjects) == sorted(f"Bot Do {name}" for name in names)
    assert result["merges"]["merged"] == 16
    assert result["isTreeChecked"] is True
    assert_untouched(project)
    assert result["work"]["lost"] == []
    assert "the whole tree is green" in told
    assert "check: item `grep -Fxqre {item} made` · tree `! grep -rq bad made`" in told


def test_items_that_conflict_are_done_again_on_top_of_the_branch(project):
    """Both write the end of one file; the second one is told, and continues from there."""
    names = [f"{number}-{side}" for number in range(3) for side in "xy"]
    # So that each worker has one of each pair.
    items = project.items(*sorted(names, key=lambda name: name[-1]))
    code, result, told = finish(begin(project, *items, *CHECK, *TREE, "--workers", "2"), SECONDS)
    assert (code, counts(result)) == (0, {"assigned": 6, "verified": 6}), told
    assert sorted(merged(project)) == sorted(names)
    assert result["merges"]["conflicts"] > 0
    assert "conflict with Do " in told
    assert_untouched(project)


def test_an_item_that_breaks_the_tree_is_set_aside_with_its_work(project):
    items = project.items("1", "bad", "2", "3")
    code, result, told = finish(begin(project, *items, *CHECK, *TREE, "--workers", "2"), SECONDS)
    assert (code, counts(result)) == (1, {"assigned": 4, "verified": 3, "set_aside": 1}), told
    assert (
        "merged, the whole tree fails its check: exit code 1" in result["work"]["set_aside"]["bad"]
    )
    assert sorted(merged(project)) == ["1", "2", "3"]
    assert result["kept"] == {"bad": "refs/ultramon/job/2"}
    assert merged(project, "refs/ultramon/job/2").count("bad") == 1
    assert project.git("for-each-ref", "refs/ultramon/job/candidate") == ""


def test_one_worker_may_have_its_tree_checked_as_a_whole(project):
    items = project.items("1", "2")
    code, result, told = finish(begin(project, *items, *TREE), SECONDS)
    assert (code, counts(result)) == (0, {"assigned": 2, "verified": 2}), told
    assert sorted(merged(project)) == ["1", "2"]


def test_a_tree_that_is_red_before_any_item_is_no_start(project):
    items = project.items("1")
    check = ("--verify-all", "echo it is broken; exit 3")
    code, result, told = finish(begin(project, *items, *check, "--workers", "2"))
    assert (code, result) == (2, None) or result is None
    assert "fails before any item: exit code 3: it is broken" in told
    assert project.git("rev-parse", BRANCH) == project.git("rev-parse", "main")


def test_what_is_protected_is_set_aside_at_once_and_named(project):
    (project.path / "made").mkdir()
    (project.path / "made" / "judge").write_text("strict\n")
    project.git("add", ".")
    project.git("commit", "-qm", "second")
    items = project.items("judge-weaker", "1")
    code, result, told = finish(
        begin(project, *items, *CHECK, "--workers", "2", "--protect", "made/judge"), SECONDS
    )
    assert code == 1, told
    reason = "it changes made/judge, which --protect keeps from items"
    assert result["work"]["set_aside"] == {"judge-weaker": reason}
    assert sorted(merged(project)) == ["1", "strict"]


def test_items_with_paths_and_order_never_conflict(project):
    """Those that touch one file are not out at once, and one begins behind what it waits for."""
    path = project.directory / "items.tsv"
    rows = [f"a-{number}\tmade/a\t" for number in range(3)] + ["b-1\tmade/b\ta-0,a-1,a-2"]
    path.write_text("item\tpaths\tafter\n" + "".join(f"{row}\n" for row in rows))
    code, result, told = finish(
        begin(project, "--items", str(path), *CHECK, *TREE, "--workers", "3"), SECONDS
    )
    assert (code, counts(result)) == (0, {"assigned": 4, "verified": 4}), told
    assert result["merges"]["conflicts"] == 0
    order = project.git("log", "--format=%s", "--reverse", f"main..{BRANCH}").splitlines()
    assert order[-1] == "Do b-1"
    assert "items: 4, 4 with paths, 1 that wait for others" in told


def test_what_waits_for_an_item_that_was_set_aside_is_named(project):
    path = project.directory / "items.jsonl"
    path.write_text('{"item": "bad"}\n{"item": "2", "after": ["bad"]}\n{"item": "3"}\n')
    code, result, told = finish(begin(project, "--items", str(path), *CHECK, *TREE), SECONDS)
    assert code == 1, told
    assert counts(result) == {"assigned": 3, "verified": 1, "set_aside": 1, "left": 1}
    assert result["waitsFor"] == {"2": "bad"}
    assert result["stop"]["words"] == "what is left waits for items that were set aside"


def test_each_tree_is_set_up_and_knows_its_number(project):
    items = project.items("1", "2", "3", "4")
    setup = ("--setup", "echo $ULTRAMON_WORKER > mine; mkdir -p 'of [it]'; touch 'of [it]/x'")
    code, _, told = finish(begin(project, *items, *CHECK, *TREE, *setup, "--workers", "2"), SECONDS)
    assert code == 0, told
    folder = project.state / "relay" / "job"
    trees = [folder / "worktree", *(folder / "workers" / name / "worktree" for name in "02")]
    assert [(tree / "mine").read_text().strip() for tree in trees] == ["1", "0", "2"]
    assert all((tree / "of [it]" / "x").exists() for tree in trees)
    assert told.count("setup: ok") == 3
    # It is no work of an agent.
    files = project.git("ls-tree", "-r", "--name-only", BRANCH).splitlines()
    assert files == ["README", *(f"made/{number}" for number in range(1, 5))]


def test_a_relay_that_is_killed_is_continued_and_merges_nothing_twice(project):
    names = [f"{number}" for number in range(8)]
    given = (*project.items(*names), *CHECK, *TREE, "--workers", "2")
    relay = begin(project, *given, TAKES="0.2")
    until(lambda: "merged: " in relay_lines(relay), relay)
    relay.send_signal(signal.SIGKILL)
    relay.communicate()
    code, result, told = finish(
        project.resume(mode="commits", **project.workers_environ()), SECONDS
    )
    assert (code, counts(result)) == (0, {"assigned": 8, "verified": 8}), told
    assert sorted(merged(project)) == sorted(names)
    items = project.git(
        "log", "--format=%(trailers:key=Ultramon-Item,valueonly)", f"main..{BRANCH}"
    ).split("\n")
    numbers = [line.split()[0] for line in items if line]
    assert sorted(numbers, key=int) == [str(number) for number in range(1, 9)]
    assert_untouched(project)


def relay_lines(relay):
    """What a relay has said so far; never waits."""
    os.set_blocking(relay.stderr.fileno(), False)
    relay.said = getattr(relay, "said", "")
    with suppress(BlockingIOError):
        relay.said += os.read(relay.stderr.fileno(), 1 << 16).decode()
    return relay.said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--workers", "2"), "without items"),
        (("--verify-all", "true", "--in-place", "--items", "README"), "in_place"),
        (("--protect", "tests"), "protect"),
    ],
)
def test_what_cannot_be_merged_is_refused_before_anything_is_made(project, arguments, words):
    code, _, told = finish(begin(project, *arguments))
    assert code == 2, told
    assert words in told
    assert project.git("branch", "--list", "ultramon/*") == ""


def test_workers_without_any_check_are_refused(project):
    code, _, told = finish(begin(project, *project.items("1"), "--workers", "2"))
    assert (code, "what is merged has passed a check" in told) == (2, True), told


def test_a_clean_run_leaves_the_branch_and_no_tree(project):
    """What is merged nowhere else stays; after the merge the rest goes, too."""
    items = project.items("1", "2", "bad")
    code, _, told = finish(begin(project, *items, *CHECK, *TREE, "--workers", "2"), SECONDS)
    assert code == 1, told
    code, cleaned, told = finish(project.start(None, "--clean", "job"))
    assert code == 0, told
    assert project.git("worktree", "list").count("\n") == 1
    assert not (project.state / "relay" / "job" / "workers").exists()
    assert any("the branch ultramon/job" in one["what"] for one in cleaned["stays"])
    assert sorted(merged(project)) == ["1", "2"]
    assert "bad" in merged(project, "refs/ultramon/job/3")


def test_a_run_that_continues_with_fewer_workers_loses_no_work_of_the_others(project):
    """Their contexts end while no relay looks: what they have done is merged, not done again."""
    names = [f"{number}" for number in range(4)]
    given = (*project.items(*names), *CHECK, *TREE, "--workers", "2")
    relay = begin(project, *given, TAKES="0.2")
    until(lambda: relay_lines(relay).count(" begins") == 2, relay)
    relay.send_signal(signal.SIGKILL)
    relay.communicate()
    done = project.directory / "workers"
    until(lambda: done.exists() and done.read_text().count("\n") == 4)
    until(lambda: not processes_with(marks_of(project.state)))
    again = project.resume("--workers", "1", mode="commits", **project.workers_environ())
    code, result, told = finish(again, SECONDS)
    assert (code, counts(result)) == (0, {"assigned": 4, "verified": 4}), told
    assert sorted(merged(project)) == names
    assert sorted(line.split()[1] for line in done.read_text().splitlines()) == names


def test_ctrl_c_has_all_contexts_hand_over_and_what_they_have_done_is_merged(project):
    names = [f"{number}" for number in range(40)]
    relay = begin(project, *project.items(*names), *CHECK, *TREE, "--workers", "2", TAKES="0.3")
    done = project.directory / "workers"
    until(lambda: done.exists() and len(workers(project)) == 2, relay)
    relay.send_signal(signal.SIGINT)
    code, result, told = finish(relay, SECONDS)
    made = [line.split()[1] for line in done.read_text().splitlines()]
    assert code == 130, told
    assert 2 <= len(made) < len(names)
    assert sorted(merged(project)) == sorted(made), told
    assert counts(result)["verified"] == len(made)
    assert counts(result).get("claimed", 0) == 0
    assert not processes_with(marks_of(project.state))
    assert_untouched(project)


def test_a_branch_that_the_user_has_checked_out_costs_no_context(project):
    names = [f"{number}" for number in range(4)]
    given = (*project.items(*names), *CHECK, *TREE, "--workers", "2")
    relay = begin(project, *given, TAKES="0.2")
    until(lambda: relay_lines(relay).count(" begins") == 2, relay)
    project.git("checkout", "-q", BRANCH)
    until(lambda: "merging waits" in relay_lines(relay), relay)
    project.git("checkout", "-q", "main")
    code, result, told = finish(relay, SECONDS)
    assert (code, counts(result)) == (0, {"assigned": 4, "verified": 4}), told
    assert sorted(merged(project)) == names
    assert len((project.directory / "workers").read_text().splitlines()) == len(names)
    assert_untouched(project)


def test_protected_paths_are_those_of_the_directory_in_which_the_relay_was_begun(project):
    """As the user sees them there, and as the checks run there."""
    inner = project.path / "inner"
    (inner / "made").mkdir(parents=True)
    (inner / "made" / "judge").write_text("strict\n")
    project.git("add", ".")
    project.git("commit", "-qm", "second")
    items = project.items("judge-weaker", "1")
    project.path = inner
    code, result, told = finish(
        begin(project, *items, *CHECK, "--workers", "2", "--protect", "made/judge"), SECONDS
    )
    assert code == 1, told
    assert list(result["work"]["set_aside"]) == ["judge-weaker"], told


def test_a_protected_path_that_git_cannot_read_is_no_start(project):
    given = (*project.items("1"), *CHECK, "--workers", "2", "--protect", "../../elsewhere")
    _, result, told = finish(begin(project, *given), SECONDS)
    assert result is None, told
    assert "outside repository" in told
    assert " begins" not in told


def test_items_that_are_added_may_wait_for_those_of_before(project):
    """A circle by way of both lists is refused before anything is begun."""
    path = project.directory / "items.jsonl"
    path.write_text('{"item": "1"}\n{"item": "2", "after": ["1"]}\n')
    code, _, told = finish(begin(project, "--items", str(path), *CHECK, *TREE), SECONDS)
    assert code == 0, told
    path.write_text('{"item": "3", "after": ["2", "nothing"]}\n')
    code, _, told = finish(project.resume("--items", str(path), **project.workers_environ()))
    assert (code, "3 after nothing" in told) == (2, True), told
    path.write_text('{"item": "3", "after": ["2"]}\n{"item": "2", "after": ["3"]}\n')
    code, _, told = finish(project.resume("--items", str(path), **project.workers_environ()))
    assert (code, "no circle" in told) == (2, True), told
    path.write_text('{"item": "3", "after": ["2"]}\n')
    again = project.resume("--items", str(path), mode="commits", **project.workers_environ())
    code, result, told = finish(again, SECONDS)
    assert (code, counts(result)) == (0, {"assigned": 3, "verified": 3}), told


def test_a_tree_check_that_fails_without_any_item_stops_the_run_and_rejects_none(project):
    """What it depends on is mended, and what was done is merged: no item is done again."""
    names = [f"{number}" for number in range(6)]
    broken = project.directory / "broken"
    tree = ("--verify-all", f"test ! -e {broken}")
    given = (*project.items(*names), *CHECK, *tree, "--workers", "2")
    relay = begin(project, *given, TAKES="0.2")
    until(lambda: "merged: " in relay_lines(relay), relay)
    broken.touch()
    code, result, told = finish(relay, SECONDS)
    assert result["stop"]["kind"] == "failed", told
    assert "fails without any item" in result["stop"]["words"]
    assert counts(result).get("set_aside", 0) == 0
    assert counts(result)["claimed"] > 0
    assert "not confirmed" not in told
    broken.unlink()
    again = project.resume(mode="commits", **project.workers_environ())
    code, result, told = finish(again, SECONDS)
    assert (code, counts(result)) == (0, {"assigned": 6, "verified": 6}), told
    assert sorted(merged(project)) == names
    assert_untouched(project)


def test_a_git_that_refuses_stops_the_run_and_rejects_none(project):
    """Such as in a tree whose link to the repository is gone; mended, the run continues."""
    link = project.state / "relay" / "job" / "workers" / "0" / "worktree" / ".git"
    away = project.directory / "away"
    tree = ("--verify-all", f"test ! -e made/3 || test -e {away} || mv {link} {away}")
    given = (*project.items("1", "2", "3", "4"), *CHECK, *tree, "--workers", "2")
    code, result, told = finish(begin(project, *given, TAKES="0.2"), SECONDS)
    assert (code, result["stop"]["kind"]) == (1, "failed"), told
    assert "not a git repository" in result["stop"]["words"]
    assert counts(result).get("set_aside", 0) == 0
    assert "not confirmed" not in told
    away.rename(link)
    away.touch()
    again = project.resume(mode="commits", **project.workers_environ())
    code, result, told = finish(again, SECONDS)
    assert (code, counts(result)) == (0, {"assigned": 4, "verified": 4}), told
    assert_untouched(project)


def test_the_one_session_of_a_comparison_has_all_items_at_once(project, monkeypatch):
    """Its items wait for each other in one context, which has them in their order."""
    monkeypatch.setenv("WORKERS", str(project.directory / "workers"))
    monkeypatch.setenv("PYTHONPATH", IMPORT_PATH)
    program = (sys.executable, "-B", relayed.__file__, "commits")
    choices = RelayChoices(
        "Do it all.", str(project.path), items=("1", "2"), item_after={"2": ("1",)},
        agent="command", arguments=program, verify=CHECK[1], max_contexts=1, workers=2,
    )  # fmt: skip
    opened = open_relay("alone", choices, state_directory=str(project.state), is_single=True)
    result = opened.relay(print).run()
    assert result.work.counts.verified == 2
