"""Installing the plugin of opencode and taking it out again, and what the doctor finds."""

import json
import sqlite3
import time

import pytest
from helpers import ROOT
from helpers.host_home import HostHome
from helpers.opencode_session import plant, session_id

from ultramon.errors import ConfigurationError
from ultramon.hosts.opencode import hook
from ultramon.hosts.opencode.configuration import LIMITS_VARIABLE
from ultramon.hosts.opencode.dialect import DIALECT
from ultramon.hosts.opencode.host import OPENCODE
from ultramon.hosts.opencode.setup import PACKAGE
from ultramon.hosts.port import PROMPT, TOOL_ENDED, WAITING
from ultramon.hosts.resident import forwarder
from ultramon.hosts.transcripts.records import OVERFLOW
from ultramon.system.findings import OK, PROBLEM, WARNING


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "config").mkdir()
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.delenv("OPENCODE_DB", raising=False)
    monkeypatch.chdir(tmp_path)
    made = HostHome(OPENCODE, tmp_path / "work" / "x", tmp_path / "states")
    made.plugin = tmp_path / "config" / "opencode" / "plugin" / "ultramon.js"
    return made


def test_the_plugin_is_one_file_and_goes_with_the_folders_made_for_it(home, tmp_path):
    """Where the client was not there yet, nothing is left."""
    before = sorted(tmp_path.rglob("*"))
    plan = home.install()
    assert home.plugin.read_bytes().startswith(b"// Written by `ultramon install opencode`")
    assert "70 s" in " ".join(plan.notes)
    assert not OPENCODE.setup.plan_installation(home.request(force=True)).changes
    home.uninstall()
    assert sorted(tmp_path.rglob("*")) == before


def test_a_project_has_a_plugin_of_its_own(home):
    """It is that of the directory in which it was installed."""
    request = home.request(force=True, layer="project")
    OPENCODE.setup.plan_installation(request).apply(time.time())
    file = home.path / ".opencode" / "plugin" / "ultramon.js"
    assert file.is_file()
    assert not home.plugin.exists()
    OPENCODE.setup.plan_removal(request).apply(time.time())
    assert not (home.path / ".opencode").exists()
    with pytest.raises(ConfigurationError, match="user or project"):
        OPENCODE.setup.plan_installation(home.request(force=True, layer="local"))


def test_the_doctor_says_what_the_client_fetches(home):
    """And is silent where nothing was installed."""
    assert home.findings() == {}
    home.install()
    assert "70 s" in home.findings()["opencode package", WARNING].message
    (home.plugin.parent.parent / PACKAGE).mkdir(parents=True)
    assert {status for _, status in home.findings()} == {OK}
    home.plugin.write_text(home.plugin.read_text() + "// edited\n")
    assert "ultramon install" in home.findings()["opencode plugin", WARNING].cure
    home.plugin.unlink()
    assert "are gone" in home.findings()["opencode hooks", PROBLEM].message


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"const TAKEN_MS = 250", b"const TAKEN_MS = {}"),
        (b"let compaction = {}", b"let compaction = { auto: false }"),
        (b"const LOADED", b"const EXTRA = {}\nconst LOADED"),
        (b"const LOADED", b"const \xff = 1\nconst LOADED"),
    ],
)
def test_an_edited_plugin_is_named_and_replaced(home, old, new):
    """Whatever is edited, also into what is no text; what it runs is known still."""
    home.install()
    written = home.plugin.read_bytes()
    (home.plugin.parent.parent / PACKAGE).mkdir(parents=True)
    home.plugin.write_bytes(written.replace(old, new, 1))
    assert home.plugin.read_bytes() != written
    assert "ultramon install" in home.findings()["opencode plugin", WARNING].cure
    home.install()
    assert home.plugin.read_bytes() == written
    home.uninstall()
    assert not home.plugin.exists()


