"""`ultramon explain`: what an agent's percentage is made of."""

from __future__ import annotations

import click

from ultramon.cli.explanation import explain_stored
from ultramon.cli.output import print_json
from ultramon.cli.selection import chosen_directory, find_agent, open_screen_store, store_options
from ultramon.errors import AgentNotFoundError
from ultramon.system.terminal_text import sanitize


@click.command("explain", epilog="Example: ultramon explain scout-2")
@click.argument("agent")
@click.option(
    "--details",
    is_flag=True,
    help="Also limits considered, levels, settings, liveness, and how the window filled.",
)
@store_options
def command(*, agent: str, details: bool, state_dir: str | None, json: bool) -> None:
    """Explain what fills an agent's window.

    How full it is, what brought the tokens, and how far the next level is. The parts are estimated
    from its transcript, or are as the agent named them.

    AGENT is an id, the beginning of one, or a label; without such an agent the id of a transcript.
    """
    backend = open_screen_store(state_dir)
    try:
        stored = find_agent(backend, agent)
        history = backend.history(stored.agent_id)
    except AgentNotFoundError:
        # An agent of a host that reports nothing has a transcript, and no state.
        from ultramon.cli.transcript_list import find_in_transcripts

        found = find_in_transcripts(agent)
        if found is None:
            raise
        stored, history = found, []
    explanation = explain_stored(
        stored, chosen_directory(state_dir), history=history, for_people=not json, fills=True
    )
    if json:
        print_json(explanation.model_dump(mode="json", by_alias=True))
        return
    assert stored.record is not None
    if not details:
        from ultramon.cli.views.explain_screen import print_explanation

        print_explanation(stored.record, explanation)
        return
    from ultramon.cli.views.history_chart import draw_history

    lines = draw_history(history, explanation)
    click.echo(sanitize(f"{explanation}{lines}", keep_lines=True, max_chars=20_000), nl=False)
