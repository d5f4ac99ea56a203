"""`ultramon on`: the commands of a person at events, tried and listed."""

from __future__ import annotations

import shlex

import click

from ultramon.cli.exit_codes import CommandFailed, ExitCode
from ultramon.cli.output import print_result, say
from ultramon.cli.selection import chosen_directory, json_option, state_dir_option
from ultramon.notices.commands import EVENTS, read_commands, sample_values


@click.command("test", epilog="Example: ultramon on test critical")
@click.argument("event", type=click.Choice([*EVENTS]))
@state_dir_option()
@json_option
def run_test(*, event: str, state_dir: str | None, json: bool) -> ExitCode:
    """Run the command of EVENT now, with sample values.

    As it would be run at the event itself: with the same environment, and ended after its seconds.
    Fails when the command does.
    """
    from ultramon.fleet.event_commands import run_command
    from ultramon.state.command_runs import StoredRuns, commands_key
    from ultramon.system.clock import SYSTEM_CLOCK

    commands, path = read_commands()
    if event not in commands:
        example = f'on.{event}.run = ["notify-send", "{{label}}", "{{percent}} %"]'
        raise CommandFailed(f"no command is set for {event}; in ultramon.toml: {example}")
    command, values = commands[event], sample_values(event)
    directory = chosen_directory(state_dir)
    end = run_command(command, values, directory)
    StoredRuns(directory, commands_key(path)).add(
        event, ended_at=SYSTEM_CLOCK.now(), problem=end.problem
    )
    arguments = command.arguments(values)
    facts = {
        "event": event,
        "file": path,
        "arguments": arguments,
        "exitCode": end.code,
        "problem": end.problem,
        "seconds": round(end.seconds, 3),
    }
    result = end.problem or f"ended after {end.seconds:.2f} s"
    print_result(facts, shlex.join(arguments), result, as_json=json)
    return ExitCode.FAILURE if end.problem else ExitCode.OK


@click.command("list", epilog="Example: ultramon on list")
@state_dir_option()
@json_option
def list_commands(*, state_dir: str | None, json: bool) -> None:
    """List the commands that are set here, and what each did last."""
    from ultramon.state.command_runs import CommandRuns, StoredRuns, commands_key

    commands, path = read_commands()
    runs = StoredRuns(chosen_directory(state_dir), commands_key(path)).read() if commands else {}
    rows, lines = [], []
    width = max(map(len, commands), default=0)
    for name, command in commands.items():
        found = runs.get(name, CommandRuns())
        rows.append({"event": name, "run": [*command.run], **found.to_json()})
        lines.append(f"{name:<{width}}  {shlex.join(command.run)}: {found.words()}")
    print_result({"file": path or None, "commands": rows}, *lines, as_json=json)
    if not commands:
        say("no command is set: [on] in ultramon.toml")
