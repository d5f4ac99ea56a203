"""The context limit of an agent, with the source of the number.

Pure functions over numbers and texts; standard library only. The table of model windows is imported
when a model is looked up, so a hook that knows its window never loads it.
"""

from __future__ import annotations

from ultramon.errors import ConfigurationError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from ultramon.state.record import StateRecord

DEFAULT_WINDOW_TOKENS = 200_000
LARGE_WINDOW_TOKENS = 1_000_000

_LARGE_WINDOW_SUFFIX = "[1m]"

# Routers append these after a colon without changing the model.
_VARIANTS = {"batch", "beta", "extended", "free", "latest", "nitro", "online", "thinking"}

HOST_WITH_OWN_WINDOWS = "claude-code"
"""Its windows are not those of the models elsewhere."""

# The windows of the Claude Code client, read off its status line (2.1.330); a name it does not know
# gets a million there. It differs from the API: opus-4-6 holds a million there and 200,000 here,
# unless asked for with [1m]. The haiku alias and sonnet-4-6 were not seen and get the smaller
# window: the first report above it corrects an early warning, and nothing a missing one.
_CLAUDE_CODE_WINDOWS = {
    "claude-haiku-4-5": DEFAULT_WINDOW_TOKENS,
    "claude-opus-4-6": DEFAULT_WINDOW_TOKENS,
    "claude-sonnet-4-5": DEFAULT_WINDOW_TOKENS,
    "claude-sonnet-4-6": DEFAULT_WINDOW_TOKENS,
    "haiku": DEFAULT_WINDOW_TOKENS,
    "claude-opus-5-5": LARGE_WINDOW_TOKENS,
    "claude-sonnet-5": LARGE_WINDOW_TOKENS,
    "claude-sonnet-5-5": LARGE_WINDOW_TOKENS,
    "default": LARGE_WINDOW_TOKENS,
    "opus": LARGE_WINDOW_TOKENS,
    "sonnet": LARGE_WINDOW_TOKENS,
}

# An exception can carry a whole request; the provider's words are at its beginning.
_LONGEST_ERROR_CHARS = 20_000

# A quota of tokens per minute is not a window, though providers word the two alike.
_RATE_LIMIT_SIGN = (
    r"rate[ _-]limit|per[ -](?:sec|min|hour|day)|\btp[md]\b|\brp[md]\b"
    r"|throttl|too many requests|quota"
)

