"""The rules of the house that a machine can check: who imports whom, faces, costs."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tokenize
from functools import cache
from pathlib import Path

import pytest
from helpers import ci_cases

import ultramon

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "ultramon"
SOURCES = sorted(PACKAGE.rglob("*.py"))

STANDS_ON = {
    "version": "",
    "installed": "",
    "errors": "installed",
    "signals": "",
    "system": "version errors",
    "state": "system",
    "context": "state",
    "notices": "context",
    "backends": "notices",
    "handoff": "backends",
    "tokens": "backends",
    "routing": "backends signals",
    "prices": "context",
    "metrics": "backends prices",
    "monitor": "handoff routing",
    "fleet": "handoff routing metrics",
    "stored_work": "handoff",
    "hosts": "backends.local notices",
    "recordings": "hosts prices",
    "alerts": "backends.local context",
    "pictures": "state",
    "integrations": "monitor fleet",
    "relay": "fleet recordings stored_work prices",
    "share": "backends hosts.resident",
}
"""What each room may import, with what that stands on. Others may import all but these:"""
MAY_NOT_IMPORT = {
    "testing": "hosts alerts server cli",
    "server": "alerts testing cli",
    "web": "alerts testing cli",
    "mcp": "alerts testing server cli",
    "cli": "testing",
}
EXCEPTIONS = {
    # A fleet must see the end of a session that is gone; loaded late.
    ("fleet/deliveries.py", "hosts.gone_sessions"),
}
SLOW = {
    "asyncio", "collections", "contextlib", "dataclasses", "datetime", "enum", "functools", "json",
    "logging", "pathlib", "re", "sqlite3", "subprocess", "tempfile", "typing", "uuid",
}  # fmt: skip
BROAD_EXCEPTS = {
    "ultramon/alerts/check.py": 1,
    "ultramon/backends/regular_look.py": 1,  # one odd value must not end a thread without a sign
    "ultramon/fleet/deliveries.py": 1,
    "ultramon/fleet/supervise/supervisor.py": 1,
    "ultramon/fleet/supervise/verification.py": 1,
    "ultramon/monitor/background.py": 1,
    "ultramon/hosts/hook_program.py": 2,
    "ultramon/hosts/registry.py": 1,
    "ultramon/hosts/resident/forwarder.py": 1,
    "ultramon/hosts/resident/hook_answers.py": 1,
    "ultramon/hosts/resident/service.py": 1,
    "ultramon/hosts/status_line/answers.py": 1,  # a resident: another process goes on
    "ultramon/routing.py": 1,
    "ultramon/signals.py": 1,
    "ultramon/context/provider_usage.py": 1,
    "ultramon/testing/unreliable.py": 1,  # an agent that ends by an error
    "ultramon/testing/simulation.py": 1,  # whoever asks for the result gets it
}


@cache
def parsed(path):
    return ast.parse(path.read_text(encoding="utf-8"))


def module_path(name: str) -> Path | None:
    """Return the file of one of our modules, None when it is none."""
    path = ROOT / name.replace(".", "/")
    for candidate in (path.with_suffix(".py"), path / "__init__.py"):
        if candidate.is_file():
            return candidate
    return None


def modules_imported(path: Path, *, within: str | None = None) -> set[str]:
    """Return the modules that a file imports.

    Args:
        path: The file.
        within: None = anywhere, for types too; "" = at module level when it runs; else there and
            in this function.
    """
    found = set()
    waiting: list[ast.AST] = list(parsed(path).body)
    while waiting:
        node = waiting.pop()
        is_for_types = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        if within is not None and is_for_types:
            continue
        if within is not None and isinstance(node, ast.ExceptHandler):
            continue  # the fallback of another build of Python
        if within is not None and isinstance(node, ast.FunctionDef) and node.name != within:
            continue
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.add(inner if module_path(inner) else node.module or "")
        waiting.extend(ast.iter_child_nodes(node))
    return found


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def rooms_below(room: str) -> set[str]:
    """Return the rooms that one may import."""
    direct = STANDS_ON.get(room, "").split()
    return set(direct).union(*map(rooms_below, direct))


def is_below(path: Path, target: str) -> bool:
    """Return whether a file may import a module of the package, named without the package."""
    room, top = room_of(path), target.split(".", maxsplit=1)[0]
    if top == room or (str(path.relative_to(PACKAGE)), target) in EXCEPTIONS:
        return True
    if room in MAY_NOT_IMPORT:
        return top not in MAY_NOT_IMPORT[room].split()
    parents = {".".join(target.split(".")[:count]) for count in (1, 2)}
    return bool(parents & (rooms_below(room) | {"version"}))


def test_every_room_imports_only_what_stands_below_it():
    """A value travels one way: the ground knows no side, no side knows a face, in types neither."""
    wrong = [
        f"{path.relative_to(PACKAGE)} imports {name}"
        for path in SOURCES
        if room_of(path) not in {"__init__", "__main__"}
        for name in sorted(modules_imported(path))
        if name.startswith("ultramon.") and not is_below(path, name.removeprefix("ultramon."))
    ]
    assert wrong == []


def test_no_two_modules_import_each_other():
    """No circle is left, not even through imports inside functions or for types alone."""
    names = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in SOURCES
    }
    graph = {name: modules_imported(path) & names.keys() for name, path in names.items()}
    left = dict(graph)
    # What imports nothing that is left lies in no circle.
    while free := [name for name, imported in left.items() if not imported & left.keys()]:
        for name in free:
            del left[name]
    assert sorted(left) == []


def reached_from(start: str, function: str) -> dict[str, str]:
    """Return every module that starting a program loads, with the one that imports it."""
    found = {start: ""}
    waiting = [start]
    while waiting:
        module = waiting.pop()
        path = module_path(module)
        if path is None:
            continue
        names = modules_imported(path, within=function if module == start else "")
        for name in sorted(names):
            parts = name.split(".")
            for whole in (".".join(parts[:count]) for count in range(1, len(parts) + 1)):
                if whole not in found:
                    found[whole] = module
                    waiting.append(whole)
    return found


@pytest.mark.parametrize(
    ("module", "function"),
    [
        ("ultramon.hosts.hook_program", "run"),
        ("ultramon.hosts.claude_code.hook", "load_host"),
        ("ultramon.hosts.claude_code.dialect", "read_event"),
        ("ultramon.hosts.claude_code.transcripts", "transcript_path"),
        ("ultramon.hosts.claude_code.dialect", "compaction_limits"),
        ("ultramon.hosts.claude_code.status_line", "main"),
        ("ultramon.hosts.codex.hook", "load_host"),
        ("ultramon.hosts.codex.dialect", "read_event"),
        ("ultramon.hosts.codex.transcripts", "transcript_path"),
        ("ultramon.hosts.codex.dialect", "compaction_limits"),
        ("ultramon.hosts.copilot.hook", "load_host"),
        ("ultramon.hosts.copilot.status_line", "main"),
        ("ultramon.hosts.copilot.dialect", "read_event"),
        ("ultramon.hosts.copilot.transcripts", "transcript_path"),
        ("ultramon.hosts.copilot.dialect", "compaction_limits"),
        ("ultramon.hosts.gemini.hook", "load_host"),
        ("ultramon.hosts.gemini.dialect", "read_event"),
        ("ultramon.hosts.gemini.transcripts", "transcript_path"),
        ("ultramon.hosts.gemini.dialect", "compaction_limits"),
        ("ultramon.hosts.opencode.hook", "load_host"),
        ("ultramon.hosts.opencode.dialect", "read_event"),
        ("ultramon.hosts.opencode.transcripts", "transcript_path"),
        ("ultramon.hosts.opencode.dialect", "compaction_limits"),
        ("ultramon.hosts.qwen.hook", "load_host"),
        ("ultramon.hosts.qwen.dialect", "read_event"),
        ("ultramon.hosts.qwen.transcripts", "transcript_path"),
        ("ultramon.hosts.qwen.dialect", "compaction_limits"),
        ("ultramon.hosts.resident.forwarder", "forward"),
        ("ultramon.hosts.resident.starter", "start"),
        ("ultramon.alerts", "main"),
    ],
)
def test_what_hooks_and_alerts_import_is_standard_library_and_cheap(module, function):
    """Every tool call of every agent pays for this path: no third party, nothing slow."""
    for name, importer in reached_from(module, function).items():
        top = name.split(".")[0]
        assert top == "ultramon" or top in sys.stdlib_module_names, f"{importer} imports {name}"
        assert top not in SLOW, f"{importer} imports {name}"


def test_only_the_two_machines_import_transitions():
    """Levels and lifecycle are driven from one place each."""
    importers = [
        path.name
        for path in SOURCES
        if any(name.split(".")[0] == "transitions" for name in modules_imported(path))
    ]
    assert importers == ["level_machine.py", "lifecycle_machine.py"]


def test_nothing_prints_outside_the_faces():
    """Data and words reach a person through the command line only."""
    for path in SOURCES:
        if room_of(path) == "cli":
            continue
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id != "print", f"{path}:{node.lineno}"


def test_a_method_of_a_store_without_a_docstring_is_one_of_a_port():
    """The port says what it does; what is a store's own says so itself."""
    sources = [*(PACKAGE / "backends").rglob("*.py"), PACKAGE / "notices" / "rows.py"]
    methods = [
        (path, method)
        for path in sources
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.ClassDef)
        for method in node.body
        if isinstance(method, ast.FunctionDef) and not method.name.startswith("_")
    ]
    documented = {method.name for _, method in methods if ast.get_docstring(method)}
    bare = [f"{path.name}: {one.name}" for path, one in methods if one.name not in documented]
    assert bare == []


