"""Commands at events: run once, with an environment that is named, bounded in time and number."""

import json
import os
import signal
import subprocess
import sys
from contextlib import ExitStack, closing

import pytest
from helpers.hooked_session import HookedSession
from helpers.noted_program import NotedProgram
from helpers.program import PROGRAM, environment
from helpers.waiting import until

from ultramon import ContextConfig, create_context_monitor
from ultramon.backends.level_watch import LevelWatch
from ultramon.backends.local.backend import LocalBackend
from ultramon.errors import ConfigurationError
from ultramon.fleet.consumer import LEASE_SECONDS
from ultramon.fleet.event_commands import ENVIRONMENT, LATE_SECONDS, EventCommands
from ultramon.notices.commands import read_commands
from ultramon.state.command_runs import StoredRuns, commands_key
from ultramon.state.plan_limits import FIVE_HOURS, PlanLimits, plan_limit
from ultramon.testing import FakeClock, fill

CONFIG = ContextConfig(context_window_tokens=200_000)


@pytest.fixture
def program(tmp_path):
    return NotedProgram(tmp_path)


@pytest.fixture
def directory(tmp_path):
    path = tmp_path / "state"
    path.mkdir(mode=0o700)
    return str(path)


@pytest.fixture
def backend(directory):
    with closing(LocalBackend(directory)) as backend:
        yield backend


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def configure(tmp_path, monkeypatch, program):
    """Write a real settings file with a command for each event that is named."""
    path = tmp_path / "own.toml"
    monkeypatch.setenv("ULTRAMON_CONFIG", str(path))

    def write(*events, arguments=("{event}", "{label}", "{percent} %"), **settings):
        run = json.dumps([settings.pop("program", str(program.path)), *arguments])
        rest = "".join(f"{name} = {json.dumps(value)}\n" for name, value in settings.items())
        path.write_text("".join(f"[on.{event}]\nrun = {run}\n{rest}" for event in events))

    return write


@pytest.fixture
def watching(backend, directory, clock):
    """Make watches that have begun; each ends with the test."""
    made = []

    def watch(store=None):
        one = EventCommands(store or backend, directory, clock=clock)
        made.append(one)
        one.look()
        return one

    yield watch
    for one in made:
        one.stop()


def stored(directory):
    return StoredRuns(directory, commands_key(read_commands()[1]))


def ran(directory):
    """How many runs of all commands were noted."""
    return sum(one.ran for one in stored(directory).read().values())


def settle(watch):
    """Wait until what was begun has ended."""
    for worker in watch._workers:
        worker.join()


@pytest.fixture
def make(backend, clock):
    """Start an agent of a program."""
    monitors = []

    def start(agent_id="scout-1", **options):
        monitor = create_context_monitor(
            agent_id, CONFIG, backend=backend, clock=clock, **({"label": "scout"} | options)
        )
        monitors.append(monitor)
        monitor.start()
        return monitor

    yield start
    for monitor in monitors:
        monitor.stop("completed")


def test_a_level_runs_its_command_once(configure, watching, make, program):
    configure("warning", "critical")
    watch, monitor = watching(), make()
    fill(monitor, 0.88)
    assert watch.look() == 1
    assert watch.look() == 0
    settle(watch)
    assert program.calls == [["critical", "scout", "88 %"]]


def test_every_kind_of_store_has_it_run_once(configure, store, directory, program):
    """As the journal is read and the name is held in each of them."""
    configure("critical")
    first, second = (EventCommands(store, directory) for _ in range(2))
    first.look()
    with create_context_monitor("scout-1", CONFIG, backend=store) as monitor:
        fill(monitor, 0.9)
        assert [second.look(), first.look(), second.look(), first.look()] == [0, 1, 0, 0]
        first.stop()
        second.stop()
    assert program.calls == [["critical", "scout-1", "90 %"]]


def test_without_commands_nothing_is_stored(tmp_path, clock, monkeypatch):
    """Not even the directory, where there is none."""
    monkeypatch.setenv("ULTRAMON_CONFIG", os.devnull)
    with closing(LocalBackend(str(tmp_path / "none"))) as backend:
        watch = EventCommands(backend, str(tmp_path / "none"), clock=clock)
        assert watch.look() == 0
        watch.stop()
    assert not (tmp_path / "none").exists()


