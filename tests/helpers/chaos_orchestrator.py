"""An orchestrator that `ultramon chaos` is tested with; its first workers wait to be killed.

Arguments: ``careful`` hands the work of killed workers over, ``forgetful`` does not, ``alone`` has
its only agent in its own process, ``deaf`` never ends, ``early`` has workers that die before their
plan and before their start, the first with an assignment, ``gives_up`` supervises one that fails at
an item, ``unverified`` stops while its check denies another.
"""

import signal
import subprocess
import sys

from ultramon import ContextConfig, Fleet, HandoffRecord, create_context_monitor, worker

WORKERS = 3
ITEMS = 4


def work(text):
    """Do the first half of the items and wait for the end; a successor does all that is left."""
    handoff = HandoffRecord.model_validate_json(text) if text.startswith("{") else None
    config = ContextConfig(context_limit_tokens=50_000, on_error="raise")
    monitor = create_context_monitor(config=config, continues=handoff)
    monitor.plan([] if handoff else [f"{text}/{number}" for number in range(ITEMS)])
    with monitor:
        for number, item in enumerate(monitor.pending()):
            with monitor.task(item):
                if handoff is None and number == ITEMS // 2:
                    signal.pause()
            monitor.update_heartbeat()


def say(line):
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def start(fleet, agent_id, text):
    process = subprocess.Popen(
        [sys.executable, __file__, "work", text], env=fleet.env(agent_id), stdin=subprocess.DEVNULL
    )
    fleet.attach(agent_id, process)


def orchestrate(*, forgetful):
    """Let successors begin when every first worker is gone, so that no kill meets a successor."""
    fleet = Fleet(poll_interval_seconds=0.05)
    left = []
    for number in range(WORKERS):
        start(fleet, f"worker-{number}", f"part-{number}")
    completed = 0
    for event in fleet.watch():
        if event.name == "lost":
            say(f"\x1b[31m{event.agent_id} is lost")
        if event.name == "handoff_ready":
            left.append(event.handoff)
        if len(left) == WORKERS:
            if forgetful:
                return
            for handoff in left:
                start(fleet, f"{handoff.agent_id}.2", handoff.model_dump_json(by_alias=True))
            left = []
        completed += event.outcome == "completed"
        if completed == WORKERS:
            return


def die_early():
    """Have three workers die, and hand nothing over."""
    fleet = Fleet()
    fleet.assign("known", ["given"])
    dying = "import os, ultramon\n{}os.kill(os.getpid(), 9)"
    begin = "ultramon.create_context_monitor().start()\n"
    for agent_id, code in (("known", begin), ("unknown", begin), ("unstarted", "")):
        process = subprocess.Popen(
            [sys.executable, "-c", dying.format(code)], env=fleet.env(agent_id)
        )
        fleet.attach(agent_id, process)
        process.wait()
    fleet.poll()
    fleet.close()


def fail():
    with worker() as agent:
        for item in agent.pending():
            if item == "poison":
                raise ZeroDivisionError


def supervise(items, **options):
    def spawn(job):
        return subprocess.Popen([sys.executable, __file__, "fail"], env=job.env)

    Fleet(poll_interval_seconds=0.05).supervise(spawn, items, **options)


def main():
    match sys.argv[1:]:
        case ["work", text]:
            work(text)
        case ["alone"]:
            with create_context_monitor() as monitor:
                monitor.plan(["the only one"])
                monitor.complete_task("the only one")
        case ["fail"]:
            fail()
        case ["gives_up"]:
            supervise(["sound", "poison"])
        case ["unverified"]:
            supervise(["sound", "wrong"], max_contexts=1, verify=lambda item: item == "sound")
        case ["early"]:
            die_early()
        case ["deaf"]:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            say("deaf")
            signal.pause()
        case [kind]:
            orchestrate(forgetful=kind == "forgetful")


if __name__ == "__main__":
    main()
