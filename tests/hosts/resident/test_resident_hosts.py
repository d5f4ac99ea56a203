"""The launcher and the resident of every host: what they change is the time alone."""

import os
import re
import signal
import sys
from importlib import import_module
from itertools import pairwise

import pytest
from helpers.codex_session import CodexRun
from helpers.copilot_session import CopilotRun
from helpers.gemini_session import GeminiRun
from helpers.host_home import HostHome
from helpers.qwen_session import NEW, OLD, QwenRun
from helpers.requirements import read_only
from helpers.resident_session import until

from ultramon.hosts.calls.session_environment import OWN_VARIABLES
from ultramon.hosts.install.hook_commands import command_line, script_path
from ultramon.hosts.install.launcher import Launcher
from ultramon.hosts.installed_choices import choices_path
from ultramon.hosts.registry import find_host
from ultramon.hosts.resident import forwarder
from ultramon.system.findings import OK, PROBLEM, WARNING

FOLDERS = {"claude-code": "claude_code", "codex": "codex", "copilot": "copilot",
           "gemini": "gemini", "opencode": "opencode", "qwen": "qwen"}  # fmt: skip
RUNS = {
    "codex": CodexRun,
    "copilot": CopilotRun,
    "gemini": GeminiRun,
    "qwen": lambda path, name: QwenRun(path, NEW, name),
    "qwen 0.15": lambda path, name: QwenRun(path, OLD, name),
}
ANSWERED = [("codex", "plain"), ("gemini", "compress"), ("qwen 0.15", "plain")]
"""Of each host a run in which an agent is told something."""
OTHERS = [
    ("codex", "codemode"), ("codex", "compact"), ("codex", "resume"), ("codex", "subagents"),
    ("copilot", "compaction"), ("gemini", "plain"), ("gemini", "resume"), ("gemini", "subagent"),
    ("qwen", "compact"), ("qwen", "overflow"), ("qwen", "plain"), ("qwen", "resume"),
    ("qwen", "subagents"), ("qwen 0.15", "compact"), ("qwen 0.15", "overflow"),
    ("qwen 0.15", "resume"), ("qwen 0.15", "subagents"),
]  # fmt: skip
_TIME = re.compile(r"\b\d\d:\d\d(:\d\d)?Z")
_FIELDS = (
    "active", "outcome", "phase", "epoch", "generation", "label", "model", "context_limit",
    "context_window", "estimated_tokens", "threshold_status", "parent_id", "announced", "tasks",
)  # fmt: skip


@pytest.fixture
def replayed(tmp_path):
    """Make a recorded run in a folder of its own."""

    def make(host, name, folder):
        path = tmp_path / folder
        path.mkdir()
        return RUNS[host](path, name)

    return make


def outcome(run, before_call=lambda number: None):
    """What each call was answered, without the times in it, and what has become of the agents."""
    answers = []
    for number in range(len(run.calls)):
        before_call(number)
        run.step()
        for agent_id in run.ids():
            run.record(agent_id)  # all is stored before the files grow
        answers.append(_TIME.sub("", run.answers[-1].stdout.decode()))
    agents = {
        agent_id: [getattr(record, field) for field in _FIELDS]
        for agent_id in run.ids()
        for record in [run.record(agent_id)]
    }
    return answers, agents


@pytest.mark.parametrize(
    ("host", "name"),
    [*ANSWERED, *(pytest.param(*one, marks=pytest.mark.exhaustive) for one in OTHERS)],
)
def test_a_resident_answers_as_the_processes_do(replayed, host, name):
    """The same bytes at the same calls, in the host's own form, and the same states."""
    alone = outcome(replayed(host, name, "alone"))
    run = replayed(host, name, "answered")
    with run.asking_resident() as place:
        assert outcome(run, lambda number: number and until(place.ask, "none runs")) == alone
        facts = place.ask()
    # The first call has started it.
    assert (facts["calls"], facts["refused"]) == (len(run.calls) - 1, 0)
    assert run.failures() == []


