"""Root in a guest tries to change the host, by every way that its share and its devices offer."""

import contextlib
import os
import signal
import socket
import time
from pathlib import Path

import pytest

from guestmark.agent.client import ExecResult
from guestmark.core.errors import AgentError, MachineError, PlatformUnusableError
from guestmark.core.keeper import keeper
from guestmark.platforms import confinement, registry
from guestmark.platforms.base import Machine
from guestmark.platforms.guest import Guest
from guestmark.platforms.process import SupervisedProcess
from guestmark.platforms.qemu.nested.platform import NestedPlatform
from tests.framework.cells import cell
from tests.framework.command_line import CommandLine
from tests.framework.guests import start
from tests.framework.kernels import without_9p
from tests.framework.known import a
from tests.framework.marks import long
from tests.framework.processes import called
from tests.storm.ways import family

# Each line that it prints is something that it could do.
ATTEMPTS = r"""
root=/run/escape; mkdir -p $root
case $(cat /proc/cmdline) in
    *root=hostfs:*) mount -t hostfs none $root -o / ;;
    *root=9p:*) mount -t 9p -o trans=virtio,version=9p2000.L guestmark-root $root ;;
    *root=virtiofs:*) mount -t virtiofs guestmark-root $root ;;
esac 2>/dev/null
mount -o remount,rw $root 2>/dev/null
[ -e $root$VICTIM ] && echo "sees the file" >&2
exec 2>/dev/null
for folder in "$FOLDER" /tmp /var/tmp /root /dev/shm /run /etc /usr/bin; do
    if [ -d $root$folder ]; then
        made=$root$folder/guestmark-escape  # removed at once: should it succeed, it is somebody's machine
        (echo x >$made) && echo "made a file in $folder" && rm -f $made
        mknod $made b 254 0 && echo "made a device in $folder" && rm -f $made
        mkdir $made && echo "made a directory in $folder" && rmdir $made
        ln -s x $made && echo "made a link in $folder" && rm -f $made
    fi
done
[ -e $root$VICTIM ] || exit 0
(echo x >>$root$VICTIM) && echo "appended"
(: >$root$VICTIM) && echo "truncated"
chmod 777 $root$VICTIM && echo "changed a mode"
chown 1:1 $root$VICTIM && echo "changed an owner"
touch -d 1999-01-01 $root$VICTIM && echo "changed a time"
mv $root$VICTIM $root$VICTIM.moved && echo "renamed"
ln $root$VICTIM $root$VICTIM.second && echo "linked"
rm -f $root$VICTIM && echo "removed"
swappiness=$(cat $root/proc/sys/vm/swappiness)
(echo $swappiness >$root/proc/sys/vm/swappiness) && echo "changed a setting of the kernel"
(echo x >$root/proc/$HYPERVISOR/mem) && echo "wrote to the hypervisor's memory"
# Only opened: what they do with a letter, the host would not survive.
for file in proc/sysrq-trigger proc/sys/kernel/core_pattern proc/1/mem proc/1/oom_score_adj dev/mem sys/power/state; do
    [ -e $root/$file ] && (exec 9>>$root/$file) && echo "opened $file"
done
timeout 2 sh -c "echo x >$root$FOLDER/pipe" && echo "wrote into a pipe of the host"
reach="import socket; socket.socket(socket.AF_UNIX).connect('$root$FOLDER/socket')"
python3 -c "$reach" && echo "reached a socket of the host"
exit 0
"""


def attempts(guest: Machine, folder: Path) -> tuple[str, bool]:
    """What root in the guest could do to the host, and whether it saw the host's file at all."""
    victim = folder / "victim"
    victim.write_text("untouched")
    victim.chmod(0o640)
    pipe = folder / "pipe"
    os.mkfifo(pipe)
    before = victim.stat()
    with socket.socket(socket.AF_UNIX) as listening:
        bind_in(folder, listening)
        listening.listen(1)
        reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        try:
            done = tried(guest, victim)
            assert os.read(reader, 1) == b""
        finally:
            os.close(reader)
    assert done.status == 0, done
    assert victim.read_text() == "untouched"
    after = victim.stat()
    assert (after.st_mode, after.st_uid, after.st_mtime_ns) == (
        before.st_mode,
        before.st_uid,
        before.st_mtime_ns,
    )
    assert {entry.name for entry in folder.iterdir()} == {"victim", "pipe", "socket"}
    return done.stdout.decode(), b"sees the file" in done.stderr


