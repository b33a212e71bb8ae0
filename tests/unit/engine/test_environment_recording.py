"""What is recorded of the host: the real one, and one made of files."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from guestmark.core.errors import PlatformUnusableError
from guestmark.core.platform_kind import Program
from guestmark.core.registry import programs
from guestmark.engine.environment import record_environment, record_run_environment
from guestmark.foreign.packages import find_owner
from guestmark.platforms.qemu.virtiofs import find_daemon
from tests.framework.cells import cell_of, plan_of
from tests.framework.known import known


def test_the_real_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GUESTMARK_TEST_PASSWORD", "hunter2-in-the-environment")
    found = record_environment(["guestmark", "exec", "--", "true"])
    text = json.dumps(found, allow_nan=False)
    assert "hunter2" not in text
    assert "GUESTMARK_TEST_PASSWORD" not in text
    assert found["command_line"] == ["guestmark", "exec", "--", "true"]
    assert found["kernel"]["release"] == os.uname().release
    assert found["processor"]["count"] == os.cpu_count()
    total = next(
        line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal")
    )
    assert found["memory_bytes"] == int(total.split()[1]) * 1024
    assert len(found["load"]) == 3
    assert found["recorded_at"].endswith("Z")
    assert found["guestmark"]["version"]
    assert found["libraries"]["numpy"]
    assert found["python"]["version"].startswith(f"{sys.version_info.major}.")


def test_the_checkout_is_named() -> None:
    checkout = Path(__file__).parents[3]
    if not (checkout / ".git").exists():
        pytest.skip("not a checkout")
    head = subprocess.run(
        ["git", "-C", checkout, "rev-parse", "HEAD"], capture_output=True, text=True, check=True, timeout=30
    ).stdout.strip()
    assert record_environment([], programs=())["guestmark"]["commit"] == head


@pytest.mark.parametrize(
    ("platform", "factors", "asked", "others"),
    [
        ("host", {}, set(), {"bwrap", "podman", "virsh", "qemu-img", "linux.uml"}),
        ("tcg", {}, {"qemu-system-x86_64", "qemu-img"}, {"bwrap", "podman", "virsh", "linux.uml"}),
        ("tcg/uml", {}, {"qemu-system-x86_64", "linux.uml"}, {"bwrap", "podman", "virsh"}),
        ("bwrap", {}, {"bwrap"}, {"podman", "virsh", "qemu-img", "linux.uml"}),
        # What makes the disk is listed with another platform.
        ("host", {"filesystem": "ext4"}, {"qemu-img"}, set()),
    ],
)
def test_only_programs_that_a_plan_runs_are_asked(
    platform: str, factors: dict[str, str], asked: set[str], others: set[str]
) -> None:
    """To start ten programs that nothing uses took longer than a short run."""
    found = record_run_environment(plan_of(cell_of(platform, "exec", factors, command=["true"])))
    answered = set(found.get("programs", {}))
    assert {name for name in asked if shutil.which(name)} <= answered
    assert not answered & others


def script(folder: Path, name: str, body: str) -> str:
    file = folder / name
    file.write_text(f"#!/bin/sh\n{body}\n")
    file.chmod(0o755)
    return name


def test_a_program_that_is_not_in_the_path_is_found_where_it_is_kept(tmp_path: Path) -> None:
    script(tmp_path, "gm-daemon", "echo daemon 7")
    kept = Program("gm-daemon", "", (str(tmp_path / "absent"), str(tmp_path / "gm-daemon")))
    assert record_environment([], programs=[kept])["programs"] == {"gm-daemon": "daemon 7"}


def test_programs_are_asked_for_their_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr("guestmark.engine.environment._VERSION_LIMIT_S", 0.5)
    programs = [
        script(tmp_path, "gm-good", 'echo "good 1.2"; echo more'),
        script(tmp_path, "gm-grumbling", 'echo "no directory: $XDG_RUNTIME_DIR" >&2; echo grumbling 4'),
        script(tmp_path, "gm-failing", "echo bad 3 >&2; exit 1"),
        script(tmp_path, "gm-silent", ":"),
        script(tmp_path, "gm-hanging", "exec sleep 60"),
        "gm-not-there",
    ]
    found = record_environment([], programs=[Program(name, "") for name in programs])
    assert found["programs"] == {
        "gm-good": "good 1.2",
        "gm-grumbling": "grumbling 4",
        "gm-failing": "bad 3",
        "gm-silent": "says nothing",
        "gm-hanging": "does not answer --version",
    }


def test_the_agent_is_identified(tmp_path: Path) -> None:
    agent = tmp_path / "agent"
    agent.write_bytes(b"abc")
    digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert record_environment([], programs=(), agent=agent)["guestmark"]["agent_sha256"] == digest
    assert "agent_sha256" not in record_environment([], programs=(), agent=tmp_path / "x")["guestmark"]


def fill(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


def test_a_host_made_of_files(tmp_path: Path) -> None:
    policy = "sys/devices/system/cpu/cpufreq/policy{}/scaling_{}"
    fill(
        tmp_path,
        {
            "proc/cpuinfo": "processor : 0\nvendor_id : GenuineIntel\nmodel name : Core i5\ncpu family : 6\n"
            "model : 37\nstepping : 2\nmicrocode : 0x9\nflags : fpu hypervisor sse\n\n"
            "processor : 1\nmodel name : other\n",
            "proc/meminfo": "MemTotal: 4096 kB\nMemAvailable: 1024 kB\nSwapTotal: 0 kB\nHugePages_Total: 0\n",
            "proc/loadavg": "0.50 0.25 0.10 1/100 42\n",
            "proc/cmdline": "root=/dev/vda1 mitigations=off\n",
            "etc/os-release": 'NAME="Debian"\nPRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\n',
            "sys/class/dmi/id/sys_vendor": "QEMU\n",
            policy.format(0, "governor"): "performance\n",
            policy.format(1, "governor"): "powersave\n",
            policy.format(0, "driver"): "acpi-cpufreq\n",
            "sys/devices/system/cpu/intel_pstate/no_turbo": "1\n",
            "sys/devices/system/cpu/vulnerabilities/meltdown": "Mitigation: PTI\n",
            "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
            "var/lib/dpkg/status": DPKG,
        },
    )
    found = record_environment([], programs=(), root=tmp_path)
    assert found["processor"]["model"] == "Core i5"
    assert found["processor"]["family_model_stepping"] == "6/37/2"
    assert found["frequency"] == {
        "governor": ["performance", "powersave"],
        "driver": "acpi-cpufreq",
        "boost": False,
    }
    assert (found["memory_bytes"], found["swap_bytes"]) == (4 * 2**20, 0)
    assert "swap_free_bytes" not in found
    assert found["distribution"] == "Debian GNU/Linux 12 (bookworm)"
    assert found["virtualization"] == {"hypervisor": True, "vendor": "QEMU"}
    assert found["load"] == [0.5, 0.25, 0.1]
    assert found["mitigations"] == {"meltdown": "Mitigation: PTI"}
    assert found["transparent_hugepages"] == "madvise"
    assert found["packages"] == {"libc6": "2.36-9", "qemu-utils": "1:7.2"}
    measured = record_environment([], programs=(), measured=["hello", "seabios"], root=tmp_path)["packages"]
    assert measured == {"libc6": "2.36-9", "qemu-utils": "1:7.2", "hello": "2.10"}
    assert found["kernel"]["command_line"] == "root=/dev/vda1 mitigations=off"


DPKG = """Package: libc6
Status: install ok installed
Priority: optional
Conffiles:
 /etc/ld.so.conf.d/x86_64-linux-gnu.conf d4e7a7b88a71b5ffd9e2644e71a0cfab
