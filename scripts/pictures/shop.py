"""The web shop of the pictures: who works on it and what was done before. None of it exists.

The same seed and clock make the same transcripts and the same calls.
"""

from __future__ import annotations

import math
from contextlib import ExitStack, closing
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import accumulate
from random import Random
from typing import TYPE_CHECKING, Any
from uuid import NAMESPACE_URL, uuid5

from scripts.pictures.clients import ClaudeCode, Client, Codex, Machine
from ultramon.backends.local.backend import LocalBackend
from ultramon.backends.memory import MemoryBackend
from ultramon.testing import FakeClock, simulate

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NOW = datetime(2026, 11, 24, 15, 42, tzinfo=UTC).timestamp()
"""When the pictures are taken, epoch seconds."""
API, WEB, OPS = "/home/mira/shop-api", "/home/mira/shop-web", "/home/mira/shop-ops"
SONNET, OPUS, HAIKU, GPT = "claude-sonnet-4-5", "claude-opus-5-5", "claude-haiku-4-5", "gpt-6.1-sol"
_FIRST_TOKENS = 19_800


@dataclass(frozen=True)
class Subagent:
    """A subagent at work.

    Attributes:
        task: What it is to do.
        at_turn: The turn of its session that launches it.
        turns: How many replies it has had.
        tokens: In its window at the last one.
    """

    task: str
    at_turn: int
    turns: int
    tokens: int
    model: str = HAIKU


@dataclass(frozen=True)
class Session:
    """A session at work.

    Attributes:
        host: ``claude-code`` or ``codex``.
        prompt: The first prompt, which names it.
        fills: For each filling of its window, the turns and the tokens at the last of them.
        turn_seconds: The usual length of a turn.
        idle_seconds: How long ago the last thing happened.
        plan: Its tasks, of which the first `done` are done and the next one is in progress.
        ends: How it is left: ``working``, ``in tool``, ``permission``, ``question`` or ``done``.
        says: Its last text.
    """

    host: str
    project: str
    prompt: str
    model: str
    fills: tuple[tuple[int, int], ...]
    turn_seconds: float
    idle_seconds: float
    plan: tuple[str, ...] = ()
    done: int = 0
    ends: str = "working"
    says: str = ""
    subagents: tuple[Subagent, ...] = ()
    window_tokens: int = 200_000

    @property
    def session_id(self) -> str:
        """Its id, made of its prompt."""
        return str(uuid5(NAMESPACE_URL, self.prompt))


SESSIONS = (
    Session(
        "claude-code", API, "Recompute VAT on invoices", SONNET,
        ((44, 166_800), (38, 181_200)), 52, 14,
        plan=(
            "read the new VAT rules", "find every place that rounds", "add the rate to each line",
            "migrate open invoices", "recompute credit notes", "print both rates", "update docs",
        ),
        done=4,
        ends="in tool",
        says="The credit notes still round per invoice. I recompute them per line.",
        subagents=(
            Subagent("find every rounding", 60, 17, 104_300),
            Subagent("test the credit notes", 69, 9, 52_700),
        ),
    ),
    Session(
        "claude-code", API, "Retry timed-out payments", SONNET,
        ((41, 121_900),), 47, 190,
        plan=("reproduce the timeout", "add an idempotency key", "retry with backoff", "alert"),
        done=2,
        ends="permission",
        says="The sandbox key is in place. I run the payment tests against it now.",
    ),
    Session(
        "codex", API, "Rank search by stock", GPT,
        ((36, 191_600),), 61, 31,
        plan=("index stock levels", "score by margin", "keep exact matches first", "measure"),
        done=2,
    ),
    Session(
        "claude-code", API, "Merge guest carts at login", SONNET,
        ((52, 163_500), (14, 74_900)), 44, 8,
        plan=("describe the cases", "merge quantities", "keep coupons", "delete stale carts"),
        done=3,
    ),
    Session(
        "codex", API, "Speed up the order export", GPT,
        ((19, 82_300),), 55, 22,
        plan=("profile it", "stream the rows", "compress"),
        done=1,
        ends="in tool",
    ),
    Session(
        "claude-code", API, "Send invoices as PDF", SONNET,
        ((27, 68_400),), 40, 2_340,
        ends="done",
        says="Invoices are attached as PDF/A now; 14 tests pass. Anything else?",
    ),
    Session(
        "codex", WEB, "Translate product pages", GPT,
        ((33, 216_900),), 49, 17,
        plan=(
            "German", "French", "Italian", "Spanish", "Dutch", "Polish", "Swedish", "Danish",
            "Czech", "Finnish", "Portuguese", "Romanian",
        ),
        done=9,
    ),
    Session(
        "claude-code", WEB, "Autocomplete addresses", OPUS,
        ((31, 388_000),), 66, 26,
        plan=("compare three providers", "wire the chosen one", "keyboard and screen readers"),
        done=1,
        subagents=(Subagent("check address formats", 22, 9, 96_400),),
        window_tokens=1_000_000,
    ),
    Session(
        "claude-code", WEB, "Cart keyboard navigation", SONNET,
        ((24, 91_200),), 38, 410,
        plan=("list what has no focus", "order the tab stops", "announce totals"),
        done=1,
        ends="question",
        says="Should removing an item move the focus to the next one, or to the undo button?",
    ),
    Session(
        "claude-code", WEB, "Replace the date picker", SONNET,
        ((12, 43_600),), 42, 19,
    ),
)  # fmt: skip
"""The ten at work."""


