"""The settings a guest can be given, each with one or more levels; several levels span a matrix.

A new factor is one `register(Factor(...))` in the module that knows it; nothing else changes.
"""

import importlib
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from guestmark.core.errors import UsageError
from guestmark.core.nearest import unknown
from guestmark.core.platform_spec import PlatformSpec
from guestmark.core.units import format_size, parse_size

_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.,=+:-]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Factor:
    """One setting: `parse` turns a level as typed into its canonical text or raises `ValueError` with one line.

    `kinds` are the platform kinds (`kvm`, `tcg`, `uml`, …) that can be given it; `levels` is for completion and help.
    """

    name: str
    help: str
    parse: Callable[[str], str]
    kinds: frozenset[str]
    levels: tuple[str, ...] = ()
    workloads: frozenset[str] | None = None  # the only ones it means anything to; None: it is up to them
    nested: bool = False  # whether it says what the outer guest is like, or how it is used

    def applies_to(self, spec: PlatformSpec) -> bool:
        """Whether the machine the workload runs on can be given this factor."""
        return spec.inner.kind in self.kinds and (spec.nested or not self.nested)

    @property
    def where(self) -> str:
        """The platforms it applies to, in words."""
        return "nested platforms such as tcg/kvm" if self.nested else ", ".join(sorted(self.kinds))


_registry: dict[str, Factor] = {}
_PROVIDERS = (
    "guestmark.disks.factors",
    "guestmark.workloads.netboot.factors",
    "guestmark.workloads.sysbench.options",
)  # modules that register theirs when imported


def register(factor: Factor) -> Factor:
    """Makes a factor known. Raises `ValueError` when the name is taken by another one."""
    if _registry.setdefault(factor.name, factor) is not factor:
        raise ValueError(f"factor {factor.name!r} is registered twice")
    return factor


def one_of(*levels: str, aliases: Mapping[str, str] | None = None) -> Callable[[str], str]:
    """A parser of levels that are these words; `aliases` are other words for them."""

    def parse(text: str) -> str:
        word = text.strip().lower()
        word = (aliases or {}).get(word, word)
        if word not in levels:
            raise ValueError(f"{text!r} is not one of {', '.join(levels)}")
        return word

    return parse


def get(name: str) -> Factor:
    """The factor of that name; `-` and `_` are the same. Raises `UsageError` with the nearest known name."""
    factor = known().get(name.strip().replace("-", "_").lower())
    if factor is None:
        raise unknown("factor", name.strip(), known())
    return factor


def known() -> Mapping[str, Factor]:
    """All factors by name."""
    for provider in _PROVIDERS:
        importlib.import_module(provider)
    return dict(_registry)


def parse_settings(settings: Iterable[str]) -> dict[str, tuple[str, ...]]:
    r"""Canonical levels by factor, in order, from `FACTOR=LEVEL[,LEVEL…]` texts.

    A comma inside a level is written `\,`. Raises `UsageError` for an unknown factor, a bad level, or one given twice.
    """
    result: dict[str, tuple[str, ...]] = {}
    for text in settings:
        name, equals, levels_text = text.partition("=")
        factor = get(name)
        if not equals:
            hint = f"e.g. --set {factor.name}={','.join(factor.levels[:2])}" if factor.levels else factor.help
            raise UsageError(f"--set {text}: a level is missing", hint=hint)
        if factor.name in result:
            raise UsageError(
                f"--set {factor.name} is given twice", hint=f"give all levels at once: {factor.name}=A,B"
            )
        levels: list[str] = []
        for raw in re.split(r"(?<!\\),", levels_text):
            level = parse_level(factor, raw.replace("\\,", ","))
            if level in levels:
                raise UsageError(
                    f"--set {factor.name}: level {level!r} is given twice", hint="give each level once"
                )
            levels.append(level)
        result[factor.name] = tuple(levels)
    return result


def parse_level(factor: Factor, text: str) -> str:
    """One level in canonical spelling. Raises `UsageError`."""
    try:
        return factor.parse(text)
    except ValueError as error:
        raise UsageError(f"--set {factor.name}: {error}", hint=factor.help) from error


def _memory(text: str) -> str:
    size = parse_size(text)
    if size < 32 * 1024**2:
        raise ValueError(f"{text!r} is too little to boot Linux in (at least 32M)")
    if size % 1024**2:
        raise ValueError(f"{text!r} is not a whole number of MiB")
    return format_size(size)


def _count(text: str) -> str:
    if not re.fullmatch(r"\s*[0-9]{1,4}\s*", text, re.ASCII) or int(text) < 1:
        raise ValueError(f"{text!r} is not a number of processors")
    return str(int(text))


def _outer(text: str) -> str:
    if text.strip() not in ("block", "trial"):
        raise ValueError(f"{text!r} is neither block nor trial")
    return text.strip()


def _word(text: str) -> str:
    if not _WORD.fullmatch(text.strip()):
        raise ValueError(f"{text!r} is not a name QEMU could know")
    return text.strip()


def _kernel(text: str) -> str:
    if not text.strip():
        raise ValueError("the kernel's path is empty")
    path = os.path.abspath(os.path.expanduser(text))  # noqa: PTH100, PTH111 - pathlib costs start-up time
    if not os.path.isfile(path):  # noqa: PTH113
        raise ValueError(f"there is no kernel at {path!r}")
    return path


def _kernel_args(text: str) -> str:
    if any(ord(character) < 32 or ord(character) == 127 for character in text):
        raise ValueError(f"{text!r} holds control characters")
    return " ".join(text.split())


_QEMU = frozenset({"kvm", "tcg"})
_GUESTS = _QEMU | {"uml"}

MEMORY = register(
    Factor("memory", "the guest's memory, e.g. 512M or 2GiB", _memory, _GUESTS, ("256M", "512M", "1G", "2G"))
)
SMP = register(Factor("smp", "the guest's number of processors", _count, _QEMU, ("1", "2", "4")))
CPU = register(
    Factor(
        "cpu",
        "QEMU's processor model, e.g. max or host,-vmx; a feature QEMU cannot give is an error unless ,enforce=off",
        _word,
        _QEMU,
        ("host", "max", "qemu64", "kvm64"),
    )
)
MACHINE = register(Factor("machine", "QEMU's machine type", _word, _QEMU, ("pc", "q35", "microvm")))
OUTER = register(
    Factor(
        "outer",
        "how often the outer guest of a nested platform is started: for each block or for each trial",
        _outer,
        _GUESTS,
        ("block", "trial"),
        nested=True,
    )
)
OUTER_CPU = register(
    Factor(
        "outer_cpu",
        "the outer guest's processor model, e.g. max,svm=on; kvm inside needs one with nested virtualization",
        _word,
        _GUESTS,
        (r"max\,svm=on",),
        nested=True,
    )
)
OUTER_SMP = register(
    Factor("outer_smp", "the outer guest's number of processors", _count, _GUESTS, ("1", "2"), nested=True)
)
KERNEL = register(Factor("kernel", "path of the guest's kernel", _kernel, _GUESTS))
KERNEL_ARGS = register(
    Factor(
        "kernel_args",
        r"more arguments for the guest's kernel, e.g. mitigations=off (a comma inside is written \,)",
        _kernel_args,
        _GUESTS,
        ("mitigations=off",),
    )
)
