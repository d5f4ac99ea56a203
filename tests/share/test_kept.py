"""What waits on this machine: numbered once, in order, bounded, and said."""

import pytest

from ultramon.share.kept import Batch, Kept, Waiting


@pytest.fixture
def kept(tmp_path):
    made = Kept(str(tmp_path))
    yield made
    made.close()


def test_batches_wait_in_order_until_they_are_forgotten(kept, tmp_path):
    """Positions rise, and none comes twice, not in another process either."""
    assert kept.oldest(100) == []
    assert kept.waiting() == Waiting(0, 0, None, 0)
    assert [kept.append([[name, 1.5]], {name: b"1"}, 7.0) for name in "abc"] == [1, 2, 3]
    assert kept.oldest(2) == [Batch(1, [["a", 1.5]]), Batch(2, [["b", 1.5]])]
    assert kept.waiting() == Waiting(3, 3, 7.0, 0)
    kept.forget(2, "40")
    assert (kept.oldest(9), kept.cursor()) == ([Batch(3, [["c", 1.5]])], "40")
    kept.forget(3, None)
    kept.close()
    again = Kept(str(tmp_path))
    assert (again.append([], {}, 8.0), again.cursor()) == (4, "40")
    assert again.seen() == {"a": b"1", "b": b"1", "c": b"1"}
    again.forget_agents(["a", "b"])
    assert again.seen() == {"c": b"1"}
    again.close()


def test_a_new_file_continues_behind_what_the_database_knows(kept):
    """Of what it holds nothing was sent: a number that the database has would be passed over."""
    kept.append([["a"]], {}, 1.0)
    kept.append([["b"]], {}, 1.0)
    kept.begin_behind(2)
    assert [one.position for one in kept.oldest(9)] == [1, 2]
    kept.begin_behind(500)
    assert [one.position for one in kept.oldest(9)] == [501, 502]
    assert kept.append([["c"]], {}, 1.0) > 502
    assert [one.rows for one in kept.oldest(9)] == [[["a"]], [["b"]], [["c"]]]


def test_it_is_bounded_and_says_what_it_dropped(tmp_path):
    """The oldest readings go; how many is counted."""
    kept = Kept(str(tmp_path), max_bytes=10_000)
    for number in range(1_000):
        kept.append([[f"agent-{number:04}", "x" * 80]], {}, float(number))
    found = kept.waiting()
    assert found.readings + found.dropped == 1_000
    assert 0 < found.readings < 200
    assert kept.oldest(9)[0].rows[0][0] == f"agent-{found.dropped:04}"
    assert found.oldest_at == found.dropped
    kept.close()


@pytest.mark.parametrize("is_read_first", [False, True])
def test_a_damaged_file_is_set_aside(kept, tmp_path, is_read_first):
    """The next look is kept in a new one, behind what the database may have."""
    for number in range(5):
        kept.append([["a"]], {}, float(number))
    kept.forget(4, "9")
    kept.close()
    (tmp_path / "share.sqlite3").write_bytes(b"no database" * 1_000)
    for suffix in ("-wal", "-shm"):
        (tmp_path / f"share.sqlite3{suffix}").unlink(missing_ok=True)
    if is_read_first:
        assert kept.seen() == {}
    position = kept.append([["b"]], {}, 1.0)
    assert position > 5
    assert kept.oldest(9) == [Batch(position, [["b"]])]
    assert [path.name for path in tmp_path.glob("*.corrupt-*")]


def test_a_database_that_knows_nothing_gets_the_whole_journal(kept):
    """What waits, and what was seen, stays: those readings are not read a second time."""
    kept.append([["a"]], {"a": b"1"}, 1.0)
    kept.forget(0, "9")
    kept.read_anew()
    assert (kept.seen(), kept.cursor(), len(kept.oldest(9))) == ({"a": b"1"}, None, 1)
