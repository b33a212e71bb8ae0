"""Labs whose machines are all this host: an sshd, a PostgreSQL server, and for each a lock and a scratch directory."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from guestmark.ledger import open_ledger
from guestmark.ledger.model import StoredRun
from tests.framework import PACKAGES
from tests.framework.command_line import CommandLine

PLAN = """
schema = "guestmark-plan/2"
name = "small"
title = "How long does it take?"
platforms = ["host"]
[factors]
work = [{levels}]
[workloads.exec.params]
command = ["sh", "-c", "sleep {work}"]
[repetition]
blocks = {blocks}
warmup = 0
iterations = 1
"""
HERE = "here"


@dataclass(frozen=True, slots=True)
class Lab:
    """The files for `fleet run`, and the ledger with its results."""

    guestmark: CommandLine
    machines: Path
    plan: Path
    ledger: str
    whole: bool = True  # each machine measures all of the plan

    def arguments(self) -> tuple[str, ...]:
        """Return the arguments that run the plan on the lab."""
        given = ("--machines", str(self.machines), "--ledger", self.ledger)
        return ("fleet", "run", str(self.plan), *given, *(["--whole"] if self.whole else []))

    def runs(self) -> list[StoredRun]:
        """Return the runs of the fleet, one for each machine that has begun one."""
        with open_ledger(self.ledger, writable=False) as ledger:
            return [ledger.load_run(run.id) for run in ledger.list_runs() if "fleet" in run.labels]


def lab(
    guestmark: CommandLine,
    ledger: str,
    names: Iterable[str],
    *,
    blocks: int = 3,
    levels: str = '"0", "0.02"',
    environment: Mapping[str, str] | None = None,
    whole: bool = True,
) -> Lab:
    """Create a lab of machines with these names, all of one class; ssh reaches each but the one named `HERE`."""
    folder = guestmark.folder
    lines = []
    for name in names:
        scratch = folder / f"scratch-{name}"
        scratch.mkdir()
        own = {
            "PYTHONPATH": str(PACKAGES),
            "TMPDIR": str(scratch),
            "XDG_RUNTIME_DIR": str(scratch),
            "XDG_CACHE_HOME": str(guestmark.cache),
            "XDG_STATE_HOME": str(scratch / "state"),
            "GUESTMARK_LOCK": str(folder / f"lock-{name}"),
            **(environment or {}),
        }
        lines += [f"[machines.{name}]", 'class = "alike"', *([] if name == HERE else [f'ssh = "{name}"'])]
        lines += [f"command = {json.dumps([sys.executable, '-m', 'guestmark'])}"]
        lines += ["environment = {" + ", ".join(f'{key} = "{value}"' for key, value in own.items()) + "}"]
    machines, plan = folder / "lab.toml", folder / "plan.toml"
    machines.write_text("\n".join(lines))
    plan.write_text(PLAN.replace("{levels}", levels).replace("{blocks}", str(blocks)))
    return Lab(guestmark, machines, plan, ledger, whole)
