"""What a conversation is given back after its compaction: pins, the last instruction, open tasks.

Standard library only; loaded after a compaction, where pins were installed.
"""

from __future__ import annotations

from ultramon.errors import StateError
from ultramon.state.pins import MAX_RULES_BYTES, UNREADABLE, Pins, cut_to, write_rules
from ultramon.state.stored_plan import open_tasks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ultramon.hosts.calls.hosted_agent import HostedAgent
    from ultramon.hosts.calls.store import HookStore
    from ultramon.state.record import StateRecord

_MAX_TASKS_BYTES = 1_000
_MAX_PROMPT_BYTES = 4_000


def write_pins(store: HookStore, agent: HostedAgent, project: str | None) -> str:
    """Return the text for an agent whose conversation was compacted; empty without anything.

    The open tasks have their share first, then the instruction; the rules have all that is left.

    Args:
        store: Where the agents are.
        agent: The agent.
        project: The project's directory, or None.
    """
    tasks = _write_tasks(agent.record)
    prompt = _write_prompt(agent)
    left_bytes = MAX_RULES_BYTES - len((tasks + prompt).encode("utf-8", "replace"))
    rules = _write_rules(store, agent, project, left_bytes)
    return "\n".join(part for part in (rules, prompt, tasks) if part)


def _write_rules(store: HookStore, agent: HostedAgent, project: str | None, left_bytes: int) -> str:
    record = agent.record
    try:
        pins = Pins(store.directory.path).of(
            project, (record.session_id, *agent.memory.predecessors)
        )
    except (OSError, StateError) as error:
        store.fail(record.agent_id, f"pins: {error}")
        return UNREADABLE
    return write_rules(pins, left_bytes, lambda problem: store.fail(record.agent_id, problem))


def _write_prompt(agent: HostedAgent) -> str:
    prompt = agent.memory.last_prompt
    if prompt is None or not prompt.text:
        return ""
    shown = cut_to(prompt.text, _MAX_PROMPT_BYTES, prompt.chars or len(prompt.text))
    return f"The user's last instruction, word for word:\n{shown}"


def _write_tasks(record: StateRecord) -> str:
    left = [f"- {name}" for name in open_tasks(record)]
    if not left:
        return ""
    total = max(record.tasks_total or 0, len(record.tasks or ()))
    lines = [f"Open tasks of the plan, {len(left):,} of {total:,}:"]
    size = 0
    for number, line in enumerate(left):
        size += len(line.encode("utf-8", "replace"))
        if size > _MAX_TASKS_BYTES:
            lines.append(f"- {len(left) - number:,} more")
            break
        lines.append(line)
    return "\n".join(lines)
