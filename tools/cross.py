"""Prints shell variables with which `tools/package` builds for another architecture: `python -m tools.cross NAME`.

These are `target`, `chain` (the directory of cargo and rustc), `linker` and `library`: variables of cargo's environment
as `NAME=VALUE`. Exits with 1 and the reason if the agent cannot be built for it here.
"""

from __future__ import annotations

import shlex
import sys

from guestmark.core.architectures import find_architecture
from guestmark.core.errors import GuestmarkError
from guestmark.foreign import agents


def list_variables(name: str) -> dict[str, str]:
    """Return the variables by name. Raises `GuestmarkError` for an unknown architecture or if something is missing."""
    row = find_architecture(name)
    chain = agents.find_compiling_toolchain(row)
    if chain is None or agents.list_missing(row):
        raise GuestmarkError(
            f"guestmark cannot be built for {row.name} here",
            hint=f"run guestmark prepare tcg@{row.name} first, and install the sources of Rust's library",
        )
    library = ""
    if chain.library is agents.Library.COMPILED:
        library = "CARGO_UNSTABLE_BUILD_STD=std,panic_abort"
    triple = row.target.upper().replace("-", "_")
    return {
        "target": row.target,
        "chain": str(chain.cargo.parent),
        "linker": f"CARGO_TARGET_{triple}_LINKER={row.cross.name}",
        "library": library,
    }


def main() -> int:
    """Print the variables; return 1 if it cannot be built for the architecture."""
    try:
        variables = list_variables(sys.argv[1])
    except GuestmarkError as error:
        print(f"package: {error.message}\n  {error.hint}", file=sys.stderr)
        return 1
    print(*(f"{name}={shlex.quote(value)}" for name, value in variables.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
