"""A look is repeated, and tried again after the store refused."""

import threading

from ultramon.backends.regular_look import RegularLook
from ultramon.errors import StateError


def test_a_refusal_is_logged_once_and_the_next_look_is_made(caplog):
    looks = []
    is_enough = threading.Event()

    def look():
        looks.append(len(looks))
        if len(looks) > 5:
            is_enough.set()
        if len(looks) in (2, 3, 5):
            raise StateError("/store", f"refused {len(looks)}", "wait")

    looking = RegularLook(look, name="looks", every_seconds=0.001, trouble="nothing is seen")
    looking.start()
    assert is_enough.wait(20)
    looking.stop()
    seen = len(looks)
    refused = [message.partition(": refused ")[2][:1] for message in caplog.messages]
    assert refused == ["2", "5"]
    begun = "the store refused a look, nothing is seen: "
    assert all(begun in message for message in caplog.messages)
    assert len(looks) == seen


def test_an_unexpected_error_is_logged_once_and_the_next_look_is_made(caplog):
    """A thread that died without a sign would announce nothing for ever."""
    looks = []
    is_enough = threading.Event()

    def look():
        looks.append(len(looks))
        if len(looks) > 4:
            is_enough.set()
        if len(looks) in (1, 2, 4):
            raise ValueError(f"odd {len(looks)}")

    looking = RegularLook(look, name="looks", every_seconds=0.001, trouble="nothing is seen")
    looking.start()
    assert is_enough.wait(20)
    looking.stop()
    assert caplog.messages == ["a look failed, nothing is seen"] * 2
    assert [str(record.exc_info[1]) for record in caplog.records] == ["odd 1", "odd 4"]


def test_one_that_was_never_started_can_be_stopped():
    RegularLook(int, name="looks", every_seconds=1, trouble="").stop()