def test_no_statement_numbers_its_parameters():
    """Python 3.12 and newer refuse them with a sequence of values: SQLite counts them as named."""
    for path in SOURCES:
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                numbered = re.search(r"[ (=]\?[0-9]", node.value)
                assert numbered is None, f"{path}:{node.lineno}: {node.value}"


def test_broad_excepts_are_the_listed_ones():
    """Errors are swallowed only where foreign code must not hurt the agent, and nowhere else."""
    found: dict[str, int] = {}
    for path in SOURCES:
        for node in ast.walk(parsed(path)):
            if not isinstance(node, ast.ExceptHandler):
                continue
            broad = node.type is None or (
                isinstance(node.type, ast.Name) and node.type.id in ("Exception", "BaseException")
            )
            passes_on = any(isinstance(inner, ast.Raise) for inner in ast.walk(node))
            if broad and not passes_on:
                name = str(path.relative_to(ROOT))
                found[name] = found.get(name, 0) + 1
    assert found == BROAD_EXCEPTS


def test_comments_stay_rare():
    """Comments give reasons: they are at most 5 % of the lines of the package."""
    lines = comments = 0
    for path in SOURCES:
        if path.name == "model_windows.py":
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
    typed = parsed(PACKAGE / "__init__.py")
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
    assert dir(ultramon) == ultramon.__all__
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = ultramon.nonsense


