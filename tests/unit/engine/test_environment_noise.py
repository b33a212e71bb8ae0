"""The noise recorder on the real /proc with real load, and on a /proc made of files."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from guestmark.engine.noise import NoiseRecorder
from guestmark.stats import THRESHOLDS
from tests.framework.processes import cpu_seconds


class Machine:
    """As much of a machine as the recorder looks at."""

    def __init__(self, vmm_pid: int | None) -> None:
        self.vmm_pid = vmm_pid


def test_the_real_host() -> None:
    recorder = NoiseRecorder()
    recorder.start([os.getpid()])
    deadline = time.thread_time() + 0.1
    while time.thread_time() < deadline:
        pass
    found = recorder.stop()
    assert found == recorder.result()
    assert found["elapsed_s"] >= 0.1
    assert 0.1 <= found["vmm_run_s"] <= 10
    assert found["run_queue_delay"] >= 0
    assert found["context_switches"] > 0
    if Path("/proc/pressure/cpu").exists():
        assert found["psi_cpu_some_us"] >= 0
        assert found["psi_cpu_some"] == pytest.approx(found["psi_cpu_some_us"] / 1e6 / found["elapsed_s"])
    assert all(isinstance(value, int | float | list) for value in found.values())


def test_waiting_for_a_processor_is_seen() -> None:
    """Two threads' worth of work pinned on one processor wait for half of the time."""
    one = min(os.sched_getaffinity(0))
    busy = [sys.executable, "-c", f"import os\nos.sched_setaffinity(0, {{{one}}})\nwhile True: pass"]
    hogs = [subprocess.Popen(busy) for _ in range(2)]
    try:
        time.sleep(0.5)
        recorder = NoiseRecorder()
        recorder.start([hogs[0].pid])
        time.sleep(1.0)
        found = recorder.stop()
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()
    assert found["run_queue_delay"] > THRESHOLDS["run_queue_delay"]
    assert found["run_queue_delay_s"] > 0.1
    assert found["vmm_run_s"] < 0.95 * found["elapsed_s"]


def test_threads_that_start_meanwhile_count() -> None:
    def work() -> None:
        deadline = time.thread_time() + 0.1
        while time.thread_time() < deadline:
            pass
        stop.wait(30)

    stop = threading.Event()
    recorder = NoiseRecorder()
    recorder.start([os.getpid()])
    thread = threading.Thread(target=work)
    thread.start()
    time.sleep(0.5)
    found = recorder.stop()
    stop.set()
    thread.join()
    assert found["vmm_run_s"] >= 0.05


def test_processes_below_the_hypervisor_count() -> None:
    """As in UML: the work is done in a child of the process that was named, which is still there at the end."""
    work = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done; echo done; exec sleep 60"
    with subprocess.Popen(
        ["sh", "-c", f"sh -c '{work}' & wait"], stdout=subprocess.PIPE, start_new_session=True
    ) as parent:
        assert parent.stdout
        recorder = NoiseRecorder()
        recorder.start([parent.pid])
        parent.stdout.readline()
        found = recorder.stop()
        os.killpg(parent.pid, signal.SIGKILL)
    assert found["vmm_run_s"] > 0.005


def test_with_a_machine() -> None:
    recorder = NoiseRecorder(Machine(os.getpid()))  # type: ignore[arg-type]
    assert recorder.result() == {}
    with recorder:
        assert recorder.result() == {}
    assert "vmm_run_s" in recorder.result()
    on_host = NoiseRecorder(Machine(None))  # type: ignore[arg-type]
    with on_host:
        pass
    assert "vmm_run_s" not in on_host.result()
    assert on_host.result()["elapsed_s"] > 0


def test_a_recording_that_fails_inside_is_ended() -> None:
    recorder = NoiseRecorder()
    with pytest.raises(ZeroDivisionError), recorder:
        _ = 1 / 0
    assert recorder.result()["elapsed_s"] >= 0


def test_the_hypervisor_may_die_meanwhile() -> None:
    child = subprocess.Popen(["sleep", "60"])
    recorder = NoiseRecorder()
    recorder.start([child.pid, 2**22 + 1])
    child.kill()
    child.wait()
    assert "vmm_run_s" not in recorder.stop()


