"""The kernel of another architecture: the distribution's own if it has one, else a small one built from source."""

from __future__ import annotations

import gzip
import os
import re
import shutil
import subprocess
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from guestmark.appliance.kernel import Kernel, check_image, make_version_key, unpack_kernel
from guestmark.core.architectures import Architecture, Source
from guestmark.core.errors import GuestmarkError
from guestmark.core.platform_kind import Program
from guestmark.foreign import store
from guestmark.foreign.commands import run_command
from guestmark.foreign.packages import Packages, describe_archives, query_apt_cache
from guestmark.foreign.progress import Progress

KIND = "kernel"
_IMAGE, _RELEASE, _CONFIG, _MODULES = "image", "release", "config", "modules"
_BUILD_EXPECTED_S, _FETCH_EXPECTED_S = 150.0, 12.0
# Bytes for the sources and the compiled files.
_BUILD_NEEDS = 3 << 30
_BUILD_PROGRAMS = (
    Program("make", "make"),
    Program("flex", "flex"),
    Program("bison", "bison"),
    Program("bc", "bc"),
    Program("xz", "xz-utils"),
    Program("gcc", "gcc"),
)
_SOURCES = Path("/usr/src")
# Most sources are for drivers and processors that these machines do not have. Only their Kconfig files are needed.
_OTHER_DRIVERS = ("gpu", "infiniband", "iio", "media", "net", "scsi", "staging", "usb")
# Linux's names of processors; some of x86's headers are needed for all.
_OTHER_PROCESSORS = (
    "alpha", "arc", "arm", "arm64", "csky", "hexagon", "loongarch", "m68k", "microblaze", "mips", "nios2", "openrisc",
    "parisc", "powerpc", "riscv", "s390", "sh", "sparc", "um", "xtensa",
)  # fmt: skip
# Without these options a guest cannot start its agent.
REQUIRED = ("BLK_DEV_INITRD", "VIRTIO", "VIRTIO_CONSOLE", "DEVTMPFS", "PROC_FS", "SYSFS", "TMPFS")


def find_built_kernel(architecture: Architecture) -> Kernel | None:
    """Returns the kernel that was downloaded or built earlier; None if there is none."""
    part = store.find_part(architecture, KIND, compute_key(architecture))
    return None if part is None else _load_kernel(architecture, part)


def list_left_out(architecture: Architecture) -> list[str]:
    """Returns patterns for the files of the kernel's source that its kernel is built without."""
    patterns = [f"*/drivers/{name}/*.[ch]" for name in _OTHER_DRIVERS]
    patterns.append("*/sound/*.[chS]")
    for name in _OTHER_PROCESSORS:
        # Its `kernel_arch` may have a suffix that the directory lacks, as sparc64 has.
        if not architecture.kernel_arch.startswith(name):
            patterns.append(f"*/arch/{name}/*.[chS]")
    return [*patterns, "*.dts*", "*/tools/testing", "*/Documentation/*/*"]


def compute_key(architecture: Architecture) -> str:
    """Returns a key that changes with what guestmark chooses: the package's name, or the configuration."""
    if architecture.kernel is Source.DISTRIBUTION:
        return store.hash_inputs([architecture.kernel_package])
    return store.hash_inputs(
        [read_fragment(architecture), architecture.kernel_image, list_left_out(architecture)]
    )


def read_fragment(architecture: Architecture) -> str:
    """Returns the configuration options that are added to `tinyconfig`."""
    return resources.files("guestmark.foreign").joinpath(f"{architecture.name}.config").read_text()


def list_missing(architecture: Architecture) -> list[Program]:
    """Returns the programs that are needed to get the kernel but not installed."""
    if architecture.kernel is Source.DISTRIBUTION:
        return []
    needed = (*_BUILD_PROGRAMS, architecture.cross)
    return [program for program in needed if shutil.which(program.name) is None]


def estimate_s(architecture: Architecture) -> float:
    """Returns the seconds that downloading or building the kernel takes on two processors."""
    if architecture.kernel is Source.DISTRIBUTION:
        return _FETCH_EXPECTED_S
    return _BUILD_EXPECTED_S


def make_kernel(architecture: Architecture, progress: Progress) -> Kernel:
    """Downloads or builds the kernel. Raises `GuestmarkError`."""
    with store.make_part(architecture, KIND, compute_key(architecture), progress) as making:
        if architecture.kernel is Source.DISTRIBUTION:
            part = _fetch_kernel(architecture, making, progress)
        else:
            part = _build_kernel(architecture, making, progress)
    return _load_kernel(architecture, part)


