"""`ultramon task`: the plan of an agent that works in a shell."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ultramon.cli.output import (
    CommandFailed,
    ExitCode,
    NobodyFound,
    field,
    plural,
    print_json,
    say,
)
from ultramon.cli.selection import open_store, store_options
from ultramon.cli.stored_agent import agent_option, change_state, find_own_id

if TYPE_CHECKING:
    from collections.abc import Callable

    from ultramon.state.record import StateRecord
    from ultramon.state.stored_plan import StoredPlan

MAX_RESULT_CHARS = 1000
_MARKS = {"done": "x", "in_progress": ">", "interrupted": "!"}


@click.command("add")
@click.argument("names", metavar="TASK...", nargs=-1, required=True)
@agent_option
@store_options
def add(
    *, names: tuple[str, ...], agent: str | None, state_dir: str | None, json: bool
) -> ExitCode:
    """Add tasks to the plan.

    A task that is there already is not added again.
    """

    def step(plan: StoredPlan) -> str:
        known = {task["name"] for task in plan.tasks}
        new = [name for name in dict.fromkeys(map(_checked, names)) if name not in known]
        for name in new:
            plan.add(name)
        return f"{plural(len(new), 'task')} added"

    return _change(agent, state_dir, json, "ultramon task add", step)


@click.command("start")
@click.argument("name", metavar="TASK")
@agent_option
@store_options
def start(*, name: str, agent: str | None, state_dir: str | None, json: bool) -> ExitCode:
    """Begin a task, which is the current one then.

    A task that is not in the plan yet is added.
    """

    def step(plan: StoredPlan) -> str:
        checked = _checked(name)
        task = _find(plan, checked) or plan.add(checked)
        plan.set_status(task, "in_progress")
        return f"{checked} is in progress"

    return _change(agent, state_dir, json, "ultramon task start", step)


@click.command("done")
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

    def step(plan: StoredPlan) -> str:
        chosen = _checked(name) if name is not None else plan.current_name
        if chosen is None:
            raise CommandFailed("no task is in progress: name the one that is done")
        task = _find(plan, chosen)
        if task is None:
            raise NobodyFound(
                f"agent {plan.agent_id} has no task {field(chosen)}: see `ultramon task list`"
            )
        plan.set_status(task, "done")
        if result is not None:
            task["result"] = result[:MAX_RESULT_CHARS]
        return f"{chosen} is done"

    return _change(agent, state_dir, json, "ultramon task done", step)


@click.command("list")
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
        click.echo(f"[{_MARKS.get(task['status'], ' ')}] {field(task['name'])}{result}")
    say(_summary(record))
    return ExitCode.OK


def _change(
    agent: str | None,
    state_dir: str | None,
    json: bool,
    what: str,
    step: Callable[[StoredPlan], str],
) -> ExitCode:
    from ultramon.state.stored_plan import StoredPlan
    from ultramon.system.clock import SYSTEM_CLOCK

    backend = open_store(state_dir)
    agent_id = find_own_id(backend, agent, what)
    with change_state(backend, agent_id, SYSTEM_CLOCK.now()) as record:
        plan = StoredPlan(record)
        words = step(plan)
        if not plan.fits:
            raise CommandFailed(
                f"the plan of agent {agent_id} is full: give other agents a part of the work"
            )
        plan.save()
    if json:
        print_json(_to_json(record))
    else:
        say(f"{words}; {_summary(record)}")
    return ExitCode.OK


def _checked(name: str) -> str:
    from ultramon.state.stored_plan import MAX_NAME_CHARS

    name = " ".join(name.split())
    if not 0 < len(name) <= MAX_NAME_CHARS:
        raise click.BadParameter(f"a task is named by 1 to {MAX_NAME_CHARS} characters")
    return name


def _find(plan: StoredPlan, name: str) -> dict[str, Any] | None:
    task = next((task for task in plan.tasks if task["name"] == name), None)
    if task is not None and task.get("id") is not None:
        raise CommandFailed(
            f"task {field(name)} is in the client's own task list (id {field(task['id'])}), "
            "which decides: change it there"
        )
    return task


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
