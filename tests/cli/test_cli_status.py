import json
import os
import re
import subprocess
import sys
import time
from contextlib import ExitStack

import pytest
from helpers.hooked_session import SESSION, TRANSCRIPTS, HookedSession
from helpers.observed_agents import ACTIONS
from helpers.program import NOTHING, draw, environment, run, run_process
from rich.cells import cell_len

from ultramon import ContextConfig, create_context_monitor
from ultramon.backends.local.backend import LocalBackend
from ultramon.backends.local.state_files import StateDirectory
from ultramon.context.ladder import DEFAULT_LADDER
from ultramon.hosts.registry import find_hosts
from ultramon.state.record import FIELD_NAMES, StateRecord, encode_state

HOSTILE = "\x1b[31mred\x1b]8;;http://x\x07\x9b1m\r\n\u202etxt\u2066\u200b\U000e0041[bold]:smile:"


def state(agent_id, **values):
    """The state of an agent that beats on another machine, by default."""
    now = time.time()
    return StateRecord(
        agent_id,
        **{
            "run": "default",
            "session_id": "s",
            "host": "sdk",
            "active": True,
            "phase": "working",
            "started_at": now - 300,
            "last_heartbeat": now,
            "last_activity": now,
            "heartbeat_interval_seconds": 15.0,
            "grace_seconds": 30.0,
            "hostname": "elsewhere",
            "generation": 1,
            "epoch": 1,
            "announced": {"epoch": 1, "rungs": {}},
            "epoch_started_at": now - 300,
            "measured_at": now,
            "estimated_tokens": 20_000,
            "tokens_source": "reported",
            "context_limit": 200_000,
            "limit_source": "model",
            "usage_ratio": 0.1,
            "threshold_status": "normal",
            "action": ACTIONS.get(values.get("threshold_status"), "none"),
            "ladder": DEFAULT_LADDER.to_json(),
            "ladder_status": "ok",
            **values,
        },
    )


def store(directory, agent_id, **values):
    """Write the state of an agent as it may lie there, sound or not."""
    states = StateDirectory(str(directory))
    states.prepare()
    with open(states.file(agent_id), "wb") as file:
        file.write(encode_state(state(agent_id, **values), agent_id))


@pytest.fixture
def crowd(tmp_path):
    """Agents of every urgency."""
    silent = time.time() - 60
    store(tmp_path, "calm", usage_ratio=0.2)
    store(tmp_path, "calmer", usage_ratio=0.1)
    store(tmp_path, "full", threshold_status="critical", usage_ratio=0.9)
    store(tmp_path, "warm", threshold_status="warning", usage_ratio=0.75, label="night shift")
    store(tmp_path, "warmer", threshold_status="warning", usage_ratio=0.8)
    store(tmp_path, "quiet", last_heartbeat=silent, started_at=silent, usage_ratio=0.05)
    store(tmp_path, "gone", last_heartbeat=1e9, started_at=1e9)
    store(tmp_path, "past", active=False, outcome="returned", usage_ratio=0.95)
    store(tmp_path, "vague", usage_ratio=None, context_limit=None, threshold_status=None)
    return tmp_path


def shown(*arguments):
    """The agents in JSON."""
    done = run("status", "--json", *arguments)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["agents"]


@pytest.mark.parametrize(("hosts", "is_shown"), [(("codex", "sdk"), True), (("codex",) * 2, False)])
def test_the_host_is_shown_where_there_is_more_than_one(tmp_path, hosts, is_shown):
    """JSON has it always; a terminal of eighty columns has other things to show."""
    for number, host in enumerate(hosts):
        store(tmp_path, f"agent-{number}", host=host)
    _, screen, _ = draw("status", "--state-dir", tmp_path, columns=140)
    assert any(" host " in line for line in screen[:2]) == is_shown
    assert any(" codex " in line for line in screen) == is_shown
    assert {agent["host"] for agent in shown("--state-dir", tmp_path)} == set(hosts)


