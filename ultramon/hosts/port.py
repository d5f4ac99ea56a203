"""The port between ultramon and the programs that coding agents run in: one `Host` for each.

Standard library only: every hook call loads it. A `Host` translates, and decides nothing: it makes
an event of a payload, readings of a transcript, and bytes of a text for the agent. What an event
does to the agents is the same for every host and lies in `ultramon.hosts.calls.handling`.
"""

from __future__ import annotations

from ultramon.errors import ConfigurationError
from ultramon.hosts.transcripts.records import Record
from ultramon.state.record import member_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
    from typing import Any

    from ultramon.hosts.doctor_context import DoctorContext
    from ultramon.hosts.install.plans import Plan, SetupRequest
    from ultramon.hosts.transcripts.jsonl import TranscriptReader
    from ultramon.hosts.transcripts.records import (
        Billed,
        LastReading,
        Report,
        SessionEnd,
        TranscriptIdentity,
    )
    from ultramon.hosts.transcripts.stored import StoredTranscript
    from ultramon.state.stored_plan import TaskReport
    from ultramon.system.findings import Finding

SESSION_STARTED = "session_started"
SESSION_ENDED = "session_ended"
SUBAGENT_STARTED = "subagent_started"
SUBAGENT_ENDED = "subagent_ended"
PROMPT = "prompt"
"""A person, or the host in a person's place, submitted a prompt."""
TOOL_STARTED = "tool_started"
TOOL_ENDED = "tool_ended"
TOOLS_ENDED = "tools_ended"
"""All calls of one reply have ended; the model is asked next."""
CALL_ASKED = "call_asked"
"""The host asks whether a call of a tool may run, before that call; a denial may end the turn."""
NUDGED = "nudged"
"""The host is about to ask the model to continue, by itself, where a turn gave no text."""
WAITING = "waiting"
"""The turn is over, or the host waits for a person."""
COMPACTING = "compacting"
"""A compaction may follow."""
COMPACTED = "compacted"

CLEAR = "clear"
"""Source and reason where a person emptied the conversation."""
RESUME = "resume"
COMPACT = "compact"

_INSTALLABLE = "a host that ultramon can install into; of the others it reads transcripts only"


class LaunchedSubagent(Record):
    """What the result of a tool says about the subagent that the tool launched.

    Attributes:
        subagent_id: The host's name for it.
        model: Its model, or None.
        task: What it is to do, or None.
    """

    subagent_id: str
    model: str | None
    task: str | None


class ReturnedSubagent(Record):
    """What an event reports to an agent of the end of a subagent that it launched.

    Attributes:
        subagent_id: The host's name for it.
        has_text: Whether the agent gets a text of the subagent.
        is_success: Whether a tool says that it completed, which no person can have typed.
        error: Why it failed as the tool says, empty when it did not; None = only its transcript
            says how it ended.
    """

    subagent_id: str
    has_text: bool
    is_success: bool
    error: str | None = None


