"""Access to the page: links that log in once, and the logins that they begin.

A link is a time and a random number, signed with a key that the process makes at its start. So
a second command that can read the key, as only this user can, makes a link by itself.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from typing import TYPE_CHECKING

from ultramon.system.clock import SYSTEM_CLOCK

if TYPE_CHECKING:
    from ultramon.system.clock import Clock

LINK_SECONDS = 300
LOGIN_SECONDS = 12 * 3600
MAX_LOGINS = 64
"""Beyond them the oldest login ends."""
# A code has 108 characters: ten digits, 32 and 64 of hexadecimal, two dots.
_MAX_CODE_CHARS = 200


def make_key() -> str:
    """Return a new key to sign links with."""
    return secrets.token_hex(32)


def make_code(key: str, now: float) -> str:
    """Return what a link carries.

    Args:
        key: From `make_key`.
        now: Epoch seconds; the link is valid for `LINK_SECONDS`.
    """
    what = f"{int(now) + LINK_SECONDS}.{secrets.token_hex(16)}"
    return f"{what}.{_sign(key, what)}"


def _sign(key: str, what: str) -> str:
    return hmac.new(key.encode("ascii"), what.encode("ascii"), hashlib.sha256).hexdigest()


class Logins:
    """The links that were used, and the logins. Used on one event loop.

    Args:
        key: From `make_key`.
        clock: For tests.
    """

    def __init__(self, key: str, clock: Clock = SYSTEM_CLOCK) -> None:
        self._key = key
        self._clock = clock
        self._used: dict[str, float] = {}
        # Digest to the end of the login, the oldest first: a copy of the memory is no login.
        self._logins: dict[str, float] = {}

    def redeem(self, code: str) -> str | None:
        """Begin a login; None for a link that is forged, too old, or used.

        Returns:
            The value of its cookie.
        """
        what, _, signature = code.rpartition(".")
        # `compare_digest` raises for text beyond ASCII, and this program writes no such code.
        if not code.isascii() or len(code) > _MAX_CODE_CHARS:
            return None
        if not hmac.compare_digest(signature, _sign(self._key, what)):
            return None
        now = self._clock.now()
        # Read after the check: a signed time is one that this program wrote.
        until = int(what.partition(".")[0])
        self._used = {one: end for one, end in self._used.items() if end > now}
        # Used links are kept until they are too old anyway, so that each logs in once.
        # The upper bound is for a clock that was set back: a link of before would work for longer.
        if what in self._used or not now < until <= now + LINK_SECONDS + 1:
            return None
        self._used[what] = until
        cookie = secrets.token_urlsafe(32)
        # Only its digest is kept, so the cookie stands nowhere but in the browser and in this
        # answer.
        self._logins[_digest(cookie)] = now + LOGIN_SECONDS
        if len(self._logins) > MAX_LOGINS:
            del self._logins[next(iter(self._logins))]
        return cookie

    def find(self, cookie: str) -> str | None:
        """Return the name of a login, which reveals nothing; None for no login."""
        name = _digest(cookie)
        return name if self.is_open(name) else None

    def is_open(self, name: str) -> bool:
        """Return whether a login still holds."""
        return self._logins.get(name, 0.0) > self._clock.now()

    def end(self, name: str) -> None:
        """End a login."""
        self._logins.pop(name, None)


def _digest(cookie: str) -> str:
    return hashlib.sha256(cookie.encode("utf-8", "replace")).hexdigest()
