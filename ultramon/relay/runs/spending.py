"""What a run has spent, what its contexts may still spend, and when it stops for that."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ultramon.context.token_usage import TokenUsage
from ultramon.errors import StateError
from ultramon.hosts.calls.spending import (
    FOLDER,
    KIND_COUNT,
    Reserve,
    read_reserve,
    spent_of_context,
)
from ultramon.prices.cost import dollars
from ultramon.relay.launchers.outcome import SpentTokens
from ultramon.relay.runs.reserve_shares import share_out
from ultramon.relay.runs.result import Stop, millions
from ultramon.relay.runs.run_reader import number_of
from ultramon.system.files import make_private_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ultramon.prices.price_list import PriceList
    from ultramon.relay.choices import RelayChoices
    from ultramon.relay.runs.context_record import ContextRecord
    from ultramon.state.record import StateRecord

NANO = 1_000_000_000


@dataclass(slots=True)
class RunSpending:
    """The caps of one run.

    A hook of a context ends it before its next request once its reserve is spent; see
    `ultramon.hosts.calls.spending`.

    Attributes:
        choices: The caps.
        folder: Of the run.
        contexts: All of the run so far.
        tell: Called with a line for the user.
        prices: For the weights of a reserve.
    """

    choices: RelayChoices
    folder: str
    contexts: Iterable[ContextRecord]
    tell: Callable[[str], object]
    prices: PriceList
    _seen: dict[str, int] = field(default_factory=dict, init=False)
    _unpriced: set[str] = field(default_factory=set, init=False)
    _running: set[str] = field(default_factory=set, init=False)

    @property
    def is_capped(self) -> bool:
        """Whether there is a cap at all; without one no hook counts anything."""
        return self.choices.max_usd is not None or self.choices.max_tokens is not None

    @property
    def tokens(self) -> int:
        """The tokens of all contexts that have ended, of all kinds."""
        return sum(one.spent.all_tokens for one in self.contexts)

    @property
    def usd(self) -> float:
        """Their cost as far as it is known: of two counts the higher one is held by a cap."""
        return sum(map(_known_usd, self.contexts))

    def stop(self) -> Stop | None:
        """Return why no further context may begin; None = one may."""
        max_usd, max_tokens = self.choices.max_usd, self.choices.max_tokens
        if max_usd is not None and self.usd >= max_usd:
            return Stop.budget(f"{dollars(self.usd)} of {dollars(max_usd)} are spent")
        if max_tokens is not None and self.tokens >= max_tokens:
            of = f"{millions(self.tokens)} of {millions(max_tokens)} tokens"
            return Stop.budget(f"{of} are spent")
        return None

    def reserve(self, agent_id: str, model: str | None) -> None:
        """Store what a context that begins now may spend: its share of what is left.

        Args:
            agent_id: Its agent.
            model: Its model, as far as that is known; the others it uses are weighed later.

        Raises:
            StateError: The system refused.
        """
        if not self.is_capped:
            return
        make_private_directory(os.path.join(self.folder, FOLDER))
        self._running.discard(agent_id)
        max_usd, max_tokens = self.choices.max_usd, self.choices.max_tokens
        is_alone = not self._running
        left = Reserve(
            None if max_tokens is None else self._left_tokens if is_alone else 0,
            None if max_usd is None else self._left_nano_usd if is_alone else 0,
            {},
        )
        self._weigh(left, () if model is None else (model,))
        left.store(self.folder, agent_id)
        self._running.add(agent_id)
        self._share_out()

    def follow(self, agent_id: str) -> None:
        """Keep the reserve of a running context up to date.

        The models that it has used and the reserve does not know are weighed, and what is left
        is parted anew among the contexts that run.

        Called at each look at its process: a look without news costs one `os.stat`.

        Raises:
            StateError: The system refused.
        """
        if not self.is_capped:
            return
        self._running.add(agent_id)
        try:
            # A hook replaces its file, which changes the time of the folder.
            changed_at = os.stat(os.path.join(self.folder, FOLDER)).st_mtime_ns
            if self._seen.get(agent_id) == changed_at:
                return
            spent = spent_of_context(self.folder, agent_id)
            reserve = read_reserve(self.folder, agent_id)
        except (OSError, ValueError):
            return  # it was begun without a cap, or what is damaged is said by the hook
        models = {model for one in spent.values() for model, _, _ in one.all_unweighed}
        if reserve is not None and self._weigh(reserve, models):
            reserve.store(self.folder, agent_id)
        self._seen[agent_id] = changed_at
        self._share_out()

    @property
    def _left_tokens(self) -> int:
        """What is left for the contexts that run."""
        spent = sum(one.spent.all_tokens for one in self._ended)
        return max(0, (self.choices.max_tokens or 0) - spent)

    @property
    def _left_nano_usd(self) -> int:
        usd = sum(map(_known_usd, self._ended))
        return max(0, round(((self.choices.max_usd or 0.0) - usd) * NANO))

    @property
    def _ended(self) -> Iterator[ContextRecord]:
        """Those that do not run: of one that continues after a limit the hooks count all."""
        running = {number_of(agent_id) for agent_id in self._running}
        return (one for one in self.contexts if one.number not in running)

    def _share_out(self) -> None:
        """Part what is left among the contexts that run."""
        known = []
        for agent_id in sorted(self._running):
            try:
                reserve = read_reserve(self.folder, agent_id)
                spent = spent_of_context(self.folder, agent_id).values()
            except (OSError, ValueError):
                continue  # what is damaged is said by the hook
            if reserve is not None:
                known.append((agent_id, reserve, list(spent)))
        tokens = share_out(
            self._left_tokens,
            [reserve.tokens or 0 for _, reserve, _ in known],
            [sum(sum(one.all_kinds) for one in spent) for _, _, spent in known],
        )
        nano_usd = share_out(
            self._left_nano_usd,
            [reserve.nano_usd or 0 for _, reserve, _ in known],
            [sum(one.all_nano_usd for one in spent) for _, _, spent in known],
        )
        changed = []
        for number, (agent_id, reserve, _) in enumerate(known):
            before = reserve.tokens, reserve.nano_usd
            if reserve.tokens is not None:
                reserve.tokens = tokens[number]
            if reserve.nano_usd is not None:
                reserve.nano_usd = nano_usd[number]
            now = reserve.tokens, reserve.nano_usd
            if now != before:
                is_more = sum(map(_or_zero, now)) > sum(map(_or_zero, before))
                changed.append((is_more, agent_id, reserve))
        # Those first that may spend less: at no moment may all together spend more.
        for _, agent_id, reserve in sorted(changed, key=lambda one: one[0]):
            reserve.store(self.folder, agent_id)

    def _weigh(self, reserve: Reserve, models: Iterable[str]) -> bool:
        """Add the weights of models, zeros for one without a price; return whether any is new."""
        new = [model for model in models if model and model not in reserve.weights]
        if not new or reserve.nano_usd is None:
            return False
        found = {model: self.prices.token_weights(model) for model in new}
        for model in sorted(set(new) - self._unpriced):
            if found[model] is None:
                self._unpriced.add(model)
                self.tell(f"{model} has no list price: --max-usd does not hold for it")
        # With zeros, so that no hook waits for what is not to be found.
        free = [[0] * (1 + KIND_COUNT)]
        reserve.weights.update({model: one or free for model, one in found.items()})
        return True

    def settle(self, record: ContextRecord, agent_id: str, state: StateRecord | None) -> None:
        """Complete what a context has spent, by what its hooks have counted and by list prices.

        Of a host that was ended, and of one that names no price, they know more than its output.

        Args:
            record: Whose last process has ended.
            agent_id: Its agent.
            state: Of that one, for its model; None = it has none.
        """
        self._running.discard(agent_id)
        counted_usd, is_larger = self._take_counted(record, agent_id)
        # The price of the smaller count would leave out what only the larger one has.
        priced_usd = None if is_larger and counted_usd else self._price(record.spent, state)
        known = [usd for usd in (counted_usd, priced_usd) if usd is not None]
        record.list_usd = max(known, default=record.list_usd)
        with suppress(StateError):  # the next look at one of the others parts it
            self._share_out()

    def _price(self, spent: SpentTokens, state: StateRecord | None) -> float | None:
        if state is None or spent == SpentTokens():
            return None
        usage = TokenUsage(
            spent.input_tokens,
            spent.cache_read_tokens,
            spent.cache_creation_tokens,
            output_tokens=spent.output_tokens,
        )
        # Of the sizes of its requests that of the last one is known.
        request_tokens = state.estimated_tokens or 0
        price = self.prices.price(usage, state.model, request_tokens=request_tokens)
        return None if price is None else price.usd

    def _take_counted(self, record: ContextRecord, agent_id: str) -> tuple[float | None, bool]:
        """Return the cost of what the hooks have counted, and whether that is the larger count."""
        try:
            counted = spent_of_context(self.folder, agent_id).values()
            reserve = read_reserve(self.folder, agent_id)
        except (OSError, ValueError):
            return None, False
        if not counted or reserve is None:
            return None, False
        kinds = [sum(kind) for kind in zip(*(one.all_kinds for one in counted), strict=True)]
        new, read, written, written_1h, output = kinds
        tokens = SpentTokens(new, written + written_1h, read, output)
        # Of two counts the higher one holds, as for the cap.
        is_larger = tokens.all_tokens >= record.spent.all_tokens
        if is_larger:
            record.spent = tokens
        # No hook has run since these replies, with which the relay could have found the weights.
        waiting = [reply for one in counted for reply in one.all_unweighed]
        self._weigh(reserve, dict.fromkeys(model for model, _, _ in waiting))
        late = sum(reserve.weigh(*reply) or 0 for reply in waiting)
        return (sum(one.all_nano_usd for one in counted) + late) / NANO or None, is_larger


def _known_usd(record: ContextRecord) -> float:
    return max(record.cost_usd or 0.0, record.list_usd or 0.0)


def _or_zero(amount: int | None) -> int:
    return amount or 0
