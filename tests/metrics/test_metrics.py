"""Metrics: what is shown of agents, what never is, and both exporters."""

from __future__ import annotations

import gc
import os
import re
import runpy
import subprocess
import sys

import pytest
from helpers import ROOT
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as parse_openmetrics,
)
from prometheus_client.parser import text_string_to_metric_families as parse

from ultramon import ContextConfig, Fleet, open_backend, queue_message
from ultramon.backends.level_watch import LevelWatch
from ultramon.backends.memory import MemoryBackend
from ultramon.errors import ConfigurationError, StateError, StateWriteError
from ultramon.metrics import MetricsSource, render_prometheus, start_opentelemetry
from ultramon.metrics.definitions import ATTRIBUTES, COUNTER, METRICS
from ultramon.notices.budgets import budget_crossings
from ultramon.state.budget_readings import BudgetReading, BudgetReadings, Scope
from ultramon.state.plan_limits import FIVE_HOURS, PlanLimits, plan_limit
from ultramon.system.processes import this_machine
from ultramon.testing import make_event, make_record

START_OF_OPENMETRICS = "application/openmetrics-text; version=1.0.0"


@pytest.fixture
def store(request, tmp_path):
    """A store in memory; `on_every_store` has a test run on the others, too."""
    kind = getattr(request, "param", "memory")
    if kind == "memory":
        yield MemoryBackend()
        return
    url = request.getfixturevalue("postgres_store") if kind == "postgres" else str(tmp_path / "own")
    backend = open_backend(url)
    yield backend
    backend.close()


on_every_store = pytest.mark.parametrize("store", ["memory", "file", "postgres"], indirect=True)


@pytest.fixture
def source(store, ultramon_clock):
    """The metrics of all runs of a store, from its beginning on."""
    source = MetricsSource(store, clock=ultramon_clock, cache_seconds=0)
    source.begin()
    return source


def scrape(source):
    """Return what Prometheus' own parser reads: values by name and labels."""
    body, content_type = render_prometheus(source)
    assert content_type.startswith("text/plain")
    found = {}
    for family in parse(body.decode()):
        for sample in family.samples:
            labels = tuple(sorted(sample.labels.items()))
            assert (sample.name, labels) not in found
            found[sample.name, labels] = sample.value
    return found


def values_of(source, name):
    """Return the values of one metric by the values of its labels, in the order of the table."""
    (metric,) = (metric for metric in METRICS if metric.shown_name == name)
    return {
        tuple(dict(labels)[label] for label in metric.labels): value
        for (found, labels), value in scrape(source).items()
        if found == name
    }


@on_every_store
def test_a_scrape_shows_each_fact_about_an_agent(source, make, ultramon_clock):
    """Tokens, limit, ratio, ages, turns, and how many agents are how full, with their units."""
    agent = make("scout-1", run="audit", model="claude-sonnet-4-5", parent_id=None)
    for tokens in (120_000, 130_000, 145_000):
        ultramon_clock.advance(10)
        agent.report_usage(input_tokens=tokens)
    ultramon_clock.advance(20)
    assert values_of(source, "ultramon_context_tokens") == {
        ("scout-1", "audit", "sdk", "claude-sonnet-4-5"): 145_000
    }
    assert values_of(source, "ultramon_context_limit_tokens") == {
        ("scout-1", "audit", "model"): 200_000
    }
    assert values_of(source, "ultramon_context_usage_ratio") == {("scout-1", "audit", "sdk"): 0.725}
    assert values_of(source, "ultramon_reading_age_seconds") == {("scout-1", "audit"): 20}
    [age] = values_of(source, "ultramon_heartbeat_age_seconds").values()
    assert 0 <= age <= 15
    ahead = agent.get_state().forecast.rungs["critical"]
    assert values_of(source, "ultramon_turns_to_level") == {
        ("scout-1", "audit", "warning"): 0,
        ("scout-1", "audit", "critical"): ahead.turns,
    }
    assert values_of(source, "ultramon_turns_to_level_low") == {
        ("scout-1", "audit", "warning"): 0,
        ("scout-1", "audit", "critical"): ahead.turns_low,
    }
    highs = {("scout-1", "audit", "warning"): 0.0}
    if ahead.turns_high is not None:
        highs["scout-1", "audit", "critical"] = ahead.turns_high
    assert values_of(source, "ultramon_turns_to_level_high") == highs
    assert ahead.turns > 0
    assert values_of(source, "ultramon_agents") == {("audit", "sdk", "warning", "alive"): 1}
    assert values_of(source, "ultramon_agents_not_shown") == {(): 0}


