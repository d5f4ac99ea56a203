import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys

import click
import pytest
from helpers import ROOT
from helpers.program import CAPTURES, PROGRAM, draw, environment, loaded_by, run_process
from helpers.program import run_process as run
from helpers.requirements import require_tool

from ultramon import AlertConfig, __version__
from ultramon.cli import GROUPS, INSTALLED_NAMES, SECTIONS, cli, main
from ultramon.cli import gone_variables as gone
from ultramon.cli.exit_codes import ExitCode
from ultramon.system.environment import VARIABLES

DOCS = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")


def commands():
    """Every command of the program by the words that call it, with its context."""
    root = cli.make_context("ultramon", [], resilient_parsing=True)
    for name in cli.list_commands(root):
        command = cli.get_command(root, name)
        context = click.Context(command, parent=root, info_name=name)
        if not isinstance(command, click.Group):
            yield name, command, context
            continue
        for inner in command.list_commands(context):
            found = command.get_command(context, inner)
            yield f"{name} {inner}", found, click.Context(found, parent=context, info_name=inner)


def test_version_is_the_packages():
    """--version prints the program and the version of the package."""
    done = run("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"ultramon {__version__}\n", "")


def test_the_package_runs_as_a_module():
    """`python -m ultramon` is the same program."""
    done = subprocess.run(
        [sys.executable, "-m", "ultramon", "--version"],
        capture_output=True,
        encoding="utf-8",
        env=environment(),
        check=False,
    )
    assert done.stdout == f"ultramon {__version__}\n"


@pytest.mark.parametrize(
    "arguments",
    [["--version"], ["--help"], *[[*name.split(), "--help"] for name, _, _ in commands()]],
)
def test_help_and_version_load_nothing_heavy(arguments):
    """Asking what there is imports neither pydantic nor transitions, rich, blinker or sqlite3."""
    heavy = ["pydantic", "transitions", "rich", "blinker", "sqlite3", "ultramon.context.config"]
    assert loaded_by(arguments, heavy) == ""


ALSO = {"context alert": "alert", "context check": "check"}
"""Commands of a group that are commands of their own too."""


def test_an_option_with_a_variable_names_it_in_its_help():
    """Every variable that a command reads is shown by its --help, and documented as one."""
    named = set()
    for _, command, context in commands():
        text = "".join(command.get_help(context).split())
        for option in command.params:
            if option.envvar is not None:
                named.add(option.envvar.removeprefix("ULTRAMON_"))
                assert f"[envvar:{option.envvar}" in text
    settings = {variable for one in AlertConfig.settings.values() for variable in one.variables}
    assert named <= {*VARIABLES, *(name.removeprefix("ULTRAMON_") for name in settings)}
    assert named > {"STATE_DIR", "RELAY_MAX_USD", "RELAY_MAX_CONTEXTS", "SERVE_PORT"}


@pytest.mark.parametrize("words", [words for words, _, _ in commands()])
def test_a_variable_that_an_option_no_longer_has_is_refused(words, tmp_path, monkeypatch, capsys):
    """Each by its name and with what to use instead, before anything is done."""
    root = cli.make_context("ultramon", [], resilient_parsing=True)
    *group, name = words.split()
    found = cli.get_command(root, group[0]).get_command(root, name) if group else None
    module = (found or cli.get_command(root, name)).callback.__module__.split(".")
    file = module[-2] if module[-1] == "command" else module[-1]
    for flag in gone.FLAGS.get(file, "").split():
        variable = f"ULTRAMON_{file}_{flag}".replace("-", "_").upper()
        with monkeypatch.context() as patch:
            patch.setenv(variable, "1")
            patch.setenv("ULTRAMON_STATE_DIR", str(tmp_path))
            with pytest.raises(SystemExit) as ended:
                main(words.split())
        said = capsys.readouterr()
        assert (ended.value.code, said.out) == (ExitCode.USAGE, "")
        assert f"Error: {variable}='1' (from environment) is not allowed: must be unset" in said.err
        assert not list(tmp_path.iterdir())


def test_a_gone_variable_is_refused_in_a_real_environment(tmp_path):
    """By the command that read it, by no other; empty is unset, and --help still helps."""
    state = {"ULTRAMON_STATE_DIR": str(tmp_path)}
    done = run_process("status", ULTRAMON_STATUS_JSON="1", **state)
    assert (done.returncode, done.stdout) == (ExitCode.USAGE, "")
    assert done.stderr.splitlines()[-1] == (
        "Error: ULTRAMON_STATUS_JSON='1' (from environment) is not allowed: must be unset, as it"
        " is no longer read: give --json"
    )
    assert run_process("status", ULTRAMON_STATUS_JSON="", **state).returncode == 0
    assert run_process("events", ULTRAMON_STATUS_JSON="1", **state).returncode == 0
    assert run_process("--help", ULTRAMON_STATUS_JSON="1").returncode == 0


def test_a_gone_variable_stops_no_hook_and_the_doctor_names_it(tmp_path):
    """A hook answers as ever; `doctor` names every variable that no command reads any more."""
    gone_ones = {"ULTRAMON_INSTALL_AUDIENCE": "agent", "ULTRAMON_WATCH_ALL": "1"}
    secret = {"ULTRAMON_HOOK_SECRET": "s3cret"}
    state = {"ULTRAMON_STATE_DIR": str(tmp_path), "HOME": str(tmp_path)}
    assert run_process("hook", "claude-code", **gone_ones, **state).returncode == 0
    shown = run_process("doctor", "--json", **gone_ones, **secret, **state).stdout
    assert "s3cret" not in shown
    found = {one["message"]: one for one in json.loads(shown)["findings"]}
    for variable, flag in zip(gone_ones, ("--audience", "--all"), strict=True):
        assert found[f"{variable} is set"]["status"] == "warning"
        assert flag in found[f"{variable} is set"]["cure"]
    assert "no longer send requests" in found["ULTRAMON_HOOK_SECRET is set"]["cure"]


def test_every_command_that_shows_something_takes_json():
    """--json is on every command but the three that hosts run."""
    without = {"host hook", "host mcp", "host statusline"}
    for words, command, _ in commands():
        has_json = any("--json" in option.opts for option in command.params)
        assert has_json is (words not in without), words


def test_help_shows_everything_at_a_glance():
    """All commands in 41 lines of 80 columns, those of groups by name, none cut off."""
    lines = run("--help", COLUMNS="80").stdout.splitlines()
    assert len(lines) <= 41
    assert [line[:-1] for line in lines if re.fullmatch(r"[A-Z].*:", line)] == list(SECTIONS)
    rows = dict(re.findall(r"^  ([a-z-]+)  +(.+)$", "\n".join(lines), re.MULTILINE))
    assert list(rows) == [name for names in SECTIONS.values() for name in names]
    assert len(rows) <= 30
    assert not [row for row in rows.values() if row.endswith("...")]
    for group, commands in GROUPS.items():
        assert rows[group].endswith(f": {', '.join(commands.places)}.")
    assert not set(INSTALLED_NAMES) & set(rows)


@pytest.mark.parametrize("words", [words for words, _, _ in commands()])
def test_every_help_has_an_example_that_is_understood(words, tmp_path, monkeypatch):
    """The program finds its command, and takes its arguments."""
    _, command, context = next(one for one in commands() if one[0] == words)
    line = " ".join(command.get_help(context).rpartition("Example:")[2].split())
    called = shlex.split(re.sub(r"^eval \"\$\((.*)\)\".*", r"\1", line).partition(" < ")[0])
    assert called[:-1] or words == "statusline", line
    assert called[0] == "ultramon"
    given = called[1:]
    found = cli
    parent = cli.make_context("ultramon", [], resilient_parsing=True)
    while isinstance(found, click.Group):
        if found.name != "cli" and given[0] not in found.list_commands(parent):
            given = ["show", *given]
        name, *given = given
        parent = click.Context(found, parent=parent)
        found = found.get_command(parent, name)
    assert found is command
    monkeypatch.chdir(tmp_path)
    for name in ("files.txt", "session.jsonl"):
        (tmp_path / name).touch()
    with found.make_context(words, given, parent=parent):
        pass


@pytest.mark.parametrize(
    ("typed", "answer"),
    [
        ("stauts", "No such command 'stauts'; is it 'ultramon status'?"),
        ("prnue", "No such command 'prnue'; is it 'ultramon backend prune'?"),
        ("zzz", "No such command 'zzz'; 'ultramon --help' lists all."),
    ],
)
def test_a_mistyped_command_gets_a_suggestion(typed, answer):
    """The nearest name, of commands without a group first."""
    done = run(typed)
    assert (done.returncode, done.stdout) == (ExitCode.USAGE, "")
    assert done.stderr.splitlines()[-1] == f"Error: {answer}"


@pytest.mark.parametrize(
    ("short", "whole"),
    [
        (["check"], ["context", "check"]),
        (["check", "--session", "a", "--json"], ["context", "check", "--session=a", "--json"]),
        (["alert", "--history"], ["context", "alert", "--history"]),
        (["context", "nobody"], ["context", "show", "nobody"]),
        (["context", "--details"], ["context", "show", "--details"]),
        (["context"], ["context", "show"]),
        (["queue", "--json", "depth"], ["queue", "depth", "--json"]),
        (["queue", "--state-dir", "depth", "dead"], ["queue", "dead", "--state-dir", "depth"]),
        (["token", "--file", "mint", "mint"], ["token", "mint", "--file", "mint"]),
        (["backend", "--json", "check", "memory:"], ["backend", "check", "memory:", "--json"]),
        (["hook", "claude-code"], ["host", "hook", "claude-code"]),
        (["statusline"], ["host", "statusline"]),
    ],
    ids=" ".join,
)  # fmt: skip
def test_a_command_is_the_same_however_it_is_called(short, whole, tmp_path):
    """Without its group, or with options before it, output and exit code are the same."""
    variables = {"ULTRAMON_STATE_DIR": str(tmp_path)}
    answers = [run(*words, **variables) for words in (short, whole)]
    assert len({(done.returncode, done.stdout, _message(done)) for done in answers}) == 1
    assert "No such" not in answers[0].stderr


@pytest.mark.parametrize(
    ("name", "whole"),
    [
        ("clear", "queue clear"),
        ("context-monitor", "context monitor"),
        ("handoff", "task handoff"),
        ("messages", "queue messages"),
        ("pin", "host pin"),
        ("prune", "backend prune"),
        ("depth", "queue depth"),
    ],
)
def test_a_command_without_its_group_is_refused_with_its_whole_name(name, whole, tmp_path):
    """Whoever calls it as scripts once could reads what to write; nothing is done."""
    done = run(name, "--json", ULTRAMON_STATE_DIR=str(tmp_path))
    assert (done.returncode, done.stdout) == (ExitCode.USAGE, "")
    assert f"Error: No such command '{name}'; it is 'ultramon {whole}'." in done.stderr
    assert run(*whole.split(), "--help").returncode == 0


def _message(done):
    """What is said on stderr, without the usage lines, which show how the command was called."""
    return re.sub(r"^(Usage: |Try ).*\n", "", done.stderr, flags=re.MULTILINE)


@pytest.mark.parametrize("name", GROUPS)
def test_a_shell_completes_the_commands_of_a_group(name):
    """Also where a group runs one of them without its name."""
    words = {"COMP_WORDS": f"ultramon {name} ", "COMP_CWORD": "2"}
    done = run(_ULTRAMON_COMPLETE="bash_complete", **words)
    assert done.stdout.split() == [f"plain,{command}" for command in GROUPS[name].places]


def test_a_real_shell_completes_with_the_printed_script():
    """Bash takes the script, and offers what begins like the word."""
    script = (
        'eval "$(ultramon completion bash)"; COMP_WORDS=(ultramon stat); COMP_CWORD=1;'
        ' _ultramon_completion ultramon; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    path = f"{os.path.dirname(PROGRAM)}:{os.environ['PATH']}"
    done = subprocess.run(
        [require_tool("bash"), "-c", script],
        capture_output=True,
        encoding="utf-8",
        env=environment(PATH=path),
        check=False,
    )
    assert (done.returncode, done.stdout.split()) == (0, ["status"]), done.stderr


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_get_a_script_of_their_own(shell):
    """It asks the program in that shell's words, and is answered in them."""
    script = run("completion", shell).stdout
    assert f"_ULTRAMON_COMPLETE={shell}_complete" in script
    asked = {"COMP_WORDS": "ultramon stat", "COMP_CWORD": "stat" if shell == "fish" else "1"}
    answer = run(_ULTRAMON_COMPLETE=f"{shell}_complete", **asked).stdout
    assert "status" in answer
    assert "watch" not in answer


@pytest.mark.parametrize("name", ["backend", "queue", "token", "host"])
def test_a_group_without_a_command_is_wrong_usage(name):
    """It lists its commands on stderr."""
    done = run(name)
    assert (done.returncode, done.stdout) == (ExitCode.USAGE, "")
    assert "Commands:" in done.stderr


def test_the_documentation_holds_every_help_text():
    """docs/cli.md is as `python scripts/generate_cli_docs.py` would write it now."""
    path = ROOT / "scripts" / "generate_cli_docs.py"
    spec = importlib.util.spec_from_file_location("generate_cli_docs", path)
    generator = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generator)
    assert generator.render(DOCS) == DOCS
    for name, command, _ in commands():
        assert f"Usage: ultramon {ALSO.get(name, name)} " in DOCS
        for option in command.params:
            if isinstance(option, click.Option) and not option.hidden:
                assert option.opts[-1] in DOCS


def test_the_documentation_holds_every_exit_code():
    """docs/errors.md lists each exit code under its name; 50-54 are the statuses of a check."""
    page = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    documented = dict(re.findall(r"^\| (\d+) \| `(\w+)` \|", page, re.MULTILINE))
    assert documented == {str(int(code)): code.name for code in ExitCode}
    statuses = [ExitCode(code).name.lower() for code in range(50, 55)]
    assert statuses == ["warning", "caution", "critical", "emergency", "stale"]


@pytest.mark.parametrize(
    "arguments", [["no-such-command"], ["replay"], ["status", "--no-such"], ["demo", "--agents=0"]]
)
def test_wrong_usage_ends_with_2(arguments):
    """A wrong call explains itself on stderr and prints no data."""
    done = run(*arguments)
    assert (done.returncode, done.stdout) == (ExitCode.USAGE, "")
    assert "Error: " in done.stderr
    assert "Traceback" not in done.stderr


def test_an_option_can_be_set_by_its_variable(tmp_path):
    """A variable counts like the option, and the option overrides it."""
    for name in ("one", "two"):
        run("demo", "--agents", "1", "--items", "1", "--json", "--state-dir", tmp_path / name)
    shown = [
        run("backend", "check", *more, ULTRAMON_STATE_DIR=str(tmp_path / "one")).stdout
        for more in ((), ("--state-dir", tmp_path / "two"))
    ]
    for name, text in zip(("one", "two"), shown, strict=True):
        assert str(tmp_path / name) in text


def test_a_wrong_configuration_is_one_line(tmp_path):
    """An exception of ultramon becomes `Error: ...` without a traceback."""
    done = run("replay", CAPTURES, "--warning", "0.9", "--critical", "0.5")
    assert done.returncode == ExitCode.FAILURE
    assert done.stderr.startswith("Error: warning_threshold=0.9 (from argument) is not allowed")
    assert done.stderr.count("\n") == 1


def test_the_end_of_a_pipe_is_no_error():
    """When the reader is gone the program ends quietly and well."""
    with subprocess.Popen(
        [PROGRAM, "replay", "--json", str(CAPTURES)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    ) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(timeout=60) == ExitCode.OK


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is always full")
def test_a_full_disk_is_one_line():
    """Output that cannot be written ends with 1 and says so, once."""
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [PROGRAM, "replay", "--json", str(CAPTURES)],
            stdout=full,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            env=environment(),
            check=False,
        )
    assert (done.returncode, done.stderr) == (1, "Error: No space left on device\n")


def test_an_output_that_is_not_unicode_gets_ascii():
    """Where stdout speaks ASCII, charts and tables do too."""
    session = CAPTURES / "claude-code-2.1.330" / "transcript_r3_main.jsonl"
    done = run("replay", session, PYTHONUTF8="0", PYTHONIOENCODING="ascii", COLUMNS="80")
    assert done.returncode == 0
    assert done.stdout.isascii()
    assert "\\u" not in done.stdout
    assert "####" in done.stdout


@pytest.mark.parametrize(
    ("changes", "coloured"),
    [({}, False), ({"FORCE_COLOR": "1"}, True), ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False)],
)
def test_colours_go_where_they_are_wanted(changes, coloured):
    """A pipe has no colours unless they are forced; NO_COLOR wins."""
    session = CAPTURES / "claude-code-2.1.330" / "transcript_r3_main.jsonl"
    shown = run("replay", session, **changes).stdout
    assert bool(re.search(r"\x1b\[[0-9;]*3[1-6]m", shown)) is coloured


def test_a_dumb_terminal_gets_plain_text():
    """With TERM=dumb nothing but text reaches the terminal."""
    session = CAPTURES / "claude-code-2.1.330" / "transcript_r3_main.jsonl"
    raw, _, code = draw("replay", session, TERM="dumb")
    assert code == 0
    assert b"\x1b" not in raw
