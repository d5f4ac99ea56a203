"""What budgets amount to: real settings and transcripts, through the index that reports use."""

from __future__ import annotations

import os
import shutil
import subprocess
from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from helpers.opencode_session import plant
from helpers.planted_transcripts import OTHER, PROJECT, SESSION, Machine, reply
from recordings.test_recorded_usage import FILES

from ultramon.backends.local.backend import LocalBackend
from ultramon.backends.memory import MemoryBackend
from ultramon.errors import ConfigurationError, StateError
from ultramon.prices.price_list import open_prices
from ultramon.recordings import budget_look
from ultramon.recordings.budget_look import LOOK_SECONDS, BudgetLook
from ultramon.recordings.clients import client_files
from ultramon.recordings.daily_sums import FILE_NAME, DailySums
from ultramon.recordings.index import TranscriptIndex
from ultramon.recordings.usage import SPENT, parts_of
from ultramon.state.budget_readings import BudgetReadings
from ultramon.state.record import member_name
from ultramon.system.processes import this_machine
from ultramon.testing import make_record

SMALL = {"input_tokens": 100_000, "output_tokens": 0}
"""$0.30."""
KATHMANDU = 'time_zone = "Asia/Kathmandu"'
UTC = 'time_zone = "UTC"'


def at(text, zone="UTC"):
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()


NOW = at("2026-11-26T12:00")


@pytest.fixture
def machine(tmp_path, monkeypatch):
    found = Machine(tmp_path)
    for name, value in found.environ.items():
        monkeypatch.setenv(name, value)
    return found


@pytest.fixture
def looks(tmp_path, machine, monkeypatch):
    """Make looks as processes of their own would, with these settings."""
    state = tmp_path / "state"
    state.mkdir(mode=0o700)

    def make(text, backend=None, **environ):
        config = tmp_path / "own.toml"
        config.write_text(text)
        monkeypatch.setenv("ULTRAMON_CONFIG", str(config))
        states = MemoryBackend() if backend is None else backend
        return BudgetLook(str(state), states, machine.environ | environ)

    make.state = str(state)
    return make


@pytest.fixture
def spent(looks):
    def found(text, now=NOW, **options):
        looks(text, **options)(now)
        return {one.name: one for one in BudgetReadings(looks.state).read(now)}

    return found


def paid(name, time, usage=SMALL, **entry):
    return reply(name, usage, [{"type": "text", "text": "Done."}], timestamp=time, **entry)


def write(machine, session, *entries, now=NOW, **options):
    path = machine.write(session, *entries, **options)
    os.utime(path, (now, now))
    return path


def day(usd=20, more=UTC, name="daily"):
    return f"[budgets.{name}]\nlimit_usd = {usd}\n{more}\n"


def test_today_counts_and_yesterday_does_not(machine, spent):
    write(
        machine,
        SESSION,
        paid("m1", "2026-11-25T23:59:59Z"),
        paid("m2", "2026-11-26T00:00:00Z"),
        paid("m3", "2026-11-26T11:00:00Z"),
    )
    (found,) = spent(day()).values()
    assert found.amounts == "$0.60 of 20"
    assert found.period_key == "2026-11-26"


def test_the_day_of_another_time_zone_begins_elsewhere(machine, spent):
    """In Kathmandu the 26th began at 18:15Z of the 25th."""
    write(
        machine,
        SESSION,
        paid("m1", "2026-11-25T18:14:59Z"),
        paid("m2", "2026-11-25T18:15:00Z"),
        paid("m3", "2026-11-26T11:00:00Z"),
    )
    found = spent(day(more=KATHMANDU) + day(name="utc"))
    assert found["daily"].amounts == "$0.60 of 20"
    assert found["utc"].amounts == "$0.30 of 20"


