"""Test what engines do to trials when machines and schedulers die, and how much of a machine they use during a trial.

Run from the checkout, in an environment that has the engine: `python -m bench.fleet.engines parsl|dask|ray`. Four
simulated machines with one processor get tasks of one second, which record when they begin and end. Each machine has
done tasks before anything happens. Then two of them are killed, with everything that the engine runs there, and one is
stopped for a while; in another round the scheduler is killed. Nothing is started again. Each engine has the settings
that suit a fleet best, as far as it has them: it never repeats anything by itself, gives machines no tasks in advance,
and polls rarely. `--as-it-comes` leaves Dask and Ray at their defaults.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

MACHINES, TASKS, TASK_S = 4, 24, 1.0
NOISE_S, QUIET_S = 20.0, 8.0
TOLD_S = 45.0  # limit for reports; Ray ends the program if its scheduler does not answer for 60 s
STOPPED_S = 4.0  # shorter than the silence after which any engine gives up a machine
READY_S = 120.0
PORT = 18786
# Of Dask's configuration; see "Configuration" in its documentation.
DASK = {
    "SCHEDULER__ALLOWED_FAILURES": "0",  # how often a task is repeated whose machine died
    "SCHEDULER__WORKER_SATURATION": "1.0",  # tasks given to a machine ahead
    "SCHEDULER__WORK_STEALING": "False",
    "SCHEDULER__WORKER_TTL": "20s",
    "WORKER__PROFILE__ENABLED": "False",
    "ADMIN__TICK__INTERVAL": "5s",
    "ADMIN__SYSTEM_MONITOR__INTERVAL": "5s",
    "ADMIN__SYSTEM_MONITOR__GIL__ENABLED": "False",
}
# Ray's processes read these when they start; max_retries=0 is set for each task.
RAY = {
    "enable_metrics_collection": "0",
    "event_stats": "0",
    "task_events_report_interval_ms": "0",
    "memory_monitor_refresh_ms": "0",
    "raylet_report_resources_period_milliseconds": "1000",
    "raylet_report_loads_period_milliseconds": "1000",
    "raylet_check_gc_period_milliseconds": "1000",
}


def run_task(folder: str, number: int, seconds: float) -> int:
    """Run one task as an engine sees it, which records when it begins and ends."""
    import os  # engines send the function to processes that have not imported this module
    import time

    with open(f"{folder}/{number}", "a", encoding="utf-8") as file:
        file.write(f"begin {os.getpid()}\n")
        file.flush()
        time.sleep(seconds)
        file.write("end\n")
    return number


@dataclass
class Running:
    """A running engine with its machines.

    `told` returns what the engine reports about a task: True for done, False for failed, None for nothing yet.
    """

    submit: Callable[[str, Sequence[int], float], list[Any]]
    told: Callable[[Any], bool | None]
    scheduler: int
    roots: list[int]  # the process of each machine from which all others there descend

    def machine(self, number: int) -> list[psutil.Process]:
        """Return all processes of one machine."""
        first = psutil.Process(self.roots[number])
        return [first, *first.children(recursive=True)]


@contextlib.contextmanager
def run_dask(folder: str, settings: bool) -> Iterator[Running]:
    """Run Dask's scheduler with workers; without nannies, which would start them again."""
    env = dict(os.environ)
    if settings:
        env |= {f"DASK_DISTRIBUTED__{name}": value for name, value in DASK.items()}
        os.environ |= env  # also for the client, whose event loop runs in this process
    from distributed import Client

    command = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--port", str(PORT), "--no-dashboard"]
    scheduler = subprocess.Popen(command, env=env, stderr=subprocess.DEVNULL)
    command = [
        sys.executable, "-m", "distributed.cli.dask_worker", f"tcp://127.0.0.1:{PORT}", "--nthreads", "1",
        "--no-nanny", "--no-dashboard", "--local-directory", folder, "--memory-limit", "0",
    ]  # fmt: skip
    workers = [subprocess.Popen(command, env=env, stderr=subprocess.DEVNULL) for _ in range(MACHINES)]
    client = Client(f"tcp://127.0.0.1:{PORT}", timeout=60)
    client.wait_for_workers(MACHINES, timeout=60)

    def told(future: Any) -> bool | None:
        if not future.done():
            return None
        if future.status == "finished":
            # Fetched at once, as it is lost with the machine that has it.
            with contextlib.suppress(Exception):
                future.result(timeout=5)
                future.release()
                return True
            return None
        return False

    try:
        yield Running(
            lambda where, numbers, seconds: client.map(
                run_task, [where] * len(numbers), numbers, [seconds] * len(numbers), pure=False, retries=0
            ),
            told,
            scheduler.pid,
            [worker.pid for worker in workers],
        )
    finally:
        for process in (*workers, scheduler):
            process.kill()
        with contextlib.suppress(Exception):
            client.close(timeout=2)


