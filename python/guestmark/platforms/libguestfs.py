"""libguestfs on this host: the appliance that its guests boot, and the environment that its programs need.

libguestfs builds its appliance with supermin, which needs a kernel in /boot and its modules with an index in
/lib/modules. On hosts without them (containers, small virtual machines), the kernel of guestmark's guests is used: a
private copy of its module tree gets the index, and environment variables point there. Nothing on the host is changed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from guestmark.agent.confinement import BUILDER, TEMPORARY_FILES
from guestmark.appliance.kernel import find_kernel
from guestmark.appliance.paths import locate_cache
from guestmark.core.errors import MachineError, PlatformUnusableError
from guestmark.core.keeper import keeper
from guestmark.core.temporary import replace_file
from guestmark.platforms.process import SupervisedProcess

GUESTFISH = "guestfish"
_BUILD_S = 300.0
_PACKAGE_DATABASES = ("/var/lib/dpkg/status", "/var/lib/rpm", "/usr/lib/sysimage/rpm")


def prepare(accelerator: str) -> dict[str, str]:
    """Returns the environment for launching libguestfs here with `accelerator`; builds the appliance if it is missing.

    Raises `PlatformUnusableError` if a program is missing, `MachineError` if the appliance cannot be built.
    """
    missing = [program for program in (GUESTFISH, "supermin", "depmod") if shutil.which(program) is None]
    if missing:
        verb = "are"
        if len(missing) == 1:
            verb = "is"
        raise PlatformUnusableError(
            f"{' and '.join(missing)} {verb} not installed",
            hint="install libguestfs and its tools (Debian: apt-get install guestfish kmod)",
        )
    home = locate_cache() / "libguestfs"
    home.mkdir(exist_ok=True)
    environment = {
        "LIBGUESTFS_BACKEND": "direct",
        "LIBGUESTFS_BACKEND_SETTINGS": "force_tcg",  # the appliance is built without /dev/kvm
        "LIBGUESTFS_CACHEDIR": str(home),
        **_build_kernel_environment(home),
    }
    _build_appliance(home, environment)
    _let_launch_find_kvm(find_appliance_home(home))
    return {**environment, "LIBGUESTFS_BACKEND_SETTINGS": f"force_{accelerator}"}


def _build_kernel_environment(home: Path) -> dict[str, str]:
    """Returns variables that name a kernel for supermin; none if it finds the host's by itself."""
    for image in Path("/boot").glob("vmlinu*"):
        release = image.name.partition("-")[2]
        # supermin uses a kernel only if it can read it and finds its modules. Ubuntu's kernels are readable only by
        # root.
        if os.access(image, os.R_OK) and Path("/lib/modules", release, "modules.dep").exists():
            return {}
    if not Path("/lib/modules").is_dir():  # supermin also looks there, whatever SUPERMIN_MODULES is
        raise PlatformUnusableError(
            "libguestfs cannot build its appliance: supermin needs the directory /lib/modules",
            hint="create an empty one, as root: mkdir /lib/modules",
        )
    kernel = find_kernel()
    if kernel.modules is None:
        raise PlatformUnusableError(
            f"libguestfs needs the modules of its kernel, but {kernel.image} has none",
            hint="install your distribution's kernel package",
        )
    # supermin needs depmod's index, which a package's module tree does not have until the package is installed.
    tree = home / "lib" / "modules" / kernel.release
    if not (tree / "modules.dep").exists() or tree.stat().st_mtime < kernel.modules.stat().st_mtime:
        _index_modules(kernel.modules, home, kernel.release)
    return {
        "SUPERMIN_KERNEL": str(kernel.image),
        "SUPERMIN_KERNEL_VERSION": kernel.release,
        "SUPERMIN_MODULES": str(tree),
    }


