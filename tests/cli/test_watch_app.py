"""`ultramon watch` as an application: the program on a real terminal, its screen as text."""

import os
import re
import shutil
import signal
import subprocess
import sys
import termios
import time
from binascii import crc32

import pytest
from helpers.hooked_session import HookedSession
from helpers.observed_agents import NOW, SESSION, observed, session
from helpers.planted_transcripts import Machine, used
from helpers.program import environment
from helpers.pty_screen import Terminal
from test_cli_status import HOSTILE, store

from ultramon import ContextConfig, create_context_monitor
from ultramon.backends.local.backend import LocalBackend
from ultramon.cli.views.watch.actions import run_way, way_to
from ultramon.cli.views.watch.lines import Look, draw_head, draw_line, list_lines
from ultramon.state.agent_rows import arrange, current
from ultramon.state.budget_readings import BudgetReading, BudgetReadings, Scope
from ultramon.state.plan_limits import FIVE_HOURS, SEVEN_DAYS, PlanLimits, plan_limit
from ultramon.state.record import short_id
from ultramon.system.processes import process_started_at, this_machine

FOLDER = "/home/a/api-server"


@pytest.fixture
def watch(tmp_path):
    """Starts the application on a terminal of the usual size, looking often."""
    started = []

    def start(*arguments, **options):
        options = {"columns": 80, "rows": 24} | options
        terminal = Terminal(
            "watch", "--state-dir", tmp_path, "--interval", "0.1", *arguments, **options
        )
        started.append(terminal)
        return terminal

    yield start
    for terminal in started:
        terminal.child.close(force=True)


def hosted(directory, number, task, child="", memory=None, **values):
    """Store a session of a coding agent, or a subagent of it; return its id."""
    session_id = f"{number:08x}-1111-4222-8333-444455556666"
    facts = {"host": "claude-code", "run": "claude-code", "cwd": FOLDER, "session_id": session_id}
    facts |= {"label": f"api-server: {task}", "heartbeat_interval_seconds": None}
    facts |= {"extra": {"claudeCode": memory or {}}}
    if child:
        facts["parent_id"] = session_id
    own = f"{session_id}.{child}" if child else session_id
    store(directory, own, **facts | values)
    return own


def fill(directory):
    """A screen full of what the list can show."""
    ahead = {"turns": 1, "turnsLow": 1, "turnsHigh": 3, "seconds": 1.0}
    limit = {"turns": 4, "turnsLow": 2, "turnsHigh": 7, "seconds": 4.0}
    pace = {"tokensPerTurn": 9_000.0, "secondsPerTurn": 1.0, "limit": limit}
    pace["rungs"] = {"critical": ahead}
    hosted(directory, 1, "mend the login", usage_ratio=0.78, threshold_status="warning",
           estimated_tokens=156_000, forecast=pace)  # fmt: skip
    hosted(directory, 1, "general-purpose", "a1c3d4", usage_ratio=0.3, phase="in_tool")
    waits = {"waitsFor": "permission"}
    hosted(directory, 2, "port the scripts", phase="waiting", memory=waits)
    hosted(directory, 3, "review it", usage_ratio=None, threshold_status=None, context_limit=None)
    over = {"active": False, "outcome": "returned", "run": "audit"}
    beats = {"heartbeat_interval_seconds": None, "run": "audit"}
    store(directory, "w1", **over)
    store(directory, "w2", predecessor_id="w1", label="9 files", **beats)
    store(directory, "done", **over)


SCREEN = """\
1 needs you: "port the scripts" · api-server 78 %, ~2-7 turns to compaction
  agent                usage                runway state       age id
api-server  run claude-code
> port the scripts      10 % ▊                     permission  now 00000002
  mend the login        78 % ██████▎     1-3 turns working     now 00000001
  └ general-purpose     30 % ██▍                   in tool     now 00000001.a1c3
  review it                ?                       working     now 00000003
run audit
  9 files (2 contexts)  10 % ▊                     working     now w2
Enter go  Space why  h hand over  / filter  ? help  q quit  1 finished"""


