"""What those who run a server use: probes and scrapes."""

from __future__ import annotations

import asyncio
import os
import threading

from helpers.program import run
from helpers.running_server import Serving
from prometheus_client.parser import text_string_to_metric_families as parse

from ultramon import create_context_monitor
from ultramon.backends.memory import MemoryBackend
from ultramon.errors import StateWriteError
from ultramon.server.readiness import Readiness


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
