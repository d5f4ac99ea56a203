"""What the agents of a relay's context have spent, and whether that is more than their reserve.

Standard library only; loaded in a relay that has a cap, by every call that a request may follow. A
hook knows no price: the relay has put the weight of each kind of token into the reserve.
"""

from __future__ import annotations

import os
import time
from operator import add
from signal import SIGKILL

from ultramon.hosts.port import SUBAGENT_ENDED, TOOL_ENDED, TOOLS_ENDED
from ultramon.hosts.transcripts.jsonl import open_transcript, read_lines, whole_lines
from ultramon.hosts.transcripts.records import Billed, Report
from ultramon.system import compact_json
from ultramon.system.files import open_private, read_private_file, replace_file
from ultramon.system.locks import Lock
from ultramon.system.processes import process_started_at

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable
    from typing import Any, TypeVar

    from ultramon.hosts.calls.called_agent import CalledAgent
    from ultramon.hosts.calls.readings import Readings
    from ultramon.hosts.calls.store import HookStore
    from ultramon.hosts.port import HookEvent, Host
    from ultramon.hosts.transcripts.records import Record

    _Stored = TypeVar("_Stored")
    _Reply = list[Any]
    """The model of a request, its input, and what it cost in tokens by kind."""

FOLDER = "spending"
"""Of a relay's run: one reserve a context, and what each agent has spent of it."""
RESERVE_SUFFIX = ".reserve.json"
SPENT_SUFFIX = ".spent.json"
SPENT = "what the relay may spend is spent"
REASON = f"[ultramon] ended this turn: {SPENT}."
KIND_COUNT = 5
MAX_UNWEIGHED = 1000
"""Replies of models without weights that are kept apart until the relay has found the weights."""
MAX_COUNTED = 1000
"""Replies of an agent, the last ones, that are known as counted where they are read once more."""
_LOCK_SECONDS = 1.0
_WAIT_SECONDS = 0.15
_WEIGHT_SECONDS = 5.0
"""A call waits so long, once for each model, until the relay has found what the model costs."""
_LOOK_AGAIN_SECONDS = 0.02
_NOT_OURS = (LookupError, TypeError, AttributeError)
_BEFORE_REQUEST = (TOOL_ENDED, TOOLS_ENDED, SUBAGENT_ENDED)


def reserve_path(run_folder: str, session_id: str) -> str:
    """Return where the reserve of a context lies."""
    return os.path.join(run_folder, FOLDER, session_id + RESERVE_SUFFIX)


