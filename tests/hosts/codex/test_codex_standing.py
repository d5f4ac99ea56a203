"""What stands in every request of the real Codex, beside the request itself."""

import json
from pathlib import Path

import pytest
from helpers import codex_client, program
from helpers.real_tokens import count_tokens
from helpers.scripted_model import Step

PAGES = Path(__file__).parents[3] / "docs"


class Api(codex_client.Api):
    """Answers with the tokens that the request has."""

    def __init__(self, steps):
        super().__init__(steps)
        self.bodies = []

    def reply(self, step, body, path):
        """Count, and play the step."""
        self.bodies.append(body)
        counted = Step(sum(count_tokens(pieces_of(body))), text=step.text or "Done.")
        return super().reply(counted, body, path)


def pieces_of(body):
    """The texts of a request."""
    texts = [part["text"] for item in body["input"] for part in item.get("content") or ()]
    return [*texts, *(json.dumps(tool) for tool in body["tools"])]


def test_what_is_recorded_of_a_request_is_what_it_held(tmp_path):
    """Each part within 10 % of a real tokenizer's count of it, the whole within 2 %.

    But the client leaves out a chapter of the instructions that it writes down: of a tool that it
    does not offer.
    """
    client = codex_client.Client(tmp_path)
    own = (PAGES / "alerts.md").read_text()[:4_000]
    project = (PAGES / "extending.md").read_text()[:9_000]
    client.configuration.joinpath("AGENTS.md").write_text(own)
    client.project.joinpath("AGENTS.md").write_text(project)
    skill = client.project / ".agents" / "skills" / "deploy" / "SKILL.md"
    skill.parent.mkdir(parents=True)
    skill.write_text("---\nname: deploy\ndescription: Deploys the shop.\n---\nRun make deploy.\n")
    api = Api({"MAIN": [Step(0)]})
    client.configure(api)
    with client.serve(api):
        done = client.run("[[MAIN]] work")
    assert done.returncode == 0, done.stderr
    shown = program.run_process(
        "report", "--json", str(client.configuration / "sessions"),
        CODEX_HOME=str(client.configuration),
    )  # fmt: skip
    report = json.loads(shown.stdout)
    found = {one["source"]: one for one in report["byStanding"]}
    (body,) = api.bodies
    pieces = pieces_of(body)
    (skills,) = [one for one in pieces if one.startswith("<skills_instructions>")]
    expected = {
        "skills": skills,
        f"memory:{client.configuration}/AGENTS.md": own,
        f"memory:{client.project}/AGENTS.md": project,
    }
    for source, text in expected.items():
        (held,) = count_tokens([text])
        assert found[source]["tokens"] == pytest.approx(held, rel=0.1), source
        assert found[source]["provenance"] == "estimated"
    instructions = max((one for one in pieces if one.startswith("You are")), key=len)
    (held,) = count_tokens([instructions])
    assert held <= found["system"]["tokens"] <= 1.4 * held
    # Definitions of tools are not in the rollout.
    assert found[None]["provenance"] == "unknown"
    tools = sum(count_tokens([json.dumps(tool) for tool in body["tools"]]))
    assert found[None]["tokens"] == pytest.approx(tools, rel=0.5)
    assert report["standing"]["tokens"] == pytest.approx(sum(count_tokens(pieces)), rel=0.02)
