"""Thinking and images in what fills the window of the real client."""

import json
import struct
import zlib

import pytest
from helpers import program
from helpers.real_tokens import count_tokens

from real_client.api import Api, Call, Reply, marked

pytestmark = pytest.mark.real_client

WIDTH, HEIGHT = 1_200, 900
IMAGE_TOKENS = 43 * 33
"""In squares of 28 pixels."""
SHOWN = "I look at the picture first, then at what the axes say. " * 20


class CountingApi(Api):
    """Answers with the tokens that the request has, and drops thinking as some models do.

    Attributes:
        keeps_thinking: Whether thinking of earlier turns stays in the window.
        held: Of the last turn, tokens by what they are.
    """

    keeps_thinking = True

    def __init__(self, observe):
        super().__init__(observe)
        self.held = {}
        self._thinking = []

    def choose_step(self, request):
        """Return the step of a conversation, with the real count."""
        step = super().choose_step(request)
        if not isinstance(step, Reply) or not request.body.get("tools"):
            return step
        self.held = self._count(request.body)
        tokens = sum(self.held.values())
        if step.thinking_tokens is not None:
            self._thinking.append(step.thinking_tokens)
        texts = [step.text, *(json.dumps(call.input) for call in step.calls)]
        output = (step.thinking_tokens or 0) + sum(count_tokens(texts)) + 20 * len(step.calls)
        return Reply(
            tokens, step.text, step.calls, thinking=step.thinking, output_tokens=output,
            thinking_tokens=step.thinking_tokens,
        )  # fmt: skip

    def _count(self, body):
        texts = [*(one["text"] for one in body["system"]), *map(json.dumps, body["tools"])]
        images, thoughts = 0, []
        last_prompt = 0
        for message in body["messages"]:
            content = message["content"]
            if isinstance(content, str):
                content = [{"type": "text", "text": content}]
            for block in content:
                kind = block["type"]
                if kind == "thinking":
                    thoughts.append(last_prompt)
                elif kind == "tool_result" and '"image"' in json.dumps(block):
                    images += 1
                else:
                    texts.append(block.get("text") or json.dumps(block))
                if message["role"] == "user" and "[[main]]" in block.get("text", ""):
                    last_prompt += 1
        thinking = [
            tokens
            for tokens, turn in zip(self._thinking, thoughts, strict=True)
            if self.keeps_thinking or turn == last_prompt
        ]
        return {
            "texts": sum(count_tokens(texts)),
            "images": images * IMAGE_TOKENS,
            "thinking": sum(thinking),
        }


@pytest.fixture
def api(states):
    """A stand-in API that counts."""
    api = CountingApi(states.all)
    yield api
    api.close()
    assert not api.unscripted


def black_picture():
    """A PNG that the client sends as it is."""
    head = struct.pack(">IIBBBBB", WIDTH, HEIGHT, 8, 2, 0, 0, 0)
    rows = zlib.compress((b"\0" + bytes(3 * WIDTH)) * HEIGHT)
    data = b"\x89PNG\r\n\x1a\n"
    for kind in (b"IHDR" + head, b"IDAT" + rows, b"IEND"):
        data += struct.pack(">I", len(kind) - 4) + kind + struct.pack(">I", zlib.crc32(kind))
    return data


def filled(client, states):
    """What `explain` says of the only session."""
    done = program.run_process(
        "explain", states.only().agent_id, "--json", HOME=str(client.home),
        ULTRAMON_STATE_DIR=str(states.directory), CLAUDE_CONFIG_DIR=str(client.configuration),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("keeps_thinking", [True, False])
def test_each_part_is_what_the_window_holds(installed, api, states, keeps_thinking):
    """Within 10 %, the sum within 2 %; thinking of an earlier turn as long as it is counted."""
    api.keeps_thinking = keeps_thinking
    picture = installed.project / "plot.png"
    picture.write_bytes(black_picture())
    look = Call("Read", {"file_path": str(picture)})
    api.play(
        Reply(0, calls=(look,), thinking=SHOWN, thinking_tokens=260),
        Reply(0, calls=(Call("Bash", {"command": "echo 1"}),), thinking_tokens=1_900),
        Reply(0, "A line that rises. " * 9, thinking_tokens=900),
    )
    installed.run(marked("what is this?"))
    api.play(Reply(0, "As I said.", thinking_tokens=350))
    installed.run(marked("sure?"), "--continue")
    found = filled(installed, states)
    parts, sure = found["filledBy"], found["provenance"]
    assert api.held["thinking"] == (3_060 if keeps_thinking else 0)
    assert parts["thinking"] == pytest.approx(api.held["thinking"] + 350, rel=0.1)
    assert parts["images"] == pytest.approx(api.held["images"], rel=0.1)
    assert (sure["thinking"], sure["images"], sure["tools"]) == (
        "measured", "estimated", "measured",
    )  # fmt: skip
    held = sum(api.held.values()) + 350 + sum(count_tokens(["As I said."]))
    assert sum(parts.values()) == pytest.approx(held, rel=0.02)