class Spent:
    """What one agent has spent, as it is stored.

    Attributes:
        tokens: Of all replies together, by kind: the fields of
            `ultramon.context.token_usage.TokenUsage`.
        nano_usd: At the weights of the reserve, in billionths of a dollar.
        largest_nano_usd: Of one reply, at most.
        largest_tokens: Of one reply, at most.
        unweighed: The models of which a reply has no weight yet, each with the input of the
            request and its tokens by kind.
        counted: What names the last replies, see `name_of`, the oldest first.
        held: The tokens, by kind, of a last reply that a later line may still take back: they are
            not in `tokens` yet.
        held_nano_usd: Of the same one.
        held_unweighed: Of the same one, where its model has no weight yet.
        awaited: Models whose weights a call has waited for.
    """

    def __init__(self, value: dict[str, Any] | None = None) -> None:
        value = {} if value is None else value
        self.tokens: list[int] = value.get("tokens", [0] * KIND_COUNT)
        self.nano_usd: int = value.get("nanoUsd", 0)
        self.largest_tokens: int = value.get("largestTokens", 0)
        self.largest_nano_usd: int = value.get("largestNanoUsd", 0)
        self.unweighed: list[_Reply] = value.get("unweighed", [])
        self.reader: dict[str, Any] | None = value.get("reader")
        self.offset: int = value.get("offset", 0)
        self.last: list[Any] | None = value.get("last")
        self.counted: dict[str, None] = dict.fromkeys(value.get("counted", ()))
        self.held: list[int] = value.get("held", [0] * KIND_COUNT)
        self.held_nano_usd: int = value.get("heldNanoUsd", 0)
        self.held_unweighed: list[_Reply] = value.get("heldUnweighed", [])
        self.awaited: list[str] = value.get("awaited", [])

    @property
    def all_kinds(self) -> list[int]:
        """The tokens of every reply so far, by kind."""
        return list(map(add, self.tokens, self.held))

    @property
    def all_unweighed(self) -> list[_Reply]:
        """The replies so far of which no weight is known."""
        return [*self.unweighed, *self.held_unweighed]

    @property
    def all_nano_usd(self) -> int:
        """The cost of every reply so far that has a weight."""
        return self.nano_usd + self.held_nano_usd

    def to_json(self) -> dict[str, Any]:
        """Return the members of the stored object."""
        return {
            "tokens": self.tokens,
            "nanoUsd": self.nano_usd,
            "largestTokens": self.largest_tokens,
            "largestNanoUsd": self.largest_nano_usd,
            "unweighed": self.unweighed,
            "reader": self.reader,
            "offset": self.offset,
            "last": self.last,
            "counted": list(self.counted),
            "held": self.held,
            "heldNanoUsd": self.held_nano_usd,
            "heldUnweighed": self.held_unweighed,
            "awaited": self.awaited,
        }

    def add(self, record: Report | Billed, reserve: Reserve, message_id: str | None = None) -> None:
        """Count a request; a reply that corrects the one before it takes that one's place.

        Args:
            record: The request.
            reserve: For its weight.
            message_id: What names it; None = as `name_of` does.
        """
        self.counted[name_of(record) if message_id is None else message_id] = None
        if len(self.counted) > MAX_COUNTED:
            del self.counted[next(iter(self.counted))]
        if isinstance(record, Report) and record.update and self.last is not None:
            self._count(self.last, -1)
        entry = reply_of(record)
        counted = [*entry, reserve.weigh(*entry)]
        self._count(counted, 1)
        if isinstance(record, Report):  # no other request is corrected
            self.last = counted

    def _count(self, reply: list[Any], sign: int) -> None:
        model, request, kinds, nano_usd = reply
        self.tokens = [one + sign * more for one, more in zip(self.tokens, kinds, strict=True)]
        if sign > 0:
            self.largest_tokens = max(self.largest_tokens, sum(kinds))
        if nano_usd is not None:
            self._add_cost(sign * nano_usd)
        elif sign > 0:
            self.unweighed = [*self.unweighed, [model, request, kinds]][-MAX_UNWEIGHED:]
        elif [model, request, kinds] in self.unweighed:
            self.unweighed.remove([model, request, kinds])

    def _add_cost(self, nano_usd: int) -> None:
        self.nano_usd += nano_usd
        self.largest_nano_usd = max(self.largest_nano_usd, nano_usd)

    def hold(self, records: Iterable[Record], reserve: Reserve) -> None:
        """Take the replies that a later line may still take back, in place of those before."""
        self.held, self.held_nano_usd, self.held_unweighed = [0] * KIND_COUNT, 0, []
        for record in records:
            if isinstance(record, (Report, Billed)):
                entry = reply_of(record)
                self.held = list(map(add, self.held, entry[2]))
                nano_usd = reserve.weigh(*entry)
                self.held_nano_usd += nano_usd or 0
                if nano_usd is None:
                    self.held_unweighed.append([*entry])

    def weigh_again(self, reserve: Reserve) -> None:
        """Weigh the replies that had no weight, as far as the reserve has them by now."""
        waiting, self.unweighed = self.unweighed, []
        for model, request, kinds in waiting:
            nano_usd = reserve.weigh(model, request, kinds)
            if nano_usd is None:
                self.unweighed.append([model, request, kinds])
                continue
            self._add_cost(nano_usd)
            if self.last is not None and self.last[:3] == [model, request, kinds]:
                self.last[3] = nano_usd


class Reserve:
    """What one context may spend.

    Attributes:
        tokens: Of all kinds together; None = any.
        nano_usd: Billionths of a dollar; None = any.
        weights: By model the rows of `ultramon.prices.price_list.PriceList.token_weights`.
    """

    def __init__(
        self, tokens: int | None, nano_usd: int | None, weights: dict[str, list[list[int]]]
    ) -> None:
        self.tokens = tokens
        self.nano_usd = nano_usd
        self.weights = weights

    def store(self, run_folder: str, session_id: str) -> None:
        """Store it for the hooks of a context.

        Raises:
            StateError: The system refused.
        """
        value = {"tokens": self.tokens, "nanoUsd": self.nano_usd, "weights": self.weights}
        replace_file(
            reserve_path(run_folder, session_id), compact_json.dumps(value).encode("ascii")
        )

    def weigh(self, model: str, request: int, kinds: list[int]) -> int | None:
        """Return what a reply has cost in billionths of a dollar; None = its model has no weight.

        Where no dollars are reserved nothing has a cost.

        Args:
            model: As the transcript names it.
            request: The input of the request, which decides which of the model's tiers holds.
            kinds: The tokens by kind, as in `Spent.tokens`.
        """
        if self.nano_usd is None:
            return 0
        tiers = self.weights.get(model)
        if tiers is None:
            return None
        weights = next(tier for tier in reversed(tiers) if tier[0] < request or not tier[0])[1:]
        return sum(count * weight for count, weight in zip(kinds, weights, strict=True))

    def is_passed(self, all_spent: Collection[Spent]) -> bool:
        """Return whether the agents of the context have spent all of it."""
        tokens = sum(sum(one.all_kinds) for one in all_spent)
        nano_usd = sum(one.all_nano_usd for one in all_spent)
        return (self.tokens is not None and tokens >= self.tokens) or (
            self.nano_usd is not None and nano_usd >= self.nano_usd
        )

    def is_near(self, all_spent: Collection[Spent]) -> bool:
        """Return whether one more reply, as large as the largest, may spend the rest."""
        tokens = sum(sum(one.all_kinds) for one in all_spent)
        nano_usd = sum(one.all_nano_usd for one in all_spent)
        more = max(one.largest_tokens for one in all_spent)
        more_nano_usd = max(one.largest_nano_usd for one in all_spent)
        return (self.tokens is not None and tokens + 2 * more >= self.tokens) or (
            self.nano_usd is not None and nano_usd + 2 * more_nano_usd >= self.nano_usd
        )


