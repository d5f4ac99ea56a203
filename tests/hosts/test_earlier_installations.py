"""Installations that an earlier ultramon made: upgraded, run, examined, and taken out again."""

from __future__ import annotations

import pytest
from helpers.earlier_installation import CASES, PLACES, EarlierInstallation


@pytest.fixture(params=CASES.values(), ids=CASES.keys())
def earlier(request, tmp_path, monkeypatch):
    return EarlierInstallation(request.param, tmp_path).as_home(monkeypatch)


def test_an_earlier_installation_becomes_one_of_today(earlier):
    """Its hooks run before and after, and nothing of it is left, neither then nor without it."""
    placed = [option for option in earlier.options if option in PLACES]
    assert earlier.call("before")
    earlier.run("install", earlier.host, "--force", *placed)
    upgraded = earlier.installed()
    assert earlier.call("after")
    assert not {"launcher", "interpreter", "hook script", "choices"} & earlier.findings().keys()
    earlier.run("uninstall", earlier.host, *placed)
    assert earlier.tree() == earlier.clean
    chosen = [option for option in earlier.options if option == "--no-resident"]
    earlier.run("install", earlier.host, "--force", *placed, *chosen)
    assert earlier.installed() == upgraded
