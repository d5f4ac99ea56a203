"""Messages that wait for a session or subagent, as reminders in its conversation: when and how.

Standard library only; loaded when something waits. A line is made of fixed words, numbers, times
and agent ids, whatever the text of a message is.
"""

from __future__ import annotations

import time

from ultramon.backends.local.hook_inbox import HookInbox
from ultramon.errors import StateCorruptError, StateError
from ultramon.notices import texts
from ultramon.notices.message_rules import DELIVERIES
from ultramon.system.ids import is_agent_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ultramon.hosts.calls.hosted_agent import HostedAgent
    from ultramon.hosts.calls.store import HookStore
    from ultramon.notices.message import Message

MAX_NOTICES = 10
"""In one answer; none is longer than 400 characters, so that together they stay below 8 kB."""
_MAX_NAMED_SENDERS = 3

URGENT, IMPORTANT, _SEQUENTIAL = DELIVERIES


def due_deliveries(*, is_prompt: bool, has_prompts: bool) -> tuple[str, ...]:
    """Return the modes of the messages that may be delivered now.

    A hook cannot interrupt a reply: its next moment is behind the reply and the calls in it, which
    is all that an important notice waits for. So only the sequential ones wait for a prompt.

    Args:
        is_prompt: Whether a prompt was submitted; else a tool has run.
        has_prompts: Whether a person will submit prompts. Where none does, in a headless session
            and for a subagent, the next tool call may be the last chance to deliver anything.
    """
    return DELIVERIES if is_prompt or not has_prompts else (URGENT, IMPORTANT)


class Delivery:
    """What one hook call delivers of the messages that others have queued for its agent.

    Args:
        store: Where the agents are.
        agent: The agent, as this call has stored it.
        is_prompt: Whether a prompt is answered; else tool calls.
    """

    def __init__(self, store: HookStore, agent: HostedAgent, *, is_prompt: bool) -> None:
        self._store = store
        self._agent_id = agent.record.agent_id
        self._session_id = store.agent_of(agent.record.session_id)
        self._is_prompt = is_prompt
        has_prompts = agent.has_prompts()
        self._inbox = HookInbox(
            store.directory.path,
            self._agent_id,
            due_deliveries(is_prompt=is_prompt, has_prompts=has_prompts),
            due_deliveries(is_prompt=False, has_prompts=has_prompts),
            dict(agent.memory.told_of_messages),
        )
        self._refused: dict[int, str] = {}
        self._is_claimed = False

    def lines(self) -> list[str]:
        """Claim what may be delivered now; return it as lines, none when the journal is busy."""
        inbox, now = self._inbox, time.time()
        try:
            inbox.claim(MAX_NOTICES, now, also_later=self._is_prompt)
        except StateError as error:
            from ultramon.hosts.failure_log import NOTICES_WAIT

            problem = f"{NOTICES_WAIT}{error}"
            if isinstance(error, StateCorruptError):
                problem = inbox.journal.set_aside(error)
            self._fail(problem)
            return []
        self._is_claimed = True
        lines = []
        for notice in inbox.notices:
            line = write_line(notice, self._session_id, now)
            if line is None:
                # A line is made of facts alone; the text of a message is never repeated.
                self._refused[notice.id] = "its facts are not those of a notice"
            else:
                lines.append(line)
        if inbox.senders:
            lines.append(write_waiting(inbox.senders, self._agent_id))
        return lines

    def acknowledge(self) -> None:
        """Acknowledge delivered notices; call it when the host has the answer."""
        inbox = self._inbox
        try:
            if self._is_claimed:
                if inbox.senders:
                    # Before the flag goes: a kill in between repeats the notice.
                    self._store.update(self._agent_id, self._remember)
                inbox.acknowledge(self._refused, time.time())
        except StateError as error:
            self._fail(f"delivered notices will be repeated: {error}")
        finally:
            inbox.journal.close()

    def put_back(self) -> None:
        """Leave what was claimed to the next call; for when the host did not get the answer."""
        try:
            if self._is_claimed:
                self._inbox.put_back(time.time())
        except StateError as error:
            self._fail(f"notices wait for the end of their lease: {error}")
        finally:
            self._inbox.journal.close()

    def _remember(self, agent: HostedAgent) -> None:
        agent.memory.told_of_messages = self._inbox.notified

    def _fail(self, problem: str) -> None:
        self._store.fail(self._agent_id, problem)


def write_line(notice: Message, session_id: str, now: float) -> str | None:
    """Return a notice of ultramon as a line, made of its facts.

    Args:
        notice: As it was claimed.
        session_id: The agent that its recipient's session is.
        now: Epoch seconds.

    Returns:
        None for facts that are not those of a notice about its sender.
    """
    facts, about = notice.facts, notice.sender
    if about is None or not is_agent_id(about) or facts.get("agentId") != about:
        return None
    # The host knows a subagent of the session by the last part of its id.
    name = about.removeprefix(f"{session_id}.")
    return texts.render(facts, notice.recipient, name=name, now=now)


def write_waiting(senders: dict[str | None, int], recipient: str) -> str:
    """Return the line about messages of others: who has sent them, and how many wait.

    Args:
        senders: How many by sender; None = a sender that is no agent.
        recipient: Whose they are.
    """
    # Their texts are not repeated: a message could hold instructions for the agent.
    count = sum(senders.values())
    origins = [name for name in senders if is_agent_id(name)][:_MAX_NAMED_SENDERS]
    others = len(senders) - len(origins)
    if origins and others:
        origins.append(f"{others:,} other{'s' if others > 1 else ''}")
    origin = f" from {', '.join(map(str, origins))}" if origins else ""
    many = count > 1
    return (
        f"[ultramon] {count:,} message{'s' if many else ''}{origin} wait{'' if many else 's'};"
        f" `ultramon queue messages {recipient}` shows {'them' if many else 'it'}."
    )