def reply_of(record: Report | Billed) -> tuple[str, int, list[int]]:
    """Return the model of a request, its input, and what it cost in tokens by kind."""
    kinds = list(record.billed_tokens)
    request = record.tokens if isinstance(record, Report) else sum(kinds[:-1])
    return record.model or "", request, kinds


def name_of(record: Report | Billed) -> str:
    """Return the id of a request's message; where it has none, what no two requests share."""
    message_id = record.message_id if isinstance(record, Report) else None
    return message_id or f"{record.at} {record.billed_tokens}"


def spent_of_context(run_folder: str, session_id: str) -> dict[str, Spent]:
    """Return what each agent of a context has spent, by its id; without a file there is none.

    Raises:
        OSError: The folder is there and cannot be read.
    """
    folder = os.path.join(run_folder, FOLDER)
    found = {}
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return {}
    for name in names:
        agent_id = name.removesuffix(SPENT_SUFFIX)
        if agent_id != name and (agent_id == session_id or agent_id.startswith(f"{session_id}.")):
            spent = _read(os.path.join(folder, name), _decode_spent)
            if spent is not None:
                found[agent_id] = spent
    return found


def read_reserve(run_folder: str, session_id: str) -> Reserve | None:
    """Return the reserve of a context; None = it may spend what it likes.

    Raises:
        OSError: It cannot be read.
        ValueError: It is damaged.
    """
    return _read(reserve_path(run_folder, session_id), _decode_reserve)


class Spending:
    """The spending of the agent of one hook call, and of the others of its context.

    Args:
        event: The call.
        store: Where the agents are.
        called: The agent.
        readings: Its transcript.
    """

    def __init__(
        self, event: HookEvent, store: HookStore, called: CalledAgent, readings: Readings
    ) -> None:
        self._event = event
        self._store = store
        self._called = called
        self._readings = readings
        self._folder = os.path.dirname(store.installed.path)
        self._own = Spent()

    def is_over(self) -> bool:
        """Count what the agent has spent since; return whether the reserve is spent.

        Raises:
            StateError: What was spent could not be stored.
            OSError: A file cannot be read.
            ValueError: A file is damaged.
        """
        reserve = read_reserve(self._folder, self._called.session_id)
        if reserve is None:
            return False
        all_spent = self._count(reserve)
        if self._await_weights(reserve):
            reserve = read_reserve(self._folder, self._called.session_id) or reserve
            all_spent = self._count(reserve)
        if (
            self._event.awaited_id is not None
            and not reserve.is_passed(all_spent)
            and reserve.is_near(all_spent)
        ):
            # The reply that is being written may be the one that spends the rest.
            reading = self._readings.look()
            if not reading.is_current:
                self._readings.wait_until(lambda one: one.is_current, _WAIT_SECONDS)
                all_spent = self._count(reserve)
        return reserve.is_passed(all_spent)

    def _await_weights(self, reserve: Reserve) -> bool:
        """Wait for the weights of models first used just now; return whether there were any.

        The relay finds them when it looks at its process; without them a reply costs nothing.
        """
        new = {model for model, _, _ in self._own.all_unweighed} - {*self._own.awaited, ""}
        if reserve.nano_usd is None or not new:
            return False
        self._own.awaited = [*self._own.awaited, *sorted(new)][-MAX_UNWEIGHED:]
        deadline = time.monotonic() + _WEIGHT_SECONDS
        while time.monotonic() < deadline:
            found = read_reserve(self._folder, self._called.session_id)
            if found is None or new <= found.weights.keys():
                break
            time.sleep(_LOOK_AGAIN_SECONDS)
        return True

    def _count(self, reserve: Reserve) -> list[Spent]:
        agent_id, path = self._called.agent_id, self._readings.path
        own = os.path.join(self._folder, FOLDER, agent_id + SPENT_SUFFIX)
        others = spent_of_context(self._folder, self._called.session_id)
        with Lock(f"{own}.lock", open_private, _LOCK_SECONDS):
            spent = _read(own, _decode_spent) or Spent()
            spent.awaited = list(dict.fromkeys([*spent.awaited, *self._own.awaited]))
            spent.weigh_again(reserve)
            if path is not None:
                count_new(self._store.host, path, spent, reserve)
            replace_file(own, compact_json.dumps(spent.to_json()).encode("ascii"))
        self._own = spent
        return list((others | {agent_id: spent}).values())

    def stop_host(self) -> None:
        """End the host of the context, whose hooks cannot end a turn, before its next request.

        Only the process that a hook of this session has noted, and only while it is the same one.

        Raises:
            StateError: The end of the session could not be stored; it was not ended.
        """
        if self._event.kind not in _BEFORE_REQUEST:
            return
        record = self._store.find(self._called.session_id)
        if record is None or record.pid is None or record.pid_started_at is None:
            return
        if process_started_at(record.pid) == record.pid_started_at:
            self._store.update(record.agent_id, lambda agent: agent.end("cancelled", SPENT))
            # Asked to end, Gemini CLI sends one more request. What it has started, the relay ends.
            os.kill(record.pid, SIGKILL)