@pytest.mark.parametrize("host", ["codex", "gemini", "qwen"])
def test_some_calls_are_answered_before_their_reading_is_stored(replayed, host):
    """Those far from a rung, of every host."""
    run = replayed(host, "plain", "answered")
    with run.asking_resident() as place:
        outcome(run, lambda number: number and until(place.ask, "none runs"))
        assert place.ask()["atOnce"] > 0


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.exhaustive)]
)
@pytest.mark.parametrize(("host", "name"), ANSWERED)
def test_one_that_is_killed_or_stopped_halfway_is_missed_by_nobody(replayed, host, name, number):
    """Its socket is still there; every call after that does everything itself."""
    alone = outcome(replayed(host, name, "alone"))
    run = replayed(host, name, "disturbed")
    stopped = []

    def disturb(step):
        if step == len(run.calls) // 2:
            stopped.append(until(run.place.running, "no resident runs")["pid"])
            os.kill(stopped[0], number)

    with run.asking_resident():
        try:
            assert outcome(run, disturb) == alone
        finally:
            if number == signal.SIGSTOP:
                os.kill(stopped[0], signal.SIGCONT)
    assert [one for one in run.failures() if "was killed" not in one] == []


@pytest.mark.parametrize(("host", "name"), ANSWERED)
def test_a_disk_that_takes_nothing_changes_no_answer(replayed, host, name):
    """What the resident cannot store the process could not store either."""

    def answers_of(run):
        for _ in range(3):
            run.step()
        run.record(run.ids()[0])
        with read_only(run.state):
            while len(run.answers) < len(run.calls):
                run.step()
        return [_TIME.sub("", one.stdout.decode()) for one in run.answers]

    alone = answers_of(replayed(host, name, "alone"))
    run = replayed(host, name, "answered")
    with run.asking_resident():
        assert answers_of(run) == alone


def test_one_resident_answers_sessions_of_all_hosts(replayed):
    """Whichever host's session has started it; each call has the answer of its own host."""
    runs = [replayed(host, name, host) for host, name in ANSWERED]
    shared = runs[0]
    with shared.asking_resident() as place:
        outcome(shared)
        pid, count = place.ask()["pid"], place.ask()["calls"]
        for run in runs[1:]:
            run.state, run.place = shared.state, place
            run.environ["XDG_RUNTIME_DIR"] = shared.environ["XDG_RUNTIME_DIR"]
            run.environ["HOME"] = shared.environ["HOME"]
            run.choose(resident=True)
            answers, _ = outcome(run)
            assert any(answers)
            facts = place.ask()
            assert (facts["pid"], facts["calls"]) == (pid, count + len(run.calls))
            count = facts["calls"]


def test_it_stays_while_one_installation_wants_it(replayed):
    """A host that has taken its own out leaves that of another one."""
    codex, gemini = (replayed(host, name, host) for host, name in ANSWERED[:2])
    with codex.asking_resident() as place:
        codex.step()
        until(place.running, "no resident runs")
        gemini.state, gemini.place = codex.state, place
        gemini.environ |= {n: codex.environ[n] for n in ("XDG_RUNTIME_DIR", "HOME")}
        gemini.choose(resident=True)
        gemini.step()
        pid = place.ask()["pid"]
        os.unlink(choices_path(str(codex.state), "codex"))
        gemini.step()
        assert place.ask()["pid"] == pid


@pytest.mark.parametrize("name", FOLDERS)
def test_the_listed_variables_are_all_that_are_read(name):
    """A variable that a host reads and a forwarder does not send would be ignored silently."""
    host = find_host(name)
    hook = import_module(f"ultramon.hosts.{FOLDERS[name]}.hook")
    # Within a relay nothing is sent.
    read = {*host.dialect.environment_variables(), *OWN_VARIABLES} - {"ULTRAMON_RELAY"}
    sent = {*hook.FORWARDED, *forwarder.OWN_VARIABLES}
    assert sent == read | {"HOME", "ULTRAMON_STATE_DIR", "NO_COLOR"}


def imported(run, launcher):
    """Run the next call by a launcher; the modules that were imported one by one."""
    launcher.write()
    log = run.state.parent / "imports"
    words = [sys.executable, "-I", "-S", "-X", "importtime", launcher.path]
    run.command = lambda: ["sh", "-c", f'exec "$@" 2>{log}', "sh", *words]
    run.step()
    assert run.failures() == []
    return {line.rpartition("|")[2].strip() for line in log.read_text().splitlines()}