def test_the_most_urgent_comes_first(crowd):
    """Lost, critical, warning by usage, stale, calm by usage, unknown; ended only with --all."""
    order = [agent["agentId"] for agent in shown("--state-dir", crowd)]
    assert order == ["gone", "full", "warmer", "warm", "quiet", "calm", "calmer", "vague"]
    assert shown("--state-dir", crowd, "--all")[-1]["agentId"] == "past"


def test_a_limit_leaves_out_the_least_urgent(crowd):
    """The table, JSON and every look of watch are cut alike; how many are missing is said."""
    left_out = "5 less urgent ones left out, shown with --limit 8\n"
    for command in (["status"], ["watch", "--once"]):
        cut = run(*command, "--limit", "3", "--state-dir", crowd)
        names = [line.split()[0] for line in cut.stdout.splitlines()[1:]]
        assert names == ["gone", "full", "warmer"]
        assert cut.stderr == f"1 ended, shown with --all\n{left_out}"
    cut = run("status", "--json", "--limit", "3", "--state-dir", crowd)
    assert (len(json.loads(cut.stdout)["agents"]), cut.stderr) == (3, left_out)
    assert (
        run("status", "--limit", "8", "--state-dir", crowd).stderr == "1 ended, shown with --all\n"
    )
    assert run("status", "--limit", "0", "--state-dir", crowd).returncode == 2


def test_only_what_is_shown_is_decoded_whole(crowd):
    """A state that is broken behind its head gives way to the next one; left out, it is counted."""
    store(crowd, "broken", threshold_status="critical", usage_ratio=0.99, tasks_total="four")
    store(crowd, "late", usage_ratio=0.0, tasks_total="four")
    for options in ([], ["--json"]):
        cut = run("status", "--limit", "2", "--state-dir", crowd, *options)
        if options:
            listed = json.loads(cut.stdout)
            names = [agent["agentId"] for agent in listed["agents"]]
            assert [one["agentId"] for one in listed["unreadable"]] == ["broken"]
        else:
            names = [line.split()[0] for line in cut.stdout.splitlines()[1:]]
            assert "Warning: broken cannot be read: its values make no sense: " in cut.stderr
        assert names == ["gone", "full"]
        assert "late" not in cut.stdout + cut.stderr
        assert "7 less urgent ones left out, shown with --limit 9\n" in cut.stderr
    whole = run("status", "--state-dir", crowd)
    assert whole.stderr.count("cannot be read: its values make no sense: ") == 2


UNKNOWN = {"usage_ratio": None, "threshold_status": None}


@pytest.mark.parametrize(
    ("fields", "row", "ascii_row"),
    [
        ({"measured_at": None, "estimated_tokens": 0}, r"unknown .*\? +\? of 200,000", None),
        ({"epoch": 2, "estimated_tokens": 12_300}, r"unknown .*\? +≥ 12,300 of 200,000",
         r"unknown .*\? +> 12,300 of 200,000"),
        ({"estimated_tokens": 12_300, "context_limit": None}, r"unknown .*\? +12,300 of \?", None),
        ({"estimated_tokens": 0, "usage_ratio": 0.71, "threshold_status": "warning",
          "context_limit": None}, r"warning .* 71 % +\? of \?", None),
    ],
    ids=["unread", "lower bound", "unknown limit", "share alone"],
)  # fmt: skip
def test_the_table_says_what_is_unknown(tmp_path, fields, row, ascii_row):
    """No zero where nothing was read, and no number that looks like usage."""
    store(tmp_path, "vague", **{**UNKNOWN, **fields})
    assert re.search(row, run("status", "--state-dir", tmp_path).stdout)
    plain = run_process("status", "--state-dir", tmp_path, PYTHONIOENCODING="ascii")
    assert re.search(ascii_row or row, plain.stdout)


def test_a_terminal_gets_two_hundred_rows(tmp_path):
    """More scroll away unread; a pipe gets all."""
    for number in range(203):
        store(tmp_path, f"agent-{number:03}")
    _, screen, _ = draw("status", "--state-dir", tmp_path, rows=250)
    assert len([line for line in screen if line.startswith("agent-")]) == 200
    assert "3 less urgent ones left out, shown with --limit 203" in screen
    assert len(run("status", "--state-dir", tmp_path).stdout.splitlines()) == 204


