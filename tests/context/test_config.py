"""Configuration: keyword over environment over file over default, and what is refused."""

import math
import os
import pickle
import pydoc
from pathlib import Path

import click
import pytest

from ultramon.alerts import AlertConfig
from ultramon.alerts.config import STATUSES
from ultramon.cli import cli
from ultramon.context.config import ContextConfig
from ultramon.context.ladder import DEFAULT_LADDER, Ladder, Rung
from ultramon.errors import ConfigurationError
from ultramon.monitor.monitor import create_context_monitor
from ultramon.system.environment import GIVEN_VARIABLES, VARIABLES
from ultramon.system.trusted_files import trust


@pytest.fixture(autouse=True)
def bare(monkeypatch, tmp_path):
    """An empty working directory and an empty home."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


def own_file():
    """The path of the user's own file."""
    return os.path.join(os.environ["XDG_CONFIG_HOME"], "ultramon", "ultramon.toml")


def toml(text, path=None):
    """Write the user's own configuration file, or another one."""
    path = Path(path or own_file())
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def refused(**given):
    """Making a configuration that must be refused."""
    with pytest.raises(ConfigurationError) as caught:
        ContextConfig(**given)
    return caught.value


def test_nothing_given_is_the_documented_default():
    """Warning at 0.70, critical at 0.85, 5 % margin, no limit of one's own."""
    config = ContextConfig()
    assert config.effective_ladder == DEFAULT_LADDER
    assert (config.save_interval_seconds, config.heartbeat_interval_seconds) == (5.0, 15.0)
    assert (config.grace_seconds, config.lost_after_seconds, config.on_error) == (30.0, None, "log")
    assert config.context_limit_tokens is None
    assert config.default_window_tokens == 200_000


def test_keyword_beats_environment_beats_file_beats_default(monkeypatch):
    """Each source fills only what the better ones left open."""
    toml("[context]\nwarning_threshold = 0.5\ncritical_threshold = 0.6\ngrace_seconds = 7\n")
    monkeypatch.setenv("ULTRAMON_WARNING_THRESHOLD", "0.4")
    monkeypatch.setenv("ULTRAMON_CRITICAL_THRESHOLD", "0.55")
    config = ContextConfig(warning_threshold=0.3)
    assert config.warning_threshold == 0.3
    assert config.critical_threshold == 0.55
    assert config.grace_seconds == 7
    assert config.save_interval_seconds == 5.0
    assert config.sources == {
        "warning_threshold": "argument",
        "critical_threshold": "ULTRAMON_CRITICAL_THRESHOLD",
        "grace_seconds": f"{own_file()} [context]",
    }


def test_the_file_is_found_by_variable_then_here_and_at_home(monkeypatch):
    """ULTRAMON_CONFIG alone, else a trusted one of the working directory over the user's own."""
    toml("[context]\ngrace_seconds = 3\nmodel = 'gpt-4.1'\n")
    assert ContextConfig().grace_seconds == 3
    toml("[context]\ngrace_seconds = 2\n", "ultramon.toml")
    trust("ultramon.toml", Path("ultramon.toml").read_bytes())
    assert (ContextConfig().grace_seconds, ContextConfig().model) == (2, "gpt-4.1")
    toml("[context]\ngrace_seconds = 1\n", "other.toml")
    monkeypatch.setenv("ULTRAMON_CONFIG", "other.toml")
    assert (ContextConfig().grace_seconds, ContextConfig().model) == (1, None)


def test_texts_of_the_environment_become_numbers(monkeypatch):
    """Whole numbers, fractions and `none` mean what they say; an empty variable is none at all."""
    for name, text in {
        "CONTEXT_LIMIT_TOKENS": "150_000",
        "WARNING_TOKENS_LEFT": "40000",
        "REARM_MARGIN": "None",
        "SAVE_INTERVAL_SECONDS": "2",
        "LOST_AFTER_SECONDS": "90.5",
        "MODEL": "gpt-4.1",
        "ON_ERROR": "raise",
        "GRACE_SECONDS": "",
    }.items():
        monkeypatch.setenv(f"ULTRAMON_{name}", text)
    config = ContextConfig()
    assert (config.context_limit_tokens, config.warning_tokens_left) == (150_000, 40_000)
    assert config.rearm_margin is None
    assert (config.save_interval_seconds, config.lost_after_seconds) == (2.0, 90.5)
    assert (config.model, config.on_error, config.grace_seconds) == ("gpt-4.1", "raise", 30.0)


