"""The status line as a program: takes the host's figures, and shows how full the window is.

Standard library only. It runs in interactive hosts only, for the main agent only. A host says in
a `StatusLine` what its payload means.
"""

from __future__ import annotations

import os
import time

from ultramon.context.level_words import brief_level_words, share_of
from ultramon.errors import UltramonError
from ultramon.hosts.calls.hosted_agent import WAITING
from ultramon.hosts.calls.payload import decode_payload, read_bounded
from ultramon.hosts.calls.store import HookStore
from ultramon.hosts.calls.switches import is_left_to_relay, is_off, state_directory
from ultramon.hosts.status_line.parts import (
    budget_part,
    cache_part,
    continue_part,
    cost_part,
    join_parts,
    subagent_part,
)
from ultramon.hosts.transcripts.records import LastReading
from ultramon.state.plan_limits import brief_words
from ultramon.state.runway import Runway
from ultramon.state.usage_percent import usage_percent
from ultramon.system.counts import short_tokens
from ultramon.system.ids import check_agent_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from ultramon.hosts.calls.hosted_agent import HostedAgent
    from ultramon.hosts.port import HookEvent, Host
    from ultramon.hosts.resident.forwarder import Unanswered
    from ultramon.state.plan_limits import AccountPlan, PlanLimit
    from ultramon.state.record import StateRecord

STATUS_LINE = "statusLine"
INSIDE = "ULTRAMON_STATUS_LINE"
"""Set for a chained status line: one that runs ultramon's must not be run by it in turn."""
CHAINED_SECONDS = 5.0
"""How long another tool's status line may take; the host itself gives up on slow ones."""
_NO_READING = "ctx –"
_CHAINING, _SHOWING = ("chained", "both"), ("own", "both")
_BAR_CELLS = 10
_COLOURS = {"prepare_handoff": "33", "force_return": "31"}


class StatusLine:
    """What the payload of a host's status line means.

    Attributes:
        host: The host.
        begins_agents: Whether a session that no hook has reported becomes an agent.
    """

    host: Host
    begins_agents = True

    def read_event(self, fields: dict[str, Any], environ: Mapping[str, str]) -> HookEvent:
        """Return session, transcript and directory.

        Raises:
            ValueError: It names none.
        """
        return self.host.dialect.read_event(fields, environ)

    def stated_window(
        self, model: str | None, window: dict[str, Any], tail: LastReading | None
    ) -> tuple[str | None, object]:
        """Return a model, and the window that the host works with for it, in tokens.

        Args:
            model: The one that the payload names.
            window: As for `count_tokens`.
            tail: As for `count_tokens`.
        """
        return model, window.get("context_window_size")

    def count_tokens(self, window: dict[str, Any], tail: LastReading | None) -> int | None:
        """Return the host's own count of the window now, where nothing newer is written down.

        Args:
            window: The payload's ``context_window``.
            tail: What the end of the transcript says; None = it cannot be read.

        Returns:
            Tokens, 0 before the first reply; None = the transcript says it.
        """
        raise NotImplementedError

    def read_limits(self, fields: dict[str, Any], at: float) -> list[PlanLimit]:
        """Return the limits of the account's plan, as they were at a time, epoch seconds."""
        return []

    def main(
        self,
        argv: list[str],
        environ: Mapping[str, str] = os.environ,
        *,
        unanswered: Unanswered | None = None,
    ) -> int:
        """Take one call and print the line; see `run`."""
        return run(self, argv, environ, unanswered=unanswered)


