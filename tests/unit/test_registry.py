"""What another distribution brings is found beside what is here."""

import subprocess
import sys
from pathlib import Path

from tests.framework.distributions import brought

MODULE = """
from guestmark.core.factor import Factor
from guestmark.core.metric import Metric
from guestmark.core.platform_kind import PlatformKind
from guestmark.core.workload_kind import WorkloadKind

SPEED = Factor("speed", "how fast", str, ("slow", "fast"))
WORKLOADS = (
    WorkloadKind(
        "nap", "does nothing for a while", params="", run="", metrics=lambda _: (Metric("wall_s", "s"),),
        factors=(SPEED,),
    ),
)
PLATFORMS = (
    PlatformKind("moon", "another celestial body", "elsewhere:Moon", guest=False),
    PlatformKind("comet", "one that sorts before the host", "elsewhere:Comet", guest=False),
)
"""
ASK = """
from guestmark.core import factors, registry
from guestmark.core.platform_spec import parse_platform
print(registry.workload_kind("nap").help, "|", factors.where(registry.factors()["speed"]), "|",
      parse_platform("moon").inner.described.help, "|", "moon" in registry.platform_names(),
      registry.platform_names()[:2])
"""


def test_entry_points_bring_workloads_platforms_and_factors(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ASK],
        env=brought(tmp_path, "celestial", MODULE),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == (
        "does nothing for a while | the workload nap | another celestial body | True ('host', 'comet')\n"
    ), done.stderr