# How providers refuse a prompt, first match wins; of a sum of input and output SENT is the input.
_SENT = r"(?P<sent>[0-9][0-9,]{0,14})"
_MAX = r"(?P<max>[0-9][0-9,]{0,14})"
_OVERFLOW_SHAPES = (
    # Anthropic (direct, on Bedrock and Vertex), then Fireworks and Ollama's cloud
    r"prompt is too long: SENT tokens > MAX",
    r"exceed context limit: SENT \+ [0-9]+ > MAX",
    r"prompt is too long: SENT, model maximum context length: MAX",
    # OpenAI and those that speak like it: vLLM, SGLang, OpenRouter, DeepSeek, LiteLLM
    r"maximum context length (?:is|of) MAX tokens.{0,120}?"
    r"SENT (?:input tokens|tokens from the input|in the |in your |of text input)",
    r"maximum context length (?:is|of) MAX(?: tokens.{0,120}? SENT tokens)?",
    r"exceed the configured limit of MAX tokens.{0,40}? resulted in SENT tokens",
    # Gemini, and Gemini on Vertex
    r"input token count(?: \(SENT\))? exceeds the maximum number of tokens allowed(?: \(?MAX)?",
    r"input token count is SENT but (?:the )?model only supports up to MAX",
    # xAI, Mistral, Moonshot, GitHub Copilot, Together, Poolside, Cohere, Titan, Qwen
    r"maximum prompt length is MAX but the request contains SENT tokens",
    r"prompt contains SENT tokens.{0,40}? too large for model with MAX",
    r"exceeded model token limit(?:: MAX(?: \(requested: SENT\))?)?",
    r"prompt token count of SENT exceeds the limit of MAX",
    r"input \(SENT tokens\) is longer than the model.s context length \(MAX",
    r"input length SENT exceeds the maximum allowed input length of MAX",
    r"tokens in the prompt cannot exceed MAX(?: - received SENT)?",
    r"max input tokens: MAX, request input token count: SENT",
    r"range of input length should be \[1, MAX\]",
    # llama.cpp, llama-cpp-python, LM Studio, vLLM without its server, Text Generation Inference
    r"\(SENT tokens\) exceeds the available context size \(MAX tokens",
    r"exceeds the available context size.{0,160}?n_prompt_tokens\W{1,4}SENT\W{1,6}n_ctx\W{1,4}MAX",
    r"requested tokens \(SENT\) exceed context window of MAX",
    r"keep the first SENT tokens.{0,90}? context length of only MAX",
    r"prompt \(total length SENT\) is too long to fit into the model \(context length MAX",
    r"prompt \(length SENT\) is longer than the maximum model length of MAX",
    r"must be <= MAX\. given: SENT .?inputs",
    # Refusals without a number; OpenAI's newer wording and Bedrock's are among them
    r"prompt (?:is )?too long|input is too long for (?:the )?requested model"
    r"|exceeds (?:the|this)(?: model.s)? (?:available )?context (?:window|length|size)"
    r"|context[ _]length[ _]exceeded|context size has been exceeded|exceed_context_size_error"
    r"|context window exceeds limit|model_context_window_exceeded"
    r"|greater than the context length|reduce the length of the messages",
)


def canonical_model_name(model: str) -> str:
    """Reduce the many spellings of a model to its maker's name for it.

    Lower-cases and removes the additions of gateways and clouds: ``provider:`` and ``provider/``
    (nested too), Bedrock's region, maker and ``-v1:0``, Vertex's ``@20250929``, a release date,
    ``-latest``, variants such as ``:free``, and ``[1m]``. Any text is allowed; nothing raises.

    Args:
        model: A model as an API, a client or a user writes it.

    Returns:
        The canonical name; blank when nothing is left of the text.
    """
    name = model.strip().lower().removesuffix(_LARGE_WINDOW_SUFFIX).rstrip("/").rpartition("/")[2]
    name = _without_colons(name)
    # Versions follow a digit (gpt-4.1); a part that ends at a dot before any digit is Bedrock's.
    head, _, rest = name.partition(".")
    while rest and not _has_digit(head):
        name = rest
        head, _, rest = name.partition(".")
    name = _without_date((name.partition("@")[0] or name).removesuffix("-latest"))
    # Anthropic's own ids have no dot; gateways write claude-opus-4.5.
    return name.replace(".", "-") if name.startswith("claude") else name


def _without_colons(name: str) -> str:
    """Drop ``provider:`` before the model, and a variant or Bedrock version after it."""
    head, _, tail = name.rpartition(":")
    if head and tail in _VARIANTS:
        name = head
    elif head and tail.isdigit():
        base, _, version = head.rpartition("-v")
        name = base if base and version.isdigit() else head
    head, _, tail = name.partition(":")
    # A digit before the colon: the model precedes it, as in Ollama's llama3:70b. Its window is
    # a setting of that server, so the name stays whole and is in no table.
    if tail and not _has_digit(head):
        return tail
    return name


def _without_date(name: str) -> str:
    """Drop a release date at the end: ``-20250929`` or ``-2024-08-06``."""
    for length in (9, 11):
        date = name[-length:]
        digits = date.replace("-", "")
        if date.startswith("-20") and len(digits) == 8 and digits.isdigit():
            return name[:-length]
    return name


def _has_digit(text: str) -> bool:
    return any(character.isdigit() for character in text)


