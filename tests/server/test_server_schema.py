"""The document of the HTTP API is true: requests made from it get the answers that it names."""

from __future__ import annotations

import json
import runpy
from hashlib import sha256

import pytest
import schemathesis
from helpers import ROOT
from helpers.running_server import Serving

from ultramon.backends.credentials import Credential, credentials_of
from ultramon.tokens import ADMIN_TOKEN, TOKEN_SECONDS, write_token

DOCUMENT = ROOT / "docs" / "openapi.json"
# Known before there is a server: cases are made when tests are collected.
ADMIN = "admin-of-the-test-of-the-document-" + "a" * 9
AGENT = "um_" + "b" * 43
EXAMPLES = 4
SETTINGS = {
    # What no schema can say (rising thresholds, the names of devices) is refused with 422 as well.
    "checks": {
        "positive_data_acceptance": {
            "expected-statuses": ["2xx", "401", "403", "404", "409", "422", "429"]
        },
        # A made-up Host is refused before anything else is looked at.
        "negative_data_rejection": {"expected-statuses": ["4xx"]},
    },
    "generation": {"deterministic": True, "database": "none", "max-examples": EXAMPLES},
    "operations": [
        {
            # All that it says is what to do instead.
            "include-path": "/hooks/claude-code",
            "checks": {"positive_data_acceptance": {"expected-statuses": ["401", "403", "410"]}},
        },
        {
            # What is no JSON is answered 204 by one, as existing scripts expect, and by the other
            # where the caller has switched ultramon off.
            "include-path-regex": "^/hooks/",
            "checks": {"negative_data_rejection": {"enabled": False}},
        },
    ],
}


def document_for(token, **phases):
    """Load the document for a caller with a token."""
    settings = {**SETTINGS, "phases": {"stateful": {"enabled": False}, **phases}}
    config = schemathesis.Config.from_dict(settings)
    schema = schemathesis.openapi.from_path(str(DOCUMENT), config=config)

    @schema.auth()
    class Bearer:
        def get(self, case, context):
            return token

        def set(self, case, data, context):
            case.headers["Authorization"] = f"Bearer {data}"

    # Streams never end: tests of their own read them.
    return schema.exclude(path_regex="/stream$")


as_admin = document_for(ADMIN)
# Other callers than the admin have 200 requests at once: only the admin tries boundaries.
as_agent = document_for(AGENT, coverage={"enabled": False})


@pytest.fixture(scope="module")
def serving(tmp_path_factory):
    directory = tmp_path_factory.mktemp("served")
    directory.chmod(0o700)
    write_token(directory / ADMIN_TOKEN, ADMIN)
    with Serving(directory=directory) as serving:
        assert serving.services.admin_token == ADMIN
        serving.admin.post("/agents", json={"agentId": "boss"}).raise_for_status()
        now = serving.services.clock.now()
        token_hash = sha256(AGENT.encode()).hexdigest()
        credentials_of(serving.backend).mint(
            Credential(token_hash, "boss", 1, None, now, now + TOKEN_SECONDS)
        )
        yield serving


def check(case, serving):
    """Make one request, and judge the answer."""
    seconds = case.body.get("waitSeconds") if isinstance(case.body, dict) else None
    if type(seconds) in (int, float) and 0 <= seconds <= 60:
        case.body["waitSeconds"] = 0  # nothing comes, and it would wait for it
    case.call_and_validate(base_url=serving.url)


@as_admin.parametrize()
def test_requests_of_the_admin_get_documented_answers(case, serving):
    """Whatever the document allows or forbids, the answer is one that it names."""
    check(case, serving)


@as_agent.parametrize()
def test_requests_of_an_agent_get_documented_answers(case, serving):
    """An agent's token leads to no answer that the document does not name."""
    check(case, serving)


def test_the_committed_document_is_that_of_the_server(serving):
    """docs/openapi.json is what the server answers, made by scripts/generate_openapi.py."""
    render = runpy.run_path(str(ROOT / "scripts" / "generate_openapi.py"))["render"]
    assert DOCUMENT.read_text(encoding="utf-8") == render()
    assert serving.anybody.get("/openapi.json").json() == json.loads(render())


def test_the_document_is_rendered_once(serving):
    """Anybody may ask for it, so that an answer must not cost what rendering it costs."""
    app = serving.server.config.app._app
    before = serving.anybody.get("/openapi.json").content
    app.openapi_schema = {"rendered": "anew"}
    assert serving.anybody.get("/openapi.json").content == before