BEFORE = {
    "proc/pressure/cpu": "some avg10=1.00 avg60=0 avg300=0 total=1000\nfull avg10=0 avg60=0 avg300=0 total=10\n",
    "proc/pressure/memory": "some avg10=0 total=5\n",
    "proc/stat": "cpu  100 0 100 800 0 0 0 50 7 0\ncpu0 1 1 1 1\nctxt 1000\n",
    "proc/vmstat": "pswpin 5\npswpout 7\n",
    "proc/loadavg": "0.50 0.1 0.1 1/2 3\n",
    "sys/devices/system/cpu/cpu0/thermal_throttle/core_throttle_count": "3\n",
    "sys/devices/system/cpu/cpu1/thermal_throttle/package_throttle_count": "1\n",
    "sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq": "800000\n",
    "sys/devices/system/cpu/cpu1/cpufreq/scaling_cur_freq": "4000000\n",
}
AFTER = {
    "proc/pressure/cpu": "some avg10=1.00 avg60=0 avg300=0 total=3000\nfull avg10=0 avg60=0 avg300=0 total=10\n",
    "proc/stat": "cpu  150 0 150 900 0 0 0 100 7 0\nctxt 1500\n",
    "proc/vmstat": "pswpin 6\npswpout 17\n",
    "proc/loadavg": "2.50 0.1 0.1 1/2 3\n",
    "sys/devices/system/cpu/cpu0/thermal_throttle/core_throttle_count": "5\n",
    "sys/devices/system/cpu/cpu1/cpufreq/scaling_cur_freq": "3000000\n",
}


