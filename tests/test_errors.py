"""The exceptions: one tree, typed fields, and messages that say what to do."""

import copy
import inspect
import pickle
import re
import runpy
from datetime import UTC, datetime

import pytest
from helpers import ROOT

from ultramon import errors, handoff
from ultramon.errors import (
    AgentAlreadyRunningError,
    AgentMirroredError,
    AgentNotFoundError,
    AgentWorkError,
    ConfigurationError,
    FencedError,
    HandoffTakenError,
    InvalidAgentIdError,
    InvalidUsageError,
    LifecycleError,
    MissingExtraError,
    NotPermittedError,
    QueueFullError,
    RegistrationError,
    SetupError,
    SpawnError,
    StateCorruptError,
    StateDirectoryError,
    StateError,
    StateSchemaError,
    StateWriteError,
    UltramonError,
    UnknownResponseError,
    WorkspaceError,
)
from ultramon.fleet.supervise import result
from ultramon.fleet.supervise.result import ItemCounts, RunUnfinishedError, SupervisorResult
from ultramon.handoff import HandedOffError, HandoffRecord
from ultramon.installed import install_command

MANY_FILES = tuple(f"{number}.py" for number in range(22))

HANDOFF = HandoffRecord(
    handoff_id="a.1.1",
    agent_id="a",
    run="default",
    epoch=1,
    reason="cancelled",
    tokens=7,
    created_at=datetime(2026, 1, 1, tzinfo=UTC),
)

UNFINISHED = SupervisorResult(
    run="audit",
    counts=ItemCounts(24, 1, 0, 1, 22),
    contexts=(),
    repeated=(),
    set_aside={"b\n": "killed from outside 9 times"},
    left=tuple(f"c{number}" for number in range(22)),
    lost=(),
    verify_errors={},
    stopped="deadline",
)

