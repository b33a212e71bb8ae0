"""Builds what machines boot, or carries it from one host to another."""

from __future__ import annotations

from pathlib import Path

from guestmark.appliance.kernel import find_kernel, prepare_kernel
from guestmark.cli.commands.prepare import Options
from guestmark.core.architectures import Architecture
from guestmark.core.errors import ExitStatus, GuestmarkError, UsageError
from guestmark.core.platform_spec import parse_platforms
from guestmark.engine.preflight import make_boot_files
from guestmark.foreign import carried
from guestmark.foreign.progress import LineProgress
from guestmark.page.say import say, tell
from guestmark.platforms.qemu.boots import rank_kernel


def run(given: Options) -> int:
    """Builds, saves or loads the parts, and prints where each one is."""
    platforms = given.platforms or []
    if given.load is not None:
        if platforms or given.packages or given.save:
            raise UsageError("--load loads everything in an archive", hint="use --load alone")
        for path in carried.load_parts(Path(given.load)):
            tell(str(path))
    elif platforms[:1] == ["kernel"]:
        if given.packages or given.save:
            raise UsageError(
                "prepare kernel takes only package files", hint="guestmark prepare kernel FILE.deb"
            )
        _prepare_kernel([Path(file).expanduser() for file in platforms[1:]])
    else:
        _build_parts(platforms, given.packages or [], given.save)
    return ExitStatus.ALL_MEASURED


def _build_parts(platforms: list[str], packages: list[str], archive: str | None) -> None:
    specs = parse_platforms(platforms)
    architectures: dict[Architecture, None] = {}
    for spec in specs:
        if spec.foreign_architecture is None:
            raise UsageError(
                f"{spec} needs no parts built in advance",
                hint="name a platform of another architecture, e.g. tcg@sparc64",
            )
        architectures[spec.foreign_architecture] = None
    progress = LineProgress(say)
    for spec in specs:
        make_boot_files(spec, packages, progress)
    if archive is not None:
        carried.save_parts(list(architectures), Path(archive), progress)
        say(f"saved; on the other machine: guestmark prepare --load {archive}")
    for architecture in architectures:
        for part in carried.list_parts(architecture):
            tell(str(part))


def _prepare_kernel(files: list[Path]) -> None:
    """Unpacks a kernel, and reports whether guests boot it."""
    unpacked = prepare_kernel(files, say)
    if rank_kernel(unpacked) is None:
        raise GuestmarkError(
            f"the kernel {unpacked.release} was unpacked, but neither 9p nor virtiofs can share this "
            "host's root with a guest that boots it",
            hint="use another kernel, such as Debian's linux-image without -cloud in its name",
        )
    chosen = find_kernel(rank=rank_kernel)
    if chosen.image == unpacked.image:
        say(f"QEMU's guests now boot {unpacked.release}")
    else:
        say(
            f"QEMU's guests still boot {chosen.release}, {chosen.origin}; to boot this one: "
            f"--set kernel={unpacked.image}"
        )
    tell(str(unpacked.image))