def fill(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


def test_time_on_the_machines_processors(tmp_path: Path) -> None:
    """Of three processors, two are the machine's; one of this process's threads may run there, by all it knows."""
    own = tmp_path / f"proc/{os.getpid()}"
    before = {
        "proc/stat": "cpu  9 9 9 9 0 0 0 9\ncpu0 50 0 50 0 0 0 0 90\ncpu1 10 5 5 0 0 7 7 2\ncpu2 0 0 0 0 0 0 0 0\n",
        f"proc/{os.getpid()}/stat": "1 (a b) S" + " 0" * 12 + " 10 20 0 0",
        f"proc/{os.getpid()}/task/{os.getpid()}/schedstat": "1000000000 5 5\n",
    }
    after = {
        "proc/stat": "cpu  9 9 9 9 0 0 0 9\ncpu0 950 0 50 0 0 0 0 90\ncpu1 110 5 25 0 0 7 7 7\ncpu2 80 0 0 0 0 0 0 1\n",
        f"proc/{os.getpid()}/stat": "1 (a b) S" + " 0" * 12 + " 20 40 0 0",
        f"proc/{os.getpid()}/task/{os.getpid()}/schedstat": "1500000000 5 5\n",
    }
    fill(tmp_path, before)
    recorder = NoiseRecorder(root=tmp_path)
    processors = {1, 2} | os.sched_getaffinity(0)  # so that the thread counts
    processors = {1, 2} if os.sched_getaffinity(0) & {1, 2} else processors
    recorder.start((), processors)
    fill(tmp_path, after)
    found = recorder.stop()
    ticks = os.sysconf("SC_CLK_TCK")
    assert own.exists()
    assert found["machine_processors"] == len(processors)
    assert found["foreign_s"] == pytest.approx((120 + 80) / ticks - 0.5 - 30 / ticks)
    assert found["machine_steal_s"] == pytest.approx(6 / ticks)


def test_every_figure(tmp_path: Path) -> None:
    fill(tmp_path, BEFORE)
    recorder = NoiseRecorder(root=tmp_path)
    recorder.start()
    fill(tmp_path, AFTER)
    (tmp_path / "proc/pressure/memory").unlink()
    found = recorder.stop()
    elapsed = found.pop("elapsed_s")
    assert found == {
        "psi_cpu_some_us": 2000,
        "psi_cpu_some": 2e-3 / elapsed,
        "psi_cpu_full_us": 0,
        "psi_cpu_full": 0,
        "steal_ticks": 50,
        "steal": 0.2,
        "context_switches": 500,
        "pswpin_pages": 1,
        "pswpout_pages": 10,
        "swapped_pages": 11,
        "throttled": 2,
        "frequency_mhz": [4000.0, 3000.0],
        "frequency_drop": 0.25,
        "load_1min": 2.5,
    }


BURN = "import os,time\nos.sched_setaffinity(0, {{{processor}}})\nwhile True: pass"


def test_what_others_do_on_the_machines_processor_is_told_from_its_own_work() -> None:
    """The same busy loop is foreign when somebody else started it, and the machine's own below this process."""
    processor = max(os.sched_getaffinity(0))
    command = [sys.executable, "-c", BURN.format(processor=processor)]
    recorder = NoiseRecorder()

    def shares(loop: int) -> tuple[float, float]:
        """What is foreign of the processor's time, and what the loop gets of it, which may be little on a busy host."""
        time.sleep(0.3)
        before = cpu_seconds(loop)
        recorder.start((), {processor})
        time.sleep(1.0)
        found = recorder.stop()
        assert found["machine_processors"] == 1
        elapsed = float(found["elapsed_s"])
        return float(found["foreign_s"]) / elapsed, (cpu_seconds(loop) - before) / elapsed

    own = subprocess.Popen(command)
    try:
        foreign, loop = shares(own.pid)
    finally:
        own.kill()
        own.wait()
    assert foreign + loop < 1.1
    # A process whose parent has ended is nobody's child here.
    adopted = subprocess.run(
        ["sh", "-c", '"$@" >/dev/null 2>&1 & echo $!', "sh", *command],
        capture_output=True,
        text=True,
        check=True,
    )
    try:
        foreign, loop = shares(int(adopted.stdout))
    finally:
        os.kill(int(adopted.stdout), signal.SIGKILL)
    assert foreign > loop - 0.1


def test_programs_that_have_ended_are_the_machines_own() -> None:
    """Their time is known by their parent; what the workload reported counts where ticks are too coarse."""
    processor = max(os.sched_getaffinity(0))
    loop = f"import os,time\nos.sched_setaffinity(0, {{{processor}}})\nwhile time.process_time() < 0.6: pass"
    recorder = NoiseRecorder()
    recorder.start((), {processor})
    subprocess.run([sys.executable, "-c", loop], check=True)
    plain = recorder.stop()
    recorder.start((), {processor})
    recorder.add_reported_time(50.0)
    assert recorder.stop()["foreign_s"] < -40
    assert plain["foreign_s"] < plain["elapsed_s"] - 0.5


def test_threads_that_have_ended_are_the_machines_own() -> None:
    """The host's program that writes disks makes threads for it, which are gone when the kernel is asked again."""
    processor = max(os.sched_getaffinity(0))
    work = (
        f"import hashlib,os,sys,threading\nos.sched_setaffinity(0, {{{processor}}})\nprint(flush=True)\n"
        "for _ in sys.stdin:\n"
        "    thread = threading.Thread(target=hashlib.pbkdf2_hmac, args=('sha256', b'', b'', 1_600_000))\n"
        "    thread.start()\n    thread.join()\n    print(flush=True)\n"
    )
    with subprocess.Popen([sys.executable, "-c", work], stdin=-1, stdout=-1, text=True, bufsize=1) as process:
        assert process.stdin
        assert process.stdout
        process.stdout.readline()
        recorder = NoiseRecorder()
        used = cpu_seconds(process.pid)
        recorder.start((), {processor})
        process.stdin.write("\n")
        process.stdout.readline()
        found = recorder.stop()
        used = cpu_seconds(process.pid) - used
        process.stdin.close()
    assert used > 0.2
    assert found["foreign_s"] < found["elapsed_s"] - used + 0.05


def test_what_a_host_cannot_tell_is_absent(tmp_path: Path) -> None:
    recorder = NoiseRecorder(root=tmp_path)
    recorder.start([1])
    assert recorder.stop().keys() == {"elapsed_s"}
    fill(tmp_path, dict.fromkeys(BEFORE, "garbage\n\xff total= x\n\ncpu a b c d e f g h\nctxt x\npswpin -\n"))
    recorder.start([1])
    assert recorder.stop().keys() == {"elapsed_s"}


def test_names_that_blocks_are_flagged_by_are_known(tmp_path: Path) -> None:
    fill(
        tmp_path,
        BEFORE | {f"proc/pressure/{name}": "some total=1\nfull total=1\n" for name in ("io", "memory")},
    )
    fill(tmp_path, {"proc/7/task/7/schedstat": "1000 2000 3\n"})
    fill(tmp_path, {"proc/stat": BEFORE["proc/stat"] + "cpu0 1 1 1 1 0 0 0 0\n"})
    recorder = NoiseRecorder(root=tmp_path)
    recorder.start([7], {0})
    found = recorder.stop()
    assert "foreign_s" in found  # of which the analysis makes the share `foreign_cpu`
    assert THRESHOLDS.keys() - {"foreign_cpu"} <= found.keys()
