"""Finds the kernel that a QEMU guest boots: the user's, else the cached one, else the distribution's."""

import contextlib
import lzma
import os
import platform
import re
import shutil
import subprocess
import tarfile
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from guestmark.appliance import bzimage, deb
from guestmark.appliance.paths import locate_cache, put_into_cache
from guestmark.core.architectures import Architecture, find_host_architecture
from guestmark.core.distribution import make_install_hint
from guestmark.core.errors import GuestmarkError
from guestmark.core.supervision import start_supervision
from guestmark.core.temporary import scratch_directory

Notify = Callable[[str], None]
# Kernels with a lower rank are preferred; None stands for a kernel that cannot be used.
Rank = Callable[["Kernel"], int | None]

# Modules that guests may need; the rest (graphics, sound, wireless and so on) is most of a distribution's 400 MB.
_WANTED_MODULES = re.compile(
    r"/kernel/(arch/[^/]+/(kvm|crypto)|block|crypto|lib|fs|virt|net/(9p|core|packet|vmw_vsock|llc|802|ipv4|ipv6|bridge)"
    r"|drivers/(virtio|block|char|crypto/ccp|scsi|nvme|ata|md|cdrom|net/[^/]*$|net/ethernet/(intel|amd|realtek|8390)"
    r"|net/vmxnet3|message|misc|ptp|vhost|hv|vdpa))"
)

_WANTED_FILES = re.compile(r"/boot/(vmlinu[xz]|config)-")
_UNPACK_HINT = "unpack a package of Debian or Ubuntu: guestmark prepare kernel FILE.deb"
# Platforms that are probed in parallel need the same kernel, which must be downloaded only once.
_FETCH_LOCK = threading.Lock()


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel for guests: `image` for firmware loaders, `elf` for direct (PVH) boots, if it has that entry."""

    release: str
    image: Path
    elf: Path | None
    modules: Path | None
    origin: str


def find_kernel(wanted: str = "", notify: Notify = lambda _: None, rank: Rank = lambda _: 0) -> Kernel:
    """Returns the kernel to boot.

    `wanted` is a file given by the user (`--set kernel=FILE`), empty for the default: of the kernels in the cache and
    then of those in /boot, the one with the lowest `rank`. `notify` announces slow steps. Raises `GuestmarkError` if
    there is none and none can be fetched.
    """
    with _FETCH_LOCK:
        return _find_kernel(wanted, notify, rank)


def prepare_kernel(packages: Sequence[Path], notify: Notify) -> Kernel:
    """Unpacks a kernel into the cache, from these packages of Debian or Ubuntu; without any, this distribution's.

    Raises `GuestmarkError` if there is none, or if it is for another architecture.
    """
    with _FETCH_LOCK:
        if not packages:
            return _fetch_kernel(notify)
        with _make_scratch() as scratch:
            return _cache_kernel(
                [path.absolute() for path in packages], scratch, f"unpacked from {packages[0].name}"
            )


def check_image(row: Architecture, data: bytes, name: str) -> None:
    """Raises `GuestmarkError` for a file that is not a kernel for this architecture."""
    if not any(data.startswith(mark, place) for place, mark in row.kernel_marks):
        raise GuestmarkError(
            f"{name} is not a Linux kernel for {row.name}",
            hint="give the path of a kernel's image for that architecture",
        )


def find_image_by_release(release: str) -> Path | None:
    """Returns the image of a cached or installed kernel by its `uname -r`; None if there is none."""
    for kernel in (*_find_cached_kernels(), *_find_readable_kernels()):
        if kernel.release == release:
            return kernel.image
    return None


def list_images() -> list[Path]:
    """Returns the images of the kernels that are on this host already, fetched ones first, without reading them."""
    fetched = sorted(mark.parent / "vmlinuz" for mark in _locate_kernel_cache().glob("*/complete"))
    return [*fetched, *sorted(image for _, image, _ in find_installed())]


def _find_kernel(wanted: str, notify: Notify, rank: Rank) -> Kernel:
    if wanted:
        image = Path(wanted).expanduser().absolute()
        if not image.is_file():
            raise GuestmarkError(f"there is no kernel {wanted}", hint="give the path of a vmlinuz or vmlinux")
        release = bzimage.read_release(image)
        return _make_kernel(release, image, _find_modules_beside(image, release), f"given: {wanted}")
    ranked = []
    for kernel in (*_find_cached_kernels(), *_find_readable_kernels()):
        place = rank(kernel)
        if place is not None:
            ranked.append((place, kernel))
    if ranked:
        return min(ranked, key=lambda pair: pair[0])[1]
    return _fetch_kernel(notify)


def _find_cached_kernels() -> Iterator[Kernel]:
    """Yields kernels that were fetched, the newest first."""
    root = _locate_kernel_cache()
    for directory in sorted(root.glob("*/complete"), key=lambda mark: mark.stat().st_mtime, reverse=True):
        release = directory.parent.name
        image = directory.parent / "vmlinuz"
        modules = directory.parent / "modules"
        if image.exists() and modules.exists():
            yield _make_kernel(release, image, modules, "cached, from the distribution's package")


def _find_readable_kernels() -> Iterator[Kernel]:
    """Yields the distribution's kernels in /boot that this user may read, with their modules, the newest first."""
    readable = {}
    for release, image, modules in find_installed():
        if os.access(image, os.R_OK):
            readable[make_version_key(release), release] = (image, modules)
    for (_, release), (image, modules) in sorted(readable.items(), reverse=True):
        yield _make_kernel(release, image, modules, f"installed in {image.parent}")


