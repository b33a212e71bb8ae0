"""The conformance kit finds what is broken in plugins that break one rule each, and nothing in sound ones."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.framework import CHECKOUT, IMPORTABLE
from tests.framework.distributions import brought
from tests.framework.marks import long
from tests.storm import leavings

WORK = """
from typing import Annotated

from guestmark.core.factor import Factor, one_of
from guestmark.core.metric import Metric
from guestmark.core.params import Params, param
from guestmark.workloads.base import Workload

WALL, OTHER = Metric("wall_s", "s"), Metric("other", "B")
SPEED = Factor("speed", "how fast", one_of("slow", "quick"), ("slow", "quick"))


class Nap(Params, frozen=True, kw_only=True):
    seconds: Annotated[float, param("how long", default=0.3)]


class Lost(Nap, frozen=True, kw_only=True):
    def to_stored(self):
        return {}


class Sleeping(Workload[Nap]):
    help = "sleeps"
    measured = (WALL,)

    @classmethod
    def list_metrics(cls, params):
        return cls.measured

    @classmethod
    def trial_class(cls):
        import work_run

        return getattr(work_run, cls.name.title())


class Sound(Sleeping):
    name = "sound"
    factors = (SPEED,)


class Ignorant(Sleeping):
    name = "ignorant"
    factors = (SPEED,)


class Absent(Sleeping):
    name = "absent"
    measured = (WALL, OTHER)


class Forgetful(Sleeping, Workload[Lost]):
    name = "forgetful"


for name in (
    "extra", "infinite", "bytes", "confused", "inventive", "endless", "deaf", "untidy", "orphaned", "refusing",
    "nowhere",
):
    globals()[name.title()] = type(name.title(), (Sleeping,), {"name": name})
"""
WORK_RUN = """
import subprocess, tempfile

from guestmark.core.errors import MachineError, WorkloadError
from guestmark.core.metric import Measurement, Metric
from guestmark.workloads.base import Workload
from work import OTHER, WALL, Nap


class Sound(Workload[Nap]):
    def run(self, machine):
        seconds = self.params.seconds / (2 if self.cell.factors.get("speed") == "quick" else 1)
        return self.slept(machine, seconds, self.limit_s)

    def slept(self, machine, seconds, limit_s):
        result = machine.agent.exec(["sleep", str(seconds)], timeout_s=limit_s)
        if result.status != 0 or result.timed_out:
            raise WorkloadError("sleep did not end in time")
        return [self.of(WALL, result.wall_s)]

    def of(self, metric, value):
        return Measurement(metric, value, (value,))


Absent = Forgetful = Sound


class Extra(Sound):
    def run(self, machine):
        return [*super().run(machine), self.of(OTHER, 1.0)]


class Infinite(Sound):
    def run(self, machine):
        super().run(machine)
        return [self.of(WALL, float("nan"))]


class Bytes(Sound):
    def run(self, machine):
        super().run(machine)
        return [self.of(Metric("wall_s", "B"), 1.0)]


class Confused(Sound):
    def run(self, machine):
        try:
            return super().run(machine)
        except MachineError as error:
            raise KeyError("wall_s") from error


class Inventive(Sound):
    def run(self, machine):
        try:
            return super().run(machine)
        except MachineError:
            return [self.of(WALL, 1.0)]


class Endless(Sound):
    def run(self, machine):
        return self.slept(machine, self.params.seconds, 60)


class Deaf(Sound):
    def run(self, machine):
        try:
            return super().run(machine)
        except BaseException:
            return [self.of(WALL, 1.0)]


class Untidy(Sound):
    def prepare(self, machine):
        tempfile.mkdtemp()


class Orphaned(Sound):
    def run(self, machine):
        with open("/dev/null", "wb") as nothing:
            subprocess.Popen(["sleep", "1000"], start_new_session=True, stdout=nothing, stderr=nothing)
        return super().run(machine)


class Refusing(Sound):
    def run(self, machine):
        raise WorkloadError("not today")


