"""Measure how soon a guest is ready for work: guestmark beside libguestfs and beside bare boots of the same kernels.

Run from the checkout: `.venv/bin/python -m bench.ready [--rounds 10] [--seed 1]`. Every contender runs once a round, in
random order, on the same accelerator (TCG). Aims: at most 0.35 of libguestfs; at most 1.15 of the bare boot; a restored
guest's first answer within 0.10 s, and its root within 0.20 s.

* ours: hypervisor started → the agent's hello, root filesystem shared, overlay mounted.
* restored: the same from a template that was saved before; "answer" is until its clock and generator are renewed.
* bwrap, and by hand: our sandbox until its agent answers, beside `bwrap … true` on this root. Aim: 0.8 of that speed.
* bare: the same kernel file and arguments, an initramfs with nothing but a static program that prints one line;
  hypervisor started → the line read. It can do no work.
* guestfish: `guestfish -a DISK run`, its appliance built beforehand.

`--arch` measures guests of other architectures instead: all whose parts have been built (`guestmark prepare`), or only
those named after it.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from bench.sidebyside import contenders_table, measure_contenders, median_ratio

from guestmark.appliance.initramfs import CpioArchive
from guestmark.appliance.kernel import find_kernel
from guestmark.core.architectures import (
    ARCHITECTURES,
    Architecture,
    find_architecture,
    find_host_architecture,
)
from guestmark.core.model import Cell, WorkloadSpec
from guestmark.core.platform_spec import Layer, PlatformSpec
from guestmark.foreign import parts
from guestmark.platforms import libguestfs
from guestmark.platforms.phases import ANSWERED, READY
from guestmark.platforms.qemu.accelerators import TCG
from guestmark.platforms.qemu.platform import QemuPlatform
from guestmark.platforms.qemu.restored import TEMPLATES
from guestmark.platforms.sandbox.platform import SandboxPlatform
from guestmark.platforms.uml.platform import UML, UmlPlatform
from guestmark.setting.machine import Start

_MARK = b"bare-boot-reached-userspace"
_INIT = f"""
#include <unistd.h>
#include <sys/reboot.h>
int main(void) {{
    static const char mark[] = "{_MARK.decode()}\\n";
    write(1, mark, sizeof mark - 1);
    return reboot(RB_POWER_OFF);
}}
"""


def _time_our_guest(platform: QemuPlatform | UmlPlatform, phase: str = READY, **factors: str) -> float:
    cell = Cell("bench", WorkloadSpec("bench"), PlatformSpec.read(platform.name), factors)
    with platform.start(cell) as guest:
        return guest.phases[phase]


def _time_sandbox(name: str) -> float:
    spec = PlatformSpec.read(name)
    with SandboxPlatform(spec.inner).start(Cell("bench", WorkloadSpec("bench"), spec)) as machine:
        return machine.phases[READY]


def _by_hand(command: Sequence[str]) -> float:
    begin = time.monotonic()
    subprocess.run(command, check=True)
    return time.monotonic() - begin


def _until_mark(command: list[str]) -> float:
    begin = time.monotonic()
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        assert process.stdout is not None
        seen = b""
        reached = None
        while chunk := os.read(process.stdout.fileno(), 4096):
            seen += chunk
            if reached is None and _MARK in seen:
                reached = time.monotonic() - begin
    if reached is None:
        sys.exit(f"the bare boot did not reach userspace: {seen[-500:].decode(errors='replace')}")
    return reached


def _time_guestfish(disk: Path) -> float:
    environment = {**os.environ, **libguestfs.prepare("tcg")}
    begin = time.monotonic()
    done = subprocess.run(
        ["guestfish", "-a", str(disk), "run"], env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"guestfish failed: {done.stderr.strip()}")
    return time.monotonic() - begin


def _bare_initramfs(scratch: Path, compiler: str = "cc") -> Path:
    source, program = scratch / "init.c", scratch / "init"
    source.write_text(_INIT)
    subprocess.run([compiler, "-static", "-Os", "-w", "-o", str(program), str(source)], check=True)
    archive = CpioArchive()
    archive.add_directory("dev")
    archive.add_character_device("dev/console", 5, 1)
    archive.add_file("init", program.read_bytes(), 0o755)
    target = scratch / f"bare-{compiler}.cpio"
    target.write_bytes(archive.to_bytes())
    return target


def _build_bare_command(row: Architecture, initramfs: Path) -> list[str]:
    """Return QEMU's command line with only a processor, a console, a kernel and the bare initramfs."""
    return [
        row.emulator.name, "-nodefaults", "-no-user-config", "-no-reboot", "-display", "none",
        "-chardev", "stdio,id=console,signal=off", *row.console_device,
        "-machine", row.machine, "-accel", "tcg", "-cpu", TCG.choose_default_cpu(row), "-m", row.memory,
        "-initrd", str(initramfs),
    ]  # fmt: skip