def test_the_doctor_finds_sessions_of_which_the_plugin_said_nothing(home, tmp_path):
    """By the client's database."""
    path = tmp_path / "data" / "opencode" / "opencode.db"
    plant(path, "subagents")
    home.install(at=time.time() - 60)
    (home.plugin.parent.parent / PACKAGE).mkdir(parents=True)
    assert home.findings()["opencode sessions", OK].message.startswith("none began")
    with sqlite3.connect(path) as database:
        now_ms = int(time.time() * 1000)
        database.execute("UPDATE session SET time_created = ?", (now_ms,))
    database.close()
    assert session_id(path) in home.findings()["opencode sessions", PROBLEM].message


@pytest.mark.parametrize(
    ("limits", "window", "compacts_at"),
    [
        ({"context": 100_000, "output": 8_000}, 100_000, 92_000),
        ({"context": 200_000, "output": 64_000}, 200_000, 168_000),
        ({"context": 200_000}, 200_000, 168_000),
        ({"context": 200_000, "output": 8_000, "reserved": 50_000}, 200_000, 192_000),
        ({"context": 400_000, "input": 272_000, "output": 128_000}, 400_000, 252_000),
        ({"context": 400_000, "input": 272_000, "output": 8_000}, 400_000, 264_000),
        ({"context": 400_000, "input": 272_000, "output": 8_000, "reserved": 0}, 400_000, 272_000),
        ({"context": 100_000, "output": 8_000, "auto": False}, 100_000, None),
        ({"context": 20_000, "output": 32_000}, 20_000, None),
        ({"context": 0, "output": 8_000}, None, None),
        ({"context": "many"}, None, None),
        ([], None, None),
    ],
)
def test_the_client_compacts_where_a_reply_may_not_fit(limits, window, compacts_at):
    """What it reserves counts only for a model with a limit of its input."""
    environ = {LIMITS_VARIABLE: json.dumps(limits)}
    assert DIALECT.window_tokens(environ, None) == window
    assert DIALECT.compaction_limits(environ, None, None, window) == (compacts_at, None)
    assert DIALECT.window_tokens({LIMITS_VARIABLE: "{"}, 7) == 7


def test_events_are_what_the_plugin_says():
    """Whatever else is in a payload."""
    own = {"sessionID": "ses_1", "messages": [{"id": 5}, 7, {"id": "msg_1"}]}

    def read(event, **more):
        return DIALECT.read_event(own | {"event": event} | more, {})

    assert (read("prompt", prompt='"two words"').prompt, read("prompt").kind) == (
        "two words",
        PROMPT,
    )
    assert read("prompt", prompt='"say \\"yes\\" now"').prompt == 'say "yes" now'
    assert read("prompt", prompt='"a" and "b"').prompt == '"a" and "b"'
    failed = read("returned", childID="ses_2", error="prompt is too long: 9 tokens > 8 maximum")
    assert (failed.kind, failed.returned.error) == (TOOL_ENDED, OVERFLOW)
    stopped = read("returned", childID="ses_2", error="Task cancelled").returned
    assert (stopped.error, stopped.has_text) == (None, False)
    assert read("idle", error="MessageAbortedError").error == ""
    assert read("idle", subagentID="ses_2").kind == ""
    assert read("idle", error="APIError").kind == WAITING
    assert read("from a newer plugin").kind == ""
    for payload in ({}, {"event": "idle"}, {"event": 5, "sessionID": "s"}):
        with pytest.raises(ValueError, match=r"no event|not text"):
            DIALECT.read_event(payload, {})


def test_the_plugin_sends_what_a_forwarder_would():
    """The resident reads no other variables; the limits of the model are the plugin's own."""
    source = (ROOT / "ultramon" / "hosts" / "opencode" / "plugin.js").read_text(encoding="utf-8")
    listed = source.partition("const VARIABLES = [")[2].partition("]")[0]
    sent = {*hook.FORWARDED, *forwarder.OWN_VARIABLES} - {LIMITS_VARIABLE}
    assert {one.strip(' "\n') for one in listed.split(",")} == sent
    assert forwarder.MAGIC.decode().strip() in source


def test_the_page_says_what_is_so():
    """The folder, and the words that resume a session."""
    page = (ROOT / "docs" / "opencode.md").read_text(encoding="utf-8")
    assert "plugin/ultramon.js" in page
    assert OPENCODE.setup.resume_words("s") == ("opencode", "-s", "s")
