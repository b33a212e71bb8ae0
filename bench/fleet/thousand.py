"""Measure how long an engine's scheduler takes to connect many workers and give each a task, and its processor time.

Run in an environment that has the engine, in bench/fleet: `python thousand.py parsl|dask [--workers 1000]`. The
scheduler is the real one, in a separate process. Workers are simulated, all in this process: for Parsl they are
sockets that send what its worker pools send, for Dask its own worker objects without processes.
"""

from __future__ import annotations

import argparse
import os
import pickle
import platform
import resource
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any


def simulate_parsl(workers: int, folder: str) -> str:
    import zmq
    from parsl import curvezmq
    from parsl.executors import HighThroughputExecutor
    from parsl.providers import LocalProvider
    from parsl.serialize import serialize
    from parsl.version import VERSION

    make_provider: Any = LocalProvider
    executor: Any = HighThroughputExecutor(
        label="x", address="127.0.0.1", encrypted=True, heartbeat_period=30, heartbeat_threshold=120,
        interchange_launch_cmd=[sys.executable, "-m", "parsl.executors.high_throughput.interchange"],
        provider=make_provider(init_blocks=0, max_blocks=0, min_blocks=0),
    )  # fmt: skip
    executor.run_dir = executor.provider.script_dir = folder
    executor.start()
    begin = time.monotonic()
    context: Any = curvezmq.ClientContext(executor.cert_dir)
    context.max_sockets = 2 * workers + 100
    poller, sockets = zmq.Poller(), []
    for number in range(workers):
        sock = context.socket(zmq.DEALER)
        sock.setsockopt(zmq.IDENTITY, f"sim{number}".encode())
        sock.setsockopt(zmq.LINGER, 0)
        sock.connect(f"tcp://127.0.0.1:{executor.worker_port}")
        sock.send(pickle.dumps({"type": "connection_probe"}))
        sock.send(pickle.dumps(_registration(f"sim{number}", VERSION)))
        poller.register(sock, zmq.POLLIN)
        sockets.append(sock)
    registered = time.monotonic() - begin
    stopping = threading.Event()

    def serve() -> None:
        while not stopping.is_set():
            for sock, _ in poller.poll(200):
                message = sock.recv()
                tasks = pickle.loads(message) if message else None  # an empty one is a probe
                for task in tasks if isinstance(tasks, list) else ():
                    made = {"type": "result", "task_id": task["task_id"], "result": serialize(1)}
                    sock.send(pickle.dumps(made))

    thread = threading.Thread(target=serve)
    thread.start()
    while len(executor.connected_managers()) < workers:
        time.sleep(0.05)
    connected = time.monotonic() - begin
    futures = [executor.submit(abs, {}, number) for number in range(workers)]
    done = sum(future.result(120) for future in futures)
    took = time.monotonic() - begin - connected
    memory = _resident_memory(executor.interchange_proc.pid)
    stopping.set()
    thread.join()
    executor.interchange_proc.kill()
    return (
        f"{workers} workers had come after {connected:.1f} s ({registered:.1f} s of it to open their sockets); "
        f"{done} tasks, one each, took {took:.1f} s; scheduler {memory:.0f} MB"
    )


def _registration(name: str, version: str) -> dict[str, Any]:
    return {
        "type": "registration", "parsl_v": version, "python_v": platform.python_version(), "packages": {},
        "worker_count": 1, "uid": name, "block_id": name, "start_time": time.time(), "drain_time": float("inf"),
        "prefetch_capacity": 0, "max_capacity": 1, "os": "Linux", "hostname": name, "dir": "/", "cpu_count": 1,
        "total_memory": 1 << 30,
    }  # fmt: skip


def simulate_dask(workers: int, folder: str) -> str:
    import asyncio

    import dask as configured
    from distributed import Client, Worker

    # A thousand workers share this one process, which would have no time for anything but their monitoring.
    seldom = {
        "admin.tick.interval": "60s",
        "admin.system-monitor.interval": "60s",
        "worker.profile.enabled": False,
    }
    configured.config.set({f"distributed.{name}": value for name, value in seldom.items()})
    run = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--port", "18787", "--no-dashboard"]
    scheduler = subprocess.Popen(run, stderr=subprocess.DEVNULL)
    address = "tcp://127.0.0.1:18787"

    async def tell(begin: float, come: list[Any]) -> None:
        """Print at intervals the processor time of the scheduler and of this process, which simulates all workers."""
        while True:
            theirs = sum(
                map(int, Path(f"/proc/{scheduler.pid}/stat").read_text().rpartition(")")[2].split()[11:13])
            )
            print(
                f"{len(come)} after {time.monotonic() - begin:.0f} s; processor time of the scheduler "
                f"{theirs / os.sysconf('SC_CLK_TCK'):.0f} s, of the workers {time.process_time():.0f} s",
                file=sys.stderr, flush=True,
            )  # fmt: skip
            await asyncio.sleep(10)

    async def all_of_them() -> str:
        async with Client(address, asynchronous=True, timeout=60) as client:
            begin = time.monotonic()
            come: list[Any] = []
            watching = asyncio.create_task(tell(begin, come))
            while len(come) < workers:
                some = [
                    Worker(address, nthreads=1, local_directory=folder, dashboard=False, memory_limit=0)
                    for _ in range(min(50, workers - len(come)))
                ]
                come += await asyncio.gather(*some)
            connected = time.monotonic() - begin
            futures = client.map(abs, range(workers), pure=False)
            done = len(await client.gather(futures))
            took = time.monotonic() - begin - connected
            memory = _resident_memory(scheduler.pid)
            watching.cancel()
            return (
                f"{workers} workers had come after {connected:.1f} s; {done} tasks took {took:.1f} s; "
                f"scheduler {memory:.0f} MB"
            )

    try:
        return asyncio.run(all_of_them())
    finally:
        scheduler.kill()


def _resident_memory(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python thousand.py")
    parser.add_argument("engine", choices=("parsl", "dask"))
    parser.add_argument("--workers", type=int, default=1000)
    options = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65536), hard))
    with tempfile.TemporaryDirectory(prefix="guestmark-engines-", ignore_cleanup_errors=True) as folder:
        measure = {"parsl": simulate_parsl, "dask": simulate_dask}[options.engine]
        print(f"{options.engine} | start | {measure(options.workers, folder)}", flush=True)
        os._exit(0)


if __name__ == "__main__":
    main()
