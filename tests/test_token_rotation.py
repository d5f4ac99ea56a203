"""`ultramon token rotate` beside a running server: the old token is void, the new one opens."""

from __future__ import annotations

import os
import subprocess
import threading
from pathlib import Path

import pytest
from helpers import program
from helpers.running_server import TIMEOUT_SECONDS, ServeProgram, Serving
from helpers.waiting import until

from ultramon.server.http.authentication import digest
from ultramon.server.main import _UnlimitedDigests
from ultramon.tokens import ADMIN_TOKEN, HOOK_SECRET, METRICS_TOKEN, TOKEN_FILE

KINDS = [
    ("admin", ADMIN_TOKEN, "/agents"),
    ("metrics", METRICS_TOKEN, "/metrics"),
    ("hook", HOOK_SECRET, "/hooks/context-usage"),
]


def rotate(*arguments):
    """Rotate as a person with the store of the test; return what was printed."""
    done = program.run(
        "token", "rotate", *arguments, ULTRAMON_STATE_DIR=os.environ["ULTRAMON_STATE_DIR"]
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.removesuffix("\n")


def status(client, path):
    if path.startswith("/hooks"):
        return client.post(path, json={}).status_code
    return client.get(path).status_code


@pytest.fixture
def serving(shared_store):
    with Serving() as serving:
        yield serving


@pytest.mark.parametrize(("kind", "name", "path"), KINDS)
def test_an_old_secret_is_void_at_once_and_the_new_one_opens(serving, kind, name, path):
    """On a connection that is open already, too; the file is replaced with its mode."""
    file = Path(serving.state_directory) / name
    before, inode = file.read_text().strip(), file.stat().st_ino
    old = serving.client(before)
    assert status(old, path) not in (401, 403)
    assert rotate(kind) == str(file)
    after = file.read_text().strip()
    assert status(old, path) == 401
    assert status(serving.client(after), path) not in (401, 403)
    assert after != before
    assert (file.stat().st_mode & 0o777, file.stat().st_ino != inode) == (0o600, True)
    assert sorted(one.name for one in file.parent.glob(f"{name}*")) == [name]


def test_the_new_admin_token_is_shared_by_many(serving):
    """Requests with it are not limited, as those with the old one were not; the old one is."""
    old = serving.services.admin_token
    rotate("admin")
    limits = _UnlimitedDigests(serving.services)
    assert digest(serving.services.admin_token.encode()) in limits
    assert digest(old.encode()) not in limits


@pytest.mark.parametrize("kind", ["admin", "agent"])
def test_what_the_old_token_opened_ends(serving, kind):
    """A stream and a waiting claim, without another event; the new token opens both again."""
    _, boss = serving.make_agent("boss")
    client = serving.admin if kind == "admin" else boss
    path = "/agents/boss/messages/stream"
    claims = []

    def claim():
        answer = boss.post("/agents/boss/messages/claim", json={"waitSeconds": 30})
        claims.append(answer.status_code)

    waiting = threading.Thread(target=claim)
    with client.stream("GET", path) as answer:
        lines = answer.iter_lines()
        assert next(lines) == "retry: 1000"
        if kind == "agent":
            waiting.start()
            until(lambda: len(serving.services.streams.polls) == 1)
        token = rotate("admin" if kind == "admin" else "boss")
        assert [line for line in lines if line.startswith("data")] == []
    if kind == "agent":
        waiting.join(TIMEOUT_SECONDS)
        assert claims == [401]
    new = serving.client(Path(token).read_text().strip() if kind == "admin" else token)
    with new.stream("GET", path) as answer:
        assert answer.status_code == 200


def test_an_event_after_the_rotation_does_not_reach_the_old_stream(serving):
    """Not even the one that would have come next."""
    _, boss = serving.make_agent("boss")
    path = "/agents/boss/messages"
    with boss.stream("GET", f"{path}/stream") as answer:
        lines = answer.iter_lines()
        assert next(lines) == "retry: 1000"
        rotate("boss")
        assert serving.admin.post(path, json={"text": "a secret"}).status_code == 201
        assert "a secret" not in "".join(lines)


def test_an_agents_tokens_are_replaced_by_one(serving, tmp_path):
    """All of the agent; a file gets the new one; those that it made for its children stay."""
    made, boss = serving.make_agent("boss")
    second = serving.client(serving.admin.post("/agents/boss/tokens").json()["token"])
    child, scout = serving.make_agent("scout", boss)
    assert {one.get("/agents/boss").status_code for one in (boss, second)} == {200}
    file = tmp_path / "boss.token"
    file.write_text(made["token"])
    assert rotate("boss", "--file", file) == f"export {TOKEN_FILE}={file}"
    assert file.stat().st_mode & 0o777 == 0o600
    new = serving.client(file.read_text().strip())
    assert {one.get("/agents/boss").status_code for one in (boss, second)} == {401}
    assert new.get("/agents/boss").status_code == 200
    assert scout.get("/agents/scout").status_code == 200
    assert child["token"] not in file.read_text()


def test_a_server_in_another_process_takes_the_new_one_only():
    """Without a signal or a restart."""
    with ServeProgram() as serving:
        token = (serving.state_directory / METRICS_TOKEN).read_text().strip()
        scraper = serving.client(token)
        assert scraper.get("/metrics").status_code == 200
        for _ in range(3):
            file = Path(rotate("metrics"))
            scraper, old = serving.client(file.read_text().strip()), scraper
            assert (old.get("/metrics").status_code, scraper.get("/metrics").status_code) == (
                401,
                200,
            )
        rotate("admin")
        assert serving.admin.get("/agents").status_code == 401


def test_a_file_that_became_unsafe_opens_nothing(serving):
    """Neither the old secret nor what is in it now; a rotation is the cure."""
    file = Path(serving.state_directory) / ADMIN_TOKEN
    file.write_text("x" * 40)
    file.chmod(0o644)
    assert serving.admin.get("/agents").status_code == 503
    assert serving.client("x" * 40).get("/agents").status_code == 503
    rotate("admin")
    assert serving.client(file.read_text().strip()).get("/agents").status_code == 200
    file.unlink()
    assert serving.client(serving.services.admin_token).get("/agents").status_code == 200


def test_a_secret_that_is_rotated_by_many_at_once_is_one(tmp_path):
    """Each rotation is whole: the file holds the token of the last one."""
    command = [program.PROGRAM, "token", "rotate", "metrics"]
    environ = program.environment(ULTRAMON_STATE_DIR=os.environ["ULTRAMON_STATE_DIR"])
    running = [subprocess.Popen(command, env=environ) for _ in range(4)]
    assert [process.wait(TIMEOUT_SECONDS) for process in running] == [0] * 4
    file = Path(os.environ["ULTRAMON_STATE_DIR"]) / METRICS_TOKEN
    assert len(file.read_text().strip()) == 43
    assert not file.with_name(f"{METRICS_TOKEN}.lock").exists()
