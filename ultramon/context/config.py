"""How one monitor is configured: keyword, else environment, else `ultramon.toml`, else default."""

from __future__ import annotations

import os
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from ultramon.context.estimator import check_family, family_for_model
from ultramon.context.ladder import DEFAULT_REARM_MARGIN, Ladder, Rung, check_ratio
from ultramon.context.limits import default_window_from_environment
from ultramon.context.note import check_critical_note
from ultramon.errors import ConfigurationError
from ultramon.system.environment import (
    VARIABLES,
    check_settings,
    read_toml,
    warn_of_misspelt_variables,
)

_SECTION = "context"
_PREFIX = "ULTRAMON_"
_RUNG_SETTINGS = ("name", "ratio", "tokens_left", "action", "rearm_ratio")

TokenCount = Annotated[int, Field(gt=0, le=1_000_000_000, strict=True)]
Seconds = Annotated[float, Field(gt=0, le=31_536_000, allow_inf_nan=False, strict=True)]


class ContextConfig(BaseModel):
    """Everything about one monitor that can be configured.

    Every field that is not given comes from the environment (``ULTRAMON_`` and the field in upper
    case), else from the ``[context]`` table of ``ultramon.toml`` (``ULTRAMON_CONFIG``, else the
    working directory, else the user's configuration directory), else from the default here.

    Raises:
        ConfigurationError: A value is out of range; names the value and where it came from.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    context_limit_tokens: TokenCount | None = None
    """Cap of one's own on the context limit, tokens; None = no cap."""
    context_window_tokens: TokenCount | None = None
    """What the model can hold, tokens; None = by host, provider or model table."""
    reserved_output_tokens: Annotated[int, Field(ge=0, strict=True)] = 0
    """Tokens of the window kept free for the reply."""
    model: str | None = None
    """Model name in any common spelling; decides the window and the tokenizer family."""
    warning_threshold: float = 0.70
    """Usage ratio of the default ladder's warning rung, 0 < warning < critical."""
    critical_threshold: float = 0.85
    """Usage ratio of the default ladder's critical rung, warning < critical <= 1."""
    warning_tokens_left: TokenCount | None = None
    """Tokens left at which to warn, if that is earlier; None = ratio only."""
    critical_tokens_left: TokenCount | None = None
    """Tokens left that count as critical, if that is earlier; None = ratio only."""
    rearm_margin: Annotated[float, Field(ge=0, lt=1, strict=True)] | None = DEFAULT_REARM_MARGIN
    """How far below a rung usage must fall before it fires again; None = only a new epoch."""
    ladder: Ladder | None = None
    """A ladder of one's own with a margin of its own; replaces all thresholds above. In TOML an
    array of tables with the arguments of `Rung`, which takes the margin above."""
    critical_note: str | None = None
    """A sentence of one's own that ends the note of a level that asks to return, at most 500
    characters; None = none."""
    tokenizer_family: str | None = None
    """Family of the estimate; None = by model, else the most conservative one."""
    save_interval_seconds: Seconds = 5.0
    """Longest time that a change of the token count stays unsaved."""
    heartbeat_interval_seconds: Seconds = 15.0
    """Time between heartbeats; three missed ones are stale."""
    grace_seconds: Annotated[float, Field(ge=0, allow_inf_nan=False, strict=True)] = 30.0
    """Time an agent has to hand off after it was told to return."""
    lost_after_seconds: Seconds | None = None
    """Silence after which the agent is lost; None = max(10 min, 10 heartbeat intervals)."""
    store_timeout_seconds: Seconds = 5.0
    """Longest time that `start`, `hand_off` and `stop` wait until their change is stored."""
    on_error: Literal["log", "raise"] = "log"
    """What a failed save does: one log line and a retry, or an exception (for tests)."""

    def __init__(self, **given: Any) -> None:
        merged, origins = _merged(given)
        try:
            super().__init__(**merged)
        except ValidationError as error:
            first = error.errors()[0]
            cause = first.get("ctx", {}).get("error")
            if isinstance(cause, ConfigurationError):
                name, value, allowed = cause.name, cause.value, cause.allowed
            else:
                name, value, allowed = "configuration", first["input"], _allowed(first["msg"])
            if first["loc"]:
                name = str(first["loc"][0])
            raise ConfigurationError(name, value, allowed, origins.get(name, "default")) from None

    @field_validator("warning_threshold", "critical_threshold", mode="plain")
    @classmethod
    def _ratio(cls, value: Any, info: ValidationInfo) -> float:
        return check_ratio(info.field_name or "threshold", value)

    @field_validator("tokenizer_family")
    @classmethod
    def _family(cls, value: str | None) -> str | None:
        return None if value is None else check_family(value)

    @field_validator("critical_note")
    @classmethod
    def _note(cls, value: str | None) -> str | None:
        return None if value is None else check_critical_note(value)

    @model_validator(mode="after")
    def _ordered(self) -> ContextConfig:
        if self.ladder is None:
            if self.warning_threshold >= self.critical_threshold:
                raise ConfigurationError(
                    "warning_threshold",
                    self.warning_threshold,
                    f"below critical_threshold={self.critical_threshold}",
                )
            early, late = self.warning_tokens_left, self.critical_tokens_left
            if early is not None and late is not None and early <= late:
                raise ConfigurationError(
                    "warning_tokens_left", early, f"above critical_tokens_left={late}"
                )
        window, reserved = self.context_window_tokens, self.reserved_output_tokens
        if window is not None and reserved >= window:
            raise ConfigurationError(
                "reserved_output_tokens", reserved, f"below context_window_tokens={window}"
            )
        return self

    @cached_property
    def effective_ladder(self) -> Ladder:
        """The ladder that decides: the given one, else the two-rung ladder of the thresholds."""
        if self.ladder is not None:
            return self.ladder
        return Ladder.default(
            self.warning_threshold,
            self.critical_threshold,
            warning_tokens_left=self.warning_tokens_left,
            critical_tokens_left=self.critical_tokens_left,
            rearm_margin=self.rearm_margin,
        )

    @property
    def effective_family(self) -> str:
        """The tokenizer family that estimates."""
        return self.tokenizer_family or family_for_model(self.model)

    @property
    def default_window_tokens(self) -> int | None:
        """The window taken when no model is named, tokens; None when one is."""
        return None if self.model else default_window_from_environment(os.environ)


