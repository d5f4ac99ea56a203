"""The port of every backend: what is stored about agents, and who may change it.

`ultramon.testing.contract.backend` checks each sentence here against an implementation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from ultramon.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ultramon.errors import StateError, UltramonError
    from ultramon.state.history import HistoryPoint
    from ultramon.state.record import StateRecord
    from ultramon.system.processes import MachineIdentity

    Build = Callable[[StateRecord | None, int], tuple[StateRecord, list[dict[str, Any]]]]
    Follow = Callable[[list[dict[str, Any]]], list[dict[str, Any]]]


class StoredAgent(NamedTuple):
    """One agent as a backend holds it.

    Either ``record`` or ``problem`` is set: a state that cannot be read is listed, not hidden.
    """

    agent_id: str
    record: StateRecord | None
    heartbeat_at: float | None
    """Epoch seconds; None when the agent never beat."""
    problem: StateError | None = None


class EventPage(NamedTuple):
    """A stretch of the event log."""

    events: list[dict[str, Any]]
    cursor: str
    """Opaque; continue from here. Behind it no event can appear later."""
    cursors: list[str]
    """The cursor behind each event, so that a reader of pages can stop at any of them."""


class Changes(NamedTuple):
    """The agents of a run that changed since the last look."""

    changed: list[StoredAgent]
    """Agents with another stored state than before, unreadable ones with their problem.

    Their ``heartbeat_at`` may be None: `heartbeats` has it.
    """
    removed: list[str]
    """Agents that are no longer stored."""
    heartbeats: Mapping[str, float]
    """Epoch seconds of the last beat of every stored agent, of all runs.

    Valid until the next look with the same marks, which may update it. Beats may be looked up when
    they are asked for: an agent that is not judged by its beat costs nothing.
    """


class Subscription(NamedTuple):
    """What a consumer of events stored when it last acknowledged."""

    cursor: str | None
    """Behind the last acknowledged event; None before the first."""
    memory: dict[str, Any]
    """Stored with the cursor; JSON values only."""


class Claim(NamedTuple):
    """A successor's claim of a handoff that no stored state confirms yet."""

    handoff_id: str
    agent_id: str
    """The agent that handed off."""
    successor_id: str
    claimed_at: float
    """Epoch seconds."""
    claimant: str | None
    """The claiming process, by `ultramon.backends.lease_holder.name_holder`; None = unknown."""
    number: int
    """Counts the claims of this handoff, from 1."""
    handoff_ready: dict[str, Any] | None
    """The last event that offered the handoff; None when it is not stored."""


class Save(NamedTuple):
    """The arguments of `Backend.record`."""

    record: StateRecord
    events: Sequence[dict[str, Any]]
    durable: bool


