"""What the environment decides: whether ultramon does anything, and where states are kept."""

import pytest

from ultramon.system.environment import disabled, state_directory


@pytest.mark.parametrize(
    ("text", "off"),
    [("1", True), ("true", True), ("yes", True), ("", False), ("0", False), ("False", False),
     ("no", False), ("OFF", False)],
)  # fmt: skip
def test_monitoring_is_turned_off_by_one_variable(text, off):
    """ULTRAMON_DISABLED in any usual spelling of yes and no."""
    assert disabled({"ULTRAMON_DISABLED": text}) is off
    assert disabled({}) is False


def test_the_state_directory_is_absolute(monkeypatch, tmp_path):
    """A relative or home path becomes the directory it meant when it was asked for."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ULTRAMON_STATE_DIR", "here")
    assert state_directory() == str(tmp_path / "here")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("ULTRAMON_STATE_DIR", "~/state")
    assert state_directory() == str(tmp_path / "state")
    monkeypatch.delenv("ULTRAMON_STATE_DIR")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
    assert state_directory() == str(tmp_path / "xdg" / "ultramon")
