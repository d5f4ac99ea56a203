"""What the installation, the environment, a project and the client's settings decide for a hook."""

import json
import os

import pytest
from helpers.hooked_session import HookedSession, said, tokens_at

from ultramon.context.ladder import Ladder, Rung
from ultramon.hosts.calls.invocation import WINDOWS_SUFFIX
from ultramon.system.files import replace_file


@pytest.fixture
def session(tmp_path):
    return HookedSession(tmp_path)


# --- who is warned


@pytest.mark.parametrize("audience", ["agent", "orchestrator", "both", "none"])
@pytest.mark.parametrize("where", ["installed", "environment", "project"])
def test_who_is_told_is_chosen_in_three_places(session, audience, where):
    """The agent itself only when it is meant; the events of a fleet are there in any case."""
    env = {}
    if where == "installed":
        session.freeze(audience=audience)
    elif where == "environment":
        session.freeze(audience="none" if audience in ("agent", "both") else "agent")
        env = {"ULTRAMON_AUDIENCE": audience}
    else:
        session.freeze(audience="none" if audience in ("agent", "both") else "agent")
        silence(session, {"audience": audience})
    assert bool(session.tool(tokens_at(30), env=env).text) == (audience in ("agent", "both"))
    assert len(session.events("context_threshold_reached")) == 1
    assert session.failures() == []


def silence(session, value):
    folder = session.project / ".ultramon"
    folder.mkdir(exist_ok=True)
    text = value if isinstance(value, str) else json.dumps(value)
    (folder / "claude-code.json").write_text(text)


def test_the_environment_wins_over_the_project_and_that_over_the_installation(session):
    """The nearest word counts; one that is no audience is none."""
    silence(session, {"audience": "none"})
    assert said(session, 30) == [None]
    assert said(session, 30, env={"ULTRAMON_AUDIENCE": "agent"}) == [70]
    assert said(session, 20, env={"ULTRAMON_AUDIENCE": "everybody"}) == [None]
    silence(session, {"audience": "everybody"})
    assert said(session, 20) == [80]


@pytest.mark.parametrize("text", ["", "{", "[]", '"none"', "null", "{}", "\xff", "[" * 5000])
def test_a_broken_project_file_silences_nobody(session, text):
    """The failure log says so, and the installation's choice holds."""
    silence(session, text)
    assert said(session, 30) == [70]
    (problem,) = session.failures()
    assert ".ultramon/claude-code.json" in problem


@pytest.mark.parametrize("value", ["1", "true", "yes", "anything"])
def test_disabled_does_nothing_at_all(session, value):
    """Not even a state is written."""
    assert session.tool(tokens_at(20), env={"ULTRAMON_DISABLED": value}).stdout == b""
    assert session.ids() == []


@pytest.mark.parametrize("value", ["", "0", "false", "NO", "off"])
def test_not_disabled_is_not_disabled(session, value):
    """The spellings of no."""
    assert said(session, 20, env={"ULTRAMON_DISABLED": value}) == [80]


def test_run_and_parent_come_from_the_environment(session):
    """An orchestrator names the run of the sessions it starts; what is no id is not taken."""
    env = {"ULTRAMON_RUN": "night", "ULTRAMON_PARENT_ID": "boss"}
    session.tool(10_000, env=env)
    assert (session.record().run, session.record().parent_id) == ("night", "boss")
    session.tool(10_000, agent="sub", env={"ULTRAMON_RUN": "../x", "ULTRAMON_PARENT_ID": "/"})
    assert (session.record("sub").run, session.record("sub").parent_id) == (
        "claude-code", session.session_id,
    )  # fmt: skip


# --- the ladder of the installation


