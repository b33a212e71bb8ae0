"""Temporary things at the moment they are made: what a kill can be aimed at."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import select
import struct
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

_CREATED, _MOVED, _DIRECTORY, _QUEUE = 0x100, 0x80, 0x40000000, 0x4000
_EVENT = struct.Struct("iIII")
_UNIQUE = re.compile(r"[0-9a-f]{6,}|\d+|(?<=[-.])[0-9a-z_]{8}(?=$|\.)")


def kind_of(name: str) -> str:
    """The name without what is new in every run, so that the next one of its kind is known again."""
    return _UNIQUE.sub("*", name)


class Watch:
    """New names below some directories, as the kernel tells them (inotify(7))."""

    def __init__(self, roots: Iterable[Path]) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor = self._libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
        self._places: dict[int, Path] = {}
        for root in roots:
            for at, _, _ in os.walk(root):
                self._add(Path(at))

    def close(self) -> None:
        """Ends it."""
        os.close(self._descriptor)

    def _add(self, path: Path) -> None:
        number = self._libc.inotify_add_watch(self._descriptor, os.fsencode(path), _CREATED | _MOVED)
        if number >= 0:
            self._places[number] = path

    def new(self, within_s: float) -> Iterator[Path]:
        """Each path that is made from now on, until the time is up."""
        until = time.monotonic() + within_s
        while (left := until - time.monotonic()) > 0:
            if not select.select([self._descriptor], [], [], left)[0]:
                return
            data = b""
            with contextlib.suppress(BlockingIOError):
                data = os.read(self._descriptor, 65536)
            at = 0
            while at < len(data):
                number, mask, _, length = _EVENT.unpack_from(data, at)
                name = data[at + _EVENT.size : at + _EVENT.size + length].rstrip(b"\0")
                at += _EVENT.size + length
                place = self._places.get(number)
                if mask & _QUEUE or place is None:
                    continue
                path = place / os.fsdecode(name)
                if mask & _DIRECTORY:
                    self._add(path)
                yield path
