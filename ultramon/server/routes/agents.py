"""Routes of agents: create, read, end; their tokens."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Literal

from fastapi import APIRouter, Query, Request
from pydantic import AfterValidator, ConfigDict, Field

from ultramon.backends.toolkit import find_record, load_permitted, observe_stored
from ultramon.errors import (
    ConfigurationError,
    RegistrationError,
    StateCorruptError,
)
from ultramon.routing import check_notify, register
from ultramon.server.http.authorization import (
    AnyCaller,
    PermittedAgent,
    Served,
    may_see,
    requester_of,
)
from ultramon.server.http.error_responses import Json, refuse
from ultramon.server.http.responses import ID_PATTERN, AgentIdInPath, AgentIdText, Sent, problems
from ultramon.state.models import AgentState, Model
from ultramon.state.observed import Unreadable, agents_json, sort_observed
from ultramon.system.ids import generate_agent_id
from ultramon.tokens import mint_token, revoke_tokens

if TYPE_CHECKING:
    pass

router = APIRouter(tags=["agents"])

MAX_LABEL_CHARS = 200
MAX_RUNGS = 20


def _rising(ratios: list[float]) -> list[float]:
    if any(low >= high for low, high in pairwise(ratios)):
        raise ValueError("each threshold must be higher than the one before")
    return ratios


class NewAgent(Sent):
    """A new agent, or a new start of one."""

    agent_id: AgentIdText | None = None
    """None = a generated one."""
    run: AgentIdText | None = None
    """None = that of its parent, else `default`."""
    label: Annotated[str, Field(max_length=MAX_LABEL_CHARS)] | None = None
    """A name for people."""
    parent_id: AgentIdText | None = None
    """For the admin only: an agent creates children of its own."""
    session_id: AgentIdText | None = None
    """None = the agent's id."""
    notify: AgentIdText | None = None
    """The recipient of notices about it: `self`, `parent`, its own id or that of an ancestor, for
    the admin of any agent. None = no recipient."""
    thresholds: (
        Annotated[
            list[Annotated[float, Field(gt=0, le=1)]],
            Field(min_length=1, max_length=MAX_RUNGS),
            AfterValidator(_rising),
        ]
        | None
    ) = None
    """Usage ratios, rising, each notified once per epoch; None = the default rungs. Without
    `notify` the notices go to the parent, or to the agent itself if it has none."""


class MadeAgent(Model):
    """An agent that was created, or started again."""

    agent_id: str
    generation: int
    token: str
    """Authenticates requests of the agent. Shown only here."""


class ShownAgent(AgentState):
    """The state of an agent with its liveness."""

    model_config = ConfigDict(extra="allow")

    liveness: str
    """`alive`, `stale`, `lost` or `ended`."""
    liveness_reason: str
    heartbeat_age_seconds: float | None


class UnreadableAgent(Model):
    """An agent whose state cannot be read."""

    agent_id: str
    reason: str


class AgentList(Model):
    """Agents, the most urgent first."""

    agents: list[ShownAgent]
    unreadable: list[UnreadableAgent]


class End(Sent):
    """The end of an agent."""

    outcome: Literal["completed", "returned", "failed", "cancelled", "expired", "lost"] = (
        "completed"
    )


class Ended(Model):
    """The result of ending an agent."""

    status: Literal["ended", "ended_before"]


class MadeToken(Model):
    """A further token of an agent."""

    token: str
    """Shown only here; earlier tokens stay valid."""


class Revoked(Model):
    """The number of tokens that were revoked."""

    revoked: int


@router.get("/agents", response_model=AgentList, responses=problems(422))
def list_agents(
    services: Served,
    caller: AnyCaller,
    run: Annotated[str | None, Query(pattern=ID_PATTERN)] = None,
) -> Json:
    """Return the agents of one run or of all runs; to an agent only itself and its children."""
    allowed = [one for one in services.backend.list_agents(run) if may_see(caller, one)]
    return Json(agents_json(*sort_observed(observe_stored(allowed, services.now()))))


