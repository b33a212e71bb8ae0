"""The host made quiet, on a tree of files as the kernel has them, and put back however the run ends."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from guestmark.core.errors import UsageError
from guestmark.engine import quiet_host

CPU = "sys/devices/system/cpu"
NOISY = {
    f"{CPU}/smt/control": "on",
    f"{CPU}/cpu0/cpufreq/scaling_governor": "schedutil",
    f"{CPU}/cpu1/cpufreq/scaling_governor": "schedutil",
    f"{CPU}/cpufreq/boost": "1",
    f"{CPU}/cpu0/cpuidle/state3/latency": "200",
    f"{CPU}/cpu0/cpuidle/state3/disable": "0",
    f"{CPU}/cpu0/cpuidle/state1/latency": "2",
    f"{CPU}/cpu0/cpuidle/state1/disable": "0",
    "proc/irq/7/smp_affinity_list": "0-99",
    "proc/sys/kernel/numa_balancing": "1",
    "sys/kernel/mm/ksm/run": "1",
}
LEFT = {
    f"{CPU}/cpu0/cpuidle/state3/latency",
    f"{CPU}/cpu0/cpuidle/state1/latency",
    f"{CPU}/cpu0/cpuidle/state1/disable",
}


@pytest.fixture
def host(tmp_path: Path) -> Path:
    for name, text in NOISY.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    (tmp_path / "run").mkdir()
    return tmp_path


def now(host: Path) -> dict[str, str]:
    return {name: (host / name).read_text().strip() for name in NOISY}


def restored(host: Path) -> bool:
    """Waits for the keeper."""
    for _ in range(200):
        if now(host) == NOISY and not list((host / "run").iterdir()):
            return True
        time.sleep(0.05)
    return False


def test_everything_noisy_is_changed_and_put_back(host: Path) -> None:
    outcome = quiet_host.quieten_host(host)
    assert not outcome.refused
    assert {name for name, text in now(host).items() if text != NOISY[name]} == set(NOISY) - LEFT
    assert not list(quiet_host.find_noisy_settings(host))
    assert quiet_host.attest_settings(host)["governor"] == "performance"
    with pytest.raises(UsageError, match="quiet already"):
        quiet_host.quieten_host(host)
    quiet_host.restore_host(host)
    assert restored(host)
    assert not quiet_host.attest_settings(host)


def test_what_another_program_sets_again_is_not_attested(host: Path) -> None:
    with quiet_host.quiet_host(host):
        (host / f"{CPU}/cpu1/cpufreq/scaling_governor").write_text("powersave\n")
        assert "but now it is powersave" in quiet_host.attest_settings(host)["governor"]
        assert [change.to for change in quiet_host.find_undone_changes(host)] == ["performance"]
    assert restored(host)


def test_a_host_that_forbids_it_is_told_in_one_line(tmp_path: Path) -> None:
    """The kernel itself refuses the write, for root too."""
    (tmp_path / "run").mkdir()
    governor = tmp_path / f"{CPU}/cpu0/cpufreq/scaling_governor"
    governor.parent.mkdir(parents=True)
    governor.symlink_to("/proc/version")
    with (
        pytest.raises(UsageError, match=r"^this host forbids changing its settings: governor$"),
        quiet_host.quiet_host(tmp_path),
    ):
        pytest.fail("it is not quiet")
    assert not list((tmp_path / "run").iterdir())


SCRIPT = """
import os, sys, time
from pathlib import Path
from guestmark.engine import quiet_host
os.seteuid(int(sys.argv[2]))
try:
    with quiet_host.quiet_host(Path(sys.argv[1])):
        print("quiet", flush=True)
        time.sleep(60)
except quiet_host.UsageError as error:
    print(error.message)
"""


def child(host: Path, user: int = 0) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(host), str(user)], stdout=subprocess.PIPE, text=True
    )


def test_a_killed_run_leaves_the_host_as_it_was(host: Path) -> None:
    with child(host) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == "quiet\n"
        assert now(host) != NOISY
        run.kill()
    assert restored(host)


def test_a_run_puts_back_what_its_killed_keeper_cannot(host: Path) -> None:
    with quiet_host.quiet_host(host):
        children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
        (keeper,) = [
            pid for pid in children if str(host).encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
        ]
        os.kill(int(keeper), signal.SIGKILL)
    assert restored(host)


def test_other_users_are_told_to_be_root(host: Path) -> None:
    for folder in (host, *(above for above in host.parents if above.name.startswith(("popen-", "pytest-")))):
        folder.chmod(0o755)
    with child(host, 65534) as run:
        assert run.stdout is not None
        assert run.stdout.read() == "changing the host's settings needs root\n"
    assert now(host) == NOISY