class HookEvent(Record):
    """One hook call in words that hold for every host.

    Attributes:
        kind: One of the constants of this module; empty = nothing happens.
        name: The host's name for the event, for its answer and the failure log.
        session_id: The session.
        subagent_id: The host's name for the subagent; None = the main agent.
        subagent_type: The kind of subagent, empty where the host does not say.
        transcript_path: The session's transcript, also for a subagent unless the host names its
            own, see `Transcripts.transcript_path`; None = unknown.
        cwd: Working directory of the agent, or None.
        call_id: The tool call, where the transcript names it too, or None.
        hook_mark: This very hook call as the transcript names it, where it names hook calls and an
            event names no tool call; or None.
        can_answer: Whether the host puts the answer to this event into the conversation.
        can_end: Whether the host ends the agent's turn where the answer to this event says so.
        ends_session: Whether the host then ends too, without a further event.
        model: The model: where a session starts, and where the transcript does not name it beside
            each reply; or None.
        source: Why a session starts: `RESUME`, `CLEAR`, `COMPACT` or a word of the host.
        reason: Why a session ended: `CLEAR` or a word of the host.
        may_cut_turn: Where a session ends: whether a turn that is open now was cut by that, since
            neither a turn's own end nor a person has ended the session.
        tokens: In the window when a session starts, or None.
        is_automatic: Where a compaction begins: whether the host does it by itself.
        prompt: What a person wrote; empty for texts of the host itself.
        error: What a turn failed with, empty when it did not; None = the turn continues. Where a
            session ends: what its last turn failed with, or None.
        waits_for: What a host that waits asks a person for, `PERMISSION` or `ANSWER` of
            `ultramon.state.record`; empty = its next prompt.
        last_text: The last text of the turn's last reply, empty = unknown.
        launched: The subagent that a tool launched, or None.
        tasks: What the result of a tool says about the host's task list, or None.
        returned: The subagent that has come back to the agent with this event, or None.
        reading: What the event itself says of the window, in the place of the transcript; None = it
            says nothing.
        candidates: Subagents of the session of which one may have made this call, where the host
            does not say; then no agent can be answered.
    """

    kind: str
    name: str
    session_id: str
    subagent_id: str | None = None
    subagent_type: str = ""
    transcript_path: str | None = None
    cwd: str | None = None
    call_id: str | None = None
    hook_mark: str | None = None
    can_answer: bool = True
    can_end: bool = False
    ends_session: bool = False
    model: str | None = None
    source: str = ""
    reason: str = ""
    may_cut_turn: bool = False
    tokens: int | None = None
    is_automatic: bool = False
    prompt: str = ""
    error: str | None = None
    waits_for: str = ""
    last_text: str = ""
    launched: LaunchedSubagent | None = None
    tasks: TaskReport | None = None
    returned: ReturnedSubagent | None = None
    reading: LastReading | None = None
    candidates: tuple[str, ...] = ()

    @property
    def awaited_id(self) -> str | None:
        """What the transcript holds once its reading is current; None = there is none to await."""
        return self.call_id or self.hook_mark


class Dialect:
    """What a host's hook calls say, how it is answered, and what its environment means.

    Subclasses override what their host offers; each default is "nothing". Every method may be
    called by a hook, so imports that cost time belong inside methods.

    Attributes:
        ends_turns: Whether an event that every installation reports, before the model is asked
            again, has `HookEvent.can_end`.
        names_clear: Whether the reason of an end says that a person emptied the conversation.
        keeps_reminders: Whether what an agent has read stays in its conversation when another
            process continues it. Else it reads again what still holds.
        prompts_before_compaction: How many prompts a conversation holds before the host can
            compact it, where it cuts between prompts; `compaction_limits` holds from there on.
        resident_programs: What a resident runs for this host beside its hook: a name, and the
            module and maker of what answers, called with the state directory and the agents.
    """

    ends_turns = False
    names_clear = True
    keeps_reminders = True
    prompts_before_compaction = 0
    resident_programs: Mapping[str, tuple[str, str]] = {}

    def read_event(
        self, payload: dict[str, Any], environ: Mapping[str, str], tail: bytes = b""
    ) -> HookEvent:
        """Translate a payload.

        Args:
            payload: The object on standard input, or its first members when it is large.
            environ: The host's environment.
            tail: The last 4 KiB of a payload above 1 MiB, else empty.

        Raises:
            ValueError: It is no payload of this host.
        """
        raise NotImplementedError

    def write_answer(self, event: HookEvent, text: str) -> bytes:
        """Return what to print so that the host puts a text into the agent's conversation.

        After `COMPACTING` the text is for the instructions of the summary.
        """
        raise NotImplementedError

    def write_end(self, event: HookEvent, reason: str) -> bytes:
        """Return what to print so that the host ends the agent's turn, for a reason it shows.

        Asked only for events with `HookEvent.can_end`.
        """
        raise NotImplementedError

    def write_user_note(self, event: HookEvent, text: str) -> bytes:
        """Return what to print so that the host shows the user a text; empty = it cannot."""
        return b""

    def environment_variables(self) -> tuple[str, ...]:
        """Return the variables, none of them secret, that this host reads.

        They are kept in a session's state for other processes that look at the session.
        """
        return ()

    def account_directory(self, environ: Mapping[str, str]) -> str:
        """Return the host's configuration directory: its sessions share the limits of a plan.

        Empty where the host reports no limits.
        """
        return ""

    def process_id(self, environ: Mapping[str, str]) -> int | None:
        """Return the host's process; None = unknown, and only silence shows that it is gone."""
        return None

    def project(self, environ: Mapping[str, str]) -> str | None:
        """Return the project's directory; None = the working directory."""
        return None

    def has_prompts(self, environ: Mapping[str, str]) -> bool:
        """Return whether a person submits prompts: then sequential notices wait for one."""
        return False

    def window_tokens(self, environ: Mapping[str, str], reported_tokens: int | None) -> int | None:
        """Return the window that the host works with; None = the model decides.

        Args:
            environ: The host's environment.
            reported_tokens: The window that the host reported for this model, or None.
        """
        return reported_tokens

    def compaction_limits(
        self,
        environ: Mapping[str, str],
        project: str | None,
        model: str | None,
        window_tokens: int | None,
    ) -> tuple[int | None, int | None]:
        """Return the tokens at which the host compacts, and at which it refuses requests.

        None for what is not configured.
        """
        return None, None


