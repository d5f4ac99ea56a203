"""The table `[levels]`: two numbers for monitors, hooks and alerts, where nothing nearer is set."""

import os
from pathlib import Path

import pytest

from ultramon import AlertConfig, ConfigurationError, ContextConfig, Ladder
from ultramon.context.shared_levels import SharedLevels, shared_ladder


@pytest.fixture(autouse=True)
def bare(monkeypatch, tmp_path):
    """An empty working directory and an empty home."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")


def own_file(text):
    """Write the user's own configuration file."""
    path = Path(os.environ["XDG_CONFIG_HOME"], "ultramon", "ultramon.toml")
    path.parent.mkdir(parents=True)
    path.write_text(text, encoding="utf-8")
    return str(path)


def ratios(config):
    return [rung.ratio for rung in config.effective_ladder.rungs]


def test_one_table_sets_monitors_and_alerts(monkeypatch):
    """Alerts say *caution* where a monitor says critical; their own two levels stay above it."""
    path = own_file("[levels]\nwarning = 60\ncritical = 80\n")
    assert ratios(ContextConfig()) == [0.6, 0.8]
    assert ContextConfig().sources["critical_threshold"] == f"{path} [levels]"
    assert [rung.ratio for rung in AlertConfig().ladder.rungs] == [0.6, 0.8, 0.9, 0.95]
    assert shared_ladder() == Ladder.default(0.6, 0.8)
    monkeypatch.setenv("ULTRAMON_LEVELS", "50, 75")
    assert ratios(ContextConfig()) == [0.5, 0.75]
    assert ContextConfig().sources["warning_threshold"] == "ULTRAMON_LEVELS"
    assert [rung.ratio for rung in AlertConfig().ladder.rungs][:2] == [0.5, 0.75]


def test_one_level_alone_leaves_the_other_at_its_default():
    own_file("[levels]\ncritical = 80\n")
    assert ratios(ContextConfig()) == [0.7, 0.8]


def test_a_nearer_setting_wins(monkeypatch):
    """A keyword, a variable and a table of the one party are all nearer than what all share."""
    own_file("[context]\nwarning_threshold = 0.4\n[alerts]\ncaution_threshold = 0.72\n")
    monkeypatch.setenv("ULTRAMON_LEVELS", "60,80")
    assert ratios(ContextConfig()) == [0.4, 0.8]
    assert ratios(ContextConfig(warning_threshold=0.3, critical_threshold=0.9)) == [0.3, 0.9]
    assert [rung.ratio for rung in AlertConfig().ladder.rungs] == [0.6, 0.72, 0.9, 0.95]
    own = Ladder.default(0.1, 0.2)
    assert ContextConfig(ladder=own).effective_ladder == own


@pytest.mark.parametrize("text", ["70", "70,85,90", "0.7,0.85", "70.5,85", "a,b", "0,50", "70,101"])
def test_a_variable_that_is_no_two_whole_percents_is_refused(monkeypatch, text):
    monkeypatch.setenv("ULTRAMON_LEVELS", text)
    for kind in (ContextConfig, AlertConfig, SharedLevels):
        with pytest.raises(ConfigurationError, match=r"ULTRAMON_LEVELS.*whole percents.*70,85"):
            kind()


@pytest.mark.parametrize("line", ["warning = 0.7", "warning = true", "critical = 101"])
def test_a_file_with_other_than_whole_percents_is_refused(line):
    own_file(f"[levels]\n{line}\n")
    with pytest.raises(ConfigurationError, match=r"\[levels\].*whole number from 1 to 100"):
        ContextConfig()


def test_levels_that_do_not_rise_are_refused(monkeypatch):
    monkeypatch.setenv("ULTRAMON_LEVELS", "85,70")
    with pytest.raises(ConfigurationError, match=r"warning=85 .*ULTRAMON_LEVELS.* below critical="):
        ContextConfig()


def test_a_critical_level_that_reaches_the_alerts_own_is_refused_by_name(monkeypatch):
    """Monitors take it; alerts say which number stands above, and where to raise it."""
    monkeypatch.setenv("ULTRAMON_LEVELS", "70,92")
    assert ratios(ContextConfig()) == [0.7, 0.92]
    wanted = r"levels critical=92 .*ULTRAMON_LEVELS.* below 90, .* raise critical_threshold"
    with pytest.raises(ConfigurationError, match=wanted):
        AlertConfig()
    monkeypatch.setenv("ULTRAMON_ALERT_CRITICAL_THRESHOLD", "0.94")
    assert AlertConfig().caution_threshold == 0.92


def test_nothing_is_taken_from_a_project_that_is_not_trusted(caplog):
    """Its line names what is left out, and how to take it."""
    Path("ultramon.toml").write_text("[levels]\nwarning = 95\ncritical = 99\n", encoding="utf-8")
    assert ratios(ContextConfig()) == [0.7, 0.85]
    assert "not taken: levels.warning, levels.critical" in caplog.text
    assert "ultramon trust" in caplog.text


def test_a_misspelt_table_is_refused():
    own_file("[level]\nwarning = 60\n")
    with pytest.raises(ConfigurationError, match="did you mean levels"):
        ContextConfig()
