"""The status line of Copilot CLI: the real process on recorded payloads, and its installation."""

import json
import subprocess
import sys

import pytest
from helpers.copilot_session import RECORDED, CopilotSession
from helpers.host_home import HostHome
from helpers.resident_session import until

from ultramon.errors import ConfigurationError, StateCorruptError
from ultramon.hosts.copilot import statusline
from ultramon.hosts.copilot.host import COPILOT
from ultramon.hosts.copilot.setup import LINE
from ultramon.system.findings import OK, WARNING

RUN = RECORDED / "interactive_compact_clear"
PAYLOADS = [json.loads(line) for line in (RUN / "statusline.jsonl").read_text().splitlines()]
SESSION = PAYLOADS[0]["session_id"]
OTHER = {"type": "command", "command": "cat >/dev/null; echo other line", "padding": 1}
EVENTS = [json.loads(line) for line in (RUN / "events.jsonl").read_text().splitlines()]


class Session(CopilotSession):
    """The recorded session, whose event file grows as it did."""

    def __init__(self, path):
        super().__init__(path)
        self.file = self.sessions / SESSION / "events.jsonl"
        self.file.parent.mkdir(parents=True)

    def grow(self, *, requests, is_compacted=False):
        """Let the client have written a number of requests, and maybe the compaction."""
        kept, left = [], requests
        for event in EVENTS:
            is_request = event["type"] == "session.usage_record"
            if (is_request and not left) or (
                event["type"] == "session.compaction_start" and not is_compacted
            ):
                break
            left -= is_request
            kept.append(event)
            if event["type"] == "session.compaction_complete":
                break
        self.file.write_text("".join(json.dumps(event) + "\n" for event in kept))

    def prompt(self):
        """The hook of a prompt."""
        fields = {
            "hook_event_name": "UserPromptSubmit", "session_id": SESSION, "prompt": "go",
            "cwd": str(self.home), "timestamp": "2026-11-25T09:16:42.700Z",
        }  # fmt: skip
        return self.run(fields)

    def show(self, payload, *more, **environ):
        """What the status line prints on a payload."""
        folder = str(self.sessions / payload["session_id"])
        payload = {**payload, "transcript_path": folder}
        choices = str(self.state / "copilot.json")
        ran = subprocess.run(
            [sys.executable, "-I", "-S", statusline.__file__, choices, *more],
            input=json.dumps(payload).encode(),
            capture_output=True,
            env={"NO_COLOR": "1"} | self.environ | environ,
            check=False,
            timeout=60,
        )
        assert (ran.returncode, ran.stderr) == (0, b"")
        return ran.stdout.decode()


@pytest.fixture
def session(tmp_path):
    return Session(tmp_path)


def test_the_recorded_calls_show_what_each_request_held(session):
    """Of the limit, which is where the client compacts: 80 % of its window; sums are no reading."""
    session.grow(requests=0)
    assert session.show(PAYLOADS[0]) == "ctx –\n"
    assert session.ids() == []  # the line alone makes no agent
    session.prompt()
    shown = []
    for requests, payload in enumerate(PAYLOADS[:4]):
        session.grow(requests=requests)
        shown.append(session.show(payload).partition(" · ")[0].strip())
    assert shown[1:] == [
        "ctx ███░░░░░░░ 28% 22k/80k",
        "ctx ██████░░░░ 63% 50k/80k",
        "ctx █████████░ 88% 70k/80k",
    ]
    assert shown[0].startswith("ctx ")
    assert "%" not in shown[0]
    assert session.failures() == []


def test_a_compaction_empties_the_line_though_the_payload_keeps_the_old_count(session):
    """It is seen in the event file, as no hook is called at its end."""
    session.grow(requests=3)
    session.prompt()
    assert "88%" in session.show(PAYLOADS[3])
    session.grow(requests=3, is_compacted=True)
    assert PAYLOADS[4]["context_window"]["last_call_input_tokens"] == 70_000
    assert "%" not in session.show(PAYLOADS[4])
    assert session.record(SESSION).epoch == 2
    stored = session.record(SESSION).seq
    session.show(PAYLOADS[4])
    assert session.record(SESSION).seq == stored  # nothing new is not written


def test_a_client_that_writes_no_usage_is_read_by_its_payload(session):
    """Not by ``current_usage``, which holds 142,000 tokens here."""
    session.grow(requests=0)
    session.prompt()
    assert "88% 70k/80k" in session.show(PAYLOADS[3])


@pytest.mark.parametrize("broken", [{"last_call_input_tokens": -1}, "text", None])
def test_what_is_no_window_shows_no_wrong_number(session, broken):
    """Of another version, say."""
    session.grow(requests=0)
    session.prompt()
    assert "%" not in session.show({**PAYLOADS[3], "context_window": broken})