@dataclass(frozen=True)
class Earlier:
    """A session of the days before, whose process runs no more.

    Attributes:
        days_ago: When it ended.
        fills: As of a `Session`.
        subagents: How many it had.
        empty: How many of these came back without a text, their window full.
        asks_github: Whether it used the tools of that server.
    """

    days_ago: float
    project: str
    prompt: str
    fills: tuple[tuple[int, int], ...]
    subagents: int = 0
    empty: int = 0
    asks_github: bool = False


EARLIER = (
    Earlier(
        0.2, API, "Find out why staging drops webhooks", ((58, 171_200), (21, 88_000)),
        subagents=3, empty=1, asks_github=True,
    ),
    Earlier(0.9, WEB, "Halve the size of the first page", ((47, 158_900),), subagents=2),
    Earlier(
        1.3, API, "Reserve stock while a payment is open", ((62, 168_400), (30, 121_000)),
        subagents=4, empty=2,
    ),
    Earlier(2.1, OPS, "Rotate the database passwords", ((22, 64_000),)),
    Earlier(3.2, API, "Refund parts of an order", ((55, 149_700),), subagents=1, asks_github=True),
    Earlier(4.4, WEB, "Show delivery dates on product pages", ((39, 121_000),)),
    Earlier(
        5.1, API, "Replace the search index without downtime", ((66, 169_900), (44, 152_000)),
        subagents=3,
    ),
    Earlier(7.2, WEB, "Let customers save two carts", ((34, 96_400),), subagents=1),
    Earlier(8.3, API, "Import the old customer accounts", ((41, 133_800),)),
    Earlier(
        11.1, OPS, "Cut the build from nine minutes to four", ((36, 104_500),),
        subagents=2, asks_github=True,
    ),
    Earlier(14.2, WEB, "Fix the flicker of the price filter", ((16, 47_900),)),
    Earlier(19.3, API, "Split shipping cost per parcel", ((49, 141_300),)),
    Earlier(24.4, WEB, "Add gift cards to checkout", ((57, 163_100), (18, 61_000)), subagents=2),
)  # fmt: skip

JOB = "port-tests"
"""The run of an orchestrator; its agents may be killed, and claim what they have not done."""
_ITEMS = (
    "cart", "checkout", "payment", "invoices", "vat", "refunds", "search", "ranking", "export",
    "import", "stock", "shipping", "coupons", "accounts", "addresses", "emails", "pdf", "prices",
    "gifts", "delivery",
)  # fmt: skip
_JOB_SEED, _JOB_SECONDS_AGO = 109, 2_400

_FILES = (
    "src/invoices/totals.py", "src/invoices/vat.py", "src/checkout/payment.py", "src/cart/merge.py",
    "src/search/ranking.py", "src/orders/export.py", "tests/test_invoices.py", "tests/test_cart.py",
    "tests/test_checkout.py", "docs/vat.md",
)  # fmt: skip
_COMMANDS = (
    "pytest -q tests/test_invoices.py", "git diff --stat", "rg -n 'round\\(' src", "make lint",
    "pytest -q tests/test_checkout.py -x",
)  # fmt: skip
_LINES = (
    "    total = sum(line.net * line.quantity for line in order.lines)",
    "    if cart.owner is None and session.user is not None:",
    "        rate = rates.for_country(order.ship_to.country, order.placed_at)",
    "    return Money(amount.quantize(CENT, rounding=ROUND_HALF_EVEN), currency)",
    "def test_a_refund_keeps_the_rate_of_its_invoice(shop, invoice):",
    "    payment = gateway.charge(order.total, key=order.idempotency_key)",
    "    for product in index.search(query, limit=50):",
    "        product.score += weights.stock * math.log1p(product.stock)",
    "    assert credit_note.total == -sum(line.gross for line in invoice.lines)",
    "@router.post('/checkout/{cart_id}/address', status_code=204)",
    "    logger.info('exported %d orders in %.1f s', len(rows), elapsed)",
    "tests/test_checkout.py::test_a_card_is_charged_once PASSED",
    " 14 files changed, 322 insertions(+), 97 deletions(-)",
)
_CHARS_PER_TOKEN = 3.4


