"""Write docs/openapi.json: what the HTTP API takes and answers.

    .venv/bin/python scripts/generate_openapi.py

The test of the document renders it too, and fails where the file is not the same.
"""

from __future__ import annotations

import json
from pathlib import Path

from ultramon.backends.memory import MemoryBackend
from ultramon.server.app import create_app
from ultramon.server.services import Services

DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "openapi.json"


def render() -> str:
    """Return the document of the application; nothing of it depends on what is stored."""
    services = Services(MemoryBackend(), "", admin_token="", hook_secret="", metrics_token="")
    return json.dumps(create_app(services).openapi(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    DOCUMENT.write_text(render(), encoding="utf-8")
