"""The attestation that is common to all guests: compares a guest with what its cell requested."""

import contextlib
import functools
import mmap
import os
import re
from collections.abc import Iterable, Mapping, Set
from pathlib import Path
from typing import Any

from guestmark.agent.results import CallError
from guestmark.core.machine_facts import Backing, Disk, Inside
from guestmark.disks.attached import AttachedDisk
from guestmark.disks.processes import find_field
from guestmark.platforms.guest import Guest, make_mismatch
from guestmark.setting.base import AttestedDrive, Check, ServedDisk, iterate_disk_levels, quote_qemu_value
from guestmark.setting.drive import Bus
from guestmark.setting.filesystem import Filesystem, choose_security_model, choose_share_cache
from guestmark.setting.memory import BALLOON, FREE_PAGE_REPORTING


def query_drives(query: Any) -> Mapping[str, Mapping[str, Any]]:
    """Returns QEMU's report on each of its drives (format, cache switches, cluster size, node), by disk name."""
    drives = {}
    for entry in query("query-block"):
        if entry.get("device") and "inserted" in entry:
            drives[entry["device"]] = entry["inserted"]
    return drives


# The storage daemon has few files open, so the image is among its first descriptors.
_MOST_DESCRIPTORS = 64


def attest_each_disk(guest: Guest) -> dict[str, Disk]:
    """Returns the facts of every disk, by role. Raises `AttestationError` with both values where they differ."""
    drives: Mapping[str, Mapping[str, Any]] = {}
    used: frozenset[str] = frozenset()
    # Only QEMU has a monitor; it does its disks' I/O itself.
    if guest.query:
        drives = query_drives(guest.query)
        used = find_async_engines(guest, guest.vmm_pid)
    facts = {}
    for disk in guest.disks:
        if disk.spec.is_directory:
            facts[str(disk.spec.role)] = _attest_directory(guest, disk)
            continue
        size, write_cache = _read_block_device(guest, disk)
        _require_disk_value(disk, "size in the guest", disk.spec.size, size, guest)
        drive = drives.get(disk.spec.name, {})
        if disk.spec.bus is Bus.VHOST_USER:
            _check_served(guest, disk, write_cache)
        elif guest.query:
            _check_drive(guest, disk, drive, used)
        facts[str(disk.spec.role)] = Disk(
            size=size,
            write_cache=write_cache,
            format=drive.get("drv"),
            cache=drive.get("cache"),
            aio=disk.spec.aio if guest.query else None,
            device=disk.device,
            location=disk.spec.location,
            allocated_bytes=disk.image.count_allocated_bytes(),
            prepared_s=disk.image.prepared_s,
            from_template=disk.image.from_template,
        )
    return facts


def _attest_directory(guest: Guest, disk: AttachedDisk) -> Disk:
    """Returns the facts of a directory of the host; the mount itself is attested by `AttachedDisk.mount`.

    Raises `AttestationError` if QEMU's command line has other settings for a directory that QEMU serves.
    """
    spec, directory = disk.spec, disk.image.path
    how = str(spec.filesystem)
    if spec.filesystem is Filesystem.NINE_P:
        wanted = choose_security_model(spec)
        words = guest.place.read(f"/proc/{guest.vmm_pid}/cmdline").split("\0")
        option = next((word for word in words if word.startswith(f"local,id={spec.name},")), "")
        # QEMU's option syntax writes a comma in a value twice.
        path = quote_qemu_value(directory)
        found = option.removeprefix(f"local,id={spec.name},path={path},")
        _require_disk_value(disk, "security model", f"security_model={wanted}", found, guest)
        how += f", security model {wanted}"
    if cache := choose_share_cache(spec):
        how += f", cache={cache}"
    return Disk(
        size=spec.size,
        write_cache="",
        device=disk.device,
        location=spec.location,
        allocated_bytes=disk.image.count_allocated_bytes(),
        prepared_s=disk.image.prepared_s,
        from_template=disk.image.from_template,
        served=how,
    )


def _check_drive(guest: Guest, disk: AttachedDisk, drive: Mapping[str, Any], engines: frozenset[str]) -> None:
    """Compares QEMU's report on a drive with the cell's disk. Raises `AttestationError` if they differ."""
    spec = disk.spec
    if not drive:
        raise make_mismatch(f"the {spec.name} disk", spec.name, "no such drive", guest)
    image = drive["image"]
    # For an encrypted image, QEMU reports a JSON description of its layers in place of a file name.
    if not spec.format.encrypted:
        opened, found = disk.image.open_path, image["filename"]
        if disk.image.socket is None:
            opened, found = os.path.realpath(opened), os.path.realpath(found)
        _require_disk_value(disk, "image", opened, found, guest)
    assert guest.query is not None
    seen = AttestedDrive(
        spec,
        drive,
        engines,
        guest.agent.read_facts().cpus_online,
        lambda name: _read_sysfs(guest, disk, name),
        guest.query,
    )
    for factor, level in iterate_disk_levels(spec):
        _require_disk_checks(disk, factor.attest(level, seen), guest)


