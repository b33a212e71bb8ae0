"""The wheels that `tools/package` makes, installed in fresh environments outside of the checkout, and extensions."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from guestmark.capture.binary import find_capture_binary
from tests.framework import CHECKOUT
from tests.framework import captures as cf
from tests.unit.plan.test_second_edition import shown_in

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]
WHEELS = CHECKOUT / "target/wheels"
INSTALL_S = 280
BRIEF = ("--blocks", "1", "--iterations", "1", "--warmup", "0", "--null", "none", "--quiet", "--json", "-")


class Installed:
    """A fresh environment with what was installed, and a home of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin = folder / "venv/bin"
        subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
        self.environment: Mapping[str, str] = {
            "PATH": f"{self.bin}:{os.environ['PATH']}",
            "HOME": str(folder),
            "LANG": "C.UTF-8",
        }

    def pip(self, *words: object) -> None:
        """Installs something."""
        self.call("python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *words)

    def call(self, *words: object) -> str:
        """Runs a program of the environment away from the checkout; what it prints."""
        done = subprocess.run(
            [self.bin / str(words[0]), *map(str, words[1:])],
            env=self.environment, cwd=self.folder, capture_output=True, text=True, timeout=INSTALL_S, check=False,
        )  # fmt: skip
        reasons = [line for line in done.stdout.splitlines() if '"reason": "' in line]
        assert done.returncode == 0, (done.stderr, reasons)
        return done.stdout

    def measure(self, *words: object) -> dict[str, dict[str, object]]:
        """The cells of a run by their ids."""
        cells = json.loads(self.call("guestmark", *words))["cells"]
        assert {cell["status"] for cell in cells} == {"ok"}
        return {cell["id"]: cell for cell in cells}


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """An environment with maturin."""
    made = Installed(tmp_path_factory.mktemp("builder"))
    made.pip("maturin>=1.7,<2")
    return made


def package(builder: Installed, *words: str) -> None:
    environment = {
        **os.environ,
        "PATH": f"{builder.bin}:{os.environ['PATH']}",
        "PROFILE": "checkout",
        # maturin compiles anew what cargo has compiled. Meanwhile other tests need the checkout's own programs.
        "CARGO_TARGET_DIR": str(CHECKOUT / "target/package"),
    }
    done = subprocess.run(
        [CHECKOUT / "tools/package", *words], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.fixture(scope="module")
def wheels(builder: Installed) -> Path:
    """The folder of the wheels, made as for a release but compiled as quickly as for a checkout."""
    package(builder)
    return WHEELS


@pytest.fixture(scope="module")
def installed(wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    made = Installed(tmp_path_factory.mktemp("installed"))
    made.pip(*wheels.glob("guestmark-*.whl"))
    return made


def test_the_wheel_measures(installed: Installed) -> None:
    assert installed.call("guestmark", "--version").startswith("guestmark ")
    assert list(installed.measure("exec", *BRIEF, "--on", "host", "--", "true")) == ["host"]
    where = installed.call("python", "-c", "import guestmark; print(guestmark.__file__)")
    assert str(installed.folder) in where


@pytest.mark.skipif(shutil.which("linux.uml") is None, reason="User-Mode Linux is not installed")
def test_the_wheel_boots_guests(installed: Installed) -> None:
    assert list(installed.measure("exec", *BRIEF, "--on", "uml", "--", "true")) == ["uml"]


@pytest.mark.thorough
def test_a_wheel_for_another_architecture_is_built_beside_it(wheels: Path, builder: Installed) -> None:
    package(builder, "arm64")
    assert any(path.name.endswith("_aarch64.whl") for path in wheels.glob("guestmark-*.whl"))


@pytest.mark.thorough
@pytest.mark.timeout(1500)
def test_the_wheel_measures_in_a_fresh_root_without_a_compiler(wheels: Path) -> None:
    """Installed there by pip, with static programs inside."""
    assert os.geteuid() == 0, "making a root file system needs root: run ./test --long as root"
    assert wheels == CHECKOUT / "target/wheels"  # where the script looks
    run = subprocess.run(
        [CHECKOUT / "tools/try-wheel"], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout[-6000:] + run.stderr[-6000:]
    assert "the first block took" in run.stdout
    for platform in ("host", "tcg"):
        assert f"\n{platform} " in run.stdout


def test_the_wheel_brings_its_manual_and_completions(installed: Installed) -> None:
    there = {
        str(path.relative_to(installed.folder / "venv")) for path in installed.folder.rglob("venv/share/**/*")
    }
    for end in ("man1/guestmark.1", "bash-completion/completions/guestmark", "zsh/site-functions/_guestmark"):
        assert any(name.endswith(end) for name in there), there
    assert any(name.endswith("guestmark.fish") for name in there)


def test_extensions_are_installed_beside_it(installed: Installed) -> None:
    examples = installed.folder / "examples"
    # setuptools leaves what it has built beside the sources.
    shutil.copytree(CHECKOUT / "examples", examples, ignore=shutil.ignore_patterns("build", "*.egg-info"))
    installed.pip(*(examples / name for name in ("guestmark-walk", "guestmark-unshare")))
    (plan,) = shown_in("docs/guide/extensions.md")
    (installed.folder / "walk.toml").write_text(plan)
    cells = installed.measure("run", "walk.toml", *BRIEF)
    assert list(cells) == ["host", "unshare"]
    files = [cell["trials"][0]["measurements"]["files"] for cell in cells.values()]  # type: ignore[index]
    assert files[0] == files[1] > 50
    assert "unshare" in installed.call("guestmark", "doctor", "--json")


@pytest.fixture(scope="module")
def engine(wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The capture engine's own wheel in an environment with nothing else."""
    made = Installed(tmp_path_factory.mktemp("engine"))
    made.pip("--no-deps", *wheels.glob("guestmark_capture-*.whl"))
    return made


def test_the_capture_engine_is_a_program_of_its_own(engine: Installed) -> None:
    """In an environment with nothing else it says of a capture what guestmark says."""
    assert {path.name for path in engine.bin.glob("guestmark*")} == {"guestmark-capture"}
    assert not list(engine.folder.rglob("site-packages/guestmark"))
    capture = engine.folder / "trace.pcap"
    capture.write_bytes(cf.pcap(cf.frames(cf.conversation())))
    found = json.loads(engine.call("guestmark-capture", "--top", "20", capture))
    ours = subprocess.run(
        [find_capture_binary(), "--top", "20", capture], capture_output=True, check=True, cwd=engine.folder
    )
    assert found == json.loads(ours.stdout)
    assert found["files"][0]["connections"][0]["causes"]["latency_s"] > 0


def test_the_capture_engine_starts_at_once(engine: Installed) -> None:
    """The best of twenty: from the call to its end, with a capture read meanwhile."""
    capture = engine.folder / "small.pcap"
    capture.write_bytes(cf.pcap(cf.frames(cf.conversation())))
    times = []
    for _ in range(20):
        begun = time.perf_counter()
        subprocess.run([engine.bin / "guestmark-capture", capture], stdout=subprocess.DEVNULL, check=True)
        times.append(time.perf_counter() - begun)
    assert min(times) <= 0.02
