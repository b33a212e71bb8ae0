"""`python -m guestmark.testing`: runs the checks without a test runner."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from guestmark.core.errors import (
    ExitStatus,
)
from guestmark.page.say import tell
from guestmark.testing.factor import check_factor
from guestmark.testing.platform import check_platform
from guestmark.testing.trials import SELF, run_one_trial
from guestmark.testing.workload import check_workload


def main(words: Sequence[str]) -> int:
    """Check `workload NAME [JSON]`, `platform NAME` or `factor NAME [PLATFORM]`; print the rules that it violates."""
    match words:
        case ["workload", name, *rest]:
            params = None
            if rest:
                params = json.loads(rest[0])
            found = check_workload(name, params)
        case ["platform", name]:
            found = check_platform(name)
        case ["factor", name, *rest]:
            found = check_factor(name, *rest[:1])
        case ["trial", order]:
            return run_one_trial(order)
        case _:
            sys.stderr.write(
                f"usage: python -m {SELF} workload NAME [JSON] | platform NAME | factor NAME [PLATFORM]\n"
            )
            return ExitStatus.USAGE
    for violation in found:
        tell(str(violation))
    if found:
        return ExitStatus.SOME_FAILED
    tell(f"{words[0]} {words[1]}: meets the contract")
    return ExitStatus.ALL_MEASURED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
