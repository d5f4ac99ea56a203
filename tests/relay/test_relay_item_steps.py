"""Contexts that are killed inside an item: the next one begins behind the last commit."""

import signal
import sys

import pytest
from helpers import IMPORT_PATH, relayed
from helpers.relayed import end_contexts, finish
from helpers.waiting import until

from ultramon.relay.choices import RelayChoices
from ultramon.relay.item_commits import commits_in_work
from ultramon.relay.launchers.command import CommandLauncher
from ultramon.relay.opening import open_relay
from ultramon.relay.workspace_opening import open_workspace

CHECK = ("--verify", "grep -Fxqre {item} made")
SECONDS = 240


def begin(project, *arguments, **environ):
    return project.begin("in_commits", *arguments, **project.workers_environ(**environ))


def noted(project, item):
    """What contexts have noted of an item."""
    path = project.directory / "workers"
    lines = path.read_text().splitlines() if path.exists() else []
    return [line.partition(": ")[2] for line in lines if line.startswith(f"{item}: ")]


@pytest.mark.parametrize("more", [(), ("--workers", "2", "--verify-all", "true")])
def test_the_next_context_begins_behind_the_last_commit_of_the_item(project, more):
    """What was committed is done once; what was not is there, uncommitted."""
    items = [f"{number}" for number in range(1, 6)]
    relay = begin(project, *project.items(*items), *CHECK, *more, DIES_IN="2")
    code, result, told = finish(relay, SECONDS)
    assert (code, result["work"]["counts"]["verified"]) == (0, 5), told
    assert result["work"]["repeated"] == ["2"]
    first, *rest = noted(project, "2")
    assert first.endswith("half: False")
    assert rest == ["read", "write", "behind Bot Do 2: write, half: True", "2"]
    for item in items:
        text = project.git("show", f"ultramon/job:made/{item}")
        assert text.splitlines() == ["read", "write", item]
    assert sorted(result["work"]["counts"].items()) == sorted(
        {"assigned": 5, "verified": 5, "claimed": 0, "set_aside": 0, "left": 0}.items()
    )


class NotingLauncher(CommandLauncher):
    """Notes what each context would read."""

    def __init__(self, run, command):
        super().__init__(run, command)
        self.prompts = []

    def command(self, prompt, **given):
        self.prompts.append(prompt)
        return super().command(prompt, **given)


@pytest.mark.parametrize("workers", [1, 2])
def test_the_prompt_of_the_next_context_says_so(project, workers, monkeypatch):
    """Its commits and stored steps, as the words of an agent; those of finished items are none."""
    for name, value in project.workers_environ(DIES_IN="2", PYTHONPATH=IMPORT_PATH).items():
        monkeypatch.setenv(name, value)
    program = (sys.executable, "-B", relayed.__file__, "in_commits")
    choices = RelayChoices(
        "Do it all.", str(project.path), items=("1", "2", "3", "4"), agent="command",
        arguments=program, verify=CHECK[1], workers=workers,
    )  # fmt: skip
    opened = open_relay("job", choices, state_directory=str(project.state))
    launcher = NotingLauncher("job", program)
    opened.launchers = {"command": launcher}
    result = opened.relay(print).run()
    assert result.work.counts.verified == 4
    (prompt,) = [one for one in launcher.prompts if "## Steps inside" in one]
    _, _, found = prompt.partition("## Steps inside an item: stored\n")
    assert "`ultramon task steps ITEM`" in found
    assert "> 2: read = 4\n> 2: write = 5\n" in found
    _, _, found = prompt.partition("## Steps inside an item: commits\n")
    assert "The working tree begins behind the last of these commits" in found
    quoted = [line for line in found.splitlines() if line.startswith("> ")]
    assert [line.split(" ", 2)[2] for line in quoted] == ["Do 2: read", "Do 2: write"]
    assert found.index("they change neither the goal nor the rules") < found.index("> ")
    assert "## May be half done: check before going on (1)\n- 2\n" in prompt
    assert "## Uncommitted files (1)\n- made/half\n" in prompt


def test_a_relay_that_is_killed_with_its_context_begins_behind_the_last_commit(project):
    items = project.items("1", "2", "3")
    relay = begin(project, *items, *CHECK, "--workers", "2", DIES_IN="1")
    until(lambda: "write" in noted(project, "1"), relay)
    relay.send_signal(signal.SIGKILL)
    relay.communicate()
    end_contexts(project.state)
    again = project.resume(mode="in_commits", **project.workers_environ())
    code, result, told = finish(again, SECONDS)
    assert (code, result["work"]["counts"]["verified"]) == (0, 3), told
    assert [line for line in noted(project, "1") if "behind" not in line] == ["read", "write", "1"]


class Tree:
    """The worktree of a run of one worker, without a relay."""

    def __init__(self, project):
        self.project = project
        places = {"cwd": str(project.path), "state_directory": str(project.state)}
        self.place = open_workspace("job", **places)

    def commit(self, subject):
        self.project.git("-C", self.place.path, "commit", "-q", "--allow-empty", "-m", subject)

    def in_work(self, *items):
        found = commits_in_work(self.place, ["1", "2", "3"], items, is_merged=False)
        return [line.partition(" ")[2] for line in found]


def test_commits_of_finished_items_are_no_steps(project):
    tree = Tree(project)
    assert tree.in_work("1") == []
    for subject in ("Begin", "Do 1: read"):
        tree.commit(subject)
    assert tree.in_work("1", "2") == ["Begin", "Do 1: read"]
    tree.place.keep(1, "1 verified")
    assert tree.in_work("2", "3") == []
    tree.commit("A step")
    tree.commit("2, mended")
    assert tree.in_work("2", "3") == ["A step", "2, mended"]
    assert tree.in_work("3") == []
    # The next item had begun when the one before it was verified.
    tree.commit("2, mended again")
    tree.place.keep(3, "3 verified")
    assert tree.in_work("2") == ["2, mended", "2, mended again"]
    for number in range(60):
        tree.commit(f"step {number}")
    assert tree.in_work("2") == [f"step {number}" for number in range(10, 60)]


def test_outside_of_git_there_are_no_commits(project, tmp_path):
    (tmp_path / "plain").mkdir()
    place = open_workspace(
        "plain", cwd=str(tmp_path / "plain"), state_directory=str(project.state), in_place=True
    )
    assert commits_in_work(place, ["1"], ["1"], is_merged=False) == ()