def test_the_face_is_small_and_every_name_of_it_is_shown():
    """What has no place in an example or a how-to is no name that most programs need."""
    assert len(ultramon.__all__) <= 60
    shown = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.py")]
    words = {word for page in shown for word in re.findall(r"\w+", page.read_text("utf-8"))}
    assert [name for name in ultramon.__all__ if name not in words] == []


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


def test_looking_for_an_alert_loads_only_cheap_modules(tmp_path):
    """A tool that asks after each of its commands pays for the core, and nothing heavy besides."""
    heavy = {
        "json", "dataclasses", "typing", "datetime", "logging", "sqlite3", "tomllib", "pydantic",
        "transitions", "blinker", "click", "rich", "ultramon.context.config",
        "ultramon.backends.opening",
        "ultramon.alerts.rendering",
    }  # fmt: skip
    imported = loaded_after("import ultramon.alerts")
    assert not imported & (heavy | {"enum", "re", "platformdirs"})
    loaded = loaded_after(
        f"import os; os.environ.update(ULTRAMON_STATE_DIR={str(tmp_path)!r},"
        " ULTRAMON_AGENT_ID='nobody')\n"
        "from ultramon import check_and_alert_context; check_and_alert_context()"
    )
    assert "ultramon.backends.local.state_files" in loaded
    assert not loaded & heavy


