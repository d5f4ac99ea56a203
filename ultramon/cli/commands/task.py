"""`ultramon task`: the plan of an agent that works in a shell."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ultramon.cli.caller import agent_option, find_own_id
from ultramon.cli.exit_codes import CommandFailed, ExitCode, NotFound
from ultramon.cli.output import TASK_MARKS, field, plural, print_json, say
from ultramon.cli.selection import open_store, store_options
from ultramon.errors import AgentWorkError
from ultramon.stored_work.plan import add_tasks, change_plan, finish_task, start_task

if TYPE_CHECKING:
    from collections.abc import Callable

    from ultramon.state.record import StateRecord
    from ultramon.state.stored_plan import StoredPlan


@click.command("add", epilog="Example: ultramon task add parser.py lexer.py")
@click.argument("names", metavar="TASK...", nargs=-1, required=True)
@agent_option
@store_options
def add(
    *, names: tuple[str, ...], agent: str | None, state_dir: str | None, json: bool
) -> ExitCode:
    """Add tasks to the plan.

    A task that is there already is not added again.
    """
    return _change(
        agent,
        state_dir,
        json,
        "ultramon task add",
        lambda plan: f"{plural(add_tasks(plan, names), 'task')} added",
    )


@click.command("start", epilog="Example: ultramon task start parser.py")
@click.argument("name", metavar="TASK")
@agent_option
@store_options
def start(*, name: str, agent: str | None, state_dir: str | None, json: bool) -> ExitCode:
    """Begin a task, which is the current one then.

    A task that is not in the plan yet is added.
    """
    return _change(
        agent,
        state_dir,
        json,
        "ultramon task start",
        lambda plan: f"{start_task(plan, name)} is in progress",
    )


@click.command("done", epilog="Example: ultramon task done parser.py --result '12 tests pass'")
@click.argument("name", metavar="[TASK]", required=False)
@click.option("--result", metavar="TEXT", help="A reference to its result, e.g. a path.")
@agent_option
@store_options
def done(
    *,
    name: str | None,
    result: str | None,
    agent: str | None,
    state_dir: str | None,
    json: bool,
) -> ExitCode:
    """Mark a task as done; without TASK the current one."""
    return _change(
        agent,
        state_dir,
        json,
        "ultramon task done",
        lambda plan: f"{finish_task(plan, name, result)} is done",
    )


@click.command("list", epilog="Example: ultramon task list --agent scout-2")
@agent_option
@store_options
def list_tasks(*, agent: str | None, state_dir: str | None, json: bool) -> ExitCode:
    """List the tasks of an agent.

    `x` marks a task that is done, `>` one in progress, `!` one that may be half done. Any agent's
    plan can be listed, also one that its program keeps.
    """
    backend = open_store(state_dir)
    agent_id = find_own_id(backend, agent, "ultramon task list")
    record = backend.load(agent_id).record
    if record is None:
        raise CommandFailed(f"the state of agent {agent_id} cannot be read")
    if json:
        print_json(_to_json(record))
        return ExitCode.OK
    for task in record.tasks or ():
        result = f"  ({field(task['result'])})" if task.get("result") else ""
        click.echo(f"[{TASK_MARKS.get(task['status'], ' ')}] {field(task['name'])}{result}")
    say(_summary(record))
    return ExitCode.OK


def _change(
    agent: str | None,
    state_dir: str | None,
    json: bool,
    what: str,
    step: Callable[[StoredPlan], str],
) -> ExitCode:
    from ultramon.system.clock import SYSTEM_CLOCK

    backend = open_store(state_dir)
    agent_id = find_own_id(backend, agent, what)
    words: list[str] = []
    try:
        record = change_plan(
            backend, agent_id, SYSTEM_CLOCK.now(), lambda plan: words.append(step(plan))
        )
    except AgentWorkError as error:
        raise _as_failure(error) from error
    if json:
        print_json(_to_json(record))
    else:
        say(f"{words[0]}; {_summary(record)}")
    return ExitCode.OK


def _as_failure(error: AgentWorkError) -> click.ClickException:
    """Return an error with its own exit code."""
    if error.problem == "name":
        return click.UsageError(str(error))
    if error.problem == "no_task":
        return NotFound(f"{error}; see `ultramon task list`")
    return CommandFailed(str(error))


def _to_json(record: StateRecord) -> dict[str, Any]:
    return {
        "agentId": record.agent_id,
        "currentTask": record.current_task,
        "tasksCompleted": record.tasks_completed,
        "tasksTotal": record.tasks_total,
        "tasks": record.tasks or [],
    }


def _summary(record: StateRecord) -> str:
    total = "?" if record.tasks_total is None else f"{record.tasks_total:,}"
    text = f"{record.tasks_completed:,} of {total} done"
    more = (record.tasks_total or 0) - len(record.tasks or ())
    if record.tasks and more > 0:
        text += f", {more:,} of them without a name"
    return text
