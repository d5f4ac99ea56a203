"""Commands at an event: what the settings may say, and which arguments are made of an agent."""

import json
import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ultramon.errors import ConfigurationError
from ultramon.notices.commands import (
    EVENTS,
    PLACEHOLDERS,
    EventCommand,
    name_of_event,
    read_commands,
    sample_values,
    values_of_event,
    values_of_wait,
)
from ultramon.state.record import StateRecord


@pytest.fixture
def configure(tmp_path, monkeypatch):
    """Write a real settings file, and return its path."""

    def write(text):
        path = tmp_path / "own.toml"
        path.write_text(text)
        monkeypatch.setenv("ULTRAMON_CONFIG", str(path))
        return str(path)

    return write


def command(*run):
    return EventCommand("critical", run, 10.0, 6, False)


def agent(**values):
    values = {"run": "default", "session_id": "s", "host": "claude-code", "epoch": 2} | values
    return StateRecord("s", **values)


def level_event(**values):
    record = agent()
    facts = {
        "level": "critical",
        "action": "force_return",
        "usageRatio": 0.88,
        "tokens": 176_000,
        "contextLimit": 200_000,
        "tokensSource": "reported",
    } | values
    return record.event("context_threshold_reached", at=1.0, n=0, **facts)


def test_the_settings_of_a_command(configure):
    path = configure(
        '[on.critical]\nrun = ["notify-send", "{label}", "{percent} %"]\nseconds = 3\n'
        'per_minute = 2\nchildren = true\n[on.plan]\nrun = ["~/bin/plan"]\n'
    )
    found, where = read_commands()
    assert where == path
    assert found["critical"] == EventCommand(
        "critical", ("notify-send", "{label}", "{percent} %"), 3.0, 2, True
    )
    assert found["plan"] == EventCommand("plan", ("~/bin/plan",), 10.0, 6, False)
    assert found["plan"].arguments({}) == [os.path.expanduser("~/bin/plan")]


def test_without_the_table_nothing_is_run(configure):
    configure("")
    assert read_commands() == ({}, "")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('[on.critcal]\nrun = ["a"]', "did you mean critical?"),
        ("[on]\ncritical = 1", "a table: [on.critical]"),
        ("[on.critical]\nseconds = 1", 'with run = ["PROGRAM", …]'),
        ("[on.critical]\nrun = []", "a program and its arguments"),
        ('[on.critical]\nrun = "notify-send hello"', "a program and its arguments"),
        ('[on.critical]\nrun = ["a\\u0000b"]', "a program and its arguments"),
        ('[on.critical]\nrun = ["{label}"]', "without a placeholder"),
        ('[on.critical]\nrun = ["bin/notify"]', "its absolute path"),
        ('[on.critical]\nrun = [" "]', "the name of a program"),
        ('[on.critical]\nrun = ["a", "{lable}"]', "did you mean label?"),
        ('[on.critical]\nrun = ["a"]\nsecond = 1', "did you mean seconds?"),
        ('[on.critical]\nrun = ["a"]\nseconds = 61', "at most 60"),
        ('[on.critical]\nrun = ["a"]\nper_minute = 0', "from 1 to 60"),
        ('[on.critical]\nrun = ["a"]\nchildren = 1', "true or false"),
    ],
)
def test_a_wrong_setting_is_refused_by_name(configure, text, named):
    configure(text)
    with pytest.raises(ConfigurationError) as refused:
        read_commands()
    assert named in str(refused.value)


