"""What every conformance suite needs of the store that it is run over."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from ultramon.backends.base import Backend

    Reopen = Callable[[Backend], Backend] | None


class StoreContract:
    """Base of the suites: the fixtures that say what is tested."""

    @pytest.fixture
    def backend(self) -> Backend:
        """Give an empty backend that no other test uses."""
        raise NotImplementedError(f"{type(self).__name__} needs a fixture `backend`")

    @pytest.fixture
    def reopen(self) -> Reopen:
        """Give a function that opens the store of a backend as another process would.

        None = the store ends with the object; tests of durability are skipped.
        """
        return None
