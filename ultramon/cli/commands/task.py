"""`ultramon task`: the plan of an agent that works in a shell."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ultramon.cli.caller import agent_option, find_own_id
from ultramon.cli.exit_codes import CommandFailed, ExitCode, NotFound
from ultramon.cli.output import TASK_MARKS, field, plural, print_json, say
from ultramon.cli.selection import open_store, store_options
from ultramon.errors import AgentWorkError, ConfigurationError
from ultramon.stored_work.plan import add_tasks, change_plan, finish_task, start_task
from ultramon.stored_work.steps import assigned_items, item_in_work, store_step, stored_steps
from ultramon.system.compact_json import dumps, loads

if TYPE_CHECKING:
    from collections.abc import Callable

    from ultramon.backends.base import Backend
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


@click.command("step", epilog="Example: ultramon task step parsed --result '{\"rows\": 812}'")
@click.argument("name", metavar="STEP")
@click.option("--result", metavar="JSON", help="What came of it, for an agent that continues.")
@agent_option
@store_options
def step(
    *, name: str, result: str | None, agent: str | None, state_dir: str | None, json: bool
) -> ExitCode:
    """Store that a step inside the task in progress is done.

    If this agent is killed, the one that continues the task finds it by `ultramon task steps`. All
    steps of a task take at most 64 KiB. They end when the task is done.
    """
    from ultramon.system.clock import SYSTEM_CLOCK

    value = _parsed(result)
    backend = open_store(state_dir)
    agent_id = find_own_id(backend, agent, "ultramon task step")
    item_of = _item_finder(backend, agent_id)
    try:
        item = store_step(backend, agent_id, SYSTEM_CLOCK.now(), name, value, item_of=item_of)
    except AgentWorkError as error:
        raise _as_failure(error) from error
    except ConfigurationError as error:
        raise click.UsageError(str(error)) from error
    if json:
        _print_steps(agent_id, item, stored_steps(backend, agent_id).of(item))
    else:
        say(f"{field(name)} of {field(item)} is stored")
    return ExitCode.OK


@click.command("steps", epilog="Example: ultramon task steps parser.py --json")
@click.argument("name", metavar="[TASK]", required=False)
@agent_option
@store_options
def list_steps(
    *, name: str | None, agent: str | None, state_dir: str | None, json: bool
) -> ExitCode:
    """List the steps done inside a task; without TASK the one in progress.

    Those too that agents before this one have stored, where a supervisor or a relay has assigned
    the task.
    """
    backend = open_store(state_dir)
    agent_id = find_own_id(backend, agent, "ultramon task steps")
    item_of = _item_finder(backend, agent_id)
    if name is None:
        record = backend.load(agent_id).record
        if record is None:
            raise CommandFailed(f"the state of agent {agent_id} cannot be read")
        try:
            item = item_in_work(record, item_of)
        except AgentWorkError as error:
            raise _as_failure(error) from error
    else:
        item = item_of(" ".join(name.split())) or name
    steps = stored_steps(backend, agent_id).of(item)
    if json:
        _print_steps(agent_id, item, steps)
        return ExitCode.OK
    for key, result in steps.items():
        click.echo(field(key) if result is None else f"{field(key)}  {field(dumps(result))}")
    say(f"{plural(len(steps), 'step')} of {field(item)}")
    return ExitCode.OK


def _item_finder(backend: Backend, agent_id: str) -> Callable[[str | None], str | None]:
    """Return what finds the item that a task is about: one that was assigned, else the task."""
    from ultramon.relay.item_names import ItemNames

    assigned = assigned_items(backend, agent_id)
    names = ItemNames(assigned)

    def find(task: str | None) -> str | None:
        found = None if task is None else names.find(task)
        # For a single item a model keeps no list, or one of its parts.
        return found or (assigned[0] if len(assigned) == 1 else task)

    return find


def _parsed(result: str | None) -> Any:
    if result is None:
        return None
    try:
        return loads(result)
    except ValueError as error:
        advice = "text stands in quotes of its own, as in '\"done\"'"
        raise click.BadParameter(f"not JSON ({error}); {advice}", param_hint="--result") from error


def _print_steps(agent_id: str, item: str, steps: dict[str, Any]) -> None:
    print_json({"agentId": agent_id, "item": item, "steps": steps})


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
    if error.problem == "no_item":
        return CommandFailed(f"{error}: `ultramon task start TASK`")
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