def test_the_file_can_hold_a_ladder():
    """Rungs are tables with the arguments of Rung; the margin beside them holds for them."""
    toml(
        "[context]\nrearm_margin = 0.1\n"
        '[[context.ladder]]\nname = "early"\nratio = 0.5\n'
        '[[context.ladder]]\nname = "late"\ntokens_left = 20000\naction = "force_return"\n'
    )
    assert ContextConfig().effective_ladder == Ladder(
        [Rung("early", 0.5), Rung("late", None, 20_000, "force_return")], rearm_margin=0.1
    )


def test_a_ladder_of_ones_own_replaces_the_thresholds():
    """Thresholds beside a ladder do not decide, so their order does not matter either."""
    ladder = Ladder([Rung("full", 0.9, action="force_return")])
    config = ContextConfig(ladder=ladder, warning_threshold=0.95)
    assert config.effective_ladder is ladder


def test_thresholds_make_the_default_ladder():
    """Ratios, tokens left and margin go into its two rungs."""
    config = ContextConfig(
        warning_threshold=0.5,
        critical_threshold=1.0,
        warning_tokens_left=40_000,
        critical_tokens_left=10_000,
        rearm_margin=None,
    )
    low, high = config.effective_ladder.rungs
    assert (low.ratio, low.tokens_left, low.action) == (0.5, 40_000, "prepare_handoff")
    assert (high.ratio, high.tokens_left, high.action) == (1.0, 10_000, "force_return")
    assert config.effective_ladder.rearm_margin is None


RATIO = "a finite ratio, 0 < ratio <= 1"
BAD_NUMBERS = [math.nan, math.inf, -math.inf, -1, True, False, "0.5", "many", [1], {}]


@pytest.mark.parametrize("value", [*BAD_NUMBERS, 0, 1.01, None], ids=repr)
@pytest.mark.parametrize("name", ["warning_threshold", "critical_threshold"])
def test_a_threshold_out_of_range_is_refused(name, value):
    """The error names the setting, the value, the range and where it came from."""
    error = refused(**{name: value})
    assert (error.name, error.allowed, error.source) == (name, RATIO, "argument")
    assert error.value is value
    assert str(error) == f"{name}={value!r} (from argument) is not allowed: must be {RATIO}"


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("context_limit_tokens", [*BAD_NUMBERS, 0, 1.5, 10**10]),
        ("context_window_tokens", [*BAD_NUMBERS, 0, 1.5, 10**10]),
        ("warning_tokens_left", [*BAD_NUMBERS, 0, 10**10]),
        ("critical_tokens_left", [*BAD_NUMBERS, 0, 10**10]),
        ("reserved_output_tokens", [*BAD_NUMBERS, 0.5, None]),
        ("rearm_margin", [*BAD_NUMBERS, 1, 1.5]),
        ("store_timeout_seconds", [*BAD_NUMBERS, 0, None, 10**9]),
        ("save_interval_seconds", [*BAD_NUMBERS, 0, None, 10**9]),
        ("heartbeat_interval_seconds", [*BAD_NUMBERS, 0, None]),
        ("grace_seconds", [*BAD_NUMBERS, None]),
        ("lost_after_seconds", [*BAD_NUMBERS, 0]),
        ("on_error", ["ignore", None, True, 1]),
        ("model", [7, True, ["gpt-4.1"]]),
        ("tokenizer_family", ["words", "", 4]),
        ("ladder", ["warning", 3, Rung("low", 0.7)]),
    ],
)
def test_every_setting_refuses_what_is_out_of_its_range(name, values):
    """No setting takes NaN, infinity, a boolean for a number, or a text for a number."""
    for value in values:
        error = refused(**{name: value})
        assert (error.name, error.source) == (name, "argument"), value
        assert error.value is value
        assert error.allowed


@pytest.mark.parametrize("text", ["nan", "inf", "0", "-0.5", "1.5", "true", "seventy", "70%"])
def test_a_bad_variable_is_named(monkeypatch, text):
    """The message leads to the variable."""
    monkeypatch.setenv("ULTRAMON_WARNING_THRESHOLD", text)
    error = refused()
    assert error.source == "ULTRAMON_WARNING_THRESHOLD"
    assert (error.name, error.allowed) == ("warning_threshold", RATIO)


@pytest.mark.parametrize("line", ["nan", "inf", "0", "-0.5", "1.5", "true", '"0.7"', "[0.7]"])
def test_a_bad_line_of_the_file_is_named(line):
    """The message leads to the file and its section."""
    toml(f"[context]\nwarning_threshold = {line}\n")
    error = refused()
    assert error.source == f"{own_file()} [context]"
    assert (error.name, error.allowed) == ("warning_threshold", RATIO)


