"""The environment of a run, as far as it may affect figures. Environment variables are never recorded."""

import contextlib
import hashlib
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, cast

import guestmark
from guestmark.core import procfs, registry
from guestmark.core.environment import Environment, hash_machine_id
from guestmark.core.meminfo import read_meminfo
from guestmark.core.model import Plan
from guestmark.core.own_program import find_agent_binary
from guestmark.core.platform_kind import Program, start_version_queries
from guestmark.core.redaction import redact_words
from guestmark.core.workload_kind import find_measured_packages
from guestmark.engine.quiet_host import attest_settings
from guestmark.setting.disk import has_disks

LIBRARIES = (
    "msgspec",
    "numpy",
    "pg8000",
    "polars",
    "pydantic",
    "pymysql",
    "qemu.qmp",
    "rich",
    "sqlalchemy",
    "click",
)
VULNERABILITIES = "sys/devices/system/cpu/vulnerabilities"
_VERSION_LIMIT_S = 5.0
_COMMIT_LINE = "# branch.oid "
_DIRECTORIES = ("/", "/dev/shm", "/tmp", "/var/tmp")


def record_environment(
    argv: Sequence[str] | None = None,
    *,
    programs: Iterable[Program] | None = None,
    agent: Path | None = None,
    measured: Iterable[str] = (),
    root: Path = Path("/"),
) -> Environment:
    """Return a description of the host; unknown facts are absent.

    `argv` is guestmark's command line (default: this process's), `programs` (default: those of the platforms) are
    asked for their versions if they are installed, `agent` is the agent's binary, whose hash is recorded. `measured`
    names packages whose versions matter besides the usual ones. `root` is where /proc and /sys are.
    """
    memory = read_meminfo(root / "proc/meminfo")
    found: dict[str, Any] = {
        "recorded_at": datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        "command_line": redact_words(sys.orig_argv if argv is None else argv),
        "machine": hash_machine_id(_read_line(root / "etc/machine-id") or platform.node()),
        "processor": _read_processor(root),
        "frequency": _read_frequency_policy(root / "sys/devices/system/cpu"),
        "memory_bytes": memory.get("MemTotal"),
        "memory_available_bytes": memory.get("MemAvailable"),
        "swap_bytes": memory.get("SwapTotal"),
        "swap_free_bytes": memory.get("SwapFree"),
        "disks": _list_disks(root / "sys/block"),
        "filesystems": _list_filesystems(root / "proc/self/mounts"),
        "transparent_hugepages": _parse_bracketed_choice(
            _read_line(root / "sys/kernel/mm/transparent_hugepage/enabled")
        ),
        "quiet": attest_settings(root),
        "kernel": {
            "release": platform.release(),
            "version": platform.version(),
            "command_line": _read_line(root / "proc/cmdline"),
        },
        "distribution": _read_distribution(root / "etc/os-release"),
        "virtualization": _detect_virtualization(root),
        "mitigations": _read_mitigations(root / VULNERABILITIES),
        "load": _read_load(root / "proc/loadavg"),
        "programs": _ask_versions(registry.programs(workloads=()) if programs is None else programs),
        "packages": read_package_versions(root, measured),
        "guestmark": _describe_guestmark(agent),
        "python": {"version": platform.python_version(), "implementation": platform.python_implementation()},
        "libraries": _list_libraries(),
    }
    return cast(Environment, _drop_values(found, None, {}, [], ""))


def _drop_values(found: Mapping[str, Any], *unknown: Any) -> dict[str, Any]:
    """Return the facts without those whose value says that nothing is known."""
    return {name: value for name, value in found.items() if value not in unknown}


def _read_mitigations(folder: Path) -> dict[str, str]:
    found = {}
    for file in sorted(folder.glob("*")):
        if line := _read_line(file):
            found[file.name] = line
    return found


def record_run_environment(plan: Plan) -> Environment:
    """Return the environment for a plan, with the programs that its cells run, and the packages they measure."""
    workloads = {repr(cell.workload): cell.workload for cell in plan.cells}
    return record_environment(
        programs=_list_used_programs(plan),
        agent=find_agent_binary(),
        measured=find_measured_packages(workloads.values()),
    )


def _list_used_programs(plan: Plan) -> tuple[Program, ...]:
    """Return the programs that the plan's cells run on this host, as asking all would take as long as a short run."""
    platforms: dict[str, None] = {}
    for cell in plan.cells:
        platforms |= dict.fromkeys(layer.kind for layer in cell.platform.layers)
    # Disks are created and served by programs that are listed with other platforms than the cell's own.
    disks = any(map(has_disks, plan.cells))
    return registry.programs([cell.workload.name for cell in plan.cells], None if disks else platforms)


def _read_line(file: Path) -> str:
    return procfs.read_text(file).strip()


