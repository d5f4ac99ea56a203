"""What screens show of the machines whose agents a database holds."""

from __future__ import annotations

import json

import pytest
from helpers.program import run
from helpers.team import ATTIC, CELLAR, login, server, team  # noqa: F401

from ultramon.backends.local.backend import LocalBackend
from ultramon.backends.machines import Machine, find_machine, machine_names
from ultramon.backends.postgres.backend import PostgresBackend
from ultramon.errors import ConfigurationError
from ultramon.metrics.source import MetricsSource
from ultramon.pictures.elements import to_html
from ultramon.system.processes import this_machine
from ultramon.testing.contract.states import start
from ultramon.web.agent_reader import AgentReader
from ultramon.web.pages.fleet import fleet_content

HERE = this_machine().hostname
LOOKS = [("status",), ("watch", "--once"), ("watch", "--once", "--format", "table")]


def shown(url, *arguments):
    done = run(*arguments, ULTRAMON_BACKEND=url, COLUMNS="160")
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("look", LOOKS)
def test_a_screen_of_several_machines_names_them(team, look):
    """By the name that a machine gave itself, else its id; agents of the database by their host."""
    text = shown(team, *look)
    head = next(line for line in text.splitlines() if line.startswith("agent"))
    assert head.split()[1] == "machine"
    for name in ("attic", CELLAR, HERE[:15]):
        assert name in text
    assert ATTIC not in text.replace(f"{ATTIC}-", "")


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("name", ["attic", ATTIC, "m01"])
def test_a_screen_of_one_machine_is_as_before(team, look, name):
    """Only its agents, and no column for what is the same in all rows."""
    text = shown(team, *look, "--machine", name)
    assert "machine" not in text
    assert CELLAR not in text
    assert text.count("codex") == 2


def test_agents_of_the_database_itself_are_found_by_their_host(team):
    """They have the name of the machine that they run on."""
    found = json.loads(shown(team, "status", "--json", "--machine", HERE))
    assert [one["agentId"] for one in found["agents"]] == ["scout-1"]


def test_json_names_the_machines(team):
    """Agents have their ids as host names."""
    found = json.loads(shown(team, "status", "--json"))
    assert found["machines"] == [
        {"machineId": ATTIC, "name": "attic"},
        {"machineId": CELLAR, "name": CELLAR},
    ]
    assert {one["hostname"] for one in found["agents"]} == {ATTIC, CELLAR, HERE}


def test_an_unknown_machine_is_refused(team):
    """With those that are known."""
    for look in LOOKS:
        done = run(*look, "--machine", "garden", ULTRAMON_BACKEND=team)
        assert done.returncode == 1
        assert "machine='garden' (from argument) is not allowed: must be one of" in done.stderr


def test_files_have_no_machines(tmp_path):
    """Nothing changes on the screen of one machine."""
    store = LocalBackend(str(tmp_path))
    start(store)
    start(store, "scout-2", hostname="elsewhere", host="codex")
    store.close()
    text = shown(str(tmp_path), "status")
    assert "machine" not in text
    assert "machines" not in json.loads(shown(str(tmp_path), "status", "--json"))


def page(url, machine=None):
    backend = PostgresBackend(url)
    look = AgentReader(backend).look(None, 50, with_ended=False, machine=machine)
    content = fleet_content(
        look, {}, run=None, limit=50, more=200, with_ended=False, machine=machine
    )
    backend.close()
    return to_html(content)


def test_the_page_has_a_column_and_a_link_for_each_machine(team):
    """A link shows that machine's agents alone."""
    text = page(team)
    assert '<th scope="col">machine</th>' in text
    assert f'<td class="machine">{CELLAR}</td>' in text
    assert f'<a href="/?machine={ATTIC}">attic</a>' in text
    one = page(team, ATTIC)
    assert "<td class=" in one
    assert 'class="machine"' not in one
    assert f"agent-{ATTIC}-1" in one
    assert f"agent-{CELLAR}-1" not in one
    assert "<tbody" not in page(team, "garden")


def test_metrics_name_the_machine_of_each_agent(team):
    """A series of its own, so that those of one machine stay as they are."""
    backend = PostgresBackend(team)
    samples = {metric.name: values for metric, values in MetricsSource(backend).collect().items()}
    backend.close()
    found = samples["ultramon_agent_machine"]
    assert found[f"{ATTIC}-1", "default", "attic"] == 1.0
    assert {machine for _, _, machine in found} == {"attic", CELLAR, HERE}
    ages = samples["ultramon_machine_age_seconds"]
    assert ages.keys() == {("attic",), (CELLAR,)}
    assert all(0 <= age < 600 for age in ages.values())


def machine(machine_id, name=None):
    return Machine(machine_id, name, (), None, 0.0)


def test_two_machines_of_one_name_are_told_apart():
    """By their ids, which a person may write as well."""
    names = machine_names([machine("m1", "attic"), machine("m2", "attic"), machine("n3")])
    assert names == {"m1": "attic m1", "m2": "attic m2", "n3": "n3"}
    assert find_machine(names, "m2") == "m2"
    assert find_machine(names, "n") == "n3"
    with pytest.raises(ConfigurationError, match=r"one of attic m1, attic m2$"):
        find_machine(names, "m")
    with pytest.raises(ConfigurationError, match="left out, as there are none"):
        find_machine({}, "m")
