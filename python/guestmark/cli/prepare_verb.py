"""`guestmark prepare`: makes what machines of other architectures boot, or carries it from one machine to another."""

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
            metavar="[PLATFORM...]", help="For example tcg@sparc64.", autocompletion=options.complete_platform
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
