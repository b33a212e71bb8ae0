"""Root on a machine with a network, and on its peer, reaches nothing of this host through it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest

from tests.adversary.network import ADDRESSES
from tests.framework.marks import long

LEVELS = [
    ("host", "veth"), long("host", "host"), long("host", "pasta"), long("host", "slirp4netns"), long("bwrap", "veth"),
    long("gvisor", "veth"), long("tcg", "tap"), long("tcg", "user"), long("tcg", "passt"), long("uml", "tap"),
    long("uml", "raw"), long("uml", "hybrid"), long("uml", "slirp"),
]  # fmt: skip


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("ip") is None, reason="needs root for a network, and iproute2"
)
@pytest.mark.parametrize(("platform", "level"), LEVELS)
def test_only_this_host_itself_reaches_its_addresses(platform: str, level: str) -> None:
    words = [sys.executable, "-m", "tests.adversary.network", platform, level]
    done = subprocess.run(words, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    ways = {f"host {kind} {address}" for kind in ("tcp", "udp") for address in ADDRESSES}
    assert set(json.loads(done.stdout)) == {*ways, "host abstract "}
