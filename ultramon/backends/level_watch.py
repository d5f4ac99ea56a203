"""Announces the levels of plans and budgets, each once, whichever process looks first.

A crossing is an event under a key of its own, which every store keeps once, and a message that
carries the same key: any number of watches in any number of processes announce it once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ultramon.backends.regular_look import RegularLook
from ultramon.notices.crossings import PlanLevels, plan_crossings
from ultramon.notices.message import Draft
from ultramon.state.plan_limits import PlanLimits
from ultramon.state.watched_levels import mark_watched
from ultramon.system.clock import SYSTEM_CLOCK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ultramon.backends.base import Backend
    from ultramon.notices.crossings import Crossing
    from ultramon.system.clock import Clock

    Reading = Callable[[float], Iterable[Crossing]]

LOOK_SECONDS = 5.0
"""Between two looks."""
CATEGORY = "shared_level"
_MOST_EXPIRY_SECONDS = 366 * 86_400.0


class LevelWatch:
    """Looks at what several agents share, and announces the levels that are reached.

    Args:
        backend: Where events and messages are stored.
        directory: The state directory, with the limits of the plans.
        source: The name of the process that looks: ``serve``, ``web``, ``watch`` or ``relay``.
        readings: What else is looked at: each returns what is reached at a time.
        clock: For tests.

    Raises:
        ConfigurationError: A setting of ``[plan]`` is wrong.
    """

    def __init__(
        self,
        backend: Backend,
        directory: str,
        source: str,
        *,
        readings: Iterable[Reading] = (),
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._backend = backend
        self._directory = directory
        self._source = source
        self._clock = clock
        self._settings = PlanLevels()
        self._plans = PlanLimits(directory)
        self._readings = list(readings)
        self._announced: set[str] = set()
        self._looking = RegularLook(
            self.look,
            name="ultramon-levels",
            every_seconds=LOOK_SECONDS,
            trouble="levels of plans are not announced for now",
        )

    def __enter__(self) -> LevelWatch:
        self.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()

    def start(self) -> None:
        """Look every few seconds, in a thread of its own."""
        self._looking.start()

    def stop(self) -> None:
        """End the thread."""
        self._looking.stop()

    def look(self) -> list[Crossing]:
        """Look once; return what this watch had not announced before.

        Raises:
            StateError: The store refused; the next look tries again.
        """
        now = self._clock.now()
        accounts = self._plans.accounts(now)
        if accounts or self._readings:  # else nothing is stored by a look
            mark_watched(self._directory, now)
        notify = self._settings.notify
        recipients = () if notify is None else (notify,)
        found = list(plan_crossings(accounts, self._settings.levels, recipients))
        found += [one for read in self._readings for one in read(now)]
        new = [one for one in found if one.key not in self._announced]
        for one in new:
            self._announce(one, now)
        # What is over is forgotten: its key never comes again.
        self._announced = {one.key for one in found}
        return new

    def _announce(self, crossing: Crossing, now: float) -> None:
        # The message first: a kill in between repeats it, and its key keeps it from coming twice.
        queue = getattr(self._backend, "queue", None)
        if queue is not None:
            for recipient in crossing.recipients:
                queue.queue_message(_draft(crossing, recipient, now), now=now)
        self._backend.append_events([crossing.event(now, self._source)])


def _draft(crossing: Crossing, recipient: str, now: float) -> Draft:
    return Draft(
        recipient,
        crossing.text,
        category=CATEGORY,
        delivery="important",
        dedupe_key=crossing.key,
        facts=crossing.facts | {"level": crossing.level},
        expires_seconds=min(max(crossing.ends_at - now, 1.0), _MOST_EXPIRY_SECONDS),
    )
