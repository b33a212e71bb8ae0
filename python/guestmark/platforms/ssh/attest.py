"""What another machine is: its processor, kernel, firmware and hypervisor, as its own agent finds them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from guestmark.agent.binary import PROGRAM
from guestmark.agent.clocks import host_boot_id
from guestmark.core.errors import AttestationError
from guestmark.core.machine_facts import Connection, RemoteMachine
from guestmark.page.text import inert

if TYPE_CHECKING:
    from guestmark.agent.client import Agent
    from guestmark.agent.clocks import Ping

NONE = "none"
_LIMIT = 200  # characters of anything that is read there
_OUTPUT = 64 << 10
_S = 20.0
# By CPUID's leaf 0x40000000. Sources: Linux, arch/x86/include/asm and arch/x86/kernel/cpu; QEMU, target/i386/kvm;
# Microsoft's and VMware's interfaces for guests.
_LEAVES: Mapping[str, str] = {
    "KVMKVMKVM": "kvm",
    "TCGTCGTCGTCG": "qemu",
    "VMwareVMware": "vmware",
    "Microsoft Hv": "microsoft",
    "XenVMMXenVMM": "xen",
    "VBoxVBoxVBox": "oracle",
    "bhyve bhyve": "bhyve",
    "ACRNACRNACRN": "acrn",
    "QNXQVMBSQG": "qnx",
    "prl hyperv": "parallels",
    "lrpepyh vr": "parallels",
    "Jailhouse": "jailhouse",
}
# By DMI, where the leaf is another's: VirtualBox and KVM pretend to be Hyper-V or KVM for their guests' good.
_VENDORS: tuple[tuple[str, str], ...] = (
    ("innotek", "oracle"),
    ("VirtualBox", "oracle"),
    ("VMware", "vmware"),
    ("Xen", "xen"),
    ("Parallels", "parallels"),
)
_WITHOUT_LEAF = (*_VENDORS, ("QEMU", "qemu"), ("Bochs", "qemu"))  # TCG's usual processors have none
_SCRIPT = """
show() { printf "%s\\n" "== $1"; head -c 4096 "$2" 2>/dev/null; printf "\\n"; }
show id /etc/machine-id
show vendor /sys/class/dmi/id/sys_vendor
show product /sys/class/dmi/id/product_name
show xen /sys/hypervisor/type
show governor /sys/devices/system/cpu/cpu0/cpufreq/scaling_governor
for file in /sys/devices/system/cpu/vulnerabilities/*; do show "mitigation ${file##*/}" "$file"; done
printf "== microcode\\n"; grep -m1 "^microcode" /proc/cpuinfo | cut -d: -f2
printf "== uml\\n"; grep -m1 -o "User Mode Linux" /proc/cpuinfo
"""


def attest(agent: Agent, dest: str, arch: str, first: Ping) -> RemoteMachine:
    """What the machine is. Raises `AttestationError` when its agent runs on another than the one that greeted us."""
    hello, facts = agent.hello(), agent.facts()
    if hello.arch != arch:
        raise AttestationError(f"{dest} is not what it said: asked {arch}, found {hello.arch}")
    told = _told(agent)
    leaf = _output(agent, [PROGRAM, "hypervisor"])
    vendor, product = told.get("vendor", ""), told.get("product", "")
    return RemoteMachine(
        dest=dest,
        machine=_digest(told.get("id") or hello.hostname),
        kernel=_short(hello.kernel),
        arch=_short(hello.arch),
        boot_id=_short(hello.boot_id),
        processors=facts.cpus_online,
        cpu=_short(facts.cpu_model),
        memory_bytes=facts.mem_total_kib * 1024,
        clocksource=_short(facts.clocksource),
        hypervisor="uml" if told.get("uml") else hypervisor(leaf, vendor, product, told.get("xen", "")),
        hypervisor_leaf=leaf,
        vendor=vendor,
        product=product,
        microcode=told.get("microcode", ""),
        governor=told.get("governor", ""),
        mitigations={
            name.removeprefix("mitigation "): value
            for name, value in told.items()
            if name.startswith("mitigation ") and value
        },
        is_this_host=hello.boot_id == host_boot_id(),
        connection=Connection(round_trip_ns=first.round_trip_ns),
    )


def hypervisor(leaf: str, vendor: str, product: str, xen: str = "") -> str:
    """What runs the machine: `none` for a physical one; an unknown hypervisor by its own signature."""
    if xen:
        return "xen"
    if leaf:
        named = next((name for part, name in _VENDORS if part in vendor or part in product), "")
        return named or _LEAVES.get(leaf, leaf)
    return next((name for part, name in _WITHOUT_LEAF if part in vendor or part in product), NONE)


def _told(agent: Agent) -> dict[str, str]:
    found: dict[str, str] = {}
    name = ""
    for line in _output(agent, ["/bin/sh", "-c", _SCRIPT], lines=True).splitlines():
        if line.startswith("== "):
            name = _short(line[3:])
        elif name and line.strip() and not found.get(name):
            found[name] = _short(line)
    return found


def _output(agent: Agent, argv: list[str], *, lines: bool = False) -> str:
    done = agent.exec(argv, timeout_s=_S, output_limit=_OUTPUT)
    text = done.stdout.decode(errors="replace")
    return text if lines else _short(text)


def _short(text: str) -> str:
    """Nothing remote is trusted: one line, of bounded length, that no terminal would act on."""
    return inert(text).strip()[:_LIMIT]


def _digest(machine_id: str) -> str:
    return hashlib.sha256(f"guestmark {machine_id}".encode()).hexdigest()[:16] if machine_id else ""
