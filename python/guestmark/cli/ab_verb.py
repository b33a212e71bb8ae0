"""`guestmark ab`: two of anything under test, in one run."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from guestmark.cli import hyperfine, options
from guestmark.cli.measuring import Measuring, measuring

if TYPE_CHECKING:
    from guestmark.cli.session import Outputs

SETTINGS = {"allow_interspersed_args": False}

_LABEL = ("A", "B")
_SOURCE = ("apt:", "image:")  # before what is no path
_TYPED = re.compile(r"(?!apt:|image:)[A-Za-z0-9][A-Za-z0-9_.+-]*:([/~.]|apt:|image:)", re.ASCII)
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*", re.ASCII)


def _two(*names: str, text: str) -> Any:
    return typer.Option(*(f"--{name}" for name in names), metavar="A B", help=text)


Pair = tuple[str, str] | None


@measuring
def command(
    argv: Annotated[
        list[str],
        typer.Argument(
            metavar="-- COMMAND...", help="The command and its arguments; with --- between two of them, both."
        ),
    ],
    *,
    kernel: Annotated[Pair, _two("kernel", text="Two kernels for guests.")] = None,
    qemu: Annotated[Pair, _two("qemu", text="Two QEMUs: programs, builds, or unpacked packages.")] = None,
    bios: Annotated[Pair, _two("bios", "firmware", text="Two firmwares for QEMU.")] = None,
    modules: Annotated[Pair, _two("modules", text="Two directories of kernel modules.")] = None,
    rootfs: Annotated[Pair, _two("rootfs", text="Two root filesystems for guests.")] = None,
    env: Annotated[
        tuple[str, str, str] | None,
        typer.Option("--env", metavar="NAME A B", help="Two values of an environment variable."),
    ] = None,
    factor: Annotated[
        tuple[str, str, str] | None,
        typer.Option("--factor", metavar="NAME A B", help="Two levels of any factor."),
    ] = None,
    on: Annotated[
        list[str] | None,
        options.on("Where to run it. Default: kvm where it works, else tcg; host for --env."),
    ] = None,
    metrics: options.Metrics = None,
    stdin: options.Input = None,
    ignore_failure: options.IgnoreFailure = False,
    given: Measuring,
) -> None:
    """Compare two programs, kernels, QEMUs, firmwares, root filesystems or settings: A is the baseline.

    Put --- between two programs: ab -- ./old --- ./new.

    One run measures both, in random order in every block, so the host's state favours neither. A path may have a
    label: old:/boot/vmlinuz-6.1. Several pairs make all their combinations.

    Exit status: 0 all measured, 1 some trials failed or a platform was left out, 2 the command line is wrong, 3 nothing
    could be measured, 130 interrupted (guestmark resume continues).
    """

    from guestmark.cli import session
    from guestmark.core.context import Caller
    from guestmark.core.errors import UsageError
    from guestmark.core.registry import is_variable, parse_settings
    from guestmark.workloads.exec.plan import ExecOptions, build

    files = {"kernel": kernel, "qemu": qemu, "bios": bios, "modules": modules, "rootfs": rootfs}
    pairs = {name: _labelled(pair) for name, pair in files.items() if pair is not None}
    for name, first, second in [
        *([(f"env:{env[0]}", *env[1:])] if env else []),
        *([factor] if factor else []),
    ]:
        pairs[name] = (first, second)
    texts = hyperfine.as_texts(argv)
    typed = hyperfine.typed(() if texts else argv, texts)
    command_line, *others = (one.words for one in typed)
    if len(others) > 1 or (others and pairs):
        raise UsageError(
            "two programs are compared, or two of anything else",
            hint="exec -- A --- B --- C takes several commands",
        )
    if not pairs and not others:
        raise UsageError(
            "there is nothing to compare", hint="e.g. ab -- ./old --- ./new, or --kernel A B, --env NAME A B"
        )
    overrides = given.overrides()
    overrides["settings"] = [*overrides["settings"], *_settings(pairs)]
    parse_settings(overrides["settings"])  # what cannot be is refused before anything boots
    wanted = ExecOptions(
        on=on or [_usual(given.outputs()) if any(not is_variable(name) for name in pairs) else "host"],
        metrics=metrics or (),
        stdin_path=stdin,
        ignore_failure=ignore_failure,
        caller=Caller.current(),
        texts={number: one.text for number, one in enumerate(typed) if one.text is not None},
        **{**overrides, "commands": tuple(others)},
    )
    raise typer.Exit(session.execute(build(wanted, command_line), given.ledger, given.outputs()))


def _settings(pairs: Mapping[str, tuple[str, str]]) -> list[str]:
    return [
        f"{name}={','.join(level.replace(',', chr(92) + ',') for level in pair)}"
        for name, pair in pairs.items()
    ]


def _labelled(pair: tuple[str, str]) -> tuple[str, str]:
    """Both with a label: where they have none, what tells their paths apart, or A and B."""
    typed = [_TYPED.match(path) for path in pair]
    names = [_named(path) for path in pair]
    if any(typed) or names[0] == names[1] or not all(map(_WORD.fullmatch, names)):
        names = list(_LABEL)
    first, second = (
        path if found else f"{name}:{path if path.startswith(_SOURCE) else _whole(path)}"
        for found, name, path in zip(typed, names, pair, strict=True)
    )
    return first, second


def _named(path: str) -> str:
    """What tells a file apart: its name, or that of its directory where only that has a number: `6.12/vmlinuz`."""
    folder, name = os.path.split(os.path.normpath(path))
    above = os.path.basename(folder)
    digits = [any(map(str.isdigit, part.replace("x86_64", ""))) for part in (name, above)]
    return above if digits == [False, True] else name.removeprefix("vmlinuz-")


def _whole(path: str) -> str:
    return os.path.abspath(os.path.expanduser(path))


def _usual(outputs: Outputs) -> str:
    """KVM where guests boot with it, which is found out by booting one; else TCG."""
    from guestmark.cli.session import audience_of
    from guestmark.core.platform_spec import parse_platform
    from guestmark.engine.audience import make_prober
    from guestmark.platforms import registry
    from guestmark.platforms.base import Usable
    from guestmark.platforms.probe import DOCTOR_DEADLINE_S

    if not os.path.exists("/dev/kvm"):
        return "tcg"
    platform = registry.get_platform(parse_platform("kvm"))
    found = make_prober(audience_of(outputs), DOCTOR_DEADLINE_S)([platform])
    return "kvm" if isinstance(found[platform.name], Usable) else "tcg"
