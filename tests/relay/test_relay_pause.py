"""How long a relay waits where one host is limited and the plan of another one is used up."""

import time
from contextlib import closing

import pytest
from helpers.program import as_a_process, environment

from ultramon.backends.local.backend import LocalBackend
from ultramon.relay.choices import RelayChoices
from ultramon.relay.launcher_order import Launchers
from ultramon.relay.launchers.claude_code import ClaudeCodeLauncher
from ultramon.relay.launchers.codex import CodexLauncher
from ultramon.relay.launchers.outcome import USAGE, ProviderLimit
from ultramon.relay.runs.context_record import ContextRecord
from ultramon.relay.runs.pause import PlanPause, continuation
from ultramon.relay.runs.run import Run
from ultramon.relay.runs.start import StartedContext
from ultramon.relay.workspace import RelayWorkspace
from ultramon.state.plan_limits import FIVE_HOURS, PlanLimits, plan_limit
from ultramon.system.clock import SYSTEM_CLOCK

HOUR = 3_600.0


@pytest.fixture
def relay(tmp_path):
    """A run of two hosts that waits for six hours at most."""
    environ = environment(CODEX_HOME=str(tmp_path / "codex"))
    with as_a_process(environ), closing(Relayed(tmp_path)) as found:
        yield found


class Relayed:
    """A run, and the plan of its second host.

    Args:
        path: For its folders.
    """

    def __init__(self, path):
        self.said, self.now = [], time.time()
        self.account, state = str(path / "codex"), str(path / "state")
        self.plans = PlanLimits(state)
        choices = RelayChoices("g", str(path), agent="claude,codex", wait_at_most_seconds=6 * HOUR)
        launchers = {
            "claude": ClaudeCodeLauncher("job", state), "codex": CodexLauncher("job", state),
        }  # fmt: skip
        workspace = RelayWorkspace("job", *[str(path)] * 3, None, None, True, False)
        self.run = Run(
            "job",
            choices,
            Launchers(launchers, SYSTEM_CLOCK),
            (workspace,),
            None,
            LocalBackend(state),
            self.said.append,
        )
        self.pause = PlanPause(self.run, self.plans)

    def close(self):
        self.run.fleet.close()
        self.run.backend.close()

    def use_up(self, hours):
        """Let Codex's plan be used up until then."""
        limit = plan_limit(FIVE_HOURS, 100, self.now + hours * HOUR, self.now)
        self.plans.record("codex", self.account, [limit], self.now)

    def limit(self, hours):
        """Let Claude Code take no requests until then; return how its context continues."""
        context = StartedContext(self.run, ContextRecord(1, "s", self.now, agent="claude"), "a", {})
        limit = ProviderLimit(USAGE, self.now + hours * HOUR)
        return continuation(context, limit, lambda: None)


@pytest.mark.parametrize(("limited", "stops"), [(5, False), (7, True)])
def test_a_limited_host_is_waited_for_as_long_as_is_allowed(relay, limited, stops):
    """Its limit ends before the plan of the other one is reset."""
    relay.run.launchers.limit("claude", relay.now + limited * HOUR)
    relay.use_up(9)
    assert [relay.pause.may_start() for _ in range(2)] == [False, False]
    assert (relay.run.stop is not None) == stops
    (words,) = [relay.run.stop.words] if stops else relay.said
    assert words.startswith("the usage limit of claude is met")
    assert words.endswith("later than in 6 h") == stops


@pytest.mark.parametrize(("used_up", "stops"), [(1, False), (8, True)])
def test_a_plan_that_is_reset_in_time_is_waited_for(relay, used_up, stops):
    """Though the limit of the context's own host ends later than the run may wait."""
    relay.use_up(used_up)
    assert relay.pause.may_start()
    assert (relay.limit(7) is None) == stops
    assert (relay.run.stop is not None) == stops
