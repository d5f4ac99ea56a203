"""What an adapter costs each model call of its framework, against the bare framework.

    nice -n 10 .venv/bin/python benchmarks/frameworks.py
    nice -n 10 .venv/bin/python benchmarks/frameworks.py langchain
    nice -n 10 .venv/bin/python benchmarks/frameworks.py --write    # into RESULTS.md

Bare and watched runs take turns in one process, on models that answer at once, saving to files as
by default. The CPU time from each call of the model to the next one is kept. Of all the runs the
least counts, for each call by its place in the run: what else the machine does, and a collection of
garbage, only add, and whole runs varied by more than the adapters take. A framework that is not
installed here runs in the environment that `make frameworks` makes for its newest version.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from dataclasses import replace
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from helpers import ROOT
from helpers.frameworks import Run, Script
from results import replace_section

from ultramon import ContextConfig
from ultramon.backends.local.backend import LocalBackend
from ultramon.integrations import load

CALLS = 40
"""Model calls of a run."""
TICK_SECONDS = 0.01
"""What the CPU time of other processes is counted in."""
_marks: list[float] = []
"""CPU seconds of this process at each call of the model in the present run."""


def mark() -> None:
    _marks.append(time.process_time())


def new_run(calls: int) -> tuple[Run, Script]:
    run = Run("async")
    run.outer.turns = tuple((1_000 + 100 * number, 50) for number in range(calls))
    run.outer.look = lambda: "seen"  # the same tool in both
    serve = run.outer.next_turn

    def next_turn(request: object) -> tuple[int, int, bool]:
        mark()
        return serve(request)

    run.outer.next_turn = next_turn  # type: ignore[method-assign]
    return run, run.outer


async def run_langchain(watched: Any, calls: int) -> None:
    from helpers.frameworks.langchain import make_agent

    agent = make_agent(*new_run(calls), watched)
    await agent.ainvoke({"messages": [("user", "Go.")]}, {"recursion_limit": 500})


async def run_openai_agents(watched: Any, calls: int) -> None:
    from agents import RunConfig, Runner
    from helpers.frameworks.openai_agents import make_agent

    quiet = RunConfig(tracing_disabled=True)
    options = {"run_config": quiet} if watched is None else watched.options(quiet)
    await Runner.run(make_agent(*new_run(calls), watched), "Go.", max_turns=calls + 1, **options)


async def run_pydantic_ai(watched: Any, calls: int) -> None:
    from helpers.frameworks.pydantic_ai import ServedModel
    from pydantic_ai import Agent

    _run, script = new_run(calls)
    capabilities = [] if watched is None else [watched]
    agent = Agent(ServedModel(script), name="helper", capabilities=capabilities)
    agent.tool_plain(script.look, name="look")
    await agent.run("Go.")


async def run_google_adk(watched: Any, calls: int) -> None:
    from google.adk.apps import App
    from google.adk.runners import InMemoryRunner
    from helpers.frameworks.google_adk import GO, make_agent

    plugins = [] if watched is None else [watched]
    app = App(name="tests", root_agent=make_agent(*new_run(calls)), plugins=plugins)
    runner = InMemoryRunner(app=app)
    named = {"user_id": "u", "session_id": "s"}
    await runner.session_service.create_session(app_name="tests", **named)
    async for _event in runner.run_async(new_message=GO, **named):
        pass
    await runner.close()


async def run_litellm(watched: Any, calls: int) -> None:
    import litellm
    from helpers.frameworks.litellm import WAIT_SECONDS, Logged

    logged = Logged(calls)
    litellm.callbacks = [logged] if watched is None else [watched, logged]
    given = {"model": "openai/served-1", "messages": [{"role": "user", "content": "Go."}]}
    for _number in range(calls):
        mark()
        await litellm.acompletion(mock_response="seen", **given)
    assert await asyncio.to_thread(logged.event.wait, WAIT_SECONDS)
    litellm.logging_callback_manager._reset_all_callbacks()
    if watched is not None:
        watched.adapter.close()


async def run_claude_agent_sdk(watched: Any, calls: int) -> None:
    from claude_agent_sdk import query
    from helpers.frameworks.claude_agent_sdk import session
    from real_client.api import marked

    run, _script = new_run(calls)
    # None of the client's own tools, so that it begins no subagents.
    with session(run, tools=[]) as options:
        ask = query if watched is None else watched.query
        async for _message in ask(prompt=marked("Go."), options=options):
            pass


RUNS = {
    "langchain": run_langchain,
    "openai-agents": run_openai_agents,
    "pydantic-ai": run_pydantic_ai,
    "google-adk": run_google_adk,
    "litellm": run_litellm,
    "claude-agent-sdk": run_claude_agent_sdk,
}


def make_idle_middleware() -> Any:
    """Make a middleware that does nothing, at the same places."""
    from langchain.agents.middleware import AgentMiddleware

    class Idle(AgentMiddleware):  # type: ignore[type-arg]
        async def awrap_model_call(self, request: Any, handler: Any) -> Any:
            return await handler(request)

        async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
            return await handler(request)

    return Idle()


class IdleHooks:
    """Hooks of the Claude Agent SDK that do nothing, where it may begin subagents."""

    def query(self, *, prompt: Any, options: Any) -> Any:
        from claude_agent_sdk import HookMatcher, query

        async def idle(*_given: Any) -> dict[str, Any]:
            return {}

        matchers = {"UserPromptSubmit": None, "SubagentStart": None, "PreToolUse": "mcp__.*"}
        hooks = {
            event: [HookMatcher(matcher=tools, hooks=[idle])] for event, tools in matchers.items()
        }
        return query(prompt=prompt, options=replace(options, hooks=hooks))


class WithSubagents:
    """Gives a session of the Claude Agent SDK the tool of its client that begins subagents."""

    def __init__(self, watched: Any) -> None:
        self.watched = watched

    def query(self, *, prompt: Any, options: Any) -> Any:
        return self.watched.query(prompt=prompt, options=replace(options, tools=["Agent"]))


IDLE = {"langchain": make_idle_middleware, "claude-agent-sdk": IdleHooks}
"""What shows the framework's own share, where it has one that is worth a row."""
DELEGATES = {"claude-agent-sdk"}
"""Where an adapter asks its framework who calls a tool once there can be several."""
MORE_HOOKS = {"claude-agent-sdk"}
"""Where an adapter that tells its agent takes a hook more."""
MODULES = {"openai-agents": "agents", "google-adk": "google.adk"}
PAIRS = {"claude-agent-sdk": 5}
"""Where a run starts a process of the client, which takes seconds; else `--pairs`."""


