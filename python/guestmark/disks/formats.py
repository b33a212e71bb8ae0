"""Image formats: how images are made in each, named to QEMU's programs, and checked."""

from dataclasses import dataclass
from pathlib import Path

KEY_ID = "image-key"
KEY = "guestmark"  # protects nothing: it is in every command line


@dataclass(frozen=True, slots=True)
class Format:
    """One format, by QEMU's name. `tables`: how much larger than its disk an image may get; `checked`: it can be."""

    name: str
    help: str
    tables: float = 1.01
    checked: bool = True
    encrypted: bool = False
    create: tuple[str, ...] = ()  # options of `qemu-img create` and `convert`

    @property
    def objects(self) -> tuple[str, ...]:
        """What a program of QEMU's needs before it can open such an image."""
        return ("--object", f"secret,id={KEY_ID},data={KEY}") if self.encrypted else ()

    def named(self, image: Path) -> tuple[str, ...]:
        """The image for `qemu-img`."""
        if not self.encrypted:
            return "-f", self.name, str(image)
        path = str(image).replace(",", ",,")
        return *self.objects, "--image-opts", f"driver={self.name},key-secret={KEY_ID},file.filename={path}"


FORMATS = {
    each.name: each
    for each in (
        Format("raw", "the disk's bytes", tables=1.0, checked=False),
        Format("qcow2", "QEMU's own"),
        Format("vmdk", "VMware's, sparse"),
        Format("vdi", "VirtualBox's"),
        # Its payload blocks are of several megabytes.
        Format("vhdx", "Hyper-V's", tables=1.05, create=("subformat=dynamic",)),
        Format(
            "luks",
            "encrypted",
            checked=False,
            encrypted=True,
            # A key that is hard to guess would take seconds to derive.
            create=(f"key-secret={KEY_ID}", "iter-time=10"),
        ),
    )
}
# Factors of qcow2 alone.
VARIANTS = ("subclusters", "compression", "backing")
