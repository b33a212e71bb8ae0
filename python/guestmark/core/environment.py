"""The record of a run's environment: the names and types of its values.

Unknown facts are absent. Sizes are in bytes, frequencies as the kernel writes them, in kHz.
"""

import hashlib
from typing import Any, TypedDict

import msgspec


class Processor(TypedDict, total=False):
    """The first processor, and the number of processors."""

    model: str
    vendor: str
    family_model_stepping: str
    microcode: str
    bugs: str
    architecture: str
    count: int
    usable: int
    flags_sha256: str
    smt: str


class Frequency(TypedDict, total=False):
    """What determines the processors' speed; several values where processors differ."""

    governor: str | list[str]
    driver: str | list[str]
    minimum_khz: str | list[str]
    maximum_khz: str | list[str]
    energy_preference: str | list[str]
    boost: bool


class Kernel(TypedDict, total=False):
    """The host's kernel."""

    release: str
    version: str
    command_line: str


class Disk(TypedDict, total=False):
    """A block device of the host."""

    name: str
    bytes: int
    model: str
    rotational: bool
    scheduler: str
    write_cache: str


class Mount(TypedDict):
    """The filesystem that a directory is on."""

    device: str
    mounted_at: str
    type: str
    options: str


class Virtualization(TypedDict, total=False):
    """Whether the host is a guest itself."""

    hypervisor: bool
    vendor: str
    product: str
    xen: str
    container: str
    device_tree: str


class Guestmark(TypedDict, total=False):
    """The version of guestmark that measured."""

    version: str
    commit: str
    modified: bool
    agent_sha256: str


class Environment(TypedDict, total=False):
    """A description of the host; a run has one for each time that it was started or resumed."""

    recorded_at: str
    command_line: list[str]
    machine: str
    processor: Processor
    frequency: Frequency
    memory_bytes: int
    memory_available_bytes: int
    swap_bytes: int
    swap_free_bytes: int
    disks: list[Disk]
    filesystems: dict[str, Mount]
    transparent_hugepages: str
    # Values by kind of setting that `guestmark quiet` set on the host; a sentence if one has changed since.
    quiet: dict[str, str]
    kernel: Kernel
    distribution: str
    virtualization: Virtualization
    mitigations: dict[str, str]
    load: list[float]
    programs: dict[str, str]
    packages: dict[str, str]
    guestmark: Guestmark
    python: dict[str, str]
    libraries: dict[str, str]


def hash_machine_id(name: str) -> str:
    """Return a hash that identifies a machine, derived from its machine id or host name; empty without one.

    machine-id(5) asks programs not to expose the id itself.
    """
    return hashlib.sha256(f"guestmark {name}".encode()).hexdigest()[:16] if name else ""


def explain_problem(record: Any) -> str:
    """Return in one line what is wrong with an imported record; empty if it is valid."""
    try:
        msgspec.convert(record, Environment)
    except msgspec.ValidationError as error:
        return str(error)
    return ""
