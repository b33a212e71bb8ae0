"""Compares two programs, or two of anything else under test, in one run."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping

from guestmark.cli import hyperfine
from guestmark.cli.commands.ab import Options
from guestmark.cli.measure import build_audience, measure_plan
from guestmark.cli.options import list_platforms
from guestmark.cli.outputs import Outputs, collect_outputs
from guestmark.core.context import Caller
from guestmark.core.errors import UsageError
from guestmark.core.platform_spec import parse_platform
from guestmark.core.registry import is_variable, parse_settings
from guestmark.engine.audience import make_prober
from guestmark.platforms import registry
from guestmark.platforms.base import Usable
from guestmark.platforms.probe import DOCTOR_DEADLINE_S
from guestmark.workloads.exec.plan import ExecOptions, build_plan

_PLAIN_LABELS = ("A", "B")
# Prefixes of values that are not paths: packages of the distribution, images of a registry.
_NO_PATH = ("apt:", "image:")
# `old:/boot/vmlinuz`: a label, then something that cannot be a part of it.
_LABELLED = re.compile(r"(?!apt:|image:)[A-Za-z0-9][A-Za-z0-9_.+-]*:([/~.]|apt:|image:)", re.ASCII)
_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*", re.ASCII)


def run(given: Options) -> int:
    """Measures both sides, and returns the exit status."""
    pairs = _collect_pairs(given)
    texts = hyperfine.find_command_texts(given.argv)
    commands = hyperfine.parse_commands(() if texts else given.argv, texts)
    first, *others = (command.words for command in commands)
    overrides = given.collect_overrides()
    overrides["settings"] = [*overrides["settings"], *_render_settings(pairs)]
    # Impossible levels are refused before a guest boots to find out whether KVM works.
    settings = parse_settings(overrides["settings"])
    compared = [name for name, levels in settings.items() if len(levels) > 1]
    if len(others) > 1 or (others and pairs):
        raise UsageError(
            "ab compares two programs, or one program under two settings",
            hint="to compare several commands: guestmark exec -- A --- B --- C",
        )
    if not compared and not others:
        raise UsageError(
            "there is nothing to compare", hint="e.g. ab -- ./old --- ./new, or --kernel A B, --env NAME A B"
        )
    outputs = collect_outputs(given)
    request = ExecOptions(
        on=list_platforms(given.on, given.machine) or [_choose_platform(compared, outputs)],
        metrics=given.metrics or (),
        stdin_path=given.stdin,
        ignore_failure=given.ignore_failure,
        caller=Caller.current(),
        texts=hyperfine.index_texts(commands),
        **{**overrides, "commands": tuple(others)},
    )
    return measure_plan(build_plan(request, first), given.ledger, outputs)


def _collect_pairs(given: Options) -> dict[str, tuple[str, str]]:
    """Collects both levels of each factor that was given two."""
    files = {
        "kernel": given.kernels,
        "qemu": given.qemu,
        "bios": given.bios,
        "modules": given.modules,
        "rootfs": given.rootfs,
        "image": given.image,
    }
    pairs = {name: _label_paths(pair) for name, pair in files.items() if pair is not None}
    if given.env:
        variable, first, second = given.env
        pairs[f"env:{variable}"] = (first, second)
    if given.factor:
        factor, first, second = given.factor
        pairs[factor] = (first, second)
    return pairs


def _render_settings(pairs: Mapping[str, tuple[str, str]]) -> list[str]:
    """Renders the pairs as values of `--set`, in which a comma separates levels."""
    settings = []
    for name, pair in pairs.items():
        levels = ",".join(level.replace(",", "\\,") for level in pair)
        settings.append(f"{name}={levels}")
    return settings


def _label_paths(pair: tuple[str, str]) -> tuple[str, str]:
    """Labels both paths. Paths without labels get one from what differs between them, or else A and B."""
    labelled = [_LABELLED.match(path) for path in pair]
    labels = [_derive_label(path) for path in pair]
    if any(labelled) or labels[0] == labels[1] or not all(map(_LABEL.fullmatch, labels)):
        labels = list(_PLAIN_LABELS)
    sides = []
    for has_label, label, path in zip(labelled, labels, pair, strict=True):
        if has_label:
            sides.append(path)
        elif path.startswith(_NO_PATH):
            sides.append(f"{label}:{path}")
        else:
            # A relative path would mean another file when the run is resumed elsewhere.
            sides.append(f"{label}:{_make_absolute(path)}")
    return sides[0], sides[1]


def _derive_label(path: str) -> str:
    """Returns the file's name, or that of its directory if only the directory has a number: `6.12/vmlinuz`."""
    folder, name = os.path.split(os.path.normpath(path))
    folder_name = os.path.basename(folder)
    if _has_number(folder_name) and not _has_number(name):
        return folder_name
    return name.removeprefix("vmlinuz-")


def _has_number(name: str) -> bool:
    # The name of an architecture is not a version.
    return any(map(str.isdigit, name.replace("x86_64", "")))


def _make_absolute(path: str) -> str:
    return os.path.abspath(os.path.expanduser(path))


def _choose_platform(factors: Collection[str], outputs: Outputs) -> str:
    """Chooses the host if only programs or variables differ, else KVM if guests boot with it, else TCG."""
    if all(is_variable(name) for name in factors):
        return "host"
    # The existence of /dev/kvm proves nothing: the host may be a guest without nested virtualization.
    if not os.path.exists("/dev/kvm"):
        return "tcg"
    platform = registry.get_platform(parse_platform("kvm"))
    results = make_prober(build_audience(outputs), DOCTOR_DEADLINE_S)([platform])
    return "kvm" if isinstance(results[platform.name], Usable) else "tcg"