class Transcripts:
    """The files that a host writes about its sessions: where they are, and what they say.

    Subclasses override what their host offers; each default is "nothing". What a hook calls
    imports late what costs time.
    """

    names_skills = False
    """Whether a transcript shows by a call of a tool that a skill was used."""

    def transcript_path(
        self, event: HookEvent, subagent_id: str | None, session_id: str
    ) -> str | None:
        """Return the transcript of a session, or of one of its subagents; None = unknown."""
        return event.transcript_path if subagent_id is None else None

    def find_transcript(self, environ: Mapping[str, str], agent_id: str) -> str | None:
        """Return a transcript whose path no event has named; None = it is not found.

        Args:
            environ: The host's environment.
            agent_id: The host's name of the session, or of the subagent.
        """
        return None

    def read_last_reading(
        self, path: str, *, is_subagent: bool, call_id: str | None = None
    ) -> LastReading:
        """Return what the end of a transcript says.

        The default reads the whole file by `read_transcript`: fine for small ones.

        Args:
            path: The transcript of the agent itself.
            is_subagent: Whether it is a subagent's own file.
            call_id: `HookEvent.awaited_id` of the event that asks.

        Raises:
            OSError: It cannot be opened: it is not there, or not readable.
            ValueError: It is no regular file but, for example, a link.
        """
        from ultramon.hosts.transcripts.jsonl import last_reading_of

        return last_reading_of(path, self.read_transcript)

    def read_last_replies(self, path: str, *, is_subagent: bool) -> list[tuple[Report, list[str]]]:
        """Return the last two replies of this window, newest first, each with its tool calls.

        An agent is warned by them where no state can be stored, and ended for not returning only
        where they show that all its calls have; raises as `read_last_reading`.
        """
        return []

    def read_session_end(self, path: str, environ: Mapping[str, str]) -> SessionEnd | None:
        """Return how a session ended of which no hook has reported the end; None = unknown.

        Asked when the host's process is gone. Only what it wrote down before it ended counts: a
        session that was killed says nothing, and is lost.

        Args:
            path: The transcript of the session.
            environ: What is kept of the host's environment, see `environment_variables`.

        Raises:
            OSError: A file cannot be opened; it says nothing then.
            ValueError: It is no regular file but, for example, a link.
        """
        return None

    def client_version(self, path: str) -> str | None:
        """Return the version of the host that writes a transcript; None = it does not say.

        Raises:
            OSError: It cannot be opened.
            ValueError: It is no regular file but, for example, a link.
        """
        return None

    def read_token_budget(self, path: str) -> int | None:
        """Return the tokens that the host last wrote into the conversation as a budget."""
        return None

    def looks_like_transcript(self, head: bytes) -> bool:
        """Return whether a file that begins with these up to 64 KiB is a transcript of this host.

        The last line may be cut anywhere.
        """
        return False

    def identify(self, lines: Iterable[bytes]) -> TranscriptIdentity | None:
        """Return whose transcript it is; None when its lines do not say."""
        return None

    def identify_file(self, path: str, lines: Iterable[bytes]) -> TranscriptIdentity | None:
        """Return whose transcript a file is, where its place says more than its lines do."""
        return self.identify(lines)

    def subagent_transcripts(self, path: str) -> Iterator[str]:
        """Yield the transcripts of a session's subagents, where they lie beside the session's.

        Args:
            path: The transcript of the session.

        Raises:
            OSError: It cannot be read.
        """
        return iter(())

    def transcripts_in(self, path: str) -> list[str] | None:
        """Return the transcripts in a file of this host that holds many; None = it is none.

        Each is named ``<file>/<id>``, see `ultramon.hosts.transcripts.stored`.
        """
        return None

    def find_stored(self, path: str) -> StoredTranscript | None:
        """Return one of the transcripts of such a file, by its name; None = it is not this host's.

        Raises:
            OSError: The file cannot be read.
            ValueError: It is no regular file, or of an unknown version.
        """
        return None

    def sizes_and_changes(self, path: str) -> dict[str, tuple[int, int]]:
        """Return the size and the change of the transcripts in such a file, by their ids.

        As `find_stored` says of each: a list of all of them asks once. Those that are left out are
        asked for one by one.

        Raises:
            OSError: The file cannot be read.
            ValueError: It is of an unknown version.
        """
        return {}

    def new_requests(
        self, path: str, counted: Collection[str], most: int
    ) -> list[tuple[str, Report | Billed]] | None:
        """Return what requests of one of the transcripts of such a file cost, the oldest first.

        None = the transcript is a file of its own, of which `open_reader` reads what is new.

        Args:
            path: Its name.
            counted: The ids of messages to leave out.
            most: How many of its newest messages are looked at.

        Raises:
            OSError: The file cannot be read.
            ValueError: It is no regular file, or of an unknown version.
        """
        return None

    def read_transcript(self, lines: Iterable[bytes]) -> Iterator[Record]:
        """Yield the facts of one agent's transcript in the order they were written.

        The default reads by `open_reader`. Holds one line at a time and never raises, whatever the
        bytes; what cannot be read, or reports impossible token counts, is a `Broken`.

        Args:
            lines: The file's lines with their line ends; `bounded_lines` keeps hostile files small.
        """
        reader = self.open_reader()
        if reader is None:
            return
        from ultramon.hosts.transcripts.jsonl import read_lines

        yield from read_lines(lines, reader.read, reader.is_ignorable)
        yield from reader.held

    def open_reader(self, memory: dict[str, Any] | None = None) -> TranscriptReader | None:
        """Return a reader of one transcript; None = a transcript that grew is read anew as a whole.

        Args:
            memory: What a reader of the lines before returned as its memory; None = the first line
                comes next.

        Raises:
            KeyError: It is no such memory; ValueError and TypeError mean the same.
        """
        return None

    def transcript_files(
        self, environ: Mapping[str, str], on_error: Callable[[OSError], None] | None = None
    ) -> Iterator[str]:
        """Yield the paths of all transcripts that the host keeps, those of subagents included.

        Args:
            environ: Variables that move the host's directory.
            on_error: Called for each folder that is there and cannot be listed.
        """
        return iter(())


