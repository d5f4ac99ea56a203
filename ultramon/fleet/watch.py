"""Iterates over the events of a fleet, sync and async."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ultramon.errors import StateError
from ultramon.fleet.consumer import Item
from ultramon.fleet.events import FleetEvent

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from ultramon.fleet.deliveries import Deliveries


CHANGE_CHECK_SECONDS = 0.05
"""How often a running fleet checks for new events between polls."""


class Watch:
    """The events of a fleet, one after the other, until the fleet is stopped."""

    def __init__(self, deliveries: Deliveries, *, acknowledge_all: bool) -> None:
        self._deliveries = deliveries
        self._acknowledge_all = acknowledge_all

    def __iter__(self) -> Iterator[FleetEvent]:
        deliveries = self._deliveries
        try:
            while True:
                try:
                    yield from deliveries.step(acknowledge_all=self._acknowledge_all)
                except StateError as error:
                    deliveries.complain(error)
                deliveries.wait()
                if deliveries.stopping.is_set():
                    return
        finally:
            deliveries.close()

    async def __aiter__(self) -> AsyncIterator[FleetEvent]:
        deliveries = self._deliveries
        try:
            while True:
                try:
                    async for event in deliveries.step_async(acknowledge_all=self._acknowledge_all):
                        yield event
                except StateError as error:
                    deliveries.complain(error)
                while deliveries.may_rest():
                    await asyncio.sleep(CHANGE_CHECK_SECONDS)
                if deliveries.stopping.is_set():
                    return
        finally:
            deliveries.close()


async def next_in_thread(items: Iterator[Item]) -> Item | None:
    """Return the next item, None at the end; a cancelled caller waits for the thread."""
    running = asyncio.ensure_future(asyncio.to_thread(next, items, None))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait({running})
        raise
