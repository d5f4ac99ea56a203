"""What the tests of the queue run in processes of their own: senders and claimers, to be killed.

Run as ``python queue_worker.py <store> <mode> [arguments]``; every mode is a function below.
Answers are JSON, one line each, on standard output.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time

from helpers.fault_writer import run_writer
from ultramon.backends.opening import open_backend
from ultramon.backends.queue import Queue
from ultramon.notices.message import Draft
from ultramon.testing.clock import START as NOW

CATEGORY = "context_monitor"
BATCH = 10
LEASE_SECONDS = 30.0


def run_worker(store: object, mode: str, *arguments: object, **options):
    """Start a mode as a process of its own with pipes."""
    return run_writer(store, mode, *arguments, script=__file__, **options)


def _say(value: object) -> None:
    os.write(1, (json.dumps(value) + "\n").encode())


def poison(store: str, at: str) -> None:
    """Claim and acknowledge until nothing is left; at a message "poison" be killed."""
    queue = open_backend(store).queue
    while messages := queue.claim("boss", now=float(at), limit=BATCH):
        for message in messages:
            _say([message.id, message.text])
            if message.text == "poison":
                os.kill(os.getpid(), signal.SIGKILL)
            queue.acknowledge(message.id, message.claim_token)


def cancel(store: str) -> None:
    """For each sender named on a line of input cancel what it said; say the counts."""
    queue = open_backend(store).queue
    _say("ready")
    for line in sys.stdin:
        _say(queue.cancel_messages_from(line.strip(), CATEGORY))


def receive(store: str) -> None:
    """For each line of input claim one by one and acknowledge; say the ids received."""
    queue = open_backend(store).queue
    _say("ready")
    for _ in sys.stdin:
        received = []
        while messages := queue.claim("boss", now=NOW, limit=1):
            received += [message.id for message in messages]
            queue.acknowledge(messages[0].id, messages[0].claim_token)
        _say(received)


def send(store: str, name: str, seconds: str) -> None:
    """Send for so long; say how many were stored, and what went wrong."""
    queue = open_backend(store).queue
    _say("ready")
    sys.stdin.readline()
    count, errors = 0, []
    until = time.monotonic() + float(seconds)
    while time.monotonic() < until:
        try:
            queue.queue_message(Draft("boss", f"{name} {count}", sender=name), now=NOW)
        except Exception as error:  # noqa: BLE001 - the test shows what it was
            errors.append(repr(error))
        else:
            count += 1
            if count % BATCH == 0:
                for message in queue.claim("boss", now=NOW, limit=BATCH):
                    queue.acknowledge(message.id, message.claim_token)
    _say([count, errors])


def kill_receivers(store: str, count: str, seed: str) -> None:
    """Kill so many receivers, each in the middle of a batch; say what each handled."""
    chance = random.Random(int(seed))
    queue = open_backend(store).queue
    for number in range(int(count)):
        at = NOW + number * (LEASE_SECONDS + 1)
        steps = chance.randrange(1, 2 * BATCH)
        read, write = os.pipe()
        child = os.fork()
        if not child:
            os.close(read)
            # Every other one does not wait to be killed, so that it is hit anywhere.
            _handle(queue, at, write, steps if number % 2 else None)
        os.close(write)
        with open(read) as said:
            lines = []
            while len(lines) < steps and (not lines or lines[-1] != "done"):
                lines.append(said.readline().strip())
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            lines += said.read().split("\n")
        _say([list(map(int, line.split()[1:])) for line in lines if line.startswith("handled")])


def _handle(queue: Queue, at: float, write: int, steps: int | None) -> None:
    said = 0

    def say(text: str) -> None:
        nonlocal said
        os.write(write, f"{text}\n".encode())
        said += 1
        if said == steps or text == "done":
            signal.pause()

    while messages := queue.claim("boss", now=at, limit=BATCH):
        say("claimed")
        for message in messages:
            say(f"handled {message.id} {message.attempts}")
            queue.acknowledge(message.id, message.claim_token)
    say("done")


if __name__ == "__main__":
    globals()[sys.argv[2]](sys.argv[1], *sys.argv[3:])
