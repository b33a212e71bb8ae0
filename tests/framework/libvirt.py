"""A private libvirt for tests, and a small machine for it that boots from a disk and answers ssh."""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import shlex
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from guestmark.appliance.initramfs import CpioArchive
from guestmark.appliance.kernel import find_kernel
from guestmark.appliance.modules import ModuleTree
from tests.framework.processes import wait_until
from tests.framework.sshd import key

_USER = "nobody"  # libvirt's sessions are for users that are not root
_MODULES = ("virtio_pci", "virtio_blk", "virtio_net", "ext4", "crc32c_generic")
_PROGRAMS = (
    "sh", "insmod", "mount", "ip", "switch_root", "sshd", "head", "mkdir", "wc", "uname", "cat", "rm", "env", "cut",
    "grep", "chmod", "sleep", "true", "sync", "dd", "id",
)  # fmt: skip
# For guests inside the machine: KVM, User-Mode Linux and QEMU, with the modules and firmware that QEMU loads.
_KVM = ("kvm_amd",)
_HYPERVISORS = ("qemu-system-x86_64", "linux.uml", "mkfifo")
_QEMU_MODULES = "/usr/lib/*/qemu/accel-tcg-x86_64.so"
_FOREIGN = shutil.ignore_patterns(
    "*.img", "*.lid", "openbios*", "slof*", "opensbi*", "palcode*", "trace*", "OVMF*"
)
_QEMU_DATA = ("/usr/share/qemu", "/usr/share/seabios")
_INIT = """#!/bin/sh
mount -t devtmpfs none /dev
for module in /modules/*; do insmod $module; done
mount -t ext4 /dev/vda /root
mount -t proc none /proc
exec switch_root /root /sbin/init
"""
_SYSTEM = """#!/bin/sh
mount -t sysfs none /sys
mkdir -p /dev/shm /dev/pts
mount -t tmpfs none /dev/shm
mount -t devpts none /dev/pts
mount -t tmpfs -o mode=755 none /run
mkdir /run/sshd /run/lock
chmod 1777 /run/lock
ip link set lo up
for card in eth0 eth1; do ip link set $card up; done
ip addr add 10.0.2.15/24 dev eth1
exec /sbin/sshd -D -e -f /etc/sshd_config
"""
_DOMAIN = """<domain type='qemu' xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'>
  <name>{name}</name>
  <memory unit='MiB'>{memory}</memory>
  <vcpu>1</vcpu>
  <os>
    <type arch='x86_64' machine='pc'>hvm</type>
    <kernel>{directory}/kernel</kernel>
    <initrd>{directory}/initrd</initrd>
    <cmdline>console=ttyS0 quiet net.ifnames=0 panic=-1</cmdline>
  </os>
  <features><acpi/></features>
  <cpu mode='maximum'/>
  <on_crash>destroy</on_crash>
  <devices>
    <emulator>{emulator}</emulator>
    <disk type='file' device='disk'>
      <driver name='qemu' type='qcow2'/>
      <source file='{directory}/{name}.qcow2'/>
      <target dev='vda' bus='virtio'/>
    </disk>
    <interface type='user'><model type='virtio'/></interface>
    <controller type='usb' model='none'/>
    <serial type='file'><source path='{directory}/{name}.log'/></serial>
    <memballoon model='none'/>
  </devices>
  <qemu:commandline>
    <qemu:arg value='-netdev'/>
    <qemu:arg value='user,id=way,restrict=on,hostfwd=tcp:127.0.0.1:{port}-:22'/>
    <qemu:arg value='-device'/>
    <qemu:arg value='virtio-net-pci,netdev=way,addr=0x1e'/>
  </qemu:commandline>
</domain>
"""