# error, builtin that a caller expects, fields, message
CASES = [
    (
        SpawnError("audit", "audit.1", FileNotFoundError(2, "No such file", "nosuch")),
        RuntimeError,
        {"run": "audit", "agent_id": "audit.1"},
        "run audit: spawn raised FileNotFoundError for audit.1: [Errno 2] No such file: 'nosuch'; "
        "agents that ran were asked to hand off. Correct it: the same call continues the run",
    ),
    (
        RunUnfinishedError(UNFINISHED),
        RuntimeError,
        {"run": "audit", "result": UNFINISHED},
        "\n  ".join(
            [
                f"run audit is not done: {UNFINISHED}",
                "set aside: b\\n: killed from outside 9 times",
                *(f"left: c{number}" for number in range(20)),
                "left: 2 more",
            ]
        ),
    ),
    (
        AgentWorkError("main", "clients_task", "read", "1"),
        RuntimeError,
        {"agent_id": "main", "problem": "clients_task", "task": "read"},
        "agent main: task read is in the client's own task list (id 1), which decides; "
        "change it there",
    ),
    (
        WorkspaceError("/srv/shop", "has uncommitted files", "commit them", ["a\nb", "ü.py"]),
        RuntimeError,
        {"path": "/srv/shop", "reason": "has uncommitted files", "files": ("a\nb", "ü.py")},
        "/srv/shop: has uncommitted files: a\\nb, \\xfc.py; commit them",
    ),
    (
        WorkspaceError("/srv/shop", "has uncommitted files", files=MANY_FILES),
        RuntimeError,
        {"files": MANY_FILES},
        f"/srv/shop: has uncommitted files: {', '.join(MANY_FILES[:20])} and 2 more",
    ),
    (
        SetupError("port-1", "uv sync", "exit code 2", "/state/relay/port-1/setup.out"),
        RuntimeError,
        {"run": "port-1", "command": "uv sync", "problem": "exit code 2"},
        "run port-1: its setup failed, exit code 2, and no context was begun; all that it printed "
        "is in /state/relay/port-1/setup.out; once it can succeed: ultramon relay --resume port-1, "
        "with --setup COMMAND for another one",
    ),
    (
        ConfigurationError("warning_threshold", 2, "0 < ratio <= 1", "ULTRAMON_WARNING_THRESHOLD"),
        ValueError,
        {"name": "warning_threshold", "value": 2, "source": "ULTRAMON_WARNING_THRESHOLD"},
        "warning_threshold=2 (from ULTRAMON_WARNING_THRESHOLD) is not allowed: "
        "must be 0 < ratio <= 1",
    ),
    (
        InvalidAgentIdError("../x", "it does not start with a letter or digit"),
        ValueError,
        {
            "agent_id": "../x",
            "reason": "it does not start with a letter or digit",
            "name": "agent id",
        },
        "agent id '../x' is not allowed: it does not start with a letter or digit; "
        "use 1-128 of A-Z a-z 0-9 . _ - starting with a letter or digit, "
        "or leave the id out to have one generated",
    ),
    (
        InvalidAgentIdError("", "it is empty", "ULTRAMON_RUN"),
        ValueError,
        {"agent_id": "", "reason": "it is empty", "name": "ULTRAMON_RUN"},
        "ULTRAMON_RUN '' is not allowed: it is empty; "
        "use 1-128 of A-Z a-z 0-9 . _ - starting with a letter or digit, or leave it out",
    ),
    (
        InvalidUsageError("a", "input_tokens", -1),
        ValueError,
        {"agent_id": "a", "name": "input_tokens", "value": -1},
        "agent a: input_tokens=-1 is not a token count: must be a whole number from 0 to "
        "1,000,000,000, or None; report one response, not a running total",
    ),
    (
        UnknownResponseError("a", "dict", "a LangGraph state"),
        TypeError,
        {"agent_id": "a", "type_name": "dict", "understood": "a LangGraph state"},
        "agent a: no usage of one response is found in a dict; understood is a LangGraph state; "
        "a sum over several requests is not: report each response, or give the numbers to "
        "report_usage()",
    ),
    (
        LifecycleError("a", "ended", "track_content", ["stop", "get_state"]),
        RuntimeError,
        {"agent_id": "a", "phase": "ended", "allowed": ("stop", "get_state")},
        "agent a is ended: track_content() is not allowed; allowed now: stop, get_state",
    ),
    (
        AgentAlreadyRunningError("a", 7, "host", "audit"),
        RuntimeError,
        {"agent_id": "a", "pid": 7, "hostname": "host", "run": "audit"},
        "agent a is already running in run audit, process 7 on host; choose another id (or none, "
        "to have one generated), stop() the other one, or pass takeover=True",
    ),
    (
        FencedError("a", 1, 2),
        RuntimeError,
        {"agent_id": "a", "generation": 1, "current_generation": 2},
        "agent a: generation 1 was taken over by generation 2; nothing was written, end this agent",
    ),
    (
        AgentMirroredError("m0123abcd-1", "m0123abcd"),
        RuntimeError,
        {"agent_id": "m0123abcd-1", "machine_id": "m0123abcd"},
        "agent m0123abcd-1 is mirrored from machine m0123abcd: only that machine writes it, "
        "nothing was stored; act on it there, or choose another id",
    ),
    (
        HandoffTakenError("a", "b"),
        RuntimeError,
        {"agent_id": "a", "successor_id": "b"},
        "the handoff of agent a was already claimed by b; do not start a second successor",
    ),
    (
        HandedOffError("a", HANDOFF),
        RuntimeError,
        {"agent_id": "a", "handoff": HANDOFF},
        "agent a was asked to return and left handoff a.1.1; start a successor with "
        "create_context_monitor(continues=error.handoff)",
    ),
    (
        NotPermittedError("a", "b"),
        PermissionError,
        {"agent_id": "a", "requester": "b"},
        "agent b may not decide who is notified about agent a: only that agent and its direct "
        "parent may",
    ),
    (
        RegistrationError("a", "stopped"),
        ValueError,
        {"agent_id": "a", "problem": "stopped"},
        "agent a cannot be registered: it has ended and will never be measured again; register "
        "its successor",
    ),
    (
        QueueFullError("a", 1_000),
        RuntimeError,
        {"recipient": "a", "waiting": 1_000},
        "agent a: 1,000 messages wait and none was added; let it fetch them "
        "(`ultramon queue messages a --ack`), or give messages a category, of which the oldest is "
        "dropped",
    ),
    (
        AgentNotFoundError("a"),
        LookupError,
        {"agent_id": "a"},
        "no agent a: list the known agents with `ultramon status --all`",
    ),
    (
        MissingExtraError("postgresql:// backends", "psycopg", "postgres"),
        ImportError,
        {"feature": "postgresql:// backends", "package": "psycopg", "extra": "postgres"},
        f"postgresql:// backends needs psycopg: {install_command('postgres')}",
    ),
    (
        StateCorruptError("/s/a.json", "the checksum does not match"),
        ValueError,
        {"path": "/s/a.json", "reason": "the checksum does not match"},
        "/s/a.json: the checksum does not match",
    ),
    (
        StateSchemaError("/s/a.json", "schema 9", "upgrade ultramon"),
        ValueError,
        {"path": "/s/a.json", "reason": "schema 9"},
        "/s/a.json: schema 9; upgrade ultramon",
    ),
    (
        StateWriteError("/s/a.json", "no space left", "free some"),
        OSError,
        {"path": "/s/a.json", "reason": "no space left"},
        "/s/a.json: no space left; free some",
    ),
    (
        StateDirectoryError("/s", "belongs to user 7"),
        OSError,
        {"path": "/s", "reason": "belongs to user 7"},
        "/s: belongs to user 7",
    ),
    (StateError("/s", "odd"), UltramonError, {"path": "/s", "reason": "odd"}, "/s: odd"),
]
CLASSES = {
    name: kind
    for place in (errors, handoff, result)
    for name, kind in vars(place).items()
    if inspect.isclass(kind) and issubclass(kind, UltramonError)
}