@contextlib.contextmanager
def run_parsl(folder: str, settings: bool) -> Iterator[Running]:
    """Run Parsl as in a fleet: the fleet's engine, with workers that `guestmark fleet worker` starts."""
    from guestmark.fleet.lab import LabMachine
    from guestmark.fleet.parsl_engine import ParslEngine
    from guestmark.fleet.worker_connection import WorkerAddresses, WorkerLink

    engine = ParslEngine(Path(folder))
    surroundings = {"PYTHONPATH": os.pathsep.join(sys.path)}
    links = []
    for number in range(MACHINES):
        member = LabMachine(f"m{number}", "", "", (sys.executable, "-m", "guestmark"), surroundings)
        arguments = engine.make_worker_arguments(f"m{number}.1")
        links.append(
            WorkerLink(member, WorkerAddresses(engine.port, ""), engine.read_worker_keys(), arguments)
        )
    while len(engine._executor.connected_managers()) < MACHINES:
        time.sleep(0.1)
    try:
        yield Running(
            lambda where, numbers, seconds: [
                engine._executor.submit(run_task, {}, where, number, seconds) for number in numbers
            ],
            _told,
            engine._executor.interchange_proc.pid,
            [link._process.pid for link in links],
        )
    finally:
        for link in links:
            link.close()
        with contextlib.suppress(Exception):
            engine.close()


@contextlib.contextmanager
def run_ray(folder: str, settings: bool) -> Iterator[Running]:
    """Run Ray with a head node without processors, and nodes with one processor each."""
    if settings:
        os.environ |= {f"RAY_{name}": value for name, value in RAY.items()}
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray as engine
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    nodes = [cluster.add_node(wait=False, num_cpus=1) for _ in range(MACHINES)]
    cluster.wait_for_nodes()
    engine.init(address=cluster.address, log_to_driver=False, logging_level="CRITICAL")
    remote = engine.remote(max_retries=0)(run_task) if settings else engine.remote(run_task)
    try:
        yield Running(
            lambda where, numbers, seconds: [
                remote.remote(where, number, seconds).future() for number in numbers
            ],
            _told,
            cluster.head_node.all_processes["gcs_server"][0].process.pid,
            [node.all_processes["raylet"][0].process.pid for node in nodes],
        )
    finally:
        with contextlib.suppress(Exception):
            engine.shutdown()
            cluster.shutdown()


def _told(future: Any) -> bool | None:
    return future.exception() is None if future.done() else None


ENGINES = {"dask": run_dask, "parsl": run_parsl, "ray": run_ray}


@dataclass
class Counts:
    """The fate of the tasks of several rounds."""

    rounds: int = 0
    seen: collections.Counter[str] = field(default_factory=collections.Counter)

    def add(self, folder: Path, told: dict[int, bool]) -> None:
        """Add one round, from what its tasks wrote and what the engine reported about them."""
        self.rounds += 1
        for number in range(TASKS):
            path = folder / str(number)
            words = path.read_text().split() if path.exists() else []
            state = told.get(number)
            self.seen["tasks"] += 1
            self.seen["done" if state else "failed" if state is False else "never told"] += 1
            self.seen["begun more than once"] += words.count("begin") > 1
            self.seen["never begun"] += "begin" not in words
            self.seen["told as failed, although it ended"] += state is False and "end" in words
            self.seen["told as done, although it did not end"] += state is True and "end" not in words

    def __str__(self) -> str:
        counts = ", ".join(f"{count} {name}" for name, count in self.seen.items() if count)
        return f"{self.rounds} rounds: {counts}"


def ready(running: Running, folder: Path) -> None:
    """Let every machine do a task first, because engines start the processes for tasks only when they are needed."""
    deadline, waves = time.monotonic() + READY_S, 0
    while time.monotonic() < deadline:
        wave = folder / f"warm-{waves}"
        wave.mkdir()
        futures = running.submit(str(wave), range(MACHINES), 0.5)
        while any(running.told(future) is None for future in futures):
            time.sleep(0.05)
        if len({path.read_text().split()[1] for path in wave.iterdir()}) == MACHINES:
            return
        waves += 1
    raise SystemExit("the machines are not ready")


def killed_and_stopped(running: Running, chance: random.Random, tasks: Path, counts: Counts) -> None:
    """Kill two machines, and stop a third for a while."""
    first, second, third = (running.machine(number) for number in chance.sample(range(MACHINES), 3))
    for machine in (first, second):
        _send(machine, signal.SIGKILL)
        counts.seen["killed in the middle"] += _at_work(machine, tasks)
        time.sleep(chance.uniform(0.5, 1.5))
    _send(third, signal.SIGSTOP)
    time.sleep(STOPPED_S)
    _send(third, signal.SIGCONT)


