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
        typer.Option(metavar="FILE", help="Write what was made to an archive, to be carried elsewhere."),
    ] = None,
    load: Annotated[
        str | None, typer.Option(metavar="FILE", help="Take over what another machine has saved.")
    ] = None,
) -> None:
    """Make what machines of other architectures boot: agent, kernel and root.

    A run makes what it needs by itself, on first use; this does it beforehand. Agents, and kernels that the
    distribution does not have, are built by its cross compilers. A machine without compilers can take over what another
    one has made: --save FILE there, --load FILE here. Both need the same version of guestmark.

    `prepare kernel` unpacks the distribution's kernel for guests into the cache, without root; with FILE.deb one of
    Debian or Ubuntu that was downloaded, on any distribution. Hosts need it whose kernel may not be read, or has no 9p.
    """
    from guestmark.core.errors import UsageError
    from guestmark.core.platform_spec import parse_platforms
    from guestmark.engine.preflight import make_parts
    from guestmark.foreign import carried
    from guestmark.foreign.progress import Lines

    if load is not None:
        if platforms or packages or save:
            raise UsageError("--load takes over all that an archive holds", hint="give it alone")
        for path in carried.load(Path(load)):
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
        if spec.foreign is None:
            raise UsageError(
                f"{spec} needs nothing that would have to be made beforehand",
                hint="name a platform of another architecture, e.g. tcg@sparc64",
            )
        wanted[spec.foreign] = None
    progress = Lines(say)
    for spec in specs:
        make_parts(spec, packages or [], progress)
    if save is not None:
        carried.save(list(wanted), Path(save), progress)
        say(f"saved; on the other machine: guestmark prepare --load {save}")
    for architecture in wanted:
        for part in carried.parts_of(architecture):
            tell(str(part))


def _kernel(files: list[Path]) -> None:
    """Unpacks a kernel, and says whether guests boot it."""
    from guestmark.appliance.kernel import find_kernel, prepare_kernel
    from guestmark.core.errors import GuestmarkError
    from guestmark.platforms.qemu.boots import rank

    made = prepare_kernel(files, say)
    if rank(made) is None:
        raise GuestmarkError(
            f"the kernel {made.release} was unpacked, but neither 9p nor virtiofs shares the host's root with it here",
            hint="take another, such as Debian's linux-image without -cloud in its name",
        )
    chosen = find_kernel(rank=rank)
    say(
        f"guests boot {made.release} from now on"
        if chosen.image == made.image
        else f"guests boot {chosen.release} nevertheless, {chosen.origin}: --set kernel={made.image}"
    )
    tell(str(made.image))
