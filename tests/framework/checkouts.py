"""Copies this checkout, so that the launcher can be tested; its set-up steps are real, but download little."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.framework import CHECKOUT
from tests.framework.processes import others

COPIED = (
    "guestmark",
    "tools",
    "requirements.txt",
    "Cargo.toml",
    "Cargo.lock",
    ".cargo",
    "python/guestmark/core/packages.tsv",
)

# Prints what it got from the launcher, as the command line would get it; imports none of the dependencies.
STUB_CLI = """\
import json, os, sys

def main():
    import guestmark
    print(json.dumps({"cwd": os.getcwd(), "argv": sys.argv, "package": guestmark.__file__}))
    return 7
"""
STUB_STATUS = 7


@dataclass(frozen=True)
class Checkout:
    """A copied checkout at `path`."""

    path: Path

    @property
    def launcher(self) -> Path:
        return self.path / "guestmark"

    @property
    def log(self) -> Path:
        return self.path / ".setup/setup.log"

    def key(self, name: str) -> str:
        """Return the key `name` (venv_key, agent_key, dev_key) that `tools/setup.sh` computes for this copy."""
        return subprocess.run(
            ["sh", "-c", f'root=$0; . "$0/tools/setup.sh"; {name}', self.path],
            check=True,
            capture_output=True,
            text=True,
            timeout=30,
        ).stdout.strip()

    def mark_agent_ready(self) -> None:
        """Make the copy believe that its agent is built from its present sources.

        The agent may be any executable, because the stub CLI never starts it.
        """
        agent = Path("target/any/release/guestmark-agent")
        (self.path / agent).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy("/bin/true", self.path / agent)
        (self.path / ".setup").mkdir(exist_ok=True)
        (self.path / ".setup/agent").write_text(f"{agent}\n{self.key('agent_key')}\n")

    def tiny_lock(self) -> None:
        """Replace the lock by its smallest single package, so that creating a real environment takes seconds."""
        entries = (CHECKOUT / "requirements.txt").read_text().split("\n    # ")
        entry = next(entry[entry.find("iniconfig==") :] for entry in entries if "\niniconfig==" in entry)
        (self.path / "requirements.txt").write_text(f"{entry}\n    # run\n")

    def lock_group(self, group: str, entry: str) -> None:
        """Replace the entries that the lock has for `group` by this entry."""
        lock = self.path / "requirements.txt"
        entries = re.findall(r"^[a-z].*?^    # .*?$", lock.read_text(), re.MULTILINE | re.DOTALL)
        kept = [each for each in entries if group not in each.rpartition("# ")[2].split()]
        lock.write_text("".join(f"{each}\n" for each in [*kept, f"{entry}\n    # {group}"]))

    def run(
        self,
        *args: str,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        before: tuple[str, ...] = (),
    ) -> subprocess.CompletedProcess[str]:
        """Start the launcher and wait for it, at most a minute and a half."""
        return subprocess.run(
            [*before, str(self.launcher), *args],
            env=dict(env) if env is not None else None,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )

    def start(self) -> subprocess.Popen[str]:
        """Start the launcher as a terminal would, in its own process group."""
        return subprocess.Popen(
            ["env", "--default-signal=INT", self.launcher],  # even if this test ignores SIGINT
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            process_group=0,
        )

    def processes(self) -> list[int]:
        """Return the ids of processes whose command line names this copy."""
        here = os.fsencode(self.path)
        return [int(folder.name) for folder, command in others() if any(here in word for word in command)]


def copy_checkout(to: Path, *, venv: bool) -> Checkout:
    """Copy the checkout to `to`, with the stub CLI and an agent that counts as built.

    With `venv`, the copy uses this checkout's environment.
    """
    to.mkdir(parents=True)
    for name in COPIED:
        source = CHECKOUT / name
        if source.is_dir():
            shutil.copytree(source, to / name)
        else:
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, to / name)
    for crate in (CHECKOUT / "crates").iterdir():
        shutil.copytree(crate, to / "crates" / crate.name, ignore=shutil.ignore_patterns("target"))
    (to / "python/guestmark/cli").mkdir(parents=True, exist_ok=True)
    (to / "python/guestmark/__init__.py").touch()
    (to / "python/guestmark/cli/__init__.py").write_text(STUB_CLI)
    checkout = Checkout(to)
    checkout.mark_agent_ready()
    if venv:
        (to / ".venv").symlink_to(CHECKOUT / ".venv")
        assert (CHECKOUT / ".venv/.guestmark").read_text().strip() == checkout.key("venv_key"), (
            "run ./test: it sets up first"
        )
    return checkout


def handed_over(run: subprocess.CompletedProcess[str]) -> dict[str, object]:
    """Return what the stub CLI printed, after checking that it was reached and that its exit status came through."""
    assert run.returncode == STUB_STATUS, run.stderr
    told = json.loads(run.stdout)
    assert isinstance(told, dict)
    return told