def test_another_ladder_and_another_cap(session):
    """What was installed decides."""
    ladder = Ladder((Rung("half", 0.5), Rung("near", None, 10_000, "force_return")))
    session.freeze(ladder=ladder, context_limit_tokens=100_000)
    texts = [session.tool(tokens).text for tokens in (49_999, 50_000, 89_999, 90_000)]
    assert [bool(text) for text in texts] == [False, True, False, True]
    assert [e["level"] for e in session.events("context_threshold_reached")] == ["half", "near"]


def test_a_new_installation_counts_from_the_next_call(session):
    """A running session is measured against the new cap."""
    assert said(session, 60) == [None]
    session.freeze(context_limit_tokens=100_000, installed_at=1_800_000_000.0)
    answer = session.tool(tokens_at(60) + 1)
    assert "80,001 of 100,000 tokens (80 %)" in answer.text
    assert session.record().context_limit == 100_000


# --- windows


def learn(session, **windows):
    told = {name.replace("_", "-"): tokens for name, tokens in windows.items()}
    replace_file(str(session.state / f"claude-code{WINDOWS_SUFFIX}"), json.dumps(told).encode())


def test_a_window_that_the_status_line_told_outranks_the_table(session):
    """Also where it becomes known in the middle of a session."""
    assert said(session, 50) == [None]
    learn(session, claude_sonnet_4_5=120_000)
    assert "101,000 of 120,000 tokens (84 %)" in session.tool(101_000).text
    record = session.record()
    assert (record.context_window, record.limit_source) == (120_000, "host")


@pytest.mark.parametrize(
    ("model", "window"),
    [("claude-sonnet-4-5", 200_000), ("claude-sonnet-4-5[1m]", 1_000_000),
     ("claude-opus-5-5", 1_000_000), ("claude-haiku-4-5", 200_000), ("nobody-knows", 1_000_000)],
)  # fmt: skip
def test_the_requested_model_decides_the_window(session, model, window):
    """The transcript's own name of the model has lost the suffix of the large window."""
    session.reply(150_000, "toolu_a", model=model)
    answer = session.call("PostToolUse", tool_use_id="toolu_a", tool_name="Bash")
    record = session.record()
    assert (record.model, record.context_limit) == (model, window)
    assert record.limit_source == ("host" if model == "nobody-knows" else "model")
    assert bool(answer.text) == (window == 200_000)


def test_a_refusal_that_names_a_maximum_is_the_window(session):
    """More than the table's guess for a model; until another model is asked."""
    session.tool(180_000, event="PostToolUse")
    session.reply(180_000, "toolu_a", model="nobody-knows")
    session.refusal(text="Prompt is too long: 205000 tokens > 190000 maximum")
    session.call("StopFailure", error="invalid_request")
    record = session.record()
    assert (record.context_limit, record.limit_source) == (190_000, "observed")
    session.reply(20_000, "toolu_b")
    session.call("PostToolUse", tool_use_id="toolu_b", tool_name="Bash")
    record = session.record()
    assert (record.context_limit, record.limit_source) == (200_000, "model")


@pytest.mark.parametrize(
    ("environ", "window"),
    [
        ({"CLAUDE_CODE_DISABLE_1M_CONTEXT": "1"}, 200_000),
        ({"CLAUDE_CODE_DISABLE_1M_CONTEXT": "0"}, 1_000_000),
        ({"CLAUDE_CODE_MAX_CONTEXT_TOKENS": "150000", "DISABLE_COMPACT": "1"}, 150_000),
        ({"CLAUDE_CODE_MAX_CONTEXT_TOKENS": "150000"}, 1_000_000),  # alone it changes nothing
        ({"CLAUDE_CODE_MAX_CONTEXT_TOKENS": "many", "DISABLE_COMPACT": "1"}, 1_000_000),
    ],
    ids=str,
)
@pytest.mark.parametrize("is_notified", [False, True], ids=["headless", "told elsewhere"])
def test_the_environment_can_make_the_window_smaller(session, environ, window, is_notified):
    """Also where a status line stated another one, in another environment."""
    if is_notified:
        learn(session, claude_sonnet_5=1_000_000)
    for _ in range(2):
        session.reply(100_000, "toolu_a", model="claude-sonnet-5")
        session.call("PostToolUse", tool_use_id="toolu_a", env=environ)
        assert session.record().context_window == window


