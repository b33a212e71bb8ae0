"""Directories of this host that a guest mounts: where its data lie when that is no disk.

How each is mounted and what its options are: Linux's Documentation/filesystems/{9p,virtiofs}.rst, QEMU's manual
(`-fsdev`), and `virtiofsd --help`.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from typing import Protocol

from guestmark.core.errors import UsageError
from guestmark.core.model import Cell

VIRTIOFS, NINE_P, HOSTFS = "virtiofs", "9p", "hostfs"
SHARES = (VIRTIOFS, NINE_P, HOSTFS)
CACHE, SECURITY_MODEL = "share_cache", "security_model"  # factors
# What each may be told of its caches, its default first. Of 9p it is a mount option, of virtiofs the daemon's.
CACHES: Mapping[str, tuple[str, ...]] = {
    VIRTIOFS: ("auto", "never", "always"),
    NINE_P: ("none", "loose", "mmap"),
    HOSTFS: (),
}
SECURITY_MODELS = ("none", "passthrough", "mapped-xattr", "mapped-file")
# What a disk has and a directory does not, besides QEMU's switches.
_OF_DISKS = ("format", "preallocation", "cluster_size", "cache", "aio", "bus", "uml_disk", "mkfs")


class Target(Protocol):
    """What is asked here of a `disks.spec.DiskSpec`."""

    @property
    def name(self) -> str:
        """Unique within a cell; the tag of a share."""

    @property
    def filesystem(self) -> str:
        """One of `SHARES` for a share."""

    @property
    def location(self) -> str:
        """The directory of the host in which it is."""

    @property
    def mount_options(self) -> str:
        """What was typed; empty when there are none."""

    @property
    def shared(self) -> bool:
        """Whether it is a share at all."""

    def switch(self, name: str) -> str:
        """The level of a factor, empty when nobody said."""


def check(spec: Target, cell: Cell, switches: Sequence[str]) -> None:
    """Raises `UsageError` for what a share cannot be told, or only a share can; `switches` are factors of disks too."""
    asked = cell.factors
    if not spec.shared:
        if given := next((name for name in (CACHE, SECURITY_MODEL) if name in asked), None):
            raise UsageError(
                f"{cell.id}: {given} is of directories of the host, not of a disk with {spec.filesystem}",
                hint=f"use filesystem={VIRTIOFS} or filesystem={NINE_P}, or exclude the combination",
            )
        return
    of_disks = (name for name in (*_OF_DISKS, *switches) if name not in {CACHE, SECURITY_MODEL})
    if given := next((name for name in of_disks if name in asked), None):
        raise UsageError(
            f"{cell.id}: with filesystem={spec.filesystem} there is a directory of the host, which has no {given}",
            hint=f"leave {given} out, or exclude the combination",
        )
    cache = spec.switch(CACHE)
    if cache and cache not in CACHES[spec.filesystem]:
        known = ", ".join(CACHES[spec.filesystem]) or "none: it is not cached by itself"
        raise UsageError(
            f"{cell.id}: {spec.filesystem} has no {CACHE}={cache}",
            hint=f"{spec.filesystem} has {known}; or exclude the combination",
        )
    if spec.switch(SECURITY_MODEL) and spec.filesystem != NINE_P:
        raise UsageError(
            f"{cell.id}: {SECURITY_MODEL} is of {NINE_P}, not of {spec.filesystem}",
            hint="leave it out, or exclude the combination",
        )
    if spec.filesystem == HOSTFS and "," in spec.location:
        raise UsageError(
            f"{cell.id}: the kernel takes what follows the comma in {spec.location} for mount options",
            hint="choose another directory with --set location=DIRECTORY",
        )


def impossible(spec: Target, cell: Cell) -> str:
    """Why the cell's machine cannot mount a directory of this host; empty when it can, or need not."""
    if not spec.shared:
        return ""
    if cell.platform.nested:
        return f"a guest inside a guest has no {spec.filesystem} of this host"
    if spec.filesystem not in cell.platform.inner.described.shares:
        return f"{cell.platform.inner} has no {spec.filesystem}"
    return ""


def cache_of(spec: Target) -> str:
    """How a share caches, its default where nobody says."""
    return spec.switch(CACHE) or next(iter(CACHES[spec.filesystem]), "")


def security_model_of(spec: Target) -> str:
    """How 9p keeps owners and modes."""
    return spec.switch(SECURITY_MODEL) or SECURITY_MODELS[0]


def mount_options(spec: Target, directory: str) -> str:
    """The options with which a guest mounts a share; `directory` is the host's."""
    asked = [spec.mount_options] if spec.mount_options else []
    if spec.filesystem == NINE_P:
        return ",".join(["trans=virtio", "version=9p2000.L", f"cache={cache_of(spec)}", *asked])
    if spec.filesystem == HOSTFS:
        return ",".join([directory, *asked])
    return ",".join(asked)


def asked_of_kernel(spec: Target) -> str:
    """The options that have to be in force: what was typed, and what stands for a factor."""
    cache = [f"cache={cache_of(spec)}"] if spec.filesystem == NINE_P else []
    return ",".join([*cache, *([spec.mount_options] if spec.mount_options else [])])


def contents(directory: str) -> list[str]:
    """All plain files and directories of a share, itself included."""
    found = [directory]
    for folder, folders, files in os.walk(directory):
        paths = [os.path.join(folder, name) for name in (*folders, *files)]
        found += [
            path for path in paths if stat.S_IFMT(os.lstat(path).st_mode) in (stat.S_IFREG, stat.S_IFDIR)
        ]
    return found