def _require_disk_checks(disk: AttachedDisk, checks: Iterable[Check], guest: Guest) -> None:
    for check in checks:
        _require_disk_value(disk, check.what, check.asked, check.found, guest)


def _check_served(guest: Guest, disk: AttachedDisk, write_cache: str) -> None:
    """Compares the open flags of the process that serves a disk with the cell's disk. Raises `AttestationError`.

    The daemon has no monitor. Whether it drops flushes can only be seen by workloads that observe flushes.
    """
    spec = disk.spec
    if guest.vmm_pid is None:
        return
    image = os.path.realpath(disk.image.path)
    for process in guest.place.list_descendants(guest.vmm_pid):
        flags = _find_open_flags(guest, process, image)
        if flags is None:
            continue
        seen = ServedDisk(flags, find_async_engines(guest, process), write_cache)
        for factor, level in iterate_disk_levels(spec):
            _require_disk_checks(disk, factor.attest_served(level, seen), guest)
        return
    raise make_mismatch(f"the {spec.name} disk", "a server process with its image open", "none", guest)


def _find_open_flags(guest: Guest, process: int, image: str) -> int | None:
    """Returns the flags with which a process has opened an image; None if it has not opened it."""
    for descriptor in range(_MOST_DESCRIPTORS):
        try:
            if guest.place.read_links(f"/proc/{process}/fd/{descriptor}") != [image]:
                continue
            fields = guest.place.read(f"/proc/{process}/fdinfo/{descriptor}")
        except OSError:
            continue
        if flags := find_field(fields, "flags"):
            # The kernel prints the flags of open() in octal; see proc_pid_fdinfo(5).
            return int(flags, 8)
        return None
    return None


def find_async_engines(guest: Guest, pid: int | None) -> frozenset[str]:
    """Returns the interfaces for asynchronous I/O that a process has set up: `native` (Linux AIO), `io_uring`."""
    process = f"/proc/{pid}"
    try:
        found = set()
        # The kernel maps the completion ring of an AIO context into the process as /[aio].
        if "/[aio]" in guest.place.read(f"{process}/maps"):
            found.add("native")
        if any("[io_uring]" in target for target in guest.place.read_links(f"{process}/fd")):
            found.add("io_uring")
    except OSError:
        return frozenset()
    return frozenset(found)


def _read_block_device(guest: Guest, disk: AttachedDisk) -> tuple[int, str]:
    """Returns the disk's size in bytes and its write cache, as the guest's kernel reports them."""
    # The size in sysfs counts sectors of 512 bytes, whatever the device's block size is.
    return int(_read_sysfs(guest, disk, "size") or 0) * 512, _read_sysfs(guest, disk, "queue/write_cache")


def _read_sysfs(guest: Guest, disk: AttachedDisk, name: str) -> str:
    path = f"/sys/block/{disk.device.removeprefix('/dev/')}/{name}"
    try:
        return guest.agent.read_file(path, limit=4096).decode().strip()
    except CallError:
        return ""


def _require_disk_value(disk: AttachedDisk, what: str, asked: object, found: object, guest: Guest) -> None:
    if asked != found:
        raise make_mismatch(f"the {disk.spec.name} disk's {what}", asked, found, guest)


def attest_disks(guest: Guest) -> dict[str, Disk] | None:
    """Returns the facts of the guest's disks by role; None if it has none. Raises `AttestationError`."""
    return attest_each_disk(guest) if guest.disks else None


def describe_inside(guest: Guest) -> Inside:
    """Returns what the guest's own kernel reports about the machine."""
    facts = guest.agent.read_facts()
    hello = guest.agent.hello()
    flags_missing: Set[str] = frozenset()
    flags_more: Set[str] = frozenset()
    # Other architectures name their features differently, so a comparison would be meaningless.
    if guest.cell.platform.foreign_architecture is None:
        host_flags, guest_flags = read_host_cpu_flags(), set(facts.cpu_flags)
        flags_missing, flags_more = host_flags - guest_flags, guest_flags - host_flags
    return Inside(
        kernel=hello.kernel,
        root=_find_root_filesystem(facts.mounts),
        arch=hello.arch,
        boot_id=hello.boot_id,
        cpu=facts.cpu_model,
        processors=facts.cpus_online,
        memory_bytes=facts.mem_total_kib * 1024,
        clocksource=facts.clocksource,
        cpu_flags_missing=sorted(flags_missing),
        cpu_flags_more=sorted(flags_more),
    )