def without_scheduler(running: Running, chance: random.Random, tasks: Path, counts: Counts) -> None:
    """Kill the scheduler."""
    os.kill(running.scheduler, signal.SIGKILL)
    counts.seen["in the middle"] += sum(_is_open(path.read_text()) for path in _written(tasks))
    counts.seen["begun before"] += len(_written(tasks))


def _at_work(machine: Sequence[psutil.Process], tasks: Path) -> int:
    """Count the tasks that these processes have begun and not ended."""
    mine = {str(process.pid) for process in machine}
    return sum(_is_open(text) and text.split()[-1] in mine for text in map(Path.read_text, _written(tasks)))


def _written(tasks: Path) -> list[Path]:
    return [path for path in tasks.iterdir() if path.is_file()]


def _is_open(text: str) -> bool:
    return bool(text) and not text.endswith("end\n")


FAULTS = {"workers": killed_and_stopped, "scheduler": without_scheduler}


def _send(machine: Sequence[psutil.Process], number: signal.Signals) -> None:
    for process in machine:
        with contextlib.suppress(psutil.Error):
            process.send_signal(number)


def round_of(name: str, settings: bool, faults: str, seed: int, counts: Counts) -> None:
    """Run one round, and add the fate of its tasks to `counts`."""
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="guestmark-engines-", ignore_cleanup_errors=True) as folder:
        tasks = Path(folder, "tasks")
        tasks.mkdir()
        with ENGINES[name](folder, settings) as running:
            ready(running, tasks)
            futures = dict(enumerate(running.submit(str(tasks), range(TASKS), TASK_S)))
            at = time.monotonic() + chance.uniform(1.5, 3.0)
            told: dict[int, bool] = {}
            fault: threading.Thread | None = None
            while time.monotonic() < at + TOLD_S and len(told) < TASKS:
                if fault is None and time.monotonic() > at:
                    fault = threading.Thread(target=FAULTS[faults], args=(running, chance, tasks, counts))
                    fault.start()
                for number in [number for number in futures if number not in told]:
                    state = running.told(futures[number])
                    if state is not None:
                        told[number] = state
                time.sleep(0.05)
            if fault is not None:
                fault.join()
            counts.add(tasks, told)


def measure_noise(name: str, settings: bool) -> str:
    """Describe the processor time and wake-ups of the engine's processes on a machine while a task sleeps there."""
    with tempfile.TemporaryDirectory(prefix="guestmark-engines-", ignore_cleanup_errors=True) as folder:
        tasks = Path(folder, "tasks")
        tasks.mkdir()
        begin = time.monotonic()
        with ENGINES[name](folder, settings) as running:
            ready(running, tasks)
            started = time.monotonic() - begin
            running.submit(str(tasks), range(MACHINES), NOISE_S + QUIET_S + 5)
            time.sleep(QUIET_S)
            mine = [process for number in range(MACHINES) for process in running.machine(number)]
            before, begin = _measure_usage(mine), time.monotonic()
            time.sleep(NOISE_S)
            after, took = _measure_usage(mine), time.monotonic() - begin
    share, wakeups = ((after[part] - before[part]) / took / MACHINES for part in (0, 1))
    return (
        f"{share:.2%} of a processor and {wakeups:.1f} wake-ups a second on each machine, "
        f"{after[2] / MACHINES / 1e6:.0f} MB each; four had done a task after {started:.1f} s"
    )


def _measure_usage(processes: Sequence[psutil.Process]) -> tuple[float, int, int]:
    """Return processor seconds, voluntary context switches of all threads, and unshared bytes of memory."""
    times, switches, memory = 0.0, 0, 0
    for process in processes:
        with contextlib.suppress(psutil.Error):
            used = process.cpu_times()
            times += used.user + used.system
            memory += process.memory_full_info().uss
        for status in Path(f"/proc/{process.pid}/task").glob("*/status"):
            with contextlib.suppress(OSError):
                switches += int(status.read_text().split("\nvoluntary_ctxt_switches:")[1].split()[0])
    return times, switches, memory


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.fleet.engines")
    parser.add_argument("engine", choices=ENGINES)
    parser.add_argument("--as-it-comes", action="store_true", help="without settings of ours")
    parser.add_argument("--round", choices=("workers", "scheduler", "noise"), action="append")
    parser.add_argument("--runs", type=int, default=1, help="of each round")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    settings = not options.as_it_comes
    for wanted in options.round or ("workers", "scheduler", "noise"):
        if wanted == "noise":
            for _ in range(options.runs):
                print(f"{options.engine} | noise | {measure_noise(options.engine, settings)}", flush=True)
            continue
        counts = Counts()
        for seed in range(options.seed, options.seed + options.runs):
            round_of(options.engine, settings, wanted, seed, counts)
            print(f"{options.engine} | {wanted} | {counts}", flush=True)
    os._exit(0)  # without waiting for threads that an engine has left


if __name__ == "__main__":
    main()