def _architectures(wanted: Sequence[str], rounds: int, seed: int) -> None:
    contenders: dict[str, Callable[[], float]] = {}
    with tempfile.TemporaryDirectory(prefix="guestmark-bench-") as scratch:
        for row in map(find_architecture, wanted or ARCHITECTURES):
            made = None if row.is_host else parts.find_parts(row)
            if made is None or not shutil.which(row.cross.name):
                continue
            initramfs = _bare_initramfs(Path(scratch), row.cross.name)
            append = f"console={row.console} quiet panic=-1 {TCG.build_kernel_command_line(row)}"
            contenders[f"tcg@{row.name}"] = partial(_time_our_guest, QemuPlatform(Layer("tcg", row.name)))
            contenders[f"bare {row.name}"] = partial(
                _until_mark,
                [*_build_bare_command(row, initramfs), "-kernel", str(made.kernel.image), "-append", append],
            )
        for name, start in contenders.items():
            if not name.startswith("bare"):
                start()  # builds our initramfs
        values = measure_contenders(contenders, rounds, seed)
    bare = [name for name in contenders if name.startswith("bare")]
    contenders_table(f"start to ready, other architectures, {rounds} rounds", values, bare)
    for name in bare:
        ours = f"tcg@{name.removeprefix('bare ')}"
        print(f"{ours} / {name}   {median_ratio(values[ours], values[name]):.3f}   (aim ≤ 1.15)")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--arch", nargs="*", metavar="NAME", help="other architectures instead")
    arguments = parser.parse_args()
    if arguments.arch is not None:
        _architectures(arguments.arch, arguments.rounds, arguments.seed)
        return
    kernel = find_kernel()
    with tempfile.TemporaryDirectory(prefix="guestmark-bench-") as scratch_name:
        scratch = Path(scratch_name)
        initramfs = _bare_initramfs(scratch)
        row = find_host_architecture()
        disk = scratch / "disk"
        with disk.open("wb") as stream:
            stream.truncate(64 << 20)
        qemu = _build_bare_command(row, initramfs)
        contenders: dict[str, Callable[[], float]] = {
            "tcg": partial(_time_our_guest, QemuPlatform(Layer("tcg"))),
            "bare qemu": partial(_until_mark, [
                *qemu, "-kernel", str(kernel.elf),
                "-append", f"console=ttyS0 quiet panic=-1 {TCG.build_kernel_command_line(row)}"]),
            "bare qemu, as installed": partial(_until_mark, [
                *qemu, "-kernel", str(kernel.image), "-append", "console=ttyS0 quiet panic=-1"]),
            "uml": partial(_time_our_guest, UmlPlatform()),
            "bare uml": partial(_until_mark, [
                UML, "mem=1G", f"initrd={initramfs}", f"uml_dir={scratch}", "con=null", "con0=null,fd:1", "quiet"]),
        }  # fmt: skip
        restored = {"start": Start.RESTORED.value}
        contenders["restored, answer"] = partial(
            _time_our_guest, QemuPlatform(Layer("tcg")), ANSWERED, **restored
        )
        contenders["restored, root"] = partial(_time_our_guest, QemuPlatform(Layer("tcg")), READY, **restored)
        if shutil.which("bwrap") and os.geteuid() == 0:
            contenders["bwrap"] = partial(_time_sandbox, "bwrap")
            contenders["bwrap by hand"] = partial(
                _by_hand,
                ["bwrap", "--unshare-all", "--bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "true"],
            )
        if shutil.which("guestfish"):
            contenders["guestfish"] = partial(_time_guestfish, disk)
            _time_guestfish(disk)  # builds its appliance
        else:
            print("guestfish is not installed: the libguestfs row is missing (package guestfish)")
        for start in (contenders["tcg"], contenders["uml"]):
            start()  # builds our initramfs
        with TEMPLATES.share_in_block():
            contenders["restored, root"]()  # makes the template
            values = measure_contenders(contenders, arguments.rounds, arguments.seed)
    beside = ["guestfish"] if "guestfish" in values else []
    contenders_table(
        f"start to ready, {kernel.release}, {arguments.rounds} rounds",
        values,
        ["bare qemu", "bare uml", *beside],
    )
    print(f"tcg / bare qemu   {median_ratio(values['tcg'], values['bare qemu']):.3f}   (aim ≤ 1.15)")
    print(f"uml / bare uml    {median_ratio(values['uml'], values['bare uml']):.3f}   (aim ≤ 1.15)")
    for name, aim in (("restored, answer", 0.10), ("restored, root", 0.20)):
        print(f"{name}   {statistics.median(values[name]):.3f} s   (aim ≤ {aim:.2f} s)")
    if "bwrap" in values:
        print(
            f"bwrap by hand / bwrap   {median_ratio(values['bwrap by hand'], values['bwrap']):.3f}   (aim ≥ 0.8)"
        )
    for name in beside:
        print(f"tcg / {name}   {median_ratio(values['tcg'], values[name]):.3f}   (aim ≤ 0.35)")


if __name__ == "__main__":
    main()