def test_the_table_marks_lost_and_stale_agents(crowd):
    """Both say why; the number of hidden agents goes to stderr."""
    done = run("status", "--state-dir", crowd)
    lines = {line.split()[0]: line for line in done.stdout.splitlines()}
    assert "LOST: no heartbeat for" in lines["gone"]
    assert "STALE: no heartbeat for 6" in lines["quiet"]
    assert "past" not in lines
    assert done.stderr == "1 ended, shown with --all\n"
    assert re.search(
        r"night shift +warning 70%\+ of 200k +█+▏* +75 % +20,000 of 200,000 +working +warm$",
        lines["night"],
    )
    assert re.search(r"vague +unknown .*\? +20,000 of \?", lines["vague"])


def test_json_has_the_names_of_the_state_file(crowd):
    """Every field of the state file, and the verdict about the agent's life."""
    agent = shown("--state-dir", crowd)[0]
    verdict = {"liveness", "livenessReason", "heartbeatAgeSeconds"}
    assert set(agent) == set(FIELD_NAMES.values()) | verdict
    assert agent["liveness"] == "lost"


def test_a_real_agent_is_seen_while_it_works(tmp_path):
    """What a monitor saved is what status, explain and their JSON show."""
    config = ContextConfig(context_limit_tokens=100_000, model="claude-sonnet-4-5")
    backend = LocalBackend(str(tmp_path))
    with create_context_monitor("scout-1", config, backend=backend, label="scout") as monitor:
        monitor.plan(["a.py", "b.py"])
        for tokens in (20_000, 40_000, 60_000):
            monitor.report_usage(input_tokens=tokens)
        with monitor.task("a.py"):
            monitor.track_content("x" * 100, source="tool:read")
            monitor.report_usage(input_tokens=71_300)
            monitor.update_heartbeat()
            (agent,) = shown("--state-dir", tmp_path)
            line = run("status", "--state-dir", tmp_path).stdout.splitlines()[1]
            screen = run("explain", "scout", "--details", "--state-dir", tmp_path).stdout
            explained = json.loads(run("explain", "sc", "--json", "--state-dir", tmp_path).stdout)
    assert (agent["usageRatio"], agent["liveness"]) == (0.713, "alive")
    assert "71 %" in line
    assert "0-4 turns" in line
    assert "0/2" in line
    assert "a.py" in line
    assert "71,300 of 100,000 tokens = 71%\nlevel warning, 70 % of 100k and more  action" in screen
    for fact in ("anchor", "explicit limit", "model window", "critical", "heartbeat", "age"):
        assert fact in screen
    numbers, _, history = screen.partition("\nhistory   ")
    assert len(numbers.splitlines()) < 24
    assert "reading" in history.splitlines()[0]
    assert "warning" in history
    assert all(len(line) < 80 for line in screen.splitlines())
    assert explained["state"]["agentId"] == "scout-1"
    ahead = explained["rungs"][1]
    assert (ahead["turnsLow"], ahead["turnsHigh"]) == (0, 4)
    newest = explained["history"][-1]
    assert (newest["usedTokens"], newest["source"], newest["epoch"]) == (71_300, "reported", 1)
    assert newest["at"][:-1] in explained["state"]["measuredAt"]
    assert "force_return, in 0-4 turns (~" in screen
    assert not re.search(r"\b0 turns|\b1 turns", line + screen)


def test_a_hosted_agent_is_explained_in_the_words_of_its_texts(tmp_path):
    """Rungs where the settings put them, whole percents, and what the client itself says."""
    session = HookedSession(tmp_path)
    recorded = (TRANSCRIPTS / "transcript_r1_main.jsonl").read_bytes().splitlines(keepends=True)
    session.write(next(one for one in recorded if b"total_tokens_reminder" in one))
    for tokens in (85_000, 107_000, 129_200):
        session.tool(tokens, agent="a1")
        session.tool(tokens)
    screen = run("explain", SESSION, "--details", "--state-dir", session.state)
    assert screen.returncode == 0, screen.stderr
    assert (
        "129,200 of 200,000 tokens = 65%\nlevel warning, 65 % of 200k and more  action"
        in screen.stdout
    )
    assert "warning       65%      129,000  prepare_handoff, reached" in screen.stdout
    assert (
        "critical      75%      149,000  force_return, the next turn may reach it" in screen.stdout
    )
    assert (
        "  client    15,000,000  left of its session's token budget, another number"
        in screen.stdout
    )
    assert all(len(line) < 80 for line in screen.stdout.splitlines())
    child = run("explain", f"{SESSION}.a1", "--json", "--state-dir", session.state)
    explained = json.loads(child.stdout)
    assert [rung["usageRatio"] for rung in explained["rungs"]] == [0.65, 0.75]
    assert explained["sessionTokensLeft"] is None


