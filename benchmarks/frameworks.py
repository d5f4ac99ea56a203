"""What an adapter costs each model call of its framework, against the bare framework.

    nice -n 10 .venv/bin/python benchmarks/frameworks.py

Both run in turn in one process on models that answer at once, saving to files as by default. Short
and long runs tell what a call costs apart from the start and the end of an agent; medians of the
CPU time of pairs are printed, in microseconds.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from agents import RunConfig, Runner
from helpers.frameworks import Run, Script, langchain, openai_agents, pydantic_ai
from pydantic_ai import Agent

from ultramon import ContextConfig
from ultramon.backends.local.backend import LocalBackend
from ultramon.integrations.langchain import ContextMiddleware
from ultramon.integrations.openai_agents import ContextHooks
from ultramon.integrations.pydantic_ai import ContextCapability

SHORT, LONG = 10, 40
"""Model calls of a run."""
QUIET = RunConfig(tracing_disabled=True)


def new_run(calls: int) -> tuple[Run, Script]:
    run = Run("async")
    script = Script(turns=tuple((1_000 + 100 * number, 50) for number in range(calls)))
    script.look = lambda: "seen"  # the same tool in both
    return run, script


async def run_langchain(choices: dict | None, calls: int) -> None:
    run, script = new_run(calls)
    watched = None if choices is None else ContextMiddleware(**choices)
    agent = langchain.make_agent(run, script, watched)
    await agent.ainvoke({"messages": [("user", "Go.")]}, {"recursion_limit": 500})


async def run_openai_agents(choices: dict | None, calls: int) -> None:
    run, script = new_run(calls)
    watched = None if choices is None else ContextHooks(**choices)
    options = {"run_config": QUIET} if watched is None else watched.options(QUIET)
    agent = openai_agents.make_agent(run, script, watched)
    await Runner.run(agent, "Go.", max_turns=calls + 1, **options)


async def run_pydantic_ai(choices: dict | None, calls: int) -> None:
    _run, script = new_run(calls)
    capabilities = [] if choices is None else [ContextCapability(**choices)]
    agent = Agent(pydantic_ai.ServedModel(script), name="helper", capabilities=capabilities)
    agent.tool_plain(script.look, name="look")
    await agent.run("Go.")


def cpu_seconds(work: object) -> float:
    begun = time.process_time()
    asyncio.run(work)
    return time.process_time() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=30, help="pairs of runs (default: 30)")
    pairs = parser.parse_args().pairs
    logging.disable(logging.WARNING)
    print(f"{'framework':<16}{'bare call':>12}{'more a call':>12}{'more a run':>12}   µs of CPU")
    with tempfile.TemporaryDirectory() as directory:
        config = ContextConfig(context_window_tokens=100_000)
        choices = {"config": config, "backend": LocalBackend(directory)}
        for work in (run_langchain, run_openai_agents, run_pydantic_ai):
            taken: dict[tuple[bool, int], list[float]] = {}
            for number in range(pairs + 1):
                for calls in (SHORT, LONG):
                    for given in (None, choices):
                        seconds = cpu_seconds(work(given, calls))
                        if number:  # the first ones load what they need
                            taken.setdefault((given is None, calls), []).append(seconds)
            medians = {which: statistics.median(runs) for which, runs in taken.items()}
            more = {calls: medians[False, calls] - medians[True, calls] for calls in (SHORT, LONG)}
            a_call = (more[LONG] - more[SHORT]) / (LONG - SHORT)
            row = (medians[True, LONG] / LONG, a_call, more[SHORT] - SHORT * a_call)
            numbers = "".join(f"{seconds * 1e6:>12,.0f}" for seconds in row)
            print(f"{work.__name__.removeprefix('run_'):<16}{numbers}")


if __name__ == "__main__":
    main()
