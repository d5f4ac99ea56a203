"""How alerts are configured: keyword, environment, file, default; and what is refused."""

import math
import os

import pytest

from ultramon import AlertConfig
from ultramon.alerts.config import DEFAULT_ACTIONS, STATUSES
from ultramon.errors import ConfigurationError


@pytest.fixture(autouse=True)
def bare(monkeypatch, tmp_path):
    monkeypatch.setenv("ULTRAMON_CONFIG", str(tmp_path / "ultramon.toml"))
    monkeypatch.chdir(tmp_path)
    toml("")


def toml(text):
    """Write the user's configuration file."""
    with open("ultramon.toml", "w", encoding="utf-8") as file:
        file.write(text)


def thresholds(config):
    return [rung.ratio for rung in config.ladder.rungs]


def test_nothing_given_is_the_documented_default():
    """Four thresholds above `ok`, every command, no quiet period."""
    config = AlertConfig()
    assert (config.ladder.base, thresholds(config)) == ("ok", [0.70, 0.85, 0.90, 0.95])
    assert (config.enabled, config.directory, config.minimum_status) == (
        True,
        ".ultramon",
        "warning",
    )
    assert (config.quiet_seconds, config.stale_seconds) == (0.0, 5.0)
    assert (config.commands, config.every) == ((), {})
    assert config.actions == DEFAULT_ACTIONS
    config.actions.clear()
    assert AlertConfig().actions == DEFAULT_ACTIONS != {}
    assert set(DEFAULT_ACTIONS) == set(STATUSES)


def test_keyword_beats_environment_beats_file_beats_default(monkeypatch):
    """Each source fills only what the better ones left open; actions status by status."""
    toml(
        "[context]\nwarning_threshold = 0.2\n"
        "[alerts]\nwarning_threshold = 0.5\ncaution_threshold = 0.6\nquiet_seconds = 7\n"
        "commands = ['complete']\nrearm_margin = 0.1\ndirectory = '.cleo'\n"
        "[alerts.actions]\nwarning = 'file'\ncaution = 'file'\ncritical = 'file'\n"
        "[alerts.every]\nadd = 3\n"
    )
    monkeypatch.setenv("ULTRAMON_ALERT_WARNING_THRESHOLD", "0.4")
    monkeypatch.setenv("ULTRAMON_ALERT_CAUTION_THRESHOLD", "0.55")
    monkeypatch.setenv("ULTRAMON_ALERT_COMMANDS", "add, update,")
    monkeypatch.setenv("ULTRAMON_ALERT_ACTION_WARNING", "environment")
    monkeypatch.setenv("ULTRAMON_ALERT_ACTION_CAUTION", "environment")
    config = AlertConfig(warning_threshold=0.3, actions={"warning": "keyword"})
    assert thresholds(config) == [0.3, 0.55, 0.90, 0.95]
    assert (config.quiet_seconds, config.commands) == (7.0, ("add", "update"))
    assert (config.directory, config.every, config.ladder.rearm_margin) == (
        ".cleo",
        {"add": 3},
        0.1,
    )
    assert [config.actions[s] for s in ("warning", "caution", "critical", "emergency")] == [
        "keyword", "environment", "file", DEFAULT_ACTIONS["emergency"],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("variable", "text", "name", "value"),
    [
        ("ULTRAMON_NO_ALERT", "1", "enabled", False),
        ("ULTRAMON_NO_ALERT", "0", "enabled", True),
        ("ULTRAMON_ALERT_DIR", ".cleo", "directory", ".cleo"),
        ("ULTRAMON_ALERT_MINIMUM_STATUS", "critical", "minimum_status", "critical"),
        ("ULTRAMON_ALERT_QUIET_SECONDS", "60", "quiet_seconds", 60.0),
        ("ULTRAMON_ALERT_STALE_SECONDS", "2.5", "stale_seconds", 2.5),
        ("ULTRAMON_ALERT_COMMANDS", "complete", "commands", ("complete",)),
        ("ULTRAMON_ALERT_COMMANDS", "", "commands", ()),
    ],
)
def test_every_setting_has_a_variable(monkeypatch, variable, text, name, value):
    """An empty one is none at all."""
    monkeypatch.setenv(variable, text)
    assert getattr(AlertConfig(), name) == value


