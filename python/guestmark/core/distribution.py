"""The distribution of this host: its names for the packages that are needed, and how it installs them.

The names are in `packages.tsv`, which set-up reads too; the rest of the program uses Debian's names. Only Debian's
have been tried on a real system; the others are tested against fake root directories.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

ROOT = Path("/")


class Family(StrEnum):
    """Distributions with the same package names; the values are the columns of the table."""

    DEBIAN = "debian"
    FEDORA = "fedora"
    RHEL = "rhel"
    ARCH = "arch"
    SUSE = "suse"
    ALPINE = "alpine"
    NIXOS = "nixos"
    OTHER = ""


_INSTALL: Mapping[Family, str] = {
    Family.DEBIAN: "apt-get install --no-install-recommends",
    Family.FEDORA: "dnf install",
    Family.RHEL: "dnf install",
    Family.ARCH: "pacman -S --needed",
    Family.SUSE: "zypper install",
    Family.ALPINE: "apk add",
}
_IDS: Mapping[str, Family] = {
    "debian": Family.DEBIAN,
    "ubuntu": Family.DEBIAN,
    "rhel": Family.RHEL,
    "centos": Family.RHEL,
    "fedora": Family.FEDORA,
    "arch": Family.ARCH,
    "suse": Family.SUSE,
    "alpine": Family.ALPINE,
    "nixos": Family.NIXOS,
}


@dataclass(frozen=True, slots=True)
class Distribution:
    """A Linux distribution, as its os-release describes it; `name` is for display."""

    family: Family
    name: str

    def translate_packages(self, debian: Iterable[str]) -> list[str]:
        """Return the distribution's names for these Debian packages, without those that it lacks."""
        names: dict[str, None] = {}
        for package in debian:
            names |= dict.fromkeys(self._translate_package(package))
        return list(names)

    def _translate_package(self, package: str) -> Iterator[str]:
        if self.family in (Family.DEBIAN, Family.OTHER):
            yield package
            return
        for row in _read_package_table():
            if package in row[Family.DEBIAN].split(","):
                yield from (name for name in row[self.family].split(",") if name != "-")
                return
        yield package

    def make_install_hint(self, debian: str) -> str:
        """Return one line on how to install these Debian packages, separated by spaces, on this distribution."""
        wanted = debian.split()
        names = " ".join(self.translate_packages(wanted))
        if not names:
            return f"{self.name} has no equivalents of these Debian packages: {' '.join(wanted)}"
        if self.family is Family.NIXOS:
            return f"nix-shell -p {names}, or add them to the system configuration"
        if command := _INSTALL.get(self.family):
            return f"as root: {command} {names}"
        return f"install the equivalents of these Debian packages: {names}"


@functools.cache
def _read_package_table() -> tuple[Mapping[str, str], ...]:
    text = (Path(__file__).parent / "packages.tsv").read_text()
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    head, *rows = (line.split("\t") for line in lines)
    return tuple(dict(zip(head, row, strict=True)) for row in rows)


def read_pretty_name(release: str) -> str:
    """Return the name for display in the text of an os-release file; empty if it has none."""
    found = re.search(r'^PRETTY_NAME="?([^"\n]*)"?', release, re.MULTILINE)
    return found[1] if found else ""


@functools.cache
def detect_distribution(root: Path = ROOT) -> Distribution:
    """Return the distribution of the system in `root`; an unknown one uses Debian's package names."""
    said: dict[str, str] = {}
    for file in ("etc/os-release", "usr/lib/os-release"):
        try:
            text = (root / file).read_text(errors="replace")
        except OSError:
            continue
        for line in text.splitlines():
            name, sign, value = line.partition("=")
            if sign:
                said[name] = value.strip("\"' ")
        break
    family = _find_family(f"{said.get('ID', '')} {said.get('ID_LIKE', '')}".split())
    return Distribution(family, said.get("NAME") or "this distribution")


def _find_family(ids: Iterable[str]) -> Family:
    """Return the family of the first id that is known."""
    for name in ids:
        # openSUSE has an id for each of its editions, such as opensuse-leap.
        if name.startswith("opensuse"):
            return Family.SUSE
        if name in _IDS:
            return _IDS[name]
    return Family.OTHER


def make_install_hint(debian: str) -> str:
    """Return one line on how to install these Debian packages, separated by spaces, on this host."""
    return detect_distribution().make_install_hint(debian)
