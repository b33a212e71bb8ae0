"""libguestfs as a peer: the real guestfish in a guest of its own moves bytes, makes calls, or only starts."""

from guestmark.core.platform_kind import Program
from guestmark.core.workload_kind import Topic, WorkloadKind, takes_only
from guestmark.workloads.boot import ALL as BOOT_METRICS
from guestmark.workloads.common.metrics import LAUNCHING, MovedBytes
from guestmark.workloads.guestfs.session import SESSION, Rounds

_PROGRAMS = (Program("guestfish", "guestfish"),)
_GUEST = takes_only("memory", "smp", "placement")
_GUEST_AND_DISK = takes_only(
    "memory", "smp", "placement", "format", "preallocation", "cluster_size", "location", "size", "filesystem", "mkfs",
    "mount",
)  # fmt: skip


def _session_label(params: Rounds) -> str:
    from guestmark.workloads.guestfs.session import number_of_calls

    return f"libguestfs session of {number_of_calls(params.rounds)} calls"


WORKLOADS = (
    WorkloadKind(
        "guestfish",
        "has libguestfs move the bytes, in its own guest",
        params="guestmark.workloads.guestfs.own_guest:UploadParams",
        run="guestmark.workloads.guestfs.upload:GuestfishWorkload",
        metrics=lambda _params: LAUNCHING,
        label=lambda moved: f"guestfish {moved.method} of {moved.amount}",
        reads=MovedBytes,
        moves=lambda moved: moved.bytes,
        takes=_GUEST_AND_DISK,
        programs=_PROGRAMS,
        peer=True,
    ),
    WorkloadKind(
        "guestfs-api",
        "makes several hundred calls of libguestfs's API through guestfish; its launch is measured apart",
        params="guestmark.workloads.guestfs.own_guest:ApiParams",
        run="guestmark.workloads.guestfs.own_guest:GuestfsApiWorkload",
        metrics=lambda _params: SESSION,
        label=_session_label,
        reads=Rounds,
        topic=Topic.CALLS,
        takes=_GUEST,
        programs=_PROGRAMS,
    ),
    WorkloadKind(
        "guestfs-run",
        "how libguestfs's guest starts and shuts down: guestfish ... run",
        params="guestmark.workloads.guestfs.own_guest:RunParams",
        run="guestmark.workloads.guestfs.own_guest:GuestfsRunWorkload",
        metrics=lambda _params: BOOT_METRICS,
        label=lambda _params: "guestfish run",
        sections=("guestmark.workloads.boot.sections:sections",),
        takes=_GUEST,
        programs=_PROGRAMS,
    ),
)
