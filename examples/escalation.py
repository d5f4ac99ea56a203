"""Asking agents to return: one does at once, one is stuck and misses its deadline.

`Fleet.request_return` asks whatever the level; the agent sees `should_return` within a second or
so. Nothing kills an agent: when the deadline passes without a handoff the fleet says `expired`,
once, and what to do about it is up to you. Here the stuck tool call is given up then, and the
handoff that the agent leaves at last is still accepted.

What you should see:

    quick: asked to return within 3 s
    stuck: asked to return within 1 s
    quick: handed off
    quick ended: returned
    stuck ended: expired
    stuck: handed off
    stuck ended: returned
"""

from __future__ import annotations

import os
import tempfile
import threading
import time

from ultramon import ContextMonitor, Fleet, FleetEvent, create_context_monitor

PAGES = [f"page {number}" for number in range(1, 1001)]


def read(monitor: ContextMonitor, tool_returns: threading.Event) -> None:
    """Read pages, slowly, until asked to return."""
    with monitor:
        for page in monitor.pending():
            with monitor.task(page):
                tool_returns.wait()
                time.sleep(0.01)
                action = monitor.track_content("It rained all day. ")
            if action.should_return:
                monitor.hand_off(notes="It rained on all pages so far.")
                return


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        os.environ.setdefault("ULTRAMON_STATE_DIR", directory)
        run = os.environ.get("ULTRAMON_RUN") or f"escalation-{os.getpid()}"
        fleet = Fleet(run, poll_interval_seconds=0.2)
        tools = {"quick": threading.Event(), "stuck": threading.Event()}
        tools["quick"].set()

        @fleet.on("handoff_ready")
        def take(event: FleetEvent) -> None:
            record = event.handoff
            assert record is not None
            print(f"{event.agent_id}: handed off, {len(record.completed)} of {len(PAGES)} read")

        @fleet.on("ended")
        def note(event: FleetEvent) -> None:
            print(f"{event.agent_id} ended: {event.outcome}")
            if event.handoff_follows:  # expired, but it runs on
                tools[event.agent_id].set()  # give its tool call up
            elif event.agent_id == "stuck":
                fleet.stop()

        threads = []
        for agent_id, deadline_seconds in (("quick", 3), ("stuck", 1)):
            monitor = create_context_monitor(agent_id, run=fleet.run_name).start()
            monitor.plan(PAGES)
            threads.append(threading.Thread(target=read, args=(monitor, tools[agent_id])))
            threads[-1].start()
            fleet.request_return(agent_id, deadline_seconds)
            print(f"{agent_id}: asked to return within {deadline_seconds} s")
        fleet.run()
        for thread in threads:
            thread.join()


if __name__ == "__main__":
    main()