def test_nothing_is_shown_of_a_reading_that_is_not_known(source, make, ultramon_clock):
    """No tokens before the first reading, no ratio of an unknown limit, and never 0 instead."""
    make("new", model="claude-sonnet-4-5")
    unknown = make("unknown", model="of-no-table")
    unknown.report_usage(input_tokens=5_000)
    compacted = make("compacted", model="claude-sonnet-4-5")
    compacted.report_usage(input_tokens=150_000)
    compacted.record_compaction()
    compacted.track_content("what came since " * 100)
    compacted.update_heartbeat()
    unknown.update_heartbeat()
    assert values_of(source, "ultramon_context_tokens") == {
        ("unknown", "default", "sdk", "of-no-table"): 5_000
    }
    assert values_of(source, "ultramon_context_usage_ratio") == {}
    assert values_of(source, "ultramon_turns_to_level") == {}
    assert {key[0] for key in values_of(source, "ultramon_context_limit_tokens")} == {
        "new",
        "compacted",
    }
    assert sum(values_of(source, "ultramon_agents").values()) == 3
    assert {key[2] for key in values_of(source, "ultramon_agents")} == {"unknown"}


def test_no_label_holds_text_of_an_agent(source, make, store):
    """Label, task, goal, working directory and an odd model's name stay inside."""
    secret = 'ignore "all"\nrules'
    agent = make("scout-1", label=secret, goal=secret, model=f"{secret} 4")
    agent.set_current_task(secret)
    agent.report_usage(input_tokens=1_000)
    agent.hand_off(notes=secret, next_step=secret)
    shown = scrape(source)
    text = render_prometheus(source)[0].decode()
    assert "ignore" not in text
    assert os.getcwd() not in text
    assert ("ultramon_context_tokens", ()) not in shown
    assert values_of(source, "ultramon_context_tokens") == {
        ("scout-1", "default", "sdk", "other"): 1_000
    }
    names = {name for _, labels in shown for name, _ in labels}
    assert names <= {name for metric in METRICS for name in metric.labels}


def test_an_agent_that_ended_or_was_lost_has_no_series_of_its_own(source, make, ultramon_clock):
    """It is counted by its lifecycle; cardinality does not grow with every agent there ever was."""
    kept = [make(name, run="audit", model="claude-sonnet-4-5") for name in ("a", "b", "c")]
    for agent in kept:
        agent.report_usage(input_tokens=10_000)
    ultramon_clock.advance(6)  # what is below the first rung is saved by then
    assert len(values_of(source, "ultramon_context_tokens")) == 3
    before = make("gone", run="audit", model="claude-sonnet-4-5")
    before.report_usage(input_tokens=10_000)
    before.stop()
    assert {key[0] for key in values_of(source, "ultramon_context_tokens")} == {
        "a",
        "b",
        "c",
    }
    assert values_of(source, "ultramon_agents") == {
        ("audit", "sdk", "normal", "alive"): 3,
        ("audit", "sdk", "normal", "ended"): 1,
    }


