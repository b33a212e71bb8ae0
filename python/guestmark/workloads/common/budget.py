"""How many machines this host has memory for, found out before the first of them is started."""

from guestmark.core import meminfo
from guestmark.core.errors import UsageError
from guestmark.core.model import Cell
from guestmark.core.units import counted, format_size
from guestmark.setting.machine import MEMORY
from guestmark.setting.memory import HUGEPAGES, HugePages

_DECLARED = "1G"  # where a cell says nothing, as guests and sandboxes have
_OVERHEAD = 64 << 20  # of a machine beside its own memory: a hypervisor, a runtime, their page tables
_SHARE = 8  # of the host's memory: what is always left to it
_LEAST_LEFT = 512 << 20


def declared(cell: Cell) -> int:
    """Bytes of memory that each machine of the cell is given; 0 for a plain process, which is given none."""
    if not cell.platform.takes(MEMORY.name):
        return 0
    return MEMORY.among({MEMORY.name: _DECLARED, **cell.factors})


def spare() -> int:
    """Bytes that machines may take now: what is available, less what this host keeps to stay usable."""
    return meminfo.spare(_SHARE, _LEAST_LEFT)


def refuse_too_many(cell: Cell, machines: int, used: int) -> None:
    """Raises `UsageError` when so many machines of the cell, which use `used` bytes each, do not fit into memory.

    A machine may come to use all that it was given. Huge pages were set aside before, and are no longer available.
    """
    pages = HUGEPAGES.among(cell.factors)
    if pages is not HugePages.OFF:
        _refuse_too_few(pages, machines, machines * pages.needed(declared(cell)))
    each = _OVERHEAD + (max(declared(cell), used) if pages is HugePages.OFF else 0)
    room = spare()
    if machines > 1 and machines * each > room:
        raise UsageError(
            f"{machines} machines of {format_size(max(declared(cell), used))} do not fit: {cell.platform} has room for "
            f"{max(0, room // each)} in the {max(0, room) / (1 << 30):.1f} GiB that this host can spare",
            hint=f"ask for fewer, or for smaller ones: --set {MEMORY.name}=256M",
        )


def _refuse_too_few(pages: HugePages, machines: int, needed: int) -> None:
    free = pages.free() or 0
    if free < needed:
        raise UsageError(
            f"{machines} machines need {counted(needed, 'page')} of {pages}, and this host has {free} free",
            hint=f"ask for fewer, or: echo {needed} >{pages.folder}/nr_hugepages",
        )
