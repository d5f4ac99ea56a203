"""The examples in docs/server.md work unchanged, and it lists every route."""

import os
import re
import runpy
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from helpers import ROOT
from helpers.program import PROGRAM, environment
from helpers.requirements import require_tool
from helpers.running_server import Serving

from ultramon import queue_message
from ultramon.backends.memory import MemoryBackend
from ultramon.server.workers.webhooks import Sender, read_targets
from ultramon.system.clock import SYSTEM_CLOCK
from ultramon.testing import FakeClock

PAGE = (ROOT / "docs" / "server.md").read_text(encoding="utf-8")
PORT = "8420"
SHELL = """
set -euo pipefail
curl() { command curl --silent --show-error --fail-with-body "$@" || [ $? -eq 28 ]; }
"""
"""28 is curl's own deadline: the examples of streams end by it."""


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_every_line_for_a_shell_works(tmp_path):
    """One after the other, as a reader would type them; a line that the server refuses fails."""
    bash, _, _ = map(require_tool, ("bash", "curl", "jq"))
    with Serving() as serving:
        assert PORT in PAGE
        script = SHELL + "\n".join(blocks("sh")).replace(PORT, str(serving.port))
        done = subprocess.run(
            [bash, "-c", script],
            cwd=tmp_path,
            env=environment(
                PATH=f"{Path(PROGRAM).parent}{os.pathsep}{os.environ['PATH']}",
                ULTRAMON_STATE_DIR=serving.state_directory,
            ),
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
    for said in ('"status":"ok"', "flags_reset", "compaction_complete_logged", "acknowledged"):
        assert said in done.stdout.replace(": ", ":")
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir() if path.is_file()} == {0o600}


def test_every_route_is_on_the_page():
    """Its table is as `python scripts/generate_openapi.py` would write it now."""
    generator = runpy.run_path(str(ROOT / "scripts" / "generate_openapi.py"))
    assert generator["render_page"](PAGE) == PAGE
    with Serving() as serving:
        paths = serving.anybody.get("/openapi.json").json()["paths"]
    for path, methods in paths.items():
        for method in methods:
            assert f"\n| `{method.upper()} {path}` | " in PAGE


SERVING = 'HTTPServer(("127.0.0.1", 9000), Receiver).serve_forever()'
SERVING_ANYWHERE = """
server = HTTPServer(("127.0.0.1", 0), Receiver)
print(server.server_port, flush=True)
server.serve_forever()
"""


@pytest.fixture
def receiver(tmp_path, monkeypatch):
    """The receiver of the page as a program, and the configuration of the page for it."""
    secret = tmp_path / "boss.secret"
    secret.touch(0o600)
    secret.write_text("0123456789abcdef0123456789abcdef\n")
    (toml, *_), (code,) = blocks("toml"), blocks("py")
    assert SERVING in code
    with subprocess.Popen(
        [sys.executable, "-c", code.replace(SERVING, SERVING_ANYWHERE)],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        port = process.stdout.readline().strip()
        (tmp_path / "ultramon.toml").write_text(toml.replace("9000", port))
        monkeypatch.setenv("ULTRAMON_CONFIG", str(tmp_path / "ultramon.toml"))
        yield process
        process.kill()


@pytest.mark.parametrize("is_forged", [False, True])
def test_the_receiver_takes_what_is_signed_and_nothing_else(
    receiver, tmp_path, monkeypatch, is_forged
):
    """Configuration and receiver fit each other; another secret opens nothing."""
    monkeypatch.chdir(tmp_path)
    if is_forged:
        (tmp_path / "boss.secret").write_text("another secret, another secret!!\n")
    backend, clock = MemoryBackend(), SYSTEM_CLOCK
    ((target,), hosts) = read_targets()
    queue_message("boss", "the tests are green", backend=backend)
    with closing(Sender(target, hosts, backend=backend, clock=clock)) as sender:
        assert sender.poll() == (not is_forged)
    if is_forged:
        (message,) = backend.queue.peek("boss", now=clock.now())
        assert message.last_error == "HTTP 403"
    else:
        assert receiver.stdout.readline() == "the tests are green\n"


def test_the_receiver_takes_nothing_that_is_replayed_later(receiver, tmp_path, monkeypatch):
    """A notice that was signed months ago is refused, however good its signature is."""
    monkeypatch.chdir(tmp_path)
    backend, clock = MemoryBackend(), FakeClock()
    ((target,), hosts) = read_targets()
    queue_message("boss", "old news", backend=backend, clock=clock)
    with closing(Sender(target, hosts, backend=backend, clock=clock)) as sender:
        assert sender.poll() == 0
    (message,) = backend.queue.peek("boss", now=clock.now())
    assert message.last_error == "HTTP 403"
