"""The exceptions of ultramon. Imports nothing.

UltramonError
├── ConfigurationError (ValueError)        a value in a config, ladder, URL, variable
├── InvalidAgentIdError (ValueError)       an id that cannot name a state file
├── InvalidUsageError (ValueError)         token numbers that no provider could have reported
├── UnknownResponseError (TypeError)       an object without the usage of one response
├── LifecycleError (RuntimeError)          a verb that the agent's phase does not allow
├── AgentAlreadyRunningError (RuntimeError)  the id belongs to an agent that provably lives
│   └── AgentMirroredError                 the agent of another machine, which alone writes it
├── FencedError (RuntimeError)             another process took the agent over
├── HandoffTakenError (RuntimeError)       another successor claimed the handoff
├── HandedOffError (RuntimeError)          an adapter ended the agent's run with a handoff
├── NotPermittedError (PermissionError)    the caller is neither the agent nor its direct parent
├── RegistrationError (ValueError)         a subscription that would deliver no notice
├── QueueFullError (RuntimeError)          a recipient has too many messages waiting
├── AgentNotFoundError (LookupError)       no state of that agent
├── AgentWorkError (RuntimeError)       a stored agent's plan or handoff cannot change like that
├── RunUnfinishedError (RuntimeError)      a supervised run ended, and not all of it is done
├── SpawnError (RuntimeError)              a process that cannot be started for any context
├── WorkspaceError (RuntimeError)          a working tree that a relay cannot use as asked
├── SetupError (RuntimeError)              a relay's worktree was made, and its setup failed
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
    """Base of the exceptions that ultramon raises. Crosses process borders with its fields."""

    def __reduce__(self) -> "tuple[object, ...]":
        # The default would call the constructor with the finished message as its only argument.
        return _restored, (type(self), str(self), self.__dict__)


class ConfigurationError(UltramonError, ValueError):
    """A configured value is not allowed.

    Raised: By constructors, commands, settings files and servers at their start, before anything is
    done.

    Cure: Give what ``allowed`` says, where ``source`` says the value came from.

    Attributes:
        name: The setting, e.g. ``warning_threshold``.
        value: The value given.
        allowed: The allowed values, in words.
        source: Of the value: ``argument``, an environment variable, a file.
    """

    def __init__(self, name: str, value: object, allowed: str, source: str = "argument") -> None:
        self.name = name
        self.value = value
        self.allowed = allowed
        self.source = source
        super().__init__(f"{name}={value!r} (from {source}) is not allowed: must be {allowed}")


class InvalidAgentIdError(UltramonError, ValueError):
    """An agent id, or the name of a run, cannot be used as a file name on every system.

    Raised: By each call that takes an id or the name of a run.

    Cure: Choose 1-128 of A-Z a-z 0-9 . _ - beginning with a letter or digit, or leave the id out.

    Attributes:
        agent_id: The id as given.
        reason: Why it is not allowed.
        name: Its role: ``agent id``, ``run``, or the variable it came from.
    """

    def __init__(self, agent_id: object, reason: str, name: str = "agent id") -> None:
        self.agent_id = agent_id
        self.reason = reason
        self.name = name
        shown = ascii(agent_id)
        if len(shown) > 80:
            shown = shown[:77] + "..."
        omitted = "the id out to have one generated" if name == "agent id" else "it out"
        super().__init__(
            f"{name} {shown} is not allowed: {reason}; use 1-128 of A-Z a-z 0-9 . _ - "
            f"starting with a letter or digit, or leave {omitted}"
        )


class InvalidUsageError(UltramonError, ValueError):
    """Reported token numbers are impossible.

    Raised: By ``report_usage``.

    Cure: Report the numbers of one response, not a running total; None where one is not known.

    Attributes:
        agent_id: The agent.
        name: The parameter.
        value: The value given.
    """

    def __init__(self, agent_id: str, name: str, value: object) -> None:
        self.agent_id = agent_id
        self.name = name
        self.value = value
        super().__init__(
            f"agent {agent_id}: {name}={value!r} is not a token count: must be a whole number "
            "from 0 to 1,000,000,000, or None; report one response, not a running total"
        )


class UnknownResponseError(UltramonError, TypeError):
    """An object reported as a response holds no usage that can be read.

    Raised: By ``report_response``.

    Cure: Report each response as the provider or framework returned it, or its numbers to
    ``report_usage``.

    Attributes:
        agent_id: The agent.
        type_name: The type of the object.
        understood: The objects that can be read.
    """

    def __init__(self, agent_id: str, type_name: str, understood: str) -> None:
        self.agent_id = agent_id
        self.type_name = type_name
        self.understood = understood
        super().__init__(
            f"agent {agent_id}: no usage of one response is found in a {type_name}; understood is "
            f"{understood}; a sum over several requests is not: report each response, or give the "
            "numbers to report_usage()"
        )


class LifecycleError(UltramonError, RuntimeError):
    """A verb was called that the agent's phase of life does not allow.

    Raised: By a monitor before ``start``, after ``stop``, or when it is started twice.

    Cure: Call one of ``allowed``; a new monitor for a new life, with ``with`` around its work.

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
    """The id belongs to an agent whose process provably lives.

    Raised: By ``start``, where the process of the id is found alive.

    Cure: Choose another id, stop the other agent, or pass ``takeover=True``.

    Attributes:
        agent_id: The agent.
        pid: Its process.
        hostname: The name of its machine.
        run: Its run; an id belongs to one agent in all runs.
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


class AgentMirroredError(AgentAlreadyRunningError):
    """The agent is another machine's, which alone writes it here; no takeover is possible.

    Raised: By each call that would write an agent that another machine's ``ultramon share``
    stored.

    Cure: Act on it on its machine, or choose another id.

    Attributes:
        agent_id: The agent.
        machine_id: The machine.
    """

    def __init__(self, agent_id: str, machine_id: str) -> None:
        self.machine_id = machine_id
        super().__init__(agent_id, 0, machine_id, "")
        self.args = (
            f"agent {agent_id} is mirrored from machine {machine_id}: only that machine writes it, "
            "nothing was stored; act on it there, or choose another id",
        )


class FencedError(UltramonError, RuntimeError):
    """Another process took the agent over; this process may not write it any more.

    Raised: By each call that stores, once the agent was started anew elsewhere.

    Cure: End this process: its successor has the state. Nothing was written.

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
    """Another successor claimed the handoff first, or the claim was released as abandoned.

    Raised: By ``claim`` and ``start`` with ``continues``.

    Cure: Do not start a second successor; claim another handoff.

    Attributes:
        agent_id: The agent that handed off.
        successor_id: The agent that won; None = no agent yet, the handoff is offered again.
    """

    def __init__(self, agent_id: str, successor_id: str | None) -> None:
        self.agent_id = agent_id
        self.successor_id = successor_id
        if successor_id is None:
            reason = "is offered again: this claim was released before its successor was stored"
        else:
            reason = f"was already claimed by {successor_id}"
        super().__init__(
            f"the handoff of agent {agent_id} {reason}; do not start a second successor"
        )


