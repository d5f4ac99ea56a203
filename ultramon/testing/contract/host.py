"""The conformance suite of hosts: what the table of docs/hosts.md says of each.

    class TestAcme(HostContract):
        host = ACME

        @pytest.fixture
        def play(self, tmp_path):
            return lambda scenario: AcmeRun(tmp_path, scenario)

where ``play`` returns a `HostRun` for each scenario of `ultramon.testing.host_run`, None where the
host has nothing of it. `docs/extending.md` shows a whole one. Each column is proven by a test; one
that the host lacks, by its `capabilities`, is tested too: nothing of it may happen.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pytest

from ultramon.context.ladder import LADDERS
from ultramon.context.limits import is_assumed
from ultramon.relay.opening import launched_hosts
from ultramon.testing.host_run import COMPACTION, FILLS, STAYS, SUBAGENTS, TASKS, HostRun

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    Play = Callable[[str], HostRun | None]

_RATIOS = sorted(LADDERS["claude-code"].values())
_BETWEEN = 0.70
"""Above the first of these rungs, below the second."""
_REMINDER = re.compile(r"Context window: ([\d,]+) of ([\d,]+) tokens \(")
_PROVES = "_proves"


def proves(column: str) -> Callable[[Any], Any]:
    """Mark a test as the one that proves a column of the table."""

    def mark(test: Any) -> Any:
        setattr(test, _PROVES, column)
        return test

    return mark


def proven_columns() -> set[str]:
    """Return the columns of which a test of the suite proves that they are true."""
    return {getattr(one, _PROVES) for one in vars(HostContract).values() if hasattr(one, _PROVES)}


class HostContract:
    """Inherit in a test class, name the `host`, and give the fixture `play`.

    Attributes:
        host: The `ultramon.hosts.port.Host`.
        files: What a person has in the home before an installation, by path.
        variables: The client's environment beyond ``HOME``; ``{home}`` stands for the home.
    """

    host: Any
    files: Mapping[str, bytes] = MappingProxyType({})
    variables: Mapping[str, str] = MappingProxyType({})

    @pytest.fixture
    def play(self) -> Play:
        """Give a function that returns a run of a scenario."""
        raise NotImplementedError

    @pytest.fixture
    def run(self, play: Play) -> Iterator[Callable[[str], HostRun]]:
        """Give the same, which skips nothing: a run that is missing fails."""
        opened: list[HostRun] = []

        def start(scenario: str) -> HostRun:
            found = play(scenario)
            assert found is not None, f"{self.host.name} claims it, and has no run {scenario!r}"
            opened.append(found)
            return found

        yield start
        for one in opened:
            one.close()

    def lacks(self, column: str) -> bool:
        """Return whether the host says that it has nothing of a column."""
        return column in self.host.capabilities.lacks

    @proves("reading")
    def test_each_reading_is_that_of_its_reply(self, run: Callable[[str], HostRun]) -> None:
        """After its calls every reply has been seen once, in its order, and none has failed."""
        played = run(FILLS)
        seen, _ = _watch(played)
        assert seen == ({} if self.lacks("reading") else _listed(played.readings))
        assert list(played.state.glob("*.failures.jsonl")) == []

    @proves("warned")
    def test_an_agent_is_warned_once_per_level_in_the_next_request(
        self, run: Callable[[str], HostRun]
    ) -> None:
        """By the number of the very reply that reached the level, before there is another one."""
        played = run(FILLS)
        (readings,) = _listed(played.readings).values()
        limit, _ = played.limits
        # Two readings of one window, each of which reaches a level.
        warning, critical, *_ = sorted({tokens for epoch, tokens in readings if epoch == 1})
        ratios = [_percent_at(warning, limit), _percent_at(critical, limit)]
        played.choose(context_limit_tokens=limit, warning=ratios[0], critical=ratios[1])
        _, told = _watch(played)
        expected = [(played.session_id, tokens, limit) for tokens in (warning, critical)]
        assert told == ([] if self.lacks("warned") else expected)
        levels = [one["level"] for one in played.events("context_threshold_reached")]
        assert levels == ["warning", "critical"]

    @proves("limit")
    def test_the_limit_is_that_of_the_host(self, run: Callable[[str], HostRun]) -> None:
        """Without a choice of the user; where the host says nothing, it is called assumed."""
        played = run(FILLS)
        _watch(played)
        record = played.record(played.session_id)
        assert (record.context_limit, record.context_window) == played.limits
        assert is_assumed(record.limit_source) == self.lacks("limit")

    @proves("subagents")
    def test_a_subagent_is_judged_by_its_own_numbers(
        self, play: Play, run: Callable[[str], HostRun]
    ) -> None:
        """It has the session as its parent and ends; no level of its is one of the session's."""
        if self.lacks("subagents"):
            assert not any(one.parent_id for one in _all_agents(play))
            return
        played = run(SUBAGENTS)
        readings = _listed(played.readings)
        fullest = max(readings, key=lambda name: readings[name][-1])
        *_, before, last = (tokens for _, tokens in readings[fullest])
        main = max(tokens for _, tokens in readings[played.session_id])
        reached = before if main < before * _RATIOS[0] else last
        played.choose(context_limit_tokens=round(reached / _BETWEEN))
        seen, told = _watch(played)
        assert seen == readings
        records = played.records()
        crossed = {name: 0 for name in records}
        for event in played.events("context_threshold_reached"):
            crossed[event["agentId"]] += 1
        for name, record in records.items():
            assert record.parent_id == (None if name == played.session_id else played.session_id)
            assert record.context_limit is not None
            assert crossed[name] == _levels_reached(readings[name], record.context_limit), name
        assert crossed[fullest] > 0
        assert crossed[fullest] != crossed[played.session_id]
        assert all(crossed[name] for name, *_ in told)
        subagents = [one for name, one in records.items() if name != played.session_id]
        assert {(one.active, one.outcome) for one in subagents} == {(False, "completed")}

    @proves("compaction")
    def test_a_compaction_begins_one_epoch(self, play: Play, run: Callable[[str], HostRun]) -> None:
        """The first reading behind it is that of a reply, not of the request for the summary."""
        if self.lacks("compaction"):
            assert {one.epoch for one in _all_agents(play)} == {1}
            return
        played = run(COMPACTION)
        seen, _ = _watch(played)
        assert seen == _listed(played.readings)
        epochs = played.events("context_epoch_started")
        (readings,) = seen.values()
        numbers = [one["epoch"] for one in epochs]
        assert numbers == list(range(2, 2 + len(numbers)))
        assert numbers[-1] == readings[-1][0]

    @proves("tasks")
    def test_the_tasks_are_those_of_the_host(
        self, play: Play, run: Callable[[str], HostRun]
    ) -> None:
        """In its order, with their statuses."""
        if self.lacks("tasks"):
            assert not any(one.tasks for one in _all_agents(play))
            return
        played = run(TASKS)
        _watch(played)
        tasks = played.records()[played.session_id].tasks or ()
        assert [(one["name"], one["status"]) for one in tasks] == list(played.tasks)

    @proves("end")
    def test_the_end_of_a_session_is_known(self, run: Callable[[str], HostRun]) -> None:
        """With its last call, or it waits where the host reports none."""
        played = run(FILLS)
        _watch(played)
        record = played.records()[played.session_id]
        expected = (True, None) if self.lacks("end") else (False, "completed")
        assert (record.active, record.outcome) == expected

    def test_a_client_that_is_killed_is_lost(self, run: Callable[[str], HostRun]) -> None:
        """In the middle of its turn: no hook is called, and its process is gone."""
        played = run(FILLS)
        for _ in played.calls():
            played.settle()
            found = played.records().get(played.session_id)
            if found is not None and found.measured_at is not None:
                break
        played.kill()
        done = _ultramon("status", "--all", "--json", ULTRAMON_STATE_DIR=str(played.state))
        (shown,) = json.loads(done.stdout)["agents"]
        assert (shown["agentId"], shown["liveness"]) == (played.session_id, "lost")

    @proves("ended")
    def test_an_agent_that_does_not_return_is_ended(
        self, run: Callable[[str], HostRun], tmp_path: Path
    ) -> None:
        """At the reply after which it was to have returned, with its handoff; or it is refused."""
        if self.lacks("ended"):
            done = self.ultramon(tmp_path, "install", "--enforce", "critical")
            assert done.returncode != 0
            assert "--enforce" in done.stderr
            return
        played = run(STAYS)
        played.choose(enforce="critical", context_limit_tokens=played.returns_at)
        asked, replies = 0, set()
        for call in played.calls():
            found = played.records()[played.session_id]
            replies |= set() if found.measured_at is None else {found.estimated_tokens}
            asked += "a hook ends this turn after" in call.text
            if call.ends:
                break
        assert (call.ends, asked) == (True, 1)
        assert len(replies) == 1 + played.replies_to_return
        assert played.record(played.session_id).handoff is not None
        (event,) = played.events("return_enforced")
        assert event["agentId"] == played.session_id

    @proves("resume")
    def test_the_words_that_resume_a_session_name_it(self) -> None:
        """`ultramon resume` shows them."""
        words = self.host.setup.resume_words("the-session")
        assert ("the-session" in words) is not self.lacks("resume")

    @proves("report")
    def test_a_replay_reads_what_the_hooks_did(self, run: Callable[[str], HostRun]) -> None:
        """The transcript alone says the same numbers; without transcripts nothing is read."""
        played = run(FILLS)
        _watch(played)
        if self.lacks("report"):
            assert played.transcript is None
            return
        assert played.transcript is not None
        done = _ultramon("replay", played.transcript, "--json")
        assert done.returncode == 0, done.stderr
        said = set(re.findall(r"\d+", done.stdout))
        assert {str(tokens) for _, tokens in played.readings[played.session_id]} <= said

    @proves("relay")
    def test_a_relay_starts_the_host(self) -> None:
        """By a launcher, which is tested with the version that the host was learnt from."""
        versions = launched_hosts()
        assert (self.host.name in versions) is not self.lacks("relay")
        said = self.host.capabilities.version
        assert versions.get(self.host.name, said) == said

    def test_what_is_lacking_has_a_reason_and_a_column(self) -> None:
        """Whatever is claimed or missing is one of the columns that are proven here."""
        said = {*self.host.capabilities.lacks, *self.host.capabilities.how}
        assert said <= proven_columns()
        assert all(self.host.capabilities.lacks.values())
        assert not {*self.host.capabilities.lacks} & {*self.host.capabilities.how}

    @pytest.mark.parametrize("has_files", [True, False])
    def test_uninstalling_leaves_no_trace(self, tmp_path: Path, has_files: bool) -> None:
        """Files that a person has come back to the byte, and what was made for them is gone."""
        home = tmp_path / "home"
        home.mkdir()
        for name, data in self.files.items() if has_files else ():
            (home / name).parent.mkdir(parents=True, exist_ok=True)
            (home / name).write_bytes(data)
        before = _tree(home)
        done = self.ultramon(tmp_path, "install", "--force")
        assert done.returncode == 0, done.stderr
        assert _tree(home) != before
        assert "is up to date" in self.ultramon(tmp_path, "install", "--force").stderr
        done = self.ultramon(tmp_path, "uninstall")
        assert done.returncode == 0, done.stderr
        assert _tree(home) == before
        assert not (tmp_path / "state").exists()

    def ultramon(
        self, path: Path, command: str, *arguments: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a command for this host in a home under a path."""
        home = path / "home"
        home.mkdir(exist_ok=True)
        variables = {name: text.format(home=home) for name, text in self.variables.items()}
        return _ultramon(
            command,
            self.host.name,
            *arguments,
            cwd=home,
            HOME=str(home),
            ULTRAMON_STATE_DIR=str(path / "state"),
            **variables,
        )


def _ultramon(
    *arguments: str, cwd: Path | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ultramon", *arguments],
        capture_output=True,
        encoding="utf-8",
        env=os.environ | variables,
        cwd=cwd,
        check=False,
        timeout=60,
    )


def _listed(
    readings: Mapping[str, Sequence[tuple[int, int]]],
) -> dict[str, list[tuple[int, int]]]:
    return {name: list(found) for name, found in readings.items()}


def _percent_at(tokens: int, limit: int | None) -> float:
    """Return the ratio, in whole percent as an installation takes it, that these tokens reach."""
    assert limit is not None
    return int(tokens / limit * 100) / 100


def _levels_reached(readings: Sequence[tuple[int, int]], limit: int) -> int:
    """Return how often a reading has reached a further level in its epoch."""
    found = reached = epoch = 0
    for number, tokens in readings:
        level = sum(tokens / limit >= ratio for ratio in _RATIOS)
        if number != epoch:
            epoch, reached = number, 0
        found += level > reached
        reached = max(level, reached)
    return found


def _watch(
    played: HostRun,
) -> tuple[dict[str, list[tuple[int, int]]], list[tuple[str, int, int]]]:
    """Play a run; return the readings of each agent, and who was reminded of which numbers.

    A reminder names the last reading of its agent, so that it is in the request that follows.
    """
    seen: dict[str, list[tuple[int, int]]] = {}
    told = []
    for call in played.calls():
        for name, record in played.records().items():
            value = record.epoch, record.estimated_tokens
            if record.measured_at is not None and value not in seen.setdefault(name, []):
                seen[name].append(value)
        for tokens, limit in _REMINDER.findall(call.text):
            number = int(tokens.replace(",", ""))
            (name,) = {
                name
                for name, found in seen.items()
                if call.agent_id in (None, name) and found and found[-1][1] == number
            }
            told.append((name, number, int(limit.replace(",", ""))))
    return {name: found for name, found in seen.items() if found}, told


def _all_agents(play: Play) -> list[Any]:
    """Return the agents of every run that there is, each played to its end."""
    found: list[Any] = []
    for scenario in (FILLS, SUBAGENTS, COMPACTION, TASKS):
        played = play(scenario)
        if played is not None:
            _watch(played)
            found += played.records().values()
            played.close()
    assert found
    return found


def _tree(folder: Path) -> dict[str, bytes | None]:
    """Return everything below a folder, with the bytes of files."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }
