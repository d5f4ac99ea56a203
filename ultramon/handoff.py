"""The handoff record for a successor, and the claim that exactly one successor wins."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

from pydantic import Field, PrivateAttr
from pydantic.alias_generators import to_camel

from ultramon.backends.lease_holder import name_holder
from ultramon.context.estimator import estimate_tokens
from ultramon.errors import HandoffTakenError, UltramonError
from ultramon.state.models import Model, state_of
from ultramon.state.prompt_text import section
from ultramon.state.record import StateRecord
from ultramon.state.stored_handoff import make_handoff
from ultramon.system.clock import SYSTEM_CLOCK
from ultramon.system.compact_json import dumps
from ultramon.system.git import read_status
from ultramon.system.ids import check_agent_id
from ultramon.system.processes import working_directory

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ultramon.backends.base import Backend
    from ultramon.system.clock import Clock

REASONS = (
    "threshold_warning",
    "threshold_critical",
    "task_complete",
    "clear",
    "context_overflow",
    "cancelled",
    "error",
    "lost",
)
MAX_NOTES_CHARS = 32_768
MAX_NOTES_BYTES = 64 * 1024
"""As stored: a state is read back up to 1 MiB, and a character takes up to 12 bytes there."""
MAX_LIST_ITEMS = 200
MAX_LIST_BYTES = 16 * 1024
DEFAULT_PROMPT_TOKENS = 1500

SUPERVISED = "ULTRAMON_SUPERVISED"
"""Set in the processes of `Fleet.supervise`."""
ASSIGNMENT = "ULTRAMON_ASSIGNMENT"
"""There: the place in the journal before the assignment."""

_GIT_SECONDS = 0.5
_MAX_DIRTY_FILES = 50

# Items of a list and characters of a text, from the fullest prompt to the barest.
_SIZES = ((200, 8000), (50, 4000), (20, 2000), (8, 800), (3, 200), (0, 0))
# Steps into those sizes: what is left to do keeps its size while the rest shrinks before it.
_CUTS = ((0, 0), (0, 1), (0, 2), (0, 3), (0, 4), (1, 4), (2, 4), (3, 4), (3, 5), (4, 5), (5, 5))


class Workspace(Model):
    """The place of the work."""

    cwd: str
    branch: str | None = None
    """None without a repository or with a detached head."""
    head: str | None = None
    dirty_files: tuple[str, ...] = ()


class Resume(Model):
    """How to continue the same session, where its host can."""

    command: str | None = None
    transcript: str | None = None


class HandoffTexts(TypedDict, total=False):
    """What an agent says to its successor in its own words; lists hold at most 200 texts.

    Attributes:
        notes: What was learned, free text; cut after 32,768 characters.
        next_step: What a successor should do first.
        constraints: What must not be done.
        decisions: What was decided.
        rejected: What was tried and given up.
        open_questions: What is not known.
        files_modified: Paths.
    """

    notes: str | None
    next_step: str | None
    constraints: Sequence[str]
    decisions: Sequence[str]
    rejected: Sequence[str]
    open_questions: Sequence[str]
    files_modified: Sequence[str]


TEXTS = tuple(HandoffTexts.__annotations__)


class HandoffRecord(Model):
    """Finished, half done and remaining work of an agent, and its notes.

    Lists of tasks are names of plan items. `claim` must win before a successor starts.
    """

    handoff_id: str
    agent_id: str
    run: str
    predecessor_id: str | None = None
    generation_count: Annotated[int, Field(ge=1)] = 1
    """1 for the first agent of a chain, +1 per successor."""
    epoch: Annotated[int, Field(ge=1)]
    reason: str
    goal: str | None = None
    constraints: tuple[str, ...] = ()
    completed: tuple[str, ...] = ()
    interrupted: tuple[str, ...] = ()
    """May be half done."""
    remaining: tuple[str, ...] = ()
    results: dict[str, str] = Field(default_factory=dict)
    """References to results, by task."""
    decisions: tuple[str, ...] = ()
    rejected: tuple[str, ...] = ()
    open_questions: tuple[str, ...] = ()
    next_step: str | None = None
    files_modified: tuple[str, ...] = ()
    workspace: Workspace | None = None
    resume: Resume | None = None
    notes: str | None = None
    tokens: Annotated[int, Field(ge=0)]
    created_at: datetime
    stored: Annotated[bool, Field(exclude=True)] = True
    """False only as `hand_off` returned it, for one that the store has not confirmed."""

    _backend: Backend | None = PrivateAttr(default=None)

    @classmethod
    def of(
        cls,
        record: StateRecord,
        tasks: list[dict[str, Any]],
        items: Iterable[str] = (),
        *,
        now: float,
        reason: str = "lost",
        suffix: str = "",
        **left: Any,
    ) -> HandoffRecord:
        """Make the record of an agent in one epoch, as `make_handoff` does.

        Args:
            record: The agent's last state.
            tasks: The plan as it was last saved, or the part of it that matters.
            items: The assigned items; those that are not in the plan remain.
            now: Epoch seconds.
            reason: As the attribute.
            suffix: Ends the id of a second record for the same epoch.
            **left: Further attributes.
        """
        said = {to_camel(name): value for name, value in left.items()}
        return cls.model_validate(
            make_handoff(record, tasks, items, now=now, reason=reason, suffix=suffix, left=said)
        )

    @property
    def left(self) -> list[str]:
        """The items that it leaves to a successor; half-done ones come first."""
        return [*self.interrupted, *self.remaining]

    def to_json(self) -> dict[str, Any]:
        """Return the record as it is stored in states and events."""
        return self.model_dump(mode="json", by_alias=True)

    def bind(self, backend: Backend) -> HandoffRecord:
        """Remember the store that keeps the claims of this record."""
        self._backend = backend
        return self

    def claim(
        self, successor_id: str, backend: Backend | None = None, *, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        """Take the work over; the first successor wins, in whichever process it is.

        A repeated claim under the same id succeeds. The claim is pending until the successor is
        stored with ``continues=`` this record; a fleet releases it when this process ends before
        that, or after ten minutes.

        Args:
            successor_id: The id of the agent that will do the work.
            backend: The store; None = the one this record came from.
            clock: For tests.

        Raises:
            HandoffTakenError: Another successor was first.
            InvalidAgentIdError: No agent can have that id.
            ValueError: The record was made from JSON, and no backend is given.
        """
        store = backend or self._backend
        if store is None:
            raise ValueError(
                f"the handoff of agent {self.agent_id} does not know its backend: "
                "pass backend=open_backend()"
            )
        holder = store.claim_handoff(
            self.handoff_id,
            self.agent_id,
            check_agent_id(successor_id),
            now=clock.now(),
            claimant=name_holder(),  # a fleet can prove its end, and offers the handoff again
        )
        if holder != successor_id:
            raise HandoffTakenError(self.agent_id, holder)

    def to_prompt(self, max_tokens: int = DEFAULT_PROMPT_TOKENS) -> str:
        """Render the record as Markdown for a successor's first message.

        Args:
            max_tokens: Longest text, in tokens of the most conservative family. Remaining work is
                cut last; the text counts everything left out.

        Returns:
            Facts in the words of the record. Its free text comes from another agent and is quoted:
            it is never an instruction of the host.
        """
        for left_to_do, rest in _CUTS:
            text = self._render(_SIZES[left_to_do], _SIZES[rest])
            # Every API refuses half a character, e.g. from a broken file name.
            text = text.encode("utf-8", "replace").decode()
            if estimate_tokens(text) <= max_tokens:
                return text
        # Even the barest form is too long.
        while text and (tokens := estimate_tokens(text)) > max_tokens:
            text = text[: min(len(text) - 1, len(text) * max(max_tokens, 0) // tokens)]
        return text

    def _render(self, left_to_do: tuple[int, int], rest: tuple[int, int]) -> str:
        first_items, first_chars = left_to_do
        items, chars = rest
        place = None
        if self.workspace is not None:
            place = self.workspace.cwd
            if self.workspace.branch or self.workspace.head:
                head = self.workspace.head or "no commit yet"
                place += f" ({self.workspace.branch or 'detached'} at {head})"
        dirty_files = self.workspace.dirty_files if self.workspace else ()
        resume = self.resume.command if self.resume else None
        results = tuple(f"{name}: {reference}" for name, reference in self.results.items())
        # Without a reading nothing was measured.
        place_in_window = f" at {self.tokens:,} tokens" if self.tokens else ""
        lines = [
            f"# Handoff from agent {self.agent_id}",
            "",
            f"It stopped{place_in_window} ({self.reason.replace('_', ' ')}); "
            f"items: {len(self.completed)} done, {len(self.interrupted)} perhaps half done, "
            f"{len(self.remaining)} left.",
        ]
        for title, value, size in (
            ("Goal", self.goal, first_chars),
            ("May be half done: check before going on", self.interrupted, first_items),
            ("Remaining", self.remaining, first_items),
            ("Constraints", self.constraints, first_items),
            ("Next step", self.next_step, first_chars),
            ("Decisions", self.decisions, items),
            ("Tried and rejected", self.rejected, items),
            ("Open questions", self.open_questions, items),
            ("Notes", self.notes, chars),
            ("Results", results, items),
            ("Completed", self.completed, items),
            ("Files modified", self.files_modified, items),
            ("Workspace", place, 500),
            ("Uncommitted files", dirty_files, items),
            ("Resume the same session with", resume, 500),
        ):
            lines += section(title, value, size)
        return "\n".join(lines) + "\n"


def bounded(texts: Mapping[str, Any]) -> dict[str, Any]:
    """Return `HandoffTexts` cut to the sizes that a state file allows, as attributes of a record.

    Raises:
        TypeError: There is no such text.
    """
    for name in texts:
        if name not in TEXTS:
            raise TypeError(f"a handoff has no {name!r}: its texts are {', '.join(TEXTS)}")
    return {
        name: bounded_text(value) if name in ("notes", "next_step") else bounded_list(value)
        for name, value in texts.items()
    }


def bounded_text(text: str | None) -> str | None:
    """Return free text cut to the size that a state file allows, with a mark at the cut."""
    if text is None:
        return None
    kept = text[:MAX_NOTES_CHARS]
    # In proportion, and again until it fits: characters take 1 to 12 bytes.
    while (size := len(dumps(kept))) > MAX_NOTES_BYTES:
        kept = kept[: len(kept) * MAX_NOTES_BYTES // size]
    if len(kept) == len(text):
        return text
    return f"{kept}\n… {len(text) - len(kept)} more characters were cut"


def bounded_list(values: Iterable[object]) -> tuple[str, ...]:
    """Return at most 200 texts, each cut to 1,000 characters, 16 KiB together as stored.

    Where some had to be left out, the last text says how many.
    """
    texts = [str(value)[:1000] for value in values]
    kept: list[str] = []
    size = 0
    for text in texts[:MAX_LIST_ITEMS]:
        size += len(dumps(text))
        if size > MAX_LIST_BYTES:
            break
        kept.append(text)
    if len(kept) < len(texts):
        kept[-1:] = [f"… and {len(texts) - len(kept) + 1} more that were cut"]
    return tuple(kept)


def look_at_workspace(cwd: str | None = None) -> Workspace:
    """Return the working directory, with branch, head and dirty files of a git repository."""
    cwd = cwd or working_directory() or "?"
    status = read_status(cwd, seconds=_GIT_SECONDS)
    if status is None:
        return Workspace(cwd=cwd)
    dirty = status.files[:_MAX_DIRTY_FILES]
    return Workspace(cwd=cwd, branch=status.branch, head=status.head, dirty_files=dirty)


def end_of_replaced(record: StateRecord, run: str, now: float) -> list[dict[str, Any]]:
    """Return the events that end an active life whose state an agent of another run replaces.

    Args:
        record: Its last state.
        run: Of the agent that replaces it.
        now: Epoch seconds.
    """
    n, reason = round(record.last_heartbeat * 1000), f"its id went on in run {run}"
    lost = record.event("agent_lost", at=now, n=n, outcome="lost", reason=reason)
    if state_of(record) is None:
        return [lost]
    handoff = HandoffRecord.of(record, record.tasks or [], now=now).to_json()
    return [record.event("handoff_ready", at=now, n=0, handoff=handoff), lost]


class HandedOffError(UltramonError, RuntimeError):
    """An adapter ended the run of an agent, as ``on_return`` asks; a successor can continue.

    Raised: By adapters of frameworks whose ``on_return`` ends a run, out of that run.

    Cure: Start a successor: ``create_context_monitor(continues=error.handoff)``.

    Attributes:
        agent_id: The agent.
        handoff: What it left.
    """

    def __init__(self, agent_id: str, handoff: HandoffRecord) -> None:
        self.agent_id = agent_id
        self.handoff = handoff
        super().__init__(
            f"agent {agent_id} was asked to return and left handoff {handoff.handoff_id}; "
            "start a successor with create_context_monitor(continues=error.handoff)"
        )
