"""The pages of docs/start and docs/how: each runs from top to bottom, and prints what it shows."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sysconfig
import venv
from contextlib import suppress
from itertools import pairwise, takewhile
from pathlib import Path

import pytest
from helpers import ROOT
from helpers.distributions import install_extension
from helpers.postgres_server import Server
from helpers.program import environment, run
from helpers.requirements import require_tool
from helpers.shown import matches

from ultramon.installed import packages_of

FOLDER = ROOT / "docs" / "how"
HOW_PAGES = sorted(path for path in FOLDER.glob("*.md") if path.name != "README.md")
START_PAGES = sorted((ROOT / "docs" / "start").glob("*.md"))
PAGES = [*START_PAGES, *HOW_PAGES]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"(?:#|//|--) (\S+\.\w+)\n")
ADAPTER = re.compile(r"^from ultramon\.integrations\.(\w+)", re.MULTILINE)
EXTENSION = re.compile(r"install -q \./examples/extensions/(\w+)")
INSTALL = re.compile(r"^\s*pipx? install (.+?)(?:\s+#.*)?$", re.MULTILINE)
SHOWN_LINES = 30
"""What a reader sees of a page without turning it."""
MOST_WORDS = {"start": 450, "how": 500}
END = "--- the next block"
PRELUDE = "pip() { :; }; pipx() { :; }\n"
"""The environment of a page has what it installs; another test looks at those lines."""
NEEDS = {"hand-over-an-agent-of-google-adk": ("google.adk",)}
"""Modules of frameworks without which a page cannot run."""
SLOW = {"run-a-long-list-with-four-workers", "test-my-orchestrator"}
EXHAUSTIVE = {"write-a-host"}
"""Another test runs the suite that this page runs."""
TOOLS = {
    "poll-from-another-language": ("node", "jq"),
    "rotate-a-token": ("curl", "jq"),
    "long-list": ("git",),
    "run-a-long-list-with-four-workers": ("git",),
    "upgrade-back-up-repair": ("sqlite3",),
}
"""Programs that a page calls."""


@pytest.fixture(scope="module")
def programs(tmp_path_factory) -> Path:
    """The programs of an environment such as pipx makes, with the packages of the tests' own."""
    folder = tmp_path_factory.mktemp("tool") / "ultramon"
    venv.create(folder, symlinks=True)
    (folder / "pipx_metadata.json").write_text("{}\n")
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    own = sysconfig.get_path("purelib")
    (packages / "own.pth").write_text(f"import site; site.addsitedir({own!r})\n")
    script = folder / "bin" / "ultramon"
    script.write_text(f"#!{folder}/bin/python\nfrom ultramon.cli import main\n\nmain()\n")
    script.chmod(0o755)
    return folder / "bin"


@pytest.fixture
def database():
    """The URL of an empty database, on a server that is set up as people have them."""
    server = Server()
    server.start()
    yield server.url()
    server.remove()


def page_of(path: Path):
    marks = [pytest.mark.slow] if path.stem in SLOW else []
    marks += [pytest.mark.exhaustive] if path.stem in EXHAUSTIVE else []
    adapter = ADAPTER.search(path.read_text(encoding="utf-8"))
    name = path.stem + (f"-{adapter[1]}" if adapter else "")
    return pytest.param(path, id=name, marks=marks)


def blocks(path: Path) -> list[tuple[str, str]]:
    return BLOCK.findall(path.read_text(encoding="utf-8"))


def script_of(page: list[tuple[str, str]]) -> tuple[str, list[tuple[str, str]]]:
    """Return a page as a program of the shell, and each of its commands with what it prints."""
    lines, commands = [PRELUDE], []
    for number, ((language, text), (following, shown)) in enumerate(pairwise([*page, ("", "")])):
        if language == "sh":
            lines.append(f"{text}\nprintf '\\n%s %s\\n' '{END}' $?\n")
            commands.append((text, shown if following == "text" else ""))
        elif language not in ("text", ""):
            name = FILE.match(text)
            assert name is not None, f"a block that is neither run nor a file: {text}"
            lines.append(f"cat > {name[1]} <<'END-{number}'\n{text}END-{number}\n")
    return "".join(lines), commands


def differences(page: list[tuple[str, str]], commands: list[tuple[str, str]], printed: str):
    """Yield what a page's commands did and the page does not say.

    A command prints what is shown behind it, else the result that the page shows first, or nothing.
    """
    (_text, result), is_result_seen = page[0], False
    ended = re.split(rf"^{END} (\d+)\n", printed, flags=re.MULTILINE)
    for (command, shown), said, status in zip(commands, ended[::2], ended[1::2], strict=False):
        is_result_seen = is_result_seen or matches(said, result)
        if status != "0":
            yield f"{command}ended with {status}:\n{said}"
        elif not matches(said, shown) and (shown or not matches(said, result)):
            yield f"{command}printed:\n{said}"
    if len(ended) != 2 * len(commands) + 1:
        yield f"the page was left early:\n{ended[-1]}"
    if not is_result_seen:
        yield f"no command printed:\n{result}"