@pytest.mark.parametrize(
    ("given", "name", "allowed"),
    [
        ({"warning_threshold": 0.9}, "warning_threshold", "below critical_threshold=0.85"),
        (
            {"warning_threshold": 0.5, "critical_threshold": 0.5},
            "warning_threshold",
            "below critical_threshold=0.5",
        ),
        (
            {"warning_tokens_left": 10, "critical_tokens_left": 10},
            "warning_tokens_left",
            "above critical_tokens_left=10",
        ),
        (
            {"context_window_tokens": 1000, "reserved_output_tokens": 1000},
            "reserved_output_tokens",
            "below context_window_tokens=1000",
        ),
    ],
)
def test_values_that_contradict_each_other_are_refused(given, name, allowed):
    """The error names one of them and the other's value."""
    error = refused(**given)
    assert (error.name, error.value, error.allowed) == (name, given[name], allowed)
    assert error.source == "argument"


def test_a_default_is_not_blamed_on_an_argument(monkeypatch):
    """Where the configured value clashes with a default, the error says that it is one."""
    monkeypatch.setenv("ULTRAMON_CRITICAL_THRESHOLD", "0.6")
    assert refused().source == "default"


@pytest.mark.parametrize("source", ["argument", "file"])
def test_an_unknown_setting_is_refused_with_the_known_ones(source):
    """A misspelt name would silently leave the default in force."""
    if source == "argument":
        error = refused(warning_treshold=0.7)
    else:
        toml("[context]\nwarning_treshold = 0.7\n")
        error, source = refused(), own_file()
    assert (error.value, error.source) == ("warning_treshold", source)
    assert error.name == ("setting" if error.source == "argument" else "[context] setting")
    assert error.allowed.startswith("one of context_limit_tokens, ")
    assert error.allowed.endswith("; did you mean warning_threshold?")


def test_an_unknown_keyword_of_a_monitor_is_refused_with_the_one_that_is_meant():
    """Its own keywords, and the settings that belong into a `ContextConfig`."""
    with pytest.raises(ConfigurationError, match=r"did you mean notify_thresholds\?$"):
        create_context_monitor(notify_treshold=[0.5])
    with pytest.raises(ConfigurationError) as caught:
        create_context_monitor(warning_treshold=0.5)
    assert caught.value.name == "keyword"
    assert caught.value.allowed.endswith("; did you mean ContextConfig(warning_threshold=...)?")


def test_a_setting_like_no_other_is_refused_without_a_guess():
    """A guess that is wrong is worse than none."""
    assert "did you mean" not in refused(colour="blue").allowed


def test_a_misspelt_rung_setting_is_answered_with_the_one_that_is_meant():
    """In the file a rung is a table."""
    toml('[context]\nladder = [{name = "low", rato = 0.5}]\n')
    error = refused()
    assert (error.name, error.value) == ("ladder setting", "rato")
    assert error.allowed.endswith("; did you mean ratio?")


def test_a_misspelt_table_is_answered_with_the_one_that_is_meant():
    """All its settings would silently count for nothing."""
    toml("[contxt]\nwarning_threshold = 0.6\n")
    error = refused()
    assert (error.name, error.value, error.source) == ("table", "contxt", own_file())
    assert error.allowed == (
        "one of context, alerts, webhooks, levels, plan, budgets, on; did you mean context?"
    )