def find_installed(root: Path = Path("/")) -> Iterator[tuple[str, Path, Path]]:
    """Yields release, image and modules of the kernels of the system in `root`, readable by this user or not.

    Debian, Ubuntu and openSUSE have images in /boot, Fedora and Arch also beside the modules; NixOS has the running
    kernel under /run/current-system.
    """
    images = [(image.parent.name, image) for image in (root / "lib/modules").glob("*/vmlinuz")]
    images += [(image.name.removeprefix("vmlinuz-"), image) for image in (root / "boot").glob("vmlinuz-*")]
    for release, image in images:
        yield from _pair_modules(release, image, root / "lib/modules")
    system = root / "run/current-system"
    for modules in (system / "kernel-modules/lib/modules").glob("*"):
        yield from _pair_modules(modules.name, system / "kernel", modules.parent)


def _pair_modules(release: str, image: Path, parent: Path) -> Iterator[tuple[str, Path, Path]]:
    if image.exists() and (parent / release / "modules.dep").exists():
        yield release, image, parent / release


def _make_no_kernel_error() -> GuestmarkError:
    """Returns the error if no kernel can be fetched: none is installed, or this user may not read it."""
    if closed := [image for _, image, _ in find_installed() if not os.access(image, os.R_OK)]:
        return GuestmarkError(
            f"{closed[0]} is readable by root only, and this system has no apt-get to fetch a kernel with",
            hint=f"sudo install -m 644 {closed[0]} FILE, then --set kernel=FILE; or {_UNPACK_HINT}",
        )
    return GuestmarkError(
        "no kernel for guests was found, and this system has no apt-get to fetch one",
        hint=f"{make_install_hint(find_host_architecture().kernel_package)}; or {_UNPACK_HINT}",
    )


def _fetch_kernel(notify: Notify) -> Kernel:
    """Downloads the distribution's kernel package and unpacks it into the cache; nothing is installed."""
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise _make_no_kernel_error()
    notify("downloading the distribution's kernel for guests (about 70 MB); this is needed only once")
    with _make_scratch() as scratch:
        apt = _build_apt_command(scratch, notify)
        packages = _list_kernel_packages(apt)
        with start_supervision() as supervised:
            done = subprocess.run(
                [*supervised.before, *apt, "download", *packages],
                cwd=scratch,
                capture_output=True,
                text=True,
                check=False,
                timeout=600,
                **supervised.options,
            )
        archives = sorted(scratch.glob("*.deb"))
        if done.returncode or not archives:
            raise GuestmarkError(
                f"apt-get download {' '.join(packages)} failed: {_last_line(done.stderr)}",
                hint="check the package sources, or use --set kernel=FILE",
            )
        notify("unpacking the kernel")
        return _cache_kernel(archives, scratch, f"fetched: {packages[0]}")