@pytest.mark.parametrize("path", [page_of(path) for path in PAGES])
def test_a_page_runs_from_top_to_bottom(path, programs, tmp_path, request):
    """A stranger who copies block after block sees what the page shows."""
    for module in NEEDS.get(path.stem, ()):
        pytest.importorskip(module, reason="in an environment of its own: make frameworks")
    for tool in TOOLS.get(path.stem, ()):
        require_tool(tool)
    page = blocks(path)
    script, commands = script_of(page)
    given = {"database": request.getfixturevalue("database")} if "$database" in script else {}
    home, output, packages = (tmp_path / name for name in ("home", "output", "packages"))
    home.mkdir()
    for kind in EXTENSION.findall(script):
        install_extension(packages, kind)
    place = environment(
        PATH=f"{programs}{os.pathsep}{os.environ['PATH']}",
        HOME=str(home),
        TMPDIR=str(tmp_path),
        PYTHONPATH=str(packages),
        PYTHONWARNINGS="ignore" if path.stem in NEEDS else "error",
        GIT_CONFIG_COUNT="2",
        GIT_CONFIG_KEY_0="user.name",
        GIT_CONFIG_VALUE_0="Reader",
        GIT_CONFIG_KEY_1="user.email",
        GIT_CONFIG_VALUE_1="reader@example.org",
        **given,
    )
    for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME"):
        place.pop(name, None)
    # A file: what runs in the background would keep a pipe open.
    with output.open("wb") as file:
        shell = subprocess.Popen(
            [require_tool("bash"), "-c", script],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            env=place,
            start_new_session=True,
        )
        try:
            shell.wait(100)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGKILL)
    printed = output.read_text(encoding="utf-8")
    different = list(differences(page, commands, printed))
    assert not different, "\n".join(different)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_a_page_is_short_and_shows_its_result_first(path):
    """One task, few words, the result without scrolling, at the end where the rest is."""
    text = path.read_text(encoding="utf-8")
    assert len(text.split()) <= MOST_WORDS[path.parent.name]
    first = "".join(text.splitlines(keepends=True)[:SHOWN_LINES])
    assert [language for language, _shown in BLOCK.findall(first)][:1] == ["text"]
    last = text.rstrip().rpartition("\n\n")[2]
    assert last.startswith("The rest: ")
    assert 1 <= last.count("](../") <= 3
    assert path in HOW_PAGES or last.count("](") == 2


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_a_page_installs_what_exists(path):
    """Each line takes the clone, with extras that it has, or a framework beside it."""
    text = path.read_text(encoding="utf-8")
    in_clone, _cd, elsewhere = text.partition('\ncd "$(mktemp -d)"')
    assert "install -q" not in elsewhere
    assert "\npip install" in in_clone or "\npython " not in elsewhere
    assert "-m pytest" not in text or " pytest " in in_clone
    for arguments in INSTALL.findall(text):
        if EXTENSION.fullmatch(f"install {arguments}"):
            continue
        own = re.fullmatch(r"(?:-q )?(?:\.|'\.\[([\w,-]+)\]')( \S+)*", arguments)
        assert own is not None, arguments
        for extra in (own[1] or "").split(","):
            assert extra == "" or packages_of(extra)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_a_page_names_commands_that_exist(path):
    """With their options: also in its text, and where a terminal or a coding agent is needed."""
    text = path.read_text(encoding="utf-8").replace("\\\n", " ")
    for line in re.findall(r"(?:^|`)\s*(ultramon [^`\n]+)", text, re.MULTILINE):
        words = line.partition(" -- ")[0].split()[1:]
        names = list(takewhile(re.compile(r"[a-z][a-z-]*").fullmatch, words))
        said = run(*names, "--help").stdout
        options = {one for one in words if re.fullmatch(r"--[a-z-]+", one)}
        assert "Usage: " in said, line
        assert options <= set(re.findall(r"--[a-z-]+", said)), line


def test_the_list_names_every_page():
    """docs/how/README.md links to each page once."""
    linked = re.findall(r"\]\(([\w-]+\.md)\)", (FOLDER / "README.md").read_text(encoding="utf-8"))
    assert sorted(linked) == [path.name for path in HOW_PAGES]
