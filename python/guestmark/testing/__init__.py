"""The conformance kit: checks whether a workload, a platform or a factor of another package meets the contract.

    from guestmark.testing import check_workload

    def test_it_keeps_the_contract() -> None:
        assert check_workload("walk", {"directory": "/usr/share/doc"}) == []

Nothing is simulated: machines are started, trials run, machines are killed under a workload, and runs interrupted.
`python -m guestmark.testing workload walk` does the same without a test runner.
"""

from guestmark.testing.factor import check_factor
from guestmark.testing.platform import check_platform
from guestmark.testing.rules import Rule, Violation
from guestmark.testing.workload import check_workload

__all__ = ["Rule", "Violation", "check_factor", "check_platform", "check_workload"]