class Backend(Protocol):
    """Where states, heartbeats, events and claims are kept.

    Safe to use from several threads and processes. Records are passed by value: a backend keeps no
    reference to a record it was passed, and returns a fresh one each time.
    """

    url: str
    """The URL of the same store for `open_backend`, without its password.

    A backend whose URL has one keeps the whole as ``whole_url``, for child processes.
    """

    def start_agent(
        self, agent_id: str, build: Build, *, takeover: bool, now: float, machine: MachineIdentity
    ) -> bool:
        """Give an agent to a new owner and store its first state, as one step.

        The new owner's generation is one more than the stored one (1 for a new agent); from then
        on every write of an older generation fails. A state with a ``continues_handoff_id``
        confirms the agent's claim of that handoff, in the same step.

        Args:
            agent_id: The agent.
            build: Called with the stored state (None for a new agent or an unreadable state, which
                is set aside) and the new generation; returns the first state and events. A backend
                may call it again, if the agent was not new after all: the last result counts.
            takeover: Take the agent even from an owner that provably lives.
            now: Epoch seconds.
            machine: Of the caller, to judge whether the present owner lives.

        Returns:
            Whether the events are stored, as for `record`.

        Raises:
            AgentAlreadyRunningError: The owner provably lives and ``takeover`` is false.
            HandoffTakenError: The handoff that the state continues is claimed by another agent,
                or its claim was released; nothing changed.
            StateSchemaError: A newer ultramon wrote the stored state.
            StateError: The store refused; nothing changed.
        """

    def record(
        self, record: StateRecord, events: Sequence[dict[str, Any]], *, durable: bool
    ) -> bool:
        """Store a state, and the events that led to it, as one step.

        Never creates an agent for a writer that was fenced. Each event is stored once per
        `ultramon.state.event_keys.event_key`, however often it is passed.

        Args:
            record: The state, with its generation. Its ``seq`` rises with every write.
            events: Events not stored yet, oldest first.
            durable: The state must survive a power cut; events always do.

        Returns:
            True when the events are stored. False when only they could not be stored in time:
            then the state was stored with them in ``pending``, and they must be passed again.

        Raises:
            FencedError: Another generation holds the agent; nothing changed.
            StateSchemaError: A newer ultramon wrote the stored state; nothing changed.
            StateWriteError: The store refused.
        """

    def heartbeat(self, beats: Sequence[tuple[str, int]], now: float) -> list[str]:
        """Store heartbeats, as (agent id, generation). Cheap, and lost in a power cut.

        Returns:
            The ids that another generation holds, or that are not stored; their beat is refused.

        Raises:
            StateWriteError: The store refused.
        """

    def load(self, agent_id: str) -> StoredAgent:
        """Return one agent. A pure read: nothing about the agent changes.

        Raises:
            AgentNotFoundError: There is none.
            StateCorruptError: Its state cannot be read.
        """

    def history(self, agent_id: str) -> list[HistoryPoint]:
        """Return the last readings of an agent, oldest first, at most 64, for what draws them.

        Each stored state adds its reading where that is new; nothing new is no point, and neither
        is a share without tokens. Of more readings those stay that show every epoch as a whole.
        They may be lost in a power cut.

        Args:
            agent_id: The agent.

        Returns:
            Nothing where there is none, where it cannot be read, and of an unknown agent.

        Raises:
            StateError: The whole store could not be asked, as a database that is away.
        """

    def list_agents(self, run: str | None = None) -> list[StoredAgent]:
        """Return all agents of a run (None = of all runs), unreadable ones with their problem."""

    def append_events(
        self, events: Sequence[dict[str, Any]], records: Sequence[StateRecord] = ()
    ) -> None:
        """Store events without a state, e.g. verdicts; each once per key.

        Args:
            events: Oldest first.
            records: States of their agents, as far as the caller has them, for the notices of a
                backend that keeps registrations.

        Raises:
            StateWriteError: The store refused; nothing was stored.
        """

    def events(self, after: str | None = None, limit: int = 500) -> EventPage:
        """Return events in commit order, none skipped however late its writer commits.

        Args:
            after: A cursor from an earlier page, None = from the beginning.
            limit: At most so many.

        Raises:
            ConfigurationError: The cursor is not one of this backend.
        """

    def committed_events(
        self, after: str | None = None, *, run: str | None = None, agent_id: str | None = None
    ) -> EventPage:
        """Return every event that is stored now, also those that `events` withholds.

        `events` withholds an event as long as another one may still appear before it, e.g. while a
        program has an older transaction open. Here one may still appear before an event that was
        returned. The order is that of `events`, and the cursors can be passed to it.

        Args:
            after: As for `events`.
            run: Only events of this run; None = of all runs.
            agent_id: Only events of this agent; None = of all agents.

        Raises:
            ConfigurationError: The cursor is not one of this backend.
        """

    def append_following(self, agent_id: str, follow: Follow) -> None:
        """Store events that follow from all that is stored about an agent, as one step.

        No start of this agent and no other such step about it comes between the reading and the
        writing. Events that wait in its state are stored first.

        Args:
            agent_id: The agent, whether it has a state or not.
            follow: Called with the events of the agent, as `committed_events` returns them; returns
                the events to store, of this agent, perhaps none. It may be called again: the last
                result counts.

        Raises:
            StateWriteError: The store refused; nothing was stored.
        """

    def changes(self, run: str | None, seen: dict[str, Any]) -> Changes:
        """Return what changed since the last look; unchanged states are not read.

        Of a record only the attributes that `ultramon.state.record_head` names need be decoded at
        once: another one may be decoded when it is used, and raise `StateCorruptError` then.

        Args:
            run: Only agents of this run; None = of all runs.
            seen: Empty at first; the backend keeps its marks in it between calls.
        """

    def change_mark(self) -> object:
        """Return a cheap value that differs when an event may have been stored meanwhile."""

    def subscribe(
        self, name: str, holder: str, *, now: float, lease_seconds: float
    ) -> Subscription | None:
        """Become, or stay, the one holder of a consumer name for so long.

        A holder that has provably ended, as `ultramon.backends.lease_holder.is_gone` decides, is
        replaced at once; any other one keeps the name until its lease is over, by a clock that is
        never set: see `ultramon.backends.queue.Queue`.

        Args:
            name: The consumer; its cursor and memory belong to the name, not to the holder.
            holder: The caller, by `ultramon.backends.lease_holder.name_holder`; unique per fleet
                object.
            now: Epoch seconds.
            lease_seconds: How long no other living holder gets the name; each call renews it.

        Returns:
            None while another holder's lease runs.
        """

    def acknowledge(self, name: str, holder: str, cursor: str, memory: dict[str, Any]) -> bool:
        """Store a consumer's cursor and memory durably.

        Returns:
            False, and nothing is stored, when the holder does not have the name any more.
        """

    def unsubscribe(self, name: str, holder: str) -> None:
        """End the lease; cursor and memory stay. Does nothing when another holder has it."""

    def put_request(self, agent_id: str, request: dict[str, Any] | None) -> None:
        """Leave a request for an agent's owner, replacing an older one; None withdraws it.

        Raises:
            AgentNotFoundError: There is no such agent.
            StateWriteError: The store refused.
        """

    def get_request(self, agent_id: str) -> dict[str, Any] | None:
        """Return the request for an agent; None without one. Cheap enough for each second."""

    def claim_handoff(
        self,
        handoff_id: str,
        agent_id: str,
        successor_id: str,
        *,
        now: float,
        claimant: str | None = None,
    ) -> str:
        """Claim a handoff; the first successor wins, and its id is returned.

        The claim is pending until `start_agent` confirms it. Its holder may repeat it while it is
        pending; the last time and claimant count. A released handoff is free again.

        Args:
            handoff_id: The handoff.
            agent_id: The agent that left it.
            successor_id: The agent that is to continue it.
            now: Epoch seconds.
            claimant: The claiming process, by `ultramon.backends.lease_holder.name_holder`; None =
                unknown, e.g. on a machine without ultramon.
        """

    def pending_claims(self) -> list[Claim]:
        """Return the claims, of all runs, that are neither confirmed nor released."""

    def settle_claim(self, claim: Claim, handoff_ready: dict[str, Any] | None) -> bool:
        """End a pending claim: release it and offer the handoff again, or confirm it.

        Args:
            claim: As `pending_claims` returned it.
            handoff_ready: The event that offers the handoff again, stored in the same step, under a
                key of its own; None = the successor has begun, the claim is confirmed.

        Returns:
            False, and no event is stored, when this claim is not pending any more, or when the
            successor's stored state continues the handoff: then it is confirmed instead.

        Raises:
            StateWriteError: The store refused; nothing changed.
        """

    def prune(
        self,
        *,
        agents_before: float,
        events_before: float,
        now: float,
        machine: MachineIdentity,
        dry_run: bool,
    ) -> list[str]:
        """Delete ended and lost agents, and events, from before a time.

        Lost is an agent by `ultramon.state.liveness.judge`: its process is gone, or it was silent
        beyond its own limit. An agent that starts again meanwhile stays: each is judged once more
        in the step that deletes it. An owner that lives after all starts again by itself.

        Args:
            agents_before: Epoch seconds; the last activity of an ended agent, and of a lost one
                also its last beat, are older.
            events_before: Epoch seconds.
            now: Epoch seconds.
            machine: Of the caller, to judge whether an agent lives.
            dry_run: Delete nothing.

        Returns:
            The ids of the agents deleted (or that would be, with ``dry_run``).
        """

    def close(self) -> None:
        """Release what is held open. The backend can be used again afterwards."""


@runtime_checkable
class RecordsTogether(Protocol):
    """An optional part of a backend in which one step for many states is cheaper than many steps.

    Such a store is a database: its states are read through it alone, so they are not rewritten
    every half minute only to look fresh.
    """

    def record_together(self, saves: Sequence[Save]) -> list[UltramonError | None]:
        """Do what `Backend.record` does, for several agents in as few steps as possible.

        Args:
            saves: One for each agent. If one is durable, all are.

        Returns:
            For each the error that `Backend.record` would raise; None when it is stored. A refusal
            keeps none of the others back.

        Raises:
            StateWriteError: The store refused; all of them may be passed again.
        """


def require_part(backend: object, name: str, kept: str) -> Any:
    """Return an optional part of a backend, such as its ``queue``.

    Args:
        backend: A backend, or an object that is none.
        name: The attribute.
        kept: What a backend with this part keeps, for the error.

    Raises:
        ConfigurationError: It has none.
    """
    part = getattr(backend, name, None)
    if part is None:
        raise ConfigurationError("backend", type(backend).__name__, f"one that keeps {kept}")
    return part