def test_a_day_of_25_hours_counts_all_of_them(machine, spent):
    """Clocks in Berlin go back at 01:00Z on 25 October: the day lasts from 22:00Z to 23:00Z."""
    times = ("2026-10-24T21:59:00Z", "2026-10-24T22:00:00Z", "2026-10-25T22:59:00Z")
    now = at("2026-10-25T22:59:30")
    write(machine, SESSION, *(paid(f"m{n}", time) for n, time in enumerate(times)), now=now)
    berlin = 'time_zone = "Europe/Berlin"'
    assert spent(day(more=berlin), now)["daily"].amounts == "$0.60 of 20"
    later = at("2026-10-25T23:00:30")
    assert spent(day(more=berlin), later)["daily"].amounts == "$0 of 20"


def test_subagents_and_all_hosts_count_with_their_own_prices(machine, spent):
    """The sum is that of an independent pricing of every recorded transcript."""
    prices, usd, tokens, unpriced = open_prices(), 0.0, 0, False
    folder = machine.projects / "-recorded"
    folder.mkdir(parents=True)
    with TranscriptIndex(None) as index:
        for number, path in enumerate(FILES):
            (one,) = index.summarize([str(path)])
            if one.summary.host != "claude-code" or one.summary.copied_from:
                continue
            name = folder / f"{number}" / path.name
            name.parent.mkdir()
            shutil.copy(path, name)
    with TranscriptIndex(None) as index:
        found = [*index.count_copies_once(index.summarize(map(str, folder.rglob("*.jsonl"))))]
    longest = {}
    for one in sorted(found, key=lambda one: one.summary.ended_at or 0.0):
        longest[one.summary.session_id, one.summary.agent_id] = one.summary
    mains = {session: one.model for (session, agent), one in longest.items() if agent is None}
    for (session, _), summary in longest.items():
        for part in parts_of(summary.usage):
            if part.kind == SPENT and any(part.usage):
                model = part.model or summary.model or mains.get(session)
                price = prices.price(
                    part.usage, model, request_tokens=part.request_tokens, speed=part.speed
                )
                usd, unpriced = usd + (price.usd if price else 0.0), unpriced or price is None
                tokens += part.usage.tokens
    assert usd > 0
    text = '[budgets.all]\nlimit_usd = 1000\nperiod = "none"\n'
    text += '[budgets.tokens]\nlimit_tokens = 1_000_000\nperiod = "none"\n'
    got = spent(text)
    assert got["all"].spent == pytest.approx(usd)
    assert got["all"].is_whole is not unpriced
    assert got["tokens"].spent == tokens


def test_an_unknown_model_makes_it_a_lower_bound(machine, spent):
    unknown = paid("m2", "2026-11-26T10:00:00Z")
    unknown["message"]["model"] = "house-model-1"
    write(machine, SESSION, paid("m1", "2026-11-26T09:00:00Z"), unknown)
    found = spent(day() + "[budgets.tokens]\nlimit_tokens = 1_000_000\n" + UTC)
    assert found["daily"].amounts == "≥ $0.30 of 20"
    assert found["tokens"].amounts == "200k of 1.0M tokens"


def test_own_prices_count_where_the_budget_names_them(machine, spent, tmp_path):
    own = tmp_path / "prices.toml"
    own.write_text("[usd_per_million_tokens.claude-sonnet-4-5]\ninput = 1.0\noutput = 5.0\n")
    write(machine, SESSION, paid("m1", "2026-11-26T09:00:00Z"))
    found = spent(day(more=f'{UTC}\nprices = "{own}"') + day(name="list"))
    assert found["daily"].amounts == "$0.10 of 20"
    assert found["list"].amounts == "$0.30 of 20"


def test_a_file_of_prices_that_cannot_be_used_is_named_at_once(looks, tmp_path):
    with pytest.raises(ConfigurationError, match=r"missing\.toml"):
        looks(day(more=f'prices = "{tmp_path}/missing.toml"'))


def test_sessions_in_a_database_of_their_host_count(looks, tmp_path):
    """Opencode keeps all of them in one file."""
    path = tmp_path / "data" / "opencode" / "opencode.db"
    environ = {"XDG_DATA_HOME": str(tmp_path / "data")}
    plant(path, "subagents")
    with TranscriptIndex(None) as index:
        found = [*index.summarize(one for one in client_files(environ) if str(path) in one)]
    expected = sum(
        part.usage.tokens for one in found for part in parts_of(one.summary.usage) if not part.kind
    )
    looks('[budgets.all]\nlimit_tokens = 1\nperiod = "none"\n', **environ)(NOW)
    assert expected > 0
    assert read(looks, NOW)["all"].spent == expected