def window_for_model(model: str | None, host: str | None = None) -> int | None:
    """Look up the context window of a model.

    Args:
        model: The model in any spelling. The suffix ``[1m]`` asks for the large window.
        host: The client of the agent; ``claude-code`` has windows of its own.

    Returns:
        The window in tokens; None for an unknown model or None.
    """
    return _window_and_source(model, host)[0]


def _window_and_source(model: str | None, host: str | None) -> tuple[int | None, str]:
    """Return the window of `window_for_model`, and whether ``model`` or ``host`` decided it."""
    name = canonical_model_name(model or "")
    if not model or not name:
        return None, "model"
    if model.strip().lower().endswith(_LARGE_WINDOW_SUFFIX):
        return LARGE_WINDOW_TOKENS, "model"
    in_claude_code = host == HOST_WITH_OWN_WINDOWS
    if in_claude_code and name in _CLAUDE_CODE_WINDOWS:
        return _CLAUDE_CODE_WINDOWS[name], "model"
    from ultramon.context.model_windows import WINDOWS

    if in_claude_code and name not in WINDOWS:
        return LARGE_WINDOW_TOKENS, "host"
    return WINDOWS.get(name), "model"


def is_assumed(source: str) -> bool:
    """Return whether a limit of this source is the default one: no model is named."""
    return source == "default"


def limit_words(limit_tokens: int | None, source: str) -> str:
    """Return a context limit for people; an assumed one says so.

    Args:
        limit_tokens: The limit; None = unknown.
        source: As a state has it in ``limitSource``.
    """
    if limit_tokens is None:
        return "unknown"
    assumed = " assumed: no model named" if is_assumed(source) else ""
    return f"{limit_tokens:,}{assumed}"


def default_window_from_environment(environ: Mapping[str, str]) -> int:
    """Return the window assumed for an agent without a model and a window.

    Args:
        environ: The environment; ``ANTHROPIC_1M_CONTEXT`` is read.

    Returns:
        1,000,000 when the variable is set and neither empty nor ``0``, else 200,000.
    """
    large = environ.get("ANTHROPIC_1M_CONTEXT", "") not in ("", "0")
    return LARGE_WINDOW_TOKENS if large else DEFAULT_WINDOW_TOKENS


