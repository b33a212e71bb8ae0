"""The README's example in a fresh minimal Debian root, as a new user has it."""

import os
import subprocess

import pytest

from tests.framework import CHECKOUT


@pytest.mark.long
@pytest.mark.thorough
@pytest.mark.timeout(1500)
def test_readme_example_in_a_fresh_root() -> None:
    assert os.geteuid() == 0, "making a root file system needs root: run ./test --long as root"
    readme = (CHECKOUT / "README.md").read_text()
    example = next(line for line in readme.splitlines() if line.startswith("./guestmark exec"))
    run = subprocess.run(
        [CHECKOUT / "tools/clean-root", "--minutes", "20", example, "./guestmark runs", "./guestmark --help"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=1450,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-6000:] + run.stderr[-6000:]
    assert "missing on this system:" in run.stdout + run.stderr
    for platform in ("host", "uml", "tcg"):
        assert f"\n{platform} " in run.stdout