@pytest.mark.parametrize(
    "run",
    [
        ["sh", "-c", "notify-send '{label}'"],
        ["sh", "{label}"],
        ["sh", "-c", "--", "{label}"],
        ["/bin/bash", "-lc", "echo {text}"],
        ["bash", "-cx", "{text}"],
        ["bash", "-ci", "{text}"],
        ["bash", "-c", "-x", "{text}"],
        ["bash", "-c", "-l", "{text}"],
        ["bash", "-c", "-o", "posix", "{text}"],
        ["bash", "-O", "extglob", "-c", "{text}"],
        ["bash", "+O", "extglob", "-c", "-x", "{text}"],
        ["bash", "--rcfile", "x", "-c", "-x", "{text}"],
        ["mksh", "-c", "{text}"],
        ["ksh93", "-c", "-x", "{text}"],
        ["busybox", "sh", "-c", "-x", "{text}"],
        ["sudo", "-u", "sh", "bash", "-c", "-x", "{text}"],
        ["env", "A=1", "sh", "-c", "echo {label}"],
        ["env", "{label}"],
        ["env", "A=1", "{label}"],
        ["env", "-S", "{text}"],
        ["env", "-vS", "{text}"],
        ["env", "--split-string={text}"],
        ["env", "-u", "A", "-S", "{text}"],
        ["awk", "{text}"],
        ["gawk", "-F", ":", "{text}"],
        ["busybox", "awk", "{text}"],
        ["perl", "-e", "print 1", "-e", "{text}"],
        ["perl", "-E{text}"],
        ["php", "-c", "php.ini", "{text}"],
        ["osascript", "-e", 'display notification "{label}"'],
        ["python3", "-c", "print('{label}')"],
        ["python3.12", "-W", "ignore", "-c", "{text}"],
        ["node", "--eval", "console.log('{label}')"],
        ["node", "-r", "fs", "-p", "{text}"],
        ["deno", "eval", "{text}"],
        ["deno", "run", "{text}"],
        ["npx", "{text}"],
        ["sed", "s/a/b/", "-e", "{text}"],
        ["pwsh", "-c", "Write-Host", "{text}"],
        ["ssh", "desk", "notify-send", "{label}"],
        ["tmux", "display-message", "{text}"],
        ["sqlite3", "log.db", "insert into log values ('{label}')"],
        ["nu", "-c", "{text}"],
        ["psql", "--command={text}"],
        ["psql", "-c{text}"],
        ["terminal-notifier", "-execute", "{text}"],
    ],
    ids=" ".join,
)
def test_what_an_agent_is_called_is_never_part_of_a_program(configure, run):
    """A label comes from a prompt or a repository: a shell must not read it."""
    configure(f"[on.critical]\nrun = {json.dumps(run)}")
    with pytest.raises(ConfigurationError, match="without a placeholder behind"):
        read_commands()


@pytest.mark.parametrize(
    "run",
    [
        ["notify-send", "-c", "im", "{label}", "{text}"],
        ["notify-send", "-e", "{label}"],
        ["xmessage", "-center", "{text}"],
        ["curl", "-sS", "-d", "text={label}", "--data-urlencode", "body={text}", "http://x"],
        ["logger", "-t", "{label}", "{text}"],
        ["sudo", "-u", "me", "notify-send", "{label}"],
        ["git", "-C", "{project}", "status"],
        ["env", "LABEL={label}", "/opt/notify", "{text}"],
        ["env", "A=1", "sh", "-c", 'echo "$1"', "sh", "{label}"],
        ["sh", "/opt/notify.sh", "-t", "{label}"],
        ["python3", "/opt/notify.py", "--label", "{label}"],
        ["python3", "-m", "notify", "{label}"],
        ["osascript", "/opt/notify.applescript", "{label}"],
        ["awk", "BEGIN { print ARGV[1] }", "{label}"],
    ],
    ids=" ".join,
)
def test_a_program_that_is_fixed_takes_values(configure, run):
    configure(f"[on.critical]\nrun = {json.dumps(run)}")
    assert read_commands()[0]["critical"].run == tuple(run)


def test_the_refusal_shows_a_form_that_is_accepted(configure):
    configure('[on.critical]\nrun = ["bash", "-lc", "echo {text}"]')
    with pytest.raises(ConfigurationError) as refused:
        read_commands()
    shown = str(refused.value)
    form = shown[shown.index("[") : shown.index("]") + 1]
    configure(f"[on.critical]\nrun = {form}")
    assert read_commands()[0]["critical"].run == tuple(json.loads(form))


def test_a_script_takes_a_value_as_a_further_argument(configure):
    configure("""[on.critical]\nrun = ["sh", "-c", 'notify-send "$1"', "sh", "{label}"]""")
    found, _ = read_commands()
    assert found["critical"].arguments({"label": "$(id)"})[-1] == "$(id)"


@pytest.mark.parametrize(
    ("argument", "label", "made"),
    [
        ("{label}", "scout", "scout"),
        ("{label}", "--exec=sh", " --exec=sh"),
        ("{label}", "-", " -"),
        ("{label}", "@/etc/passwd", " @/etc/passwd"),
        ("{label}", "+cmd", " +cmd"),
        ("text={label}", "@/etc/passwd", "text= @/etc/passwd"),
        ("text={label}", "<secret", "text= <secret"),
        ("--body={label}", "-x", "--body= -x"),
        ("Agent {label}", "-x", "Agent -x"),
        ("-x{label}", "-y", "-x-y"),
        ("{label}", "a\nb\tc\x00d\x1b[31m", r"a b c\x00d\x1b[31m"),
        ("{label}", "", "?"),
        ("{label}", " \n -x", " -x"),
        ("{label}", "{agent}", "{agent}"),
        ("{unmatched and {label}", "x", "{unmatched and x"),
        ("{label}", "\u202egnp", r"\u202egnp"),
        ("{label}", "\udc80", r"\udc80"),
    ],
)
def test_a_value_is_one_line_that_begins_no_option(argument, label, made):
    assert command("p", argument).arguments({"label": label})[1:] == [made]


