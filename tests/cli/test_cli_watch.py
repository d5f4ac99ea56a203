import os
import re
import shutil
import signal
import subprocess
import sys
import termios
import time

import pytest
from helpers.program import NOTHING, PROGRAM, environment, run
from helpers.pty_screen import Terminal
from test_cli_status import HOSTILE, store

from ultramon import ContextConfig, create_context_monitor
from ultramon.backends.local.backend import LocalBackend

TAKES_SCREEN, LEAVES_SCREEN = b"\x1b[?1049h", b"\x1b[?1049l\x1b[?25h"
AGES = {"heartbeatAgeSeconds", "livenessReason", "lastHeartbeat", "seq"}


@pytest.fixture
def watch(tmp_path):
    """Starts the table of `ultramon watch` on a terminal, looking often."""
    started = []

    def start(*arguments, **options):
        terminal = Terminal(
            *("watch", "--state-dir", tmp_path, "--interval", "0.1", "--format", "table"),
            *arguments,
            **options,
        )
        started.append(terminal)
        return terminal

    yield start
    for terminal in started:
        terminal.child.close(force=True)


@pytest.fixture
def agent(tmp_path):
    """Makes agents with a window of 1,000 tokens."""
    backend = LocalBackend(str(tmp_path))

    def make(agent_id, **options):
        config = ContextConfig(context_limit_tokens=1_000, on_error="raise")
        return create_context_monitor(agent_id, config, backend=backend, **options)

    yield make
    backend.close()


def everything(directory):
    """Every file below a directory with its content and its time."""
    return {
        path: (path.read_bytes(), path.stat().st_mtime_ns)
        for path in directory.rglob("*")
        if path.is_file()
    }


def test_the_picture_follows_the_agents(watch, agent):
    """Levels, order, tasks and ends appear while it runs, without erasing anything first."""
    terminal = watch(columns=120)
    terminal.wait_for("^no agents, q ends")
    with agent("a") as calm, agent("b", label="scout") as other:
        terminal.wait_for(r"agent +level +usage +tokens +beat +state +id")
        terminal.wait_for(r"a +unknown +\? +\? of 1,000 .*\d s .*working\nscout +unknown.* b\n")
        terminal.wait_for("2 living, q ends")
        other.report_usage(input_tokens=750)
        terminal.wait_for(r"scout +warning 70%\+ of 1\.0k +█+ +75 % +750 of 1,000.*\na +unknown")
        calm.report_usage(input_tokens=900)
        terminal.wait_for(r"a +critical .*90 %.*\nscout")
        with other.task("read.py"):
            other.update_heartbeat()
            terminal.wait_for(r"scout .* read\.py +working")
        calm.record_compaction(100)
        terminal.wait_for(r"scout .*\na +normal .*10 %")
    terminal.wait_for("^2 ended, shown with --all, q ends")
    terminal.child.send("q")
    assert terminal.end() == (0, None)
    assert not re.search(rb"\x1b\[[0-3]?[JK]", terminal.raw)
    assert terminal.raw.startswith(TAKES_SCREEN)
    assert terminal.raw.endswith(LEAVES_SCREEN)
    assert b"\x1b[?25h" in terminal.raw[-50:], "the cursor is back"


@pytest.mark.parametrize(
    ("key", "sent", "ends"),
    [
        ("q", None, (0, None)),
        ("Q", None, (0, None)),
        ("\x03", None, (0, None)),
        (None, signal.SIGINT, (0, None)),
        (None, signal.SIGTERM, (None, signal.SIGTERM)),
        (None, signal.SIGHUP, (None, signal.SIGHUP)),
    ],
)
def test_it_leaves_the_terminal_as_it_was(watch, key, sent, ends):
    """However it ends, keys are echoed again and the screen is the old one."""
    terminal = watch()
    terminal.wait_for("no agents")
    assert not termios.tcgetattr(terminal.child.child_fd)[3] & termios.ECHO
    if key is not None:
        terminal.child.send(key)
    else:
        terminal.child.kill(sent)
    while terminal.read():
        pass
    assert termios.tcgetattr(terminal.child.child_fd)[3] & termios.ECHO
    assert terminal.raw.endswith(LEAVES_SCREEN)
    assert terminal.end() == ends


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs a shell with job control")
def test_it_can_be_suspended(tmp_path):
    """Ctrl-Z gives the shell its terminal back; in the foreground again it continues."""
    store(tmp_path, "here")
    script = '"$0" watch --format table --state-dir "$1"; echo "back in the shell"; fg'
    terminal = Terminal("-mc", script, PROGRAM, tmp_path, program="bash")
    terminal.wait_for("1 living, q ends")
    terminal.child.send("\x1a")
    terminal.wait_for_bytes(
        re.escape(LEAVES_SCREEN) + b".*back in the shell.*" + re.escape(TAKES_SCREEN)
    )
    terminal.wait_for(r"^agent .*\nhere [^\n]*\n1 living, q ends$")
    terminal.child.send("q")
    assert terminal.end() == (0, None)


