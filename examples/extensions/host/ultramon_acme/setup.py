"""How ultramon's hooks get into Acme, and out again."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from ultramon.hosts.install.plans import FilePlan, SetupRequest, chosen_choices
from ultramon.hosts.port import Setup
from ultramon.system.findings import OK, WARNING, Finding
from ultramon_acme.dialect import KINDS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ultramon.hosts.doctor_context import DoctorContext


class AcmeSetup(Setup):
    def plan_installation(self, request: SetupRequest) -> FilePlan:
        hooks = {"hooks": {name: "ultramon host hook acme" for name in KINDS}}
        plan = self.plan_removal(request)
        plan.after = json.dumps(hooks, indent=2).encode() + b"\n"
        plan.installed = chosen_choices(request.host, request.state_directory, request.choices)
        return plan

    def plan_removal(self, request: SetupRequest) -> FilePlan:
        file, states = hooks_file(request.cwd), request.state_directory
        return FilePlan(file=file, after=None, host=request.host, state_directory=states)

    def examine(self, context: DoctorContext) -> Iterable[Finding]:
        path = hooks_file(context.cwd)
        if os.path.exists(path):
            yield Finding("acme", OK, f"{path}: hooks of ultramon")
        else:
            yield Finding("acme", WARNING, "no hooks in this project", "ultramon install acme")

    def resume_words(self, session_id: str) -> tuple[str, ...]:
        return "acme", "--continue", session_id


def hooks_file(folder: str) -> str:
    return os.path.join(folder, "acme-hooks.json")


SETUP = AcmeSetup()