def plain(text):
    """What a terminal without Unicode shows instead."""
    for shape, letter in (("·", "-"), ("└ ", "`- ")):
        text = text.replace(shape, letter)
    return re.sub("[▏▎▍▌▋▊▉█]+ *", "BAR ", text)


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_the_screen_on_eighty_columns(watch, tmp_path, encoding):
    """Who needs a person comes first; projects, trees and chains; nothing but text and styles."""
    fill(tmp_path)
    terminal = watch(NO_COLOR="1", PYTHONIOENCODING=encoding, PYTHONUTF8="0")
    terminal.wait_for("q quit .*finished")
    terminal.wait_for("w2")
    if encoding == "utf-8":
        assert terminal.lines == [line for line in SCREEN.splitlines() if line]
    else:
        shown = [re.sub(r"[#.]{8}", "BAR      ", line) for line in terminal.lines]
        expected = [plain(line) for line in SCREEN.splitlines() if line]
        assert [line.split() for line in shown] == [
            line.replace("?", "? BAR", 1).split() if "review" in line else line.split()
            for line in expected
        ]
        assert terminal.raw.isascii()
    assert not re.search(rb"\x1b\[[0-9;]*3[1-7][;m]", terminal.raw), "NO_COLOR"


def test_the_first_line_ends_with_the_limits_of_a_plan(watch, tmp_path):
    """They come while it runs, and are the first to give way where there is no room."""
    hosted(tmp_path, 1, "mend the login", usage_ratio=0.3)
    terminal = watch(columns=120, NO_COLOR="1")
    terminal.wait_for("1 working")
    now = time.time()
    limits = [plan_limit(FIVE_HOURS, 62, now + 7_200, now)]
    PlanLimits(str(tmp_path)).record("claude-code", "/srv/dev/.claude", limits, now)
    terminal.wait_for(r"1 working · 5h 62 %, resets \d\d:\d\d")
    narrow = watch(columns=30, NO_COLOR="1")
    narrow.wait_for("1 working")
    assert "5h" not in narrow.lines[0]


def test_without_room_for_resets_the_first_line_says_how_much_is_used(watch, tmp_path):
    """Eighty columns with a session that needs a person and one near its limit."""
    hosted(tmp_path, 1, "mend the login", usage_ratio=0.3)
    hosted(tmp_path, 2, "port it", phase="waiting", memory={"waitsFor": "permission"})
    now = time.time()
    limits = [plan_limit(FIVE_HOURS, 62, now + 7_200, now)]
    PlanLimits(str(tmp_path)).record("claude-code", "/srv/dev/.claude", limits, now)
    terminal = watch(NO_COLOR="1")
    terminal.wait_for('1 needs you: "port it" · api-server 30 % · 1 working · 5h 62 %, resets')
    narrow = watch(columns=72, NO_COLOR="1")
    narrow.wait_for("mend the login")
    assert narrow.lines[0].endswith(" · 1 working · 5h 62 %")
    # Of one account each row would say the same.
    wide = watch(columns=120, NO_COLOR="1")
    wide.wait_for("mend the login")
    assert " plan " not in wide.lines[1]


def test_with_several_accounts_each_session_shows_the_plan_of_its_own(watch, tmp_path):
    """The fullest limit of the directory that its host reads, as its hooks have kept it."""
    here = {"hostname": this_machine().hostname}
    work, now = str(tmp_path / "work"), time.time()
    week = plan_limit(SEVEN_DAYS, 91, now + 90_000, now)
    plans = PlanLimits(str(tmp_path))
    plans.record("claude-code", work, [plan_limit(FIVE_HOURS, 12, now + 7_200, now), week], now)
    plans.record("codex", str(tmp_path / "codex"), [plan_limit(FIVE_HOURS, 5, now + 90, now)], now)
    kept = {"environment": {"CLAUDE_CONFIG_DIR": work}}
    hosted(tmp_path, 1, "mend the login", memory=kept, **here)
    hosted(tmp_path, 1, "reader", "a1", memory=kept, **here)
    codex = {"extra": {"codex": {"environment": {"CODEX_HOME": str(tmp_path / "codex")}}}}
    hosted(tmp_path, 2, "review it", host="codex", **codex, **here)
    hosted(tmp_path, 3, "elsewhere", memory={"environment": {"CLAUDE_CONFIG_DIR": "/b"}}, **here)
    terminal = watch(columns=120, NO_COLOR="1")
    terminal.wait_for("mend the login .* week 91 % working")
    terminal.wait_for("review it .* 5h 5 % working")
    assert " plan " in terminal.lines[1]
    for name in ("reader", "elsewhere"):
        (line,) = [line for line in terminal.lines if name in line]
        assert "5h" not in line
        assert "week" not in line


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_costs_are_those_of_the_transcripts(watch, tmp_path, encoding):
    """Of each agent and of its run, and more when the transcript grows; blank where unknown."""
    machine = Machine(tmp_path / "machine")
    path = machine.write(SESSION, priced("m1", 100_000))
    subagent = machine.write(SESSION, priced("s1", 40_000), used("s2", 9_000), agent="a1")
    here = {"hostname": this_machine().hostname}
    hosted(tmp_path, 1, "mend the login", memory={"transcriptPath": str(path)}, **here)
    hosted(tmp_path, 1, "reader", "a1", memory={"transcriptPath": str(subagent)}, **here)
    hosted(tmp_path, 2, "review it")
    utf8 = {} if encoding == "utf-8" else {"PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"}
    terminal = watch(columns=100, **utf8)
    least = "≥" if encoding == "utf-8" else ">"
    terminal.wait_for(rf"run claude-code  {least}\$0\.7")
    terminal.wait_for("mend the login .* \\$0.50 ")
    terminal.wait_for("reader .* \\$0.2[0-9] ")
    assert " cost " in terminal.lines[1]
    machine.write(SESSION, priced("m2", 200_000))
    terminal.wait_for("mend the login .* \\$1.50 ")


