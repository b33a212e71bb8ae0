"""`guestmark prepare`: makes what machines boot, or carries it from one host to another."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from guestmark.cli import options
from guestmark.page.say import say, tell

if TYPE_CHECKING:
    from guestmark.core.architectures import Architecture


def command(
    platforms: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PLATFORM...]",
            help="For example tcg@sparc64; or kernel, with packages of one: kernel FILE.deb.",
            autocompletion=options.complete_platform,
        ),
    ] = None,
    packages: Annotated[
        list[str] | None,
        typer.Option(
            "--package",
            metavar="NAME",
            help="Another package for their roots, with all it needs. May be repeated.",
        ),
    ] = None,
    save: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Save the parts to an archive, for another machine."),
    ] = None,
    load: Annotated[
        str | None, typer.Option(metavar="FILE", help="Load parts that another machine has saved.")
    ] = None,
) -> None:
    """Build the parts of guests of other architectures in advance: agent, kernel and root.

    A run makes them on first use otherwise. The distribution's cross compilers build agents, and kernels that it does
    not package. For a machine without compilers, use --save FILE on another one and --load FILE here, with the same
    version of guestmark.

    `prepare kernel` unpacks the distribution's kernel for guests into the cache, without root; with FILE.deb, one of
    Debian or Ubuntu, on any distribution. A host needs it if its kernel cannot be read or has no 9p.
    """
    from guestmark.core.errors import UsageError
    from guestmark.core.platform_spec import parse_platforms
    from guestmark.engine.preflight import make_boot_files
    from guestmark.foreign import carried
    from guestmark.foreign.progress import LineProgress

    if load is not None:
        if platforms or packages or save:
            raise UsageError("--load takes over all that an archive holds", hint="give it alone")
        for path in carried.load_parts(Path(load)):
            tell(str(path))
        return
    if platforms and platforms[0] == "kernel":
        if packages or save:
            raise UsageError("prepare kernel takes packages alone", hint="guestmark prepare kernel FILE.deb")
        _kernel([Path(file).expanduser() for file in platforms[1:]])
        return
    specs = parse_platforms(platforms or ())
    wanted: dict[Architecture, None] = {}
    for spec in specs:
        if spec.foreign_architecture is None:
            raise UsageError(
                f"{spec} needs no parts made in advance",
                hint="name a platform of another architecture, e.g. tcg@sparc64",
            )
        wanted[spec.foreign_architecture] = None
    progress = LineProgress(say)
    for spec in specs:
        make_boot_files(spec, packages or [], progress)
    if save is not None:
        carried.save_parts(list(wanted), Path(save), progress)
        say(f"saved; on the other machine: guestmark prepare --load {save}")
    for architecture in wanted:
        for part in carried.list_parts(architecture):
            tell(str(part))


def _kernel(files: list[Path]) -> None:
    """Unpacks a kernel, and says whether guests boot it."""
    from guestmark.appliance.kernel import find_kernel, prepare_kernel
    from guestmark.core.errors import GuestmarkError
    from guestmark.platforms.qemu.boots import rank_kernel

    made = prepare_kernel(files, say)
    if rank_kernel(made) is None:
        raise GuestmarkError(
            f"the kernel {made.release} was unpacked, but neither 9p nor virtiofs shares the host's root with it here",
            hint="take another, such as Debian's linux-image without -cloud in its name",
        )
    chosen = find_kernel(rank=rank_kernel)
    say(
        f"QEMU's guests boot {made.release} from now on"
        if chosen.image == made.image
        else f"QEMU's guests boot {chosen.release} nevertheless, {chosen.origin}: --set kernel={made.image}"
    )
    tell(str(made.image))
