"""Reads what Claude Code adds to a conversation, and what every request holds beside it.

Standard library only: a hook loads it where it counts what a relay has spent. The format was learnt
from version 2.1.330.
"""

from __future__ import annotations

from ultramon.hosts.transcripts.images import images_in
from ultramon.hosts.transcripts.jsonl import TEXT_KEYS, object_in, text_of, text_or_none
from ultramon.hosts.transcripts.mcp_names import server_of, servers_of
from ultramon.hosts.transcripts.prompts import is_ultramons
from ultramon.hosts.transcripts.records import (
    AGENTS,
    HOOKS,
    MCP,
    MEMORY,
    SKILLS,
    SYSTEM,
    TOOLS,
    ULTRAMON,
    Content,
    Record,
    Standing,
)
from ultramon.system import compact_json
from ultramon.system.timestamps import parse_time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from ultramon.hosts.transcripts.jsonl import JsonObject, Recent

_SOURCES = {
    "agent_listing_delta": AGENTS,
    "skill_listing": SKILLS,
    "deferred_tools_delta": TOOLS,
    "hook_additional_context": HOOKS,
}
_KEY_CHARS = 200
# Each of them is searched in all that was shown: a line may hold 64 MB.
_MOST_PARTS = 64
_LAUNCHER = "ultramon-hook"
"""Ends the name of the program that hooks of ultramon are."""


def read_shape(entry: JsonObject) -> Iterable[Record]:
    """Return what the requests from here on hold beside their messages."""
    shape = object_in(entry, "shape")
    tools = shape.get("tools")
    parts = [(SYSTEM, text)] if (text := text_of(shape.get("system"), ("text",))) else []
    named = [
        (text_or_none(tool.get("name") if isinstance(tool, dict) else None) or "", tool)
        for tool in (tools if isinstance(tools, list) else ())
    ]
    servers = servers_of(name for name, _ in named)
    for name, tool in named:
        server = server_of(name, servers)
        parts.append((TOOLS if server is None else f"{MCP}{server}", _as_sent(tool)))
    return (Standing(parts, True, parse_time(entry.get("timestamp"))),) if parts else ()


def _as_sent(tool: object) -> str:
    """Return the definition of a tool as a request holds it: its letters are not escaped."""
    import json  # no hook reads a shape

    try:
        return json.dumps(tool, ensure_ascii=False, separators=(",", ":"))
    except RecursionError:
        raise ValueError("a tool is nested too deeply") from None


def read_attachment(entry: JsonObject, at: float | None, own_texts: Recent) -> Iterable[Record]:
    """Return what one attachment put into the window.

    Args:
        entry: The line.
        at: Epoch seconds, None = unknown.
        own_texts: What ultramon's hooks have said; is added to.

    Raises:
        ValueError: It makes no sense.
    """
    attachment = entry.get("attachment")
    if not isinstance(attachment, dict):
        raise ValueError("its attachment is not an object")
    kind = text_or_none(attachment.get("type")) or "unknown"
    is_ours = kind == "hook_success" and _LAUNCHER in (
        text_or_none(attachment.get("command")) or ""
    )
    if is_ours and (printed := _said(attachment.get("stdout"))):
        own_texts.add(printed[:_KEY_CHARS], ULTRAMON)
    # What the model was shown, where the host says it; else what it was made from.
    shown = text_of(entry.get("rendered"), TEXT_KEYS)
    if kind == "instructions":
        return _parts(MEMORY, "path", attachment.get("files"), shown, at)
    if kind == "mcp_instructions_delta":
        names, blocks = attachment.get("addedNames"), attachment.get("addedBlocks")
        if isinstance(names, list) and isinstance(blocks, list):
            found = [
                {"name": _in_tools(name), "content": block}
                for name, block in zip(names, blocks, strict=False)
                if isinstance(name, str)
            ]
            return _parts(MCP, "name", found, shown, at)
    images = tuple(images_in(attachment, at))
    text = shown or text_of(attachment, TEXT_KEYS)
    if not text:
        return images
    source = _SOURCES.get(kind, f"attachment:{kind}")
    if source == HOOKS:
        said = text_of(attachment.get("content"), TEXT_KEYS)
        if own_texts.get(said[:_KEY_CHARS]) is not None or is_ultramons(said):
            source = ULTRAMON
    return (Content(text, source, at), *images)


def _in_tools(server: str) -> str:
    """Return a server's name as the client writes it where it names a tool."""
    # A pattern would cost a hook the import of `re`, 5 ms.
    return "".join(
        one if one.isascii() and (one.isalnum() or one in "_-") else "_" for one in server
    )


def _said(stdout: object) -> str:
    """Return the text for the conversation in what a hook has printed."""
    try:
        answer = compact_json.loads(stdout) if isinstance(stdout, str) else None
    except ValueError:
        return ""
    output = object_in(answer, "hookSpecificOutput") if isinstance(answer, dict) else {}
    return text_or_none(output.get("additionalContext")) or ""


def _parts(kind: str, key: str, found: object, shown: str, at: float | None) -> Iterable[Record]:
    """Return the parts of an attachment by name; the last with the words around all of them."""
    texts = [
        (f"{kind}{text_or_none(one.get(key)) or 'unknown'}", text)
        for one in (found if isinstance(found, list) else ())
        if isinstance(one, dict) and (text := text_of(one.get("content"), TEXT_KEYS))
    ]
    # What the model is shown around each of them is some sentences, once.
    around = shown
    for _, text in texts[:_MOST_PARTS]:
        around = around.replace(text.strip(), "", 1)
    if texts and around.strip():
        texts[-1] = (texts[-1][0], f"{texts[-1][1]}\n{around}")
    return [Content(text, source, at) for source, text in texts]
