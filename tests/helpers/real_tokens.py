"""Counts tokens with a tokenizer that is in use (o200k), not with an estimate of ultramon's."""

from __future__ import annotations

import json
import subprocess

from helpers.npm_client import install_client

_VERSION = "4.0.0"
_PROGRAM = """
const { countTokens } = require("gpt-tokenizer/cjs/encoding/o200k_base");
const texts = JSON.parse(require("fs").readFileSync(0, "utf-8"));
console.log(JSON.stringify(texts.map((text) => countTokens(text))));
"""


def count_tokens(texts):
    """Return the tokens of each text."""
    modules = install_client(f"gpt-tokenizer-{_VERSION}", f"gpt-tokenizer@{_VERSION}")
    done = subprocess.run(
        ["node", "-e", _PROGRAM],
        cwd=modules.parent,
        input=json.dumps(texts),
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    return json.loads(done.stdout)