@contextlib.contextmanager
def _make_scratch() -> Iterator[Path]:
    with scratch_directory("packages", _locate_kernel_cache()) as path:
        yield path


def _cache_kernel(archives: Sequence[Path], scratch: Path, origin: str) -> Kernel:
    """Unpacks these packages into the cache, where their kernel becomes the newest."""
    image, modules, _ = unpack_kernel(archives, scratch / "root")
    row = find_host_architecture()
    try:
        check_image(row, image.read_bytes(), archives[0].name)
        if row.kernel_unpacked:
            bzimage.read_release(image)
    except GuestmarkError as error:
        raise GuestmarkError(
            f"the kernel in {archives[0].name} is not for {row.name}",
            hint="use the package for that architecture",
        ) from error
    release = image.name.partition("-")[2]
    target, staged = _locate_kernel_cache() / release, scratch / "staged"
    staged.mkdir()
    image.rename(staged / "vmlinuz")
    modules.rename(staged / "modules")
    (staged / "complete").touch()
    # Another package of the same release may have been unpacked before.
    with contextlib.suppress(FileNotFoundError):
        target.rename(scratch / "earlier")
    try:
        staged.rename(target)
    # Another guestmark process may have unpacked the same kernel first, which is not an error.
    except OSError:
        if not target.exists():
            raise
    return _make_kernel(release, target / "vmlinuz", target / "modules", origin)


def _build_apt_command(scratch: Path, notify: Notify) -> list[str]:
    """Returns the apt-get command to use: with the system's package lists, or with lists downloaded into `scratch`."""
    if _run_apt_cache("show", _get_metapackage()).returncode == 0:
        return ["apt-get"]
    notify("reading the package lists")
    lists = scratch / "lists"
    (lists / "partial").mkdir(parents=True)
    own = [f"-oDir::State::Lists={lists}", f"-oDir::Cache={scratch / 'apt'}"]
    (scratch / "apt" / "archives" / "partial").mkdir(parents=True)
    with start_supervision() as supervised:
        done = subprocess.run(
            [*supervised.before, "apt-get", *own, "update"],
            capture_output=True, text=True, check=False, timeout=300, **supervised.options,
        )  # fmt: skip
    if done.returncode:
        raise GuestmarkError(
            f"apt-get update failed: {_last_line(done.stderr)}",
            hint="check the package sources and the network",
        )
    return ["apt-get", *own]


