"""Counts what recorded transcripts cost in tokens anew: plain JSON over lines, without ultramon.

Each function takes the lines of one agent's file and returns input outside of caches, cache reads,
cache writes for the usual time and for one hour, and output, by model.
"""

from __future__ import annotations

import json
from collections import Counter

KINDS = ("input", "read", "write", "write_1h", "output")


def decoded(path):
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            entry = json.loads(line.lstrip("\0"))
        except ValueError:
            continue
        if isinstance(entry, dict):
            yield entry


def claude_code(path):
    """The largest usage under each message id; a file of a subagent holds nothing else."""
    messages = {}
    is_subagent = path.name.startswith("agent-") or "subagent" in path.name
    for entry in decoded(path):
        message = entry.get("message")
        if entry.get("type") != "assistant" or (entry.get("isSidechain") and not is_subagent):
            continue
        if message["model"] == "<synthetic>" or not message.get("usage"):
            continue
        usage = message["usage"]
        one_hour = (usage.get("cache_creation") or {}).get("ephemeral_1h_input_tokens", 0)
        counts = (
            usage.get("input_tokens", 0),
            usage.get("cache_read_input_tokens", 0),
            usage.get("cache_creation_input_tokens", 0) - one_hour,
            one_hour,
            usage.get("output_tokens", 0),
        )
        key = message["id"]
        if key not in messages or sum(counts) > sum(messages[key][1]):
            messages[key] = (message["model"], counts)
    return summed(messages.values())


def codex(path):
    """The thread's last total, which counts the requests for summaries too."""
    model = total = before = None
    for entry in decoded(path):
        payload = entry.get("payload") or {}
        if entry["type"] == "turn_context":
            model = payload.get("model") or model
        elif entry["type"] == "session_meta" and model is None:
            instructions = payload["base_instructions"]
            is_known = isinstance(instructions, dict) and "provenance" in instructions
            model = instructions["provenance"]["model"] if is_known else None
        elif entry["type"] == "token_usage_record":
            total = payload["thread_token_usage"]
        elif payload.get("type") == "token_count" and payload.get("info"):
            # A refused request leaves zeros in its place.
            total = payload["info"]["total_token_usage"]
            total = total if total["input_tokens"] else before
        before = total
    if total is None:
        return {}
    read, write = total["cached_input_tokens"], total.get("cache_write_input_tokens", 0)
    return summed([
        (model, (total["input_tokens"] - read - write, read, write, 0, total["output_tokens"]))
    ])  # fmt: skip


def gemini(path):
    """The tokens of each reply's id, thoughts as output."""
    replies = {}
    for entry in decoded(path):
        tokens = entry.get("tokens")
        if entry.get("type") == "gemini" and tokens and tokens["input"]:
            cached = tokens["cached"]
            output = tokens["output"] + tokens["thoughts"]
            counts = (tokens["input"] - cached, cached, 0, 0, output)
            replies[entry["id"]] = (entry["model"], counts)
    return summed(replies.values())


def qwen(path):
    """The usage of every line of a reply."""
    found = []
    for entry in decoded(path):
        usage = entry.get("usageMetadata")
        if entry.get("type") == "assistant" and usage and usage["promptTokenCount"]:
            cached = usage.get("cachedContentTokenCount", 0)
            prompt, output = usage["promptTokenCount"], usage["candidatesTokenCount"]
            thoughts = usage.get("thoughtsTokenCount", 0)
            if usage["totalTokenCount"] == prompt + output + thoughts:
                output += thoughts
            found.append((entry.get("model"), (prompt - cached, cached, 0, 0, output)))
    return summed(found)


def copilot(path):
    """The usage records of the session itself, and what its compactions used."""
    found = []
    for entry in decoded(path):
        data, usage = entry.get("data") or {}, None
        if entry.get("type") == "session.usage_record":
            usage = data["usage"]
        elif entry.get("type") == "session.compaction_complete":
            usage = data.get("compactionTokensUsed")
        if usage and not entry.get("agentId"):
            read, write = usage.get("cacheReadTokens", 0), usage.get("cacheWriteTokens", 0)
            new = usage["inputTokens"] - read - write
            found.append((usage.get("model"), (new, read, write, 0, usage["outputTokens"])))
    return summed(found)


def summed(pairs):
    sums = {}
    for model, counts in pairs:
        sums.setdefault(model, Counter()).update(dict(zip(KINDS, counts, strict=True)))
    return {model: tuple(sum_[kind] for kind in KINDS) for model, sum_ in sums.items()}


BY_HOST = {
    "claude-code": claude_code,
    "codex": codex,
    "copilot": copilot,
    "gemini": gemini,
    "qwen": qwen,
}