def _load_kernel(architecture: Architecture, part: Path) -> Kernel:
    modules: Path | None = part / _MODULES
    if not (part / _MODULES).is_dir():
        modules = None
    release = (part / _RELEASE).read_text().strip()
    return Kernel(release, part / _IMAGE, None, modules, architecture.kernel.value)


def _fetch_kernel(architecture: Architecture, making: store.PartInMaking, progress: Progress) -> Path:
    packages = Packages(architecture, progress)
    packages.refresh_lists(making.log)
    versioned = packages.list_dependencies(architecture.kernel_package, r"linux-image-\d")
    if not versioned:
        raise GuestmarkError(
            f"the package sources of this system have no {architecture.kernel_package} for {architecture.name}",
            hint=f"choose a kernel for tcg@{architecture.name}: --set kernel=FILE",
        )
    archives = packages.download_packages(versioned[:1], making.scratch / "archives", making.log, alone=True)
    image, modules, config = unpack_kernel(archives, making.scratch / "root")
    release = image.name.partition("-")[2]
    image.rename(making.path / _IMAGE)
    modules.rename(making.path / _MODULES)
    config.rename(making.path / _CONFIG)
    (making.path / _RELEASE).write_text(f"{release}\n")
    found = describe_archives(archives)[versioned[0]]
    return making.complete({found.name: found.version}, (_IMAGE, _RELEASE))


def _build_kernel(architecture: Architecture, making: store.PartInMaking, progress: Progress) -> Path:
    log, scratch = making.log, making.scratch
    if shutil.disk_usage(scratch).free < _BUILD_NEEDS:
        raise GuestmarkError(
            f"building a kernel needs {_BUILD_NEEDS >> 30} GB of temporary space, but {scratch.parent.parent} has less",
            hint="put the cache elsewhere: XDG_CACHE_HOME=DIRECTORY guestmark …",
        )
    archive = _get_source_archive(scratch, log, progress)
    left_out = [f"--exclude={pattern}" for pattern in list_left_out(architecture)]
    tree = scratch / "linux"
    tree.mkdir()
    run_command(
        ["tar", "-xf", str(archive), "-C", str(tree), "--strip-components=1", *left_out],
        "unpacking the kernel's source", log=log, progress=progress, cwd=scratch, expected_s=40,
    )  # fmt: skip
    corrected = correct_sources(tree, architecture.name)
    out = scratch / "out"
    out.mkdir()
    # The agent is compiled at the same time and has priority, because the kernel is of no use without it.
    make_it = [
        "nice", "make", "-s", "-C", str(tree), f"O={out}", f"ARCH={architecture.kernel_arch}",
        f"CROSS_COMPILE={architecture.cross_prefix}", "KCFLAGS=-w",
    ]  # fmt: skip
    # These variables make builds reproducible: the kernel does not depend on who builds it, or when.
    always = {
        "KBUILD_BUILD_TIMESTAMP": "1970-01-01",
        "KBUILD_BUILD_USER": "guestmark",
        "KBUILD_BUILD_HOST": "guestmark",
        "KBUILD_BUILD_VERSION": "1",
        "KCONFIG_ALLCONFIG": "/dev/null",
        "MAKEFLAGS": "",
    }

    def build(what: str, *targets: str, expected_s: float | None = None) -> None:
        run_command(
            [*make_it, *targets], what,
            log=log, progress=progress, cwd=scratch, env=always, expected_s=expected_s,
        )  # fmt: skip

    build("configuring the kernel", "tinyconfig", expected_s=15)
    with (out / ".config").open("a") as config:
        config.write(read_fragment(architecture))
    build("configuring the kernel", "olddefconfig", expected_s=5)
    check_configuration((out / ".config").read_text(), f"the kernel for {architecture.name}")
    jobs = len(os.sched_getaffinity(0))
    build(
        f"building a kernel for {architecture.name}",
        f"-j{jobs}", Path(architecture.kernel_image).name, expected_s=_BUILD_EXPECTED_S * 2 / jobs,
    )  # fmt: skip
    shutil.copyfile(out / architecture.kernel_image, making.path / _IMAGE)
    shutil.copyfile(out / ".config", making.path / _CONFIG)
    shutil.copyfile(out / "include/config/kernel.release", making.path / _RELEASE)
    compiler = subprocess.run(
        [architecture.cross.name, "--version"], capture_output=True, text=True, check=True
    ).stdout.splitlines()[0]
    made_from = {"source": archive.name, "compiler": compiler}
    if corrected:
        made_from["corrected"] = "; ".join(corrected)
    return making.complete(made_from, (_IMAGE, _RELEASE, _CONFIG))


