"""Workloads that measure libguestfs as a peer: guestfish moves bytes, makes calls, or only starts its guest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

from guestmark.core.params import Params, param
from guestmark.core.platform_kind import Program
from guestmark.core.workload_kind import Topic
from guestmark.workloads.base import Sections, Workload
from guestmark.workloads.boot import ALL as BOOT_METRICS
from guestmark.workloads.common.metrics import LAUNCHING
from guestmark.workloads.common.moved import SourcedBytes, list_packed_files
from guestmark.workloads.guestfs.session import SESSION, GuestfsApiParams, count_calls

_PROGRAMS = (Program("guestfish", "guestfish"),)
_OF_GUEST = frozenset({"memory", "smp", "placement"})
_OF_DISK = frozenset(
    {"format", "preallocation", "cluster_size", "location", "size", "filesystem", "mkfs", "mount"}
)


class GuestfishParams(SourcedBytes, frozen=True, kw_only=True):
    """`method` is the guestfish command to use; `fill` allows only the `content` zero or one."""

    method: Annotated[
        str, param("guestfish command to use", accepts=Literal["upload", "copy", "tgz-in", "fill"])
    ] = "upload"

    @classmethod
    def make(cls, **given: Any) -> Self:
        """Creates the parameters and derives the disks, which guestfish's own guest gets.

        Raises `ValueError` for a pattern that guestfish does not support.
        """
        made = super().make(**given)
        if made.method == "fill" and (made.content == "random" or made.file is not None):
            raise ValueError("guestfish can fill only with zero or one")
        return made


class GuestfishWorkload(Workload[GuestfishParams]):
    """Moves bytes with libguestfs."""

    name = "guestfish"
    help = "has libguestfs move the bytes, in its own guest"
    measures = LAUNCHING
    programs = _PROGRAMS
    only_factors = _OF_GUEST | _OF_DISK
    peer = True

    @classmethod
    def describe_params(cls, params: GuestfishParams) -> str:
        """Names guestfish's command and the amount."""
        return f"guestfish {params.method} of {params.amount}"

    @classmethod
    def list_host_files(cls, params: GuestfishParams) -> Sequence[tuple[str, int]]:
        """Returns the file that is sent, and its archive where that is unpacked."""
        files = list_packed_files(params.source)
        return files if params.method == "tgz-in" else files[:1]

    @classmethod
    def moved_bytes(cls, params: GuestfishParams) -> int | None:
        """Returns the number of bytes that need room on the target."""
        return params.amount_bytes

    @classmethod
    def trial_class(cls) -> type[Workload[GuestfishParams]]:
        """Imports and returns the class of its trials; done late because its imports are slow."""
        from guestmark.workloads.guestfs.upload import GuestfishTrial

        return GuestfishTrial


class GuestfsApiWorkload(Workload[GuestfsApiParams]):
    """Runs a session of many calls."""

    name = "guestfs-api"
    help = (
        "makes several hundred calls to libguestfs's API through guestfish; "
        "the launch of its guest is measured separately"
    )
    measures = SESSION
    topic = Topic.CALLS
    programs = _PROGRAMS
    only_factors = _OF_GUEST

    @classmethod
    def describe_params(cls, params: GuestfsApiParams) -> str:
        """Returns the number of calls in a session, in words."""
        return f"libguestfs session of {count_calls(params.rounds)} calls"

    @classmethod
    def trial_class(cls) -> type[Workload[GuestfsApiParams]]:
        """Imports and returns the class of its trials; done late because its imports are slow."""
        from guestmark.workloads.guestfs.own_guest import GuestfsApiTrial

        return GuestfsApiTrial


class GuestfsRunParams(Params, frozen=True, kw_only=True):
    """`phases` adds a second launch to each trial, whose messages show the phases."""

    phases: Annotated[bool, param("launch a second time to trace the phases")] = True


class GuestfsRunWorkload(Workload[GuestfsRunParams]):
    """Launches libguestfs and does nothing else."""

    name = "guestfs-run"
    help = "times the start and shutdown of libguestfs's guest: guestfish ... run"
    measures = BOOT_METRICS
    programs = _PROGRAMS
    only_factors = _OF_GUEST

    @classmethod
    def describe_params(cls, params: GuestfsRunParams) -> str:
        """Returns the command as it would be typed."""
        return "guestfish run"

    @classmethod
    def trial_class(cls) -> type[Workload[GuestfsRunParams]]:
        """Imports and returns the class of its trials; done late because its imports are slow."""
        from guestmark.workloads.guestfs.own_guest import GuestfsRunTrial

        return GuestfsRunTrial

    @classmethod
    def report_sections(cls) -> tuple[Sections, ...]:
        """Adds the phases, drawn as for `boot`."""
        from guestmark.workloads.boot.sections import render_phases

        return (render_phases,)