class Ignorant(Sound):
    def run(self, machine):
        return self.slept(machine, self.params.seconds, self.limit_s)
"""
HEAVY = """
import work_run
from work import Sleeping


class Heavy(Sleeping):
    name = "heavy"

    @classmethod
    def trial_class(cls):
        return work_run.Sound
"""
PLACES = """
from guestmark.core.factor import Factor, one_of
from guestmark.core.platform_kind import Program
from guestmark.platforms.descriptions import describe_host_like

COLOUR = Factor("colour", "its colour", one_of("red", "blue"), ("red", "blue"))


def kind(name, *factors, **more):
    def load_class():
        import places_run

        return getattr(places_run, name.title())

    return describe_host_like(name, "this host", load_class, *factors, **more)


PLATFORMS = (
    kind("plain", COLOUR), kind("colourless", COLOUR), kind("leaky"), kind("vague"), kind("hasty"), kind("raising"),
    kind("needy", programs=(Program("unshare", "util-linux"),)), kind("fitful"),
)
"""
PLACES_RUN = """
import contextlib, subprocess

from guestmark.platforms.host_like import Host, HostLike, Surroundings


class Plain(HostLike):
    def check_cell(self, cell, disks):
        cell.factors.get("colour")


class Colourless(HostLike):
    pass


class Leaky(HostLike):
    @contextlib.contextmanager
    def enter_surroundings(self, cell, disks):
        nothing = subprocess.DEVNULL
        subprocess.Popen(["sleep", "1000"], start_new_session=True, stdout=nothing, stderr=nothing)
        yield Surroundings()


class Unsure(Host):
    def attest(self):
        return {"kernel": "some"}


class Vague(HostLike):
    def make_machine(self, agent, command, seat, pid):
        return Unsure(agent, command, seat=seat, pid=pid)


class Soon(Host):
    def console(self):
        return None


class Hasty(HostLike):
    def make_machine(self, agent, command, seat, pid):
        return Soon(agent, command, seat=seat, pid=pid)


class Raising(HostLike):
    def probe(self, deadline_s=None, factors=None):
        raise LookupError("nowhere")


class Needy(HostLike):
    @contextlib.contextmanager
    def enter_surroundings(self, cell, disks):
        subprocess.run(["unshare", "--version"], check=True, stdout=subprocess.DEVNULL)
        yield Surroundings()


class Fitful(HostLike):
    @contextlib.contextmanager
    def enter_surroundings(self, cell, disks):
        try:
            yield Surroundings()
        except Exception as error:
            raise ZeroDivisionError from error
"""
SWITCHES = """
from guestmark.core.factor import Machine, one_of
from guestmark.setting.base import Check, DiskSetting, Refusal, pass_level_as
from guestmark.setting.drive import BUS, Bus
from guestmark.setting.machine import MachineSetting


def attested(level, guest):
    yield Check("word", level, level)


def switch(name, **more):
    more = {"parse": one_of("a", "b"), "kernel": lambda level: (f"{name}={level}",), **more}
    return MachineSetting(name, "a word", levels=("a", "b"), read=str, machines=Machine.UML, **more)


def really(level, drive):
    yield Check("transfer", level, drive.in_guest("queue/optimal_io_size"))


TOLD = DiskSetting(
    "told", "bytes that a disk likes to move", one_of("32768", "65536"), ("32768", "65536"), read=str,
    machines=Machine.QEMU, device=pass_level_as("opt_io_size"), attest=really,
    refuse=lambda _level, disk, _cell: (
        Refusal("NVMe and IDE have no such size", "use virtio") if disk[BUS] in (Bus.NVME, Bus.IDE) else None
    ),
)
NARROW = DiskSetting(
    "narrow", "an option of virtio-blk that nothing refuses elsewhere", one_of("off", "on"), ("off", "on"),
    read=str, machines=Machine.QEMU, device=pass_level_as("write-zeroes"),
    attest=lambda level, drive: [
        Check("narrow", level == "off", drive.in_guest("queue/write_zeroes_max_bytes") == "0")
    ],
)
UNTOLD = switch("untold")
BELIEVED = switch("believed", attest=attested)
DEAD = switch("dead", kernel=lambda level: (), attest=attested)
PICKY = switch("picky", parse={"a": "a", "b": "b"}.__getitem__)
"""
CHECK = """
import json, sys
from guestmark import testing