def test_the_lost_and_the_unreadable_are_counted():
    """A state of a process that is gone counts as lost; one that cannot be read is not hidden."""
    store = MemoryBackend()
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        pass
    for name, fields in {
        "lost": {"pid": process.pid, "pid_started_at": "1"},
        "broken": {"ladder": {"rungs": 7}},
    }.items():
        record = make_record(name, measured_at=1.0, **fields)
        store.start_agent(
            name, lambda *_, r=record: (r, []), takeover=False, now=0.0, machine=this_machine()
        )
    source = MetricsSource(store, cache_seconds=0)
    assert values_of(source, "ultramon_agents") == {
        ("default", "sdk", "normal", "lost"): 1,
        ("unknown", "unknown", "unknown", "unreadable"): 1,
    }


def test_beyond_the_limit_the_most_urgent_have_series(make, store, ultramon_clock):
    """The others are in the sums, and how many they are is said."""
    kept = [make(f"scout-{number}", model="claude-sonnet-4-5") for number in range(1, 6)]
    for number, agent in enumerate(kept, 1):
        agent.report_usage(input_tokens=number * 30_000)
    ultramon_clock.advance(6)
    source = MetricsSource(store, agent_limit=2, clock=ultramon_clock)
    for name in ("ultramon_context_tokens", "ultramon_heartbeat_age_seconds"):
        assert {key[0] for key in values_of(source, name)} == {"scout-5", "scout-4"}
    assert values_of(source, "ultramon_agents_not_shown") == {(): 3}
    assert sum(values_of(source, "ultramon_agents").values()) == 5
    with pytest.raises(ConfigurationError, match="agent_limit"):
        MetricsSource(store, agent_limit=-1)
    with pytest.raises(ConfigurationError, match="cache_seconds"):
        MetricsSource(store, cache_seconds=float("nan"))


@on_every_store
def test_counters_count_what_happens_from_the_beginning_of_the_export(store, make, ultramon_clock):
    """From 0 on, so that the first one is an increase: crossings, compactions, handoffs, ends."""
    make("before", run="audit", model="claude-sonnet-4-5").report_usage(input_tokens=190_000)
    source = MetricsSource(store, clock=ultramon_clock, cache_seconds=0)
    source.begin()
    crossings = values_of(source, "ultramon_threshold_crossings_total")
    assert crossings == {("audit", "sdk", "warning"): 0, ("audit", "sdk", "critical"): 0}
    agent = make("scout-1", run="audit", model="claude-sonnet-4-5")
    agent.report_usage(input_tokens=150_000)
    agent.report_usage(input_tokens=175_000)
    agent.record_compaction(tokens_after=20_000)
    agent.clear()
    agent.hand_off()
    agent.stop("returned")
    assert values_of(source, "ultramon_threshold_crossings_total") == {
        ("audit", "sdk", "warning"): 1,
        ("audit", "sdk", "critical"): 1,
    }
    assert values_of(source, "ultramon_compactions_total") == {("audit", "sdk"): 1}
    assert values_of(source, "ultramon_handoffs_total") == {
        ("audit", "sdk", "written"): 1,
        ("audit", "sdk", "rebuilt"): 0,
    }
    ended = values_of(source, "ultramon_agents_ended_total")
    assert {key[2] for key, count in ended.items() if count} == {"returned"}
    assert sum(ended.values()) == 1


def test_a_limit_of_a_plan_is_shown_until_its_reset(store, ultramon_clock, tmp_path):
    """And its levels are counted from 0 on, once, whatever process announces them."""
    now, directory = ultramon_clock.now(), str(tmp_path / "plans")
    source = MetricsSource(store, clock=ultramon_clock, cache_seconds=0, state_directory=directory)
    source.begin()
    limit = plan_limit(FIVE_HOURS, 105, now + 600, now - 30)
    PlanLimits(directory).record("claude-code", "/srv/dev/.claude", [limit], now)
    labels = ("/srv/dev/.claude", "claude-code", "five_hour")
    critical = (*labels, "critical")
    assert values_of(source, "ultramon_plan_used_ratio") == {labels: 1.05}
    assert values_of(source, "ultramon_plan_reset_timestamp_seconds") == {labels: now + 600}
    assert values_of(source, "ultramon_plan_reading_age_seconds") == {labels: 30}
    counted = "ultramon_plan_threshold_crossings_total"
    assert values_of(source, counted) == {critical: 0, (*labels, "warning"): 0}
    for name in ("serve", "web"):
        LevelWatch(store, directory, name, clock=ultramon_clock).look()
    assert values_of(source, counted)[critical] == 1
    ultramon_clock.advance(600)
    assert values_of(source, "ultramon_plan_used_ratio") == {}
    assert values_of(source, counted)[critical] == 1


