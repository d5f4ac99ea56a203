"""Who does not return is ended in Gemini CLI and Qwen Code too: before the next request is made."""

import pytest
from helpers.players import CHOICES, FULL, GeminiPlayer, QwenPlayer

from ultramon.hosts.calls.enforcement import REPLIES_TO_RETURN
from ultramon.hosts.calls.hosted_agent import NOT_RETURNED

NUDGE = (
    "[System: You successfully executed a tool but returned an empty response. Please analyze the"
    " tool output and explain your progress or final answer.]"
)


PLAYERS = pytest.mark.parametrize("make", [QwenPlayer, GeminiPlayer])


def is_end(value):
    """Whether an answer ends the turn; then it says nothing else."""
    return value is not None and value.keys() == {"continue", "stopReason"}


@PLAYERS
@pytest.mark.parametrize(
    "choices",
    [{"enforce": None}, {"enforce_dry_run": True}, {"audience": "none"},
     {"context_limit_tokens": None}],
    ids=str,
)  # fmt: skip
def test_without_the_choice_nobody_is_ended(tmp_path, make, choices):
    """Nor where the agent is not asked, or its limit comes from a table of models."""
    player = make(tmp_path, CHOICES | choices)
    tokens = 1_000_000 if make is GeminiPlayer and "context_limit_tokens" in choices else FULL
    _, answers = player.go_on(2 + REPLIES_TO_RETURN, tokens)
    assert answers == [None] * len(answers)
    assert player.record().active
    (*would,) = player.session.events("return_enforced")
    assert [one["dryRun"] for one in would] == [True] * bool(choices.get("enforce_dry_run"))


def test_a_session_on_a_terminal_waits_after_its_end(tmp_path):
    """Asked to continue it is not ended again, and it ends as it ends."""
    player = QwenPlayer(tmp_path, CHOICES, "qwen")
    _, answers = player.go_on(1 + REPLIES_TO_RETURN)
    assert is_end(answers[-1])
    assert (player.record().active, player.record().phase) == (True, "waiting")
    player.call("UserPromptSubmit", prompt="go on")
    _, answers = player.go_on(2 + REPLIES_TO_RETURN)
    assert answers == [None] * len(answers)
    player.call("Stop", last_assistant_message="")
    player.call("SessionEnd", reason="prompt_input_exit")
    assert player.record().outcome == "completed"


@pytest.mark.parametrize("prompt", ["<b>bold</b>, please", "go on"])
def test_a_prompt_of_qwen_code_is_never_refused(tmp_path, prompt):
    """Only an empty one is a round of tools."""
    player = QwenPlayer(tmp_path, CHOICES)
    player.go_on(REPLIES_TO_RETURN)
    answer = player.call("UserPromptSubmit", prompt=prompt)
    assert not is_end(answer.value)
    assert player.record().active


def test_a_subagent_of_gemini_is_ended_by_its_own_replies(tmp_path):
    """The session is not, though every call names it."""
    player = GeminiPlayer(tmp_path, CHOICES)
    path = player.launch("child")
    answers = [player.play(FULL + number, path)[1].value for number in range(1 + REPLIES_TO_RETURN)]
    assert [is_end(one) for one in answers] == [False] * REPLIES_TO_RETURN + [True]
    child = player.session.record("main.child")
    assert (child.outcome, child.exit) == ("cancelled", {"reason": NOT_RETURNED})
    assert child.handoff is not None
    assert player.record().active
    assert player.session.failures() == []


def test_where_several_subagents_of_gemini_run_none_is_ended(tmp_path):
    """The client does not say which of them asks its model."""
    player = GeminiPlayer(tmp_path, CHOICES)
    first, second = player.launch("first"), player.launch("second")
    for number in range(2 + REPLIES_TO_RETURN):
        replies = [(player.begin(FULL + number, path), path) for path in (first, second)]
        player.call("AfterTool", tool_name="read_file", tool_input={}, tool_response={})
        assert [player.end(*one).stdout for one in replies] == [b"", b""]
    assert player.session.record("main.first").estimated_tokens >= FULL


def test_what_gemini_asks_by_itself_after_the_end_is_ended_too(tmp_path):
    """On a terminal it would continue; a person's prompt is answered, none of its own is kept."""
    player = GeminiPlayer(tmp_path, CHOICES)

    def ask(prompt):
        assert player.call("BeforeAgent", prompt=prompt).stdout == b""
        player.write(player.path, {"type": "user", "content": [{"text": prompt}]})
        return is_end(player.call("BeforeModel").value)

    assert not ask("work")
    player.go_on(REPLIES_TO_RETURN)
    assert not ask(NUDGE)  # no turn was ended
    assert is_end(player.play(FULL + REPLIES_TO_RETURN)[1].value)
    assert [ask(NUDGE), ask(NUDGE)] == [True, True]
    assert (player.record().phase, player.record().current_task) == ("waiting", "work")
    assert not ask("go on")
    assert (player.record().phase, player.record().current_task) == ("working", "go on")


@pytest.mark.parametrize("content", ["go on", [{"text": "go on"}], [], [5]])
def test_a_request_of_gemini_that_follows_no_tools_is_nobodys(tmp_path, content):
    """After a prompt, and where the file says nothing of the kind."""
    player = GeminiPlayer(tmp_path, CHOICES)
    player.go_on(REPLIES_TO_RETURN)
    before = player.record()
    player.write(player.path, {"type": "user", "content": content})
    assert player.call("BeforeModel").stdout == b""
    assert player.record().seq == before.seq