def test_an_agent_whose_process_died_is_lost(tmp_path):
    """A vanished process on this machine is lost at the next look."""
    code = """
import os
from ultramon import create_context_monitor
create_context_monitor("scout-1").start()
os._exit(9)
"""
    subprocess.run(
        [sys.executable, "-c", code],
        env=environment(ULTRAMON_STATE_DIR=str(tmp_path)),
        check=False,
    )
    (agent,) = shown("--state-dir", tmp_path)
    assert agent["liveness"] == "lost"
    assert re.fullmatch(r"process \d+ is gone", agent["livenessReason"])


@pytest.mark.parametrize(
    ("name", "agent_id"),
    [("fu", "full"), ("calm", "calm"), ("warme", "warmer"), ("night shift", "warm")],
)
def test_an_agent_is_found_by_id_prefix_or_label(crowd, name, agent_id):
    """A whole id wins over a longer one that begins with it; an ended agent is found too."""
    assert [agent["agentId"] for agent in shown(name, "--state-dir", crowd)] == [agent_id]
    screen = run("explain", name, "--details", "--state-dir", crowd)
    assert screen.stdout.startswith(f"agent {agent_id}  ")


def test_an_ended_agent_can_be_asked_for(crowd):
    """Naming an agent shows it, ended or not."""
    assert "returned" in run("status", "past", "--state-dir", crowd).stdout


@pytest.mark.parametrize("command", ["status", "explain"])
@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("nobody", 3, "no agent nobody: "),
        ("", 3, "no agent : "),
        ("../calm", 3, "no agent ../calm: "),
        ("ca", 4, "prefix ca fits 2 agents: calm, calmer"),
    ],
)
def test_a_name_that_means_nobody_or_several_says_so(crowd, command, name, code, words):
    """3 for no agent, 4 for several, one line each."""
    done = run(command, name, "--state-dir", crowd)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith(f"Error: {words}")
    assert done.stderr.count("\n") == 1


def test_a_shared_label_is_ambiguous(tmp_path):
    """Two agents of one label are both named."""
    for number in range(7):
        store(tmp_path, f"agent-{number}", label="twin")
    done = run("explain", "twin", "--details", "--state-dir", tmp_path)
    assert done.returncode == 4
    assert "label twin fits 7 agents: agent-0, agent-1" in done.stderr
    assert done.stderr.endswith("and 2 more\n")


def test_an_empty_directory_has_no_agents(tmp_path):
    """A directory that does not exist yet is as good as an empty one, and is not created."""
    done = run("status", "--state-dir", tmp_path / "none")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", NOTHING)
    assert not (tmp_path / "none").exists()
    for command in re.findall(r"`ultramon ([a-z]+)", done.stderr):
        assert run(command, "--help").returncode == 0
    hooked = (host.name for host in find_hosts().usable if host.has_hooks)
    assert all(name in done.stderr for name in hooked)


