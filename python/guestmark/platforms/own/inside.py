"""Determines from inside what a user's own machine really is; declarations are not trusted."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Mapping

from guestmark.agent.client import Agent
from guestmark.core.distribution import read_pretty_name
from guestmark.core.errors import AttestationError, UsageError
from guestmark.core.machine_facts import OwnInside, OwnKernel, RemoteMachine
from guestmark.core.units import format_size, parse_size
from guestmark.page.text import make_inert
from guestmark.platforms.own.definition import CPUS, MEMORY

_LIMIT = 200  # longest text that is read inside, in characters
_OUTPUT = 64 << 10
_SCRIPT_S = 20.0
# Prints files, each after a line with a name. Small images may have no other programs than cat, head and grep.
_SCRIPT = r"""
show() { printf '== %s\n' "$1"; shift; head -c 4096 "$@" 2>/dev/null; printf '\n'; }
show os /etc/os-release
show cgroup /proc/1/cgroup
show maximum /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory/memory.limit_in_bytes
show quota /sys/fs/cgroup/cpu.max /sys/fs/cgroup/cpu/cpu.cfs_quota_us /sys/fs/cgroup/cpu/cpu.cfs_period_us
show version /proc/version
printf '== root\n'; grep ' / ' /proc/mounts | tail -n 1; printf '\n'
printf '== allowed\n'; grep Cpus_allowed_list /proc/self/status; printf '\n'
printf '== signs\n'
[ ! -e /.dockerenv ] || echo docker
[ ! -e /run/.containerenv ] || echo podman
[ -z "$container" ] || echo "$container"
tr '\0' '\n' < /proc/1/environ 2>/dev/null | grep '^container=' | head -c 100
dmesg 2>/dev/null | grep -q -m1 -i 'gvisor' && echo gvisor
[ ! -d /run/kata-containers ] || echo kata
true
"""
# The machine is not trusted, so only a limited number of ASCII digits is accepted.
_NUMBER = re.compile(r"[0-9]{1,20}", re.ASCII)
_RANGE = re.compile(r"([0-9]{1,6})(?:-([0-9]{1,6}))?", re.ASCII)
# What a kernel may use of the requested memory itself: this share, or this much of a small machine's.
_KERNEL_RESERVES = 0.15
_KERNEL_BYTES = 128 << 20
_ROUNDING = 0.02
_LEAST_BYTES = 1 << 20  # less is a number without its unit


def look_inside(agent: Agent, found: RemoteMachine, host_boot_id: str) -> OwnInside:
    """Determine from inside whose kernel the machine runs, its limits, and its root filesystem.

    `host_boot_id` is the boot id of the other host on which it was created; empty for this host.
    """
    parts = _read_script_sections(agent)
    signs = " ".join(parts.get("signs", "").split())
    allowed = _count_cpus(parts.get("allowed", "").partition(":")[2].strip()) or found.processors
    quota = _parse_processor_quota(parts.get("quota", "")) or math.inf
    limit = _read_memory_limit(parts.get("maximum", "")) or found.memory_bytes
    root_filesystem = ""
    mount = parts.get("root", "").split()
    if len(mount) > 2:
        root_filesystem = mount[2]
    kernel_is = _identify_kernel(found, signs, parts.get("version", ""))
    if host_boot_id and found.boot_id == host_boot_id:
        kernel_is = OwnKernel.THERE
    return OwnInside(
        kernel_is=kernel_is,
        signs=signs,
        processors=min(float(allowed), quota),
        memory_bytes=min(found.memory_bytes, limit),
        root_filesystem=root_filesystem,
        distribution=read_pretty_name(parts.get("os", ""))[:_LIMIT],
    )


def check_values_can_be_compared(values: Mapping[str, str]) -> None:
    """Raise `UsageError` if the requested processors or memory cannot be compared with what a machine has."""
    if (cpus := values.get(CPUS)) is not None:
        _parse_processors(cpus)
    if (memory := values.get(MEMORY)) is not None:
        _parse_memory(memory)


def check_requested_values(values: Mapping[str, str], found: OwnInside, name: str) -> None:
    """Compare the requested values with the actual ones. Raises `AttestationError` for the first difference."""
    if (cpus := values.get(CPUS)) is not None:
        asked = _parse_processors(cpus)
        if not abs(found.processors / asked - 1) <= _ROUNDING:  # false for nan
            raise AttestationError(
                f"{name} has {found.processors:g} processors, but {cpus} were asked for",
                hint="check that create passes on {cpus}; without this parameter, the number is not checked",
            )
    if (memory := values.get(MEMORY)) is not None:
        size = _parse_memory(memory)
        reserves = size * _KERNEL_RESERVES
        if found.kernel_is is OwnKernel.OWN:
            reserves = max(reserves, _KERNEL_BYTES)
        if not size - reserves <= found.memory_bytes <= size * (1 + _ROUNDING):
            raise AttestationError(
                f"{name} has {format_size(found.memory_bytes)} of memory, but {memory} was asked for",
                hint="check that create passes on {memory}; without this parameter, the memory is not checked",
            )


def _parse_processors(text: str) -> float:
    """Return the number of processors that a definition's `cpus` asks for. Raises `UsageError`."""
    with contextlib.suppress(ValueError):
        if 0 < float(text) < float("inf"):
            return float(text)
    raise UsageError(
        f"{CPUS} cannot be {text!r}",
        hint="use a number of processors, such as 2 or 0.5; or name it otherwise",
    )