def _index_modules(modules: Path, home: Path, release: str) -> None:
    """Copies the module tree, with hard links if possible, and creates its index."""
    scratch = keeper().directory("modules", home.resolve())
    try:
        staged = Path(scratch, "lib", "modules", release)
        shutil.copytree(modules, staged, copy_function=_link_or_copy)
        done = subprocess.run(["depmod", "-b", str(scratch), release], capture_output=True, check=False)
        _check_status(done.returncode, done.stderr.decode(errors="replace"), "depmod")
        index = (staged / "modules.dep").read_text()
        if "t10-pi.ko" not in index:  # without it no SCSI disk appears in libguestfs's guest
            raise PlatformUnusableError(
                f"the kernel modules in {modules} lack some that libguestfs needs",
                hint=f"remove {modules.parent}; it is downloaded again when needed",
            )
        # The tree is put in place by a rename, so that other processes never see one without an index.
        target = home / "lib" / "modules" / release
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(target, ignore_errors=True)
        staged.rename(target)
    finally:
        keeper().remove(scratch)


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _build_appliance(home: Path, environment: Mapping[str, str]) -> None:
    """Has libguestfs build its appliance if it is missing or older than the host's packages.

    Otherwise a measured launch would build it.
    """
    appliance = find_appliance_home(home) / "appliance.d"
    changed = max(
        (path.stat().st_mtime for path in map(Path, _PACKAGE_DATABASES) if path.exists()), default=0.0
    )
    # supermin also builds the appliance again if one of its files is older.
    if min((path.stat().st_mtime for path in appliance.glob("*")), default=-1.0) >= changed:
        return
    # Packages that are installed during the build must be newer than the appliance.
    begin = time.time()
    process = SupervisedProcess(GUESTFISH, replace(BUILDER, writes_tmp=True, sockets=True))
    try:
        process.start(
            [*build_environment_prefix(environment, process.scratch), GUESTFISH, "-a", "/dev/null", "run"],
            writable=[home],
        )
        status = process.wait(_BUILD_S)
    finally:
        process.stop()
    if status is None:
        raise MachineError(f"libguestfs did not build its appliance within {_BUILD_S:.0f} s")
    _check_status(status, process.console.read_text(), "libguestfs")
    for path in appliance.glob("*"):
        os.utime(path, (begin, begin))


def _let_launch_find_kvm(directory: Path) -> None:
    """Changes libguestfs's cached answer to whether KVM works, so that a launch leaves that to QEMU.

    libguestfs queries QEMU once and caches the answer. The query is made while the appliance is built, without
    /dev/kvm, and an outer guest reads the same cache as this host. With `force_kvm` libguestfs would then refuse to
    launch; with `force_tcg` the answer has no effect.
    """
    for answer in directory.glob("qemu-*.query-kvm"):
        said = answer.read_text()
        if (corrected := said.replace('"enabled": false', '"enabled": true')) != said:
            with replace_file(answer, mode=0o644) as written:
                written.write_text(corrected)


def find_appliance_home(cache: Path | str) -> Path:
    """Returns the directory in which libguestfs keeps the appliance of this user."""
    return Path(cache, f".guestfs-{os.geteuid()}")


def build_environment_prefix(environment: Mapping[str, str], scratch: Path) -> list[str]:
    """Returns the prefix of a libguestfs command: its environment, with temporary files in `scratch`.

    Sockets are in `/tmp`, as root's always are, because elsewhere their paths may be too long.
    """
    settings = {**environment, "TMPDIR": str(scratch)}
    return ["env", "--unset=XDG_RUNTIME_DIR", *(f"{name}={value}" for name, value in settings.items())]


def _check_status(status: int, said: str, what: str) -> None:
    if status:
        lines = said.strip().splitlines() or ["no message"]
        raise MachineError(
            f"{what} failed: {lines[0]}",
            hint="run libguestfs-test-tool for details; guestmark uses LIBGUESTFS_BACKEND=direct",
            console="\n".join(lines),
        )


@dataclass(frozen=True, slots=True)
class ScriptResult:
    """The exit status of guestfish, and its output with that of its commands."""

    status: int
    output: str


def quote_word(text: str) -> str:
    """Return a word of guestfish's scripts, which are split at blanks."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def run_script(
    options: Sequence[str],
    script: Sequence[str],
    accelerator: str,
    timeout_s: float,
    writable: Sequence[Path],
) -> ScriptResult:
    """Run guestfish with these options and commands; of this host's files it can change only those in `writable`.

    Raises `PlatformUnusableError` if libguestfs is not installed, `MachineError` if guestfish does not end in time.
    """
    environment = prepare(accelerator)
    lock = find_appliance_home(environment["LIBGUESTFS_CACHEDIR"]) / "lock"
    # Confinement can make only existing files writable.
    lock.touch()
    process = SupervisedProcess(GUESTFISH, TEMPORARY_FILES)
    try:
        commands = process.scratch / "script"
        commands.write_text("\n".join(script) + "\n")
        process.start(
            [
                *build_environment_prefix(environment, process.scratch),
                GUESTFISH,
                *options,
                "-f",
                str(commands),
            ],
            writable=(lock, *writable),
        )
        status = process.wait(timeout_s)
        process.console.wait_for_end()
        if status is None:
            raise MachineError(f"guestfish did not end within {timeout_s:.0f} s")
        return ScriptResult(status, process.console.read_text())
    finally:
        process.stop()