for kind, *words in json.loads(sys.argv[1]):
    found = getattr(testing, f"check_{kind}")(*words)
    print(json.dumps([[str(each.rule), each.what] for each in found]), flush=True)
"""


WORKLOADS = [
    ("unheard", "described", "unknown workload 'unheard'"),
    ("nowhere", "described", "trial_class cannot be imported"),
    ("heavy", "cheap", "importing heavy imports work_run"),
    ("forgetful", "parameters", "the parameters cannot be read back from the ledger"),
    ("absent", "metrics", "other is declared but not measured"),
    ("extra", "metrics", "other is measured but not declared"),
    ("infinite", "measured", "a trial failed: metric wall_s is not a usable number"),
    ("bytes", "metrics", "wall_s has another unit or direction than declared"),
    ("refusing", "measured", "a trial failed: not today"),
    ("confused", "typed errors", "run() on a machine that was killed raised KeyError('wall_s')"),
    ("inventive", "typed errors", "run() on a machine that was killed returned measurements"),
    ("endless", "limit", "an iteration ran for"),
    ("ignorant", "factors", "speed is accepted but ignored"),
    ("deaf", "interrupted", "a run does not end within 10 s of an interruption"),
    ("untidy", "interrupted", "a run that was interrupted leaves tmp"),
    ("orphaned", "interrupted", "sleep 1000"),
]
PLATFORMS = [
    ("unheard", "described", "unheard"),
    ("colourless", "factors", "colour is accepted but ignored"),
    ("leaky", "ended", "sleep 1000"),
    ("vague", "attested", "attest() returned {'kernel': 'some'}"),
    ("hasty", "started", "console of its machine is"),
    ("raising", "typed errors", "probe() raised LookupError('nowhere')"),
    ("needy", "typed errors", "start() without its programs raised FileNotFoundError"),
    ("fitful", "typed errors", "ZeroDivisionError"),
]
# Each rule is broken in one way or two each time, and in these ways by `./test --long`.
_FURTHER = {"nowhere", "extra", "bytes", "refusing", "inventive", "untidy", "needy", "fitful"}


def with_further(rows: Sequence[tuple[str, str, str]]) -> list[object]:
    return [long(*row) if row[0] in _FURTHER else row for row in rows]


_AT_ONCE = 4
Found = list[tuple[str, str]]
Checks = Callable[..., Found]


@pytest.fixture(scope="module")
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Checks]:
    """What the kit finds. Checks wait most of the time, so that some are made at once, before they are asked for."""
    folder = tmp_path_factory.mktemp("plugins")
    for name, module in (("work_run", WORK_RUN), ("places_run", PLACES_RUN)):
        (folder / f"{name}.py").write_text(module)
    for name, module in (("work", WORK), ("heavy", HEAVY), ("places", PLACES), ("switches", SWITCHES)):
        path = brought(folder, name, module)
    mark = f"GUESTMARK_PLANTED={folder}"
    environment = {**os.environ, **path, "GUESTMARK_PLANTED": str(folder)}

    def checked(asked: Sequence[tuple[str, ...]]) -> dict[tuple[str, ...], Found]:
        done = subprocess.run(
            [sys.executable, "-c", CHECK, json.dumps(asked)],
            env=environment, capture_output=True, text=True, timeout=200, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        answers = [[(rule, what) for rule, what in json.loads(line)] for line in done.stdout.splitlines()]
        return dict(zip(asked, answers, strict=True))

    wanted = " ".join(item.name for item in request.session.items)
    broken = [
        (kind, name)
        for kind, names in (("workload", WORKLOADS), ("platform", PLATFORMS))
        for name, *_ in names
        if f"test_a_{kind}_that_breaks_a_rule_is_found[{name}-" in wanted
    ]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        parts = [broken[number::_AT_ONCE] for number in range(_AT_ONCE)]
        begun = {
            words: answers for part in parts for answers in [pool.submit(checked, part)] for words in part
        }

        def found(*words: str) -> Found:
            return (begun[words].result() if words in begun else checked([words]))[words]

        yield found
    for pid, _ in leavings.processes(mark.encode(), {}):  # what leaky plugins have started
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize(
    "words",
    [
        "platform host",
        *(long(words) for words in ("workload syscalls", "workload sound", "platform plain")),
    ],
)
def test_what_is_sound_breaks_no_rule(words: str, found: Checks) -> None:
    breaches = found(*words.split())
    assert [what for _, what in breaches if "is declared but not measured" not in what] == []


@pytest.mark.parametrize(("name", "rule", "what"), with_further(WORKLOADS))
def test_a_workload_that_breaks_a_rule_is_found(name: str, rule: str, what: str, found: Checks) -> None:
    breaches = found("workload", name)
    assert any(broken == rule and what in said for broken, said in breaches), breaches


@pytest.mark.parametrize(("name", "rule", "what"), with_further(PLATFORMS))
def test_a_platform_that_breaks_a_rule_is_found(name: str, rule: str, what: str, found: Checks) -> None:
    breaches = found("platform", name)
    assert any(broken == rule and what in said for broken, said in breaches), breaches


@pytest.mark.long
def test_a_factor_that_reaches_the_guest_and_is_attested_breaks_no_rule(found: Checks) -> None:
    assert found("factor", "told", "tcg") == []


@pytest.mark.long
def test_a_factor_that_only_the_default_bus_has_is_found(found: Checks) -> None:
    breaches = found("factor", "narrow", "tcg")
    assert {rule for rule, _ in breaches} == {"measured"}
    assert [bus for bus in ("virtio-scsi", "nvme", "ide") if any(f"bus={bus}" in what for _, what in breaches)] == [
        "virtio-scsi", "nvme", "ide",
    ]  # fmt: skip


@pytest.mark.skipif(shutil.which("linux.uml") is None, reason="User-Mode Linux is not installed")
@pytest.mark.parametrize(
    ("name", "breaches"),
    [
        ("untold", [("factors", "untold is not attested")]),
        ("believed", [("factors", "the attestation accepts a guest with believed=a as one with believed=b")]),
        (
            "dead",
            [
                ("factors", "dead=a has the same effect as dead=b: it does not reach the guest"),
                ("factors", "the attestation accepts a guest with dead=a as one with dead=b"),
            ],
        ),
        ("picky", [("factors", "parse() raised KeyError('\\x00 no such level') for an invalid level")]),
    ],
)
def test_a_factor_that_breaks_a_rule_is_found(
    name: str, breaches: list[tuple[str, str]], found: Checks
) -> None:
    assert found("factor", name, "uml") == breaches


def test_without_a_test_runner_each_rule_is_a_line_and_a_hint() -> None:
    command = [sys.executable, "-m", "guestmark.testing", "workload"]
    environment = {**os.environ, "PYTHONPATH": IMPORTABLE}
    done = subprocess.run(
        [*command, "\x1bunheard"], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    said, hint = done.stdout.splitlines()[:2]
    assert said.startswith("described: unknown workload")
    assert "\x1b" not in done.stdout
    assert hint.startswith("  declare an entry point for it")


def test_the_examples_check_themselves(tmp_path: Path) -> None:
    examples = [CHECKOUT / "examples" / name for name in ("guestmark-walk", "guestmark-unshare")]
    for example in examples:
        (package,) = (path.parent for path in example.glob("guestmark_*/__init__.py"))
        about = tmp_path / f"{package.name}-1.0.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package.name}\nVersion: 1.0\n")
        (about / "entry_points.txt").write_text(f"[guestmark]\n{package.name} = {package.name}\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--import-mode=importlib",
         *(example / "tests" for example in examples)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([IMPORTABLE, str(tmp_path), *map(str, examples)])},
        cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert "2 passed" in done.stdout, done.stdout