class NotPermittedError(UltramonError, PermissionError):
    """A caller asked for what only an agent itself and its direct parent may do.

    Raised: By ``register``, ``unregister``, ``cancel_notices``, and by MCP tools.

    Cure: Let the agent itself or its direct parent call.

    Attributes:
        agent_id: The agent.
        requester: The agent that asked.
    """

    def __init__(
        self, agent_id: str, requester: str, what: str = "decide who is notified about"
    ) -> None:
        self.agent_id = agent_id
        self.requester = requester
        super().__init__(
            f"agent {requester} may not {what} agent {agent_id}: only that agent and its direct "
            "parent may"
        )


class RegistrationError(UltramonError, ValueError):
    """A registration would never lead to a notice, or a token never to a call.

    Raised: By ``register``, ``mint_token`` and ``POST /agents``.

    Cure: Name another recipient or agent, by ``problem``.

    Attributes:
        agent_id: The agent.
        problem: ``notify_missing``, ``notify_unknown``, ``notify_refused``, ``notify_cycle``,
            ``stopped``, ``no_gauge`` or ``ended``.
    """

    _TEXTS = {  # noqa: RUF012 - typing is not imported here
        "notify_missing": "no recipient is named; name the agent itself or an ancestor of it",
        "notify_unknown": "the recipient does not exist; name the agent itself or an ancestor of "
        "it",
        "notify_refused": "the recipient did not ask for it; name the agent itself or one of its "
        "16 nearest ancestors, or let its parent or an admin ask",
        "notify_cycle": "its ancestors form a cycle; start the agent again with its true parent",
        "stopped": "it has ended and will never be measured again; register its successor",
        "no_gauge": "its host never says how full its window is; no notice would ever come",
        "ended": "it has ended and makes no more calls; make one for its successor",
    }

    def __init__(self, agent_id: str, problem: str) -> None:
        self.agent_id = agent_id
        self.problem = problem
        verb = "given a token" if problem == "ended" else "registered"
        super().__init__(f"agent {agent_id} cannot be {verb}: {self._TEXTS[problem]}")