Description: first line
 more of it
Version: 2.36-9

Package: seabios
Status: deinstall ok config-files
Version: 1.16

Package: hello
Status: install ok installed
Version: 2.10

Package: qemu-utils
Status: hold ok installed
Architecture: amd64
Version: 1:7.2
"""


def test_the_package_of_the_measured_program_is_recorded(tmp_path: Path) -> None:
    fill(tmp_path, {"hello:amd64.list": "/.\n/usr\n/usr/bin/hello\n", "old.list": "/.\n/bin/old\n"})
    assert find_owner("/usr/bin/hello", tmp_path) == "hello"
    assert find_owner("/usr/bin/old", tmp_path) == "old"
    assert find_owner("/usr/bin/hell", tmp_path) is None
    assert find_owner("/root/bin/old", tmp_path) is None
    if owner := find_owner(known(shutil.which("true"))):
        plan = plan_of(cell_of("host", "exec", command=["true"]))
        assert record_run_environment(plan)["packages"][owner]


def test_a_host_that_tells_nothing(tmp_path: Path) -> None:
    found = record_environment([], programs=(), root=tmp_path)
    assert found["virtualization"] == {"hypervisor": False}
    assert (
        not {"memory_bytes", "swap_bytes", "load", "frequency", "distribution", "mitigations"} & found.keys()
    )
    json.dumps(found, allow_nan=False)


def test_disks_and_what_directories_are_on(tmp_path: Path) -> None:
    for name, size in (("sda", "1000"), ("loop0", "8"), ("sr0", "0")):
        queue = tmp_path / "sys/block" / name / "queue"
        queue.mkdir(parents=True)
        (queue.parent / "size").write_text(f"{size}\n")
        (queue / "rotational").write_text("1\n")
        (queue / "scheduler").write_text("none [mq-deadline] bfq\n")
    (tmp_path / "sys/block/sda/device").mkdir()
    (tmp_path / "sys/block/sda/device/model").write_text("QEMU HARDDISK   \n")
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/mounts").write_text(
        "/dev/sda / ext4 rw,noatime 0 0\ntmpfs /dev/shm tmpfs rw 0 0\n/dev/old /var xfs rw 0 0\n"
        "/dev/sdb /var xfs rw,sync 0 0\n"
    )
    found = record_environment([], programs=(), root=tmp_path)
    assert found["disks"] == [
        {
            "name": "sda",
            "bytes": 512_000,
            "model": "QEMU HARDDISK",
            "rotational": True,
            "scheduler": "mq-deadline",
        }
    ]
    assert found["filesystems"]["/"]["options"] == "rw,noatime"
    assert found["filesystems"]["/tmp"]["mounted_at"] == "/"
    assert found["filesystems"]["/dev/shm"]["type"] == "tmpfs"
    assert found["filesystems"]["/var/tmp"]["device"] == "/dev/sdb"


def test_the_daemon_that_would_serve_is_the_one_whose_version_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In PATH or not: it used to be called missing where it serves."""
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    for number in range(2):
        try:
            serves, _ = find_daemon()
        except PlatformUnusableError:
            serves = ""
        recorded = record_environment(programs=programs())["programs"]
        assert bool(serves) == ("virtiofsd" in recorded)
        if number:
            assert (serves, recorded["virtiofsd"]) == (str(tmp_path / "virtiofsd"), "virtiofsd 99.1")
        (tmp_path / "virtiofsd").write_text("#!/bin/sh\necho virtiofsd 99.1\n")
        (tmp_path / "virtiofsd").chmod(0o755)
