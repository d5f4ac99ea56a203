"""A monitor against a small model of itself: epochs, generations, levels and announcements."""

import copy
import tempfile
from itertools import pairwise

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ultramon import ContextConfig, create_context_monitor
from ultramon.backends.local.backend import LocalBackend
from ultramon.backends.memory import MemoryBackend
from ultramon.handoff import Workspace
from ultramon.state.event_keys import event_key
from ultramon.testing import FakeClock

LIMIT = 1_000
RUNGS = (("warning", 0.70), ("critical", 0.85))
MARGIN = 0.05
NAMES = ["normal", *(name for name, _ in RUNGS)]

EDGES = [rung + step for rung in (640, 650, 700, 790, 800, 850) for step in (-1, 0, 1, 5)]
token_counts = st.one_of(st.integers(1, 1_200), st.sampled_from(EDGES))


class Model:
    """What a monitor should know; everything else follows from these fields."""

    def __init__(self):
        self.epoch = 1
        self.height = 0
        self.anchor = None
        self.anchor_is_report = False
        self.is_read = False
        self.reply = 0
        self.since = 0
        self.announced = {}

    @property
    def tokens(self):
        return (self.anchor or 0) + self.since

    @property
    def is_bound(self):
        return self.epoch > 1 and self.anchor is None

    @property
    def known(self):
        return self.is_read and not self.is_bound

    @property
    def level(self):
        return NAMES[self.height] if self.known or self.height else None

    def begin_epoch(self, tokens_after):
        self.epoch += 1
        self.height = 0
        self.anchor, self.anchor_is_report = tokens_after, False
        self.is_read = tokens_after is not None
        self.reply = self.since = 0
        self.announced = {}

    def decide(self):
        """Move to the level of the reading; return the event that this is, if any."""
        if not self.is_read:
            return None
        ratio = self.tokens / LIMIT
        reached = sum(ratio >= rung for _, rung in RUNGS)
        before = self.height
        if reached >= self.height:
            self.height = reached
        elif not self.is_bound:
            while self.height > reached and ratio < RUNGS[self.height - 1][1] - MARGIN:
                self.height -= 1
        if self.height == before:
            return None
        level = NAMES[self.height]
        if self.height > before:
            self.announced[level] = self.announced.get(level, 0) + 1
        return ("context_threshold_reached" if self.height > before else "context_relaxed", level)


