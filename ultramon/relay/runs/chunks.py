"""How many items of a list the next context of a relay gets, by how many the ones before finished.

An agent keeps what it is given in its task list: of five hundred items it would write five hundred
tasks, and carry them in each request until its window is full.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ultramon.fleet.supervise.pool import ItemPool

FIRST_ITEMS = 25
"""Of a run in which no context has ended yet."""


def most_items(pool: ItemPool) -> int:
    """Return how many items the next context may get, 1 and more.

    As many as the last one finished that handed over with items left; twice as many after one
    that finished all. One that was killed says nothing about it.
    """
    most = FIRST_ITEMS
    for context in pool.contexts.values():
        closed = context.closed
        if closed is None or closed.died or closed.killed:
            continue
        finished = len(pool.finished_by(context))
        if finished == len(context.items):
            most = max(most, 2 * finished)
        elif finished:
            most = finished
    return most