def _read_processor(root: Path) -> dict[str, Any]:
    """Return a description of the first processor, with a hash of its flags, which are too many to compare by eye."""
    fields: dict[str, str] = {}
    for line in procfs.read_text(root / "proc/cpuinfo").split("\n\n", 1)[0].splitlines():
        name, _, value = line.partition(":")
        fields[name.strip()] = value.strip()
    flags = sorted((fields.get("flags") or fields.get("Features") or "").split())
    family = (fields.get("cpu family", ""), fields.get("model", ""), fields.get("stepping", ""))
    found: dict[str, Any] = {
        "model": _name_processor_model(fields),
        "vendor": fields.get("vendor_id"),
        "family_model_stepping": "/".join(family),
        "microcode": fields.get("microcode"),
        "bugs": fields.get("bugs"),
        "architecture": platform.machine(),
        "count": os.cpu_count(),
        "usable": len(os.sched_getaffinity(0)),
        "flags_sha256": hashlib.sha256(" ".join(flags).encode()).hexdigest()[:16] if flags else None,
        "smt": _read_line(root / "sys/devices/system/cpu/smt/active"),
    }
    return _drop_values(found, None, "", "//")


def _name_processor_model(fields: Mapping[str, str]) -> str:
    if named := fields.get("model name") or fields.get("cpu model"):
        return named
    # On arm64 the kernel gives numbers instead of a model name.
    if "CPU part" in fields:
        return "implementer {CPU implementer}, part {CPU part}".format_map(fields)
    return platform.processor()


def _read_frequency_policy(folder: Path) -> dict[str, Any]:
    policies = sorted((folder / "cpufreq").glob("policy*"))
    found: dict[str, Any] = {}
    for name, file in (
        ("governor", "scaling_governor"),
        ("driver", "scaling_driver"),
        ("minimum_khz", "scaling_min_freq"),
        ("maximum_khz", "scaling_max_freq"),
        ("energy_preference", "energy_performance_preference"),
    ):
        values = sorted({_read_line(policy / file) for policy in policies} - {""})
        if values:
            found[name] = values[0] if len(values) == 1 else values
    if boost := _read_line(folder / "cpufreq/boost"):
        found["boost"] = boost == "1"
    elif no_turbo := _read_line(folder / "intel_pstate/no_turbo"):
        found["boost"] = no_turbo == "0"
    return found


def _list_disks(folder: Path) -> list[dict[str, Any]]:
    """Return descriptions of block devices that have a size and are not backed by files or memory."""
    found = []
    for device in sorted(folder.glob("*")):
        sectors = _read_line(device / "size")
        if device.name.startswith(("loop", "ram", "zram")) or sectors in ("", "0"):
            continue
        vendor, model = _read_line(device / "device/vendor"), _read_line(device / "device/model")
        disk = {
            "name": device.name,
            "bytes": int(sectors) * 512,
            "model": " ".join(filter(None, (vendor, model))),
            "rotational": {"1": True, "0": False}.get(_read_line(device / "queue/rotational")),
            "scheduler": _parse_bracketed_choice(_read_line(device / "queue/scheduler")),
            "write_cache": _read_line(device / "queue/write_cache"),
        }
        found.append(_drop_values(disk, None, ""))
    return found


def _list_filesystems(mounts: Path) -> dict[str, Any]:
    """Return descriptions of the filesystems of directories that usually hold images and host files."""
    live = [line.split(" ") for line in procfs.read_text(mounts).splitlines()]
    found = {}
    for directory in _DIRECTORIES:
        mount = _find_mount(directory, live)
        if mount is not None:
            device, where, kind, options = mount[:4]
            found[directory] = {"device": device, "mounted_at": where, "type": kind, "options": options}
    return found


def _find_mount(directory: str, live: Iterable[list[str]]) -> list[str] | None:
    """Return the fields of the mount that holds the directory: the deepest one."""
    found = None
    for fields in live:
        if len(fields) <= 3 or not _is_below(directory, fields[1]):
            continue
        # Of several at one place, the last one hides the others.
        if found is None or len(fields[1]) >= len(found[1]):
            found = fields
    return found


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _parse_bracketed_choice(text: str) -> str:
    """Return the chosen word of a kernel setting: `madvise` of `always [madvise] never`."""
    return text.partition("[")[2].partition("]")[0]


def _read_distribution(file: Path) -> str:
    for line in procfs.read_text(file).splitlines():
        name, _, value = line.partition("=")
        if name == "PRETTY_NAME":
            return value.strip().strip('"')
    return ""


