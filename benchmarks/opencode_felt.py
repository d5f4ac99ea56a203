"""How long a tool call of opencode takes with ultramon's plugin, beside one that does nothing.

The real client and a scripted model; both in turn, three times. By hand:
``python benchmarks/opencode_felt.py``.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from helpers import opencode_client
from helpers.scripted_model import Step

CALLS = 40
ROUNDS = 3
NO_OP = """
export const NoOp = async () => ({
  "tool.execute.before": async () => {}, "tool.execute.after": async () => {},
  "experimental.chat.messages.transform": async () => {}, "chat.params": async () => {},
})
"""


class TimedApi(opencode_client.Api):
    """Notes when a request comes and when its answer is made."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.came: list[float] = []
        self.went: list[float] = []

    def reply(self, step, body, path):
        """Play the step."""
        self.came.append(time.monotonic())
        answer = super().reply(step, body, path)
        self.went.append(time.monotonic())
        return answer


def measure(*, is_ultramon: bool) -> list[float]:
    """Return the milliseconds from each answer to the next request, but for the first ones."""
    opencode_client.Api, plain = TimedApi, opencode_client.Api
    try:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
            client = opencode_client.Client(Path(name))
            if is_ultramon:
                assert client.ultramon("install", "opencode", "--force").returncode == 0
            else:
                client.plugin.parent.mkdir(parents=True, exist_ok=True)
                client.plugin.write_text(NO_OP)
            waits = {"until": client.has_resident} if is_ultramon else {}
            first = Step(10_000, "true", **waits)
            steps = [first, *(Step(10_000 + n, f"echo {n}") for n in range(CALLS)), Step(20_000)]
            with client.api({"MAIN": steps}) as api:
                done = client.run("[[MAIN]] work")
            assert done.returncode == 0, done.stderr
    finally:
        opencode_client.Api = plain
    gaps = [1000 * (came - went) for went, came in zip(api.went, api.came[1:], strict=False)]
    return gaps[3:]


def main() -> None:
    """Print the table."""
    times: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(ROUNDS):
        for is_ultramon in (False, True):
            times[is_ultramon] += measure(is_ultramon=is_ultramon)
    print("| plugin | calls | least | median | p90 |\n|---|---|---|---|---|")
    for is_ultramon, name in ((False, "does nothing"), (True, "ultramon's")):
        found = sorted(times[is_ultramon])
        p90 = found[len(found) * 9 // 10]
        row = f"{len(found)} | {found[0]:.1f} | {statistics.median(found):.1f} | {p90:.1f}"
        print(f"| {name} | {row} |")


if __name__ == "__main__":
    main()