def test_it_takes_the_new_size_of_the_terminal(watch, tmp_path):
    """Made narrow it leaves columns out, made low it leaves the least urgent out."""
    store(tmp_path, "full", threshold_status="critical", usage_ratio=0.9)
    for number in range(9):
        store(tmp_path, f"calm-{number}")
    terminal = watch(columns=120, rows=20)
    terminal.wait_for("tokens +beat +state")
    terminal.wait_for("calm-8")
    assert not any("more than fit" in line for line in terminal.lines)
    terminal.resize(7, 60)
    terminal.wait_for(r"^agent +level +usage +tokens +beat +state\nfull")
    terminal.wait_for("10 living, 6 more than fit, q ends")
    assert len(terminal.lines) == 6
    terminal.resize(20, 120)
    terminal.wait_for("tokens +beat +state")
    terminal.wait_for("calm-8")


@pytest.mark.parametrize(
    ("kind", "notifications"),
    [
        ("none", []),
        ("bell", ["\a"] * 3),
        (
            "osc9",
            [
                "\x1b]9;ultramon: scout warning 75 %\x1b\\",
                "\x1b]9;ultramon: scout critical 90 %\x1b\\",
                "\x1b]9;ultramon: scout warning 71 %\x1b\\",
            ],
        ),
    ],
)
def test_each_crossing_is_notified_once(watch, agent, tmp_path, kind, notifications):
    """Upward crossings seen while watching ring, and nothing else does."""
    store(tmp_path, "before", threshold_status="critical", announced={"rungs": {"critical": 1}})
    terminal = watch("--notify", kind)
    terminal.wait_for("before")
    with agent("scout") as scout:
        for tokens in (750, 900):
            scout.report_usage(input_tokens=tokens)
            terminal.wait_for(f"{tokens} of 1,000")
        scout.record_compaction(100)
        terminal.wait_for("100 of 1,000")
        scout.report_usage(input_tokens=710)
        terminal.wait_for("710 of 1,000")
    terminal.wait_for("1 ended")
    terminal.child.send("q")
    assert terminal.end() == (0, None)
    assert re.findall(r"\a|\x1b\]9;.*?\x1b\\", terminal.raw.decode()) == notifications


def test_nothing_is_drawn_while_nothing_changes(watch, tmp_path):
    """It looks again and again, and draws no further frame."""
    if not os.path.exists("/proc/self/status"):
        pytest.skip("the system does not tell how often a process waited")
    store(tmp_path, "past", active=False, outcome="returned")
    terminal = watch("--all")
    terminal.wait_for("past .*returned")
    terminal.wait_for("1 ended, q ends")

    def waits():
        with open(f"/proc/{terminal.child.pid}/status", encoding="ascii") as file:
            return int(re.search(r"^voluntary_ctxt_switches:\s+(\d+)", file.read(), re.M)[1])

    before, drawn = waits(), terminal.raw.count(b"\x1b[H")
    while waits() < before + 10:
        terminal.read(0.1)
    assert terminal.raw.count(b"\x1b[H") == drawn


