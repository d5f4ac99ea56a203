"""`ultramon queue clear`: cancels the notices about an agent that was cleared."""

from __future__ import annotations

import click

from ultramon.cli.caller import caller_id
from ultramon.cli.output import plural, print_result
from ultramon.cli.selection import find_agent_id, open_store, store_options


@click.command("clear", epilog="Example: ultramon queue clear scout-2")
@click.argument("agent")
@store_options
def command(*, agent: str, state_dir: str | None, json: bool) -> None:
    """Cancel the stale notices about an agent that was cleared.

    Notices about it that have not been received are cancelled, and earlier readings lead to no new
    ones. The agent itself is not touched: its own monitor or hooks begin the new window. Messages
    that it has sent stay. AGENT is an id, the beginning of one, or a label.

    Where ULTRAMON_AGENT_ID names the caller, only the agent itself and its direct parent may.
    """
    from ultramon.routing import cancel_notices

    backend = open_store(state_dir)
    agent_id = find_agent_id(backend, agent)
    cancelled = cancel_notices(agent_id, caller_id(), backend=backend)
    in_flight = f", {cancelled.in_flight} in flight" if cancelled.in_flight else ""
    print_result(
        {"agentId": agent_id, "cancelled": cancelled.deleted, "inFlight": cancelled.in_flight},
        f"Cleared {agent_id}: {plural(cancelled.deleted, 'notice')} cancelled{in_flight}",
        as_json=json,
    )
