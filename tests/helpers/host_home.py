"""A client's home, and installations of this process into it."""

from __future__ import annotations

import time

from ultramon.hosts.doctor_context import DoctorContext
from ultramon.hosts.install.plans import Choices, SetupRequest


class HostHome:
    """One home of a client.

    Args:
        host: The host.
        hooks: Path of the file that holds its hooks; its folder is made.
        states: The state directory, which need not exist.
    """

    def __init__(self, host, hooks, states):
        self.host, self.hooks, self.states = host, hooks, states
        self.path = hooks.parent
        self.path.mkdir(parents=True)

    def request(self, **asked):
        """What somebody asks for in the client's folder."""
        layer = asked.pop("layer", None)
        return SetupRequest(self.host.name, str(self.path), str(self.states), layer, **asked)

    def install(self, *, at=None, **choices):
        """Install, at a time or now; return the plan."""
        request = self.request(force=True, choices=Choices(**choices))
        plan = self.host.setup.plan_installation(request)
        plan.apply(time.time() if at is None else at)
        return plan

    def uninstall(self):
        """Take everything out again; return the plan."""
        plan = self.host.setup.plan_removal(self.request())
        plan.apply(time.time())
        return plan

    def assert_comes_back(self, before):
        """A file of a person takes every hook, keeps those of others, and is as before then."""
        setup = self.host.setup
        self.hooks.write_bytes(before)
        others = setup.load().other_commands()
        self.install()
        assert sorted(one.event for one in setup.load().our_hooks()) == sorted(setup.load().events)
        assert setup.load().other_commands() == others
        assert not setup.plan_installation(self.request(force=True)).changes
        self.uninstall()
        assert self.hooks.read_bytes() == before
        assert not self.states.exists()

    def findings(self):
        """What the doctor finds, by check and status."""
        context = DoctorContext(str(self.path), str(self.states), time.time())
        return {(one.check, one.status): one for one in self.host.setup.examine(context)}