def test_a_chain_costs_what_all_its_contexts_do(watch, tmp_path):
    """One line stands for them; with a limit the sum of the run is a lower bound."""
    machine = Machine(tmp_path / "machine")
    here = {"hostname": this_machine().hostname}
    ids = [f"{number:08x}-1111-4222-8333-444455556666" for number in (1, 2, 3)]
    paths = [
        str(machine.write(session_id, priced("m1", tokens)))
        for session_id, tokens in zip(ids, (100_000, 200_000, 40_000), strict=True)
    ]
    over = {"active": False, "outcome": "returned"}
    hosted(tmp_path, 1, "mend the login", memory={"transcriptPath": paths[0]}, **over, **here)
    after = {"predecessor_id": ids[0], "usage_ratio": 0.5}
    hosted(tmp_path, 2, "mend the login", memory={"transcriptPath": paths[1]}, **after, **here)
    hosted(tmp_path, 3, "review it", memory={"transcriptPath": paths[2]}, **here)
    terminal = watch(columns=100)
    terminal.wait_for(r"mend the login \(2 contexts\) .* \$1.50 ")
    terminal.wait_for(r"run claude-code  \$1\.70")
    cut = watch("--limit", "2", columns=100)
    cut.wait_for(r"run claude-code  ≥\$")


def priced(name, tokens):
    """A reply of a model whose price is known: $5 a million tokens of input."""
    entry = used(name, tokens, output=0)
    entry["message"]["model"] = "claude-opus-4-5"
    return entry


def test_the_first_line_has_what_is_spent_of_a_budget(watch, tmp_path):
    """Behind the agents and before the plan, each with its name where there are several."""
    hosted(tmp_path, 1, "mend the login", usage_ratio=0.3)
    terminal = watch(columns=120, NO_COLOR="1")
    terminal.wait_for("1 working")
    now = time.time()
    limits = [plan_limit(FIVE_HOURS, 62, now + 7_200, now)]
    PlanLimits(str(tmp_path)).record("claude-code", "/srv/dev/.claude", limits, now)

    def spend(**amounts):
        BudgetReadings(str(tmp_path)).write(
            BudgetReading(
                name,
                Scope(),
                period="day",
                period_key="2026-11-26",
                starts_at=now - 60,
                ends_at=now + 3_600,
                unit="usd",
                limit=20,
                spent=usd,
                is_whole=True,
                levels=(80, 100),
                level=None,
                empties_at=None,
                is_enforced=False,
                measured_at=now,
            )
            for name, usd in amounts.items()
        )

    spend(daily=11.4)
    terminal.wait_for(r"1 working · today \$11.40 of 20 · 5h 62 %")
    spend(daily=20, team=3)
    terminal.wait_for(r"daily today \$20.00 of 20 \(used up\) · team today \$3.00 of 20 · 5h")


