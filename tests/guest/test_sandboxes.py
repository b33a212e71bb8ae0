"""Sandboxes on this host: what they are, that they keep the contract, and that nothing of them is left."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from guestmark.core.errors import GuestmarkError, PlatformUnusableError
from guestmark.core.machine_facts import Sandboxed, read_mounts
from guestmark.core.platform_kind import index_platform_kinds
from guestmark.core.platform_spec import parse_platform
from guestmark.disks.processes import list_descendants
from guestmark.platforms import registry
from guestmark.platforms.sandbox import runtimes
from guestmark.platforms.sandbox.runtimes import RUNTIMES
from guestmark.testing import check_platform
from tests.framework.command_line import CommandLine
from tests.framework.guests import start
from tests.framework.marks import long, long_but

HERE = [name for name in RUNTIMES if index_platform_kinds()[name].programs[0].path]
every = pytest.mark.parametrize("name", HERE)
_NOBODY = 65534
MARK = "/guestmark-sandbox-was-here"


def attested(name: str, **factors: str) -> Sandboxed:
    with start(name, **factors) as machine:
        found = machine.attest()
        assert isinstance(found, Sandboxed)
        return found


def test_bubblewrap_and_crun_are_tried_by_these_tests() -> None:
    assert {"bwrap", "crun"} <= set(HERE), "install the packages bubblewrap and crun"


@pytest.mark.parametrize(
    "name",
    long_but({"bwrap", "gvisor"}, HERE),
)
def test_it_keeps_the_contract(name: str) -> None:
    assert check_platform(name) == []


@every
def test_what_is_written_stays_in_the_sandbox(name: str) -> None:
    with start(name) as machine:
        written = machine.agent.exec(["sh", "-c", f"echo x >{MARK} && cat {MARK}"], timeout_s=30)
        assert written.stdout == b"x\n", written.stderr
    assert not os.path.exists(MARK)


@every
def test_settings_of_this_hosts_kernel_cannot_be_written(name: str) -> None:
    if RUNTIMES[name].own_kernel:
        pytest.skip("its settings are its own")
    with start(name) as machine:
        script = "cat /proc/sys/vm/swappiness >/proc/sys/vm/swappiness"
        assert not machine.agent.exec(["sh", "-c", script], timeout_s=30).ok


@every
def test_it_is_attested(name: str) -> None:
    found = attested(name, memory="256M")
    assert {"mnt", "net", "ipc", "uts"} <= set(found.namespaces)
    assert found.own_kernel or "pid" in found.namespaces
    assert found.processors == len(os.sched_getaffinity(0))
    assert found.runtime == index_platform_kinds()[name].programs[0].name
    assert found.version[0].isdigit()
    if os.geteuid() == 0:
        assert found.memory_bytes == 256 << 20
    if name == "gvisor":
        assert found.own_kernel
        assert found.kernel != os.uname().release
        assert found.mechanism in {"ptrace", "systrap", "kvm"}
    else:
        assert (found.kernel, found.root) == (os.uname().release, "overlay")
        assert os.uname().release in found.proc_version


def test_podmans_filter_is_seen_and_cruns_lack_of_one() -> None:
    seen = {name: attested(name).seccomp for name in {"crun", "podman"} & set(HERE)}
    assert seen == {name: {"crun": "off", "podman": "filter"}[name] for name in seen}


def test_no_runtime_leaves_a_directory_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    runtimes._read_version.cache_clear()
    for name in HERE:
        attested(name)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif("podman" not in HERE, reason="needs podman")
def test_podmans_locks_are_not_those_of_the_users_containers() -> None:
    host = os.stat("/dev/shm").st_dev
    with start("podman") as machine:
        processes = list_descendants(os.getpid())
        locks = [
            line
            for pid in processes
            for line in Path(f"/proc/{pid}/maps").read_text().splitlines()
            if line.endswith("libpod_lock")
        ]
        assert machine.agent.hello().pid == 1
    assert locks
    ours = f"{os.major(host):02x}:{os.minor(host):02x}"
    assert all(line.split()[3] != ours for line in locks), locks


@pytest.mark.skipif("gvisor" not in HERE, reason="needs runsc")
def test_gvisor_starts_where_temporary_files_are_for_one_user_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o700)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    attested("gvisor")


@every
def test_two_of_a_kind_run_at_the_same_time(name: str) -> None:
    with start(name) as one, start(name) as other:
        assert one.agent.read_facts().cpus_online == other.agent.read_facts().cpus_online


@pytest.fixture
def home_of_nobody() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="guestmark-test-", dir="/var/tmp") as name:
        os.chown(name, _NOBODY, _NOBODY)
        yield Path(name)


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
@pytest.mark.parametrize("name", [name for name in HERE if RUNTIMES[name].for_users])
def test_another_user_has_it_and_leaves_nothing(name: str, home_of_nobody: Path) -> None:
    program = f"""
        from tests.framework.guests import start
        with start({name!r}) as machine:
            found = machine.attest()
            done = machine.agent.exec(["sh", "-c", "echo x >/etc/{MARK[1:]} && id -u"], timeout_s=30)
            print(found.users, found.root, done.stdout.decode(), machine.remarks()[0])
    """
    become = ["setpriv", f"--reuid={_NOBODY}", f"--regid={_NOBODY}", "--clear-groups"]
    done = subprocess.run(
        [*become, sys.executable, "-c", textwrap.dedent(program)],
        env={"PATH": os.environ["PATH"], "HOME": str(home_of_nobody), "TMPDIR": str(home_of_nobody)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    said = done.stdout.split()
    assert said[:5] == ["0", str(_NOBODY), "1", "tmpfs", "0"], done.stderr
    assert "no memory limit was set" in done.stdout
    assert not os.path.exists(f"/etc/{MARK[1:]}")
    assert [path.name for path in home_of_nobody.iterdir() if path.name != ".cache"] == []


def test_gvisor_says_why_its_kernel_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if "gvisor" not in HERE:
        pytest.skip("needs runsc")
    real = shutil.which("runsc")
    (tmp_path / "runsc").write_text(f'#!/bin/sh\nTMPDIR=/nowhere exec {real} "$@"\n')
    (tmp_path / "runsc").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with (
        pytest.raises(GuestmarkError, match=r"gvisor did not start: error setting up chroot.*/nowhere"),
        start("gvisor"),
    ):
        pass


def test_its_memory_is_limited_as_was_asked() -> None:
    with start("bwrap", memory="64M") as machine:
        filled = machine.agent.exec(
            ["dd", "if=/dev/zero", "of=/too-much", "bs=1M", "count=200"], timeout_s=60
        )
        assert filled.status != 0 or filled.signal


def test_a_runtime_that_is_missing_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(PlatformUnusableError, match=r"crun is not installed") as caught, start("crun"):
        pass
    assert "crun" in caught.value.hint


def test_a_runtime_that_fails_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "bwrap"
    broken.write_text(
        "#!/bin/sh\n[ $1 = --version ] && exec echo bubblewrap 9.9\necho no user namespaces >&2\nexit 1\n"
    )
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(GuestmarkError, match=r"bwrap did not start: no user namespaces"), start("bwrap"):
        pass


def test_one_whose_root_is_the_hosts_own_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    liar = tmp_path / "bwrap"
    liar.write_text(
        "#!/bin/sh\n[ $1 = --version ] && exec echo bubblewrap 9.9\n"
        'while [ "$1" != / ]; do shift; done\nwhile [ "${1%agent}" = "$1" ]; do shift; done\nexec "$@"\n'
    )
    liar.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    found = registry.get_platform(parse_platform("bwrap")).probe()
    assert getattr(found, "reason", "") == "the sandbox shares namespaces with the host: mnt, pid"


@every
def test_nothing_is_left_of_one_whose_guestmark_is_killed(name: str) -> None:
    program = f"""
        import time
        from tests.framework.guests import start
        with start({name!r}) as machine:
            machine.agent.background(["sleep", "1000"])
            print(machine.pid, *machine.within.groups, machine.within.console, flush=True)
            time.sleep(1000)
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    with process.stdout as said:
        words = said.readline().split()
        process.send_signal(signal.SIGKILL)
        process.wait()
        said.read()  # until all who have it are gone
    assert len(words) >= 2
    for _ in range(100):
        left = [word for word in words[1:] if os.path.exists(word)] + [
            mount.where for mount in read_mounts() if words[-1].removesuffix("/console") in mount.where
        ]
        if not left and not os.path.exists(f"/proc/{words[0]}"):
            return
        subprocess.run(["sleep", "0.1"], check=True)
    pytest.fail(f"left: {left}")


@pytest.mark.parametrize(
    "command", ["dd if=/dev/zero of=written bs=64k count=4 conv=fdatasync", long("true")]
)
def test_rows_are_told_that_write_to_a_layer_where_the_host_writes_to_a_disk(
    guestmark: CommandLine, command: str
) -> None:
    directory = Path(tempfile.mkdtemp(dir="/var/tmp"))
    try:
        done = guestmark(
            "exec", "--on", ",".join(("host", *HERE)), "--blocks", "2", "--null", "none", "--json", "-", "--",
            *command.split(), cwd=directory, timeout=120,
        )  # fmt: skip
        found = {each["name"]: each for each in done.document()["validity"]}
    finally:
        shutil.rmtree(directory)
    assert ("different ground" in found) is (command != "true"), found
    if command != "true":
        assert (
            f"host to a disk; {', '.join(HERE)} to an overlay in memory"
            in found["different ground"]["reason"]
        )