@pytest.mark.parametrize(
    ("misspelt", "meant"),
    [
        ("ULTRAMON_WARNING_TRESHOLD", "ULTRAMON_WARNING_THRESHOLD"),
        ("ULTRAMON_CONTEXT_LIMIT", "ULTRAMON_CONTEXT_LIMIT_TOKENS"),
        ("ULTRAMON_STATEDIR", "ULTRAMON_STATE_DIR"),
        ("ULTRAMON_BACKENT", "ULTRAMON_BACKEND"),
        ("ULTRAMON_ALERT_QUIET_SECOND", "ULTRAMON_ALERT_QUIET_SECONDS"),
        ("ULTRAMON_ALERT_DIRECTORY", "ULTRAMON_ALERT_DIR"),
        ("ULTRAMON_ALERT_ENABLED", "ULTRAMON_NO_ALERT"),
        ("ULTRAMON_ALERT_ACTION_WARN", "ULTRAMON_ALERT_ACTION_WARNING"),
    ],
)
def test_a_misspelt_variable_is_logged_with_the_one_that_is_meant(
    monkeypatch, caplog, misspelt, meant
):
    """It may belong to another program, so nothing is refused; the log has it once."""
    monkeypatch.setenv(misspelt, "0.6")
    for _ in range(2):
        ContextConfig()
        AlertConfig()
    assert [record.getMessage() for record in caplog.records] == [
        f"{misspelt} is no variable of ultramon; did you mean {meant}?"
    ]


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("ULTRAMON_LADDERS", "ladder as a keyword or in ultramon.toml [context]"),
        (
            "ULTRAMON_ALERT_ACTIONS",
            " or ".join(f"ULTRAMON_ALERT_ACTION_{status.upper()}" for status in STATUSES),
        ),
    ],
)
def test_a_setting_without_a_variable_of_its_name_is_logged_with_what_is_meant(
    monkeypatch, caplog, variable, meant
):
    """Without a line in the log the variable would count for nothing, and nobody would know."""
    monkeypatch.setenv(variable, "x")
    for _ in range(2):
        ContextConfig()
        AlertConfig()
    assert [record.getMessage() for record in caplog.records] == [
        f"{variable} is no variable of ultramon; did you mean {meant}?"
    ]


def test_a_ladder_in_a_variable_is_refused_with_the_cure(monkeypatch):
    """No variable holds a ladder: whoever sets one believes in rungs that are not there."""
    monkeypatch.setenv("ULTRAMON_LADDER", "60,80")
    wanted = r"ULTRAMON_LADDER='60,80' .*unset.*ULTRAMON_LEVELS=70,85.*\[context\] ladder"
    with pytest.raises(ConfigurationError, match=wanted):
        ContextConfig()


def test_no_variable_of_ultramon_is_taken_for_a_misspelt_one(monkeypatch, caplog):
    """Neither a setting, nor the variable of an option of a command, nor what is like none."""
    names = {f"ULTRAMON_{name}" for name in VARIABLES | GIVEN_VARIABLES} | {"ULTRAMON_BUILD_NUMBER"}
    root = cli.make_context("ultramon", [], resilient_parsing=True)
    waiting = [cli]
    while waiting:
        command = waiting.pop()
        if isinstance(command, click.Group):
            inner = command.list_commands(root)
            waiting += [command.get_command(root, name) for name in inner]
        names |= {option.envvar for option in command.params if option.envvar is not None}
    for name in names - {"ULTRAMON_CONFIG"}:
        monkeypatch.setenv(name, "")
    ContextConfig()
    AlertConfig()
    assert caplog.records == []


@pytest.mark.parametrize(
    ("given", "allowed"),
    [
        ({"save_interval_seconds": 0}, "seconds above 0, at most 31,536,000"),
        ({"context_limit_tokens": "many"}, "a whole number from 1 to 1,000,000,000"),
        ({"on_error": "ignore"}, "one of log, raise"),
        ({"rearm_margin": 1}, "0 <= margin < 1"),
        ({"grace_seconds": math.inf}, "seconds from 0 to 31,536,000"),
    ],
)
def test_a_refusal_is_one_sentence(given, allowed):
    """The range follows "must be"."""
    ((name, value),) = given.items()
    message = f"{name}={value!r} (from argument) is not allowed: must be {allowed}"
    assert str(refused(**given)) == message


@pytest.mark.parametrize(
    "rows",
    [
        'ladder = [{name = "low", rato = 0.5}]',
        "ladder = [{ratio = 0.5}]",
        "ladder = [5]",
        'ladder = [{name = "low", ratio = 2}]',
        'ladder = [{name = "low", ratio = 0.5}, {name = "low", ratio = 0.6}]',
        'ladder = [{name = "low", ratio = 0.5}, {name = "high", ratio = 0.4}]',
        "ladder = []",
        "ladder = 0.7",
    ],
)
def test_a_bad_ladder_in_the_file_is_refused(rows):
    """Unknown arguments, missing names, ranges, order: all of it leads to the file."""
    toml(f"[context]\n{rows}\n")
    assert refused().source == f"{own_file()} [context]"


@pytest.mark.parametrize("text", ["[context", "[context]\na =", "\0", "context = 5"])
def test_a_broken_file_is_refused_by_its_path(text):
    """A file that cannot be read is not the same as none."""
    toml(text)
    assert refused().source == own_file()


