"""Declares `guestmark prepare`."""

from dataclasses import dataclass
from typing import Annotated

from guestmark.core.option import Argument, Candidates, Option


@dataclass(frozen=True, kw_only=True)
class Options:
    """Build the parts of guests of other architectures in advance: agent, kernel and root filesystem.

    Otherwise a run builds them on first use. The distribution's cross compilers build the agents, and the kernels that
    it does not package. For a machine without compilers, use --save FILE on another one and --load FILE here, with the
    same version of guestmark.

    `prepare kernel` unpacks the distribution's kernel for guests into the cache, without root; with FILE.deb, one of
    Debian or Ubuntu, on any distribution. A host needs it if its kernel cannot be read or has no 9p.
    """

    platforms: Annotated[
        list[str] | None,
        Argument(
            "[PLATFORM...]",
            "A platform, such as tcg@sparc64; or kernel, optionally with its packages: kernel FILE.deb.",
            candidates=Candidates.PLATFORMS,
        ),
    ] = None
    packages: Annotated[
        list[str] | None,
        Option(
            "--package",
            "Add this package and its dependencies to the guests' root filesystems. Repeatable.",
            metavar="NAME",
        ),
    ] = None
    save: Annotated[
        str | None, Option("--save", "Save the parts to an archive for another machine.", metavar="FILE")
    ] = None
    load: Annotated[
        str | None, Option("--load", "Load the parts that another machine saved.", metavar="FILE")
    ] = None
