"""The orchestrators that are shown to users, while their workers die as early as they can."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
from helpers import ROOT
from helpers.program import PROGRAM, environment
from helpers.run_history import read_events

from ultramon.backends.local.backend import LocalBackend

KILLER = """
import os, signal, sys

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def is_a_victim():
    for number in range(4):
        try:
            os.close(os.open(os.environ["DEATHS"] + str(number), os.O_CREAT | os.O_EXCL))
            return True
        except FileExistsError:
            continue
    return False

saves = []

def watch(event, arguments):
    if event == "os.rename" and str(arguments[1]).endswith(".json"):
        saves.append(event)
        if len(saves) == 2:
            die()

if sys.orig_argv[-1] == "work" and is_a_victim():
    if os.environ["MOMENT"] == "import":
        die()
    sys.addaudithook(watch)
"""
"""A `sitecustomize` that kills the first four workers: at once, or before their second save."""


def documented():
    """Return the whole program of docs/fleet.md."""
    page = (ROOT / "docs" / "fleet.md").read_text(encoding="utf-8")
    section = page[page.index("## A whole orchestrator") :]
    return re.search(r"^```python\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)[1]


@pytest.fixture
def orchestrator(request, tmp_path):
    if request.param == "example":
        return ROOT / "examples" / "subprocess_orchestrator.py"
    path = tmp_path / "orchestrator.py"
    path.write_text(documented(), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("orchestrator", "moment"),
    [
        ("docs", "import"),
        pytest.param("example", "plan", marks=pytest.mark.exhaustive),
        pytest.param("docs", "plan", marks=pytest.mark.exhaustive),
        pytest.param("example", "import", marks=pytest.mark.exhaustive),
    ],
    indirect=["orchestrator"],
)
def test_an_orchestrator_survives_the_early_deaths_of_its_workers(moment, orchestrator, tmp_path):
    """Killed while importing, or between first state and plan: all is done, and it ends."""
    (tmp_path / "killer").mkdir()
    (tmp_path / "killer" / "sitecustomize.py").write_text(KILLER)
    done = subprocess.run(
        [sys.executable, orchestrator],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env=environment(
            PYTHONPATH=str(tmp_path / "killer"),
            DEATHS=str(tmp_path / "death."),
            MOMENT=moment,
            ULTRAMON_STATE_DIR=str(tmp_path / "state"),
        ),
    )
    assert done.returncode == 0, done.stderr
    assert "no work was lost" in done.stdout
    backend = LocalBackend(str(tmp_path / "state"))
    lost = [event for event in read_events(backend) if event["type"] == "agent_lost"]
    backend.close()
    assert len(lost) >= 4
    assert {event["exit"]["signal"] for event in lost} == {"SIGKILL"}


def test_the_documented_orchestrator_survives_chaos(tmp_path):
    """Ten workers are killed at random: nothing is lost, at most one item for each is repeated."""
    path = tmp_path / "orchestrator.py"
    path.write_text(documented(), encoding="utf-8")
    options = ("--state-dir", tmp_path / "state", "--json", "--kills", "10", "--every", "0.15")
    done = subprocess.run(
        [PROGRAM, "chaos", *options, "--timeout", "600", "--", sys.executable, path],
        capture_output=True,
        encoding="utf-8",
        env=environment(),
        check=False,
    )
    report = json.loads(done.stdout)
    assert (done.returncode, report["problems"]) == (0, []), done.stderr
    assert (report["planned"], report["completed"], report["lost"]) == (120, 120, 0)
    assert report["kills"] == 10
    assert report["repeated"] <= 10
