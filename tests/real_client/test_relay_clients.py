"""One job across two real clients: where one meets its usage limit, the other goes on."""

import os
import random
import time

import pytest
from helpers import codex_client
from helpers.client_relay import SETTINGS
from helpers.program import PROGRAM, as_a_process

from real_client.api import TURN, Refusal
from real_client.client import MODEL, Client, one_at_a_time
from real_client.item_agent import ItemAgent
from real_client.item_codex import ItemCodex
from real_client.item_job import GOAL, RULES, ItemJob
from ultramon.relay.choices import RelayChoices
from ultramon.relay.opening import open_relay

pytestmark = pytest.mark.real_client


class Limits:
    """Usage limits at random requests, at most so many.

    Args:
        seed: Of the choice.
        count: The most.
    """

    def __init__(self, seed, count):
        self._chance = random.Random(seed)
        self.left = count
        self.met = 0

    def __call__(self):
        """Whether this request meets one."""
        if not self.left or self._chance.random() > 0.25:
            return False
        self.left -= 1
        self.met += 1
        return True


class LimitedAgent(ItemAgent):
    """The agent behind Claude Code; its limits end after so many seconds."""

    is_limited = Limits(0, 0)
    limit_seconds = 1

    def choose_step(self, request):
        if request.kind == TURN and self.is_limited():
            words = f"Claude AI usage limit reached|{int(time.time()) + self.limit_seconds}"
            return Refusal(words, 429, "rate_limit_error")
        return super().choose_step(request)


def play(directory, seed, *, items, limits, order="claude,codex", limit_seconds=1):
    """Run the job with limits at random points; return the result and what is known of it."""
    is_limited = Limits(seed, limits)
    agent = LimitedAgent(directory / "configuration", RULES)
    agent.is_limited, agent.limit_seconds = is_limited, limit_seconds
    model = ItemCodex(is_limited)
    told = []
    try:
        with one_at_a_time():
            claude = Client(directory, agent)
            codex = codex_client.Client(directory / "codex")
            job = ItemJob(claude.project, items)
            codex.configure(model)
            folders = (claude.program, codex.program, PROGRAM)
            path = os.pathsep.join([*(os.path.dirname(one) for one in folders), os.environ["PATH"]])
            environ = codex.environ() | claude.environment(
                PATH=path, CLAUDE_CODE_MAX_RETRIES="0", ULTRAMON_STATE_DIR=str(directory / "state")
            )
            arguments = {"claude": ("--model", MODEL), "codex": SETTINGS["codex"]}
            first, second = (arguments[name] for name in order.split(","))
            choices = RelayChoices(
                GOAL, str(job.directory), RULES, tuple(job.items), job.check_command,
                agent=order, arguments=(*first, "--", *second),
            )  # fmt: skip
            with as_a_process(environ):
                opened = open_relay("job", choices, state_directory=str(directory / "state"))
                result = opened.relay(told.append, first_pause_seconds=0.2).run()
    finally:
        agent.close()
        model.close()
    verified = job.verified(directory / "state" / "relay" / "job" / "worktree")
    begun = agent.begun + model.begun
    return result, verified == set(job.items), sum(begun.values()) - items, is_limited, model, told


def check(played):
    """Nothing is lost, at most one item is repeated at each limit, and the user's words stay."""
    result, is_done, repeated, limits, model, told = played
    assert is_done, told
    assert result.ok, told
    assert result.work.lost == ()
    assert repeated <= limits.met, told
    assert not result.work.set_aside
    head = "\n".join([f"# Goal\n{GOAL}\n", "## Rules of the user"])
    for prompts in model.prompts:
        assert any(text.startswith(head) for text in prompts)
        assert all(any(rule in text for text in prompts) for rule in RULES)
    return told


def test_a_client_at_its_usage_limit_is_followed_by_the_other(tmp_path):
    """With the same record; each context says who works."""
    played = play(tmp_path, 3, items=3, limits=1, limit_seconds=3600)
    told = check(played)
    assert played[3].met == 1
    assert any("met the usage limit of claude" in line for line in told)
    assert {one.agent for one in played[0].contexts} == {"claude", "codex"}


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(12))
def test_limits_at_random_points_lose_nothing(tmp_path, seed):
    """Whichever client is preferred, and where both are limited at once."""
    order = "claude,codex" if seed % 2 else "codex,claude"
    check(play(tmp_path, seed, items=6, limits=1 + seed % 6, order=order))
