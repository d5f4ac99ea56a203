"""The rules of the house that a machine can check: who imports whom, faces, costs."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tokenize
from pathlib import Path

import pytest

import ultramon

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "ultramon"
SOURCES = sorted(PACKAGE.rglob("*.py"))

SERVICE = {
    "assignments", "attention", "claims", "clock", "explain", "fleet", "fleet_event", "gauge",
    "handoff", "keeper", "life", "monitor", "owner", "plan", "pool", "processes", "replay",
    "routing", "snapshot", "tokens", "usage", "verdicts", "work",
}  # fmt: skip
BELOW_SERVICE = {
    "config", "core", "environment", "errors", "levels", "machine", "models", "signals"
}  # fmt: skip
PORTS = {"backends.base", "backends.credentials", "backends.queue", "backends.registry"}
ALLOWED = {
    "errors": set(),
    "signals": set(),
    "clock": set(),
    "environment": {"core", "errors"},
    "core": {"core", "errors"},
    "levels": {"core", "errors"},
    "models": {"core", "errors"},
    "config": {"core", "environment", "errors"},
    "machine": {"core", "errors"},
    "alerts": {"core", "environment", "errors"},
    "backends": {"core", "errors", "environment", "backends"},
    "hosts": {"core", "errors", "hosts"},
    **{room: SERVICE | BELOW_SERVICE | PORTS for room in SERVICE},
    "replay": SERVICE | BELOW_SERVICE | PORTS | {"backends.memory", "hosts"},
}
# The one place that chooses a backend may be asked by whoever is given a URL.
CHOOSERS = {
    ("monitor", "backends"),
    ("fleet", "backends"),
    ("routing", "backends"),
    ("tokens", "backends"),
}
# Only the command line needs these; `test_no_hook_imports_what_only_installs` keeps it so.
OFF_THE_HOOK_PATH = {
    f"hosts/claude_code/{name}.py"
    for name in (
        "change", "commands", "doctor", "doctor_server", "doctor_states", "examination",
        "http_hooks", "install", "interpreter", "launcher", "plugin", "settings", "uninstall",
        "via",
    )
} | {"hosts/jsontext.py"}  # fmt: skip
BROAD_EXCEPTS = {
    "alerts/alert.py": 1,
    "fleet.py": 1,
    "keeper.py": 1,
    "hosts/claude_code/entry.py": 2,
    "routing.py": 1,
    "server/claude_code.py": 1,
    "signals.py": 2,
    "usage.py": 1,
}


def modules_imported(path: Path, *, runtime_only: bool = False) -> set[str]:
    """Return the dotted names that a file imports, below `ultramon` shortened to the room."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    skipped: set[ast.AST] = set()
    if runtime_only:
        for node in ast.walk(tree):
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
                skipped.update(inner for part in node.body for inner in ast.walk(part))
    found = set()
    for node in ast.walk(tree):
        if node in skipped:
            continue
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            if node.module == "ultramon":
                found.update(f"ultramon.{alias.name}" for alias in node.names)
            else:
                found.add(node.module or "")
    return found


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_every_room_imports_only_what_stands_below_it(path):
    """A value travels one way: core knows no service, no service knows a face or an adapter."""
    room = room_of(path)
    if room not in ALLOWED:
        assert room in {"__init__", "__main__", "cli", "testing", "server"}, f"{room} is no room"
        return
    for name in modules_imported(path, runtime_only=True):
        if not name.startswith("ultramon."):
            continue
        parts = name.split(".")[1:]
        target = parts[0]
        if room == "hosts" and parts[:2] == ["core", "codec"]:
            continue
        if (room, ".".join(parts)) in CHOOSERS or target == room:
            continue
        allowed = ALLOWED[room]
        assert target in allowed or ".".join(parts[:2]) in allowed, f"{path} imports {name}"


@pytest.mark.parametrize(
    "path",
    [
        path
        for path in SOURCES
        if room_of(path) in ("core", "hosts")
        and str(path.relative_to(PACKAGE)) not in OFF_THE_HOOK_PATH
    ],
    ids=lambda p: p.name,
)
def test_what_a_hook_imports_is_standard_library_and_cheap(path):
    """Core and the readers of hosts import no third party and nothing slow at the top."""
    slow = {
        "json", "enum", "dataclasses", "typing", "re", "pathlib", "datetime", "logging",
        "tempfile", "collections", "uuid", "functools", "sqlite3", "asyncio", "subprocess",
        "contextlib",
    }  # fmt: skip
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in tree.body:
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        for name in names:
            top = name.split(".")[0]
            assert top not in slow, f"{path.name} imports {name} at the top"
            assert top == "ultramon" or top in sys.stdlib_module_names, name


def test_no_hook_imports_what_only_installs():
    """Hook and status line load nothing that installs, removes or examines them."""
    names = [path.removesuffix(".py").replace("/", ".") for path in OFF_THE_HOOK_PATH]
    for path in SOURCES:
        if room_of(path) in ("core", "hosts") and (
            str(path.relative_to(PACKAGE)) not in OFF_THE_HOOK_PATH
        ):
            assert not modules_imported(path) & {f"ultramon.{name}" for name in names}, path


def test_only_one_module_imports_transitions():
    """The machines are driven from one place."""
    importers = [
        path.name
        for path in SOURCES
        if any(name.split(".")[0] == "transitions" for name in modules_imported(path))
    ]
    assert importers == ["machine.py"]