class Taken(NamedTuple):
    """CPU seconds of one run.

    Attributes:
        own: Of this process.
        children: Of the processes that it waited for.
        calls: Of this process, from each call of the model to the next.
    """

    own: float
    children: float
    calls: list[float]


def cpu_seconds(work: Any) -> Taken:
    _marks.clear()
    # What earlier runs left is not collected in this one: a full collection takes 0.1 s.
    gc.collect()
    before = os.times()
    begun = time.process_time()
    asyncio.run(work)
    own, after = time.process_time() - begun, os.times()
    children = after.children_user + after.children_system
    calls = [later - earlier for earlier, later in pairwise(_marks)]
    return Taken(own, children - before.children_user - before.children_system, calls)


def least_call(runs: list[Taken]) -> float:
    """Return the mean of the calls by their place in the run, each the least of all runs."""
    return statistics.mean(map(min, zip(*(run.calls for run in runs), strict=True)))


def row(title: str, bare: float, call: float, run: float) -> str:
    numbers = " | ".join(f"{seconds * 1e6:,.0f}" for seconds in (bare, call, run))
    return f"| {title} | {numbers} |"


def measure(name: str, pairs: int) -> None:
    """Print the rows of one framework."""
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as directory:
        config = ContextConfig(context_window_tokens=100_000)
        choices = {"config": config, "backend": LocalBackend(directory)}
        kinds = {"bare": lambda: None, name: lambda: load(name)(**choices)}
        if name in DELEGATES:
            delegates = f"{name}, where it may begin subagents"
            kinds[delegates] = lambda: WithSubagents(load(name)(**choices))
        if name in IDLE:
            kinds[f"{name}, one that does nothing"] = IDLE[name]
        if name in MORE_HOOKS:
            kinds[f"{name}, with tell=True"] = lambda: load(name)(tell=True, **choices)
        taken: dict[str, list[Taken]] = {kind: [] for kind in kinds}
        for number in range(pairs + 1):
            for kind, make in kinds.items():
                seconds = cpu_seconds(RUNS[name](make(), CALLS))
                if number:  # the first ones load what they need
                    taken[kind].append(seconds)
    bare, own = least_call(taken["bare"]), min(run.own for run in taken["bare"])
    for kind in list(kinds)[1:]:
        more = least_call(taken[kind]) - bare
        a_run = min(run.own for run in taken[kind]) - own - CALLS * more
        print(row(kind, bare, more, a_run))
    used = [min(run.children for run in taken[kind]) for kind in kinds]
    if min(used) > TICK_SECONDS:
        call = used[0] / CALLS, (used[1] - used[0]) / CALLS
        print(row("the client's process, in ticks of 10 ms a run", *call, 0.0))


def find_python(name: str) -> Path:
    """Return a Python that has a framework."""
    try:
        if find_spec(MODULES.get(name, name.replace("-", "_"))):
            return Path(sys.executable)
    except ModuleNotFoundError:
        pass
    # This file has the same name.
    spec = spec_from_file_location("environments", ROOT / "scripts" / "frameworks.py")
    assert spec is not None
    assert spec.loader is not None
    frameworks = module_from_spec(spec)
    spec.loader.exec_module(frameworks)
    package, _oldest = frameworks.find_requirement(frameworks.FRAMEWORKS[name])
    return frameworks.prepare(name, package, frameworks.FRAMEWORKS[name].newest, ())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("framework", nargs="?", choices=RUNS)
    parser.add_argument("--pairs", type=int, default=12, help="pairs of runs (default: 12)")
    parser.add_argument("--write", action="store_true", help="replace the section in RESULTS.md")
    given = parser.parse_args()
    if given.framework:
        measure(given.framework, PAIRS.get(given.framework, given.pairs))
        return
    lines = [
        f"CPU time in µs, the least of {given.pairs} runs of each kind "
        f"({PAIRS['claude-agent-sdk']} of the Claude Agent SDK); a run begins and ends an agent. "
        "The target is 300 more a call.",
        "",
        "| framework | a bare call | more a call | more a run |",
        "|---|---|---|---|",
    ]
    print(*lines, sep="\n", flush=True)
    for name in RUNS:
        command = [find_python(name), __file__, name, "--pairs", str(given.pairs)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        # LiteLLM prints about its own matters.
        rows = [line for line in done.stdout.splitlines() if line.startswith("| ")]
        print(*rows, sep="\n", flush=True)
        lines += rows
    lines += [
        "",
        f"Load of the machine at the end: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores.",
    ]
    print(*lines[-2:], sep="\n")
    if given.write:
        replace_section("Frameworks", "\n".join(lines))


if __name__ == "__main__":
    main()