def test_what_happened_before_the_first_start_runs_nothing(configure, watching, make, program):
    configure("critical")
    fill(make(), 0.9)
    watch = watching()
    assert watch.look() == 0
    settle(watch)
    assert program.calls == []


def test_of_two_watches_one_runs_it(configure, watching, make, program, directory):
    """And the other one continues when the first has stopped."""
    configure("critical", "ended")
    with closing(LocalBackend(directory)) as other:
        first, second = watching(), watching(other)
        monitor = make()
        fill(monitor, 0.9)
        assert [first.look(), second.look(), first.look()] == [1, 0, 0]
        first.stop()
        monitor.stop("completed")
        second._next_try_at = 0.0
        assert second.look() == 1
        settle(second)
    assert [one[0] for one in program.calls] == ["critical", "ended"]


def test_a_watch_that_was_suspended_runs_nothing_a_second_time(
    configure, watching, make, program, directory, clock, backend
):
    """It has read the event, another one takes over and runs it, then it continues."""
    configure("critical")
    first = watching()
    fill(make(), 0.9)
    event = first._consumer.read()
    while event["type"] != "context_threshold_reached":
        first._consumer.move_on()
        event = first._consumer.read()
    first._consumer.move_on()
    clock.advance(LEASE_SECONDS + 1)
    with closing(LocalBackend(directory)) as other:
        second = watching(other)
        settle(second)
        assert len(program.calls) == 1
        assert first._handle(first._occasion(event)) is False
        assert first.look() == 0
    assert len(program.calls) == 1


def test_the_environment_is_the_one_that_is_named(
    configure, watching, make, program, directory, monkeypatch
):
    """No key of the process that runs it."""
    for name in ENVIRONMENT:
        if name not in ("PATH", "HOME", "LANG", "LC_ALL"):
            monkeypatch.setenv(name, f"a {name}")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "s3cret")
    monkeypatch.setenv("ULTRAMON_BACKEND", "")
    monkeypatch.delenv("WAYLAND_DISPLAY")
    configure("critical")
    watch = watching()
    fill(make(), 0.9)
    watch.look()
    settle(watch)
    (run,) = program.runs
    expected = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
    ignored = {"LC_CTYPE": run["env"].get("LC_CTYPE")}  # Python sets it for itself
    assert {**ignored, **run["env"]} == {**ignored, **expected, "ULTRAMON_STATE_DIR": directory}
    assert "WAYLAND_DISPLAY" not in run["env"]
    assert run["cwd"] == os.path.realpath(os.path.expanduser("~"))


@pytest.mark.parametrize("label", ["--exec=sh", "@/etc/passwd", "$(touch x); 'a' \"b\" `c`"])
def test_a_hostile_label_stays_an_argument(configure, watching, make, program, label):
    configure("critical", arguments=["{label}", "{text}"])
    watch = watching()
    fill(make(label=label), 0.9)
    watch.look()
    settle(watch)
    ((shown, text),) = program.calls
    assert shown.strip() == label
    assert not shown.startswith(("-", "@"))
    assert label in text
    assert not text.startswith(("-", "@"))


def test_it_runs_only_so_often_within_a_minute(
    configure, watching, make, program, directory, clock
):
    """Whoever runs it: the times are stored with the cursor."""
    configure("critical", per_minute=2)
    watch = watching()
    for number in range(4):
        fill(make(f"scout-{number}"), 0.9)
    assert watch.look() == 2
    settle(watch)
    watch.stop()
    assert stored(directory).read()["critical"].skipped == 2
    following = watching()
    fill(make("scout-4"), 0.9)
    assert following.look() == 0
    clock.advance(61)
    fill(make("scout-5"), 0.9)
    assert following.look() == 1
    settle(following)
    assert len(program.calls) == 3