def run(
    line: StatusLine,
    argv: list[str],
    environ: Mapping[str, str] = os.environ,
    *,
    unanswered: Unanswered | None = None,
) -> int:
    """Take one call of the host and print the line; never fails.

    Args:
        line: Whose it is.
        argv: The program, and the path of the installed choices.
        environ: The host's environment.
        unanswered: What the forwarder left of this call, where a resident was installed.

    Returns:
        0.
    """
    if len(argv) < 2 or INSIDE in environ or is_left_to_relay(environ, argv[1]):
        return 0
    data, _ = read_bounded(0, unanswered)
    directory = state_directory(environ, argv[1])
    store = HookStore(line.host, directory, argv[1], environ, event=STATUS_LINE, now=time.time())
    chained = chained_line(store)
    shown = b"" if chained is None else _run(chained, data, store)
    own = b""
    if not is_off(environ):
        try:
            fields = decode_payload(data)
            event = line.read_event(fields, environ)
            tail = read_tail(line.host, event.transcript_path)
            plan = take_plan(line, fields, tail, store)
            own = show(take(line, event, fields, tail, store), store, fields, plan)
        except (UltramonError, OSError, ValueError) as error:
            store.fail("", f"{type(error).__name__}: {error}")
    lines = shown.rstrip(b"\n") + b"\n" if shown.strip() else b""
    lines += own
    if lines:
        os.write(1, lines)
    return 0


def chained_line(store: HookStore) -> dict[str, Any] | None:
    """Return another tool's status line that is to be shown too, or instead."""
    installed = store.installed
    return installed.status_line_chained if installed.status_line_show in _CHAINING else None


def show(
    record: StateRecord | None,
    store: HookStore,
    fields: dict[str, Any],
    plan: AccountPlan | None,
) -> bytes:
    """Return ultramon's own line as it is printed; empty where it is not to be shown.

    Args:
        record: The agent; None = there is none yet.
        store: Where the agents are.
        fields: The payload.
        plan: The account's limits, see `take_plan`.
    """
    if store.installed.status_line_show not in _SHOWING:
        return b""
    if record is None:
        return f"{_NO_READING}\n".encode()
    parts: dict[str, Callable[[], Sequence[str]]] = {
        "context": lambda: [write_line(record, color="NO_COLOR" not in store.environ)],
        "continue": lambda: [continue_part(record)],
        "subagents": lambda: [subagent_part(store, record.agent_id)],
        "cost": lambda: [cost_part(fields)],
        "budget": lambda: budget_part(store, record),
        "plan": lambda: brief_words(plan, store.now) if plan is not None else [],
        "cache": lambda: [cache_part(fields, store.now)],
    }
    line = join_parts(parts, store.installed.status_line_parts, store.environ)
    return line.encode("utf-8") + b"\n" if line else b""


def take_plan(
    line: StatusLine, fields: dict[str, Any], tail: LastReading | None, store: HookStore
) -> AccountPlan | None:
    """Keep the limits of the account's plan; return them as they are known from all its sessions.

    Args:
        line: Whose it is.
        fields: The payload.
        tail: What the end of the transcript says: the limits are as old as the last reply.
        store: Where the agents are.
    """
    at = None if tail is None or tail.report is None else tail.report.at
    return store.learn_plan(line.read_limits(fields, store.now if at is None else at))