def _read_balloon(guest: Guest) -> tuple[int | None, bool | None]:
    """Returns the bytes that a balloon leaves the guest, and whether it reports free pages; None without the factor."""
    left_bytes = reports_free = None
    if BALLOON in guest.cell.levels and guest.query and (balloon := guest.query("query-balloon")):
        left_bytes = balloon["actual"]
    if FREE_PAGE_REPORTING in guest.cell.levels:
        reports_free = _has_free_page_reporting(guest)
    return left_bytes, reports_free


def _find_root_filesystem(mounts: str) -> str:
    # The last of several mounts at one place hides the others.
    for line in reversed(mounts.splitlines()):
        words = line.split()
        if len(words) > 2 and words[1] == "/":
            return words[2]
    return ""


def measure_backing(guest: Guest) -> Backing | None:
    """Returns how this host backs the guest's memory: the largest writable mapping of its hypervisor.

    Mappings with translated code, which are executable, do not count. None if the hypervisor has ended.
    """
    process = Path(f"/proc/{guest.vmm_pid}")
    try:
        maps = (process / "smaps").read_text(errors="replace")
        status = (process / "status").read_text()
        policies = (process / "numa_maps").read_text(errors="replace")
    except OSError:
        return None
    sizes: dict[str, dict[str, int]] = {}
    mergeable = set()
    start = ""
    for line in maps.splitlines():
        name, _, rest = line.partition(":")
        if (first := _MAPPING.match(line)) is not None:
            start = first[1] if first[2] == "rw-" else ""
            sizes[start] = {}
        elif rest.endswith(" kB"):
            sizes[start][name] = int(rest.split()[0]) << 10
        elif name == "VmFlags" and "mg" in rest.split():
            mergeable.add(start)
    sizes.pop("", None)
    if not sizes:
        # It has ended, and its parent has not asked how yet.
        return None
    start, found = max(sizes.items(), key=lambda item: item[1].get("Size", 0))
    # Addresses in numa_maps have no leading zeros.
    places = dict(line.split(" ", 2)[:2] for line in policies.splitlines())
    left_bytes, reports_free = _read_balloon(guest)
    return Backing(
        page_bytes=found["KernelPageSize"],
        resident_bytes=found["Rss"] + found.get("Private_Hugetlb", 0) + found.get("Shared_Hugetlb", 0),
        # prctl(PR_SET_THP_DISABLE) disables huge pages for a process.
        thp_allowed="\nTHP_enabled:\t1" in status,
        thp_bytes=found.get("AnonHugePages", 0) + found.get("ShmemPmdMapped", 0),
        policy=places.get(start, places.get(start.lstrip("0"), "")),
        left_bytes=left_bytes,
        mergeable=start in mergeable,
        merged_bytes=_read_merged_bytes(process),
        reports_free=reports_free,
    )


def _read_merged_bytes(process: Path) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        return int((process / "ksm_merging_pages").read_text()) * mmap.PAGESIZE
    return None


def _has_free_page_reporting(guest: Guest) -> bool:
    """Returns whether the guest's kernel and its balloon have agreed on reporting free pages.

    That is feature bit 5 (VIRTIO_BALLOON_F_REPORTING); sysfs lists the bits in order.
    """
    for number in range(_MOST_VIRTIO):
        device = f"/sys/bus/virtio/devices/virtio{number}"
        with contextlib.suppress(CallError):
            if int(guest.agent.read_file(f"{device}/device"), 16) == _BALLOON:
                return guest.agent.read_file(f"{device}/features")[5:6] == b"1"
    return False


_MOST_VIRTIO = 32
# Device number of virtio-balloon: linux/virtio_ids.h.
_BALLOON = 5
_MAPPING = re.compile(r"([0-9a-f]+)-[0-9a-f]+ (...)[ps] ")


@functools.cache
def read_host_cpu_flags() -> frozenset[str]:
    """Returns the features of this host's first processor, with the names in /proc/cpuinfo."""
    for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return frozenset(value.split())
    return frozenset()


def check_kernel(asked: str, inside: Inside, guest: Guest, root: str = "overlay") -> None:
    """Raises `AttestationError` if another kernel runs, or if the root does not have the filesystem type `root`.

    By default that is the overlay over the shared root.
    """
    require_same("the kernel", asked, inside.kernel, guest)
    require_same("the root filesystem", root, inside.root, guest)


def require_same(what: str, asked: object, found: object, guest: Guest) -> None:
    """Raises `AttestationError` with both values if they differ."""
    if asked != found:
        raise make_mismatch(what, asked, found, guest)


def require_all_checks_pass(checks: Iterable[Check], guest: Guest) -> None:
    """Raises `AttestationError` for the first check that fails."""
    for check in checks:
        require_same(check.what, check.asked, check.found, guest)
