"""A private Slurm cluster for tests, all of whose nodes are this machine, on loopback."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.framework.processes import wait_until

_CONFIG = """
ClusterName=tests
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={ports[0]}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
KillWait=5
SchedulerParameters=requeue_delay=1,sched_interval=2,bf_interval=2
JobRequeue=1
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


@dataclass(frozen=True, slots=True)
class Slurm:
    """The cluster; its commands need `environment`."""

    folder: Path
    environment: dict[str, str]

    def __call__(self, *words: str) -> str:
        """Run a command of the cluster, and return its output."""
        found = subprocess.run(
            words, env=self.environment, capture_output=True, text=True, timeout=30, check=False
        )
        return found.stdout

    def tasks(self, job: str) -> dict[str, str]:
        """Return the state of each task of a job array that Slurm still lists."""
        lines = self("squeue", "--noheader", "--array", "--job", job, "--format=%i %T").splitlines()
        return dict(line.split() for line in lines)


@contextlib.contextmanager
def slurm(folder: Path, nodes: int = 4) -> Iterator[Slurm]:
    """Yield a cluster with this many nodes; at the end it is stopped with everything that it runs."""
    missing = [each for each in ("slurmctld", "slurmd", "munged", "sbatch") if shutil.which(each) is None]
    if os.getuid() != 0 or missing:
        pytest.skip("starting Slurm takes root and the packages slurmctld, slurmd and munge")
    folder.mkdir()
    folder.chmod(0o755)
    key = folder / "munge.key"
    key.write_bytes(secrets.token_bytes(1024))
    key.chmod(0o400)
    (folder / "state").mkdir()
    ports = _free_ports(nodes + 1)
    lines = [
        f"NodeName=n{n} NodeHostname=localhost NodeAddr=127.0.0.1 Port={ports[n]} CPUs=1 RealMemory=500"
        for n in range(1, nodes + 1)
    ]
    config = folder / "slurm.conf"
    config.write_text(_CONFIG.format(folder=folder, ports=ports, nodes="\n".join(lines)))
    environment = {**os.environ, "SLURM_CONF": str(config)}
    with contextlib.ExitStack() as stack:

        def start(*words: str) -> None:
            with (folder / f"{words[0]}.out").open("ab") as out:
                process = subprocess.Popen(
                    words, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out
                )
            stack.callback(_end, process)

        start(
            "munged", "--foreground", "--force", f"--key-file={key}", f"--socket={folder}/munge.socket",
            f"--pid-file={folder}/munged.pid", f"--log-file={folder}/munged.log", f"--seed-file={folder}/seed",
        )  # fmt: skip
        assert wait_until((folder / "munge.socket").exists, 10)
        start("slurmctld", "-D", "-c")
        for n in range(1, nodes + 1):
            (folder / f"spool-n{n}").mkdir()
            start("slurmd", "-D", "-N", f"n{n}")
        made = Slurm(folder, environment)
        idle = f"{nodes} idle"
        assert wait_until(lambda: made("sinfo", "--noheader", "--format=%D %t").strip() == idle, 30), made(
            "sinfo"
        )
        stack.callback(made, "scancel", "--signal=KILL", "--full", "--partition=main")
        yield made


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        process.wait()


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
