"""What engines do to trials when workers and schedulers die, and how much of a machine they take while one runs.

Run in an environment that has them, in bench/fleet: `python engines.py parsl|dask|ray [--retries]`. Four workers of one
processor on this machine get tasks of a second each that write down when they begin and end. Then workers are killed,
one is stopped for a while, and in another round the scheduler is killed. Every engine is told never to do anything
again by itself, as far as it can be told; `--retries` leaves it as it comes.
"""

import argparse
import collections
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from pathlib import Path
from typing import Any

import psutil

WORKERS, TASKS, TASK_S = 4, 24, 1.0
NOISE_S = 20.0
TOLD_S = 45.0  # Ray ends the whole program when its scheduler has not answered for 60


def task(folder: str, number: int, seconds: float) -> int:
    """One trial as far as an engine is concerned."""
    import time  # engines carry the function to processes that know nothing of this module

    with open(f"{folder}/{number}", "a", encoding="utf-8") as file:
        file.write("begin\n")
        file.flush()
        time.sleep(seconds)
        file.write("end\n")
    return number


Submit = Callable[..., Any]


@contextlib.contextmanager
def dask(folder: str, retries: bool) -> Iterator[tuple[Submit, Callable[[str], list[int]]]]:
    """A scheduler and workers without nannies."""
    from distributed import Client

    env = {**os.environ, "DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED": "False"}
    if not retries:
        env["DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES"] = "0"
    run = [sys.executable, "-m", "distributed.cli.dask_scheduler"]
    scheduler = subprocess.Popen(
        [*run, "--port", "18786", "--no-dashboard"], env=env, stderr=subprocess.DEVNULL
    )
    run = [sys.executable, "-m", "distributed.cli.dask_worker", "tcp://127.0.0.1:18786", "--nthreads", "1"]
    workers = [
        subprocess.Popen([*run, "--no-nanny", "--no-dashboard", "--local-directory", folder], env=env,
                         stderr=subprocess.DEVNULL)
        for _ in range(WORKERS)
    ]  # fmt: skip
    client = Client("tcp://127.0.0.1:18786", timeout=60)
    client.wait_for_workers(WORKERS, timeout=60)
    try:
        yield (
            lambda *arguments: client.submit(task, *arguments, pure=False, retries=0),
            lambda what: [scheduler.pid] if what == "scheduler" else [worker.pid for worker in workers],
        )
    finally:
        for process in (*workers, scheduler):
            process.kill()
        with contextlib.suppress(Exception):
            client.close(timeout=2)


@contextlib.contextmanager
def parsl(folder: str, retries: bool) -> Iterator[tuple[Submit, Callable[[str], list[int]]]]:
    """As a fleet has it: an interchange, and pools of one worker each. It does nothing again by itself."""
    from guestmark.fleet.engine import Engine

    engine = Engine(Path(folder))
    executor = engine._executor
    keys = Path(folder, "keys")
    keys.mkdir(mode=0o700)  # else the engine refuses them
    for name, text in engine.worker_keys().items():
        (keys / name).write_text(text)
    command = [
        sys.executable,
        "-m",
        "parsl.executors.high_throughput.process_worker_pool",
        "--cert_dir",
        str(keys),
    ]
    pools = [
        subprocess.Popen(
            [*command, "--logdir", f"{folder}/logs", *engine.worker_arguments(f"w{number}.1")],
            stderr=subprocess.DEVNULL,
        )
        for number in range(WORKERS)
    ]
    while len(executor.connected_managers()) < WORKERS:
        time.sleep(0.1)
    try:
        yield (
            lambda *arguments: executor.submit(task, {}, *arguments),
            lambda what: (
                [executor.interchange_proc.pid] if what == "scheduler" else [pool.pid for pool in pools]
            ),
        )
    finally:
        for pool in pools:  # what a pool has started does not end with it
            tree = psutil.Process(pool.pid).children(recursive=True) if pool.poll() is None else []
            for process in (pool, *tree):
                process.kill()
        with contextlib.suppress(Exception):
            engine.close()


@contextlib.contextmanager
def ray(folder: str, retries: bool) -> Iterator[tuple[Submit, Callable[[str], list[int]]]]:
    """A head without processors, and nodes of one."""
    import ray as engine
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    nodes = [cluster.add_node(num_cpus=1) for _ in range(WORKERS)]
    engine.init(address=cluster.address, log_to_driver=False, logging_level="CRITICAL")
    remote = engine.remote(task) if retries else engine.remote(max_retries=0)(task)
    try:
        yield (
            lambda *arguments: remote.remote(*arguments).future(),
            lambda what: (
                [cluster.head_node.all_processes["gcs_server"][0].process.pid]
                if what == "scheduler"
                else [node.all_processes["raylet"][0].process.pid for node in nodes]
            ),
        )
    finally:
        with contextlib.suppress(Exception):
            engine.shutdown()
            cluster.shutdown()