@dataclass(slots=True)
class Libvirt:
    """A running private libvirtd, whose domains can be reached by name through `ssh`."""

    directory: Path
    process: subprocess.Popen[bytes]
    ports: dict[str, int] = field(default_factory=dict)
    memory: int = 256

    @property
    def virsh(self) -> str:
        """The command to set as GUESTMARK_VIRSH."""
        socket_path = self.directory / "run/libvirt/libvirt-sock"
        return shlex.join(["virsh", "-c", f"qemu+unix:///session?socket={socket_path}"])

    @property
    def ssh(self) -> str:
        """The command to set as GUESTMARK_SSH."""
        return shlex.join(["ssh", "-F", str(self.directory / "ssh_config")])

    def call(self, *words: str) -> str:
        """Run virsh, and return its output."""
        done = subprocess.run(
            [*shlex.split(self.virsh), "-q", *words], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def define(self, name: str) -> None:
        """Define a domain with its own disk, which is shut off."""
        with socket.socket() as listening:
            listening.bind(("127.0.0.1", 0))
            self.ports[name] = port = int(listening.getsockname()[1])
        disk = self.directory / f"{name}.qcow2"
        subprocess.run(
            ["qemu-img", "convert", "-q", "-O", "qcow2", str(self.directory / "root"), str(disk)], check=True
        )
        _give(disk)
        emulator = shutil.which("qemu-system-x86_64")
        definition = self.directory / f"{name}.xml"
        definition.write_text(
            _DOMAIN.format(
                name=name, directory=self.directory, emulator=emulator, port=port, memory=self.memory
            )
        )
        self.call("define", str(definition))
        with (self.directory / "ssh_config").open("a") as config:
            config.write(f"Host {name}\n HostName 127.0.0.1\n Port {port}\n HostKeyAlias machine\n")

    def state(self, name: str) -> str:
        """Return the state of a domain in libvirt's words."""
        return self.call("domstate", name)

    def log(self) -> str:
        """Return the server's log."""
        return (self.directory / "log").read_text(errors="replace")


@contextlib.contextmanager
def libvirt(*, with_guests: bool = False) -> Iterator[Libvirt]:
    """Yield a server with all files that a machine boots: kernel, initramfs and a disk with a root.

    With `with_guests` the machine has hypervisors, KVM, and memory for a guest inside it.
    """
    for program, package in (
        ("libvirtd", "libvirt-daemon"),
        ("virsh", "libvirt-clients"),
        ("qemu-system-x86_64", "qemu-system-x86"),
        ("mke2fs", "e2fsprogs"),
        ("sshd", "openssh-server"),
        *((("linux.uml", "user-mode-linux"),) if with_guests else ()),
    ):
        if _which(program) is None:
            pytest.skip(f"install the package {package}")
    with tempfile.TemporaryDirectory(prefix="guestmark-libvirt-") as made:
        directory = Path(made)
        directory.chmod(0o755)
        for name in ("run", "config", "cache"):
            (directory / name).mkdir(mode=0o700)
            _give(directory / name)
        _made_bootable(directory, with_guests=with_guests)
        environment = {
            **os.environ,
            "HOME": made,
            **{f"XDG_{name}": str(directory / where) for name, where in
               (("RUNTIME_DIR", "run"), ("CONFIG_HOME", "config"), ("CACHE_HOME", "cache"))},
        }  # fmt: skip
        with (directory / "log").open("wb") as log:
            process = subprocess.Popen(
                [*_as_user(), str(_which("libvirtd"))],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, cwd="/",
            )  # fmt: skip
        server = Libvirt(directory, process, memory=768 if with_guests else 256)
        try:
            assert wait_until((directory / "run/libvirt/libvirt-sock").exists, 20), server.log()
            yield server
        finally:
            with contextlib.suppress(AssertionError):
                for name in server.call("list", "--name").split():
                    server.call("destroy", name)
            process.terminate()
            process.wait()


def _made_bootable(directory: Path, *, with_guests: bool) -> None:
    kernel = find_kernel()
    shutil.copy(kernel.image, directory / "kernel")
    assert kernel.modules is not None
    tree = ModuleTree.read(kernel.modules)
    initrd = CpioArchive()
    for path in ("dev", "proc", "sys", "root", "modules"):
        initrd.add_directory(path)
    initrd.add_character_device("dev/console", 5, 1)
    initrd.add_character_device("dev/null", 1, 3)
    wanted = (*_MODULES, *(_KVM if with_guests else ()))
    for index, (name, content) in enumerate(
        tree.read_with_dependencies(tuple(name for name in wanted if tree.has_module(name)))
    ):
        initrd.add_file(f"modules/{index:02}-{name}.ko", content)
    initrd.add_file("init", _INIT.encode(), 0o755)
    made = {"dev", "proc", "sys", "root", "modules"}
    for there, here in _files(("sh", "insmod", "mount", "switch_root")).items():
        _add(initrd, there, here, made)
    (directory / "initrd").write_bytes(initrd.to_bytes())

    host, user = key(directory / "host"), key(directory / "user")
    root = directory / "tree"
    for name in ("dev", "proc", "sys", "run", "tmp", "var/tmp", "root/.ssh", "etc", "usr/bin", "var/empty"):
        (root / name).mkdir(parents=True, exist_ok=True)
    for name in ("bin", "sbin", "lib", "lib64"):  # QEMU finds its modules relative to its own path
        (root / "usr" / name).mkdir(exist_ok=True)
        (root / name).symlink_to(f"usr/{name}")
    (root / "tmp").chmod(0o1777)
    (root / "var/tmp").chmod(0o1777)
    for there, here in _files((*_PROGRAMS, *(_HYPERVISORS if with_guests else ()))).items():
        (root / there).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(here, root / there)
    if with_guests:
        _add_data_of_qemu(root)
    (root / "sbin/init").write_text(_SYSTEM)
    (root / "sbin/init").chmod(0o755)
    (root / "etc/passwd").write_text(
        "root:x:0:0:root:/root:/bin/sh\nsshd:x:100:65534::/run/sshd:/bin/false\n"
    )
    (root / "etc/group").write_text("root:x:0:\nnogroup:x:65534:\n")
    (root / "etc/machine-id").write_text("0123456789abcdef0123456789abcdef\n")
    (root / "etc/sshd_config").write_text(
        "UsePAM no\nStrictModes no\nPasswordAuthentication no\nHostKey /etc/host\nPermitRootLogin yes\n"
    )
    shutil.copy(host, root / "etc/host")
    (root / "root/.ssh/authorized_keys").write_text(user.with_suffix(".pub").read_text())
    subprocess.run(["truncate", "-s", "384M" if with_guests else "96M", str(directory / "root")], check=True)
    options = "root_owner=0:0,lazy_itable_init=1"
    subprocess.run(
        ["mke2fs", "-q", "-t", "ext4", "-E", options, "-d", str(root), str(directory / "root")],
        check=True, env={**os.environ, "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"},
    )  # fmt: skip
    shutil.rmtree(root)
    (directory / "known").write_text(f"machine {host.with_suffix('.pub').read_text()}")
    (directory / "ssh_config").write_text(
        f"IdentityFile {user}\nIdentitiesOnly yes\nUser root\nUserKnownHostsFile {directory}/known\n"
        "GlobalKnownHostsFile none\nStrictHostKeyChecking yes\n"
    )
    for name in ("kernel", "initrd"):
        _give(directory / name)
    _give(directory)  # the machine's console is a file there


def _add_data_of_qemu(root: Path) -> None:
    for module in Path("/").glob(_QEMU_MODULES.lstrip("/")):
        there = root / module.relative_to("/")
        there.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(module, there)
    for path in _QEMU_DATA:
        shutil.copytree(path, root / path.lstrip("/"), ignore=_FOREIGN, ignore_dangling_symlinks=True)


def _files(programs: Sequence[str]) -> dict[str, Path]:
    """Return the programs and the libraries that they load, by their path in the root, without a leading slash."""
    found: dict[str, Path] = {}
    for program in programs:
        path = _which(program)
        assert path is not None, program
        where = "sbin" if "sbin" in path else "bin"
        found[f"{where}/{program}"] = Path(path).resolve()
        listed = subprocess.run(["ldd", path], capture_output=True, text=True, check=False).stdout
        for library in re.findall(r"(/\S+) \(0x", listed):
            found[library.lstrip("/")] = Path(library).resolve()
    return found


def _add(archive: CpioArchive, there: str, here: Path, made: set[str]) -> None:
    for parent in reversed(Path(there).parents[:-1]):
        if str(parent) not in made:
            archive.add_directory(str(parent))
            made.add(str(parent))
    archive.add_file(there, here.read_bytes(), 0o755)


def _which(program: str) -> str | None:
    return shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")


def _as_user() -> list[str]:
    if os.getuid():
        return []
    user = pwd.getpwnam(_USER)
    return ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]


def _give(path: Path) -> None:
    if os.getuid() == 0:
        user = pwd.getpwnam(_USER)
        os.chown(path, user.pw_uid, user.pw_gid)
