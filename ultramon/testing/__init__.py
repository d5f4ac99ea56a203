"""What tests of agents, orchestrators, backends and adapters need; ultramon's own tests use it.

Nothing here is loaded until its name is used. The pytest fixtures are in `ultramon.testing.plugin`.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ultramon.testing.agents import ScriptedAgent, Step, capture_signals, fill
    from ultramon.testing.clock import FakeClock
    from ultramon.testing.contract.backend import BackendContract
    from ultramon.testing.contract.credentials import CredentialsContract
    from ultramon.testing.contract.host import HostContract
    from ultramon.testing.contract.integration import IntegrationContract
    from ultramon.testing.contract.overview import OverviewContract
    from ultramon.testing.contract.queue import QueueContract
    from ultramon.testing.contract.registry import RegistryContract
    from ultramon.testing.framework_run import FrameworkRun, ModelScript
    from ultramon.testing.host_run import ClientProcess, HostCall, HostRun
    from ultramon.testing.samples import make_event, make_record
    from ultramon.testing.simulation import Simulation, simulate
    from ultramon.testing.soundness import assert_run_is_sound
    from ultramon.testing.unreliable import UnreliableAgent, UnreliableAgents
    from ultramon.testing.work import assert_no_work_lost

__all__ = [
    "BackendContract",
    "ClientProcess",
    "CredentialsContract",
    "FakeClock",
    "FrameworkRun",
    "HostCall",
    "HostContract",
    "HostRun",
    "IntegrationContract",
    "ModelScript",
    "OverviewContract",
    "QueueContract",
    "RegistryContract",
    "ScriptedAgent",
    "Simulation",
    "Step",
    "UnreliableAgent",
    "UnreliableAgents",
    "assert_no_work_lost",
    "assert_run_is_sound",
    "capture_signals",
    "fill",
    "make_event",
    "make_record",
    "simulate",
]

_ROOMS = {
    "agents": "ScriptedAgent Step capture_signals fill",
    "clock": "FakeClock",
    "contract.backend": "BackendContract",
    "contract.credentials": "CredentialsContract",
    "contract.host": "HostContract",
    "contract.integration": "IntegrationContract",
    "contract.overview": "OverviewContract",
    "contract.queue": "QueueContract",
    "contract.registry": "RegistryContract",
    "framework_run": "FrameworkRun ModelScript",
    "host_run": "ClientProcess HostCall HostRun",
    "samples": "make_event make_record",
    "simulation": "Simulation simulate",
    "soundness": "assert_run_is_sound",
    "unreliable": "UnreliableAgent UnreliableAgents",
    "work": "assert_no_work_lost",
}
_HOMES = {name: room for room, names in _ROOMS.items() for name in names.split()}

# Under TYPE_CHECKING a __getattr__ would make every misspelt name valid.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        import importlib

        room = _HOMES.get(name)
        if room is None:
            raise AttributeError(f"module 'ultramon.testing' has no attribute {name!r}")
        value = getattr(importlib.import_module(f"ultramon.testing.{room}"), name)
        # Kept, so that the next use of the name does not come here.
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted([*globals(), *__all__])