def take(
    line: StatusLine,
    event: HookEvent,
    fields: dict[str, Any],
    tail: LastReading | None,
    store: HookStore,
) -> StateRecord | None:
    """Store what is new about the session; return the agent's state as it is then.

    Args:
        line: Whose it is.
        event: The call.
        fields: Its payload.
        tail: What the end of the transcript says, see `read_tail`.
        store: Where the agents are.
    """
    agent_id = check_agent_id(event.session_id)
    stored = store.find(agent_id)
    if stored is None and not line.begins_agents:
        return None
    reported, window = fields.get("model"), fields.get("context_window")
    name = reported.get("id") if isinstance(reported, dict) else None
    model = _full_name(name if isinstance(name, str) else None, stored.model if stored else None)
    window = window if isinstance(window, dict) else {}
    named, window_tokens = line.stated_window(model, window, tail)
    if named and type(window_tokens) is int and window_tokens > 0:
        store.learn_window(named, window_tokens)
    tokens = line.count_tokens(window, tail)

    def has_news(agent: HostedAgent) -> bool:
        if store.windows().get(model or "") not in (None, agent.memory.window_tokens):
            return True
        if tail is not None and _was_stopped(agent, tail):
            return True
        if tail is not None and agent.lacks_compaction(tail):
            return True
        if tokens or tail is None:
            return tokens != agent.memory.status_tokens
        if tail.report is None or tail.report.at == agent.record.measured_at:
            return False
        return tail.report.at is not None and not agent.gauge.is_stale(tail.report.at, tail.place)

    def change(agent: HostedAgent) -> None:
        if agent.record.generation == 0:
            agent.start(agent_id, None, event.cwd)
        agent.set_model(model)
        if tail is not None:
            agent.follow_compaction(tail)
            agent.take(tail.report, tail.place)
            if _was_stopped(agent, tail):
                agent.wait()
        if tokens is not None and tokens != agent.memory.status_tokens:
            agent.gauge.take(tokens, 0, store.now)
            agent.memory.status_tokens = tokens

    if stored is not None and not has_news(store.hosted(stored)):
        return stored
    agent = store.update(agent_id, change, is_activity=False)
    return None if agent is None else agent.record


def read_tail(host: Host, path: str | None) -> LastReading | None:
    """Return what the end of a session's transcript says; None when it cannot be read."""
    try:
        return host.transcripts.read_last_reading(path, is_subagent=False) if path else None
    except (OSError, ValueError):
        return None


def _full_name(reported: str | None, known: str | None) -> str | None:
    """Return a model's name with the suffix for its window, which only a transcript keeps."""
    is_same = known and reported and known.partition("[")[0] == reported
    return known if is_same else reported


def _was_stopped(agent: HostedAgent, tail: LastReading) -> bool:
    """Return whether the turn ended without a hook, so that only the status line can note it.

    A person interrupted the agent, or the host refused its request.
    """
    at, record = tail.stopped_at, agent.record
    is_at_prompt = record.phase == WAITING and not agent.memory.waits_for
    return at is not None and at > record.last_activity and not is_at_prompt


def write_line(record: StateRecord, *, color: bool) -> str:
    """Return one short line: bar, percent, tokens, level, and the turns that remain."""
    limit, ratio = record.context_limit, record.usage_ratio
    if limit is None or ratio is None:
        held = short_tokens(record.estimated_tokens)
        return f"ctx {held} tokens" if record.measured_at else _NO_READING
    cells = min(_BAR_CELLS, round(ratio * _BAR_CELLS))
    line = f"{'█' * cells}{'░' * (_BAR_CELLS - cells)} {usage_percent(record)}%"
    code = _COLOURS.get(record.action)
    if color and code:
        line = f"\x1b[{code}m{line}\x1b[0m"
    line = f"ctx {line} {short_tokens(record.estimated_tokens)}/{short_tokens(limit)}"
    line += f" · {brief_level_words(record, with_limit=False)}" if code else ""
    rungs = (record.forecast or {}).get("rungs") or {}
    name = next(iter(rungs), "")
    runway = Runway.of(rungs.get(name))
    if runway is None:
        return line
    share = share_of(name, record.ladder, limit)
    return f"{line} · {runway.before(name if share is None else f'{name} {share.percent}%')}"


def _run(chained: dict[str, Any], data: bytes, store: HookStore) -> bytes:
    """Run the status line that was there before, as the host would; return what it shows."""
    import signal
    import subprocess

    command = chained.get("command")
    if not isinstance(command, str):
        return b""
    process = subprocess.Popen(
        ["/bin/sh", "-c", command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**store.environ, INSIDE: "1"},
        start_new_session=True,
    )
    try:
        shown, _ = process.communicate(data, timeout=CHAINED_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        store.fail("", "the chained status line is too slow")
        shown, _ = process.communicate()
    return shown
