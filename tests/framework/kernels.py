"""Kernels for guests that differ in what they can do."""

import re
from pathlib import Path

from guestmark.appliance.kernel import find_kernel

_NINE_P = re.compile(r"\b9p(net)?\w*\.ko")


def without_9p(folder: Path) -> Path:
    """The usual kernel beside modules of which those for 9p are missing, as in Debian's cloud kernel."""
    kernel = find_kernel()
    assert kernel.modules is not None
    modules = folder / "modules"
    modules.mkdir()
    (modules / "kernel").symlink_to((kernel.modules / "kernel").resolve())
    for name in ("modules.builtin", "modules.order"):
        if (kernel.modules / name).exists():
            (modules / name).write_text((kernel.modules / name).read_text())
    listed = sorted((kernel.modules / "kernel").rglob("*.ko*"))
    dependencies = kernel.modules / "modules.dep"
    if dependencies.exists() and dependencies.stat().st_size:
        lines = dependencies.read_text().splitlines()
    else:
        lines = [f"{path.relative_to(kernel.modules)}:" for path in listed]
    (modules / "modules.dep").write_text("".join(f"{line}\n" for line in lines if not _NINE_P.search(line)))
    image = folder / f"vmlinuz-{kernel.release}"
    image.symlink_to(kernel.image)
    return image
