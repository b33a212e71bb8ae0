"""A program of another architecture beside this host's: another binary, at best of the same source."""

from guestmark.core.architectures import Architecture
from guestmark.core.findings import Build
from guestmark.core.model import Cell
from guestmark.core.workload_kind import packages_of
from guestmark.foreign import roots
from guestmark.foreign.origin import package_of


def build_of(cell: Cell, name: str, host_path: str) -> Build | None:
    """What is known of the program on the cell's machine and on this host; None where they are one and the same."""
    architecture = cell.platform.foreign
    if architecture is None:
        return None
    here = package_of(host_path) if host_path else None
    root = roots.find(architecture, packages_of(cell)) if architecture.root else None
    there = root.packages.get(here.name) if root and here else None
    return Build(
        architecture=architecture.name,
        package=there.name if there else None,
        version=there.version if there else None,
        host_version=here.version if here else None,
        same_source=(there.source, there.source_version) == (here.source, here.source_version)
        if there and here
        else None,
        said=_said(architecture, name, there.version if there else "", here.version if here else ""),
    )


def _said(architecture: Architecture, name: str, version: str, host_version: str) -> str:
    if not version:
        return f"another build: {name}, {architecture.name}"
    if version.partition("+b")[0] == host_version.partition("+b")[0]:
        return f"another build: {name} {version}, {architecture.name}"
    return f"another version: {name} {version}, {architecture.name} (this host: {host_version or 'not a package'})"