class QueueFullError(UltramonError, RuntimeError):
    """The queue of a recipient is full, and none of its messages may be dropped for another.

    Raised: By ``queue_message`` at 1,000 waiting messages.

    Cure: Let the recipient fetch its messages, or give them a ``category``: then the oldest is
    dropped.

    Attributes:
        recipient: The agent.
        waiting: Messages without a category in its queue.
    """

    def __init__(self, recipient: str, waiting: int) -> None:
        self.recipient = recipient
        self.waiting = waiting
        super().__init__(
            f"agent {recipient}: {waiting:,} messages wait and none was added; let it fetch them "
            f"(`ultramon queue messages {recipient} --ack`), or give messages a category, of which "
            "the oldest is dropped"
        )


class AgentNotFoundError(UltramonError, LookupError):
    """No state of that agent is stored.

    Raised: By commands and calls that name an agent.

    Cure: List the agents with ``ultramon status --all``; look at the state directory, backend and
    run.

    Attributes:
        agent_id: The id or prefix.
    """

    def __init__(
        self, agent_id: str, hint: str = "list the known agents with `ultramon status --all`"
    ) -> None:
        self.agent_id = agent_id
        super().__init__(f"no agent {agent_id}: {hint}")


class AgentWorkError(UltramonError, RuntimeError):
    """The plan or handoff of a stored agent cannot be changed like that; nothing was changed.

    Raised: By ``ultramon task``, the MCP tools and the steps of an item.

    Cure: Change the work where ``problem`` says that it is kept.

    Attributes:
        agent_id: The agent.
        problem: ``program``, ``posted``, ``ended``, ``full``, ``name``, ``none_begun``,
            ``no_item``, ``no_task`` or ``clients_task``.
        task: The name of the task, where it is about one.
    """

    _TEXTS = {  # noqa: RUF012 - typing is not imported here
        "program": "its program keeps the state: there, monitor.plan(), monitor.task() and "
        "monitor.hand_off() record tasks and handoffs",
        "posted": "the server that takes its posts keeps the state, and no plan",
        "ended": "it has ended, and nothing of it is changed any more",
        "full": "its plan is full; give other agents a part of the work",
        "name": "a task is named by 1 to 200 characters",
        "none_begun": "no task is in progress; name the one that is done",
        "no_item": "no item is in work that a step could belong to; begin one first",
        "no_task": "its plan has no task {task}; take the name from the plan",
        "clients_task": "task {task} is in the client's own task list (id {task_id}), which "
        "decides; change it there",
    }

    def __init__(self, agent_id: str, problem: str, task: str = "", task_id: str = "") -> None:
        self.agent_id = agent_id
        self.problem = problem
        self.task = task
        text = self._TEXTS[problem].format(task=task[:200], task_id=task_id)
        super().__init__(f"agent {agent_id}: {text}")


class SpawnError(UltramonError, RuntimeError):
    """The `spawn` of a supervised run would fail for every context; ``__cause__`` says how.

    Raised: By ``Fleet.supervise``, after the agents that ran were asked to hand off.

    Cure: Correct what ``__cause__`` says: the same call continues the run.

    Attributes:
        run: The run.
        agent_id: The context that it was called for.
    """

    def __init__(self, run: str, agent_id: str, error: Exception) -> None:
        self.run = run
        self.agent_id = agent_id
        super().__init__(
            f"run {run}: spawn raised {type(error).__name__} for {agent_id}: {error}; agents that "
            "ran were asked to hand off. Correct it: the same call continues the run"
        )