class Setup:
    """The host on this machine: how hooks get into it and out again, and what may be wrong.

    Never on a hook's path. Subclasses override what their host offers.

    Attributes:
        own_options: Options of ``ultramon install`` beyond those of every host, see
            `ultramon.hosts.install.plans.Choices`.
    """

    own_options: tuple[str, ...] = ()

    def plan_installation(self, request: SetupRequest) -> Plan:
        """Plan what ``ultramon install`` changes; write nothing.

        Raises:
            ConfigurationError: A choice is not allowed, or the host installs nothing.
        """
        raise ConfigurationError("host", request.host, _INSTALLABLE)

    def plan_removal(self, request: SetupRequest) -> Plan:
        """Plan what ``ultramon uninstall`` changes, as `plan_installation`."""
        raise ConfigurationError("host", request.host, _INSTALLABLE)

    def examine(self, context: DoctorContext) -> Iterable[Finding]:
        """Answer the host's own questions of ``ultramon doctor``."""
        return ()

    def continue_words(self, prompt: str) -> tuple[str, ...]:
        """Return the command that begins an interactive session with a first message.

        The message comes last. Empty = there is none.
        """
        return ()

    def memory_files(self, environ: Mapping[str, str], project: str | None) -> Iterator[str]:
        """Yield the files of instructions that the host would load in a project now.

        Args:
            environ: Variables that move the host's directory.
            project: Its folder; None = unknown.
        """
        return iter(())

    def resume_words(self, session_id: str) -> tuple[str, ...]:
        """Return the command that resumes a session, word for word; empty = there is none."""
        return ()


