"""Images and thinking in what real clients have written down, one session each.

The clients ran against a scripted model: one image of 320 x 200 pixels was pasted or named in the
prompt, and read by a tool.
"""

import base64
from pathlib import Path

import pytest
from helpers.transcript_lines import line, prompt, reply
from helpers.transcript_records import of
from hypothesis import given
from hypothesis import strategies as st

from ultramon.hosts.registry import find_host
from ultramon.hosts.transcripts.images import images_in
from ultramon.hosts.transcripts.records import THINKING, Content, Image, Report
from ultramon.recordings.image_sizes import image_tokens
from ultramon.recordings.summary import Summarizer
from ultramon.recordings.transcript_summary import TranscriptSummary

TOOLS = {"Read", "view_image", "read_file", "read", "view"}
IMAGES = Path(__file__).parents[1] / "data" / "images"
PNG = base64.b64encode(
    b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\x01\x40\0\0\0\xc8\x08\x02\0\0\0" + bytes(200)
).decode()


def records_of(name):
    """What a host's reader finds in a recording."""
    host = find_host(name)
    with (IMAGES / f"{name.replace('-', '_')}.jsonl").open("rb") as file:
        return list(host.transcripts.read_transcript(file))


@pytest.mark.parametrize(
    ("name", "sizes", "files"),
    [
        # A third one is a document, whose size no file says; the second was scaled by the client.
        ("claude-code", [96, 1568, None], ["plot.png", "big.jpg", "doc.pdf"]),
        ("codex", [96, 96], [None, None]),
        ("gemini", [96, 96, None], [None, None, None]),
        ("qwen", [96, 96], [None, "plot.png"]),
        ("opencode", [96, 96], [None, "plot.png"]),
        ("copilot", [96], ["plot.png"]),
    ],
)
def test_the_images_of_a_session_are_found(name, sizes, files):
    """In its prompt and in the results of tools, with their size and the file that was named."""
    images = of(Image, records_of(name))
    assert [image_tokens(one, "claude-haiku-4-5") for one in images] == sizes
    assert [one.file and Path(one.file).name for one in images] == files
    assert {one.tool for one in images} <= {None, *TOOLS}
    assert {one.tool for one in images} & TOOLS or name == "gemini"
    assert max(len(one.data) for one in images) <= 1 << 18


@pytest.mark.parametrize("name", ["claude-code", "codex", "gemini", "qwen", "opencode", "copilot"])
def test_the_bytes_of_an_image_are_never_text(name):
    """As base64 an image would be hundreds of thousands of tokens."""
    texts = [one.text for one in of(Content, records_of(name))]
    assert texts
    longest = max((word for text in texts for word in text.split()), key=len)
    assert len(longest) < 100
    summarizer = Summarizer(TranscriptSummary(name, "s", model="claude-haiku-4-5"))
    for record in records_of(name):
        summarizer.feed(record)
    window = summarizer.present_window()
    assert sum(tokens for one, tokens in window.by_source.items() if one.startswith("tool:")) < 250


def test_claude_code_says_how_much_of_a_reply_was_thinking():
    """The client writes 0 where the provider says nothing, and the thinking may be hidden."""
    records = records_of("claude-code")
    reports = [one for one in of(Report, records) if not one.update]
    assert [(one.output_tokens, one.thinking_tokens) for one in reports] == [
        (400, 300), (500, 420), (40, None), (300, 280), (40, None),
    ]  # fmt: skip
    thoughts = [one for one in of(Content, records) if one.source == THINKING]
    assert [bool(one.text) for one in thoughts] == [True, False, False]
    assert all(one.counted for one in thoughts)


def read(name, *entries):
    """What a host's reader finds in lines."""
    return list(find_host(name).transcripts.read_transcript(map(line, entries)))


