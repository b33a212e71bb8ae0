"""Bytes moved into a guest's disk in every way there is, and read back."""

from guestmark.core.factor import Factor
from guestmark.core.metric import Metric
from guestmark.core.workload_kind import Topic, WorkloadKind, agent_is_enough, runs_programs
from guestmark.workloads.common.factors import BLOCK_SIZE
from guestmark.workloads.common.metrics import CHANNEL, READING, WRITING, MovedBytes


def _writing(_moved: MovedBytes) -> tuple[Metric, ...]:
    return WRITING


def _upload_label(moved: MovedBytes) -> str:
    return {
        "full": f"upload of {moved.amount}",
        "channel": f"{moved.amount} through the channel only",
        "disk": f"{moved.amount} written in the guest only",
    }[moved.variant]


def _moves(
    name: str,
    text: str,
    model: str,
    verb: str,
    *,
    module: str = "copying",
    factors: tuple[Factor, ...] = (BLOCK_SIZE,),
    programs: bool = False,
) -> WorkloadKind:
    return WorkloadKind(
        name,
        text,
        params=f"guestmark.workloads.disk.params:{model}",
        run=f"guestmark.workloads.disk.{module}:{name.capitalize()}Workload",
        metrics=_writing,
        label=lambda moved: f"{verb} {moved.amount}",
        reads=MovedBytes,
        moves=lambda moved: moved.bytes,
        factors=factors,
        needs_root=runs_programs if programs else agent_is_enough,
    )


WORKLOADS = (
    WorkloadKind(
        "upload",
        "sends bytes from the host through the guest's channel into a file",
        params="guestmark.workloads.disk.params:Upload",
        run="guestmark.workloads.disk.upload:UploadWorkload",
        metrics=lambda moved: CHANNEL if moved.variant == "channel" else WRITING,
        label=_upload_label,
        topic=Topic.TRANSFER,
        reads=MovedBytes,
        moves=lambda moved: moved.bytes,
        needs_root=agent_is_enough,
    ),
    _moves("dd", "copies a second disk into a file, one block at a time", "FromDisk", "dd of"),
    _moves(
        "direct",
        "copies a second disk into a file with O_DIRECT",
        "Direct",
        "direct copy of",
    ),
    _moves(
        "share",
        "copies a file from the shared host filesystem",
        "Sourced",
        "copy from the share of",
        programs=True,
    ),
    _moves(
        "tar",
        "sends a compressed archive and unpacks it in the guest",
        "Sourced",
        "tar.gz of",
        module="upload",
        factors=(),
        programs=True,
    ),
    _moves("fill", "writes a pattern in the guest", "Moved", "fill of"),
    _moves(
        "filewrite",
        "writes a file in the guest, one block after the other",
        "Moved",
        "write of",
    ),
    WorkloadKind(
        "fileread",
        "reads a file back in the guest after unmounting and mounting again",
        params="guestmark.workloads.disk.params:Read",
        run="guestmark.workloads.disk.copying:FilereadWorkload",
        metrics=lambda _params: READING,
        label=lambda moved: f"read of {moved.amount}",
        reads=MovedBytes,
        moves=lambda moved: moved.bytes,
        factors=(BLOCK_SIZE,),
        needs_root=agent_is_enough,
    ),
)