@router.post("/agents", status_code=201, responses=problems(404, 409, body=True))
def make_agent(body: NewAgent, request: Request, services: Served, caller: AnyCaller) -> MadeAgent:
    """Create an agent whose readings are posted, and return a token for it.

    An agent creates direct children of its own. An agent that exists continues under the next
    generation, and its earlier tokens are revoked.
    """
    parent_id = requester_of(request, body.parent_id)
    agent_id = body.agent_id or generate_agent_id()
    stored = find_record(services.backend, agent_id)
    # Ids are the caller's to choose: another's agent would be started anew, with a token for it.
    if stored is not None and caller.agent_id not in (None, stored.parent_id):
        problem = f"agent {agent_id} is no direct child of agent {caller.agent_id}"
        raise refuse(request, problem, agent_id=agent_id)
    if parent_id is None and stored is not None:
        parent_id = stored.parent_id
    if parent_id == agent_id:
        raise ConfigurationError("parentId", parent_id, "another agent than the child")
    requester, recipient = _subscription(agent_id, parent_id, body)
    if recipient not in (None, requester):
        # Before anything is stored: an agent that was created would stay.
        check_notify(
            agent_id, parent_id, str(recipient), as_admin=caller.is_admin, backend=services.backend
        )
    family = stored or (parent_id and find_record(services.backend, parent_id))
    services.posted.start(
        agent_id,
        services.now(),
        run=body.run or (family.run if family else "default"),
        session_id=body.session_id or (stored.session_id if stored else None),
        parent_id=parent_id,
        label=body.label or (stored.label if stored else None),
    )
    if requester is not None:
        register(
            agent_id,
            requester,
            recipient,
            body.thresholds,
            as_admin=caller.is_admin,
            backend=services.backend,
            clock=services.clock,
        )
    # After the start, as a token is bound to the generation that began.
    token = mint_token(agent_id, caller.agent_id, backend=services.backend, clock=services.clock)
    started = load_permitted(services.backend, agent_id, None)
    return MadeAgent(agent_id=agent_id, generation=started.generation, token=token)


def _subscription(
    agent_id: str, parent_id: str | None, body: NewAgent
) -> tuple[str | None, str | None]:
    """Return the requester of a registration, None without one, and the recipient, None = it.

    Raises:
        RegistrationError: The parent should be notified, and there is none.
    """
    notify = body.notify
    if notify is None and body.thresholds is not None:
        notify = "self" if parent_id is None else "parent"
    if notify is None:
        return None, None
    if notify in ("self", agent_id):
        return agent_id, None
    if notify != "parent":
        return parent_id or agent_id, notify
    if parent_id is None:
        raise RegistrationError(agent_id, "notify_missing")
    # The parent at the time of the notice, whichever agent that is.
    return parent_id, None


@router.get("/agents/{agent_id}", response_model=ShownAgent, responses=problems(404, 422))
def show_agent(agent: PermittedAgent, services: Served) -> Json:
    """Return the state of an agent with its liveness; nothing changes."""
    [one] = observe_stored([agent], services.now())
    if isinstance(one, Unreadable):
        raise StateCorruptError(one.agent_id, one.reason)
    return Json(one.to_json())


@router.post("/agents/{agent_id}/end", responses=problems(404, body=True))
def end_agent(agent: PermittedAgent, body: End, services: Served) -> Ended:
    """End an agent whose readings are posted, for good, and revoke its tokens."""
    has_ended = services.posted.finish(agent.agent_id, body.outcome, services.now())
    revoke_tokens(agent.agent_id, backend=services.backend)
    return Ended(status="ended" if has_ended else "ended_before")


@router.post("/agents/{agent_id}/tokens", status_code=201, responses=problems(404, 409, body=True))
def make_token(agent_id: AgentIdInPath, services: Served, caller: AnyCaller) -> MadeToken:
    """Create a further token of an agent, for itself or for its direct parent."""
    return MadeToken(
        token=mint_token(agent_id, caller.agent_id, backend=services.backend, clock=services.clock)
    )


@router.delete("/agents/{agent_id}/tokens", responses=problems(404, 422))
def delete_tokens(agent_id: AgentIdInPath, services: Served, caller: AnyCaller) -> Revoked:
    """Revoke every token of an agent at once."""
    return Revoked(revoked=revoke_tokens(agent_id, caller.agent_id, backend=services.backend))