def _parse_memory(text: str) -> int:
    """Return the bytes that a definition's `memory` asks for. Raises `UsageError`."""
    with contextlib.suppress(ValueError):
        if (size := parse_size(text)) >= _LEAST_BYTES:
            return size
    raise UsageError(
        f"{MEMORY} cannot be {text!r}",
        hint="use a size with its unit, such as 512M or 2G; or name it otherwise",
    )


def _read_script_sections(agent: Agent) -> dict[str, str]:
    done = agent.exec(["/bin/sh", "-c", _SCRIPT], timeout_s=_SCRIPT_S, output_limit=_OUTPUT, question=True)
    parts: dict[str, str] = {}
    name = ""
    for line in done.stdout.decode(errors="replace").splitlines():
        if line.startswith("== "):
            name = line[3:].strip()
        elif name and line.strip():
            parts[name] = f"{parts.get(name, '')}{make_inert(line).strip()}\n"
    return parts


def _identify_kernel(found: RemoteMachine, signs: str, version: str) -> OwnKernel:
    if "gvisor" in signs or "gvisor" in version.lower():
        return OwnKernel.GVISOR
    return OwnKernel.HOSTS if found.is_this_host else OwnKernel.OWN


def _count_cpus(listed: str) -> int:
    """Count the processors of a list such as `0-3,8`."""
    count = 0
    for part in listed.split(","):
        if not (numbers := _RANGE.fullmatch(part.strip())):
            return 0
        count += max(0, int(numbers[2] or numbers[1]) - int(numbers[1]) + 1)
    return count


def _parse_processor_quota(text: str) -> float:
    """Return the number of processors that `cpu.max` allows; 0 if it sets no limit."""
    words = text.split()  # version 1 of control groups writes -1 for no limit
    if len(words) >= 2 and all(map(_NUMBER.fullmatch, words[:2])) and int(words[1]):
        return int(words[0]) / int(words[1])
    return 0.0


def _read_memory_limit(text: str) -> int:
    """Return the control group's memory limit in bytes; 0 if it sets none."""
    word = next(filter(_NUMBER.fullmatch, text.split()), "")
    # Version 1 of control groups writes a number near 2**63 for no limit.
    return int(word) if word and int(word) < 1 << 60 else 0