def test_nothing_prints_outside_the_faces():
    """Data and words reach a person through the command line only."""
    for path in SOURCES:
        if room_of(path) == "cli":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id != "print", f"{path}:{node.lineno}"


def test_no_statement_numbers_its_parameters():
    """Python 3.12 and newer refuse them with a sequence of values: SQLite counts them as named."""
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                numbered = re.search(r"[ (=]\?[0-9]", node.value)
                assert numbered is None, f"{path}:{node.lineno}: {node.value}"


def test_broad_excepts_are_the_listed_ones():
    """Errors are swallowed only where foreign code must not hurt the agent, and nowhere else."""
    found: dict[str, int] = {}
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.ExceptHandler):
                continue
            broad = node.type is None or (
                isinstance(node.type, ast.Name) and node.type.id in ("Exception", "BaseException")
            )
            passes_on = any(isinstance(inner, ast.Raise) for inner in ast.walk(node))
            if broad and not passes_on:
                name = str(path.relative_to(PACKAGE))
                found[name] = found.get(name, 0) + 1
    assert found == BROAD_EXCEPTS


def test_comments_stay_rare():
    """Comments give reasons: they are at most 5 % of the lines of the package."""
    lines = comments = 0
    for path in SOURCES:
        if path.name == "windows.py":
            continue
        lines += len(path.read_text(encoding="utf-8").splitlines())
        with path.open("rb") as file:
            comments += sum(
                token.type == tokenize.COMMENT
                and not re.match(r"# (noqa|type:|fmt:)", token.string)
                for token in tokenize.tokenize(file.readline)
            )
    assert comments / lines <= 0.05


def test_public_names_are_exactly_what_is_reachable():
    """`__all__` is sorted, resolves whole, and nothing public hides beside it."""
    assert ultramon.__all__ == sorted(ultramon.__all__)
    for name in ultramon.__all__:
        assert getattr(ultramon, name) is not None
    typed = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    block = next(
        node
        for node in typed.body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    )
    declared = {
        alias.name
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert declared == set(ultramon.__all__)
    assert set(ultramon.__all__) <= set(dir(ultramon))
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = ultramon.nonsense


def loaded_after(statement: str) -> set[str]:
    code = f"import sys; before = set(sys.modules)\n{statement}\n"
    code += "print(*sorted(set(sys.modules) - before))"
    done = subprocess.run(
        [sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    return set(done.stdout.split())


def test_importing_ultramon_loads_nothing_else():
    """`import ultramon` costs one small file."""
    assert loaded_after("import ultramon") == {"ultramon"}


def test_importing_the_core_loads_only_cheap_modules():
    """What a hook imports brings no third party and no slow standard module with it."""
    loaded = loaded_after(
        "from ultramon.core import codec, forecast, ids, journal, limits, liveness, record,"
        " statefile, thresholds, times, tracker\n"
        "import ultramon.hosts.claude_code.transcript"
    )
    assert not loaded & {
        "json", "enum", "dataclasses", "typing", "re", "datetime", "logging", "sqlite3",
        "pydantic", "transitions", "blinker", "platformdirs", "click", "rich",
    }  # fmt: skip
    assert "ultramon.core.windows" not in loaded


def test_looking_for_an_alert_loads_only_cheap_modules(tmp_path):
    """A tool that asks after each of its commands pays for the core, and nothing heavy besides."""
    heavy = {
        "json", "dataclasses", "typing", "datetime", "logging", "sqlite3", "tomllib", "pydantic",
        "transitions", "blinker", "click", "rich", "ultramon.config", "ultramon.backends",
        "ultramon.alerts.drawing",
    }  # fmt: skip
    imported = loaded_after("import ultramon.alerts")
    assert not imported & (heavy | {"enum", "re", "platformdirs"})
    loaded = loaded_after(
        f"import os; os.environ.update(ULTRAMON_STATE_DIR={str(tmp_path)!r},"
        " ULTRAMON_AGENT_ID='nobody')\n"
        "from ultramon import check_and_alert_context; check_and_alert_context()"
    )
    assert "ultramon.core.statefile" in loaded
    assert not loaded & heavy


def test_opening_a_store_loads_no_pydantic():
    """What only reads states, as a status bar does, pays for no models, machines or database."""
    loaded = loaded_after("import ultramon.backends; ultramon.backends.open_backend('/nowhere')")
    assert "ultramon.backends.local" in loaded
    assert not loaded & {
        "pydantic", "transitions", "blinker", "platformdirs", "sqlite3", "ultramon.config",
    }  # fmt: skip


def test_the_two_commands_of_the_readme_are_the_ones_that_ci_runs():
    """A newcomer and CI run the same line."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    commands = re.findall(r"^python3 -m venv .*$", readme, re.MULTILINE)
    assert len(commands) == 2
    assert commands[0].endswith("ultramon demo")
    assert f"\n{commands[1]} || status=$?\n" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def test_pins_are_plain_and_complete():
    """constraints.txt holds `name==version` lines only, and one for every direct dependency."""
    import tomllib

    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8").split()
    assert all(re.fullmatch(r"[A-Za-z0-9_.-]+==[A-Za-z0-9.]+", pin) for pin in pins)
    names = {pin.split("==")[0].lower().replace("_", "-") for pin in pins}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = project["dependencies"] + project["optional-dependencies"]["dev"]
    assert {re.split(r"[\[><=]", line)[0].lower() for line in wanted} <= names