def _allowed(message: str) -> str:
    return message.removeprefix("Input should be ")


def _from_text(name: str, text: str) -> Any:
    annotation = str(ContextConfig.model_fields[name].annotation)
    if text.lower() in ("none", "null") and "None" in annotation:
        return None
    for kind in (int, float) if "int" in annotation or "float" in annotation else ():
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _merged(given: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    merged: dict[str, Any] = {}
    origins: dict[str, str] = {}
    table, path = read_toml(_SECTION)
    known = tuple(ContextConfig.model_fields)
    check_settings(table, known, path, f"[{_SECTION}]")
    check_settings(given, known, "argument")
    variables = (*(name.upper() for name in known), *VARIABLES)
    warn_of_misspelt_variables(_PREFIX, variables, skip="ULTRAMON_ALERT_")
    for name, value in table.items():
        merged[name] = value
        origins[name] = f"{path} [{_SECTION}]"
    for name in known:
        text = os.environ.get(_PREFIX + name.upper())
        if text and name != "ladder":
            merged[name] = _from_text(name, text)
            origins[name] = _PREFIX + name.upper()
    merged.update(given)
    for name in given:
        origins[name] = "argument"
    ladder = merged.get("ladder")
    if isinstance(ladder, list):
        margin = merged.get("rearm_margin", DEFAULT_REARM_MARGIN)
        merged["ladder"] = _ladder_from_toml(ladder, margin, origins["ladder"])
    return merged, origins


def _ladder_from_toml(rows: list[Any], rearm_margin: float | None, origin: str) -> Ladder:
    for row in rows:
        if not isinstance(row, dict) or "name" not in row:
            raise ConfigurationError("ladder", row, "tables that have a name", origin)
        check_settings(row, _RUNG_SETTINGS, origin, "ladder")
    try:
        return Ladder([Rung(**row) for row in rows], rearm_margin=rearm_margin)
    except ConfigurationError as error:
        raise ConfigurationError(error.name, error.value, error.allowed, origin) from None
