"""`ultramon web` as people run it: its link, that it is the only one, how it ends."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
from contextlib import ExitStack

import httpx
from helpers.program import environment, run

from ultramon.server.server_file import read_server_file

TIMEOUT_SECONDS = 60
MOST_DESCRIPTORS = 40


def test_it_prints_a_link_and_takes_itself_back():
    """Its link logs in, `--link` makes another one, a second page is refused, SIGTERM ends it."""
    state = os.environ["ULTRAMON_STATE_DIR"]
    command = [sys.executable, "-m", "ultramon", "web", "--port", "0", "--json"]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        env=environment(ULTRAMON_STATE_DIR=state),
    ) as served:
        facts = json.loads(served.stdout.readline())
        assert "linkKey" not in facts
        assert os.stat(os.path.join(state, "web-server.json")).st_mode & 0o777 == 0o600
        again = run("web", "--link", ULTRAMON_STATE_DIR=state)
        assert again.stderr.startswith(f"ultramon web is listening on {facts['url']}\n")
        for link in (facts["loginUrl"], again.stderr.split()[-1]):
            with httpx.Client(timeout=TIMEOUT_SECONDS) as client:
                assert client.get(link).status_code == 303
                assert client.get(facts["url"]).status_code == 200
                assert httpx.get(link).status_code == 403
        second = run("web", "--port", "0", ULTRAMON_STATE_DIR=state)
        assert second.returncode == 1
        assert f"another web-server runs for this directory at {facts['url']}" in second.stderr
        served.terminate()
        assert served.wait(TIMEOUT_SECONDS) == 0
        assert served.stderr.read() == ""
    assert read_server_file(state, "web-server") is None
    gone = run("web", "--link", ULTRAMON_STATE_DIR=state)
    assert gone.returncode == 1
    assert "start `ultramon web`" in gone.stderr


def test_a_server_without_descriptors_says_so_once_a_second():
    """It continues when some are free, and its log is no matter of megabytes."""
    command = [sys.executable, "-m", "ultramon", "web", "--port", "0", "--json"]
    limit = ["prlimit", f"--nofile={MOST_DESCRIPTORS}", *command]
    with subprocess.Popen(
        limit,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        env=environment(ULTRAMON_STATE_DIR=os.environ["ULTRAMON_STATE_DIR"]),
    ) as served:
        facts = json.loads(served.stdout.readline())
        began = time.monotonic()
        with ExitStack() as clients:
            for _ in range(2 * MOST_DESCRIPTORS):
                client = clients.enter_context(socket.socket())
                client.connect(("127.0.0.1", facts["port"]))
            said = [served.stderr.readline() for _ in range(3)]
        with httpx.Client(timeout=TIMEOUT_SECONDS) as client:
            assert client.get(facts["loginUrl"]).status_code == 303
        served.terminate()
        assert served.wait(TIMEOUT_SECONDS) == 0
        said += served.stderr.read().splitlines()
    assert all("no connection is taken for now: [Errno 24] Too many" in line for line in said)
    assert len(said) <= time.monotonic() - began + 1


def test_other_machines_need_tls_or_a_proxy():
    """The error says how to get either."""
    refused = run("web", "--host", "0.0.0.0", "--port", "0")
    assert refused.returncode == 1
    assert "--tls-cert" in refused.stderr
    assert "--behind-proxy" in refused.stderr
    wrong = run("web", "--behind-proxy", "proxy.example", "--port", "0")
    assert wrong.returncode == 1
    assert "10.0.0.0/" in wrong.stderr


def test_without_the_extra_it_says_what_to_install():
    """The name of the package and the command that cures it."""
    code = (
        "import sys; sys.modules['uvicorn'] = None\n"
        "from ultramon.cli import main; main(['web', '--port', '0'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, encoding="utf-8", env=environment(),
        check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert re.search(r"install .*\[web\]'", done.stderr)
