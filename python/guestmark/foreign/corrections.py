"""Sources of kernels that do not compile for an architecture as the distribution has them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_OPEN_FLAGS = re.compile(
    r"(#define FMODE_NONOTIFY\s+\(\(__force fmode_t\)\(1 << )25(\)\).*?"
    r"#define FMODE_NONOTIFY_PERM\s+\(\(__force fmode_t\)\(1 << )26(\)\))",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Correction:
    """A change of one file, made where the fault is: `corrected` returns its text unchanged where it is not."""

    name: str
    file: str
    corrected: Callable[[str], str]


def _open_flags(text: str) -> str:
    return _OPEN_FLAGS.sub(r"\g<1>26\g<2>25\g<3>", text)


# Not part of a kernel's key: each is for a source that nothing could be built from without it.
CORRECTIONS: dict[str, tuple[Correction, ...]] = {
    "sparc64": (
        # Later releases of Linux 6.12 have the mode "not notified" in bit 25, which is O_TMPFILE's among sparc64's
        # flags of open(). Only this one of the two modes is ever given among them, so the other can have that bit.
        Correction(
            "bits of FMODE_NONOTIFY and FMODE_NONOTIFY_PERM exchanged", "include/linux/fs.h", _open_flags
        ),
    ),
}


def correct(tree: Path, architecture: str) -> list[str]:
    """Corrects the sources in `tree` for an architecture. Returns the names of what was corrected."""
    made = []
    for correction in CORRECTIONS.get(architecture, ()):
        path = tree / correction.file
        before = path.read_text()
        after = correction.corrected(before)
        if after != before:
            path.write_text(after)
            made.append(correction.name)
    return made
