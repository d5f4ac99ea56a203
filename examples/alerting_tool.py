"""A task list for agents, whose commands alert the agent on stderr when its window gets full.

    alerting_tool.py add NAME | complete NAME | list      each prints JSON on stdout

`complete` looks after each run, `add` after every third, `list` never. Without a command it plays
an agent that fills its window and calls the three, as one that works in a shell would.

What you should see:

    12 %  list               []
    48 %  add tests          {"added": "tests"}
    74 %  list               [{"name": "tests", "done": false}]
    74 %  complete tests     {"completed": "tests"}
          [CONTEXT ALERT] WARNING: 74% (148000/200000 tokens)
          Action: a good point to close the subtask: alerting_tool.py complete NAME
    76 %  add docs           {"added": "docs"}
    87 %  add notes          {"added": "notes"}
          [CONTEXT ALERT] CAUTION: 87% (174000/200000 tokens)
    88 %  complete docs      {"completed": "docs"}
    91 %  complete docs      no open task docs, exit code 1
    96 %  complete notes     {"completed": "notes"}
          [CONTEXT ALERT] EMERGENCY: 96% (192000/200000 tokens)
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from ultramon import AlertConfig, ContextConfig, alerting, create_context_monitor

TASKS = Path("tasks.json")
ALERTS = AlertConfig(
    actions={"warning": "a good point to close the subtask: alerting_tool.py complete NAME"}
)


def load() -> dict[str, bool]:
    tasks: dict[str, bool] = json.loads(TASKS.read_text()) if TASKS.exists() else {}
    return tasks


def show(value: object) -> None:
    print(json.dumps(value), flush=True)


@alerting("add", every=3, config=ALERTS)
def add(name: str) -> None:
    TASKS.write_text(json.dumps({**load(), name: False}))
    show({"added": name})


def complete(name: str) -> None:
    # Left by an exit that is no success, the block says nothing.
    with alerting("complete", config=ALERTS):
        tasks = load()
        if tasks.get(name) is not False:
            sys.exit(f"no open task {name}")
        TASKS.write_text(json.dumps({**tasks, name: True}))
        show({"completed": name})


def list_tasks() -> None:
    show([{"name": name, "done": done} for name, done in load().items()])


def play(folder: str) -> None:
    """Fill a window step by step and call the tool in between."""
    os.environ.update(ULTRAMON_STATE_DIR=f"{folder}/state", ULTRAMON_AGENT_ID="shell-worker")
    steps = [
        (12, "list"),
        (48, "add tests"),
        (74, "list"),
        (74, "complete tests"),
        (76, "add docs"),
        (87, "add notes"),
        (88, "complete docs"),
        (91, "complete docs"),
        (96, "complete notes"),
    ]
    with create_context_monitor(config=ContextConfig(context_limit_tokens=200_000)) as monitor:
        for percentage, command in steps:
            monitor.report_usage(input_tokens=percentage * 2_000)
            monitor.update_heartbeat()
            done = subprocess.run(
                [sys.executable, __file__, *command.split()],
                cwd=folder,
                capture_output=True,
                text=True,
                check=False,
            )
            said = done.stderr.splitlines()
            result = f"{said.pop(0)}, exit code {done.returncode}" if done.returncode else ""
            print(f"{percentage:>2} %  {command:<18} {done.stdout.strip() or result}")
            for line in said:
                print(f"      {line}")


def main() -> None:
    parser = argparse.ArgumentParser(description="A task list for agents.")
    commands = parser.add_subparsers(dest="command")
    commands.add_parser("add").add_argument("name")
    commands.add_parser("complete").add_argument("name")
    commands.add_parser("list")
    arguments = parser.parse_args()
    if arguments.command == "add":
        add(arguments.name)
    elif arguments.command == "complete":
        complete(arguments.name)
    elif arguments.command == "list":
        list_tasks()
    else:
        with tempfile.TemporaryDirectory() as folder:
            play(folder)


if __name__ == "__main__":
    main()