def count_new(host: Host, path: str, spent: Spent, reserve: Reserve) -> None:
    """Count the replies that have not been counted.

    Raises:
        OSError: The transcript cannot be opened, but for one that is not there yet.
        ValueError: It is no regular file but, for example, a link; or of an unknown version.
    """
    try:
        requests = host.transcripts.new_requests(path, spent.counted, MAX_COUNTED)
        if requests is not None:
            for message_id, request in requests:
                spent.add(request, reserve, message_id)
            return
        fd, size = open_transcript(path)
    except FileNotFoundError:
        return
    known: dict[str, None] = {}
    with open(fd, "rb") as stream:
        if size < spent.offset:  # the host has written it anew
            spent.offset, spent.reader, known = 0, None, dict(spent.counted)
        stream.seek(spent.offset)
        try:
            reader = host.transcripts.open_reader(spent.reader)
        except _NOT_OURS as error:
            raise ValueError(f"of {path} no relay stored what was read ({error!r})") from error
        if reader is None:
            return
        for record in read_lines(whole_lines(stream), reader.read, reader.is_beside_requests):
            if isinstance(record, (Report, Billed)) and name_of(record) not in known:
                spent.add(record, reserve)
        spent.offset, spent.reader = stream.tell(), reader.memory()
        spent.hold(reader.held, reserve)


def _read(path: str, make: Callable[[dict[str, Any]], _Stored]) -> _Stored | None:
    try:
        data, _ = read_private_file(path)
    except FileNotFoundError:
        return None
    value = compact_json.loads(data)
    try:
        return make(value)
    except _NOT_OURS as error:
        raise ValueError(f"{path}: not what a relay wrote ({error!r})") from error


def _decode_reserve(value: dict[str, Any]) -> Reserve:
    tokens, nano_usd, weights = value["tokens"], value["nanoUsd"], value["weights"]
    _check_counts(one for one in (tokens, nano_usd) if one is not None)
    for tiers in weights.values():
        if tiers[0][0] != 0 or any(len(tier) != 1 + KIND_COUNT for tier in tiers):
            raise TypeError("weights of a model")
        for tier in tiers:
            _check_counts(tier)
    return Reserve(tokens, nano_usd, weights)


def _decode_spent(value: dict[str, Any]) -> Spent:
    found = Spent(value)
    _check_counts(
        (found.nano_usd, found.largest_tokens, found.largest_nano_usd, found.offset,
         found.held_nano_usd)
    )  # fmt: skip
    for kinds in (found.tokens, found.held):
        _check_kinds(kinds)
    for reply in found.all_unweighed:
        _check_reply(*reply)
    if found.last is not None:
        *reply, nano_usd = found.last
        _check_reply(*reply)
        _check_counts(() if nano_usd is None else (nano_usd,))
    if not isinstance(found.awaited, list) or not all(isinstance(m, str) for m in found.awaited):
        raise TypeError("the models that were waited for")
    if not isinstance(found.reader, dict | None):
        raise TypeError("a reader's memory")
    return found


def _check_reply(model: object, request: object, kinds: object) -> None:
    if not isinstance(model, str):
        raise TypeError("the model of a reply")
    _check_counts((request,))
    _check_kinds(kinds)


def _check_kinds(kinds: object) -> None:
    if not isinstance(kinds, list) or len(kinds) != KIND_COUNT:
        raise TypeError("tokens by kind")
    _check_counts(kinds)


def _check_counts(counts: Iterable[object]) -> None:
    for count in counts:
        if type(count) is not int or count < 0:
            raise TypeError(f"{count!r} is no count")