def test_keys_move_filter_sort_and_explain(watch, tmp_path):
    """The cursor stays with its agent, the list narrows while one types, Space says why."""
    fill(tmp_path)
    terminal = watch()
    terminal.wait_for("> port the scripts")
    terminal.child.send("\x1b[B")
    terminal.wait_for("> mend the login")
    terminal.child.send("s")
    terminal.wait_for("by usage")
    terminal.wait_for("> mend the login")
    terminal.child.send("/")
    terminal.wait_for("\nfilter\n")
    terminal.child.send("gener")
    terminal.wait_for(r"\ngener\n")
    terminal.wait_for(r"api-server .*\n> mend .*\n  . general-purpose .*\nEnter")
    terminal.child.send("\r")
    terminal.child.send("\x1b")
    terminal.wait_for("9 files")
    terminal.child.send(" ")
    terminal.wait_for(
        "^api-server: mend the login *\n78 % full  156k of 200k tokens  ~2-7 turns to compact"
    )
    terminal.wait_for("resume: cd /home/a/api-server && claude --resume")
    terminal.wait_for(r"SUBAGENTS\n +30 % +in tool +api-server: general-purpose")
    terminal.wait_for("EXPLAIN")
    terminal.child.send("q")
    terminal.wait_for("9 files")
    terminal.child.send("a")
    terminal.wait_for("done .*returned")
    terminal.child.send("?")
    terminal.wait_for("ask the agent to hand over")
    terminal.child.send("\x1b")
    terminal.wait_for("9 files")
    terminal.child.send("q")
    assert terminal.end() == (0, None)


def test_a_thousand_rows_scroll_and_follow_the_size(watch, tmp_path):
    """What is on the screen is drawn; the end of the list is one key away."""
    store(tmp_path, "agent-000", heartbeat_interval_seconds=None)
    state = (tmp_path / "subagents" / "agent-000.json").read_bytes()
    body, _, _ = state.rpartition(b',"crc32":')
    for number in range(1, 1_000):
        own = body.replace(b"agent-000", b"agent-%03d" % number)
        path = tmp_path / "subagents" / f"agent-{number:03}.json"
        path.write_bytes(b'%s,"crc32":%d}\n' % (own, crc32(b"}", crc32(own))))
        path.chmod(0o600)
    terminal = watch()
    terminal.wait_for("> agent-000")
    terminal.wait_for("1-20 of 1,000")
    terminal.child.send("\x1b[F")
    terminal.wait_for("> agent-999")
    terminal.resize(12, 50)
    terminal.wait_for(r"agent +usage +state\n")
    terminal.wait_for("> agent-999")
    assert len(terminal.lines) <= 12
    terminal.child.send("q")
    assert terminal.end() == (0, None)


def test_h_asks_a_program_s_agent_to_return_after_a_confirmation(watch, tmp_path):
    """N asks nothing; y makes `should_return` true in the agent."""
    backend = LocalBackend(str(tmp_path))
    config = ContextConfig(context_limit_tokens=1_000)
    with create_context_monitor("scout", config, backend=backend) as monitor:
        monitor.report_usage(input_tokens=100)
        terminal = watch()
        terminal.wait_for("> scout")
        terminal.child.send("h")
        terminal.wait_for(r"Ask scout to hand over its work\?")
        terminal.child.send("n")
        terminal.wait_for("> scout")
        assert backend.get_request("scout") is None
        terminal.child.send("h")
        terminal.wait_for(r"y yes +n no")
        terminal.child.send("y")
        terminal.wait_for("asked scout to hand over")
        assert monitor.track_content("x").should_return or asked_in_time(monitor)
    backend.close()