class Shop:
    """The shop on a machine of its own, within a ``with`` block: its sessions live as long.

    Args:
        folder: An empty folder.

    Attributes:
        machine: The machine.
    """

    def __init__(self, folder: Path) -> None:
        self.machine = Machine(folder)
        self._open = ExitStack()

    def __enter__(self) -> Shop:
        with ExitStack() as opened:
            actions = [action for one in SESSIONS for action in self._play(one, opened)]
            # In the order of a real day, so that the journal has it too.
            for _, _, act in sorted(actions, key=lambda action: action[:2]):
                act()
            self._open = opened.pop_all()
        return self

    def add_earlier(self) -> None:
        """Write the sessions of the days before, a budget, and the run of an orchestrator."""
        for number, earlier in enumerate(EARLIER):
            self._write_earlier(number, earlier)
        settings = self.machine.folder / ".config" / "ultramon" / "ultramon.toml"
        settings.parent.mkdir(parents=True)
        settings.write_text("[budgets.daily]\nlimit_usd = 40\n", encoding="utf-8")
        self._run_job()

    def _run_job(self) -> None:
        memory, clock = MemoryBackend(), FakeClock(NOW - _JOB_SECONDS_AGO)
        simulated = simulate(
            _JOB_SEED,
            [f"tests/test_{name}.py" for name in _ITEMS],
            faults=("die", "claim"),
            fault_ratio=0.2,
            workers=3,
            run=JOB,
            backend=memory,
            clock=clock,
        )
        with closing(LocalBackend(str(self.machine.state))) as store:
            store.append_events(simulated.events)
            for stored in memory.list_agents(JOB):
                assert stored.record is not None
                with store.directory.locked(stored.agent_id, 5.0):
                    store.directory.replace(stored.record, durable=False)

    def __exit__(self, *error: object) -> None:
        self._open.close()

    def _play(self, session: Session, opened: ExitStack) -> Iterator[tuple[float, int, Any]]:
        """Yield what a session does: when, an order, and the call that does it."""
        client = Client(self.machine, session.host)
        opened.callback(client.close)
        given = (self.machine, session.project, session.session_id, session.model, client)
        chance = Random(session.prompt)
        talk: ClaudeCode | Codex
        if session.host == "codex":
            talk = Codex(*given)
        else:
            talk = ClaudeCode(*given, standing=_standing(session.project))
        steps = list(_turns(session.fills, chance, session.turn_seconds))
        ends_at = NOW - session.idle_seconds
        begins_at = ends_at - steps[-1].seconds
        order = SESSIONS.index(session) * 10_000
        plan = _Plan(session, len(steps))

        yield begins_at - 20, order, lambda: talk.begin(begins_at - 20, session.prompt)
        if isinstance(talk, ClaudeCode) and session.model != HAIKU:
            yield begins_at - 19, order, lambda: _show_status_line(talk, begins_at - 19, session)
        launches = {one.at_turn: one for one in session.subagents}
        for number, step in enumerate(steps[:-1]):
            at = begins_at + step.seconds

            def act(number: int = number, step: _Step = step, at: float = at) -> None:
                if step.is_first and number:
                    assert isinstance(talk, ClaudeCode)
                    talk.compact(at - 12, step.tokens, f"So far on: {session.prompt}.")
                if subagent := launches.get(number):
                    assert isinstance(talk, ClaudeCode)
                    name = _agent_id(subagent)
                    talk.launch(at, step.tokens, name, subagent.task, subagent.model)
                elif not plan.step(talk, number, at, step.tokens):
                    _work(talk, chance, at, step)

            yield at, order + number, act
        yield ends_at, order + len(steps), lambda: _end(talk, chance, session, steps[-1], ends_at)
        for subagent in session.subagents:
            launched_at = begins_at + steps[subagent.at_turn].seconds
            assert isinstance(talk, ClaudeCode)
            yield from self._play_subagent(talk, subagent, launched_at, order + 5_000)

    def _play_subagent(
        self, parent: ClaudeCode, subagent: Subagent, launched_at: float, order: int
    ) -> Iterator[tuple[float, int, Any]]:
        chance = Random(subagent.task)
        talk = ClaudeCode(
            self.machine, parent.project, parent.session_id, subagent.model, parent.client,
            agent=_agent_id(subagent), standing=_standing(parent.project),
        )  # fmt: skip
        steps = list(_turns(((subagent.turns, subagent.tokens),), chance, 30, first_tokens=14_200))
        seconds = (NOW - 6 - launched_at) / (steps[-1].seconds + 20)
        yield launched_at + 1, order, lambda: talk.begin(launched_at + 1, subagent.task)
        for number, step in enumerate(steps):
            at = launched_at + (step.seconds + 20) * seconds

            def act(step: _Step = step, at: float = at) -> None:
                _work(talk, chance, at, step)

            yield at, order + number, act

    def _write_earlier(self, number: int, earlier: Earlier) -> None:
        chance = Random(earlier.prompt)
        session_id = str(uuid5(NAMESPACE_URL, earlier.prompt))
        given = (self.machine, earlier.project, session_id, SONNET)
        standing = _standing(earlier.project)
        talk = ClaudeCode(*given, standing=standing)
        steps = list(_turns(earlier.fills, chance, 48))
        begins_at = NOW - earlier.days_ago * 86_400 - steps[-1].seconds
        talk.begin(begins_at - 20, earlier.prompt)
        for place, step in enumerate(steps[:-1]):
            at, launched = begins_at + step.seconds, place // 9
            if step.is_first and place:
                talk.compact(at - 12, step.tokens, f"So far on: {earlier.prompt}.")
            if place == 5 and earlier.asks_github:
                asked = {"owner": "shop", "issue": 418 + number}
                result = _text(chance, step.grows)
                talk.turn(at, step.tokens, "mcp__github__get_issue", asked, result)
            elif place % 9 == 4 and launched < earlier.subagents:
                name = f"a{number:02d}{place:02d}{chance.randrange(16**12):012x}"
                talk.launch(at, step.tokens, name, "look at one part of it", SONNET)
                helper = ClaudeCode(*given, agent=name, standing=standing)
                is_empty = launched < earlier.empty
                tokens = 196_400 if is_empty else chance.randrange(48_000, 92_000)
                inner = list(_turns(((9, tokens),), chance, 25, first_tokens=14_200))
                helper.begin(at, "Look at one part of it.")
                for one in inner[:-1]:
                    _work(helper, chance, at + one.seconds, one)
                says = "" if is_empty else "Found three places, listed below."
                helper.stop(at + inner[-1].seconds, inner[-1].tokens, says)
                talk.take_result(at + inner[-1].seconds, name, says)
            else:
                _work(talk, chance, at, step)
        talk.stop(begins_at + steps[-1].seconds, steps[-1].tokens, "Done; all tests pass.")