def test_garbage_in_the_directory_hides_nobody(crowd):
    """Torn, foreign, nonsensical and special files are named; every readable agent is shown."""
    folder = crowd / "subagents"
    (folder / "torn.json").write_bytes((folder / "calm.json").read_bytes()[:100])
    (folder / "empty.json").touch()
    (folder / "noise.json").write_bytes(os.urandom(1000))
    (folder / "other.json").write_text('{"hello": "world"}')
    (folder / "con.json").write_text("{}")
    (folder / "big.json").write_bytes(b" " * 2_000_000)
    (folder / "folder.json").mkdir()
    (folder / "link.json").symlink_to(folder / "calm.json")
    (folder / "notes.txt").write_text("not a state")
    (folder / "bad\x1b[31mname.json").write_text("{}")
    (folder / os.fsdecode(b"bytes\xff.json")).write_text("{}")
    os.mkfifo(folder / "pipe.json")
    store(crowd, "swapped")
    os.replace(folder / "swapped.json", folder / "stolen.json")
    store(crowd, "absurd", lost_after_seconds=10**400)
    store(crowd, "strange", forecast={"rungs": {"warning": 5}})
    done = run("status", "--json", "--state-dir", crowd)
    listed = json.loads(done.stdout)
    assert done.returncode == 0
    order = [agent["agentId"] for agent in listed["agents"]]
    assert order == ["gone", "full", "warmer", "warm", "quiet", "calm", "calmer", "vague"]
    expected = ["absurd", "bad\x1b[31mname", "big", "bytes\udcff", "con", "empty", "folder", "link"]
    expected += ["noise", "other", "pipe", "stolen", "strange", "torn"]
    assert sorted(one["agentId"] for one in listed["unreadable"]) == expected
    table = run("status", "--state-dir", crowd)
    assert table.stderr.count("Warning: ") == len(expected)
    assert r"Warning: bad\x1b[31mname cannot be read" in table.stderr
    assert "\x1b" not in table.stderr
    for name in ("torn", "absurd", "strange"):
        explained = run("explain", name, "--details", "--state-dir", crowd)
        assert (explained.returncode, explained.stderr.count("\n")) == (1, 1), explained.stderr


@pytest.mark.parametrize("command", [["status"], ["status", "--all"], ["explain", "evil"]])
@pytest.mark.parametrize("columns", [40, 80, 160])
def test_a_hostile_state_cannot_touch_the_terminal(tmp_path, command, columns):
    """Whatever a state holds, the terminal receives text, line ends and our own colours."""
    texts = ("run", "session_id", "label", "model", "phase", "current_task", "limit_source")
    values = dict.fromkeys(texts, HOSTILE)
    store(
        tmp_path,
        "evil",
        **values,
        threshold_status=HOSTILE,
        limit_candidates=[
            {"name": HOSTILE, "source": HOSTILE, "tokens": 5, "verdict": HOSTILE},
        ],
    )
    raw, screen, code = draw(*command, "--state-dir", tmp_path, columns=columns, FORCE_COLOR="1")
    assert code == 0
    plain = re.sub(r"\x1b\[[0-9;]*m", "", raw.decode())
    assert set(re.findall(r"[^\x20-\x7e]", plain)) <= set("\r\n…█▏▎▍▌▋▊▉▓▒░·×")
    assert r"\x1b[31m" in plain or columns == 40
    assert max(map(len, screen)) <= columns


def test_a_label_is_no_markup(tmp_path):
    """Square brackets and colons in a label are shown, not obeyed."""
    store(tmp_path, "a", label="[bold]x[/] :smile:")
    assert "\n[bold]x[/] :smile: " in run("status", "--state-dir", tmp_path).stdout


@pytest.mark.parametrize("columns", [30, 45, 60, 80, 100, 200])
def test_the_table_fits_every_terminal(crowd, columns):
    """No line is longer than the terminal is wide, and none wraps."""
    store(crowd, "n" * 128, label="a very long label " * 20, current_task="task " * 50)
    _, screen, code = draw("status", "--state-dir", crowd, columns=columns)
    assert code == 0
    summary, *rows = [line for line in screen if line and not line.startswith("1 ended")]
    assert summary.startswith("full 90 % · 1 lost")
    assert len(rows) == 10
    usage = [line for line in rows if "90 %" in line]
    assert len(usage) == 1


def test_in_a_pipe_rows_end_with_their_last_word_and_are_aligned(tmp_path):
    """Also behind characters that take two cells, or none."""
    config = ContextConfig(context_limit_tokens=1_000)
    labels = ["読む 日本語", "e\u0301toile \N{ROCKET}", "plain"]
    with ExitStack() as stack:
        for number, label in enumerate(labels):
            made = create_context_monitor(
                f"a-{number}", config, label=label, backend=f"file://{tmp_path}"
            )
            stack.enter_context(made).report_usage(input_tokens=300)
            made.update_heartbeat()
        for command in (["status"], ["watch", "--once"]):
            lines = run(*command, "--state-dir", tmp_path).stdout.splitlines()
            assert lines == [line.rstrip() for line in lines]
            places = {cell_len(line[: line.index("normal")]) for line in lines if "normal" in line}
            assert (len(lines), len(places)) == (4, 1)