def bind_in(folder: Path, listening: socket.socket) -> None:
    """At `socket` there, whose name may be too long for a socket's."""
    descriptor = os.open(folder, os.O_PATH)
    try:
        listening.bind(f"/proc/self/fd/{descriptor}/socket")
    finally:
        os.close(descriptor)


def tried(guest: Machine, victim: Path) -> ExecResult:
    """All attempts, made by root in the guest."""
    hypervisor = guest.vmm_pid
    return guest.agent.exec(
        ["sh", "-c", ATTEMPTS],
        env={
            **os.environ,
            "VICTIM": str(victim),
            "FOLDER": str(victim.parent),
            "HYPERVISOR": str(hypervisor),
        },
        timeout_s=120,
    )


@pytest.mark.parametrize("platform", [long("uml"), "tcg"])
def test_root_in_a_guest_changes_nothing_of_the_host(platform: str, tmp_path: Path) -> None:
    with start(platform) as guest:
        found = guest.attest().confined
        assert found is not None
        assert found.protects_files
        assert found.no_new_privileges
        did, saw = attempts(guest, tmp_path)
        assert did == ""
        # A 9p channel serves one mount, which is taken; User-Mode Linux can mount the host as often as it likes.
        assert saw == (platform == "uml")


@pytest.mark.parametrize("platform", ["uml", long("tcg")])
def test_a_hypervisor_has_no_descriptors_but_its_own(platform: str) -> None:
    with start(platform) as machine:
        guest = a(Guest, machine)
        ours = os.stat(keeper().handles[0])
        for link in Path(f"/proc/{guest.vmm_pid}/fd").iterdir():
            found = link.stat()
            assert (found.st_dev, found.st_ino) != (ours.st_dev, ours.st_ino), link.readlink()
            target = str(link.readlink())
            if target.startswith("/") and not target.startswith(("/dev/", "/proc/", "/memfd:")):
                own = any(
                    target.startswith(str(path)) for path in a(SupervisedProcess, guest.process).writable
                )
                flags = (
                    Path(f"/proc/{guest.vmm_pid}/fdinfo/{link.name}")
                    .read_text()
                    .split("flags:")[1]
                    .split()[0]
                )
                assert own or int(flags, 8) & os.O_ACCMODE == os.O_RDONLY, target


@pytest.mark.long
@pytest.mark.parametrize("kernel", ["with 9p", "without 9p"])
def test_root_in_a_nested_guest_and_in_the_one_around_it_likewise(kernel: str, tmp_path: Path) -> None:
    """The inner guest's hypervisor is tried from the outer guest, whose own is this host's."""
    factors = {} if kernel == "with 9p" else {"kernel": str(without_9p(tmp_path))}
    nested = cell("tcg/kvm", **factors)
    for part in ("inner", "outer"):
        (tmp_path / part).mkdir()
    with a(NestedPlatform, registry.get_platform("tcg/kvm")).start_outer(nested, 120.0) as outer:
        assert attempts(outer, tmp_path / "outer")[0] == ""
    if factors:
        with (
            pytest.raises(PlatformUnusableError, match="over 9p"),
            registry.get_platform("tcg/kvm").start(nested),
        ):
            pass
    else:
        with registry.get_platform("tcg/kvm").start(nested) as inner:
            assert attempts(inner, tmp_path / "inner")[0] == ""


@pytest.mark.parametrize("platform", ["uml", long("tcg")])
def test_a_hypervisor_listens_nowhere_but_in_its_own_directory(platform: str) -> None:
    """QEMU's monitor is a descriptor that it was given; User-Mode Linux has a socket that only its user reaches."""
    with start(platform) as machine:
        guest = a(Guest, machine)
        sockets = {str(link.readlink()) for link in Path(f"/proc/{guest.vmm_pid}/fd").iterdir()}
        inodes = {name.removeprefix("socket:[").rstrip("]") for name in sockets if name.startswith("socket:")}
        for line in Path(f"/proc/{guest.vmm_pid}/net/unix").read_text().splitlines()[1:]:
            _, _, _, flags, _, _, inode, *path = line.split()
            if inode in inodes and (path or int(flags, 16) & 0x10000):
                scratch = a(SupervisedProcess, guest.process).scratch
                assert platform == "uml", line
                assert Path(path[0]).is_relative_to(scratch), line
                assert scratch.stat().st_mode & 0o077 == 0
        for table in ("tcp", "tcp6", "udp", "udp6"):
            lines = Path(f"/proc/{guest.vmm_pid}/net/{table}").read_text().splitlines()[1:]
            assert not inodes & {line.split()[9] for line in lines}