@pytest.mark.parametrize(
    ("given", "name", "allowed"),
    [
        ({"warning_threshold": 0}, "warning_threshold", "0 < ratio <= 1"),
        ({"warning_threshold": math.nan}, "warning_threshold", "finite"),
        ({"emergency_threshold": math.inf}, "emergency_threshold", "finite"),
        ({"emergency_threshold": 1.01}, "emergency_threshold", "0 < ratio <= 1"),
        ({"caution_threshold": True}, "caution_threshold", "0 < ratio <= 1"),
        ({"warning_threshold": 0.85}, "caution_threshold", "above warning_threshold=0.85"),
        ({"critical_threshold": 0.96}, "emergency_threshold", "above critical_threshold=0.96"),
        ({"rearm_margin": 1}, "rearm_margin", "0 <= margin < 1"),
        ({"minimum_status": "stale"}, "minimum_status", "one of warning, caution"),
        ({"minimum_status": "ok"}, "minimum_status", "one of warning, caution"),
        ({"quiet_seconds": -1}, "quiet_seconds", "seconds from 0"),
        ({"quiet_seconds": math.inf}, "quiet_seconds", "seconds from 0"),
        ({"stale_seconds": "5"}, "stale_seconds", "seconds from 0"),
        ({"commands": "complete"}, "commands", "a list of command names"),
        ({"commands": 7}, "commands", "a list of command names"),
        ({"commands": [""]}, "commands", "printable"),
        ({"enabled": "no"}, "enabled", "true or false"),
        ({"directory": "a\nb"}, "directory", "printable"),
        ({"actions": {"warning": "\x1b[2J"}}, "actions: warning", "printable"),
        ({"actions": {"warning": "two\nlines"}}, "actions: warning", "printable"),
        ({"actions": {"warning": "right\u202eleft"}}, "actions: warning", "printable"),
        ({"actions": {"warning": "x" * 501}}, "actions: warning", "500"),
        ({"actions": {"warn": "x"}}, "actions: status", "one of ok, warning"),
        ({"actions": "x"}, "actions", "a table"),
        ({"every": {"add": 0}}, "every: add", "from 1"),
        ({"every": {"add": 2.5}}, "every: add", "from 1"),
        ({"every": 3}, "every", "a table"),
    ],
)
def test_what_makes_no_sense_is_refused(given, name, allowed):
    """With the setting, the value and what is allowed."""
    with pytest.raises(ConfigurationError) as caught:
        AlertConfig(**given)
    error = caught.value
    # Where two values do not go together, the default that was broken is named.
    source = "argument" if name in given or not name.endswith("_threshold") else "default"
    assert (error.name, error.source) == (name, source)
    assert allowed in error.allowed


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("warning_threshold = 0.99", "caution_threshold"),
        ("quiet_seconds = 'long'", "quiet_seconds"),
        ("quiet = 5", "[alerts] setting"),
        ("actions = 5", "actions"),
    ],
)
def test_the_file_is_named_where_it_is_wrong(text, name):
    """So that one knows what to open."""
    toml(f"[alerts]\n{text}\n")
    with pytest.raises(ConfigurationError) as caught:
        AlertConfig()
    assert caught.value.name == name
    if name != "caution_threshold":
        assert caught.value.source.startswith(os.path.abspath("ultramon.toml"))


def test_a_variable_is_named_where_it_is_wrong(monkeypatch):
    """A text that is no number stays what it is in the message."""
    monkeypatch.setenv("ULTRAMON_ALERT_QUIET_SECONDS", "long")
    where = r"quiet_seconds='long' \(from ULTRAMON_ALERT_QUIET_SECONDS\) is not allowed"
    with pytest.raises(ConfigurationError, match=where):
        AlertConfig()
    monkeypatch.delenv("ULTRAMON_ALERT_QUIET_SECONDS")
    monkeypatch.setenv("ULTRAMON_ALERT_ACTION_OK", "two\nlines")
    with pytest.raises(ConfigurationError, match=r"\(from ULTRAMON_ALERT_ACTION_OK\)"):
        AlertConfig()


@pytest.mark.parametrize("source", ["argument", "ultramon.toml"])
def test_a_misspelt_setting_is_answered_with_the_one_that_is_meant(monkeypatch, tmp_path, source):
    """As a keyword and in the file; a variable, which may belong to others, is logged."""
    monkeypatch.chdir(tmp_path)
    given = {"warning_treshold": 0.6}
    if source != "argument":
        (tmp_path / source).write_text("[alerts]\nwarning_treshold = 0.6\n")
        given = {}
    with pytest.raises(ConfigurationError, match=r"did you mean warning_threshold\?$") as caught:
        AlertConfig(**given)
    source = "argument" if source == "argument" else str(tmp_path / source)
    assert (caught.value.value, caught.value.source) == ("warning_treshold", source)
