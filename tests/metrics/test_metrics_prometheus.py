"""A real Prometheus scrapes a real server, loads the rules of the page and answers its queries."""

from __future__ import annotations

import re
import subprocess

import httpx
import pytest
from helpers import ROOT
from helpers.postgres_server import free_port
from helpers.requirements import require_tool
from helpers.running_server import Serving

from ultramon import create_context_monitor
from ultramon.metrics.definitions import METRICS

PAGE = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
CONFIGURATION, RULES = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
QUERIES = [
    query.replace("\\|", "|")
    for query in re.findall(r"`([^`]*ultramon_[^`]*)`", PAGE.partition("## Dashboard")[2])
    if re.search(r"ultramon_\w+", query)
]


@pytest.mark.exhaustive
def test_prometheus_scrapes_and_its_rules_fire(tmp_path):
    """The page's configuration, rules and panels work as they stand, with the token of metrics."""
    prometheus, promtool = require_tool("prometheus"), require_tool("promtool")
    with Serving() as serving:
        kept = [
            create_context_monitor(name, run="audit", backend=serving.backend).start()
            for name in ("full", "half", "blind")
        ]
        for monitor, tokens in zip(kept, (190_000, 100_000), strict=False):
            monitor.report_usage(input_tokens=tokens, context_window_tokens=200_000)
            monitor.update_heartbeat()
        scraper = serving.client(serving.services.metrics_token)
        checked = subprocess.run(
            [promtool, "check", "metrics"],
            input=scraper.get("/metrics").text,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")

        (tmp_path / "rules.yml").write_text(RULES)
        configuration = CONFIGURATION.replace("15s", "1s")
        for written, own in {
            "/etc/prometheus/ultramon.token": f"{serving.state_directory}/metrics.token",
            "127.0.0.1:8420": f"127.0.0.1:{serving.port}",
        }.items():
            assert written in configuration
            configuration = configuration.replace(written, own)
        head = f"rule_files: [{tmp_path}/rules.yml]\nglobal: {{ evaluation_interval: 1s }}\n"
        (tmp_path / "prometheus.yml").write_text(head + configuration)
        subprocess.run(
            [promtool, "check", "config", str(tmp_path / "prometheus.yml")],
            check=True,
            capture_output=True,
        )
        port = free_port()
        arguments = [
            f"--config.file={tmp_path}/prometheus.yml",
            f"--storage.tsdb.path={tmp_path}/data",
            f"--web.listen-address=127.0.0.1:{port}",
        ]
        with (
            (tmp_path / "prometheus.log").open("w") as log,
            subprocess.Popen([prometheus, *arguments], stdout=log, stderr=log) as process,
        ):
            try:
                look_at(f"http://127.0.0.1:{port}/api/v1")
            finally:
                process.terminate()


def look_at(api):
    """Ask Prometheus as dashboards and alerts do."""
    transport = httpx.HTTPTransport(retries=20)
    with httpx.Client(transport=transport, timeout=30) as client:

        def ask(query):
            answer = client.get(f"{api}/query", params={"query": query}).json()
            assert answer["status"] == "success", (query, answer)
            return {
                tuple(sorted(one["metric"].items())): float(one["value"][1])
                for one in answer["data"]["result"]
            }

        while not ask("up == 1"):
            pass
        shown = set(client.get(f"{api}/label/__name__/values").json()["data"])
        # Nothing waits, and two turns are needed for a forecast.
        absent = {"ultramon_notices_waiting", "ultramon_notices_oldest_age_seconds"}
        # Files are those of one machine.
        absent |= {"ultramon_agent_machine", "ultramon_machine_age_seconds"}
        # Who has no plan and no budget exports none.
        of_a_person = ("ultramon_plan_", "ultramon_budget_")
        names = {metric.shown_name for metric in METRICS} - absent
        assert {name for name in names if not name.startswith(of_a_person)} <= shown
        [full] = ask('ultramon_turns_to_level{level="critical"} == 0')
        assert dict(full)["agent_id"] == "full"
        [blind] = ask('sum by (run) (ultramon_agents{level="unknown", lifecycle=~"alive|stale"})')
        assert dict(blind) == {"run": "audit"}
        assert ask("sum(ultramon_agents)") == {(): 3.0}
        for query in QUERIES:
            ask(query)
        states = {}
        while states.get("AgentCriticalWithoutHandoff") != "pending":
            groups = client.get(f"{api}/rules").json()["data"]["groups"]
            states = {rule["name"]: rule["state"] for group in groups for rule in group["rules"]}
        assert states.keys() == {"AgentCriticalWithoutHandoff", "AgentsLost", "AgentsBlind"}
        assert states["AgentsLost"] == "inactive"