class WorkspaceError(UltramonError, RuntimeError):
    """A relay cannot work in a directory as it was asked to; nothing there was changed.

    Raised: By ``ultramon relay``, before a context begins or when work is merged.

    Cure: Commit or stash ``files``, or name another directory or branch, as its message says.

    Attributes:
        path: The directory.
        reason: Why.
        files: Uncommitted files that are in the way, all of them.
    """

    _SHOWN_FILES = 20

    def __init__(
        self, path: str, reason: str, advice: str = "", files: "Sequence[str]" = ()
    ) -> None:
        self.path = path
        self.reason = reason
        self.files = tuple(files)
        text = f"{path}: {reason}"
        if files:
            text += f": {', '.join(ascii(file)[1:-1] for file in files[: self._SHOWN_FILES])}"
        if len(files) > self._SHOWN_FILES:
            text += f" and {len(files) - self._SHOWN_FILES:,} more"
        super().__init__(f"{text}; {advice}" if advice else text)


class SetupError(UltramonError, RuntimeError):
    """The setup of a relay's worktree failed, so no context was begun.

    Raised: By ``ultramon relay`` with ``--setup``.

    Cure: Read ``output_path``, mend the command, then ``ultramon relay --resume RUN``.

    Attributes:
        run: The relay.
        command: What was run.
        problem: How it failed, e.g. ``exit code 2``.
        output_path: The file with all that it printed.
    """

    def __init__(self, run: str, command: str, problem: str, output_path: str) -> None:
        self.run = run
        self.command = command
        self.problem = problem
        self.output_path = output_path
        super().__init__(
            f"run {run}: its setup failed, {problem}, and no context was begun; all that it "
            f"printed is in {output_path}; once it can succeed: ultramon relay --resume {run}, "
            "with --setup COMMAND for another one"
        )


class MissingExtraError(UltramonError, ImportError):
    """An optional dependency is needed and not installed, or too old.

    Raised: By the first use of the feature.

    Cure: Run the command in its message, which fits this installation of ultramon.

    Attributes:
        feature: The feature that needs it.
        package: The package.
        extra: The extra of ultramon that installs it.
        needed: The oldest version that will do; None = not said.
        installed: The version that is too old; None = the package is missing.
    """

    def __init__(
        self,
        feature: str,
        package: str,
        extra: str,
        *,
        needed: str | None = None,
        installed: str | None = None,
    ) -> None:
        self.feature = feature
        self.package = package
        self.extra = extra
        self.needed = needed
        self.installed = installed
        wanted = f"{package} {needed} or newer" if needed else package
        found = f", {installed} is installed" if installed else ""
        from ultramon.installed import install_command

        super().__init__(f"{feature} needs {wanted}{found}: {install_command(extra)}")


class StateError(UltramonError):
    """Base of the errors of stored states.

    Raised: By calls that read or store states; catch it for all of them.

    Cure: As its message says.

    Attributes:
        path: The file or directory.
        reason: The error.
    """

    def __init__(self, path: str, reason: str, advice: str = "") -> None:
        self.path = path
        self.reason = reason
        text = f"{path}: {reason}"
        super().__init__(f"{text}; {advice}" if advice else text)


class StateCorruptError(StateError, ValueError):
    """A state file exists and cannot be read as a state.

    Raised: By readers of the file. The next start of the agent sets a damaged state aside.

    Cure: As its message says. ``ultramon backend check`` finds all of them, ``repair`` mends a
    journal.
    """


class StateSchemaError(StateError, ValueError):
    """A state was written by a newer ultramon: it may be read, never written.

    Raised: By each call that would write it.

    Cure: Upgrade ultramon in this process, too.
    """


class StateWriteError(StateError, OSError):
    """The state could not be stored; the state before it is intact.

    Raised: By commands and calls that store, and by a monitor with ``on_error="raise"``; other
    monitors log it and try again.

    Cure: Make room, or make the disk or database reachable; the next save stores all.
    """


class StateDirectoryError(StateError, OSError):
    """The state directory is not safe to use (owner, mode, or a symlink).

    Raised: By each call that opens the directory, a secret or a log file in it.

    Cure: Give it to your user, with mode 0700 and no link, or name another with
    ``ULTRAMON_STATE_DIR``.
    """