def test_an_agent_that_is_killed_becomes_lost(watch, tmp_path):
    """A vanished process is seen at the next look, and comes first."""
    store(tmp_path, "full", threshold_status="critical", usage_ratio=0.9)
    code = """
import sys
from ultramon import create_context_monitor
create_context_monitor("scout-1").start()
sys.stdin.read()
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        env=environment(ULTRAMON_STATE_DIR=str(tmp_path)),
    )
    with process:
        terminal = watch(columns=150)
        terminal.wait_for(r"full .*\nscout-1 +unknown .*working")
        process.kill()
    terminal.wait_for(r"scout-1 .*LOST: process \d+ is gone\nfull")
    terminal.wait_for("1 living, 1 lost, q ends")


def test_what_cannot_be_read_is_named(watch, tmp_path):
    """A few by name, all by number; they hide no agent."""
    store(tmp_path, "calm")
    for number in range(5):
        (tmp_path / "subagents" / f"torn-{number}.json").write_text("{")
    terminal = watch()
    terminal.wait_for(r"calm .*\ntorn-\d cannot be read: ")
    terminal.wait_for("1 living, 5 unreadable, q ends")
    assert sum("cannot be read" in line for line in terminal.lines) == 3


def test_a_hostile_state_cannot_touch_the_terminal(watch, tmp_path):
    """The terminal receives text and the sequences that we draw with."""
    texts = ("run", "session_id", "label", "model", "phase", "current_task", "limit_source")
    store(tmp_path, "evil", **dict.fromkeys(texts, HOSTILE), threshold_status=HOSTILE)
    (tmp_path / "subagents" / "x\x1b[31m\a.json").write_text("{")
    terminal = watch("--notify", "osc9", columns=160)
    terminal.wait_for(r"\n\\x1b\[31mred.* evil\n")
    terminal.wait_for(r"x\\x1b\[31m\\x07 cannot be read")
    store(tmp_path, "evil", label=HOSTILE, announced={"rungs": {HOSTILE: 1, "x": []}})
    terminal.wait_for(r" normal .* evil\n")
    terminal.child.send("q")
    assert terminal.end() == (0, None)
    raw = re.sub(r"\x1b\]9;ultramon: evil [\x20-\x7e]*\x1b\\", "", terminal.raw.decode(), count=1)
    plain = re.sub(r"\x1b\[(\?(1049|25)[hl]|[0-9;]*[Hm])", "", raw)
    assert set(re.findall(r"[^\x20-\x7e]", plain)) <= set("\r\n…█▏▎▍▌▋▊▉")


@pytest.mark.parametrize("form", ["table", "json", "tmux"])
def test_watching_changes_nothing(tmp_path, form):
    """No file appears, none gets another content or another time."""
    store(tmp_path, "gone", last_heartbeat=1e9, started_at=1e9)
    store(tmp_path, "calm")
    before = everything(tmp_path)
    done = run("watch", "--once", "--format", form, "--state-dir", tmp_path)
    assert done.returncode == 0
    assert everything(tmp_path) == before


def test_once_prints_what_status_prints_and_the_heartbeats(tmp_path):
    """The same rows, one column more; words on stderr."""
    store(tmp_path, "calm", last_heartbeat=time.time() - 20)
    store(tmp_path, "past", active=False, outcome="returned")
    done = run("watch", "--once", "--state-dir", tmp_path)
    same = run("status", "--state-dir", tmp_path)
    assert done.returncode == 0
    assert re.search(r" beat .*\ncalm .* 2\d s ", done.stdout)
    without = [re.sub(r" beat | \d+ s ", " ", line).split() for line in done.stdout.splitlines()]
    assert without == [line.split() for line in same.stdout.splitlines()]
    assert done.stderr == same.stderr == "1 ended, shown with --all\n"
    assert "past" in run("watch", "--once", "--all", "--state-dir", tmp_path).stdout
    assert run("watch", "--once", "--run", "other", "--state-dir", tmp_path).stderr == NOTHING


def test_a_dumb_terminal_gets_plain_text(watch, tmp_path):
    """With TERM=dumb nothing but text reaches the terminal."""
    store(tmp_path, "calm")
    terminal = watch(TERM="dumb")
    terminal.wait_for("calm .*working")
    terminal.child.sendintr()
    assert terminal.end() == (0, None)
    assert b"\x1b" not in terminal.raw