def test_a_start_that_names_the_model_without_its_suffix_changes_nothing(session):
    """The transcript has said it better."""
    session.reply(150_000, "toolu_a", model="claude-sonnet-4-5[1m]")
    session.call("PostToolUse", tool_use_id="toolu_a")
    session.call("SessionStart", source="compact", model="claude-sonnet-4-5")
    assert session.record().context_limit == 1_000_000


def test_more_than_the_window_holds_means_that_the_window_is_wrong(session):
    """Tokens only, and no warning, until a window is known that can be right."""
    assert said(session, 30) == [70]
    assert said(session, -1) == [None]
    record = session.record()
    assert (record.estimated_tokens, record.context_limit, record.usage_ratio) == (
        202_000, None, None,
    )  # fmt: skip
    assert (record.threshold_status, record.limit_suspect) == (None, True)
    learn(session, claude_sonnet_4_5=250_000)
    assert said(session, -1) == [81]
    assert (session.record().context_limit, session.record().limit_suspect) == (250_000, False)


def test_before_the_first_reply_nothing_is_known(session):
    """No model, no window, no warning."""
    assert session.call("UserPromptSubmit", prompt="hello").text == ""
    record = session.record()
    assert (record.model, record.context_limit, record.threshold_status) == (None, None, None)
    assert (record.measured_at, record.usage_ratio) == (None, None)


# --- where the client compacts by itself


WINDOW, PERCENT = "CLAUDE_CODE_AUTO_COMPACT_WINDOW", "CLAUDE_AUTOCOMPACT_PCT_OVERRIDE"


@pytest.mark.parametrize(
    ("environ", "limit"),
    [
        ({WINDOW: "100000"}, 67_000),
        ({WINDOW: "200000"}, 167_000),
        ({WINDOW: "100000", PERCENT: "75"}, 60_000),
        ({WINDOW: "200000", PERCENT: "50"}, 90_000),
        ({WINDOW: "200000", PERCENT: "99"}, 167_000),
        ({WINDOW: "200000", PERCENT: "101"}, 167_000),
        ({WINDOW: "200000", PERCENT: "x"}, 167_000),
        ({WINDOW: "1000"}, 67_000),  # less than the client's own least
        ({WINDOW: "900000"}, 167_000),  # capped to the model's window
        ({WINDOW: "200000", "CLAUDE_CODE_MAX_OUTPUT_TOKENS": "8000"}, 179_000),
        ({WINDOW: "200000", "CLAUDE_CODE_MAX_OUTPUT_TOKENS": "64000"}, 167_000),
        ({PERCENT: "50"}, 200_000),  # alone it did nothing
        ({WINDOW: "100000", "DISABLE_COMPACT": "0"}, 67_000),
        ({WINDOW: "nonsense"}, 200_000),
        ({WINDOW: "-100000"}, 200_000),
        ({WINDOW: "9" * 4000}, 200_000),
        ({WINDOW: "\u0661\u0660\u0660\u0660\u0660\u0660"}, 200_000),
        ({}, 200_000),
    ],
    ids=lambda value: ascii(value)[:60],
)
def test_a_compaction_that_the_environment_sets_is_the_limit(session, environ, limit):
    """With the arithmetic that was measured on the client: 67,000, 167,000, 60,000, 90,000."""
    session.tool(10_000, env=environ)
    record = session.record()
    assert (record.context_limit, record.context_window) == (limit, 200_000)
    assert record.limit_source == ("model" if limit == 200_000 else "host")


def settle(path, **settings):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(settings))