def test_opening_a_store_loads_no_pydantic():
    """What only reads states, as a status bar does, pays for no models, machines or database."""
    loaded = loaded_after("from ultramon import open_backend; open_backend('/nowhere')")
    assert "ultramon.backends.local.backend" in loaded
    assert not loaded & {
        "pydantic", "transitions", "blinker", "platformdirs", "sqlite3", "ultramon.context.config",
    }  # fmt: skip


def test_the_two_commands_of_the_readme_are_the_ones_that_ci_runs():
    """A newcomer and CI run the same line."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    commands = re.findall(r"^python3 -m venv .*$", readme, re.MULTILINE)
    assert len(commands) == 2
    assert commands[0].endswith("ultramon demo")
    assert f"\n{commands[1]} || status=$?\n" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


A_MONITOR_LOADS = {
    "backends": "base claims credentials lease_holder opening queue registry sql_parts sql_rows"
    " store_time toolkit",
    "backends.local": "backend claims connection credentials event_rows inbox_flags journal"
    " journal_clock level_marks message_rows queue registry route_rows schema state_files",
    "context": "config estimator estimator_weights forecast forecast_tables gauge ladder"
    " level_machine level_words levels limits model_windows monitor_gauge note provider_usage"
    " shared_levels token_counts tracker",
    "monitor": "async_twins background late_models lifecycle lifecycle_machine live_state monitor"
    " state_writer work_steps",
    "notices": "levels message message_rules permissions registration router texts",
    "state": "event_keys history_ring item_steps level_share liveness observed plan record"
    " record_head runway usage_percent",
    "system": "boot_clock clock compact_json counts environment files ids locks processes settings"
    " settings_files timestamps trusted_files",
    "": "errors routing signals",
}
"""By package, what an agent's code waits for before its first reading."""
A_MONITOR_LOADS_LATER = (
    "pydantic", "ultramon.context.explanation", "ultramon.handoff", "ultramon.state.models",
)  # fmt: skip
A_MONITOR_IS_SPARED = {"asyncio", "concurrent.futures.thread", "ssl", "tomllib"}


def test_the_first_monitor_loads_what_it_needs(tmp_path):
    """An agent's code pays for the SDK: no event loop, no command line, no server, no host.

    The models of handoffs and states load behind its start.
    """
    loaded = loaded_after(
        f"import os; os.environ.update(HOME={str(tmp_path)!r},"
        f" ULTRAMON_STATE_DIR={str(tmp_path / 'state')!r})\n"
        "from ultramon.monitor import late_models\n"
        "late_models.LOAD_AFTER_SECONDS = 3600.0\n"
        "from ultramon import create_context_monitor\n"
        "monitor = create_context_monitor('scout-1').start()\n"
        "monitor.track_content('some text')\n"
        "assert monitor.stop()"
    )
    ours = {name.removeprefix("ultramon.") for name in loaded if name.startswith("ultramon.")}
    expected = {
        f"{package}.{name}".removeprefix(".")
        for package, names in A_MONITOR_LOADS.items()
        for name in names.split()
    }
    assert ours == expected | A_MONITOR_LOADS.keys() - {""}
    foreign = {name.split(".")[0] for name in loaded} - sys.stdlib_module_names - {"ultramon"}
    foreign = {name for name in foreign if not name.startswith("_sysconfigdata")}
    assert foreign == {"blinker", "platformdirs", "six", "transitions"}
    assert not loaded & A_MONITOR_IS_SPARED


@pytest.mark.parametrize(
    "then", ["late_models._models._thread.join()", "monitor.hand_off()", "monitor.get_state()"]
)
def test_the_models_load_behind_the_start(tmp_path, then):
    """By themselves, or with the first verb that needs one; the descriptors for it are given back.

    Else a process without a descriptor left could not hand its work over.
    """
    seconds = 0.0 if "join" in then else 3600.0
    loaded = loaded_after(
        f"import os; os.environ.update(ULTRAMON_STATE_DIR={str(tmp_path / 'state')!r})\n"
        "from ultramon.monitor import late_models\n"
        f"late_models.LOAD_AFTER_SECONDS = {seconds}\n"
        "from ultramon import create_context_monitor\n"
        "monitor = create_context_monitor('scout-1').start()\n"
        f"{then}\n"
        "assert late_models._models.are_loaded and not late_models._models._reserve"
    )
    assert loaded >= set(A_MONITOR_LOADS_LATER)