def test_another_tools_line_is_shown_as_chosen(session):
    """It gets the same input."""
    session.grow(requests=3)
    session.prompt()
    session.choose(status_line_show="both", status_line_chained={"command": "head -c 6"})
    assert session.show(PAYLOADS[3]).startswith('{"cwd"\nctx ')
    session.choose(status_line_show="chained", status_line_chained=OTHER)
    assert session.show(PAYLOADS[3]) == "other line\n"


def test_a_resident_answers_the_same(session):
    """The forwarder prints what it says."""
    session.grow(requests=3)
    session.prompt()
    alone = session.show(PAYLOADS[3])
    with session.asking_resident() as place:
        session.prompt()
        before = until(place.ask, "none runs")["calls"]
        assert session.show(PAYLOADS[3], "resident") == alone
        facts = place.ask()
        assert (facts["calls"], facts["refused"]) == (before + 1, 0)
    assert session.failures() == []


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("COPILOT_HOME", str(tmp_path / ".copilot"))
    return HostHome(COPILOT, tmp_path / ".copilot" / "hooks" / "ultramon.json", tmp_path / "s")


def status_line(home):
    return json.loads((home.path.parent / "settings.json").read_text()).get("statusLine")


def test_only_who_asks_for_it_gets_a_line(home):
    """And keeps it when the installation is brought up to date."""
    settings = home.path.parent / "settings.json"
    home.install()
    assert not settings.exists()
    home.install(status_line="own")
    assert status_line(home)["command"].endswith(f"/{LINE.launcher}")
    assert status_line(home)["refreshInterval"] == 10
    home.install(audience="both")
    assert status_line(home) is not None
    home.install(status_line="none")
    assert not settings.exists()
    home.install()
    assert not settings.exists()


@pytest.mark.parametrize("before", [
    None,
    b'{"model": "x"}\n',
    b'{ "theme":"dark",\r\n "statusLine" : {"type":"command", "command":"c\\u0063line"} }',
    b'{"statusLine": null, "version": 1}',
    b'// mine\n{"statusLine": {"type": "command", /* x */ "command": "ccline"}, "a": 1}',
    b'{"hooks": {"Stop": [{"type": "command", "bash": "true"}]}}',
])  # fmt: skip
@pytest.mark.parametrize("out", ["uninstall", "none"])
def test_settings_come_back_to_the_byte(home, before, out):
    """With the line that was there, by either way."""
    settings = home.path.parent / "settings.json"
    if before is not None:
        settings.write_bytes(before)
    home.install(status_line="both")
    assert LINE.launcher in settings.read_text()
    assert not COPILOT.setup.plan_installation(home.request(force=True)).changes
    if out == "none":
        home.install(status_line="none")
        assert (settings.read_bytes() if settings.exists() else None) == before
    home.uninstall()
    assert (settings.read_bytes() if settings.exists() else None) == before
    assert not home.states.exists()
    assert not home.hooks.exists()


def test_a_line_of_another_kind_is_left_and_named(home):
    """What cannot be chained is not replaced."""
    settings = home.path.parent / "settings.json"
    settings.write_text('{"statusLine": {"type": "builtin"}}')
    plan = home.install(status_line="own")
    assert "cannot be chained; it is left as it is" in plan.warnings[0]
    assert status_line(home) == {"type": "builtin"}
    assert {status for _, status in home.findings()} == {OK}
    home.uninstall()
    assert not home.states.exists()


def test_settings_that_cannot_be_read_stop_only_who_needs_them(home):
    """They are left alone."""
    settings = home.path.parent / "settings.json"
    settings.write_text("{")
    home.install()
    with pytest.raises(StateCorruptError, match="line 1"):
        home.install(status_line="own")
    home.uninstall()
    assert settings.read_text() == "{"
    assert not home.states.exists()
    with pytest.raises(ConfigurationError):
        home.install(status_line_parts="tea")


def test_the_doctor_finds_a_line_that_is_gone(home):
    """Taken out, or another tool's."""
    settings = home.path.parent / "settings.json"
    home.install(status_line="own")
    assert "ultramon's" in home.findings()["copilot status line", OK].message
    settings.write_text("{}")
    assert "taken out" in home.findings()["copilot status line", WARNING].message
    settings.write_text(json.dumps({"statusLine": OTHER}))
    assert "another tool's" in home.findings()["copilot status line", WARNING].message
    home.install()
    assert ("copilot status line", OK) in home.findings()
    home.uninstall()
    assert status_line(home) == OTHER