def test_a_counter_never_falls(store, ultramon_clock):
    """A prune of the journal and of the agents takes nothing away; a fall would count twice."""
    source = MetricsSource(store, clock=ultramon_clock, cache_seconds=0)
    source.begin()
    now = ultramon_clock.now()
    store.append_events(
        [
            {**make_event("scout-1", kind, at=now), **details}
            for kind, details in {
                "agent_lost": {"outcome": "lost"},
                "handoff_ready": {"handoff": {}, "source": "fleet:main"},
                "agent_stale": {},
            }.items()
        ]
    )
    expected = {("default", "unknown", "lost"): 1}
    assert values_of(source, "ultramon_agents_ended_total") == expected
    assert values_of(source, "ultramon_handoffs_total") == {("default", "unknown", "rebuilt"): 1}
    later = now + 10_000_000
    store.prune(
        agents_before=later, events_before=later, now=later, machine=this_machine(), dry_run=False
    )
    assert store.events().events == []
    assert values_of(source, "ultramon_agents_ended_total") == expected


def test_waiting_notices_are_counted_by_run(source, store, make, ultramon_clock):
    """With the age of the oldest; a recipient that is not known has an unknown run."""
    make("boss", run="audit")
    for recipient in ("boss", "boss", "nobody"):
        queue_message(recipient, "hello", backend=store, clock=ultramon_clock)
        ultramon_clock.advance(5)
    assert values_of(source, "ultramon_notices_waiting") == {("audit",): 2, ("unknown",): 1}
    ages = values_of(source, "ultramon_notices_oldest_age_seconds")
    assert ages == {("audit",): pytest.approx(15, abs=1), ("unknown",): pytest.approx(5, abs=1)}
    of_run = MetricsSource(store, "audit", clock=ultramon_clock)
    assert values_of(of_run, "ultramon_notices_waiting") == {("audit",): 2}


def test_a_collection_serves_all_who_ask_within_a_second(make, store, ultramon_clock):
    """Also a refusal: instruments that ask one after the other wait for a lost store once."""
    make("scout-1", run="audit")
    source = MetricsSource(store, clock=ultramon_clock)
    first = source.collect()
    make("scout-2", run="audit")
    assert source.collect() is first
    ultramon_clock.advance(1)
    assert sum(values_of(source, "ultramon_agents").values()) == 2


class Refusing(MemoryBackend):
    """A store that can be switched off."""

    refuses = False
    asked = 0

    def changes(self, run, seen):
        self.asked += 1
        if self.refuses:
            raise StateWriteError("memory:", "is away")
        return super().changes(run, seen)


def test_a_store_that_refuses_is_an_error_and_not_a_zero(ultramon_clock, caplog):
    """A scrape fails, OpenTelemetry shows nothing and says so once, and both come back."""
    store = Refusing()
    source = MetricsSource(store, clock=ultramon_clock)
    reader = InMemoryMetricReader()
    end = start_opentelemetry(store, meter_provider=MeterProvider([reader]), clock=ultramon_clock)
    store.refuses = True
    with pytest.raises(StateError, match="is away"):
        source.collect()
    asked = store.asked
    with pytest.raises(StateError, match="is away"):
        source.collect()
    assert store.asked == asked
    assert collected(reader) == {}
    ultramon_clock.advance(1)
    assert collected(reader) == {}
    assert [record.getMessage() for record in caplog.records] == [
        "no metrics for now: memory:: is away"
    ]
    store.refuses = False
    ultramon_clock.advance(1)
    assert ("ultramon_agents_not_shown", ()) in scrape(source)
    assert "ultramon.agents.not_shown" in collected(reader)
    end()