@dataclass
class _Step:
    """One reply.

    Attributes:
        seconds: Since the first.
        tokens: In the window when it was asked.
        grows: How many more the next one has.
        is_first: Of its filling of the window.
    """

    seconds: float
    tokens: int
    grows: int
    is_first: bool


def _turns(
    fills: tuple[tuple[int, int], ...],
    chance: Random,
    turn_seconds: float,
    *,
    first_tokens: int = _FIRST_TOKENS,
) -> Iterator[_Step]:
    seconds = 0.0
    for number, (turns, last) in enumerate(fills):
        first = first_tokens if number == 0 else 34_600
        weights = [math.exp(chance.gauss(0, 0.7)) for _ in range(turns - 1)]
        grown = accumulate(weights, initial=0.0)
        readings = [round(first + (last - first) * one / sum(weights)) for one in grown]
        for place, tokens in enumerate(readings):
            grows = readings[min(place + 1, turns - 1)] - tokens
            yield _Step(seconds, tokens, grows, not place)
            seconds += turn_seconds * math.exp(chance.gauss(-0.1, 0.5))


class _Plan:
    """The tasks of a session: made at its first turns, done at even distances."""

    def __init__(self, session: Session, turns: int) -> None:
        self._tasks, self._done = session.plan, session.done
        self._changes: dict[int, tuple[int, str]] = {}
        if not self._tasks:
            return
        if session.host == "codex":
            first, reached = 2, session.done
            distance = (turns - first - 2) / (reached + 1)
            self._changes = {
                round(first + number * distance): (number, "") for number in range(reached + 1)
            }
            return
        first = 1 + len(self._tasks)
        self._changes = {1 + number: (number, "pending") for number in range(len(self._tasks))}
        distance = (turns - first - 3) / (self._done + 1)
        for number in range(self._done + 1):
            turn = round(first + number * distance)
            self._changes[turn + 1] = (number, "in_progress")
            if number:
                self._changes[turn] = (number - 1, "completed")

    def step(self, talk: ClaudeCode | Codex, number: int, at: float, tokens: int) -> bool:
        """Change the plan where this turn is to; return whether it was."""
        change = self._changes.get(number)
        if change is None:
            return False
        place, status = change
        if isinstance(talk, ClaudeCode):
            talk.task(at, tokens, place + 1, self._tasks[place], status)
            return True
        statuses = ["completed"] * place + ["in_progress"] + ["pending"] * len(self._tasks)
        talk.plan(at, tokens, list(zip(self._tasks, statuses, strict=False)))
        return True


