"""What another distribution brings is found beside what is here."""

import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import BaseModel

from guestmark.core import registry
from guestmark.core.errors import UsageError
from guestmark.workloads.base import Workload
from tests.framework.distributions import brought

MODULE = """
from guestmark.core.factor import Factor
from guestmark.core.metric import Metric
from guestmark.core.platform_kind import PlatformKind
from guestmark.workloads.base import Workload
from guestmark.core.params import Params

SPEED = Factor("speed", "how fast", str, ("slow", "fast"))


class Nap(Workload[Params]):
    name = "nap"
    help = "does nothing for a while"
    factors = (SPEED,)

    @classmethod
    def list_metrics(cls, params):
        return (Metric("wall_s", "s"),)


PLATFORMS = (
    PlatformKind("moon", "another celestial body", lambda: object, guest=False),
    PlatformKind("comet", "one that sorts before the host", lambda: object, guest=False),
)
"""
ASK = """
from guestmark.core import registry
from guestmark.core.platform_spec import parse_platform
print(registry.workload_kind("nap").help, "|", registry.describe_takers(registry.factors()["speed"]), "|",
      parse_platform("moon").inner.description.help, "|", "moon" in registry.list_platform_names(),
      registry.list_platform_names()[0], "comet" in registry.list_platform_names())
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
        "does nothing for a while | the workload nap | another celestial body | True host True\n"
    ), done.stderr


def test_what_descriptions_name_is_there() -> None:
    """What costs time to import is imported by functions, which no start-up calls."""
    for kind in registry.index_workload_kinds().values():
        assert issubclass(kind, Workload), kind.name
        assert issubclass(kind.trial_class(), Workload), kind.name
        assert kind.trial_class().PARAMS is kind.PARAMS, kind.name
        assert issubclass(kind.params_model(), BaseModel), kind.name
        for section in (*kind.report_sections(), *filter(None, [kind.report_conclusion()])):
            assert callable(section), kind.name
    for platform in registry.index_platform_kinds().values():
        for load_class in filter(None, (platform.load_class, platform.load_nested_class)):
            assert callable(load_class()), platform.name


@pytest.mark.parametrize("given", ["{a}/disk.raw,{b}/disk.raw", "old:{a}/disk.raw,old:{b}/other.raw"])
def test_levels_that_would_have_one_name_are_refused(tmp_path: Path, given: str) -> None:
    """Else the second would stand for both, and old against new would be new against itself."""
    folders = {name: tmp_path / name for name in "ab"}
    for folder in folders.values():
        folder.mkdir()
        for name in ("disk.raw", "other.raw"):
            (folder / name).write_bytes(b"")
    with pytest.raises(UsageError, match="would both be called"):
        registry.parse_settings([f"image={given.format(**folders)}"])
    found = registry.parse_settings(["image=old:{a}/disk.raw,new:{b}/disk.raw".format(**folders)])
    assert len(found["image"]) == 2