LAYERS = {
    "user": lambda s: s.home / ".claude" / "settings.json",
    "project": lambda s: s.project / ".claude" / "settings.json",
    "local": lambda s: s.project / ".claude" / "settings.local.json",
}


@pytest.mark.parametrize("layer", LAYERS)
def test_every_layer_of_settings_can_set_it(session, layer):
    """User, project and local settings."""
    settle(LAYERS[layer](session), autoCompactWindow=100_000)
    session.tool(10_000)
    assert session.record().context_limit == 67_000


def test_the_nearer_layer_wins_and_the_environment_over_all(session):
    """As the client decides it, a model's own setting before the general one."""
    settle(LAYERS["user"](session), autoCompactWindow=100_000)
    settle(LAYERS["local"](session), autoCompactWindow=150_000)
    settle(LAYERS["project"](session), autoCompactWindow=120_000)
    session.tool(10_000)
    assert session.record().context_limit == 150_000 - 33_000
    by_model = {"claude-sonnet-4-5": {"autoCompactWindow": 180_000}, "other": {}}
    settle(LAYERS["user"](session), autoCompactWindow=100_000, modelSettings=by_model)
    session.tool(10_000, agent="sub")
    assert session.record("sub").context_limit == 180_000 - 33_000
    session.tool(10_000, agent="next", env={WINDOW: "100000"})
    assert session.record("next").context_limit == 67_000


def test_another_configuration_directory_is_followed(session):
    """The client can be set to keep its settings elsewhere."""
    elsewhere = session.path / "elsewhere"
    settle(elsewhere / "settings.json", autoCompactWindow=100_000)
    session.tool(10_000, env={"CLAUDE_CONFIG_DIR": str(elsewhere)})
    assert session.record().context_limit == 67_000


OFF = {"DISABLE_AUTO_COMPACT": "1"}
REFUSAL = "CLAUDE_CODE_BLOCKING_LIMIT_OVERRIDE"


@pytest.mark.parametrize(
    ("environ", "limit"),
    [
        (OFF, 177_000),
        ({"DISABLE_COMPACT": "true"}, 177_000),
        (OFF | {WINDOW: "100000", PERCENT: "50"}, 177_000),
        (OFF | {"CLAUDE_CODE_MAX_OUTPUT_TOKENS": "8000"}, 189_000),
        (OFF | {"CLAUDE_CODE_MAX_OUTPUT_TOKENS": "64000"}, 177_000),
        (OFF | {REFUSAL: "90000"}, 90_000),
        (OFF | {REFUSAL: "190000"}, 190_000),
        (OFF | {REFUSAL: "nonsense"}, 177_000),
        ({"DISABLE_COMPACT": "1", "CLAUDE_CODE_MAX_CONTEXT_TOKENS": "120000"}, 97_000),
        ({"DISABLE_AUTO_COMPACT": "0"}, 200_000),
        ({REFUSAL: "90000"}, 200_000),
    ],
    ids=str,
)
def test_where_compaction_is_off_the_refusal_is_the_limit(session, environ, limit):
    """With the arithmetic that was measured on the client: 177,000, 189,000, 97,000."""
    session.tool(10_000, env=environ)
    assert session.record().context_limit == limit


@pytest.mark.parametrize("layer", LAYERS)
def test_every_layer_of_settings_can_switch_compaction_off(session, layer):
    """A configured window means nothing then."""
    settle(LAYERS[layer](session), autoCompactEnabled=False, autoCompactWindow=100_000)
    session.tool(10_000)
    assert session.record().context_limit == 177_000


@pytest.mark.parametrize("is_elsewhere", [False, True])
def test_compaction_switched_off_in_the_menu_counts_unless_settings_say_otherwise(
    session, is_elsewhere
):
    """The client's own file of answers lies beside its settings, or in the home."""
    directory = session.path / "elsewhere" if is_elsewhere else session.home
    env = {"CLAUDE_CONFIG_DIR": str(directory)} if is_elsewhere else {}
    settle(directory / ".claude.json", autoCompactEnabled=False, history=["x" * 2_000_000])
    session.tool(10_000, env=env)
    assert session.record().context_limit == 177_000
    settle(LAYERS["project"](session), autoCompactEnabled=True)
    session.tool(10_000, agent="sub", env=env)
    assert session.record("sub").context_limit == 200_000