def test_only_the_project_counts(machine, spent):
    write(machine, SESSION, paid("m1", "2026-11-26T09:00:00Z"), project="/srv/shop")
    write(machine, OTHER, paid("m2", "2026-11-26T09:00:00Z"), project="/srv/shopping")
    inner = "22222222-2222-4333-8444-555555555555"
    write(machine, inner, paid("m3", "2026-11-26T09:00:00Z"), project="/srv/shop/web")
    found = spent(day(more=f'{UTC}\nproject = "/srv/shop"'))
    assert found["daily"].amounts == "$0.60 of 20"


def test_a_git_worktree_counts_for_the_project(machine, spent, tmp_path):
    """As relays make them; a submodule is none, and a part of the tree is the same part."""
    shop, tree = tmp_path / "shop", tmp_path / "state" / "relay" / "job" / "worktree"
    for folder in (shop / "web", tmp_path / "empty"):
        folder.mkdir(parents=True)
    git = ["git", "-C", str(shop), "-c", "user.name=Ada", "-c", "user.email=ada@example.org"]
    for command in (
        ["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "first"],
        ["worktree", "add", "-q", str(tree)],
    ):  # fmt: skip
        subprocess.run([*git, *command], check=True, capture_output=True)
    write(machine, SESSION, paid("m1", "2026-11-26T09:00:00Z"), project=str(tree))
    write(machine, OTHER, paid("m2", "2026-11-26T09:00:00Z"), project=str(tree / "web"))
    (tmp_path / "empty" / ".git").write_text(f"gitdir: {shop}/.git/modules/empty\n")
    third = "22222222-2222-4333-8444-555555555555"
    write(machine, third, paid("m3", "2026-11-26T09:00:00Z"), project=str(tmp_path / "empty"))
    found = spent(
        day(more=f'{UTC}\nproject = "{shop}"')
        + day(more=f'{UTC}\nproject = "{shop / "web"}"', name="web")
    )
    assert found["daily"].amounts == "$0.60 of 20"
    assert found["web"].amounts == "$0.30 of 20"


@pytest.fixture
def backend(looks):
    found = LocalBackend(looks.state)
    yield found
    found.close()


def store(backend, agent_id, *, path=None, **fields):
    """Store an agent as its hooks do; `path` is its transcript."""
    memory = {} if path is None else {"transcriptPath": str(path)}
    fields = {
        "host": "claude-code",
        "session_id": agent_id,
        "extra": {member_name("claude-code"): memory},
    } | fields
    backend.start_agent(
        agent_id,
        lambda _, generation: (make_record(agent_id, generation, at=NOW, **fields), []),
        takeover=True,
        now=NOW,
        machine=this_machine(),
    )


def test_only_the_run_counts_with_its_subagents(machine, spent, backend):
    """A relay gives its contexts names of their own: then the transcript says whose it is."""
    write(machine, SESSION, paid("m1", "2026-11-26T09:00:00Z"))
    write(machine, SESSION, paid("m2", "2026-11-26T09:00:00Z"), agent="a1")
    path = write(machine, OTHER, paid("m3", "2026-11-26T09:00:00Z"))
    write(machine, "22222222-2222-4333-8444-555555555555", paid("m4", "2026-11-26T09:00:00Z"))
    store(backend, SESSION, run="audit")
    store(backend, "audit.1", run="audit", path=path)
    found = spent(day(more=f'{UTC}\nrun = "audit"'), backend=backend)
    assert found["daily"].amounts == "$0.90 of 20"
    assert spent(day(more=f'{UTC}\nrun = "other"'), backend=backend)["daily"].spent == 0


def test_only_agents_of_the_pattern_count_by_id_or_label(machine, spent, backend):
    write(machine, SESSION, paid("m1", "2026-11-26T09:00:00Z"))
    write(machine, SESSION, paid("m2", "2026-11-26T09:00:00Z"), agent="a1")
    write(machine, OTHER, paid("m3", "2026-11-26T09:00:00Z"))
    store(backend, SESSION)
    store(backend, f"{SESSION}.a1", parent_id=SESSION, label="scout-1")
    for pattern, amounts in [
        ("scout-*", "$0.30 of 20"),
        (f"{SESSION[:8]}-2*", "$0.60 of 20"),
        (f"{OTHER}", "$0.30 of 20"),
        ("scout-2", "$0 of 20"),
    ]:
        found = spent(day(more=f'{UTC}\nagent = "{pattern}"'), backend=backend)
        assert found["daily"].amounts == amounts, pattern
        BudgetReadings(looks_path(backend)).write([])


def looks_path(backend):
    return backend.directory.path


def test_a_copied_conversation_counts_once(machine, spent):
    """A fork begins with the lines of another session."""
    first = [paid(f"m{n}", f"2026-11-26T0{n}:00:00Z") for n in range(1, 4)]
    write(machine, SESSION, *first)
    write(machine, OTHER, *first, paid("m9", "2026-11-26T09:00:00Z"))
    assert spent(day())["daily"].amounts == "$1.20 of 20"


def test_a_look_reads_only_what_changed(machine, looks):
    look = looks(day())
    path = write(machine, SESSION, paid("m1", "2026-11-26T09:00:00Z"))
    other = write(machine, OTHER, paid("m1b", "2026-11-26T09:00:00Z"))
    look(NOW)
    os.chmod(other, 0)  # to read it again would fail, and change what is known
    write(machine, SESSION, paid("m2", "2026-11-26T10:00:00Z"), now=NOW + 1)
    look(NOW + 1)
    assert read(looks, NOW + 1)["daily"].amounts == "$0.60 of 20"
    look(NOW + LOOK_SECONDS)
    assert read(looks, NOW + LOOK_SECONDS)["daily"].amounts == "$0.90 of 20"
    path.unlink()
    look(NOW + 3 * LOOK_SECONDS)
    later = read(looks, NOW + 3 * LOOK_SECONDS)["daily"]
    assert later.amounts == "$0.90 of 20", "what a deleted transcript cost was spent"


def read(looks, now):
    return {one.name: one for one in BudgetReadings(looks.state).read(now)}


def test_what_is_not_read_to_its_end_is_not_known(machine, looks, monkeypatch):
    """Neither at the first look nor at a later one; the next look continues."""
    look = looks(day())
    write(machine, SESSION, paid("m1", "2026-11-26T09:00:00Z"))
    for expected in ("$0.30 of 20", "$0.60 of 20"):
        with monkeypatch.context() as without_time:
            without_time.setattr(budget_look, "READ_SECONDS", -1.0)
            assert look.look_now(NOW) is None
        (reading,) = look.look_now(NOW)
        assert reading.amounts == expected
        write(machine, OTHER, paid("m2", "2026-11-26T10:00:00Z"))
    assert looks("").look_now(NOW) == []


def test_the_next_day_is_looked_at_at_once(machine, looks):
    look = looks(day())
    write(machine, SESSION, paid("m1", "2026-11-26T09:00:00Z"))
    last = at("2026-11-26T23:59:59")
    look(last)
    assert read(looks, last)["daily"].amounts == "$0.30 of 20"
    look(last + 1)
    assert read(looks, last + 1)["daily"].amounts == "$0 of 20"
    assert read(looks, last + 1)["daily"].period_key == "2026-11-27"


def test_what_another_process_has_just_found_is_taken(machine, looks):
    write(machine, SESSION, paid("m1", "2026-11-26T09:00:00Z"))
    first, second, other = looks(day()), looks(day()), looks(day(usd=30))
    first(NOW)
    write(machine, SESSION, paid("m2", "2026-11-26T09:00:00Z"), now=NOW + 1)
    second(NOW + 1)
    assert read(looks, NOW + 1)["daily"].amounts == "$0.30 of 20"
    other(NOW + 1)  # with other settings it looks itself
    assert read(looks, NOW + 1)["daily"].amounts == "$0.60 of 30"


def test_crossings_name_who_is_sent_a_message(machine, looks, backend):
    write(machine, SESSION, paid("m1", "2026-11-26T09:00:00Z"))
    store(backend, SESSION)
    store(backend, f"{SESSION}.a1", parent_id=SESSION)
    store(backend, OTHER, active=False, phase="working", outcome="completed")
    (quiet,) = looks(day(usd=0.35, more=f'{UTC}\nnotify = "ops"'), backend)(NOW)
    assert (quiet.level, quiet.recipients) == ("warning", ("ops",))
    (loud,) = looks(day(usd=0.3, more=f"{UTC}\nnotify_agents = true"), backend)(NOW)
    assert (loud.level, loud.recipients) == ("critical", (SESSION,))


def test_without_budgets_nothing_is_read(machine, looks):
    write(machine, SESSION, paid("m1", "2026-11-26T09:00:00Z"))
    assert looks("")(NOW) == []
    assert not os.path.exists(BudgetReadings(looks.state).path)
    assert not os.path.exists(machine.root / "cache" / "ultramon")


def test_readings_that_no_look_renews_are_not_shown(machine, looks):
    looks(day())(NOW)
    stored_readings = BudgetReadings(looks.state)
    assert stored_readings.read(NOW + 299)
    assert stored_readings.read(NOW + 300) == []
    with open(stored_readings.path, "w") as file:
        file.write("{")
    assert stored_readings.read(NOW) == []
    looks(day())(NOW)
    assert stored_readings.read(NOW)


def test_what_was_deleted_before_a_process_began_was_spent_nevertheless(machine, looks):
    """The daily sums know it, by the days of the machine; copies of it are not counted anew."""
    first = [paid(f"m{n}", f"2026-11-26T0{n}:00:00Z") for n in range(1, 4)]
    path = write(machine, SESSION, *first)
    looks(day())(NOW)
    write(machine, OTHER, *first, paid("m9", "2026-11-26T09:00:00Z"))
    looks(day())(NOW + 20)
    path.unlink()
    later = NOW + 400
    for text, amounts in [
        (day(), "$1.20 of 20"),
        (day(more=f'{UTC}\nproject = "{PROJECT}"'), "$1.20 of 20"),
        (day(more='period = "month"'), "$1.20 of 20"),
        (day(more='period = "none"'), "$1.20 of 20"),
    ]:
        looks(text)(later)
        assert read(looks, later)["daily"].amounts == amounts, text
        later += 20
    tomorrow = NOW + 86_400
    looks(day())(tomorrow)
    assert read(looks, tomorrow)["daily"].amounts == "$0 of 20"


def test_a_look_keeps_the_daily_sums_up_to_date(machine, looks):
    write(machine, SESSION, paid("m1", "2026-11-26T09:00:00Z"))
    look = looks(day())
    look(NOW)
    write(machine, SESSION, paid("m2", "2026-11-26T10:00:00Z"), now=NOW + 1)
    look(NOW + LOOK_SECONDS)
    with DailySums(os.path.join(looks.state, FILE_NAME)) as sums:
        (period,) = sums.report("day", None, now=NOW).periods
    assert period.spent.input_tokens == 200_000


def test_sums_that_cannot_be_read_are_an_error_of_the_store(machine, looks):
    """The watch of levels says so, and looks again."""
    write(machine, SESSION, paid("m1", "2026-11-26T09:00:00Z"))
    look = looks(day())
    look(NOW)
    with DailySums(os.path.join(looks.state, FILE_NAME)) as sums:
        sums._connection.execute("DROP TABLE agents")
    write(machine, SESSION, paid("m2", "2026-11-26T10:00:00Z"), now=NOW + 1)
    with pytest.raises(StateError, match="no such table"):
        look(NOW + LOOK_SECONDS)