def collected(reader):
    """Return what an SDK collects: by name the points, by their attributes."""
    data = reader.get_metrics_data()
    if data is None:
        return {}
    return {
        metric.name: {
            tuple(point.attributes.items()): point.value for point in metric.data.data_points
        }
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        if metric.data.data_points
    }


def budget(unit, now):
    """A budget that is spent to nine tenths."""
    return BudgetReading(
        f"in-{unit}",
        Scope(),
        period="day",
        period_key="2026-11-26",
        starts_at=now - 60,
        ends_at=now + 60,
        unit=unit,
        limit=1_000,
        spent=900,
        is_whole=True,
        levels=(80, 100),
        level="warning",
        empties_at=None,
        is_enforced=False,
        measured_at=now,
    )


def test_a_budget_is_shown_while_a_process_looks(store, ultramon_clock, tmp_path):
    now, directory = ultramon_clock.now(), str(tmp_path / "budgets")
    source = MetricsSource(store, clock=ultramon_clock, cache_seconds=0, state_directory=directory)
    source.begin()
    BudgetReadings(directory).write([budget("usd", now)])
    assert values_of(source, "ultramon_budget_used_ratio") == {("in-usd",): 0.9}
    assert values_of(source, "ultramon_budget_spent_usd") == {("in-usd",): 900}
    assert values_of(source, "ultramon_budget_spent_tokens") == {}
    counted = "ultramon_budget_threshold_crossings_total"
    reached = [*budget_crossings(BudgetReadings(directory).read(now), now, {})]
    for name in ("serve", "web"):
        watch = LevelWatch(
            store, directory, name, readings=[lambda _: reached], clock=ultramon_clock
        )
        watch.look()
    assert values_of(source, counted) == {("in-usd", "warning"): 1, ("in-usd", "critical"): 0}
    ultramon_clock.advance(60)
    assert values_of(source, "ultramon_budget_used_ratio") == {}


def test_opentelemetry_collects_the_same_values(make, store, ultramon_clock, tmp_path):
    """Each metric under its own name and unit, with the attributes that the field has names for."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    with_config = ContextConfig(model="claude-sonnet-4-5")
    now, plans = ultramon_clock.now(), {"state_directory": str(tmp_path / "plans")}
    limits = [plan_limit(FIVE_HOURS, 62, now + 600, now)]
    PlanLimits(plans["state_directory"]).record("codex", "/srv/dev/.codex", limits, now)
    BudgetReadings(plans["state_directory"]).write(budget(unit, now) for unit in ("usd", "tokens"))
    options = {"meter_provider": provider, "clock": ultramon_clock, **plans}
    end = start_opentelemetry(store, "audit", **options)
    twice = start_opentelemetry(store, "audit", **options)
    agent = make("scout-1", with_config, run="audit")
    make("other", with_config, run="elsewhere").report_usage(input_tokens=10_000)
    agent.report_usage(input_tokens=150_000)
    queue_message("scout-1", "hello", backend=store, clock=ultramon_clock)
    source = MetricsSource(store, "audit", clock=ultramon_clock, **plans)
    found = collected(reader)
    for metric in METRICS:
        expected = source.collect()[metric]
        if metric.kind == COUNTER:  # that source began later
            assert found[metric.otel_name].keys() == {
                tuple(zip((ATTRIBUTES[name] for name in metric.labels), labels, strict=True))
                for labels in expected
            }
        elif expected:
            assert found[metric.otel_name] == {
                tuple(zip((ATTRIBUTES[name] for name in metric.labels), labels, strict=True)): value
                for labels, value in expected.items()
            }, metric.name
    crossing = found["ultramon.context.threshold.crossings"]
    assert sum(crossing.values()) == 1
    assert found["ultramon.context.usage"] == {
        (
            ("gen_ai.agent.id", "scout-1"),
            ("ultramon.run", "audit"),
            ("ultramon.host", "sdk"),
            ("gen_ai.request.model", "claude-sonnet-4-5"),
        ): 150_000
    }
    end()
    ultramon_clock.advance(1)
    assert collected(reader)
    twice()
    twice()
    ultramon_clock.advance(1)
    assert collected(reader) == {}


EXPORTING = """
import sys
from pathlib import Path
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from ultramon import Fleet, create_context_monitor

