"""How ultramon's hooks get into Acme, and out again."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from ultramon.hosts.install.plans import FilePlan, chosen_choices
from ultramon.hosts.port import Setup
from ultramon.system.findings import OK, WARNING, Finding
from ultramon_acme.dialect import KINDS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ultramon.hosts.doctor_context import DoctorContext
    from ultramon.hosts.install.plans import SetupRequest


class AcmeSetup(Setup):
    def plan_installation(self, request: SetupRequest) -> FilePlan:
        hooks = {"hooks": {name: "ultramon host hook acme" for name in KINDS}}
        return FilePlan(
            file=hooks_file(request.cwd),
            after=json.dumps(hooks, indent=2).encode() + b"\n",
            host=request.host,
            state_directory=request.state_directory,
            installed=chosen_choices(request.host, request.state_directory, request.choices),
        )

    def plan_removal(self, request: SetupRequest) -> FilePlan:
        return FilePlan(
            file=hooks_file(request.cwd),
            after=None,
            host=request.host,
            state_directory=request.state_directory,
        )

    def examine(self, context: DoctorContext) -> Iterable[Finding]:
        path = hooks_file(context.cwd)
        if os.path.exists(path):
            yield Finding("acme", OK, f"{path}: hooks of ultramon")
        else:
            yield Finding("acme", WARNING, "no hooks in this project", "ultramon install acme")


def hooks_file(folder: str) -> str:
    return os.path.join(folder, "acme-hooks.json")


SETUP = AcmeSetup()