ENGINES = {"dask": dask, "parsl": parsl, "ray": ray}


def round_of(name: str, retries: bool, faults: str) -> str:
    """What became of the tasks of one round, in a line."""
    chance = random.Random(7)
    with tempfile.TemporaryDirectory(prefix="guestmark-engines-", ignore_cleanup_errors=True) as folder:
        os.mkdir(f"{folder}/tasks")
        with ENGINES[name](folder, retries) as (submit, processes):
            futures = [submit(f"{folder}/tasks", number, TASK_S) for number in range(TASKS)]
            time.sleep(2.5)
            if faults == "workers":
                victims = chance.sample(processes("worker"), 3)
                for victim in victims[:2]:
                    tree = psutil.Process(victim).children(recursive=True)
                    os.kill(victim, signal.SIGKILL)
                    for child in tree:
                        with contextlib.suppress(psutil.Error):
                            child.kill()
                    time.sleep(1.3)
                os.kill(victims[2], signal.SIGSTOP)
                time.sleep(4)
                os.kill(victims[2], signal.SIGCONT)
            elif faults == "scheduler":
                os.kill(processes("scheduler")[0], signal.SIGKILL)
            states: collections.Counter[str] = collections.Counter()
            deadline = time.monotonic() + TOLD_S
            if name == "dask":
                while time.monotonic() < deadline and not all(future.done() for future in futures):
                    time.sleep(0.2)
            else:
                wait(futures, timeout=TOLD_S)
            for future in futures:
                done = future.done()
                failed = done and (
                    future.status != "finished" if name == "dask" else future.exception() is not None
                )
                states["told as failed" if failed else "told as done" if done else "never told of"] += 1
            begun = [Path(folder, "tasks", str(number)) for number in range(TASKS)]
            counts = [path.read_text().count("begin") if path.exists() else 0 for path in begun]
        told = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
        twice, never = sum(count > 1 for count in counts), counts.count(0)
        return f"{told}; begun more than once: {twice}, never begun: {never}"


def noise(name: str) -> str:
    """Processor time and wake-ups of everything the engine runs for four machines, while their tasks sleep."""
    with tempfile.TemporaryDirectory(prefix="guestmark-engines-", ignore_cleanup_errors=True) as folder:
        os.mkdir(f"{folder}/tasks")
        begin = time.monotonic()
        with ENGINES[name](folder, False) as (submit, processes):
            started = time.monotonic() - begin
            for number in range(WORKERS):
                submit(f"{folder}/tasks", number, NOISE_S + 15)
            time.sleep(8)
            mine = [psutil.Process(pid) for pid in processes("worker")]
            mine += [child for process in list(mine) for child in process.children(recursive=True)]
            if name == "ray":  # its agents are not the raylet's children
                mine += [each for each in psutil.process_iter() if "ray" in " ".join(each.cmdline())[:400]
                         and each not in mine and each.pid != os.getpid()]  # fmt: skip

            def now() -> tuple[float, float, float]:
                times, switches, memory = 0.0, 0, 0
                for process in mine:
                    with contextlib.suppress(psutil.Error):
                        used = process.cpu_times()
                        times += used.user + used.system
                        switches += process.num_ctx_switches().voluntary
                        for thread in process.threads():
                            with contextlib.suppress(OSError):
                                text = Path(f"/proc/{process.pid}/task/{thread.id}/status").read_text()
                                if thread.id != process.pid:
                                    switches += int(text.split("\nvoluntary_ctxt_switches:")[1].split()[0])
                        memory += process.memory_full_info().uss
                return times, switches, memory

            before = now()
            time.sleep(NOISE_S)
            after = now()
        return (
            f"{(after[0] - before[0]) / NOISE_S / WORKERS:.2%} of a processor and "
            f"{(after[1] - before[1]) / NOISE_S / WORKERS:.0f} wake-ups a second on each machine, "
            f"{after[2] / WORKERS / 1e6:.0f} MB each; four were ready after {started:.1f} s"
        )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python engines.py")
    parser.add_argument("engine", choices=ENGINES)
    parser.add_argument("--retries", action="store_true", help="as it comes, not told to do nothing again")
    parser.add_argument("--round", choices=("workers", "scheduler", "noise"), action="append")
    options = parser.parse_args()
    for wanted in options.round or ("workers", "scheduler", "noise"):
        told = (
            noise(options.engine) if wanted == "noise" else round_of(options.engine, options.retries, wanted)
        )
        print(f"{options.engine} | {wanted} | {told}", flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
