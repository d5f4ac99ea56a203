"""A gauge as hooks have it: between two calls it is the bytes of a state."""

from ultramon.context.gauge import Gauge
from ultramon.context.tracker import ContextTracker
from ultramon.hosts.calls.memory import HookMemory
from ultramon.state.record import StateRecord, decode_state, encode_state
from ultramon.testing.clock import START

MODEL = "claude-sonnet-4-5"


class Stored:
    """A hosted agent that lives in the bytes of a state file between two calls."""

    def __init__(self, ladder, cap, model=MODEL, after=START):
        record = StateRecord(
            "agent", run="run", session_id="agent", host="host", model=model, generation=1,
            epoch=1, epoch_started_at=START, announced={"epoch": 1, "rungs": {}}, by_source={},
            tokens_source="estimated", limit_source="unknown", action="none",
            extra={"memory": {"readingsAfter": after}},
        )  # fmt: skip
        self.ladder, self.cap = ladder, cap
        self.data = encode_state(record, "path")
        self.events = []
        self.call(lambda gauge: gauge.resolve_limit(), START)

    @property
    def record(self):
        return decode_state(self.data, "path")

    def gauge(self, now=START):
        record = self.record
        gauge = Gauge(
            record,
            self.ladder,
            ContextTracker(),
            lambda: now,
            memory=HookMemory.of(record.extra["memory"]),
            settings={"explicit_limit_tokens": self.cap},
            takes_repeats=True,
        )
        return record, gauge

    def call(self, change, now):
        record, gauge = self.gauge(now)
        result = change(gauge)
        self.events += gauge.events
        record.seq += 1
        self.data = encode_state(record, "path")
        return result

    def set_model(self, model, now):
        record, gauge = self.gauge(now)
        record.model = model
        record.extra["memory"].pop("highestTokens", None)
        gauge.resolve_limit()
        self.data = encode_state(record, "path")

    def take(self, tokens, now=START + 1, output=0, at=None):
        at = now if at is None else at
        return self.call(lambda gauge: gauge.take(tokens, output, at), now)