def _agent_id(subagent: Subagent) -> str:
    return f"a{uuid5(NAMESPACE_URL, subagent.task).hex[:16]}"


def _text(chance: Random, tokens: int) -> str:
    """Return lines of about so many tokens."""
    lines, left = [], tokens * _CHARS_PER_TOKEN
    while left > 0:
        lines.append(chance.choice(_LINES))
        left -= len(lines[-1]) + 1
    return "\n".join(lines)


def _work(
    talk: ClaudeCode | Codex,
    chance: Random,
    at: float,
    step: _Step,
    *,
    says: str = "",
    is_open: bool = False,
) -> None:
    """Do a turn with a usual tool, whose result is about as long as the window grows next."""
    result = _text(chance, max(40, step.grows * 9 // 10))
    file, command = chance.choice(_FILES), chance.choice(_COMMANDS)
    path = f"{talk.project}/{file}"
    if isinstance(talk, Codex):
        given: dict[str, Any] = {"cmd": command if chance.random() < 0.5 else f"cat {file}"}
        talk.turn(at, step.tokens, "exec_command", given, result, says=says, is_open=is_open)
        return
    tool = "Bash" if is_open else chance.choice(("Read", "Read", "Read", "Bash", "Bash", "Edit"))
    given = {"command": command} if tool == "Bash" else {"file_path": path}
    if tool == "Edit":
        given |= {"old_string": "round(total, 2)", "new_string": "total.quantize(CENT)"}
    talk.turn(at, step.tokens, tool, given, result, says=says, is_open=is_open)


def _end(
    talk: ClaudeCode | Codex, chance: Random, session: Session, step: _Step, at: float
) -> None:
    if session.ends in ("working", "in tool"):
        is_open = session.ends == "in tool"
        _work(talk, chance, at, step, says=session.says, is_open=is_open)
    elif session.ends == "done":
        talk.stop(at, step.tokens, session.says)
    else:
        assert isinstance(talk, ClaudeCode)
        if session.ends == "permission":
            given = {"command": "pytest -q tests/test_checkout.py --live"}
            talk.ask(at, step.tokens, "Bash", given, session.says)
        else:
            talk.question(at, step.tokens, session.says)


def _show_status_line(talk: ClaudeCode, at: float, session: Session) -> None:
    limits = {
        "five_hour": {"used_percentage": 62, "resets_at": int(NOW) + 3_480},
        "seven_day": {"used_percentage": 41, "resets_at": int(NOW) + 282_000},
    }
    talk.show_status_line(at, session.window_tokens, limits)


def _standing(project: str) -> tuple[dict[str, Any], ...]:
    """Return what the first request of Claude Code holds before the conversation."""
    tools = [
        {"name": name, "description": "What it does, when to use it, and when not to. " * 90}
        for name in ("Bash", "Edit", "Glob", "Grep", "Read", "TaskCreate", "TaskUpdate", "Write")
    ]
    for server, nouns, length in (
        ("github", ("issue", "pull_request", "review"), 18),
        ("playwright", ("page", "console", "request", "screenshot"), 24),
    ):
        tools += [
            {"name": f"mcp__{server}__{verb}_{noun}", "description": "One call of it. " * length}
            for verb in ("get", "list", "create", "update")
            for noun in nouns
        ]
    memory = {
        "/home/mira/.claude/CLAUDE.md": "Answer briefly, and name the file you mean. " * 30,
        f"{project}/CLAUDE.md": "Run the tests before you say that a task is done. " * 90,
    }
    files = [{"path": path, "content": text} for path, text in memory.items()]
    system = "You help a person to write software, in their terminal. "
    shape = {"system": [{"type": "text", "text": system * 300}], "tools": tools}
    return (
        {"type": "attachment", "attachment": {"type": "instructions", "files": files}},
        {"type": "api-request-shape", "shape": shape},
    )
