"""What is shipped is listed with its licences, and the list is that of the lock files."""

import json
import subprocess
import sys

import pytest

from tests.framework import CHECKOUT
from tools import sbom


def test_the_list_is_what_the_lock_files_say() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tools.sbom", "--check"],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    components = json.loads((CHECKOUT / "sbom.cdx.json").read_text())["components"]
    listed = {component["purl"].partition("@")[0] for component in components}
    assert {"pkg:pypi/msgspec", "pkg:cargo/rustix", "pkg:cargo/libc"} <= listed
    optional = {each["name"] for each in components if each.get("scope") == "optional"}
    assert {"parsl", "apache-otava", "dill", "pyzmq"} <= optional
    assert "msgspec" not in optional
    assert not {"pkg:cargo/proptest", "pkg:pypi/pytest"} & listed, "nothing that only tests need"


def test_everything_that_a_user_can_install_is_in_the_list() -> None:
    components = json.loads((CHECKOUT / "sbom.cdx.json").read_text())["components"]
    listed = {component["purl"] for component in components}
    installable = {
        f"pkg:pypi/{name}@{version}" for name, version, groups in sbom.pinned_packages() if groups != {"dev"}
    }
    assert len(installable) > 30
    assert installable <= listed
    assert {purl for purl in listed if purl.startswith("pkg:pypi/")} == installable


@pytest.mark.parametrize(
    ("licence", "wrong"),
    [("MIT", ""), ("GPL-3.0-only OR MIT", ""), ("(MIT OR Apache-2.0) AND Unicode-3.0", ""),
     ("MIT AND GPL-3.0-only", "GPL-3.0-only"), ("None", "None")],
)  # fmt: skip
def test_licences_are_looked_at_one_by_one(licence: str, wrong: str) -> None:
    assert sbom.unacceptable_part(licence) == wrong
