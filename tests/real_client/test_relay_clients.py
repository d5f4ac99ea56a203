"""One job across real clients: where one meets its usage limit, another continues."""

import json
import os
import random
import time
from typing import NamedTuple

import pytest
from helpers import codex_client, gemini_client, qwen_client
from helpers.client_relay import SETTINGS
from helpers.host_client import HostClient
from helpers.program import PROGRAM, as_a_process, run_process
from helpers.qwen_session import NEW

from real_client.api import TURN, Refusal
from real_client.client import MODEL, Client, one_at_a_time
from real_client.item_agent import ItemAgent
from real_client.item_job import GOAL, RULES, ItemJob
from real_client.item_model import ItemCodex, ItemGemini, ItemModel, ItemQwen
from ultramon.relay.choices import RelayChoices
from ultramon.relay.opening import open_relay
from ultramon.relay.runs.result import RelayResult

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


class OtherClient(NamedTuple):
    """A client beside Claude Code, and the model behind it."""

    client: HostClient
    model: ItemModel
    variables: dict[str, str]


def begin_codex(directory, is_limited):
    client, model = codex_client.Client(directory), ItemCodex(is_limited)
    client.configure(model)
    return OtherClient(client, model, client.variables)


def begin_gemini(directory, is_limited):
    client, model = gemini_client.Client(directory), ItemGemini(is_limited)
    client.settings.write_text(json.dumps(gemini_client.HEADLESS))
    return OtherClient(client, model, client.variables | {"GOOGLE_GEMINI_BASE_URL": model.url})


def begin_qwen(directory, is_limited):
    client, model = qwen_client.Client(directory, NEW), ItemQwen(is_limited)
    own = {"OPENAI_BASE_URL": f"{model.url}/v1", "OPENAI_API_KEY": "none"}
    own |= {"OPENAI_MODEL": qwen_client.MODEL, "QWEN_HOME": str(client.configuration)}
    return OtherClient(client, model, own)


OTHERS = {"codex": begin_codex, "gemini": begin_gemini, "qwen": begin_qwen}


def play(directory, seed, *, items, limits, order="claude,codex", limit_seconds=1):
    """Run the job with limits at random points; return the result and what is known of it."""
    is_limited, names, state = Limits(seed, limits), order.split(","), directory / "state"
    agent = LimitedAgent(directory / "configuration", RULES)
    agent.is_limited, agent.limit_seconds = is_limited, limit_seconds
    others, told = [], []
    try:
        with one_at_a_time():
            claude = Client(directory, agent)
            job = ItemJob(claude.project, items)
            environ, folders = {}, [claude.program, PROGRAM]
            for name in names:
                if name == "claude":
                    continue
                other = OTHERS[name](directory / name, is_limited)
                other.model.limit_seconds = limit_seconds
                others.append(other)
                environ |= other.variables
                folders.append(other.client.program)
            environ.pop("HTTPS_PROXY", None)  # with it Qwen Code does not reach loopback
            path = [*(os.path.dirname(one) for one in folders), os.environ["PATH"]]
            environ |= claude.environment(
                PATH=os.pathsep.join(path), CLAUDE_CODE_MAX_RETRIES="0",
                ULTRAMON_STATE_DIR=str(state),
            )  # fmt: skip
            arguments = SETTINGS | {"claude": ("--model", MODEL)}
            given = [word for name in names for word in (*arguments[name], "--")][:-1]
            choices = RelayChoices(
                GOAL, str(job.directory), RULES, tuple(job.items), job.check_command,
                agent=order, arguments=tuple(given), may_pay=tuple(names[1:]),
            )  # fmt: skip
            with as_a_process(environ):
                if "gemini" in names:
                    assert run_process("install", "gemini", "--force", **environ).returncode == 0
                opened = open_relay("job", choices, state_directory=str(state))
                result = opened.relay(told.append, first_pause_seconds=0.2).run()
    finally:
        agent.close()
        for other in others:
            other.model.close()
    verified = job.verified(state / "relay" / "job" / "worktree")
    begun = agent.begun.total() + sum(other.model.begun.total() for other in others)
    prompts = [texts for other in others for texts in other.model.prompts]
    return Played(result, verified == set(job.items), begun - items, is_limited.met, prompts, told)


class Played(NamedTuple):
    """What a run came to, and what the models beside Claude Code were asked."""

    result: RelayResult
    is_done: bool
    repeated: int
    limits: int
    prompts: list[list[str]]
    told: list[str]


def check(played):
    """Nothing is lost, at most one item is repeated at each limit, and the user's words stay."""
    result, told = played.result, played.told
    assert played.is_done, told
    assert result.ok, told
    assert result.work.lost == ()
    assert played.repeated <= played.limits, told
    assert not result.work.set_aside
    head = "\n".join([f"# Goal\n{GOAL}\n", "## Rules of the user"])
    for prompts in played.prompts:
        assert any(head in text for text in prompts)
        assert all(any(rule in text for text in prompts) for rule in RULES)
    return told


@pytest.mark.parametrize(
    "other",
    [
        "codex",
        pytest.param("gemini", marks=pytest.mark.exhaustive),
        pytest.param("qwen", marks=pytest.mark.exhaustive),
    ],
)
def test_a_client_at_its_usage_limit_is_followed_by_the_other(tmp_path, other):
    """With the same record; each context says who works."""
    played = play(tmp_path, 3, items=3, limits=1, limit_seconds=3600, order=f"claude,{other}")
    told = check(played)
    assert played.limits == 1
    assert any("met the usage limit of claude" in line for line in told)
    assert {one.agent for one in played.result.contexts} == {"claude", other}


ORDERS = (
    "codex,claude",
    "claude,codex",
    "claude,gemini",
    "gemini,qwen",
    "qwen,claude",
    "claude,codex,gemini,qwen",
)


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(18))
def test_limits_at_random_points_lose_nothing(tmp_path, seed):
    """Whichever client is preferred, and where all are limited at once."""
    order = ORDERS[seed % len(ORDERS)]
    check(play(tmp_path, seed, items=6, limits=1 + seed % 7, order=order))