def test_only_one_run_can_be_shown(crowd):
    """--run leaves the others out."""
    store(crowd, "of-audit", run="audit")
    assert [agent["agentId"] for agent in shown("--state-dir", crowd, "--run", "audit")] == [
        "of-audit"
    ]


def test_a_state_directory_may_have_any_name(tmp_path):
    """Characters that mean something in a URL are part of a directory's name."""
    directory = tmp_path / "a b#c?d%41"
    store(directory, "here")
    assert [agent["agentId"] for agent in shown("--state-dir", directory)] == ["here"]


def test_prune_deletes_only_what_was_over_long_ago(crowd):
    """--dry-run tells, prune deletes, ids go to stdout; what lives or was lost lately stays."""
    store(crowd, "lost", last_activity=1e9, last_heartbeat=1e9, started_at=1e9)
    dry = run("backend", "prune", "--dry-run", "--state-dir", crowd)
    assert (dry.stdout, dry.stderr) == ("lost\n", "1 agent would be deleted\n")
    store(crowd, "old", active=False, outcome="completed", last_activity=1e9)
    done = run("backend", "prune", "--json", "--state-dir", crowd)
    assert json.loads(done.stdout) == {"agents": ["lost", "old"], "dryRun": False}
    left = {agent["agentId"] for agent in shown("--state-dir", crowd, "--all")}
    assert {"past", "gone"} <= left
    assert not {"old", "lost"} & left
    everything = run("backend", "prune", "--older-than", "0s", "--state-dir", crowd)
    assert (everything.stdout, everything.stderr) == ("gone\npast\n", "2 agents deleted\n")


@pytest.mark.parametrize("given", ["7", "d", "-1d", "1y", "1e3s", "٣d", "nan"])
def test_prune_refuses_what_is_no_duration(tmp_path, given):
    """A duration is a number and a unit."""
    done = run("backend", "prune", f"--older-than={given}", "--state-dir", tmp_path)
    assert done.returncode == 2
    assert "is not a number followed by s, m, h, d or w" in " ".join(done.stderr.split())


def test_a_life_whose_id_went_on_in_another_run_is_shown_by_its_end(tmp_path):
    """Its state is replaced; of the run it was in the journal tells that it ended, and how."""
    backend = LocalBackend(str(tmp_path))
    for run_name, outcome in (("one", "failed"), ("two", "completed"), ("three", "cancelled")):
        with create_context_monitor("w", run=run_name, backend=backend) as monitor:
            monitor.stop(outcome)
    backend.close()
    for run_name, outcome in (("one", "failed"), ("two", "completed"), ("three", "cancelled")):
        options = ("status", "--state-dir", tmp_path, "--run", run_name)
        (agent,) = json.loads(run(*options, "--all", "--json").stdout)["agents"]
        assert (agent["agentId"], agent["run"], agent["outcome"]) == ("w", run_name, outcome)
        assert (agent["liveness"], agent["livenessReason"]) == ("ended", outcome)
        assert outcome in run(*options, "--all").stdout
        assert "w" not in run(*options).stdout


@pytest.fixture
def grown(tmp_path):
    """Two agents with readings over time, and one without any."""
    states = StateDirectory(str(tmp_path))
    states.prepare()
    fills = {"steady": (80_000, [10, 30, 60]), "compacted": (100_000, [10, 30, 60, 13])}
    for agent_id, (limit, thousands) in fills.items():
        for number, tokens in enumerate(thousands, 1):
            record = state(
                agent_id, seq=number, epoch=1 + number // 4, context_limit=limit,
                estimated_tokens=tokens * 1_000, usage_ratio=tokens * 1_000 / limit,
                measured_at=time.time() - 100 + number,
            )  # fmt: skip
            with states.locked(agent_id, 60.0):
                states.replace(record, durable=False)
    store(tmp_path, "new", measured_at=None)
    return tmp_path


