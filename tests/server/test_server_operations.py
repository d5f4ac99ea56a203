"""What those who run a server use: probes, scrapes, a proxy in front, reload, logs."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import ssl
import threading
from datetime import datetime, timedelta

import httpx
import pytest
from helpers.program import PROGRAM, environment, run
from helpers.running_server import ServeProgram, Serving, make_certificate
from prometheus_client.parser import text_string_to_metric_families as parse

from ultramon import create_context_monitor
from ultramon.backends.memory import MemoryBackend
from ultramon.errors import StateWriteError
from ultramon.server.logs import JsonFormatter
from ultramon.server.main import start_metrics
from ultramon.server.readiness import Readiness
from ultramon.server.workers.lost_agents import LostAgents

TRIES = 2_000
"""Handshakes or requests until a signal must have arrived."""


class Refusing(MemoryBackend):
    """A store that can be switched off."""

    refuses = False
    asked = 0

    def events(self, after=None, limit=500):
        self.asked += 1
        if self.refuses:
            raise StateWriteError("memory:", "is away")
        return super().events(after, limit)


def test_ready_says_whether_the_store_answers(tmp_path):
    """Without a token, beside /health, which says only that the process lives."""
    store = Refusing()
    with Serving(store) as serving:
        said = serving.anybody.get("/ready")
        assert (said.status_code, said.json()["status"]) == (200, "ready")
        serving.services.stopping.set()
        said = serving.anybody.get("/ready")
        assert (said.status_code, said.json()["detail"]) == (503, "the server is stopping")
    store.refuses = True
    with Serving(store) as serving:
        said = serving.anybody.get("/ready")
        assert (said.status_code, said.json()["detail"]) == (503, "memory:: is away")
        assert serving.anybody.get("/health").status_code == 200
        scraped = serving.client(serving.services.metrics_token).get("/metrics")
        assert (scraped.status_code, scraped.json()["detail"]) == (503, "memory:: is away")


def test_anybody_may_ask_and_the_store_is_asked_once_a_second(tmp_path, ultramon_clock):
    """A crowd of probes costs one read and one thread; the directory must be there, too."""
    store = Refusing()
    directory = tmp_path / "served"
    directory.mkdir()

    async def ask():
        ready = Readiness(store, str(directory), threading.Event(), ultramon_clock)
        assert await asyncio.gather(*(ready.problem() for _ in range(20))) == [None] * 20
        assert store.asked == 1
        directory.rmdir()
        assert await ready.problem() is None
        ultramon_clock.advance(1)
        assert await ready.problem() == f"{directory} is not there, or may not be written"

    asyncio.run(ask())


def test_a_scrape_needs_a_token_of_its_own():
    """That token opens nothing else; an agent's opens no scrape, and the attempt is recorded."""
    with Serving() as serving:
        made = serving.admin.post("/agents", json={"agentId": "scout-1"}).json()
        agent = serving.client(made["token"])
        scraper = serving.client(serving.services.metrics_token)
        for client, status in {
            scraper: 200,
            serving.admin: 200,
            agent: 403,
            serving.hooks: 401,
            serving.anybody: 401,
        }.items():
            assert client.get("/metrics").status_code == status
        for path in ("/agents", "/events", "/queue", "/metrics/", "/hooks/context-usage"):
            assert scraper.get(path).status_code == 401
        assert [event["type"] for event in serving.backend.events().events][-1] == "audit"
        token = serving.services.state_directory + "/metrics.token"
        assert os.stat(token).st_mode & 0o777 == 0o600
        said = run("token", "metrics", ULTRAMON_STATE_DIR=serving.state_directory)
        assert said.stdout == f"{token}\n"


def test_a_scrape_is_parsed_by_the_library_of_prometheus():
    """Agents of several runs, in one answer of the type that a scraper asks for."""
    with Serving() as serving:
        kept = [
            create_context_monitor(f"scout-{run}", run=run, backend=serving.backend).start()
            for run in ("audit", "review")
        ]
        for monitor in kept:
            monitor.report_usage(input_tokens=150_000, context_window_tokens=200_000)
        scraper = serving.client(serving.services.metrics_token)
        answer = scraper.get("/metrics")
        assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        families = {family.name: family.samples for family in parse(answer.text)}
        ratios = families["ultramon_context_usage_ratio"]
        assert {one.labels["run"]: one.value for one in ratios} == {"audit": 0.75, "review": 0.75}
        answer = scraper.get(
            "/metrics", headers={"Accept": "application/openmetrics-text;version=1.0.0"}
        )
        assert answer.headers["content-type"].startswith("application/openmetrics-text")
        assert answer.text.endswith("# EOF\n")


