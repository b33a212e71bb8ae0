"""Root in a guest tries to change the host, by every way that its share and its devices offer."""

import os
from pathlib import Path

import pytest

from guestmark.agent.keeper import keeper
from guestmark.platforms.base import Machine
from guestmark.platforms.guest import Guest
from guestmark.platforms.process import SupervisedProcess
from tests.framework.command_line import CommandLine
from tests.framework.guests import start
from tests.framework.known import a

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
exit 0
"""


def attempts(guest: Machine, folder: Path) -> tuple[str, bool]:
    """What root in the guest could do to the host, and whether it saw the host's file at all."""
    victim = folder / "victim"
    victim.write_text("untouched")
    victim.chmod(0o640)
    before = victim.stat()
    done = guest.agent.exec(
        ["sh", "-c", ATTEMPTS],
        env={
            **os.environ,
            "VICTIM": str(victim),
            "FOLDER": str(folder),
            "HYPERVISOR": str(a(Guest, guest).vmm_pid),
        },
        timeout_s=60,
    )
    assert done.status == 0, done
    assert victim.read_text() == "untouched"
    after = victim.stat()
    assert (after.st_mode, after.st_uid, after.st_mtime_ns) == (
        before.st_mode,
        before.st_uid,
        before.st_mtime_ns,
    )
    assert [entry.name for entry in folder.iterdir()] == ["victim"]
    return done.stdout.decode(), b"sees the file" in done.stderr


@pytest.mark.parametrize("platform", ["uml", "tcg"])
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


@pytest.mark.parametrize("platform", ["uml", "tcg"])
def test_a_hypervisor_has_no_descriptors_but_its_own(platform: str) -> None:
    with start(platform) as machine:
        guest = a(Guest, machine)
        ours = os.stat(keeper().lifeline)
        for link in Path(f"/proc/{guest.vmm_pid}/fd").iterdir():
            found = link.stat()
            assert (found.st_dev, found.st_ino) != (ours.st_dev, ours.st_ino), link.readlink()
            target = str(link.readlink())
            if target.startswith("/") and not target.startswith(("/dev/", "/proc/")):
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


def test_qemu_gives_up_what_it_does_not_need() -> None:
    with start("tcg") as guest:
        found = guest.attest().confined
        if "-sandbox" not in guest.command_line:
            pytest.skip("this QEMU was built without seccomp")
        assert found is not None
        assert found.seccomp


def test_it_is_recorded_with_the_trial(guestmark: CommandLine) -> None:
    done = guestmark.measure("--on", "host,uml", "--blocks", "1", "--", "true")
    assert done.status == 0, done.stderr
    (cell,) = [cell for cell in done.document()["cells"] if cell["id"] == "uml"]
    assert '"confined"' in str(cell).replace("'", '"')