def test_thinking_that_no_report_counts_is_text_where_it_is_shown():
    """Else nothing is known of it."""
    message = {"id": "m", "role": "assistant", "model": "claude-opus-5"}
    for thinking, expected in (("I see.", ["I see."]), ("", [])):
        block = {"type": "thinking", "thinking": thinking, "signature": "c2ln"}
        entry = reply() | {"message": message | {"content": [block]}}
        found = of(Content, read("claude-code", entry))
        assert [one.text for one in found] == expected
        assert not any(one.counted for one in found)


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        # Gemini: the total shows that the thoughts are beside the output.
        ({"candidatesTokenCount": 40, "thoughtsTokenCount": 30, "totalTokenCount": 1_070}, 0),
        # Providers of the form of OpenAI count them as output.
        ({"candidatesTokenCount": 40, "thoughtsTokenCount": 30, "totalTokenCount": 1_040}, 30),
        ({"candidatesTokenCount": 40, "thoughtsTokenCount": 0, "totalTokenCount": 1_040}, None),
    ],
)
def test_thoughts_are_in_the_window_where_the_output_holds_them(usage, expected):
    """As Qwen Code and Gemini CLI state them."""
    entry = {
        "uuid": "a", "sessionId": "s", "type": "assistant", "model": "m",
        "message": {"parts": [{"text": "Hm.", "thought": True}, {"text": "Done."}]},
        "usageMetadata": usage | {"promptTokenCount": 1_000},
    }  # fmt: skip
    records = read("qwen", entry)
    assert of(Report, records)[0].thinking_tokens == expected
    assert [one.source for one in of(Content, records)] == [THINKING, "assistant"]


BLOCKS = [
    ({"type": "image", "source": {"type": "base64", "data": PNG}}, PNG),
    ({"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}}, ""),
    ({"type": "document", "source": {"type": "base64", "data": "JVBERi0="}}, ""),
    ({"type": "document", "source": {"type": "text", "data": "Some text."}}, None),
    ({"type": "file", "content": {"type": "image", "file": {"base64": PNG}}}, PNG),
    ({"type": "file", "content": {"type": "text", "file": {"content": "Some text."}}}, None),
    ({"type": "queued_command", "prompt": [{"type": "image", "source": {"data": PNG}}]}, PNG),
    ({"type": "input_image", "image_url": f"data:image/png;base64,{PNG}"}, PNG),
    ({"type": "input_image", "image_url": "https://example.com/a.png"}, ""),
    ({"type": "input_image"}, ""),
    ({"type": "file", "mime": "text/plain", "url": "data:text/plain;base64,aGk="}, None),
    ({"inlineData": {"mimeType": "audio/wav", "data": "AAAA"}}, None),
    ({"fileData": {"mimeType": "application/pdf", "fileUri": "gs://a/b.pdf"}}, ""),
    ({"type": "text", "text": "Look."}, None),
]


@pytest.mark.parametrize(("block", "data"), BLOCKS)
def test_a_block_is_an_image_by_its_form(block, data):
    """Also in the result of a tool."""
    for value in (block, [block], {"type": "tool_result", "content": [block]}):
        assert [one.data for one in images_in(value, 1.0)] == ([] if data is None else [data])


def test_an_attached_image_is_found_in_an_attachment():
    """As Claude Code writes one that was named in a prompt, or sent while it worked."""
    attachment = {"type": "file", "filename": "a.png", "content": BLOCKS[4][0]["content"]}
    entry = {"type": "attachment", "attachment": attachment, "sessionId": "s", "uuid": "u"}
    (image,) = of(Image, read("claude-code", entry))
    assert image_tokens(image, "claude-opus-5") == 96


JSON = st.recursive(
    st.none() | st.text() | st.integers(),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(
            st.sampled_from(
                ["type", "source", "content", "data", "inlineData", "image_url", "file"]
            ),
            inner | st.sampled_from(["image", "document", "input_image", "file"]),
        )
    ),
    max_leaves=20,
)


@given(JSON, st.binary(max_size=200))
def test_no_form_and_no_bytes_are_too_strange(value, data):
    """A transcript may hold anything."""
    for image in images_in(value, None):
        image_tokens(image, "claude-opus-5")
    for head in (b"", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF8", b"RIFF"):
        tokens = image_tokens(Image(base64.b64encode(head + data).decode(), None), "gpt-5.5")
        assert tokens is None or tokens > 0
    assert image_tokens(Image("not base64: é", None), "claude-opus-5") is None


def test_a_deep_form_is_read_without_recursion():
    """JSON may nest deeper than Python recurses."""
    value = {"type": "image", "source": {"data": PNG}}
    for _ in range(100_000):
        value = [value]
    assert len(list(images_in(value, None))) == 1


def test_a_prompt_with_an_image_is_still_a_prompt():
    """Its text is a person's, and the image beside it is counted as one."""
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}}
    content = [{"type": "text", "text": "What is this?"}, image]
    texts, images = (of(kind, read("claude-code", prompt(content))) for kind in (Content, Image))
    assert [(one.text, one.source) for one in texts] == [("What is this?", "user")]
    assert len(images) == 1
