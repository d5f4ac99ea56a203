"""Which client takes the next context of a relay, and how several are named."""

import pytest

from ultramon.errors import ConfigurationError
from ultramon.relay.choices import RelayChoices
from ultramon.relay.launcher_order import Launchers
from ultramon.relay.launchers.command import CommandLauncher
from ultramon.testing import FakeClock


def agents(agent, *arguments):
    return RelayChoices("g", "/", agent=agent, arguments=arguments).agents


def test_each_client_has_its_own_arguments():
    """They are apart by --, in the order of the list; a single one takes them as they are."""
    assert agents("claude,codex", "--model", "x", "--", "-s", "read-only") == {
        "claude": ("--model", "x"), "codex": ("-s", "read-only"),
    }  # fmt: skip
    assert agents("codex,claude", "--", "--model") == {"codex": (), "claude": ("--model",)}
    assert agents("codex,claude") == {"codex": (), "claude": ()}
    assert agents("command", "npm", "run", "--", "x") == {"command": ("npm", "run", "--", "x")}


@pytest.mark.parametrize("agent", ["", "emacs", "claude,claude", "claude,command", "claude,"])
def test_a_list_of_agents_that_makes_no_sense_is_refused(agent):
    """Before anything is made, with what is allowed."""
    with pytest.raises(ConfigurationError, match="must be command, or one or more of claude"):
        agents(agent)


def test_more_groups_of_arguments_than_clients_are_refused():
    """Nothing would say whose the last one is."""
    with pytest.raises(ConfigurationError, match="at most 2 groups"):
        agents("claude,codex", "a", "--", "b", "--", "c")


def test_the_first_client_that_is_free_takes_the_next_context():
    """Where none is, the one whose limit ends first."""
    clock = FakeClock()
    names = ("a", "b", "c")
    clients = Launchers({name: CommandLauncher("run", [name]) for name in names}, clock)
    assert (clients.next_name(), clients.free_beside("a")) == ("a", "b")
    clients.limit("a", clock.now() + 30)
    assert (clients.next_name(), clients.free_beside("a"), clients.free_beside("b")) == (
        "b", "b", "c",
    )  # fmt: skip
    clients.limit("b", clock.now() + 10)
    clients.limit("c", clock.now() + 20)
    assert (clients.next_name(), clients.free_beside("b")) == ("b", None)
    clock.advance(30)
    assert (clients.next_name(), clients.free_beside("c")) == ("a", "a")


def test_a_client_that_is_held_back_gives_way_until_it_is_free():
    """For the share of its plan that is the user's; what was held before is free again."""
    clock = FakeClock()
    clients = Launchers({name: CommandLauncher("run", [name]) for name in ("a", "b")}, clock)
    clients.hold({"a": clock.now() + 30})
    assert (clients.next_name(), clients.free_beside("b")) == ("b", None)
    clients.limit("b", clock.now() + 60)
    assert (clients.next_name(), clients.free_at("a")) == ("a", clock.now() + 30)
    clients.hold({})
    assert (clients.next_name(), clients.free_beside("b")) == ("a", "a")


def test_an_agent_without_a_name_is_the_preferred_one():
    """As in the records of a run from before there was a choice."""
    clients = Launchers({"a": CommandLauncher("run", ["a"])}, FakeClock())
    assert clients.of("") is clients.of("a")
