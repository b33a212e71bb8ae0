"""The workload `clones`: starts machines of one kind one after the other, and compares the values that they print."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from guestmark.agent.client import CommandError
from guestmark.core.architectures import find_host_architecture
from guestmark.core.cause import Cause
from guestmark.core.errors import MachineError
from guestmark.core.machine_facts import GuestMachine, OwnKernel, OwnMachine, OwnSnapshotFacts, TemplateFacts
from guestmark.core.metric import Measurement
from guestmark.core.model import Cell, Plan
from guestmark.core.platform_spec import HOST
from guestmark.platforms import registry
from guestmark.platforms.base import BareMachine, Machine, Platform
from guestmark.platforms.own.platform import OwnPlatform
from guestmark.platforms.qemu.platform import NO_EXTRAS, Extras, QemuPlatform
from guestmark.setting.machine import IMAGE, START, Start
from guestmark.workloads import clones
from guestmark.workloads.clones import ClonesWorkload, Control, Found, Twins, Word, judge
from guestmark.workloads.clones.judge import ComparedClock, ShownValues
from guestmark.workloads.clones.sources import (
    BOOT_ID,
    GETRANDOM,
    PATH,
    RESIDENTS,
    SAVED_FILE,
    SAVED_PROGRAM,
    SEEDED,
    SOURCES,
    URANDOM,
    Source,
    collect_resident_files,
)
from guestmark.workloads.common.metrics import to_measurements

_LOOK_S = 60.0  # limit for one command


class ClonesTrial(ClonesWorkload):
    """Runs the commands of `sources` in each machine; for restored guests also in clones that are deliberate twins."""

    ONCE = True

    def __init__(self, plan: Plan, cell: Cell) -> None:
        super().__init__(plan, cell)
        self._platform: Platform | None = None
        self._clocks: list[ComparedClock] = []
        # Whose kernel the user's own machines run.
        self._kernel_is: OwnKernel | None = None

    @contextlib.contextmanager
    def machine(self, platform: Platform) -> Iterator[BareMachine]:
        """Starts the first machine."""
        self._platform = platform
        with platform.start(self.cell) as machine:
            yield machine

    def run(self, machine: Machine) -> list[Measurement]:
        """Reads the values of all machines and judges them. Raises `MachineError` if a machine cannot start."""
        wanted = (*SOURCES, SEEDED)
        of_first = self._read_source_values(machine, wanted)
        templates = [self._find_template(machine)]
        looks = [of_first]
        for _ in range(self.params.machines - 1):
            with self._start_machine() as other:
                templates.append(self._find_template(other))
                looks.append(self._read_source_values(other, wanted))
        clocks, names = tuple(self._clocks), {each.template for each in templates if each}
        if len(names) > 1 or (names and None in templates):
            raise MachineError(
                "the clones come from different templates",
                hint="this is a bug in guestmark; please report it",
            )
        # Values that machines take over from this host do not make them twins, so the host's values are read, too.
        with registry.get_platform(HOST).start(Cell("here", self.cell.workload, HOST)) as host:
            here = self._read_source_values(host, SOURCES)
        kernel = self._kernel_is
        own_kernel = self.cell.platform.is_guest or kernel in {OwnKernel.OWN, OwnKernel.GVISOR}
        found = []
        for source in SOURCES:
            shown = [look[source.name] for look in looks]
            whose, known = "this host", here[source.name]
            if kernel is OwnKernel.THERE and source.of_kernel:
                # They run on the kernel of the host that made them, whose value is therefore the one that they show.
                whose, known = "the host that made them", shown[0]
            found.append(judge.judge_source(source, shown, known, own_kernel=own_kernel, host=whose))
        found.append(judge.judge_clocks(clocks))
        controls = [self._check_fixed_seed([look[SEEDED.name] for look in looks]), *self._run_controls()]
        self.facts.add(
            Twins(
                verdict=judge.choose_verdict(found, controls),
                machines=len(looks),
                seen_from=judge.compute_smallest_visible_share(len(looks)),
                template=next(iter(names), None),
                found=found,
                controls=controls,
            )
        )
        return _count_words(found)

    def _start_machine(self, extras: Extras = NO_EXTRAS) -> contextlib.AbstractContextManager[Machine]:
        assert self._platform is not None
        if isinstance(self._platform, QemuPlatform):
            return self._platform.start(self.cell, extras=extras)
        return self._platform.start(self.cell)

    def _find_template(self, machine: Machine) -> TemplateFacts | OwnSnapshotFacts | None:
        """Returns the template that a clone was restored from; None for other machines.

        Raises `AttestationError` for a machine that is not what was asked for.
        """
        found = machine.attest()
        if isinstance(found, OwnMachine) and found.inside is not None:
            self._kernel_is = found.inside.kernel_is
        return found.restored if isinstance(found, GuestMachine | OwnMachine) else None

    def _read_source_values(self, machine: Machine, sources: Sequence[Source]) -> dict[str, ShownValues]:
        """Returns the values that the machine prints, by source name, and records its clock."""
        begun, before = time.monotonic(), machine.agent.ping()
        sent = time.time()
        date = machine.agent.exec(["date", "+%s.%N"], timeout_s=_LOOK_S, env={"PATH": PATH})
        received = time.time()
        found = {source.name: self._read_values_of_source(machine, source) for source in sources}
        after = machine.agent.ping()
        with contextlib.suppress(ValueError):
            self._clocks.append(
                ComparedClock(
                    # The date was read between sending and receiving, which bounds the error.
                    off=float(date.stdout) - (sent + received) / 2,
                    uncertain=(received - sent) / 2,
                    drift=((after.guest_ns - before.guest_ns) - (after.host_ns - before.host_ns)) / 1e9,
                    looked=time.monotonic() - begun,
                )
            )
        return found

    def _read_values_of_source(self, machine: Machine, source: Source) -> ShownValues:
        program = source.command[0]
        try:
            done = machine.agent.exec(source.command, timeout_s=_LOOK_S, env={"PATH": PATH, "HOME": "/tmp"})
        except CommandError as error:
            if error.cause is not Cause.NOT_FOUND:
                raise
            return ShownValues(why=f"there is no {program}")
        values = tuple(
            line.strip() for line in done.stdout.decode(errors="replace").splitlines() if line.strip()
        )
        if values or done.ok:
            return ShownValues(values)
        said = done.stderr.decode(errors="replace").strip().splitlines()
        why = source.absent or f"{program} exited with status {done.status}"
        if said:
            why = said[-1][:200]
        return ShownValues(why=why)

    def _check_fixed_seed(self, shown: Sequence[ShownValues]) -> Control:
        found = judge.judge_source(SEEDED, shown)
        return Control(
            name="a generator with a fixed seed", caught=found.word is Word.IDENTICAL, said=found.said
        )

    def _run_controls(self) -> Iterator[Control]:
        """Runs the controls of restored machines: clones that are deliberately twins, or have a wrong clock."""
        if self.cell.levels.get(START) is not Start.RESTORED:
            return
        if isinstance(self._platform, OwnPlatform):
            yield self._check_saved_secret()
            return
        looks = self._read_control_clones(Extras(renews=False), ())
        # Without renewal a clone continues at the time of its template, which has to be detected.
        clock = judge.judge_clocks(self._clocks)
        yield Control(
            name="not renewed", caught=clock.word is Word.WRONG, said=f"{clock.source}: {clock.said}"
        )
        # After some seconds their kernel also draws from the processor's generator; only the first values are equal.
        first = (BOOT_ID, GETRANDOM, URANDOM)
        looks = self._read_control_clones(Extras(renews=False, generation_id=False), first)
        yield self._check_identical_clones("neither renewed nor with a generation ID", looks, first, some=any)
        # An image's system starts no program of guestmark's before it is saved, but for the agent.
        foreign = self.cell.platform.foreign_architecture not in (None, find_host_architecture())
        if not foreign and IMAGE not in self.cell.levels:
            looks = self._read_control_clones(Extras(programs=collect_resident_files()), RESIDENTS)
            yield self._check_identical_clones(
                "a program that ran before it was saved", looks, RESIDENTS, some=all
            )

    def _check_saved_secret(self) -> Control:
        """Looks for a secret that the user's machine had before it was saved, and that each restored one must have."""
        looks, source = [], SAVED_FILE
        for _ in range(self.params.controls):
            with self._start_machine() as machine:
                found = machine.attest()
                assert isinstance(found, OwnMachine)
                assert found.restored is not None
                source = SAVED_FILE if found.restored.files else SAVED_PROGRAM
                looks.append({source.name: self._read_values_of_source(machine, source)})
        return self._check_identical_clones("a secret from before it was saved", looks, (source,), some=all)

    def _read_control_clones(self, extras: Extras, sources: Sequence[Source]) -> list[dict[str, ShownValues]]:
        # The clocks of a control are judged separately from those of the machines.
        self._clocks.clear()
        looks = []
        for _ in range(self.params.controls):
            with self._start_machine(extras) as machine:
                looks.append(self._read_source_values(machine, sources))
        return looks

    def _check_identical_clones(
        self,
        name: str,
        looks: Sequence[dict[str, ShownValues]],
        sources: Sequence[Source],
        some: Callable[[Iterable[bool]], bool],
    ) -> Control:
        found = []
        for source in sources:
            shown = [look[source.name] for look in looks]
            found.append(judge.judge_source(source, shown))
        caught = some(each.word is Word.IDENTICAL for each in found)
        return Control(
            name=name, caught=caught, said="; ".join(f"{each.source}: {each.word}" for each in found)
        )


def _count_words(found: Sequence[Found]) -> list[Measurement]:
    """Returns the numbers of sources that were identical, distinct and not tried."""
    words = Counter(each.word for each in found)
    return to_measurements(
        [
            (clones.IDENTICAL, float(words[Word.IDENTICAL])),
            (clones.DISTINCT, float(words[Word.DISTINCT])),
            (clones.UNTRIED, float(words[Word.UNTRIED])),
        ]
    )
