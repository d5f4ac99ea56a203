"""The exceptions of ultramon. Imports nothing of ours and nothing heavy.

UltramonError
├── ConfigurationError (ValueError)        a value in a config, ladder, URL, variable
├── InvalidAgentIdError (ValueError)       an id that cannot name a state file
├── InvalidUsageError (ValueError)         token numbers that no provider could have reported
├── LifecycleError (RuntimeError)          a verb that the agent's phase does not allow
├── AgentAlreadyRunningError (RuntimeError)  the id belongs to an agent that provably lives
├── FencedError (RuntimeError)             another process took the agent over
├── HandoffTakenError (RuntimeError)       another successor claimed the handoff
├── NotPermittedError (PermissionError)    neither the agent itself nor its direct parent asks
├── RegistrationError (ValueError)         nobody can be told about that agent in that way
├── QueueFullError (RuntimeError)          a recipient has too many messages waiting
├── AgentNotFoundError (LookupError)       no state of that agent
├── MissingExtraError (ImportError)        an optional dependency is not installed
└── StateError
    ├── StateCorruptError (ValueError)     the file is there and cannot be read as a state
    ├── StateSchemaError (ValueError)      written by a newer ultramon; readable, not writable
    ├── StateWriteError (OSError)          the disk refused; the old state is intact
    └── StateDirectoryError (OSError)      the directory is not safe to use
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def _restored(
    kind: "type[UltramonError]", message: str, fields: "dict[str, object]"
) -> "UltramonError":
    error = kind.__new__(kind)
    error.args = (message,)
    error.__dict__.update(fields)
    return error


class UltramonError(Exception):
    """Base of everything ultramon raises on purpose. Crosses process borders with its fields."""

    def __reduce__(self) -> "tuple[object, ...]":
        # The default would call the constructor with the finished message as its only argument.
        return _restored, (type(self), str(self), self.__dict__)


class ConfigurationError(UltramonError, ValueError):
    """A configured value is not allowed.

    Attributes:
        name: The setting, e.g. ``warning_threshold``.
        value: What was given.
        allowed: The allowed range, in words.
        source: Where the value came from (``argument``, an environment variable, a file).
    """

    def __init__(self, name: str, value: object, allowed: str, source: str = "argument") -> None:
        self.name = name
        self.value = value
        self.allowed = allowed
        self.source = source
        super().__init__(f"{name}={value!r} (from {source}) is not allowed: must be {allowed}")


class InvalidAgentIdError(UltramonError, ValueError):
    """An agent id cannot be used as a file name on every system.

    Attributes:
        agent_id: The id as given.
        reason: What is wrong with it.
    """

    def __init__(self, agent_id: object, reason: str) -> None:
        self.agent_id = agent_id
        self.reason = reason
        shown = ascii(agent_id)
        if len(shown) > 80:
            shown = shown[:77] + "..."
        super().__init__(
            f"agent id {shown} is not allowed: {reason}; use 1-128 of A-Z a-z 0-9 . _ - "
            "starting with a letter or digit, or leave the id out to have one generated"
        )


class InvalidUsageError(UltramonError, ValueError):
    """Reported token numbers are impossible.

    Attributes:
        agent_id: The agent they were reported for.
        name: The parameter.
        value: What was given.
    """

    def __init__(self, agent_id: str, name: str, value: object) -> None:
        self.agent_id = agent_id
        self.name = name
        self.value = value
        super().__init__(
            f"agent {agent_id}: {name}={value!r} is not a token count: must be a whole number "
            "from 0 to 1,000,000,000, or None; report one response, not a running total"
        )


class LifecycleError(UltramonError, RuntimeError):
    """A verb was called that the agent's phase of life does not allow.

    Attributes:
        agent_id: The agent.
        phase: ``created``, ``active`` or ``ended``.
        verb: The method that was called.
        allowed: The verbs that are allowed now.
    """

    def __init__(self, agent_id: str, phase: str, verb: str, allowed: "Sequence[str]") -> None:
        self.agent_id = agent_id
        self.phase = phase
        self.verb = verb
        self.allowed = tuple(allowed)
        super().__init__(
            f"agent {agent_id} is {phase}: {verb}() is not allowed; "
            f"allowed now: {', '.join(self.allowed)}"
        )


class AgentAlreadyRunningError(UltramonError, RuntimeError):
    """The id belongs to an agent whose owner provably lives.

    Attributes:
        agent_id: The agent.
        pid: The process that owns it.
        hostname: Where that process runs.
        run: The run that it belongs to; an id belongs to one agent in all runs.
    """

    def __init__(self, agent_id: str, pid: int, hostname: str, run: str) -> None:
        self.agent_id = agent_id
        self.pid = pid
        self.hostname = hostname
        self.run = run
        super().__init__(
            f"agent {agent_id} is already running in run {run}, process {pid} on {hostname}; "
            "choose another id (or none, to have one generated), stop() the other one, or pass "
            "takeover=True"
        )


class FencedError(UltramonError, RuntimeError):
    """Another process took the agent over; this process may not write it any more.

    Attributes:
        agent_id: The agent.
        generation: The generation this process holds.
        current_generation: The generation on record, or None when the record is gone.
    """

    def __init__(self, agent_id: str, generation: int, current_generation: int | None) -> None:
        self.agent_id = agent_id
        self.generation = generation
        self.current_generation = current_generation
        super().__init__(
            f"agent {agent_id}: generation {generation} was taken over by generation "
            f"{current_generation}; nothing was written, end this agent"
        )


class HandoffTakenError(UltramonError, RuntimeError):
    """Another successor claimed the handoff first.

    Attributes:
        agent_id: The agent that handed off.
        successor_id: The agent that won.
    """

    def __init__(self, agent_id: str, successor_id: str) -> None:
        self.agent_id = agent_id
        self.successor_id = successor_id
        super().__init__(
            f"the handoff of agent {agent_id} was already claimed by {successor_id}; do not start "
            "a second successor"
        )


class NotPermittedError(UltramonError, PermissionError):
    """Only an agent itself and its direct parent decide who is told about it.

    Attributes:
        agent_id: The agent that it is about.
        requester: Who asked.
    """

    def __init__(
        self, agent_id: str, requester: str, what: str = "decide who is told about"
    ) -> None:
        self.agent_id = agent_id
        self.requester = requester
        super().__init__(
            f"agent {requester} may not {what} agent {agent_id}: only that agent and its direct "
            "parent may"
        )


class RegistrationError(UltramonError, ValueError):
    """A registration would tell nobody anything.

    Attributes:
        agent_id: The agent that it is about.
        problem: ``notify_missing``, ``notify_unknown``, ``notify_refused``, ``stopped``,
            ``no_gauge`` or ``ended``.
    """

    _TEXTS = {  # noqa: RUF012 - typing is not imported here
        "notify_missing": "nobody to tell is named; name the agent itself or its parent",
        "notify_unknown": "the agent to tell does not exist; name the agent itself or its parent",
        "notify_refused": "the agent to tell did not ask for it; name the agent itself or its "
        "parent, or let the parent ask",
        "stopped": "it has ended and will never be measured again; register its successor",
        "no_gauge": "its host never says how full its window is; nothing would ever be told",
        "ended": "it has ended and calls nobody any more; make one for its successor",
    }

    def __init__(self, agent_id: str, problem: str) -> None:
        self.agent_id = agent_id
        self.problem = problem
        verb = "given a token" if problem == "ended" else "registered"
        super().__init__(f"agent {agent_id} cannot be {verb}: {self._TEXTS[problem]}")


class QueueFullError(UltramonError, RuntimeError):
    """A recipient does not fetch its messages, and none of them may be dropped for another.

    Attributes:
        recipient: The agent.
        waiting: How many messages without a category wait for it.
    """

    def __init__(self, recipient: str, waiting: int) -> None:
        self.recipient = recipient
        self.waiting = waiting
        super().__init__(
            f"agent {recipient}: {waiting:,} messages wait and none was added; let it fetch them "
            f"(`ultramon messages {recipient} --ack`), or give messages a category, of which the "
            "oldest is dropped"
        )


class AgentNotFoundError(UltramonError, LookupError):
    """No state of that agent is stored.

    Attributes:
        agent_id: The id or prefix that was asked for.
    """

    def __init__(
        self, agent_id: str, hint: str = "list the known agents with `ultramon status --all`"
    ) -> None:
        self.agent_id = agent_id
        super().__init__(f"no agent {agent_id}: {hint}")


class MissingExtraError(UltramonError, ImportError):
    """An optional dependency is needed and not installed.

    Attributes:
        feature: What was asked for.
        package: The package that is missing.
        extra: The extra of ultramon that brings it.
    """

    def __init__(self, feature: str, package: str, extra: str) -> None:
        self.feature = feature
        self.package = package
        self.extra = extra
        super().__init__(f"{feature} needs {package}: pip install 'ultramon[{extra}]'")


class StateError(UltramonError):
    """Base of what can be wrong with a stored state.

    Attributes:
        path: The file or directory.
        reason: What is wrong with it.
    """

    def __init__(self, path: str, reason: str, advice: str = "") -> None:
        self.path = path
        self.reason = reason
        text = f"{path}: {reason}"
        super().__init__(f"{text}; {advice}" if advice else text)


class StateCorruptError(StateError, ValueError):
    """A state file is there and cannot be read as a state."""


class StateSchemaError(StateError, ValueError):
    """A state was written by a newer ultramon: it may be read, never written."""


class StateWriteError(StateError, OSError):
    """The state could not be stored; what was stored before is intact."""


class StateDirectoryError(StateError, OSError):
    """The state directory is not safe to use (owner, mode, or a symlink)."""
