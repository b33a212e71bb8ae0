"""Compiles the agent for every architecture of `core/architectures.py`, without linking; `./test` runs this.

Prints the architectures for which it does not compile, with the compiler's own words. What is compiled, with Rust's
library, is kept in the user's cache: a second run takes seconds.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

from guestmark.appliance.paths import locate_cache
from guestmark.core.architectures import ARCHITECTURES, Architecture
from guestmark.core.own_program import find_checkout
from guestmark.foreign import agents


def run_check(rows: Sequence[Architecture], chain: agents.Toolchain) -> subprocess.CompletedProcess[str]:
    """Compile the agent for `rows`; the compiler's messages are in `stdout`."""
    environment = agents.make_cargo_environment(chain, locate_cache() / "targets")
    return subprocess.run(
        agents.make_cargo_command(chain, ("check", "--quiet"), rows),
        cwd=find_checkout(),
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def main() -> int:
    """Compile for every architecture; return 1 if one fails."""
    rows = [row for row in ARCHITECTURES.values() if not row.is_host]
    chain = agents.find_library_compiler(rows[0])
    if chain is None:
        print(f"the sources of Rust's library are not installed\n  {agents.make_library_sources_hint()}")
        return 1
    # All at once, as cargo compiles for several targets at a time; one by one only to tell which of them fails.
    if run_check(rows, chain).returncode == 0:
        return 0
    broken = {row.name: done.stdout for row in rows if (done := run_check([row], chain)).returncode != 0}
    for name, words in broken.items():
        print(f"the agent does not compile for {name}:\n{words}")
    print(f"does not compile: {', '.join(broken) or 'all targets at once'}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