def launcher_of(run, **options):
    """The launcher of a run's host, as an installation writes it."""
    script = import_module(f"ultramon.hosts.{run.host}.setup").HOOK
    return Launcher(script, sys.executable, choices_path(str(run.state), run.host), **options)


def to_a_tool(run):
    """Replay until a tool has ended, and another one is next."""
    events = [call["stdin"]["hook_event_name"] for call in run.calls]
    pairs = enumerate(pairwise(events), start=1)
    at = next(n for n, (one, other) in pairs if one == other and "Tool" in one)
    while len(run.answers) < at:
        run.step()


@pytest.mark.parametrize(("host", "name"), ANSWERED)
def test_an_answered_call_loads_next_to_nothing(replayed, host, name):
    """The forwarder alone, for every host."""
    run = replayed(host, name, "answered")
    with run.asking_resident() as place:
        to_a_tool(run)
        until(place.ask, "none runs")
        names = imported(run, launcher_of(run, resident=True))
    ours = {one for one in names if one.startswith("ultramon")}
    assert ours == {
        "ultramon", "ultramon.hosts", f"ultramon.hosts.{run.host}",
        f"ultramon.hosts.{run.host}.hook", "ultramon.hosts.resident",
        "ultramon.hosts.resident.forwarder",
    }  # fmt: skip
    assert not names & {"os", "json", "socket", "select"}


@pytest.fixture(params=sorted(set(FOLDERS) - {"claude-code", "opencode"}))
def home(request, tmp_path, monkeypatch):
    """A home of each client that keeps its hooks in one file of the user."""
    for variable in ("CODEX_HOME", "COPILOT_HOME", "QWEN_HOME"):
        monkeypatch.setenv(variable, str(tmp_path / "client"))
    monkeypatch.setenv("GEMINI_CLI_HOME", str(tmp_path))
    folder = tmp_path / (".gemini" if request.param == "gemini" else "client")
    names = {"codex": "hooks.json", "copilot": "hooks/ultramon.json"}
    name = names.get(request.param, "settings.json")
    return HostHome(find_host(request.param), folder / name, tmp_path / "states")


def test_what_is_installed_is_a_launcher_and_the_doctor_knows_it(home):
    """By default it asks a resident; what an earlier version left beside it is named, and goes."""
    name = home.host.name
    launcher = home.states / f"{name}.ultramon-hook"
    code = launcher.with_suffix(".ultramon-hook.code")
    plan = home.install()
    assert "one process answers for all sessions" in plan.contents
    assert f"exec {launcher}" in home.hooks.read_text()
    assert b", 'resident'])" in launcher.read_bytes()
    assert home.findings()[f"{name} resident", OK].message == (
        "none runs; the next session starts one"
    )
    assert home.install(resident=False).contents == "hooks"
    assert "--no-resident was chosen" in home.findings()[f"{name} resident", OK].message
    code.touch()
    assert home.findings()[f"{name} launcher", WARNING].cure == f"ultramon install {name}"
    home.install()
    assert not code.exists()
    assert {status for _, status in home.findings()} == {OK}
    launcher.unlink()
    assert "no hook runs" in home.findings()[f"{name} launcher", PROBLEM].message
    home.install()
    home.uninstall()
    assert not home.states.exists()


def test_the_shell_command_of_an_earlier_version_becomes_a_launcher(home):
    """In its place, once; the hooks go with it as they went."""
    name, hooks = home.host.name, home.hooks
    home.install()
    after = hooks.read_bytes()
    script = import_module(f"ultramon.hosts.{name}.setup").HOOK
    choices = choices_path(str(home.states), name)
    old = command_line(sys.executable, script_path(script), choices)
    hooks.write_bytes(after.replace(f"exec {home.states / script.launcher}".encode(), old.encode()))
    assert hooks.read_bytes() != after
    assert {status for _, status in home.findings()} == {OK}
    home.install()
    assert hooks.read_bytes() == after
