"""Programs beside the workers: a sender and receivers of messages, and consumers of events.

Run as a program with the role as its argument, in the environment of a soak.
"""

from __future__ import annotations

import logging
import secrets
import sys
import time
from itertools import count, takewhile
from typing import TYPE_CHECKING

from benchmarks.soak.world import World
from ultramon import Fleet, open_backend
from ultramon.errors import QueueFullError, StateError
from ultramon.notices.message import Draft

if TYPE_CHECKING:
    from ultramon import FleetEvent

CONSUMER = "archive"
BATCH = 10
RECIPIENT = "soak-inbox"
LEASE_SECONDS = 10.0
PAUSE_SECONDS = 0.5


def send(world: World) -> None:
    """Queue messages, and note those that the queue has accepted."""
    queue = open_backend().queue
    while not world.is_closing:
        sent = []
        refused = 0
        for _ in range(BATCH):
            key = secrets.token_hex(8)
            try:
                if queue.queue_message(Draft(RECIPIENT, key), now=time.time()) is not None:
                    sent.append(key)
            except (StateError, QueueFullError) as error:
                logging.warning("not sent: %s", error)
                refused = 1
                break
        world.history.note("sent", keys=sent, refused=refused)
        time.sleep(PAUSE_SECONDS)


def receive(world: World) -> None:
    """Claim messages, note what they say, and acknowledge them."""
    queue = open_backend().queue
    while True:
        try:
            claimed = queue.claim(
                RECIPIENT, now=time.time(), limit=2 * BATCH, lease_seconds=LEASE_SECONDS
            )
            if claimed:
                world.history.note("handled", keys=[message.text for message in claimed])
            for message in claimed:
                queue.acknowledge(message.id, message.claim_token)
        except StateError as error:
            logging.warning("not received: %s", error)
            claimed = []
        if not claimed:
            time.sleep(PAUSE_SECONDS)


def consume(world: World) -> None:
    """Note the start of every agent, of one run after another; in the end, of all that is late."""
    world.history.note("watches", consumer=CONSUMER)
    for number in count(1):
        is_over = False
        while not (is_over or world.is_closing):
            is_over = world.is_marked(f"over run-{number}")
            is_over = not _hear(world, f"run-{number}") and is_over
            time.sleep(PAUSE_SECONDS)
        if world.is_closing:
            break
    while True:
        for number in takewhile(lambda number: world.is_marked(f"begun run-{number}"), count(1)):
            _hear(world, f"run-{number}")
        time.sleep(PAUSE_SECONDS)


def _hear(world: World, run: str) -> bool:
    """Look at a run once; return whether an agent has started."""
    fleet = Fleet(run, consumer=CONSUMER)
    heard = []

    @fleet.on("started")
    def note(event: FleetEvent) -> None:
        world.history.note("heard", consumer=CONSUMER, agent=event.agent_id)
        heard.append(event)

    try:
        fleet.poll()
    except StateError as error:
        logging.warning("not heard: %s", error)
    finally:
        fleet.close()
    return bool(heard)


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(message)s")
    {"sender": send, "receiver": receive, "consumer": consume}[sys.argv[1]](World.of_this_process())
