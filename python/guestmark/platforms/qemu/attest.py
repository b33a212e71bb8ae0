"""Attestation of QEMU guests: by QEMU's monitor, by the files that QEMU has open, and from inside the guest."""

import contextlib
import os
import stat
from pathlib import Path

import msgspec

from guestmark.core import procfs
from guestmark.core.architectures import Architecture, find_host_architecture
from guestmark.core.levels import Levels
from guestmark.core.machine_facts import GuestMachine, Vmm
from guestmark.platforms.attest import (
    attest_disks,
    check_kernel,
    describe_inside,
    measure_backing,
    require_all_checks_pass,
    require_same,
)
from guestmark.platforms.guest import Guest, make_mismatch
from guestmark.platforms.place import HERE
from guestmark.platforms.qemu import virtiofs
from guestmark.platforms.qemu.accelerators import KVM, TCG
from guestmark.platforms.qemu.boots import NINE_P, Boot
from guestmark.platforms.qemu.disk_images import NODE, ImageBoot, ImageGuest
from guestmark.platforms.qmp import Monitor, require_shape
from guestmark.setting import memory
from guestmark.setting.filesystem import Filesystem
from guestmark.setting.machine import StartedGuest, attest_levels


def attest_qemu(guest: Guest, vmm: Vmm, levels: Levels, boot: Boot | ImageBoot) -> GuestMachine:
    """Compares accelerator, architecture, kernel, root and all factors that QMP or the guest reports.

    Raises `AttestationError` with both values if they differ.
    """
    inside = describe_inside(guest)
    loaded = backing = None
    if guest.query:
        # A restored guest has completed an incoming migration; a booted guest has had none.
        loaded = guest.query("query-migrate").get("status") == "completed"
    require_same("the accelerator", guest.cell.platform.inner.kind, vmm.accelerator, guest)
    if memory.has_memory_factors(guest.cell.levels):
        backing = measure_backing(guest)
    require_all_checks_pass(
        attest_levels(levels, StartedGuest(inside, vmm, _find_running_program(guest), loaded, backing)), guest
    )
    image = None
    if isinstance(boot, ImageBoot):
        name = guest.find_distribution() if isinstance(guest, ImageGuest) else ""
        image = msgspec.structs.replace(boot.image, distribution=name)
        require_same("the image", str(boot.overlay), _find_backing_file(guest), guest)
    else:
        check_kernel(boot.kernel.release, inside, guest, boot.root_type)
    if isinstance(boot, Boot) and boot.share == NINE_P and guest.place is HERE and guest.vmm_pid is not None:
        require_same(
            "the root filesystem", str(boot.root), _find_shared_directory(guest.vmm_pid, boot.root), guest
        )
    expected = guest.cell.platform.foreign_architecture or find_host_architecture()
    require_same("the architecture", expected.machine_name, inside.arch, guest)
    return GuestMachine(
        asked=dict(levels.texts),
        vmm=vmm,
        guest=inside,
        disks=attest_disks(guest),
        restored=guest.restored,
        backing=backing,
        image=image,
    )


def _find_backing_file(guest: Guest) -> str:
    """Return the file below the guest's overlay, as QEMU's monitor reports it; empty if it has no overlay.

    Between the two a restored guest has the overlay of its template.
    """
    if not guest.query:
        return ""
    for node in guest.query("query-named-block-nodes"):
        if node.get("node-name") == NODE:
            image = node.get("image", {})
            if guest.restored is not None:
                image = image.get("backing-image", {})
            return str(image.get("backing-filename", ""))
    return ""


def _find_running_program(guest: Guest) -> str:
    """Returns the path of the hypervisor's executable; empty for a nested guest."""
    if guest.place is not HERE or guest.vmm_pid is None:
        return ""
    return os.path.realpath(f"/proc/{guest.vmm_pid}/exe")


def _find_shared_directory(pid: int, wanted: Path) -> str:
    """Returns `wanted` if QEMU, process `pid`, has that directory open; else the directories that it has open."""
    expected, others = os.stat(wanted), []
    for link, target in procfs.list_open_files(pid):
        with contextlib.suppress(OSError):
            found = link.stat()
            # A directory may have several paths, so inodes are compared.
            if os.path.samestat(found, expected):
                return str(wanted)
            if stat.S_ISDIR(found.st_mode):
                others.append(target)
    return ", ".join(others) or "no directory"


def query_vmm(monitor: Monitor, architecture: Architecture) -> Vmm:
    """Returns what QEMU reports: version, accelerator, processors and their model, memory in bytes."""
    with require_shape():
        kvm = monitor.execute("query-kvm")
        processors = monitor.execute("query-cpus-fast")
        model = monitor.execute("qom-get", {"path": processors[0]["qom-path"], "property": "type"})
        version = monitor.execute("query-version")["qemu"]
        return Vmm(
            accelerator=KVM.name if kvm["enabled"] else TCG.name,
            kvm_present=kvm["present"],
            processors=len(processors),
            cpu=str(model).removesuffix(architecture.cpu_suffix),
            memory_bytes=monitor.execute("query-memory-size-summary")["base-memory"],
            qemu=f"{version['major']}.{version['minor']}.{version['micro']}",
        )


def attest_daemons(guest: Guest) -> None:
    """Records which daemon serves each directory. Raises `AttestationError` if one was started with other options."""
    for disk in guest.disks:
        if disk.spec.filesystem is not Filesystem.VIRTIOFS:
            continue
        share = virtiofs.describe_share(disk.image)
        server = guest.process.helpers[share.name]
        disk.server = server.pid()
        if differs := virtiofs.find_difference(server, share):
            raise make_mismatch(f"the {disk.spec.name}'s daemon", share.cache, differs, guest)
