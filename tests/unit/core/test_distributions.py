"""What is said on distributions that are not Debian: faked roots with their os-release, kernels and paths."""

import subprocess
from pathlib import Path

import pytest

from guestmark.appliance.kernel import find_installed
from guestmark.core.distribution import Distribution, Family, detect_distribution
from guestmark.core.platform_kind import Program
from tests.framework import CHECKOUT

RELEASES = {
    "ubuntu": ("NAME=Ubuntu\nID=ubuntu\nID_LIKE=debian\n", Family.DEBIAN),
    "debian": ('NAME="Debian GNU/Linux"\nID=debian\n', Family.DEBIAN),
    "mint": ('NAME="Linux Mint"\nID=linuxmint\nID_LIKE="ubuntu debian"\n', Family.DEBIAN),
    "fedora": ('NAME="Fedora Linux"\nID=fedora\n', Family.FEDORA),
    "rocky": ('NAME="Rocky Linux"\nID="rocky"\nID_LIKE="rhel centos fedora"\n', Family.RHEL),
    "rhel": ('NAME="Red Hat Enterprise Linux"\nID="rhel"\nID_LIKE="fedora"\n', Family.RHEL),
    "arch": ('NAME="Arch Linux"\nID=arch\n', Family.ARCH),
    "tumbleweed": (
        'NAME="openSUSE Tumbleweed"\nID="opensuse-tumbleweed"\nID_LIKE="opensuse suse"\n',
        Family.SUSE,
    ),
    "nixos": ("NAME=NixOS\nID=nixos\n", Family.NIXOS),
    "unknown": ("garbage\n\0=\nID=plan9\n", Family.OTHER),
    "none": (None, Family.OTHER),
}


def faked(root: Path, release: str | None) -> Path:
    """A root with that os-release, in /usr/lib as NixOS and others have it."""
    if release is not None:
        (root / "usr/lib").mkdir(parents=True)
        (root / "usr/lib/os-release").write_text(release)
    return root


@pytest.mark.parametrize("name", RELEASES)
def test_each_is_known_by_its_os_release(tmp_path: Path, name: str) -> None:
    release, family = RELEASES[name]
    assert detect_distribution(faked(tmp_path, release)).family is family


SAID = {
    Family.DEBIAN: "as root: apt-get install --no-install-recommends qemu-system-x86 qemu-utils",
    Family.FEDORA: "as root: dnf install qemu-system-x86-core qemu-img",
    Family.RHEL: "as root: dnf install qemu-kvm qemu-img",
    Family.ARCH: "as root: pacman -S --needed qemu-system-x86 qemu-img",
    Family.SUSE: "as root: zypper install qemu-x86 qemu-tools",
    Family.ALPINE: "as root: apk add qemu-system-x86_64 qemu-img",
    Family.NIXOS: "nix-shell -p qemu, or add them to the system configuration",
    Family.OTHER: "install the equivalents of these Debian packages: qemu-system-x86 qemu-utils",
}


@pytest.mark.parametrize("family", Family)
def test_packages_are_named_in_its_own_words(family: Family) -> None:
    here = Distribution(family, "Somewhere")
    assert here.make_install_hint("qemu-system-x86 qemu-utils") == SAID[family]
    if family not in (Family.DEBIAN, Family.OTHER):
        said = here.make_install_hint("user-mode-linux")
        assert said == "Somewhere has no equivalents of these Debian packages: user-mode-linux"


def test_set_up_reads_the_same_table() -> None:
    script = 'root=$1; . "$root/tools/setup.sh"; for family in $2; do package qemu "$family"; done'
    families = [family for family in Family if family is not Family.OTHER]
    done = subprocess.run(
        ["sh", "-c", script, "sh", str(CHECKOUT), " ".join(families)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split("\n")[:-1] == [
        " ".join(Distribution(family, "").translate_packages(["qemu-system-x86"])) for family in families
    ]


@pytest.mark.parametrize(
    ("image", "modules"),
    [
        ("boot/vmlinuz-6.8.0-45-generic", "lib/modules/6.8.0-45-generic"),
        ("lib/modules/6.11.4-301.fc41.x86_64/vmlinuz", "lib/modules/6.11.4-301.fc41.x86_64"),
        ("lib/modules/6.11.5-arch1-1/vmlinuz", "lib/modules/6.11.5-arch1-1"),
        ("run/current-system/kernel", "run/current-system/kernel-modules/lib/modules/6.6.58"),
    ],
    ids=["ubuntu", "fedora", "arch", "nixos"],
)
def test_kernels_are_found_where_the_distribution_keeps_them(
    tmp_path: Path, image: str, modules: str
) -> None:
    (tmp_path / modules).mkdir(parents=True)
    (tmp_path / image).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / image).write_bytes(b"kernel")
    assert not list(find_installed(tmp_path))  # a tree that depmod has not seen
    (tmp_path / modules / "modules.dep").touch()
    assert list(find_installed(tmp_path)) == [(Path(modules).name, tmp_path / image, tmp_path / modules)]


def test_a_program_outside_of_path_is_run_by_its_path(tmp_path: Path) -> None:
    hidden = tmp_path / "qemu-kvm"
    hidden.write_text("#!/bin/sh\n")
    program = Program("no-such-program-in-path", "qemu-system-x86", (str(hidden),))
    assert program.path is None
    hidden.chmod(0o755)
    assert program.command == program.path == str(hidden)
    assert Program("sh", "dash", (str(hidden),)).command == "sh"
