"""Steps inside items: what an agent has done of an item, each with a small result, for a successor.

An item's steps are what the journal's events of its agents add up to. They end with the claim of
the item: one that is verified needs none, and a claim that a check denies leaves none, since they
led to it.
"""

from __future__ import annotations

from copy import deepcopy

from ultramon.errors import ConfigurationError
from ultramon.system import compact_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

STEP_COMPLETED = "step_completed"
MAX_STEPS_BYTES = 64 * 1024
"""Largest size of the steps of one item: names and results, as compact JSON in ASCII."""
MAX_STEP_NAME_CHARS = 200
MAX_STEP_DEPTH = 100
"""Lists and objects inside each other: a reader of the journal must be able to decode them."""
_CLAIMED = ("items_claimed", "items_verified", "items_rejected", "items_set_aside")


class ItemSteps:
    """The steps of items by item; not thread-safe."""

    def __init__(self) -> None:
        self._of: dict[str, dict[str, Any]] = {}

    def of(self, item: str) -> dict[str, Any]:
        """Return the results of an item's steps by name, those stored last at the end; a copy."""
        return deepcopy(self._of.get(item, {}))

    def put(self, item: str, step: str, result: Any) -> bool:
        """Take a step; one of the same name is replaced. Return whether the name is new."""
        steps = self._of.setdefault(item, {})
        is_new = step not in steps
        steps.pop(step, None)
        steps[step] = result
        return is_new

    def drop(self, items: Iterable[str]) -> None:
        """Forget the steps of items."""
        for item in items:
            self._of.pop(item, None)

    def among(self, items: Iterable[str]) -> dict[str, dict[str, Any]]:
        """Return the steps of those of some items that have any."""
        return {item: self.of(item) for item in items if item in self._of}

    def read(self, event: Mapping[str, Any]) -> None:
        """Learn from the next event of one agent, as it is stored."""
        kind = event["type"]
        if kind == STEP_COMPLETED:
            self.put(event["item"], event["step"], event.get("result"))
        elif kind == "agent_assigned":
            for item, steps in (event.get("steps") or {}).items():
                for step, result in steps.items():
                    self.put(item, step, result)
        elif kind in _CLAIMED:
            self.drop(event["items"])
        elif kind == "agent_stopped":
            # A life that begins after an end begins its items anew; after a kill it continues them.
            self._of.clear()

    def checked(self, item: str, step: str, result: Any) -> Any:
        """Return the result of a step as it will be read: a copy, with lists in place of tuples.

        Raises:
            ConfigurationError: The name is no text of 1 to 200 characters; the result has no form
                in JSON, is nested too deeply, or is too large beside the item's other steps.
        """
        if not isinstance(step, str) or not 0 < len(step) <= MAX_STEP_NAME_CHARS:
            allowed = f"a text of 1 to {MAX_STEP_NAME_CHARS} characters"
            raise ConfigurationError("step", _shown(step), allowed)
        name = f"result of step {step!r}"
        try:
            text = compact_json.dumps(result)
            as_read = compact_json.loads(text)
        except (TypeError, ValueError) as error:
            raise ConfigurationError(name, _shown(result), f"a JSON value ({error})") from None
        if _is_deeper(as_read, MAX_STEP_DEPTH):
            allowed = f"nested at most {MAX_STEP_DEPTH} deep"
            raise ConfigurationError(name, _shown(result), allowed)
        size_bytes = len(compact_json.dumps({**self._of.get(item, {}), step: as_read}))
        if size_bytes > MAX_STEPS_BYTES:
            allowed = (
                f"so small that all steps of an item take at most {MAX_STEPS_BYTES:,} bytes as "
                f"JSON, and these take {size_bytes:,}: store a reference, such as a path"
            )
            raise ConfigurationError(name, _shown(result), allowed)
        return as_read


def _is_deeper(value: Any, depth: int) -> bool:
    """Return whether lists and objects are in each other more than so deeply."""
    if not isinstance(value, list | dict):
        return False
    inner = value.values() if isinstance(value, dict) else value
    return not depth or any(_is_deeper(one, depth - 1) for one in inner)


def _shown(value: object) -> str:
    return value[:40] if isinstance(value, str) else type(value).__name__