class MonitorMachine(RuleBasedStateMachine):
    """Every sequence of calls, crashes, restarts and late writers leaves what the model says."""

    def __init__(self):
        super().__init__()
        self.clock = FakeClock()
        self.backend = self.make_backend()
        self.zombies = []
        self.log = []
        self.generation = 0
        self.active = False
        self.model = self.saved = Model()

    def make_backend(self):
        return MemoryBackend()

    def expect(self, kind, level=None):
        """Expect an event; with it the state is stored."""
        self.log.append((self.generation, self.model.epoch, kind, level))
        self.saved = copy.deepcopy(self.model)

    def apply(self, began_epoch=False):
        if began_epoch:
            self.expect("context_epoch_started")
        change = self.model.decide()
        if change is not None:
            self.expect(*change)

    def create(self, **given):
        config = ContextConfig(
            context_limit_tokens=LIMIT, tokenizer_family="chars/4", on_error="log"
        )
        self.monitor = create_context_monitor(
            "scout-1", config, backend=self.backend, clock=self.clock, **given
        ).start()
        self.generation += 1
        self.active = True
        self.expect("agent_started")

    @initialize()
    def first_start(self):
        self.create()

    @precondition(lambda self: self.active and self.model.since < 450)
    @rule(tokens=st.integers(1, 40))
    def track(self, tokens):
        # Fewer than 500 estimated tokens between reports teach no calibration.
        self.monitor.track_content("x" * (4 * tokens))
        self.model.is_read = True
        self.model.since += tokens + self.model.reply
        self.model.reply = 0
        self.apply()

    @precondition(lambda self: self.active)
    @rule(tokens=token_counts, output=st.integers(0, 300))
    def report(self, tokens, output):
        model = self.model
        fell = model.anchor_is_report and tokens < 0.70 * model.anchor
        self.monitor.report_usage(input_tokens=tokens, output_tokens=output)
        if fell:
            model.begin_epoch(None)
        model.anchor, model.anchor_is_report = tokens, True
        model.is_read = True
        model.reply, model.since = output, 0
        self.apply(began_epoch=fell)

    @precondition(lambda self: self.active)
    @rule(tokens=st.one_of(st.none(), st.integers(0, 1_000)))
    def compact(self, tokens):
        self.monitor.record_compaction(tokens)
        self.model.begin_epoch(tokens)
        self.apply(began_epoch=True)

    @precondition(lambda self: self.active)
    @rule()
    def clear(self):
        self.monitor.clear()
        self.model.begin_epoch(0)
        self.apply(began_epoch=True)

    @precondition(lambda self: self.active)
    @rule()
    def hand_off(self):
        self.monitor.hand_off(workspace=Workspace(cwd="/w"))
        self.expect("handoff_ready")

    @rule()
    def time_passes(self):
        """After the save interval the store knows what was tracked, too."""
        self.clock.advance(5)
        self.saved = copy.deepcopy(self.model)

    @precondition(lambda self: self.active)
    @rule()
    def save(self):
        self.monitor.update_heartbeat()
        self.saved = copy.deepcopy(self.model)

    @precondition(lambda self: self.active)
    @rule()
    def stop(self):
        self.monitor.stop()
        self.expect("agent_stopped")
        self.active = False

    @precondition(lambda self: self.active)
    @rule(keeps_running=st.booleans())
    def crash_and_restart(self, keeps_running):
        """The owner vanishes, or only seems to; another one continues from what was stored."""
        if keeps_running:
            self.zombies.append(self.monitor)
        self.model = copy.deepcopy(self.saved)
        self.create(takeover=True)

    @precondition(lambda self: not self.active)
    @rule()
    def start_again(self):
        epoch = self.model.epoch
        self.model = Model()
        self.model.epoch = epoch + 1
        self.model.anchor = 0
        self.create()

    @precondition(lambda self: self.zombies)
    @rule(tokens=st.integers(1, 1_200))
    def late_writer(self, tokens):
        """A displaced owner writes all it can; nothing of it may be seen."""
        zombie = self.zombies.pop()
        zombie.report_usage(input_tokens=tokens)
        zombie.clear()
        zombie.update_heartbeat()
        zombie.stop("failed")

    @invariant()
    def the_monitor_knows_what_the_model_knows(self):
        state = self.monitor.get_state()
        assert (state.epoch, state.generation) == (self.model.epoch, self.generation)
        assert state.threshold_status == self.model.level
        assert state.announced.rungs == self.model.announced
        assert state.estimated_tokens == self.model.tokens
        assert state.usage_ratio == (self.model.tokens / LIMIT if self.model.known else None)
        assert state.active is self.active

    @invariant()
    def the_store_has_the_last_fact(self):
        record = self.backend.load("scout-1").record
        assert (record.epoch, record.generation) == (self.model.epoch, self.generation)
        assert record.threshold_status == self.saved.level
        assert record.estimated_tokens == self.saved.tokens
        assert record.active is self.active

    @invariant()
    def the_log_is_what_happened(self):
        events = self.backend.events(limit=10_000).events
        log = [(e["generation"], e["epoch"], e["type"], e.get("level")) for e in events]
        assert log == self.log
        keys = [event_key(event) for event in events]
        assert len(set(keys)) == len(keys)
        for (generation, epoch, *_), (next_generation, next_epoch, *_) in pairwise(log):
            assert next_generation - generation in (0, 1)
            assert next_epoch >= epoch

    def teardown(self):
        self.backend.close()


class FileMonitorMachine(MonitorMachine):
    """The same over files."""

    def make_backend(self):
        self.folder = tempfile.TemporaryDirectory()
        return LocalBackend(self.folder.name)

    def teardown(self):
        super().teardown()
        self.folder.cleanup()


TestMonitorInMemory = MonitorMachine.TestCase
TestMonitorInMemory.settings = settings(stateful_step_count=40, deadline=None)
TestMonitorInFiles = FileMonitorMachine.TestCase
TestMonitorInFiles.settings = settings(
    max_examples=settings().max_examples // 3,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