def ids(case):
    return type(case).__name__ if isinstance(case, Exception) else ""


@pytest.mark.parametrize(("error", "builtin", "fields", "message"), CASES, ids=ids)
def test_an_error_says_what_where_and_what_to_do(error, builtin, fields, message):
    """The text, the typed fields, and the builtin that a caller would expect."""
    assert str(error) == message
    assert isinstance(error, UltramonError)
    assert isinstance(error, builtin)
    assert {name: getattr(error, name) for name in fields} == fields


@pytest.mark.parametrize(("error", "builtin", "fields", "message"), CASES, ids=ids)
def test_an_error_crosses_a_process_border(error, builtin, fields, message):
    """A process pool pickles what its worker raised; one that cannot be read breaks the pool."""
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert (type(again), str(again)) == (type(error), message)
        assert {name: getattr(again, name) for name in fields} == fields


def test_every_error_has_a_case_here():
    """A new exception needs its message tested."""
    assert {type(error) for error, *_ in CASES} == set(CLASSES.values()) - {UltramonError}


def test_the_drawn_tree_is_the_real_one():
    """Name, builtin and place in the docstring are those of the classes."""
    drawn, parents = {}, {-1: None}
    for line in errors.__doc__.splitlines():
        match = re.match(r"^([│├└─ ]*)(\w+Error)(?: \((\w+)\))?", line)
        if match:
            depth = len(match[1]) // 4
            parents[depth] = match[2]
            drawn[match[2]] = (parents[depth - 1], match[3])
    real = {}
    for name, kind in CLASSES.items():
        ours = [base.__name__ for base in kind.__bases__ if base.__name__ in CLASSES]
        builtins = [base.__name__ for base in kind.__bases__ if base.__name__ not in CLASSES]
        real[name] = (ours[0] if ours else None, builtins[0] if ours and builtins else None)
    assert drawn == real


def test_every_error_documents_its_fields():
    """What a caller can read from an error stands in its docstring or its parent's."""
    for error, _, fields, _ in CASES:
        documented = "".join(kind.__doc__ or "" for kind in type(error).__mro__)
        assert all(f"{name}: " in documented for name in fields), type(error)


def test_the_page_is_what_the_docstrings_say():
    """docs/errors.md is as `python scripts/generate_errors_docs.py` would write it now."""
    generator = runpy.run_path(str(ROOT / "scripts" / "generate_errors_docs.py"))
    page = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    assert generator["render"](page) == page
    assert set(generator["error_classes"]()) == set(CLASSES.values()) - {UltramonError}
    for name in set(CLASSES) - {"UltramonError"}:
        assert f"### {name}\n" in page


def test_the_public_face_offers_the_commonest_errors():
    """The others are in `ultramon.errors`; each can be caught as an `UltramonError`."""
    import ultramon

    offered = {name for name in CLASSES if name in ultramon.__all__}
    assert offered == {
        "UltramonError", "AgentAlreadyRunningError", "ConfigurationError", "FencedError",
        "HandedOffError", "HandoffTakenError", "RunUnfinishedError", "StateError",
    }  # fmt: skip
    assert all(getattr(ultramon, name) is CLASSES[name] for name in offered)
