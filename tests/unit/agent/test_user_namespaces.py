"""What is said where user namespaces are forbidden: by faked settings, and in a real namespace that allows no more."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from guestmark.core.user_namespaces import explain_how_to_allow
from tests.framework import PACKAGES


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("kernel/unprivileged_userns_clone", "0", "sysctl kernel.unprivileged_userns_clone=1"),
        ("kernel/apparmor_restrict_unprivileged_userns", "1", "AppArmor allows user namespaces only"),
        ("user/max_user_namespaces", "0", "sysctl user.max_user_namespaces=15000"),
    ],
)
def test_the_switch_that_forbids_them_is_named(tmp_path: Path, name: str, value: str, said: str) -> None:
    assert explain_how_to_allow(tmp_path, root=False) == ""
    file = tmp_path / name
    file.parent.mkdir()
    file.write_text(f"{1 - int(value)}\n")
    assert explain_how_to_allow(tmp_path, root=False) == ""
    file.write_text(f"{value}\n")
    assert said in explain_how_to_allow(tmp_path, root=False)
    assert bool(explain_how_to_allow(tmp_path, root=True)) is name.startswith("user/")


def test_it_holds_where_the_kernel_allows_no_more(tmp_path: Path) -> None:
    script = f"""
echo 0 >/proc/sys/user/max_user_namespaces || exit 77
! unshare --user true || exit 78
exec {sys.executable} -c 'from guestmark.core import user_namespaces; print(user_namespaces.explain_how_to_allow())'
"""
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", "sh", "-c", script],
        env={**os.environ, "PYTHONPATH": str(PACKAGES)},
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    if done.returncode == 77:
        pytest.skip("its own setting cannot be changed in a user namespace here")
    assert (
        done.stdout == "this host allows no user namespaces; as root: sysctl user.max_user_namespaces=15000\n"
    )