def test_a_long_value_is_cut():
    (made,) = command("p", "{label}").arguments({"label": "x" * 9_000})[1:]
    assert (len(made), made[-1]) == (300, "…")


@given(
    st.lists(st.sampled_from([*(f"{{{name}}}" for name in PLACEHOLDERS), "a", " ", "x="])).map(
        "".join
    ),
    st.dictionaries(st.sampled_from(list(PLACEHOLDERS)), st.text()),
)
def test_whatever_an_agent_is_called_no_option_begins(argument, values):
    """Nor does an argument become two, or hold what a system refuses."""
    (made,) = command("p", argument).arguments(values)[1:]
    assert not made.startswith(("-", "+", "@", "<"))
    assert made == "" or made.replace(" ", "x").isprintable()
    assert "\0" not in made


def test_a_program_gets_the_arguments_as_they_are():
    """Not by way of a shell: quotes, blanks and dollars stay what they are."""
    label = 'it\'s $(id) `id` "x" ; rm -rf ~ | cat'
    show = "import sys; print(sys.argv[1:])"
    made = command(sys.executable, "-c", show, "{label}", "<{percent} %>").arguments(
        {"label": label, "percent": "88"}
    )
    shown = subprocess.run(made, capture_output=True, text=True, check=True).stdout
    assert shown == f"{[label, '<88 %>']!r}\n"


@pytest.mark.parametrize(
    ("event", "name"),
    [
        (level_event(), "critical"),
        (level_event(level="warning", action="prepare_handoff"), "warning"),
        (level_event(level="late"), "critical"),
        (level_event(level="early", action="prepare_handoff"), "warning"),
        (level_event(level="noted", action="none"), None),
        ({"type": "context_relaxed", "level": "warning"}, None),
        ({"type": "context_epoch_started", "reason": "compaction"}, "compacted"),
        ({"type": "context_epoch_started", "reason": "fall"}, "compacted"),
        ({"type": "context_epoch_started", "reason": "clear"}, None),
        ({"type": "agent_stopped"}, "ended"),
        ({"type": "agent_lost"}, "ended"),
        ({"type": "agent_expired"}, "ended"),
        ({"type": "agent_started"}, None),
        ({"type": "budget_threshold_reached"}, "budget"),
        ({"type": "plan_threshold_reached"}, "plan"),
        ({}, None),
    ],
)
def test_the_event_of_each_table(event, name):
    assert name_of_event(event) == name


def test_the_values_of_a_level():
    record = agent(label="scout", cwd="/srv/site", usage_ratio=0.5, estimated_tokens=9)
    values = values_of_event("critical", level_event(), record)
    assert values == {
        "event": "critical",
        "label": "scout",
        "agent": "s",
        "percent": "88",
        "tokens": "176000",
        "limit": "200000",
        "level": "critical",
        "project": "/srv/site",
        "host": "claude-code",
        "run": "default",
        "text": "scout: critical, 88 % of its context window is used",
    }


def test_an_agent_that_was_deleted_is_still_named():
    values = values_of_event("critical", level_event(), None)
    assert (values["label"], values["percent"]) == ("s", "88")


def test_the_values_of_an_end():
    event = agent().event("agent_stopped", at=1.0, n=0, outcome="failed", reason="crash")
    values = values_of_event("ended", event, agent(label="scout"))
    assert (values["reason"], values["text"]) == ("crash", "scout: ended, failed, crash")


def test_the_values_of_a_plan():
    event = StateRecord("plan:~/.claude", session_id="x", run="").event(
        "plan_threshold_reached", at=1.0, n=0, level="warning", account="~/.claude",
        limit="five_hour", usedRatio=0.72, resetsAt="2026-11-26T20:00:00.000Z",
    )  # fmt: skip
    values = values_of_event("plan", event, None)
    assert (values["label"], values["percent"]) == ("~/.claude", "72")
    assert values["text"].startswith("~/.claude: warning, 72 % of five_hour used")


@pytest.mark.parametrize(
    ("reason", "words"), [("permission", "a permission"), ("answer", "an answer")]
)
def test_the_values_of_a_wait(reason, words):
    values = values_of_wait(agent(label="scout"), reason)
    assert (values["event"], values["reason"]) == ("waiting", reason)
    assert f"scout: waits for {words}" in values["text"]
    prompt = values_of_wait(agent(label="Add a form."), reason)
    assert prompt["text"] == f"Add a form: waits for {words}"


@pytest.mark.parametrize("name", EVENTS)
def test_every_event_can_be_tried(name):
    values = sample_values(name)
    assert set(values) == set(PLACEHOLDERS)
    assert all(values.values())