def test_a_server_exports_all_runs_once(monkeypatch):
    """Its own look after vanished agents is a fleet per run, and none of these exports again."""
    from ultramon.metrics import opentelemetry

    monkeypatch.setenv("ULTRAMON_OTEL", "1")
    with Serving() as serving:
        made = {"agentId": "scout-1", "run": "audit", "notify": "self"}
        serving.admin.post("/agents", json=made).raise_for_status()
        end = start_metrics(serving.services)
        watching = LostAgents(serving.services)
        watching.check()
        [exporter] = opentelemetry._global
        shown = [run for url, run in exporter._sources if url == serving.backend.url]
        assert shown == [None]
        for fleet in watching._fleets.values():
            fleet.close()
        end()
        assert serving.backend.url not in {url for url, _ in exporter._sources}


@pytest.fixture
def proxied(caplog):
    """A server behind proxies, its log, and a function that asks it from an address."""
    with Serving(proxies=["10.0.0.5", "fd00::/8"], names=["monitor.example"]) as serving:
        caplog.set_level(logging.INFO, "ultramon.server")

        def ask(address, path="/agents", **headers):
            async def request():
                # The whole stack of the server, but for the socket: it has one address only.
                app = serving.server.config.loaded_app
                transport = httpx.ASGITransport(app, client=(address, 4711))
                async with httpx.AsyncClient(transport=transport) as client:
                    headers.setdefault("Host", "monitor.example")
                    headers["Authorization"] = f"Bearer {serving.services.admin_token}"
                    return await client.get(f"http://server{path}", headers=headers)

            caplog.clear()
            answer = asyncio.run(request())
            return answer.status_code, caplog.records[-1].facts["client"]

        yield ask


FORWARDED = {"X-Forwarded-For": "203.0.113.7", "X-Forwarded-Proto": "https"}


@pytest.mark.parametrize(
    ("address", "headers", "expected"),
    [
        ("10.0.0.5", FORWARDED, (200, "203.0.113.7")),
        ("::ffff:10.0.0.5", FORWARDED, (200, "203.0.113.7")),
        ("fd00::1", FORWARDED, (200, "203.0.113.7")),
        # What the client itself wrote stands further left.
        ("10.0.0.5", {"X-Forwarded-For": "127.0.0.1, 203.0.113.7"}, (200, "203.0.113.7")),
        ("10.0.0.5", {**FORWARDED, "Origin": "https://monitor.example"}, (200, "203.0.113.7")),
        ("10.0.0.5", {"Origin": "https://monitor.example"}, (403, "10.0.0.5")),
        ("10.0.0.5", {**FORWARDED, "Host": "other.example"}, (421, "203.0.113.7")),
        # This machine may ask, and is not believed.
        ("127.0.0.1", FORWARDED, (200, "127.0.0.1")),
        ("127.0.0.1", {**FORWARDED, "Origin": "https://monitor.example"}, (403, "127.0.0.1")),
        # No other machine is answered: its token would have crossed the network in the clear.
        ("10.0.0.6", FORWARDED, (403, "10.0.0.6")),
        ("203.0.113.7", {}, (403, "203.0.113.7")),
    ],
)
def test_only_named_proxies_are_believed(proxied, address, headers, expected):
    """Their headers give the client's address and scheme; a stranger is refused in any case."""
    assert proxied(address, **headers) == expected


def test_plain_http_beyond_this_machine_needs_a_named_proxy():
    """Without a certificate any address is allowed only so."""
    with ServeProgram("--host", "0.0.0.0", "--behind-proxy", "10.0.0.0/24") as served:
        assert served.url.startswith("http://0.0.0.0:")
        port = served.url.rpartition(":")[2]
        assert httpx.get(f"http://127.0.0.1:{port}/ready").status_code == 200


