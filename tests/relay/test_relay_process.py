"""The process of a context: when it is over, how it continues behind a limit, how it is ended."""

import os
import signal
import subprocess
import sys

import pytest

from ultramon.errors import StateError
from ultramon.relay.runs.context_process import ContextProcess, Continuation, find_leader


def start(code="", **environ):
    return subprocess.Popen(
        [sys.executable, "-c", code], start_new_session=True, env={**os.environ, **environ}
    )


def settled(code, seconds):
    return True


def test_a_context_is_over_when_its_last_hook_is_done():
    """The process alone does not decide; its end is taken in once."""
    ends, answers = [], [False, False, True]
    process = start("raise SystemExit(3)")
    context = ContextProcess(process, ends.append, lambda code, seconds: answers.pop(0))
    process.wait()
    assert [context.poll() for _ in range(4)] == [None, None, 3, 3]
    assert ends == [3]


def test_a_context_goes_on_in_another_process():
    """While it waits nothing can be signalled, and it is not taken for ended."""
    is_due = False
    following = [Continuation(lambda: is_due, lambda: False, lambda: second)]
    first, second = start(), start("import signal; signal.pause()")
    context = ContextProcess(first, lambda code: (following and following.pop()) or None, settled)
    first.wait()
    assert context.poll() is None
    context.kill()
    is_due = True
    assert (context.poll(), context.pid) == (None, second.pid)
    context.terminate()
    second.wait()
    assert context.poll() == -signal.SIGTERM


def test_an_end_that_cannot_be_stored_is_taken_in_later():
    """The context is over when it is."""
    answers = [StateError("journal", "is busy"), None]

    def end(code):
        answer = answers.pop(0)
        if answer is not None:
            raise answer

    process = start()
    context = ContextProcess(process, end, settled)
    process.wait()
    assert [context.poll(), context.poll()] == [None, 0]


def refuse():
    raise FileNotFoundError("claude")


@pytest.mark.parametrize(
    "following",
    [
        Continuation(lambda: False, lambda: True, refuse),
        Continuation(lambda: True, lambda: False, refuse),
    ],
    ids=["stopped", "cannot start"],
)
def test_a_context_that_cannot_go_on_is_over(following):
    """Its next one finds out why."""
    process = start()
    context = ContextProcess(process, lambda code: following, settled)
    process.wait()
    assert [context.poll(), context.poll()] == [None, 0]


def test_a_process_of_another_relay_is_watched_by_its_start():
    """How it ended only its parent knows."""
    ends = []
    process = start("import signal; signal.pause()")
    context = ContextProcess(None, ends.append, settled, pid=process.pid)
    assert context.poll() is None
    context.kill()
    process.wait()
    assert (context.poll(), ends) == (0, [None])


def test_a_context_is_found_by_its_environment():
    """The leader of its group alone, and only with every variable."""
    process = start("import signal; signal.pause()", RELAY_TEST="x", RELAY_OTHER="y")
    try:
        # Between fork and exec it has the environment of this process.
        while (found := find_leader({"RELAY_TEST": "x", "RELAY_OTHER": "y"})) is None:
            os.sched_yield()
        assert found == process.pid
        assert find_leader({"RELAY_TEST": "x", "RELAY_OTHER": "z"}) is None
    finally:
        process.kill()
        process.wait()
