"""What a domain is by libvirt's account, and whether the machine that answers ssh is that domain."""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.etree import ElementTree

import msgspec

from guestmark.core.errors import AttestationError
from guestmark.core.machine_facts import Libvirt, LibvirtDisk, LibvirtMachine
from guestmark.platforms.virsh.manager import call

if TYPE_CHECKING:
    from guestmark.agent.client import Agent
    from guestmark.core.machine_facts import RemoteMachine

_S = 20.0
# A daemon that was just started looks at each QEMU that is installed before it answers: 40 s here with all of Debian's.
_VERSION_S = 300.0
_OUTPUT = 64 << 10
_CARDS = "cat /sys/class/net/*/address; cat /sys/class/dmi/id/product_uuid 2>/dev/null"


def attest(found: RemoteMachine, agent: Agent, domain: str) -> LibvirtMachine:
    """Both. Raises `AttestationError` when another machine than the domain answers."""
    described = _described(domain)
    root = ElementTree.fromstring(call(domain, "dumpxml", domain))
    done = agent.exec(["/bin/sh", "-c", _CARDS], timeout_s=_S, output_limit=_OUTPUT)
    there = set(done.stdout.decode(errors="replace").lower().split())
    uuid = (root.findtext("uuid") or "").lower()
    cards = {(mac.get("address") or "").lower() for mac in root.iterfind("devices/interface/mac")}
    described.known_by = "its UUID" if uuid in there else "a network card" if cards & there else ""
    if not described.known_by:
        raise AttestationError(
            f"the machine that answers ssh is not the domain {domain}: neither its UUID nor one of its network cards "
            "is found there",
            hint="say what ssh calls the domain: --set ssh=DEST",
        )
    return LibvirtMachine(**msgspec.structs.asdict(found), libvirt=described)


def _described(domain: str) -> Libvirt:
    root = ElementTree.fromstring(call(domain, "dumpxml", domain))
    kind, cpu = root.find("os/type"), root.find("cpu")
    said = call(domain, "version", timeout_s=_VERSION_S)
    versions = dict(_version(line) for line in said.splitlines() if ":" in line)
    return Libvirt(
        domain=root.findtext("name") or domain,
        uuid=root.findtext("uuid") or "",
        accelerator=root.get("type", ""),
        machine="" if kind is None else kind.get("machine", ""),
        cpu="" if cpu is None else cpu.findtext("model") or cpu.get("mode") or "",
        emulator=root.findtext("devices/emulator") or "",
        hypervisor=versions.get("Running hypervisor", ""),
        version=versions.get("Using library", ""),
        disks=[_disk(disk) for disk in root.iterfind("devices/disk") if disk.get("device", "disk") == "disk"],
    )


def _version(line: str) -> tuple[str, str]:
    name, _, value = line.partition(":")
    return name.strip(), value.strip()


def _disk(disk: ElementTree.Element) -> LibvirtDisk:
    target, driver = disk.find("target"), disk.find("driver")
    return LibvirtDisk(
        name="" if target is None else target.get("dev", ""),
        bus="" if target is None else target.get("bus", ""),
        format="" if driver is None else driver.get("type", ""),
        cache="" if driver is None else driver.get("cache", "default"),
        keeps=disk.find("transient") is None,
    )
