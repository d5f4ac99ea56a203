"""`ultramon explain`: one screen that explains an agent's percentage."""

from __future__ import annotations

import click

from ultramon.cli.explanation import explain_stored
from ultramon.cli.output import print_json
from ultramon.cli.selection import chosen_directory, find_agent, open_store, store_options
from ultramon.system.terminal_text import sanitize


@click.command("explain", epilog="Example: ultramon explain scout-2")
@click.argument("agent")
@store_options
def command(*, agent: str, state_dir: str | None, json: bool) -> None:
    """Explain an agent's percentage.

    Where the tokens come from (last report, estimate since, calibration), which limits were
    considered and which one binds, how far the next rung is, how old each number is, and how the
    window filled until now.

    AGENT is an id, the beginning of one, or a label.
    """
    backend = open_store(state_dir)
    stored = find_agent(backend, agent)
    history = backend.history(stored.agent_id)
    directory = chosen_directory(state_dir)
    explanation = explain_stored(stored, directory, history=history, for_people=not json)
    if json:
        print_json(explanation.model_dump(mode="json", by_alias=True))
    else:
        from ultramon.cli.views.history_chart import draw_history

        lines = draw_history(history, explanation)
        click.echo(sanitize(f"{explanation}{lines}", keep_lines=True, max_chars=20_000), nl=False)