def _get_metapackage() -> str:
    architecture = subprocess.run(
        ["dpkg", "--print-architecture"],
        capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip
    ubuntu = "ubuntu" in platform.freedesktop_os_release().get("ID", "")
    return "linux-image-generic" if ubuntu else f"linux-image-{architecture}"


def _list_kernel_packages(apt: list[str]) -> list[str]:
    """Returns the versioned packages of the distribution's metapackage: the image and, if separate, its modules."""
    metapackage = _get_metapackage()
    images = _list_dependencies(apt, metapackage, r"linux-image-\d")
    if not images:
        raise GuestmarkError(
            f"the package lists contain no kernel for {metapackage}",
            hint="use --set kernel=FILE",
        )
    return [images[0], *_list_dependencies(apt, images[0], r"linux-modules-\d")]


def _run_apt_cache(*words: str) -> subprocess.CompletedProcess[str]:
    """Runs apt-cache under a supervisor, because it takes seconds on systems where apt keeps no caches."""
    with start_supervision() as supervised:
        return subprocess.run(
            [*supervised.before, "apt-cache", *words],
            capture_output=True, text=True, check=False, **supervised.options,
        )  # fmt: skip


def _list_dependencies(apt: list[str], package: str, pattern: str) -> list[str]:
    text = _run_apt_cache(*apt[1:], "depends", "--important", package).stdout
    return parse_dependencies(text, pattern)


def parse_dependencies(text: str, pattern: str) -> list[str]:
    """Returns the packages in the output of `apt-cache depends` whose names match the regular expression `pattern`."""
    names = []
    for line in text.splitlines():
        if "Depends:" not in line:
            continue
        name = line.split()[-1]
        if re.match(pattern, name):
            names.append(name)
    return names


def unpack_kernel(archives: Sequence[Path], target: Path) -> tuple[Path, Path, Path]:
    """Unpacks the files that guests need from a distribution's kernel packages; returns image, modules and config.

    Raises `GuestmarkError` if one of them is missing.
    """
    for archive in archives:
        _unpack_archive(archive, target)
    name = archives[0].name.partition("_")[0]
    image = min(target.glob("**/boot/vmlinu[xz]-*"), default=None)
    config = min(target.glob("**/boot/config-*"), default=None)
    if image is None or config is None:
        raise GuestmarkError(f"the package {name} contains no kernel", hint="use --set kernel=FILE")
    # The image is named vmlinuz-RELEASE.
    release = image.name.partition("-")[2]
    modules = next(iter(target.glob(f"**/lib/modules/{release}")), None)
    if modules is None:
        raise GuestmarkError(
            f"the package {name} contains no modules for {release}",
            hint="add the package that contains its modules",
        )
    return image, modules, config


def _unpack_archive(archive: Path, target: Path) -> None:
    try:
        with deb.open_package_files(archive) as stream, tarfile.open(fileobj=stream, mode="r|*") as tar:
            # The Python of Debian 12 has the filter, but not yet the argument of extract() for it.
            tar.extraction_filter = getattr(tarfile, "data_filter", None)
            for member in tar:
                name = member.name
                wanted = _WANTED_FILES.search(name) or (
                    "/lib/modules/" in name and ("/kernel/" not in name or _WANTED_MODULES.search(name))
                )
                if wanted and member.isfile():
                    tar.extract(member, target)
    except FileNotFoundError as error:
        raise GuestmarkError(f"there is no package {archive}", hint="give a .deb file") from error
    except (tarfile.TarError, lzma.LZMAError, zlib.error, EOFError, OSError, ValueError) as error:
        raise GuestmarkError(
            f"{archive} cannot be read as a Debian package: {_last_line(str(error))}",
            hint="give a .deb file that was downloaded completely",
        ) from error


def _make_kernel(release: str, image: Path, modules: Path | None, origin: str) -> Kernel:
    with image.open("rb") as stream:
        if stream.read(4) == b"\x7fELF":
            return Kernel(release, image, image, modules, origin)
    stamp = image.stat()
    elf = _locate_kernel_cache() / f"vmlinux-{release}-{stamp.st_size}-{stamp.st_mtime_ns}"
    # This file records that the image contains no directly bootable kernel.
    none = elf.with_name(elf.name + ".none")
    if not elf.exists() and not none.exists():
        try:
            content = bzimage.unpack_elf(image)
        except bzimage.NotABzImageError:
            content = b""
        if bzimage.has_pvh_entry(content):
            put_into_cache(elf, content, "the unpacked kernel")
        else:
            none.touch()
    if not elf.exists():
        return Kernel(release, image, None, modules, origin)
    return Kernel(release, image, elf, modules, origin)


def _find_modules_beside(image: Path, release: str) -> Path | None:
    """Returns the modules of a user's kernel: beside it, in its tree (`make modules_install`), or the system's."""
    for candidate in (
        image.parent / "modules",
        image.parent / "lib" / "modules" / release,
        image.parent.parent / "lib" / "modules" / release,
        Path("/lib/modules") / release,
        _locate_kernel_cache() / release / "modules",
    ):
        if candidate.is_dir() and (candidate.name != "modules" or (candidate / "kernel").is_dir()):
            return candidate
    return None


def _locate_kernel_cache() -> Path:
    path = locate_cache() / "kernels"
    path.mkdir(exist_ok=True)
    return path


def make_version_key(release: str) -> tuple[int, ...]:
    """Returns the numbers in the name of a release or of a file, by which these are sorted from old to new."""
    return tuple(int(part) for part in re.findall(r"\d+", release))


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip() if lines else "no message"