class Capabilities:
    """What a host can do, as docs/hosts.md shows it and `ultramon.testing.HostContract` proves it.

    Columns are those of `ultramon.hosts.capabilities.COLUMNS`. One that is neither described nor
    lacking is there without anything to say about it.

    Args:
        product: What people call the host; empty = its name.
        version: The version it was learnt from.
        lacks: Why a column is not there, by its name.
        how: How a column is there, in a few words, by its name.
    """

    def __init__(
        self,
        product: str = "",
        version: str = "",
        *,
        lacks: Mapping[str, str] | None = None,
        **how: str,
    ) -> None:
        self.product, self.version = product, version
        self.lacks = lacks or {}
        self.how = how


class Host:
    """A host of coding agents: a name, and three parts that lie in one package.

    Args:
        name: In commands, states and file names: lower-case words with hyphens.
        package: The package with the modules ``dialect``, ``transcripts`` and ``setup``, which hold
            `DIALECT`, `TRANSCRIPTS` and `SETUP`. Without one of the last two the host offers
            nothing of it.
        has_hooks: Whether it calls hooks; else it has no dialect, and its files alone are read.

    Attributes:
        memory_field: Field of a state that holds what only this host needs: the name in camel case.
        dialect: Loaded when it is first asked for, as are the others.
        transcripts: The host's files.
        setup: The host's installation.
        capabilities: What it can do, of the module of that name; claims all without one.
    """

    capabilities: Capabilities
    dialect: Dialect
    transcripts: Transcripts
    setup: Setup

    def __init__(self, name: str, package: str, *, has_hooks: bool = True) -> None:
        self.name = name
        self.memory_field = member_name(name)
        self.package = package
        self.has_hooks = has_hooks

    if not TYPE_CHECKING:  # a checker would take every name for an attribute

        def __getattr__(self, part: str) -> object:
            default = _PARTS.get(part)
            if default is None:
                raise AttributeError(part)
            module = f"{self.package}.{part}"
            try:
                # `importlib` would load `warnings` with every hook call.
                found = getattr(__import__(module, fromlist=(part,)), part.upper())
            except ModuleNotFoundError as error:
                if error.name != module or (part == "dialect" and self.has_hooks):
                    raise
                found = default()
            setattr(self, part, found)
            return found


_PARTS = {
    "dialect": Dialect,
    "transcripts": Transcripts,
    "setup": Setup,
    "capabilities": Capabilities,
}