def asked_in_time(monitor):
    """Whether the agent learns of the request; it looks about once a second."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if monitor.track_content("x").should_return:
            return True
    return False


def test_h_asks_a_session_once_by_its_own_next_call(watch, tmp_path):
    """A session without a relay is asked in its conversation; the second call is silent."""
    hooked = HookedSession(tmp_path)
    hooked.call("UserPromptSubmit", prompt="mend the roof")
    assert hooked.tool(20_000).text == ""
    terminal = watch("--state-dir", hooked.state)
    terminal.wait_for("> mend the roof")
    terminal.child.send("h")
    terminal.wait_for(r"y yes +n no")
    terminal.child.send("y")
    terminal.wait_for("asked project: mend the roof to hand over")
    assert "asks through ultramon that you hand your work over now" in hooked.tool(21_000).text
    assert hooked.tool(22_000).text == ""


@pytest.mark.skipif(shutil.which("tmux") is None, reason="needs tmux")
def test_enter_goes_to_the_tmux_pane_of_a_session(watch, tmp_path):
    """The pane in which the session's process runs is selected; a foreign pane is not."""
    own = {"TMUX_TMPDIR": str(tmp_path), "TMUX": ""}
    tmux = ["tmux", "-f", "/dev/null"]
    environ = environment(**own)
    start = [*tmux, "new-session", "-d", "-P", "-F", "#{pane_id} #{pane_pid}", "cat"]
    first = subprocess.run(start, env=environ, capture_output=True, check=True, text=True)
    split = [*tmux, "split-window", "-P", "-F", "#{pane_id} #{pane_pid}", "cat"]
    second = subprocess.run(split, env=environ, capture_output=True, check=True, text=True)
    try:
        (pane, pid), (_, other_pid) = first.stdout.split(), second.stdout.split()
        here = this_machine()
        facts = {"hostname": here.hostname, "boot_id": here.boot_id, "memory": {"tmuxPane": pane}}
        for number, task, process in ((1, "there", pid), (2, "elsewhere", other_pid)):
            begun = process_started_at(int(process))
            hosted(tmp_path, number, task, pid=int(process), pid_started_at=begun, **facts)
        terminal = watch(**own)
        terminal.wait_for("> there")
        terminal.child.send("j\r")
        terminal.wait_for(f"elsewhere runs in another terminal, process {other_pid}")
        terminal.child.send("k\r")
        terminal.wait_for(r"\[0\] 0:cat")
        shown = [*tmux, "display-message", "-p", "#{pane_id}"]
        assert subprocess.run(
            shown, env=environ, capture_output=True, text=True, check=True
        ).stdout.split() == [pane]
        subprocess.run([*tmux, "detach-client"], env=environ, check=True)
        terminal.wait_for("back from api-server: there")
    finally:
        subprocess.run([*tmux, "kill-server"], env=environ, check=False)


def test_the_way_to_an_agent(tmp_path):
    """A session that was cut off is resumed by its client, one that lives is not started twice."""
    here = this_machine().hostname
    assert way_to(session(), {}, dict).words.endswith("runs on elsewhere")
    gone = session(hostname=here, cwd=str(tmp_path), active=False)
    way = way_to(gone, {"SHELL": "/bin/sh"}, dict)
    assert way.takes_terminal
    assert way.commands == (("/bin/sh", "-c", f"cd {tmp_path} && claude --resume {SESSION}"),)
    alive = session(hostname=here, heartbeat_interval_seconds=None)
    assert "runs in another terminal" in way_to(alive, {}, dict).words
    program = observed("w", hostname=here, heartbeat_interval_seconds=None)
    assert "it has no terminal" in way_to(program, {}, dict).words
    assert not way_to(observed("w", hostname=here, active=False), {}, dict).commands
    broken = way._replace(commands=(("false",),), takes_terminal=False)
    assert run_way(broken) == "false: 1"


def test_c_continues_a_session_in_a_fresh_one(watch, tmp_path):
    """Its host gets the terminal and the first message; then the list is back."""
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "claude").write_text('#!/bin/sh\npwd; echo "$1"; read answer\n')
    (programs / "claude").chmod(0o755)
    facts = {"hostname": this_machine().hostname, "host": "claude-code", "cwd": str(tmp_path)}
    plan = [{"name": "port the parser", "status": "pending", "result": None}]
    store(tmp_path, SESSION, session_id=SESSION, label="job: full", tasks=plan, **facts)
    terminal = watch(PATH=f"{programs}:{os.environ['PATH']}")
    terminal.wait_for("full")
    terminal.child.send("c")
    terminal.wait_for(rf"{tmp_path}\n")
    terminal.wait_for("- port the parser")
    terminal.child.send("\r")
    terminal.wait_for("back from the session that continues")


@pytest.mark.parametrize(
    ("key", "sent", "ends"),
    [("\x03", None, (0, None)), (None, signal.SIGTERM, (None, signal.SIGTERM))],
)
def test_it_leaves_the_terminal_as_it_was(watch, key, sent, ends):
    """However it ends, keys are echoed again and the screen is the old one."""
    terminal = watch()
    terminal.wait_for("no agents")
    if key is not None:
        terminal.child.send(key)
    else:
        terminal.child.kill(sent)
    while terminal.read():
        pass
    assert termios.tcgetattr(terminal.child.child_fd)[3] & termios.ECHO
    assert b"\x1b[?1049l" in terminal.raw
    assert b"\x1b[?25h" in terminal.raw
    assert terminal.end() == ends