@pytest.mark.parametrize("name", ["*", "0.0.0.0/0", "::/0", "10.0.0.5/24", "proxy.example"])
def test_everybody_is_no_proxy(name):
    """One line says what is allowed."""
    done = run("serve", "--port", "0", "--behind-proxy", name)
    assert done.returncode == 1
    assert "--behind-proxy=" in done.stderr
    assert "must be an address or network of proxies, e.g. 10.0.0.5" in done.stderr


def served_certificate(port):
    """Return the certificate that a new connection is shown."""
    return ssl.get_server_certificate(("127.0.0.1", port)).strip()


def until(check):
    """Call until the result is true; each call is a request, so that the server gets its turn."""
    for _ in range(TRIES):
        if found := check():
            return found
    raise AssertionError("it did not happen")


def test_a_hangup_opens_certificate_and_log_again(tmp_path):
    """For renewed certificates and rotated logs; what is not usable changes nothing."""
    certfile, keyfile = make_certificate(tmp_path)
    log = tmp_path / "server.log"
    options = ["--log-requests", "--log-format", "json", "--log-file", str(log)]
    tls = ["--tls-cert", certfile, "--tls-key", keyfile]
    with ServeProgram(*tls, *options, TZ="Asia/Kolkata") as served:
        port = int(served.url.rpartition(":")[2])

        def status():
            trusting = ssl.create_default_context(cafile=certfile)
            return httpx.get(f"https://localhost:{port}/health", verify=trusting).status_code

        first = served_certificate(port)
        until(lambda: status() and "/health" in log.read_text())
        log.rename(tmp_path / "server.log.1")
        make_certificate(tmp_path)
        served.process.send_signal(signal.SIGHUP)
        until(lambda: served_certificate(port) != first)
        assert status() == 200
        [one] = until(
            lambda: (
                status() and [line for line in lines_of(log) if "opened again" in line["message"]]
            )
        )
        assert datetime.fromisoformat(one["time"]).utcoffset() == timedelta(hours=5, minutes=30)
        request = next(line for line in lines_of(log) if "request" in line)
        assert request["request"] == {
            "method": "GET",
            "path": "/health",
            "status": 200,
            "milliseconds": request["request"]["milliseconds"],
            "caller": None,
            "client": "127.0.0.1",
        }
        assert (request["level"], request["logger"]) == ("INFO", "ultramon.server")
        assert any("request" in line for line in lines_of(tmp_path / "server.log.1"))
        assert log.stat().st_mode & 0o777 == 0o600

        second = served_certificate(port)
        kept = (tmp_path / "key.pem").read_bytes()
        (tmp_path / "key.pem").write_text("no key")
        served.process.send_signal(signal.SIGHUP)
        until(lambda: status() and "the certificate is not read again" in log.read_text())
        assert served_certificate(port) == second
        (tmp_path / "key.pem").write_bytes(kept)
        assert served.stop() == 0
        assert served.rest() == ""


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_closed_terminal_ends_it(tmp_path):
    """Else a server would continue unseen, and hold its port."""
    import pexpect

    child = pexpect.spawn(
        PROGRAM,
        ["serve", "--port", "0"],
        env=environment(ULTRAMON_STATE_DIR=str(tmp_path / "own")),
        timeout=60,
    )
    child.expect("admin.token")
    os.close(child.child_fd)
    _, status = os.waitpid(child.pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert not (tmp_path / "own" / "server.json").exists()


def test_a_log_is_a_file_of_its_own(tmp_path):
    """A symlink or a device is refused in one line."""
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for path, reason in {tmp_path / "link": "link", "/dev/full": "is no file"}.items():
        done = run("serve", "--port", "0", "--log-file", path)
        assert done.returncode == 1
        assert reason in done.stderr
        assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "elsewhere").exists()


def test_a_line_of_json_is_one_line():
    """What a request brings in can neither break nor colour a log; a traceback stays complete."""
    try:
        raise ValueError("no\nsuch \x1b[31mthing")
    except ValueError as error:
        record = logging.LogRecord(
            "ultramon.server",
            logging.ERROR,
            "",
            0,
            "a\nb \u202e%s",
            ("\x1b[2J",),
            (type(error), error, error.__traceback__),
        )
    line = JsonFormatter().format(record)
    assert line.isascii()
    assert "\n" not in line
    shown = json.loads(line)
    assert all(str(value).isprintable() for value in shown.values())
    assert "ValueError" in shown["traceback"]
    assert shown.keys() == {"time", "level", "logger", "message", "traceback"}