def test_the_warning_says_what_happens_where_compaction_is_off(session):
    """The consequence is another one than a summary."""
    session.freeze()
    assert session.tool(100_000, env=OFF).text == ""
    text = session.tool(120_000, env=OFF).text
    assert "120,000 of 177,000 tokens" in text
    assert "At the limit requests are refused." in text


@pytest.mark.parametrize(
    "settings",
    [
        {"autoCompactWindow": True},
        {"autoCompactWindow": -1},
        {"autoCompactWindow": 1e5},
        {"autoCompactWindow": [100_000]},
        {"modelSettings": {"claude-sonnet-4-5": 100_000}},
        {"modelSettings": []},
    ],
    ids=str,
)
def test_settings_that_set_no_window_leave_the_model_its_own(session, settings):
    """What is no number is none."""
    settle(LAYERS["user"](session), **settings)
    session.tool(10_000)
    assert session.record().context_limit == 200_000


@pytest.mark.parametrize("kind", ["pipe", "directory", "link to a pipe", "broken", "link"])
def test_settings_are_read_only_where_reading_ends(session, kind):
    """Links are followed, as people keep settings elsewhere; nothing waits for a writer."""
    path, target = LAYERS["project"](session), session.path / "target"
    path.parent.mkdir()
    if kind == "directory":
        path.mkdir()
    elif kind == "broken":
        path.write_bytes(b'{"autoCompactWindow": 100000')
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(target)
        if kind == "link":
            settle(target, autoCompactWindow=100_000)
        else:
            os.mkfifo(target)
    session.tool(10_000)
    assert session.record().context_limit == (67_000 if kind == "link" else 200_000)


def test_a_resumed_session_follows_the_settings_of_its_new_process(session):
    """What the environment sets belongs to a process, not to a session."""
    session.tool(10_000)
    session.call("SessionEnd", reason="other")
    session.call("SessionStart", source="resume", env={WINDOW: "100000"})
    assert session.record().context_limit == 67_000


# --- the note for a compaction, and the place of the states


@pytest.mark.parametrize("agent", [None, "sub"])
@pytest.mark.parametrize("note", [None, "", "Keep the open questions.", 'not "JSON" %s\n\ud83d é'])
def test_a_handoff_note_is_said_at_a_compaction_only(session, agent, note):
    """As plain text, which the client adds to its instructions; without one nothing is said."""
    session.freeze(handoff_note=note)
    session.tool(tokens_at(60), agent)
    process = session.start()
    out, err = process.communicate(json.dumps(session.payload("PreCompact", agent)).encode())
    assert (process.returncode, err) == (0, b"")
    assert out == ((note.encode("utf-8", "replace") + b"\n") if note else b"")
    answer = session.call("SessionStart", agent, source="compact")
    assert not note or note not in answer.text
    for event in ("PostCompact", "Stop"):
        assert session.call(event, agent).stdout == b""
    assert session.record(agent).epoch == 2


@pytest.mark.parametrize("spelled", ["{home}/elsewhere", "~/elsewhere"])
def test_the_environment_can_move_the_states(session, spelled):
    """The choices of the installation hold all the same."""
    session.freeze(context_limit_tokens=100_000)
    env = {"ULTRAMON_STATE_DIR": spelled.format(home=session.home)}
    assert "80,000 of 100,000 tokens" in session.tool(80_000, env=env).text
    assert session.ids() == []
    session.state = session.home / "elsewhere"
    assert session.record().context_limit == 100_000
    assert len(session.events("context_threshold_reached")) == 1
