"""Lists what guestmark ships besides its own code: `python -m tools.sbom` writes sbom.cdx.json, `--check` compares.

A bill of materials in CycloneDX 1.6: the Python packages that the program runs with, those that fleets, change points
and data frames install on first use (optional), and the crates that are linked into the agent and the capture analysis.
It is made of the lock files, cargo's metadata and the installed packages, without the network. A licence that is not
known to be compatible with Apache-2.0 is an error.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "sbom.cdx.json"
_TARGET = "x86_64-unknown-linux-gnu"
_SHIPPED = ("guestmark-agent", "guestmark-capture", "guestmark-wire")
LOCK = ROOT / "requirements.txt"
# Parts of an entry in the lock file: the package, its version, and the groups that need it.
_PINNED = re.compile(
    r"^([a-z0-9._-]+)==([^ ;\\]+).*?^    # ([a-z ]+)$", re.MULTILINE | re.IGNORECASE | re.DOTALL
)
# SPDX identifiers of licences by the classifiers or words that older metadata has for them.
_SPDX = {
    "MIT License": "MIT",
    "MIT": "MIT",
    "BSD License": "BSD-3-Clause",
    "BSD 3-Clause License": "BSD-3-Clause",
    "Apache-2.0": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "ISC License (ISCL)": "ISC",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "GNU Lesser General Public License v2 or later (LGPLv2+)": "LGPL-2.0-or-later",
}
# The LGPL's libraries are used unmodified and can be replaced, as the licence demands.
ALLOWED = {
    "0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0", "CC0-1.0", "ISC", "LGPL-2.0-or-later", "MIT",
    "MIT-0", "MPL-2.0", "PSF-2.0", "Unicode-3.0", "Unlicense", "Zlib", "bzip2-1.0.6",
}  # fmt: skip


class UnknownLicenceError(Exception):
    """A component under terms that are not known to be acceptable."""


def main(arguments: list[str]) -> int:
    """Write the file, or compare it with the one that would be written."""
    try:
        made = json.dumps(make_bill(), indent=1, ensure_ascii=False) + "\n"
    except (UnknownLicenceError, subprocess.CalledProcessError, OSError) as error:
        print(f"tools.sbom: {error}", file=sys.stderr)
        return 1
    if "--check" not in arguments:
        FILE.write_text(made)
        return 0
    if FILE.exists() and FILE.read_text() == made:
        return 0
    print(
        "sbom.cdx.json is not what the lock files say\n  make it anew: python -m tools.sbom", file=sys.stderr
    )
    return 1


def make_bill() -> dict[str, Any]:
    """Make the document. It has no date and no serial number, so that the same locks give the same file."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    components = sorted([*python_packages(), *linked_crates()], key=lambda component: component["purl"])
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application", "bom-ref": "guestmark", "name": "guestmark", "version": project["version"],
                "licenses": [{"expression": project["license"]}],
            },
        },
        "components": components,
    }  # fmt: skip


def pinned_packages() -> Iterator[tuple[str, str, frozenset[str]]]:
    """Yield name, version and groups of each entry in the lock. A name may occur twice, for different Pythons."""
    for name, version, groups in _PINNED.findall(LOCK.read_text()):
        yield name.lower(), version, frozenset(groups.split())


def python_packages() -> Iterator[dict[str, Any]]:
    """Yield the packages of the program and of its optional parts, without those of the checks alone."""
    shipped = [pin for pin in pinned_packages() if pin[2] != {"dev"}]
    for name, version, groups in shipped:
        versions = [pinned for package, pinned, _ in shipped if package == name]
        purl = f"pkg:pypi/{name.replace('_', '-')}@{version}"
        found = _component(purl, name, version, _licence_of(name, versions, purl))
        yield found if "run" in groups else found | {"scope": "optional"}


def _licence_of(name: str, versions: Sequence[str], purl: str) -> str:
    """Return the licence of the installed package; without one, that of the same version in the present file."""
    try:
        found = importlib.metadata.metadata(name)
    except importlib.metadata.PackageNotFoundError as error:
        listed = json.loads(FILE.read_text())["components"] if FILE.exists() else []
        known = [component["licenses"][0]["expression"] for component in listed if component["purl"] == purl]
        if not known:
            raise UnknownLicenceError(f"{name} is not installed, so that its licence is not known") from error
        return str(known[0])
    if found["Version"] not in versions:
        raise UnknownLicenceError(f"{name} {found['Version']} is installed, and {versions} in the lock")
    return _licence_expression(found)


def _licence_expression(found: Any) -> str:
    if expression := found["License-Expression"]:
        return str(expression)
    said = [(found["License"] or "").strip()]
    said += [
        line.rpartition(":: ")[2] for line in found.get_all("Classifier") or () if line.startswith("License")
    ]
    return next((_SPDX[words] for words in reversed(said) if words in _SPDX), said[-1])


def linked_crates() -> Iterator[dict[str, Any]]:
    """Yield the crates that the programs are linked with, except our own."""
    # rustup puts cargo where PATH may not lead.
    cargo = shutil.which("cargo") or str(Path.home() / ".cargo/bin/cargo")
    command = [
        cargo,
        "metadata",
        "--locked",
        "--offline",
        "--format-version=1",
        f"--filter-platform={_TARGET}",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    metadata = json.loads(done.stdout)
    packages = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    waiting = [package["id"] for package in packages.values() if package["name"] in _SHIPPED]
    linked: set[str] = set()
    while waiting:
        package = waiting.pop()
        if package not in linked:
            linked.add(package)
            # Dependencies of builds and of tests have a kind; those that are linked have none.
            for dependency in nodes[package]["deps"]:
                if any(kind["kind"] is None for kind in dependency["dep_kinds"]):
                    waiting.append(dependency["pkg"])
    locked = tomllib.loads((ROOT / "Cargo.lock").read_text())["package"]
    digests = {(package["name"], package["version"]): package.get("checksum") for package in locked}
    for package in linked:
        name, version = packages[package]["name"], packages[package]["version"]
        if digest := digests[name, version]:
            licence = str(packages[package]["license"]).replace("/", " OR ")
            yield _component(f"pkg:cargo/{name}@{version}", name, version, licence, digest)


def _component(purl: str, name: str, version: str, licence: str, digest: str = "") -> dict[str, Any]:
    if unknown := unacceptable_part(licence):
        raise UnknownLicenceError(
            f"{name} {version} is under {unknown!r}, which is not known to go with Apache-2.0"
        )
    found = {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl,
             "licenses": [{"expression": licence}]}  # fmt: skip
    return {**found, "hashes": [{"alg": "SHA-256", "content": digest}]} if digest else found


def unacceptable_part(licence: str) -> str:
    """Return the part of a licence expression that is not allowed, or "". One allowed alternative suffices."""
    for part in re.split(r"\bAND\b", licence.replace("(", "").replace(")", "")):
        names = [name.strip().removesuffix(" WITH LLVM-exception") for name in part.split(" OR ")]
        if not ALLOWED.intersection(names):
            return part.strip()
    return ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