def trends_of(screen, cells):
    """The part of each row below the head *trend*."""
    head = next(number for number, line in enumerate(screen) if line.startswith("agent "))
    start = screen[head].index("trend")
    rows = [line for line in screen[head + 1 :] if line]
    return {row.split()[0]: row[start : start + cells].rstrip() for row in rows}


@pytest.mark.parametrize(
    ("columns", "encoding", "steady", "compacted"),
    [
        (80, "utf-8", "     ▂▄▇", "    ▁▃▅▂"),
        (80, "ascii", "     .-*", "    _:=."),
        (120, "utf-8", "         ▂▄▇", "        ▁▃▅▂"),
    ],
)
def test_the_table_draws_the_last_readings(grown, columns, encoding, steady, compacted):
    """As `watch` does, the limit at full height; a compaction falls; no reading is blank."""
    _, screen, _ = draw(
        "status", "--all", "--state-dir", grown, columns=columns, NO_COLOR="1",
        PYTHONIOENCODING=encoding, PYTHONUTF8="0",
    )  # fmt: skip
    assert trends_of(screen, len(steady)) == {"steady": steady, "compacted": compacted, "new": ""}
    assert "▂▄▇" in run("status", "steady", "--state-dir", grown).stdout


def test_of_agents_that_have_ended_nothing_is_summed_up(tmp_path):
    """No empty line above the table."""
    for name in ("one", "two"):
        store(tmp_path, name, active=False, outcome="returned")
    _, screen, _ = draw("status", "--all", "--state-dir", tmp_path, columns=80)
    assert screen[0].startswith("agent ")


def test_without_readings_there_is_no_trend(crowd):
    """No history, no column: blanks would cost names their room."""
    assert "trend" not in run("status", "--state-dir", crowd).stdout


def test_of_many_agents_no_trend_is_drawn(grown):
    """Each history is read by itself: more of them would cost more than the list."""
    for number in range(50):
        store(grown, f"agent-{number}")
    assert "trend" not in run("status", "--all", "--state-dir", grown).stdout
    assert "trend" in run("status", "--all", "--limit", "50", "--state-dir", grown).stdout


TASKS = (
    "mend",
    "migrate",
    "review",
    "document",
    "test",
    "port",
    "profile",
    "answer",
    "split",
    "tidy",
)


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_ten_sessions_can_be_told_apart_on_eighty_columns(tmp_path, encoding):
    """Project and task first, the id last; columns that no agent fills take no room."""
    for number, task in enumerate(TASKS):
        session_id = f"{number:08x}-1111-4222-8333-444455556666"
        facts = {"cwd": "/home/a/api-server-of-the-team", "session_id": session_id}
        facts |= {"label": f"api-server-of-the-team: {task} the login", "current_task": "x"}
        facts["extra"] = {"claudeCode": {"waitsFor": "permission"} if number == 3 else {}}
        facts["phase"] = "waiting" if number == 3 else "working"
        store(tmp_path, session_id, host="claude-code", **facts)
    _, screen, code = draw(
        "status", "--state-dir", tmp_path, columns=80, NO_COLOR="1", PYTHONIOENCODING=encoding
    )
    assert code == 0
    summary, head, *rows = [line for line in screen if line]
    separator = "·" if encoding == "utf-8" else "-"
    assert summary == (
        f'1 needs you: "document the login" {separator} api-server-of-the-team 10 % {separator}'
        " 9 working"
    )
    assert head.split() == ["agent", "level", "usage", "tokens", "state", "id"]
    cut = "api-server-…" if encoding == "utf-8" else "api-server-."
    for row, task in zip(rows, TASKS, strict=True):
        assert row.startswith(f"{cut}: {task} ")
    assert [row.split()[-1] for row in rows] == [f"{number:08x}" for number in range(10)]
    assert "needs permission" in rows[3]
    line = run("watch", "--format", "tmux", "--state-dir", tmp_path).stdout
    assert line == "um 10 agents · 1 needs you · api-server-of-the-team 10% normal\n"