def test_a_file_in_another_encoding_is_refused_by_its_path():
    """TOML is UTF-8."""
    toml("")
    Path(own_file()).write_bytes(b'[context]\nmodel = "caf\xe9"\n')
    assert refused().source == own_file()


def test_a_named_file_must_exist(monkeypatch, tmp_path):
    """A typing error in its name would silently leave the defaults in force."""
    for path in (tmp_path / "nowhere.toml", tmp_path):
        monkeypatch.setenv("ULTRAMON_CONFIG", str(path))
        error = refused()
        assert (error.name, error.source) == (str(path), "ULTRAMON_CONFIG")
        assert error.allowed == "a readable TOML file"


def test_where_no_file_can_be_there_is_none(monkeypatch):
    """A home that is no directory holds no configuration, and is no error."""
    monkeypatch.setenv("XDG_CONFIG_HOME", "/etc/passwd")
    assert ContextConfig().grace_seconds == 30.0


def test_other_tables_of_the_file_belong_to_others():
    """Only the context section is read."""
    toml("[serve]\nport = 8000\n")
    assert ContextConfig() == ContextConfig(grace_seconds=30.0)


def test_a_configuration_is_a_value():
    """Frozen, comparable, and the same in another process."""
    config = ContextConfig(model="gpt-4.1", ladder=Ladder([Rung("low", 0.7)]))
    with pytest.raises(ValueError, match="frozen"):
        config.model = "other"
    assert pickle.loads(pickle.dumps(config)) == config
    assert hash(config) == hash(ContextConfig(model="gpt-4.1", ladder=Ladder([Rung("low", 0.7)])))


@pytest.mark.parametrize("kind", [ContextConfig, AlertConfig])
def test_help_shows_every_keyword_with_its_default(kind):
    """And the class attribute of that name shows the values, the default and the meaning."""
    shown = pydoc.plain(pydoc.render_doc(kind))
    for name, setting in kind.settings.items():
        assert f"{name}={setting.default!r}" in shown
        assert setting.meaning in repr(getattr(kind, name))


def test_a_copy_keeps_what_is_not_changed(monkeypatch):
    """Values and their sources; a change is checked and its name too."""
    monkeypatch.setenv("ULTRAMON_GRACE_SECONDS", "7")
    config = ContextConfig(model="gpt-4.1")
    monkeypatch.delenv("ULTRAMON_GRACE_SECONDS")
    copy = config.replace(on_error="raise")
    assert (copy.model, copy.grace_seconds, copy.on_error) == ("gpt-4.1", 7.0, "raise")
    assert copy.sources == {**config.sources, "on_error": "argument"}
    with pytest.raises(ConfigurationError, match="did you mean on_error"):
        config.replace(on_eror="raise")


def test_the_assumed_window_depends_on_the_environment(monkeypatch):
    """A million where the variable says so, and none at all for a named model."""
    monkeypatch.setenv("ANTHROPIC_1M_CONTEXT", "1")
    assert ContextConfig().default_window_tokens == 1_000_000
    assert ContextConfig(model="anything").default_window_tokens is None


def test_the_tokenizer_family_follows_the_model_unless_it_is_named():
    """A named family wins over the model's."""
    assert ContextConfig(model="gpt-4.1").effective_family == "o200k_base"
    assert ContextConfig(model="gpt-4.1", tokenizer_family="chars/4").effective_family == "chars/4"


@pytest.mark.parametrize(
    ("given", "name"),
    [
        (3, "standing"),
        ({str(number): 1 for number in range(33)}, "standing"),
        ({"system": 0}, "standing.system"),
        ({"system": 1.5}, "standing.system"),
        ({"system": "text"}, "standing.system"),
        ({"": 5}, "standing source"),
        ({"a" * 101: 5}, "standing source"),
        ({5: 5}, "standing source"),
    ],
)
def test_what_stands_in_every_window_is_tokens_by_name(given, name):
    """The error names the part."""
    assert refused(standing=given).name == name


def test_the_order_of_what_stands_makes_no_other_configuration():
    """Equal ones are one key of a mapping."""
    given = {"tools": 5_000, "system": 3_000}
    first, second = (ContextConfig(standing=dict(sorted(given.items(), reverse=r))) for r in (0, 1))
    assert first == second
    assert len({first, second}) == 1


def test_what_stands_in_every_window_may_be_a_table_of_the_file():
    """As every other setting."""
    toml('[context.standing]\nsystem = 3000\n"mcp:github" = 6000\n')
    assert ContextConfig().standing == {"system": 3_000, "mcp:github": 6_000}
