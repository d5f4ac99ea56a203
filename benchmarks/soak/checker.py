"""Judges the history of a soak. Imports nothing of ultramon, and reads none of its files."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from benchmarks.soak.history import Fact

ATTEMPTS = 3
"""So many contexts without progress set an item aside; kills from outside count a third."""


@dataclass
class Verdict:
    """What a history breaks, each entry a line for people; and what was counted besides.

    Attributes:
        lost: Items that the last result of their run neither names as left or set aside nor has
            done: their effect is absent.
        false: The same for items that an agent claimed.
        unverified: Items counted as finished for which `verify` never said yes.
        two_holders: Items with two live holders, and who they were.
        wrong_results: Results that are ok although an item is not, or that count items wrongly.
        set_aside: Items given up although not enough contexts failed on them by themselves.
        unfinished: Runs without a last result, or with items left.
        messages_lost: Messages that were sent and never handled.
        missed: Agents that started and claimed an item, and of which a consumer never heard.
            An agent that is killed at once while its store refuses leaves nothing to hear of.
        counts: Items, messages and faults by name. ``settled`` grows with each fact that brings the
            soak nearer to its end, and never beyond what there is to do.
        faults: What befell its processes and its store, by kind.
    """

    lost: list[str] = field(default_factory=list)
    false: list[str] = field(default_factory=list)
    unverified: list[str] = field(default_factory=list)
    two_holders: list[str] = field(default_factory=list)
    wrong_results: list[str] = field(default_factory=list)
    set_aside: list[str] = field(default_factory=list)
    unfinished: list[str] = field(default_factory=list)
    messages_lost: list[str] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)

    @property
    def violations(self) -> dict[str, list[str]]:
        """What is broken, by kind."""
        kinds = [each.name for each in fields(self) if each.name not in ("counts", "faults")]
        return {kind: found for kind in kinds if (found := getattr(self, kind))}


def judge(facts: Iterable[Fact], effects: Collection[str]) -> Verdict:
    """Judge the history of a soak that is over.

    Args:
        facts: In their order; see `history`.
        effects: The items whose effect is there.
    """
    known = _Known(facts)
    verdict = Verdict()
    for run, items in known.given.items():
        _judge_run(known, run, items, effects, verdict)
    if not known.given:
        verdict.unfinished.append("no run was begun")
    verdict.two_holders = known.two_holders
    verdict.messages_lost = sorted(known.sent - known.handled.keys())
    verdict.missed = [
        f"{agent} by {consumer}"
        for consumer, heard in known.heard.items()
        for agent in known.started
        if agent in known.claimers and agent not in heard
    ]
    verdict.counts = known.counts
    verdict.faults = known.faults
    verdict.counts.update(
        {
            "items": sum(map(len, known.given.values())),
            "runs": len(known.given),
            "contexts": len(known.started),
            "verified": len(known.confirmed),
            "handled": len(known.handled),
            # A sender that is killed once the queue has accepted one has not noted it.
            "offered": len(known.sent | known.handled.keys()),
            "begun again": sum(len(agents) - 1 for agents in known.began.values()),
            "done again": known.did.total() - len(known.did),
            "claimed and begun again": len(known.begun_after_claim),
            "messages": len(known.sent),
            "settled": len(known.did)
            + len(known.confirmed)
            + len(known.handled)
            + len(known.results)
            + sum(map(len, known.heard.values())),
            "handled again": known.handled.total() - len(known.handled),
        }
    )
    return verdict


class _Known:
    """The facts of a history by what they are about."""

    def __init__(self, facts: Iterable[Fact]) -> None:
        self.given: defaultdict[str, dict[str, None]] = defaultdict(dict)
        self.results: dict[str, Fact] = {}
        self.started: dict[str, None] = {}
        self.began: defaultdict[str, set[str]] = defaultdict(set)
        self.did: Counter[str] = Counter()
        self.claims: set[str] = set()
        self.claimers: set[str] = set()
        self.lies: set[str] = set()
        self.failures: Counter[str] = Counter()
        self.confirmed: set[str] = set()
        self.refused: set[str] = set()
        self.begun_after_claim: set[str] = set()
        self.two_holders: list[str] = []
        self.sent: set[str] = set()
        self.handled: Counter[str] = Counter()
        self.heard: defaultdict[str, set[str]] = defaultdict(set)
        self.counts: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        for fact in facts:
            self._read(fact)

    def _read(self, fact: Fact) -> None:
        kind, item = fact["fact"], fact.get("item", "")
        match kind:
            case "given":
                self.given[fact["run"]].update(dict.fromkeys(fact["items"]))
            case "started":
                self.started[fact["agent"]] = None
            case "began":
                self.began[item].add(fact["agent"])
                self.counts["begun"] += 1
                if item in self.claims and item not in self.refused:
                    self.begun_after_claim.add(item)
            case "did":
                self.did[item] += 1
            case "lied" | "hung" | "left_running":
                self.counts[kind] += 1
                self.faults[kind.replace("_", " ")] += 1
                self.failures[item] += 1
                if kind == "lied":
                    self.lies.add(item)
            case "claimed":
                self.claims.add(item)
                self.claimers.add(fact["agent"])
            case "asked":
                (self.confirmed if fact["answer"] == "yes" else self.refused).add(item)
                self.counts["raised"] += fact["answer"] == "raised"
                self.counts["not verified"] += fact["answer"] != "yes"
            case "result":
                self.results[fact["run"]] = fact["result"]
            case "two_holders":
                holders = f"{fact['agent']} while {fact['holder']} held it"
                self.two_holders.append(f"{item}: {holders}, at {fact['at']:.3f}")
            case "sent":
                self.sent.update(fact["keys"])
                self.counts["not sent"] += fact.get("refused", 0)
            case "handled":
                self.handled.update(fact["keys"])
            case "watches":
                self.heard[fact["consumer"]].update()
            case "heard":
                self.heard[fact["consumer"]].add(fact["agent"])
            case "killed" | "suspended":
                self.counts[kind] += len(fact["pids"])
                self.faults[kind] += len(fact["pids"])
            case "store_failed":
                self.counts[kind] += 1
                self.faults[fact["kind"]] += 1


def _judge_run(
    known: _Known, run: str, items: Collection[str], effects: Collection[str], verdict: Verdict
) -> None:
    result = known.results.get(run)
    if result is None:
        verdict.unfinished.append(f"{run}: no result")
        return
    if result["left"] or result["stopped"]:
        verdict.unfinished.append(f"{run}: {len(result['left'])} left ({result['stopped']})")
    if result["lost"]:
        verdict.wrong_results.append(f"{run} itself calls lost: {' '.join(result['lost'])}")
    named = {*result["set_aside"], *result["left"]}
    finished = [item for item in items if item not in named]
    counts = result["counts"]
    if counts["assigned"] != len(items) or counts["verified"] + counts["claimed"] != len(finished):
        verdict.wrong_results.append(f"{run}: {len(items)} items given, counted {counts}")
    if result["ok"] and (named or counts["claimed"]):
        verdict.wrong_results.append(f"{run} is ok, with {counts}")
    for item in finished:
        if item not in effects:
            is_claimed = item in known.claims or item in known.lies
            (verdict.false if is_claimed else verdict.lost).append(item)
    unconfirmed = [item for item in finished if item not in known.confirmed]
    if result["ok"] or len(unconfirmed) > counts["claimed"]:
        verdict.unverified += unconfirmed
    for item, reason in result["set_aside"].items():
        failed = known.failures[item]
        if failed + (len(known.began[item]) - failed) / ATTEMPTS < ATTEMPTS:
            verdict.set_aside.append(f"{item}: {reason}; of itself failed {failed} times")