@pytest.mark.long
@pytest.mark.parametrize("platform", ["uml", "tcg"])
def test_root_in_a_guest_that_writes_to_the_agents_channel_costs_its_own_trial(platform: str) -> None:
    """It finds the channel among the descriptors of its first process; a port of virtio is open once only."""
    garbage = "for fd in /proc/1/fd/*; do timeout 2 head -c 200000 /dev/urandom >$fd; done"
    begin = time.monotonic()
    with contextlib.suppress(MachineError, AgentError), start(platform) as guest:
        guest.agent.exec(["sh", "-c", garbage], timeout_s=60)
        assert guest.agent.exec(["echo", "whole"], timeout_s=5).stdout == b"whole\n"
    assert time.monotonic() - begin < 90
    with start(platform) as guest:
        assert guest.agent.exec(["true"], timeout_s=60).ok


def test_qemu_gives_up_what_it_does_not_need() -> None:
    with start("tcg") as guest:
        found = guest.attest().confined
        if "-sandbox" not in guest.command_line:
            pytest.skip("this QEMU was built without seccomp")
        assert found is not None
        assert found.seccomp


@pytest.mark.long
def test_it_is_recorded_with_the_trial(guestmark: CommandLine) -> None:
    done = guestmark.measure("--on", "host,uml", "--blocks", "1", "--", "true")
    assert done.status == 0, done.stderr
    (cell,) = [cell for cell in done.document()["cells"] if cell["id"] == "uml"]
    assert '"confined"' in str(cell).replace("'", '"')


_EATER = ["python3", "-c", "eaten = []\nwhile True:\n    eaten.append(bytearray(b'x') * (1 << 20))"]
_FORKS = """
import os, time
for number in range(500):
    try:
        if os.fork() == 0:
            time.sleep(60)
    except OSError:
        break
print(number)
"""


needs_groups = pytest.mark.skipif(
    not confinement.can_make_groups(), reason="control groups cannot be had here"
)


@needs_groups
@pytest.mark.parametrize("platform", [long("uml"), "tcg"])
def test_a_guest_that_takes_too_much_memory_ends_and_the_error_says_so(
    platform: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(confinement, "compute_spare_memory", lambda *_: 400 << 20)
    with (
        pytest.raises(
            MachineError, match=r"^the guest ended .*used more memory than this host could spare \(400M\)$"
        ),
        start(platform, memory="1G") as machine,
    ):
        machine.agent.exec(_EATER, timeout_s=60)


@needs_groups
def test_a_hypervisor_that_takes_too_much_memory_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confinement, "compute_spare_memory", lambda *_: 100 << 20)
    process = SupervisedProcess("tcg")
    try:
        process.start(_EATER)
        assert process.wait(30) == 128 + signal.SIGKILL
        assert "used more memory than this host could spare (100M)" in confinement.explain_exhaustion(
            process.groups
        )
    finally:
        process.stop()


@pytest.mark.long
@pytest.mark.parametrize("platform", ["uml", "tcg"])
def test_a_hypervisor_is_ended_first_when_memory_runs_out(platform: str) -> None:
    with start(platform) as machine:
        of_machine = family(os.getpid())
        hypervisors = [
            pid for pid in of_machine if "linux.uml" in called(pid) or "qemu-system" in called(pid)
        ]
        found = {
            Path(f"/proc/{pid}/oom_score_adj").read_text()
            for pid in hypervisors
            if "supervise" not in called(pid)
        }
        assert found == {"1000\n"}
        assert machine.agent.exec(["cat", "/proc/self/oom_score_adj"], timeout_s=60).stdout == b"0\n"


@needs_groups
def test_a_guest_gets_no_more_processes_than_its_machine_may_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confinement, "MOST_PROCESSES", 60)
    with start("uml") as machine:
        made = machine.agent.exec(["python3", "-c", _FORKS], timeout_s=60)
        assert int(made.stdout.split()[0]) < 60
        assert machine.agent.exec(["echo", "still there"], timeout_s=60).stdout == b"still there\n"