def test_a_command_that_takes_too_long_is_killed_and_noted(
    configure, watching, make, directory, caplog
):
    configure(
        "critical", program=sys.executable, arguments=["-c", "import signal; signal.pause()"],
        seconds=0.5,
    )  # fmt: skip
    watch = watching()
    fill(make(), 0.9)
    watch.look()
    settle(watch)
    found = stored(directory).read()["critical"]
    assert (found.ran, found.failed) == (1, 1)
    assert found.last_problem == "took more than 0.5 s and was killed"
    assert caplog.messages == [f"the command at critical failed: {found.last_problem}"]


def test_a_stop_ends_what_runs(configure, watching, make, directory, caplog):
    configure(
        "critical", program=sys.executable, arguments=["-c", "import signal; signal.pause()"],
        seconds=60,
    )  # fmt: skip
    watch = watching()
    fill(make(), 0.9)
    watch.look()
    watch.stop()
    assert "ended with its starter" in stored(directory).read()["critical"].last_problem


def test_what_happened_just_before_the_stop_is_seen(configure, watching, make, program):
    """As the end of a relay's last context is."""
    configure("ended")
    watch = watching()
    make().stop("completed")
    watch.stop()
    assert [one[:2] for one in program.calls] == [["ended", "scout"]]


def test_an_event_from_a_time_without_a_watch_runs_nothing(
    configure, watching, make, program, directory, clock
):
    configure("critical")
    watching().stop()
    fill(make(), 0.9)
    clock.advance(LATE_SECONDS + 1)
    watch = watching()
    settle(watch)
    assert program.calls == []
    assert stored(directory).read()["critical"].late == 1


def test_subagents_run_nothing_unless_it_is_asked_for(configure, watching, make, program):
    configure("critical")
    watch = watching()
    make("boss")
    fill(make("child-1", parent_id="boss"), 0.9)
    assert watch.look() == 0
    configure("critical", children=True)
    fill(make("child-2", parent_id="boss"), 0.9)
    assert watch.look() == 1
    settle(watch)
    assert len(program.calls) == 1


def test_compactions_and_ends(configure, watching, make, program):
    configure("compacted", "ended", arguments=["{event}", "{label}", "{reason}"])
    watch, monitor = watching(), make()
    fill(monitor, 0.5)
    monitor.record_compaction(tokens_after=1_000)
    watch.look()
    settle(watch)
    monitor.stop("failed")
    watch.look()
    settle(watch)
    assert program.calls == [["compacted", "scout", "compaction"], ["ended", "scout", "failed"]]


def test_a_plan_that_is_announced_at_the_start_is_seen(
    configure, backend, directory, program, clock
):
    """The commands begin before the levels are looked at."""
    configure("plan")
    now = clock.now()
    limit = plan_limit(FIVE_HOURS, 90, now + 7_200, now)
    PlanLimits(directory).record("claude-code", "/srv/dev/.claude", [limit], now)
    watch = EventCommands(backend, directory, clock=clock)
    watch._take_hold()
    LevelWatch(backend, directory, "serve", clock=clock).look()
    assert watch.look() == 1
    watch.stop()
    assert program.calls == [["plan", "/srv/dev/.claude", "90 %"]]


def test_a_session_that_asks_for_a_permission(configure, tmp_path, program):
    """Its hooks run as the client runs them; each wait runs the command once."""
    configure("waiting", arguments=["{event}", "{reason}", "{project}", "{text}"])
    hooked = HookedSession(tmp_path)
    hooked.call("SessionStart", source="startup")
    with closing(LocalBackend(str(hooked.state))) as backend:
        watch = EventCommands(backend, str(hooked.state))
        assert watch.look() == 0
        hooked.call("PermissionRequest", tool_name="Bash", tool_input={})
        assert [watch.look(), watch.look()] == [1, 0]
        settle(watch)
        hooked.call("Notification", notification_type="permission_prompt")
        assert watch.look() == 0
        hooked.tool(1_000)
        assert watch.look() == 0
        hooked.call("PermissionRequest", tool_name="Bash", tool_input={})
        assert watch.look() == 1
        watch.stop()
        following = EventCommands(backend, str(hooked.state))
        assert following.look() == 0
        following.stop()
    first, _ = program.calls
    assert first[:3] == ["waiting", "permission", str(hooked.project)]
    assert first[3].endswith(": waits for a permission")


