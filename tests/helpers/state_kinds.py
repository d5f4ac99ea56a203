"""State files of every kind that a list meets."""

import os
import random
from binascii import crc32
from functools import cache

from ultramon.state.record import encode_state
from ultramon.system.processes import MachineIdentity
from ultramon.testing import make_record

ELSEWHERE = MachineIdentity("elsewhere", "another-boot")
GONE = 2**22 + 1
"""No process has this pid."""


def with_member(data: bytes, before: bytes, after: bytes) -> bytes:
    """Change a state's text, and give it the checksum that fits."""
    body = data.rpartition(b',"crc32":')[0].replace(before, after, 1) + b"}"
    return b'%s,"crc32":%d}\n' % (body[:-1], crc32(body))


def write_states(folder: str, count: int, now: float) -> None:
    """Write states of every kind in turn: agents that live, are late, lost, ended, unreadable."""
    os.makedirs(folder, mode=0o700, exist_ok=True)
    for agent_id, data, beat_at in _states(count, now):
        path = os.path.join(folder, agent_id)
        with open(os.open(f"{path}.json", os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
            file.write(data)
        if beat_at is not None:
            os.close(os.open(f"{path}.hb", os.O_WRONLY | os.O_CREAT, 0o600))
            os.utime(f"{path}.hb", (beat_at, beat_at))
    os.symlink(os.path.join(folder, "agent-00000.json"), os.path.join(folder, "link.json"))
    os.mkfifo(os.path.join(folder, "pipe.json"))
    open(os.path.join(folder, "no name.json"), "w").close()


@cache
def _states(count: int, now: float) -> list[tuple[str, bytes, float | None]]:
    """Return ids, the bytes of states, and times of heartbeats."""
    chance = random.Random(7)
    found = []
    for number in range(count):
        agent_id = f"agent-{number:05}"
        data = _state(agent_id, number % 25, now, chance)
        beat_at = now - chance.choice((1, 20, 50, 700, -30)) if number % 3 else None
        found.append((agent_id, data, beat_at))
    return found


def _state(agent_id: str, kind: int, now: float, chance: random.Random) -> bytes:
    at = now - chance.choice((0, 5, 50, 300, 5000)) - chance.random()
    tokens = chance.randrange(230_000)
    rung = "warning" if tokens > 140_000 else "normal"
    record = make_record(
        agent_id,
        at=at,
        estimated_tokens=tokens,
        usage_ratio=round(tokens / 200_000, 4),
        threshold_status=rung,
        action={"normal": "none", "warning": chance.choice(("prepare_handoff", "force_return"))}[
            rung
        ],
        run=chance.choice(("default", "b")),
        tasks=[{"name": f"item {n}", "status": "done", "result": None} for n in range(kind % 4)],
        by_source={"tool:read": chance.randrange(9_000)},
    )
    if kind in (1, 2, 3):
        record.active, record.outcome = False, ("completed", "failed", "returned")[kind - 1]
    elif kind == 4:
        record.pid = GONE
    elif kind in (5, 6):
        record.hostname, record.boot_id = ELSEWHERE.hostname, ELSEWHERE.boot_id
        record.phase = "waiting" if kind == 6 else "in_tool"
    elif kind == 7:
        record.usage_ratio = record.threshold_status = record.context_limit = None
        record.limit_source = "unknown"
    elif kind == 8:
        record.label = 'x\x1b[31m"\\\u202e\ud83d\ude00,"usageRatio":0.5,"action":"force_return"'
    elif kind == 9:
        record.hostname = "höst\n"
    elif kind == 10:
        record.session_id, record.host = agent_id.split("-", maxsplit=1)[0], "claude-code"
    elif kind == 11:
        record.extra = {"newField": {"a": [1, 2.50, None]}}
    elif kind == 12:
        record.pending = [record.event("agent_started", at=at, n=0)]
    elif kind == 13:
        record.last_heartbeat = 0.0
    elif kind == 14:
        record.heartbeat_interval_seconds = None
    elif kind == 15:
        record.lost_after_seconds = 30.0
    elif kind == 16:
        return encode_state(record, "x")[:-40]
    elif kind == 17:
        return with_member(
            encode_state(record, "x"), b'"tasksCompleted":0', b'"tasksCompleted":"4"'
        )
    elif kind == 18:
        return with_member(encode_state(record, "x"), b'"schema":1', b'"schema":2')
    elif kind == 19:
        record.agent_id = "somebody-else"
    elif kind == 20:
        return b""
    elif kind == 21:
        return with_member(encode_state(record, "x"), b'"graceSeconds":30.0', b'"graceSeconds":3e1')
    elif kind == 22:
        record.forecast = {"tokensPerTurn": 5, "rungs": {"warning": {"turns": 3, "seconds": 1.5}}}
    return encode_state(record, "x")
