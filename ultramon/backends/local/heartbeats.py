"""The heartbeats of a state directory, each looked up when it is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ultramon.errors import InvalidAgentIdError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from ultramon.backends.local.state_files import StateDirectory


class Heartbeats(Mapping[str, float]):
    """Epoch seconds of the last beat by agent.

    Most agents are judged without: they ended, their process is gone, or their state is fresh.

    Args:
        directory: Where the heartbeats are.
        agent_ids: The agents that are stored.
    """

    def __init__(self, directory: StateDirectory, agent_ids: Collection[str]) -> None:
        self._directory = directory
        self._agent_ids = agent_ids

    def __getitem__(self, agent_id: str) -> float:
        beat = None
        if agent_id in self._agent_ids:
            try:
                beat = self._directory.heartbeat_at(agent_id)
            except InvalidAgentIdError:
                pass  # the file bears the name of no agent
        if beat is None:
            raise KeyError(agent_id)
        return beat

    def __iter__(self) -> Iterator[str]:
        return (agent_id for agent_id in self._agent_ids if agent_id in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)
