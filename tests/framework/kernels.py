"""The version of this host's kernel, and kernels for guests that lack a feature."""

import os
import re
import subprocess
from pathlib import Path

from guestmark.appliance.kernel import find_kernel

KERNEL = tuple(int(word) for word in os.uname().release.split(".")[:2])  # of this host: (6, 1)
_NINE_P = re.compile(r"\b9p(net)?\w*\.ko")


def without_9p(folder: Path, of: Path | None = None) -> Path:
    """Return the usual kernel, or the one in `of`, linked next to modules without 9p, like Debian's cloud kernel."""
    kernel = find_kernel(str(next(of.glob("vmlinuz-*"))) if of else "")
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


def cloud(folder: Path) -> Path:
    """Download Debian's cloud kernel, which has no 9p, and return its path; its modules are beside it."""
    depends = subprocess.run(
        ["apt-cache", "depends", "linux-image-cloud-amd64"], capture_output=True, text=True, check=True
    ).stdout
    package = next(line.split()[-1] for line in depends.splitlines() if "Depends: linux-image-" in line)
    subprocess.run(["apt-get", "download", package], cwd=folder, check=True, capture_output=True)
    (archive,) = folder.glob("*.deb")
    subprocess.run(["dpkg-deb", "-x", archive, folder], check=True)
    (kernel,) = (folder / "boot").glob("vmlinuz-*")
    return kernel