def test_a_fork_does_not_leave_the_models_half_loaded(tmp_path):
    """A child of a fork while another thread loads them can hand over too."""
    done = subprocess.run(
        [sys.executable, "-I", "-c", FORK, str(tmp_path)],
        capture_output=True,
        check=False,
        timeout=100,
    )
    assert (done.returncode, done.stdout.split()) == (0, [b"scout-2", b"0"])


FORK = """
import os, sys, threading, warnings
warnings.simplefilter("ignore")  # newer Pythons warn of a fork beside threads
os.environ["ULTRAMON_STATE_DIR"] = sys.argv[1]
from ultramon.monitor import late_models
late_models.LOAD_AFTER_SECONDS = 0.0
begun = threading.Event()
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "pydantic.main":
            begun.set()
sys.meta_path.insert(0, Finder())
from ultramon import create_context_monitor
monitor = create_context_monitor("scout-1").start()
begun.wait()
pid = os.fork()
if not pid:
    with create_context_monitor("scout-2") as own:
        print(own.hand_off().agent_id, flush=True)
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


def test_a_monitor_with_a_receiver_loads_its_events_at_the_start():
    """The first crossing does not wait for pydantic, which takes longer than a save may."""
    loaded = loaded_after(
        "import ultramon\n"
        "ultramon.on('threshold')(print)\n"
        "ultramon.create_context_monitor('scout-1', backend='memory:').start()"
    )
    assert "ultramon.state.events" in loaded


def test_every_place_that_contributing_names_is_there():
    """The table "Where is …?" names no file that has moved."""
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("## Where is")[2]
    named = re.findall(r"`([a-z_/]+\.py)`", page)
    assert len(re.findall(r"^\| (?!question|---)", page, re.MULTILINE)) == 17
    assert [name for name in named if not (PACKAGE / name).is_file()] == []


def test_every_test_that_ci_leaves_out_is_there():
    """Whole or in part; a name that is wrong would leave nothing out."""
    kit = "".join(path.read_text(encoding="utf-8") for path in (PACKAGE / "testing").rglob("*.py"))
    for name in ci_cases.read_table():
        path, function = name.partition("::")[0], name.rpartition("::")[2]
        source = (ROOT / path).read_text(encoding="utf-8")
        inherited = kit if name.count("::") > 1 else ""
        assert re.search(rf"^ *(async )?def {function}\(", source + inherited, re.MULTILINE), name


def test_what_ci_runs_of_a_test_is_spread_over_its_cases():
    name = "tests/web/test_web.py::test_a_request_must_name_this_server_and_come_from_its_own_page"
    kept = ci_cases.read_table()[name]
    cases = [f"{name}[{number}]" for number in range(10 * kept)]
    ran = set(cases) - ci_cases.left_out(cases)
    assert ran == set(cases[::10])


def test_tests_lie_in_the_rooms_of_what_they_test():
    """The tests of a file are found by its path; those of real clients and of all lie beside."""
    tests = ROOT / "tests"
    rooms = {path.parent.relative_to(tests) for path in tests.rglob("test_*.py")}
    assert len(rooms) > 20
    elsewhere = {Path(), Path("real_client")}
    assert [room for room in rooms - elsewhere if not (PACKAGE / room).is_dir()] == []


def test_pins_are_plain_and_complete():
    """constraints.txt holds `name==version` lines only, and one for every direct dependency."""
    import tomllib

    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8").split()
    assert all(re.fullmatch(r"[A-Za-z0-9_.-]+==[A-Za-z0-9.]+", pin) for pin in pins)
    names = {pin.split("==")[0].lower().replace("_", "-") for pin in pins}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = project["dependencies"] + project["optional-dependencies"]["dev"]
    assert {re.split(r"[\[><=]", line)[0].lower() for line in wanted} <= names
