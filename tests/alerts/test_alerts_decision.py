"""The decision alone, over every sequence of readings that Hypothesis thinks of."""

from hypothesis import given
from hypothesis import strategies as st

from ultramon import AlertConfig
from ultramon.alerts.config import LEVELS, OK, STALE
from ultramon.alerts.memory import AlertMemory
from ultramon.alerts.policy import advance, is_turn

CONFIG = AlertConfig()
LADDER = CONFIG.ladder.resolve(None)
RATIOS = st.floats(0, 1.5)
QUIET = st.sampled_from([0.0, 30.0])


def rank(status):
    return (OK, *LEVELS).index(status)


def run(readings, config=CONFIG):
    """Yield each reading's ratio, its status, and whether it alerted; None is a stale one."""
    memory = AlertMemory()
    for number, ratio in enumerate(readings):
        status = STALE if ratio is None else LADDER.names[LADDER.rank_at(ratio)]
        yield ratio, status, advance(memory, status, ratio or 0.0, config, 1e9 + 10 * number)


@given(st.lists(RATIOS, max_size=60), QUIET)
def test_no_sequence_of_readings_spams(readings, quiet_seconds):
    """Between two alerts of one status there is a fall below its re-arm ratio."""
    lowest = {}
    for ratio, status, alerted in run(readings, AlertConfig(quiet_seconds=quiet_seconds)):
        lowest = {level: min(low, ratio) for level, low in lowest.items()}
        if alerted:
            rearm = LADDER.rungs[rank(status) - 1].rearm_ratio
            assert lowest.get(status, 0.0) < rearm
            lowest.update({level: ratio for level in LEVELS if rank(level) <= rank(status)})


@given(st.lists(RATIOS, max_size=60))
def test_no_sequence_silences_a_status_for_ever(readings):
    """After a fall to nothing the next crossing of any height alerts."""
    for level, threshold in zip(LEVELS, (0.70, 0.85, 0.90, 0.95), strict=True):
        *_, (_, status, alerted) = run([*readings, 0.0, threshold])
        assert (status, alerted) == (level, True)


@given(st.lists(RATIOS, max_size=40), st.lists(st.integers(0, 40), max_size=10))
def test_stale_readings_between_change_nothing(readings, places):
    """What alerts about levels is the same with and without them."""
    mixed = list(readings)
    for place in places:
        mixed.insert(place, None)
    plain = [(status, alerted) for _, status, alerted in run(readings)]
    assert [(s, alerted) for _, s, alerted in run(mixed) if s != STALE] == plain
    assert sum(alerted for _, status, alerted in run(mixed) if status == STALE) <= 1


@given(st.lists(RATIOS, min_size=1, max_size=40))
def test_a_new_highest_status_always_alerts(readings):
    """Nothing said before is a reason not to say more."""
    highest = 0
    for _, status, alerted in run(readings, AlertConfig(quiet_seconds=3600)):
        assert alerted or rank(status) <= highest
        highest = max(highest, rank(status))


@given(st.integers(1, 20), st.integers(0, 100))
def test_every_so_many_runs_are_a_turn(every, runs):
    """As many turns as the number goes into the runs."""
    counts = {"other": 3}
    turns = sum(is_turn("add", every, counts) for _ in range(runs))
    assert turns == runs // every
    assert counts["other"] == 3


@given(
    st.dictionaries(
        st.sampled_from(["level", "filling", "staleAlertedAt", "alertedAt", "counts", "more"]),
        st.one_of(st.none(), st.booleans(), st.floats(), st.text(), st.lists(st.integers()),
                  st.dictionaries(st.text(), st.one_of(st.integers(), st.text()))),
    )
)  # fmt: skip
def test_any_memory_is_understood_as_far_as_it_makes_sense(value):
    """What somebody else wrote there raises nothing."""
    memory = AlertMemory(value)
    memory.enter([1, 2.0])
    advance(memory, "caution", 0.87, CONFIG, 1e9)
    assert all(count > 0 for count in memory.counts.values())
