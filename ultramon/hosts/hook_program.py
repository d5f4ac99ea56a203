"""A hook as a program: one call of a host in, at most one answer out, always exit 0.

Standard library only, and as little of that as possible: every tool call of every agent pays.
"""

from __future__ import annotations

import os
import time

from ultramon.hosts.calls.switches import RELAY_SESSION, choices_here, is_off, state_directory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ultramon.hosts.port import Host
    from ultramon.hosts.resident.forwarder import Unanswered


def run(
    load_host: Callable[[], Host],
    choices_path: str,
    environ: Mapping[str, str] = os.environ,
    *,
    unanswered: Unanswered | None = None,
) -> int:
    """Handle one call: the payload on standard input, the answer on standard output.

    Failures go to the failure log and nowhere else.

    Args:
        load_host: Returns the host; not called where ultramon is switched off.
        choices_path: The installed choices, ``<host>.json``; without the file the defaults hold.
        environ: The host's environment.
        unanswered: What the forwarder left of this call, where a resident was installed.

    Returns:
        0.
    """
    if is_off(environ):
        return 0
    chosen = choices_here(environ, choices_path)
    if chosen is None:
        return 0
    choices_path = chosen
    directory = state_directory(environ, choices_path)
    name = agent_id = ""
    try:
        host = load_host()
        from ultramon.hosts.calls.handling import HookCall
        from ultramon.hosts.calls.payload import read_payload
        from ultramon.hosts.calls.store import HookStore
        from ultramon.hosts.port import SESSION_STARTED
        from ultramon.system.locks import LockedError
        from ultramon.system.processes import process_started_at, started_at_boot_seconds

        payload, tail = read_payload(0, unanswered)
        event = host.dialect.read_event(payload, environ, tail)
        name, agent_id = event.name, event.session_id
        if event.session_id != environ.get(RELAY_SESSION, event.session_id):
            return 0  # a session that the agent itself has begun: it inherits the relay's variables
        now = time.time()
        store = HookStore(host, directory, choices_path, environ, event=name, now=now)
        pid = os.getpid()
        store.began_at = started_at_boot_seconds(pid, process_started_at(pid))
        store.is_retry = unanswered is not None and unanswered.was_asked
        call = HookCall(event, store)
        agent_id = call.agent_id
        try:
            answer = call.answer()
        except LockedError:
            from ultramon.hosts.resident.starter import end_hung

            if unanswered is None or not end_hung(store):
                raise
            call = HookCall(event, store)
            answer = call.answer()
        if answer:
            os.write(1, answer)
        call.acknowledge()
        # After the answer: the host need not wait for the start of a process.
        if unanswered is not None and unanswered.may_start:
            from ultramon.hosts.resident.starter import start

            start(store, is_session_start=event.kind == SESSION_STARTED)
    except BaseException as error:  # noqa: BLE001 - whatever it is, the host must continue
        try:
            from ultramon.hosts.failure_log import record
            from ultramon.hosts.installed_choices import host_of

            problem = f"{type(error).__name__}: {error}"
            record(directory, host_of(choices_path), name, agent_id, problem, now=time.time())
        except BaseException:  # noqa: BLE001 - there is nowhere left to report it
            return 0
    return 0


def run_script(
    argv: list[str], load_host: Callable[[], Host], unanswered: Unanswered | None = None
) -> int:
    """Handle one call as the program that a host has started.

    Args:
        argv: The program, then the path of the installed choices.
        load_host: As for `run`.
        unanswered: As for `run`.
    """
    import gc

    # What a call makes is gone with it; to look for circles took a millisecond of seventeen.
    gc.disable()
    return run(load_host, argv[1], unanswered=unanswered) if len(argv) > 1 else 0