def _detect_virtualization(root: Path) -> dict[str, Any]:
    """Return signs that this host is itself a guest, the same as systemd-detect-virt uses.

    `hypervisor` is the CPUID bit.
    """
    dmi = root / "sys/class/dmi/id"
    cpuinfo = procfs.read_text(root / "proc/cpuinfo")
    found: dict[str, Any] = {
        "hypervisor": _names_hypervisor(cpuinfo),
        "vendor": _read_line(dmi / "sys_vendor"),
        "product": _read_line(dmi / "product_name"),
        "xen": _read_line(root / "sys/hypervisor/type"),
        "container": _detect_container(root),
        "device_tree": _read_line(root / "proc/device-tree/hypervisor/compatible").strip("\0"),
    }
    return _drop_values(found, "")


def _names_hypervisor(cpuinfo: str) -> bool:
    for line in cpuinfo.splitlines()[:64]:
        if line.startswith("flags") and " hypervisor" in line:
            return True
    return "User Mode Linux" in cpuinfo


def _detect_container(root: Path) -> str:
    if named := _read_line(root / "run/systemd/container"):
        return named
    if (root / ".dockerenv").exists():
        return "docker"
    if (root / "run/.containerenv").exists():
        return "podman"
    return ""


def _read_load(file: Path) -> list[float]:
    try:
        return [float(field) for field in procfs.read_text(file).split()[:3]]
    except ValueError:
        return []


def _ask_versions(programs: Iterable[Program]) -> dict[str, str]:
    """Return the first line that each installed program prints for --version; all run at the same time."""
    found, started = {}, {}
    with start_version_queries() as start:
        for program in programs:
            if (path := program.path) and program.name not in started:
                with contextlib.suppress(OSError):
                    started[program.name] = start(path)
        for name, process in started.items():
            try:
                output, complaints = process.communicate(timeout=_VERSION_LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
                found[name] = "does not answer --version"
                continue
            lines = (output.strip() or complaints.strip()).decode(errors="replace").splitlines()
            found[name] = lines[0][:200] if lines else "says nothing"
    return found


def _describe_guestmark(agent: Path | None) -> dict[str, Any]:
    found: dict[str, Any] = {"version": getattr(guestmark, "__version__", None)}
    if found["version"] is None:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found["version"] = metadata.version("guestmark")
    here = Path(guestmark.__file__).resolve().parent
    checkout = here.parent.parent
    if (checkout / ".git").exists():
        # Both answers from one process: the lines with # are about the branch, the others about changed files.
        lines = _run_git(
            checkout, "status", "--porcelain=v2", "--branch", "--no-ahead-behind", "--untracked-files=no"
        ).splitlines()
        for line in lines:
            if line.startswith(_COMMIT_LINE):
                found["commit"] = line.removeprefix(_COMMIT_LINE)
                found["modified"] = not all(each.startswith("#") for each in lines)
    if agent is not None:
        with contextlib.suppress(OSError):
            found["agent_sha256"] = hashlib.sha256(agent.read_bytes()).hexdigest()
    return _drop_values(found, None)


def _run_git(checkout: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(checkout), *arguments],
            capture_output=True,
            text=True,
            timeout=_VERSION_LIMIT_S,
            check=False,
            env={"PATH": os.environ.get("PATH", os.defpath), "GIT_OPTIONAL_LOCKS": "0"},
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _list_libraries() -> dict[str, str]:
    found = {}
    for library in LIBRARIES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            # `metadata.version` parses the whole text as an e-mail, which takes ten times as long.
            text = metadata.distribution(library).read_text("METADATA") or ""
            version = _VERSION_PATTERN.search(text)
            if version is None:
                found[library] = metadata.version(library)
            else:
                found[library] = version[1]
    return found


_DPKG_STATUS = "var/lib/dpkg/status"
# Libraries and firmware that the programs load, besides the packages of these programs themselves.
_LIBRARY_PACKAGES = (
    "libc6",
    "libglib2.0-0",
    "libglib2.0-0t64",
    "libslirp0",
    "seabios",
    "ipxe-qemu",
    "ovmf",
    "libguestfs0",
)
_INSTALLED_PATTERN = re.compile(r"^Status: \S+ \S+ installed$", re.MULTILINE)
_VERSION_PATTERN = re.compile(r"^Version: (\S+)$", re.MULTILINE)


def read_package_versions(root: Path, measured: Iterable[str] = ()) -> dict[str, str]:
    """Return the version of each package below `root` that figures may depend on; empty without dpkg.

    These are the packages of all programs that guestmark runs, the libraries underneath, and the `measured` ones.
    """
    names = {*(program.package for program in registry.programs()), *_LIBRARY_PACKAGES, *measured}
    try:
        text = (root / _DPKG_STATUS).read_text(errors="replace")
    except OSError:
        return {}
    found = {}
    for entry in text.split("\n\n"):
        name = entry.partition("\n")[0].removeprefix("Package: ")
        if name in names and _INSTALLED_PATTERN.search(entry) and (version := _VERSION_PATTERN.search(entry)):
            found[name] = version[1]
    return found