def test_a_change_of_the_settings_needs_no_restart(configure, watching, make, program, caplog):
    configure("warning")
    watch, monitor = watching(), make()
    configure("critical", "warnin")
    fill(monitor, 0.72)
    assert [watch.look(), watch.look()] == [1, 0]
    settle(watch)
    (said,) = caplog.messages
    assert "stay as they were" in said
    assert "did you mean warning?" in said
    configure("critical")
    fill(monitor, 0.9)
    assert watch.look() == 1
    settle(watch)
    assert [one[0] for one in program.calls] == ["warning", "critical"]


def test_wrong_settings_are_refused_at_the_start(configure, backend, directory):
    configure("criticl")
    with pytest.raises(ConfigurationError, match="did you mean critical"):
        EventCommands(backend, directory)


def test_a_project_runs_nothing_until_it_is_trusted(
    configure, watching, make, program, tmp_path, monkeypatch
):
    """A cloned repository may bring the file along."""
    from ultramon.system import trusted_files

    configure("critical")
    project = tmp_path / "project"
    project.mkdir()
    data = (tmp_path / "own.toml").read_bytes()
    (project / "ultramon.toml").write_bytes(data)
    monkeypatch.delenv("ULTRAMON_CONFIG")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home" / ".config"))
    monkeypatch.chdir(project)
    watch = watching()
    fill(make("one"), 0.9)
    assert watch.look() == 0
    trusted_files.trust(str(project / "ultramon.toml"), data)
    assert watch.look() == 0
    fill(make("two"), 0.9)
    assert watch.look() == 1
    (project / "ultramon.toml").write_bytes(data + b"\n")
    fill(make("three"), 0.9)
    assert watch.look() == 0
    settle(watch)
    assert len(program.calls) == 1


def test_two_watches_in_processes_of_their_own_run_it_once(configure, directory, program):
    """Real programs on one directory, of which the one that runs commands is killed."""
    configure("critical", "ended", arguments=["{event}", "{agent}"])
    environ = environment(
        ULTRAMON_STATE_DIR=directory, ULTRAMON_CONFIG=os.environ["ULTRAMON_CONFIG"]
    )
    with closing(LocalBackend(directory)) as backend, ExitStack() as stack:
        running = []
        for command in (("watch", "--format", "json"), ("serve", "--port", "0")):
            process = subprocess.Popen(
                [PROGRAM, *command],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=environ,
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            running.append(process)
            until(lambda: stored(directory).watched_at() is not None, process)
        for number in range(3):
            with create_context_monitor(f"scout-{number}", CONFIG, backend=backend) as monitor:
                fill(monitor, 0.9)
            done = 2 * number + 2
            # Noted after the program has ended: a kill before that would leave the count out.
            until(lambda most=done: ran(directory) >= most, running[-1])
            if number == 0:
                holder, other = running
                holder.kill()
                holder.wait(30)
                running = [other]
        running[-1].send_signal(signal.SIGTERM)
        running[-1].wait(30)
    assert sorted(program.calls) == [
        [event, f"scout-{number}"] for event in ("critical", "ended") for number in range(3)
    ]


@pytest.mark.parametrize("command", [("web", "--port", "0"), ("watch", "--format", "table")])
def test_each_of_the_others_runs_them_too(configure, directory, program, command):
    configure("critical", arguments=["{agent}"])
    environ = environment(
        ULTRAMON_STATE_DIR=directory, ULTRAMON_CONFIG=os.environ["ULTRAMON_CONFIG"]
    )
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with (
        closing(LocalBackend(directory)) as backend,
        subprocess.Popen([PROGRAM, *command], env=environ, **quiet) as process,
        ExitStack() as stack,
    ):
        stack.callback(process.kill)
        until(lambda: stored(directory).watched_at() is not None, process)
        with create_context_monitor("scout-1", CONFIG, backend=backend) as monitor:
            fill(monitor, 0.9)
            until(lambda: program.calls, process)
        process.send_signal(signal.SIGTERM)
        process.wait(30)
    assert program.calls == [["scout-1"]]