def test_without_textual_there_is_the_table_and_the_way_to_more(tmp_path):
    """Nothing is missing but the application, and one line names its extra."""
    store(tmp_path, "calm")
    code = "import sys; sys.modules['textual'] = None; from ultramon.cli import main; main()"
    arguments = ("-c", code, "watch", "--state-dir", tmp_path)
    terminal = Terminal(*arguments, program=sys.executable)
    terminal.wait_for(r"calm .*\n1 living, q ends, more with .*install .*\[tui\]'")
    terminal.child.send("q")
    assert terminal.end() == (0, None)
    asked = Terminal(*arguments, "--format", "app", program=sys.executable)
    asked.wait_for(r"Error: --format app needs Textual: .*install .*\[tui\]'")
    assert asked.end() == (1, None)


def test_a_hostile_state_cannot_touch_the_terminal(watch, tmp_path):
    """Control characters of a state arrive as text, in the list and in what Space shows."""
    texts = dict.fromkeys(("run", "label", "model", "current_task"), HOSTILE)
    store(tmp_path, "evil", **texts, tasks=[{"name": HOSTILE, "status": HOSTILE}])
    terminal = watch(columns=150)
    terminal.wait_for(r"> \\x1b\[31mred")
    terminal.child.send(" ")
    terminal.wait_for(r"PLAN\n +now: \\x1b\[31mred")
    assert b"\x1b[31mred" not in terminal.raw
    assert b"\x1b]8" not in terminal.raw
    assert "\u202e" not in terminal.raw.decode()


def test_lines_have_the_width_of_the_terminal():
    """Whatever the width, a line is never longer; wide characters count double."""
    from rich.cells import cell_len

    agents = [session(label="api-server: 修理する 🦊 " * 5, tasks_completed=3, tasks_total=300)]
    lines = list_lines(arrange(agents))
    for width in (20, 30, 44, 60, 80, 104, 140, 200):
        look = Look(width, ascii_only=False).fitted(lines, NOW, with_trends=True)
        for line in lines[1:]:
            parts = draw_line(line, look, NOW, trend="▁" * 12)
            assert cell_len("".join(text for text, _ in parts)) == max(width, look.name_cells + 6)


@pytest.mark.parametrize(("hosts", "is_shown"), [(("codex", "sdk"), True), (("codex",) * 2, False)])
def test_the_host_is_a_column_where_there_is_more_than_one(hosts, is_shown):
    """Wide terminals have room for it."""
    agents = [observed(name, host=host) for name, host in zip("ab", hosts, strict=True)]
    lines = list_lines(arrange(agents))
    look = Look(140, ascii_only=False).fitted(lines, NOW, with_trends=False)
    shown = ["".join(text for text, _ in draw_line(one, look, NOW)) for one in lines]
    assert any("codex" in line for line in shown) == is_shown
    assert ("host" in draw_head(look)) == is_shown


@pytest.mark.parametrize("width", range(112, 200, 4))
def test_a_wider_terminal_has_no_less_room_for_names(width):
    """What a task is says more than the host, which the heading has, and than the task at hand."""
    pace = {"rungs": {"critical": {"turns": 4}}}
    values = {"tasks_completed": 3, "tasks_total": 9, "current_task": "x" * 40, "forecast": pace}
    lines = list_lines(arrange([session(**values), session("b" * 8, host="codex", **values)]))
    look = Look(width, ascii_only=False).fitted(lines, NOW, with_trends=True, with_costs=True)
    assert look.name_cells >= 28
    assert look.name_cells + sum(one.cells + 1 for one in look.columns) == width
    shown = {column.header for column in look.columns}
    assert shown >= {"usage", "trend", "runway", "cost", "tasks", "state", "id"}
    assert width < 196 or shown >= {"host", "doing"}


def test_finished_work_is_folded_away_and_losses_that_went_on_too():
    """The living, losses that nobody took over, and chains of the living."""
    lost = {"last_heartbeat": 1e9, "started_at": 1e9}
    agents = [
        observed("a", active=False),
        observed("b", predecessor_id="a"),
        observed("c", active=False),
        observed("d", **lost),
        observed("e", **lost),
        observed("f", active=False, predecessor_id="e"),
    ]
    assert [short_id(one.record) for one in current(agents)] == ["a", "b", "d"]
    assert [short_id(one.record) for one in current(agents, {"d"})] == ["a", "b"]
