"""`ultramon relay --rewind`: a new run from where another one was before an item."""

import pytest
from helpers import IMPORT_PATH
from helpers.program import run as run_program
from helpers.relayed import CHECK, RelayedProject, end_contexts, finish

MERGED_CHECK = ("--verify", "grep -Fxqre {item} made")


@pytest.fixture
def project(tmp_path):
    made = RelayedProject(tmp_path)
    yield made
    end_contexts(made.state)
    end_contexts(made.state, "again")


def rewind(project, item, *arguments, mode=None, run="again", **environ):
    given = ("--rewind", "job", item, "--run", run, *arguments)
    return finish(project.start(mode, *given, **environ), 120)


def counts(result):
    return {name: count for name, count in result["work"]["counts"].items() if count}


def test_a_run_begins_anew_before_an_item(project):
    """With the tree, the items and the notes as they were then; the first run stays as it is."""
    code, result, told = finish(project.begin("notes", *project.items(*"abcde"), *CHECK))
    assert (code, counts(result)) == (0, {"assigned": 5, "verified": 5}), told
    before = (project.lines(), project.git("for-each-ref", "refs/ultramon/job/"))
    code, result, told = rewind(project, "c")
    assert (code, counts(result)) == (0, {"assigned": 5, "verified": 5}), told
    assert "rewound: 2 items are verified, as job was before c, at " in told
    assert "without meaning" not in told
    assert project.lines(run="again") == ["a", "b", "c", "d", "e"]
    assert project.lines("begun", "again") == [
        "a: -", "b: what a taught", "c: what b taught", "d: what c taught", "e: what d taught",
    ]  # fmt: skip
    assert (result["work"]["done_earlier"], result["work"]["lost"]) == (2, [])
    assert [one["number"] for one in result["contexts"]] == [1, 2, 3]
    assert [one["agent_id"] for one in result["work"]["contexts"]] == [
        "again.1", "again.2", "again.3",
    ]  # fmt: skip
    after = (project.lines(), project.git("for-each-ref", "refs/ultramon/job/"))
    assert after == before
    kept = project.git("for-each-ref", "--format=%(refname)", "refs/ultramon/again/").split()
    assert {name.rpartition("/")[2] for name in kept} >= set("12345")


def test_a_rewound_run_is_rewound_and_continued_like_any_other(project):
    """It has points of its own, those from before it among them."""
    finish(project.begin("notes", *project.items(*"abcd"), *CHECK))
    code, result, told = rewind(project, "d", "--max-contexts", "1", mode="fails")
    assert (code, counts(result)["verified"]) != (0, 4), told
    code, result, told = finish(
        project.resume("--max-contexts", "9", run="again", mode="notes"), 120
    )
    assert (code, counts(result)) == (0, {"assigned": 4, "verified": 4}), told
    given = ("--rewind", "again", "b", "--run", "third")
    code, result, told = finish(project.start(None, *given), 120)
    assert (code, counts(result)) == (0, {"assigned": 4, "verified": 4}), told
    assert result["work"]["done_earlier"] == 1
    assert project.lines(run="third") == list("abcd")


def test_an_item_that_was_set_aside_has_a_point_before_its_last_try(project):
    """What was verified until then stays."""
    items = project.items("a", "poor", "b")
    code, result, told = finish(project.begin("careless", *items, *CHECK, "--max-contexts", "1"))
    assert code != 0, told
    assert counts(result).get("verified", 0) >= 1
    code, result, told = rewind(project, "poor", "--max-contexts", "9", mode="obey")
    assert (code, counts(result)) == (0, {"assigned": 3, "verified": 3}), told
    assert sorted(project.lines(run="again")) == ["a", "b", "poor"]


def test_of_merged_items_the_branch_before_one_is_the_point(project):
    """Exactly: what is on it is verified, whatever the workers had in hand."""
    names = [f"{number}" for number in range(1, 7)]
    given = (*project.items(*names), *MERGED_CHECK, "--verify-all", "true", "--workers", "2")
    environ = project.workers_environ()
    code, result, told = finish(project.begin("commits", *given, **environ), 120)
    assert (code, counts(result)) == (0, {"assigned": 6, "verified": 6}), told
    subjects = project.git("log", "--reverse", "--format=%s", "main..ultramon/job").split("\n")
    order = [subject.removeprefix("Do ") for subject in subjects if subject]
    code, result, told = rewind(project, order[3], mode="commits", **environ)
    assert (code, counts(result)) == (0, {"assigned": 6, "verified": 6}), told
    assert f"rewound: 3 items are verified, as job was before {order[3]}" in told
    again = project.git("log", "--reverse", "--format=%s", "main..ultramon/again").split("\n")
    assert again[:3] == subjects[:3]
    assert sorted(filter(None, again)) == sorted(filter(None, subjects))
    begins = [project.git("rev-parse", f"ultramon/{run}~3") for run in ("job", "again")]
    assert begins[0] == begins[1]
    last = again[5].removeprefix("Do ")
    given = ("--rewind", "again", last, "--run", "third")
    code, result, told = finish(project.start("commits", *given, **environ), 120)
    assert (code, counts(result)) == (0, {"assigned": 6, "verified": 6}), told
    assert (result["work"]["done_earlier"], result["merges"]["merged"]) == (5, 1)


def test_a_task_list_spells_an_item_with_single_blanks(project):
    finish(project.begin("notes", *project.items("a", "b  c"), *CHECK))
    code, result, told = rewind(project, "b c")
    assert (code, result["work"]["done_earlier"]) == (0, 1), told


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--rewind", "job", "z"), "an item of the run job"),
        (("--rewind", "none", "a"), "a relay that was begun"),
        (("--rewind", "job", "a", "--run", "job"), "there is one named job"),
        (("--rewind", "job", "a", "--resume", "job"), "--resume continues one"),
    ],
)
def test_what_is_no_point_is_refused(project, arguments, words):
    """And nothing is made."""
    finish(project.begin("obey", *project.items("a"), *CHECK))
    code, _, told = finish(project.start(None, *arguments))
    assert code in (1, 2)
    assert words in told
    assert project.git("branch", "--list", "ultramon/*").split() == ["+", "ultramon/job"]


def test_a_run_without_items_or_in_place_keeps_no_points(project):
    """A rewind says what it takes."""
    finish(project.begin("obey"))
    code, _, told = finish(project.start(None, "--rewind", "job", "Do it all.", "--run", "again"))
    assert code == 2 or code == 1
    assert "a run with --items in a worktree of its own" in told


def test_a_point_is_named_in_status(project):
    """The agent that stands for the contexts of the first run is no context of this one."""
    finish(project.begin("notes", *project.items("a", "b"), *CHECK))
    rewind(project, "b")
    environ = {"ULTRAMON_STATE_DIR": str(project.state), "PYTHONPATH": IMPORT_PATH}
    shown = run_program("status", "--all", "--run", "again", **environ).stdout
    assert "again.0" in shown
    assert "stands for job" in shown
