"""How many items the next context of a relay gets, and what it knows of the one before."""

from helpers.pool_journal import Journal

from ultramon.relay.runs.chunks import FIRST_ITEMS, most_items

ITEMS = [f"{number:03}" for number in range(500)]


def finish(journal, count, share, **end):
    """Run a context over its next items, of which it finishes some."""
    context = journal.assign(share)
    journal.claim(context, context.items[:count])
    journal.end(context, **end)


def test_the_first_context_gets_a_few():
    """Also while it runs: it has finished some, and may finish more."""
    journal = Journal(ITEMS)
    assert most_items(journal.pool) == FIRST_ITEMS
    context = journal.assign(FIRST_ITEMS)
    journal.claim(context, context.items[:3])
    assert most_items(journal.pool) == FIRST_ITEMS


def test_a_context_that_finished_all_may_have_had_twice_as_many():
    """Until one hands over with items left: then as many as that one finished."""
    journal = Journal(ITEMS)
    finish(journal, FIRST_ITEMS, FIRST_ITEMS)
    assert most_items(journal.pool) == 2 * FIRST_ITEMS
    finish(journal, 31, 2 * FIRST_ITEMS)
    assert most_items(journal.pool) == 31


def test_ends_that_say_nothing_change_nothing():
    """A kill, a failure, and a context that finished none of its items."""
    journal = Journal(ITEMS)
    finish(journal, 6, FIRST_ITEMS)
    finish(journal, 1, 6, outcome="lost", exit={"signal": "SIGKILL"})
    finish(journal, 2, 6, outcome="failed")
    finish(journal, 0, 6)
    assert most_items(journal.pool) == 6


def test_few_large_items_leave_one():
    """A context of one item is followed by one of two."""
    journal = Journal(ITEMS)
    finish(journal, 1, FIRST_ITEMS)
    assert most_items(journal.pool) == 1
    journal = Journal(ITEMS)
    finish(journal, 1, 1)
    assert most_items(journal.pool) == FIRST_ITEMS