def resolve_limit(
    record: StateRecord,
    *,
    explicit_limit_tokens: int | None = None,
    explicit_window_tokens: int | None = None,
    host_window_tokens: int | None = None,
    host_trigger_tokens: int | None = None,
    host_refusal_tokens: int | None = None,
    observed_window_tokens: int | None = None,
    reserved_output_tokens: int = 0,
    default_window_tokens: int | None = None,
    suspect_above_tokens: int | None = None,
) -> None:
    """Decide which context limit holds, and write it into a state with every candidate.

    The window is the first one known of explicit, host, observed, model, default; what a host works
    with for a model that is in no table is named ``host`` and ranks as model. The limit is
    the smallest of that window less the reserved output, the host's compaction trigger, the host's
    refusal and the user's cap; on a tie the cap is named first, then trigger and refusal.

    A window below the reported tokens is wrong: it is not believed, and the next source counts. A
    trigger or refusal below such a report did not take place and is not believed either, so that a
    wrong number from the host cannot keep an agent critical for ever.

    Args:
        record: The state; its model and host are asked, too.
        explicit_limit_tokens: The user's cap; always believed.
        explicit_window_tokens: The configured window; always believed.
        host_window_tokens: The window that the host reports.
        host_trigger_tokens: Where the host compacts by itself.
        host_refusal_tokens: Where a host that does not compact refuses requests.
        observed_window_tokens: The window that the provider stated, e.g. in an error.
        reserved_output_tokens: Kept free for the reply; 0 or more, less than the window.
        default_window_tokens: Assumed only when no model is named, not for an unknown one.
        suspect_above_tokens: The highest token count that a provider reported for this agent.

    Raises:
        ConfigurationError: A number is not whole or too small, or the reserved output leaves
            nothing of the window; nothing is written then.
    """
    reported = _checked("suspect_above_tokens", suspect_above_tokens or 0, least=0)
    reserved = _checked("reserved_output_tokens", reserved_output_tokens or 0, least=0)
    model_window_tokens, model_source = _window_and_source(record.model, record.host)
    given = (
        ("limit", "explicit", explicit_limit_tokens),
        ("trigger", "host", host_trigger_tokens),
        ("refusal", "host", host_refusal_tokens),
        ("window", "explicit", explicit_window_tokens),
        ("window", "host", host_window_tokens),
        ("window", "observed", observed_window_tokens),
        ("window", model_source, model_window_tokens),
        ("window", "default", default_window_tokens if record.model is None else None),
    )
    candidates: list[dict[str, Any]] = [
        {
            "name": name,
            "source": source,
            "tokens": _checked(f"{source}_{name}_tokens", tokens),
            "verdict": "holds",
        }
        for name, source, tokens in given
        if tokens is not None
    ]
    windows = [candidate for candidate in candidates if candidate["name"] == "window"]
    window = None
    for candidate in windows:
        if candidate["source"] != "explicit" and reported > candidate["tokens"]:
            candidate["verdict"] = "not_believed"
        elif window is None:
            window = candidate
        else:
            candidate["verdict"] = "outranked"
    suspect = bool(windows) and windows[0]["verdict"] == "not_believed"
    for candidate in candidates:
        is_bound = candidate["name"] in ("trigger", "refusal")
        if is_bound and suspect and reported > candidate["tokens"]:
            candidate["verdict"] = "not_believed"
    if window is not None and reserved >= window["tokens"]:
        raise ConfigurationError(
            "reserved_output_tokens",
            reserved_output_tokens,
            f"less than the context window of {window['tokens']} tokens ({window['source']})",
        )

    def usable_tokens(candidate: dict[str, Any]) -> int:
        tokens: int = candidate["tokens"]
        return tokens - reserved if candidate is window else tokens

    # `min` takes the first of equals: the order of `given` decides which name a tie gets.
    in_force = [candidate for candidate in candidates if candidate["verdict"] == "holds"]
    binding = min(in_force, key=usable_tokens, default=None)
    if binding is not None:
        binding["verdict"] = "binding"
    record.context_limit = usable_tokens(binding) if binding is not None else None
    record.context_window = window["tokens"] if window is not None else None
    record.limit_source = binding["source"] if binding is not None else "unknown"
    record.limit_suspect = suspect
    record.limit_candidates = candidates


def _checked(name: str, value: int, least: int = 1) -> int:
    """Return a valid token count."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigurationError(name, value, f"a whole number of tokens, {least} or more")
    return value


def parse_overflow(text: str) -> tuple[int | None, int | None] | None:
    """Recognise a provider's refusal of a prompt that is too long.

    Covers the wording of the large providers, clouds, routers and local servers. A rate limit, even
    one in tokens, is no overflow, and neither is a size in bytes (HTTP 413).

    Args:
        text: The message of the error, alone or inside a JSON body.

    Returns:
        The tokens sent (the input alone, where the message separates it from the output) and the
        provider's maximum, each None when not stated; None when this is no overflow.
    """
    import re

    # The wordings match across line breaks, and whatever case a gateway passes them on in.
    message = " ".join(text[:_LONGEST_ERROR_CHARS].lower().split())
    if re.search(_RATE_LIMIT_SIGN, message):
        return None
    for shape in _OVERFLOW_SHAPES:
        match = re.search(shape.replace("SENT", _SENT).replace("MAX", _MAX), message)
        if match:
            numbers = match.groupdict()
            return _count(numbers.get("sent")), _count(numbers.get("max"))
    return None


def _count(digits: str | None) -> int | None:
    # No provider sends or allows nothing: a zero is a placeholder.
    return int(digits.replace(",", "")) or None if digits else None