fleet = Fleet("audit", backend="memory:")  # before there is an SDK
reader = InMemoryMetricReader()
metrics.set_meter_provider(MeterProvider([reader]))
create_context_monitor("scout-1", run="audit", backend=fleet.backend).start().stop()

def names():
    data = reader.get_metrics_data()
    return [] if data is None else [
        metric.name
        for one in data.resource_metrics for scope in one.scope_metrics for metric in scope.metrics
        if metric.data.data_points
    ]

assert fleet.env("child")["ULTRAMON_OTEL"] == ""
print("ultramon.agents" in names())
import multiprocessing
child = multiprocessing.get_context("fork").Process(target=lambda: sys.exit(len(names())))
child.start(); child.join(); print(child.exitcode)
fleet.close()
print(names())
"""


@pytest.mark.parametrize(("wanted", "said"), [("1", "True\n0\n[]\n"), ("0", "False\n0\n[]\n")])
def test_a_variable_starts_the_export_in_a_fleet(wanted, said):
    """Also where the SDK is set up later; a forked copy and a closed fleet show nothing."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", EXPORTING],
        env={**os.environ, "ULTRAMON_OTEL": wanted},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout, done.stderr) == (said, "")


def test_a_fleet_that_is_dropped_exports_no_longer(ultramon_clock, monkeypatch):
    """Nobody has to close it; and ULTRAMON_DISABLED exports nothing in the first place."""
    from ultramon.metrics import opentelemetry

    store = MemoryBackend()
    fleet = Fleet("audit", backend=store, otel=True, clock=ultramon_clock)
    [exporter] = opentelemetry._global
    assert (store.url, "audit") in exporter._sources
    del fleet
    gc.collect()
    assert (store.url, "audit") not in exporter._sources
    monkeypatch.setenv("ULTRAMON_DISABLED", "1")
    Fleet("audit", backend=store, otel=True, clock=ultramon_clock).poll()
    assert (store.url, "audit") not in exporter._sources


def test_openmetrics_is_given_to_those_who_ask(source, make):
    """Its stricter parser accepts it, too."""
    make("scout-1", model="claude-sonnet-4-5").report_usage(input_tokens=150_000)
    body, content_type = render_prometheus(source, START_OF_OPENMETRICS)
    assert content_type.startswith("application/openmetrics-text")
    families = {family.name for family in parse_openmetrics(body.decode())}
    assert families == {metric.name for metric in METRICS}


PAGE = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")


def test_the_page_is_what_the_definitions_say():
    """docs/metrics.md is as `python scripts/generate_metrics_docs.py` would write it now."""
    generator = runpy.run_path(str(ROOT / "scripts" / "generate_metrics_docs.py"))
    assert generator["render"](PAGE) == PAGE
    for metric in METRICS:
        assert f"\n| `{metric.shown_name}` | `{metric.otel_name}` |" in PAGE


def test_rules_and_panels_ask_for_metrics_and_labels_that_exist():
    """A misspelt name in an expression would never fire, and nobody would see it."""
    labels = {metric.shown_name: metric.labels for metric in METRICS}
    rules = re.findall(r"^ +expr: (.+)$", PAGE, re.M)
    panels = re.findall(r"`([^`]*ultramon_[^`]*)`", PAGE.partition("## Dashboard")[2])
    assert len(rules) == 3
    assert len(panels) >= 12
    for expression in (*rules, *panels):
        for name, selector in re.findall(r"(ultramon_\w+)(?:\{([^}]*)\})?", expression):
            used = re.findall(r"(\w+)\s*[=!]", selector)
            assert set(used) <= set(labels[name]), expression