def _get_source_archive(scratch: Path, log: Path, progress: Progress) -> Path:
    """Returns the archive with the distribution's kernel source: the installed one, or one downloaded for it."""
    installed = sorted(_SOURCES.glob("linux-source-*.tar.xz"), key=lambda path: make_version_key(path.name))
    if installed:
        return installed[-1]
    names = re.findall(
        r"Depends: (linux-source-[\d.]+)", query_apt_cache(("depends", "--important", "linux-source"))
    )
    if not names:
        raise GuestmarkError(
            "the package lists have no linux-source to build a kernel from",
            hint="run apt-get update as root, or copy the kernel from another machine: guestmark prepare --help",
        )
    run_command(
        ["apt-get", "-qq", "download", names[0]], f"downloading {names[0]} (140 MB)",
        log=log, progress=progress, cwd=scratch, expected_s=30,
    )  # fmt: skip
    (package,) = scratch.glob("linux-source-*.deb")
    run_command(
        ["dpkg-deb", "-x", str(package), str(scratch / "source")], f"unpacking {names[0]}",
        log=log, progress=progress, cwd=scratch, expected_s=5,
    )  # fmt: skip
    (archive,) = (scratch / "source").glob("usr/src/*.tar.xz")
    return archive


def describe_user_kernel(architecture: Architecture, wanted: str) -> Kernel:
    """Returns the kernel in the user's file `wanted`. Raises `GuestmarkError` if guests cannot boot it."""
    image = Path(wanted).expanduser().absolute()
    if not image.is_file():
        raise GuestmarkError(f"there is no kernel {wanted}", hint="use the path of a kernel image")
    data = image.read_bytes()
    if data[:2] == b"\x1f\x8b":
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError, zlib.error) as error:
            raise GuestmarkError(
                f"{wanted} cannot be unpacked: {error}", hint="it may be incomplete; copy it again"
            ) from error
    check_image(architecture, data, wanted)
    said_itself = re.search(rb"Linux version (\d[\w.+~-]{,90}) ", data)
    # An image that is compressed in a format of its own does not say its release, but its file may be named after it.
    release = re.sub(r"^(vmlinu[xz]|image|Image)-?", "", image.name)
    if said_itself:
        release = said_itself[1].decode("ascii")
    config = image.with_name(f"config-{release}")
    if not config.is_file():
        config = image.with_name(_CONFIG)
    if config.is_file():
        check_configuration(config.read_text(errors="replace"), wanted)
    return Kernel(release, image, None, _find_user_modules(image, release), f"given: {wanted}")


def _find_user_modules(image: Path, release: str) -> Path | None:
    for place in (image.parent / _MODULES, image.parent.parent / "lib/modules" / release):
        if (place / "kernel").is_dir():
            return place
    return None


def check_configuration(config: str, name: str) -> None:
    """Raises `GuestmarkError` naming the options that every guest needs but the configuration lacks."""
    options = set(re.findall(r"^CONFIG_(\w+)=[ym]$", config, re.MULTILINE))
    lacking = [option for option in REQUIRED if option not in options]
    if lacking:
        raise GuestmarkError(
            f"{name} was configured without {', '.join(lacking)}, so guestmark's guests cannot boot it",
            hint="use another kernel: --set kernel=FILE, or enable these options and rebuild it",
        )


_OPEN_FLAGS = re.compile(
    r"(#define FMODE_NONOTIFY\s+\(\(__force fmode_t\)\(1 << )25(\)\).*?"
    r"#define FMODE_NONOTIFY_PERM\s+\(\(__force fmode_t\)\(1 << )26(\)\))",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Correction:
    """A correction of one source file. `correct_text` returns the text unchanged if it does not have the fault."""

    name: str
    file: str
    correct_text: Callable[[str], str]


def _swap_open_flags(text: str) -> str:
    return _OPEN_FLAGS.sub(r"\g<1>26\g<2>25\g<3>", text)


# Corrections are not part of a kernel's key: without its correction, a source cannot be built at all.
CORRECTIONS: dict[str, tuple[Correction, ...]] = {
    "sparc64": (
        # Later releases of Linux 6.12 use bit 25 for FMODE_NONOTIFY, but on sparc64 that is O_TMPFILE's bit among the
        # flags of open(). Of the two modes only this one is passed among these flags, so the other can use the bit.
        Correction(
            "bits of FMODE_NONOTIFY and FMODE_NONOTIFY_PERM swapped",
            "include/linux/fs.h",
            _swap_open_flags,
        ),
    ),
}


def correct_sources(tree: Path, architecture: str) -> list[str]:
    """Corrects the sources in `tree` for an architecture. Returns the names of the corrections made."""
    made = []
    for correction in CORRECTIONS.get(architecture, ()):
        path = tree / correction.file
        before = path.read_text()
        after = correction.correct_text(before)
        if after != before:
            path.write_text(after)
            made.append(correction.name)
    return made
