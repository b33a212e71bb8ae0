"""What ARCHITECTURE.md and CONTRIBUTING.md name exists, and the factor that ARCHITECTURE.md shows does what it says."""

import importlib
import os
import pkgutil
import re
import shutil
import textwrap
from pathlib import Path

import pytest

import guestmark
from guestmark.core.model import Cell, WorkloadSpec
from guestmark.core.platform_spec import PlatformSpec
from guestmark.setting import drive
from guestmark.setting.base import DiskSetting
from guestmark.setting.disk import DiskSpec, Role
from tests.framework.command_line import CommandLine

ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "python" / "guestmark"
PAGES = ("ARCHITECTURE.md", "CONTRIBUTING.md")
FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
# What the recipes make, and what a checkout has only after set-up.
NEW = re.compile(r".*(true_loop|platforms/unshare|NAME).*|(\.venv|\.setup|target)(/.*)?")
MODULES = {module.name for module in pkgutil.iter_modules([str(PACKAGE)])}


def named(page: str) -> list[str]:
    """Every word that the page has between backticks, but for its blocks."""
    return sorted(set(re.findall(r"`([^`\s]+)`", FENCE.sub("", (ROOT / page).read_text()))))


def paths() -> list[tuple[str, str]]:
    return [
        (page, name)
        for page in PAGES
        for name in named(page)
        if re.fullmatch(r"[\w.-]+(/[\w.-]*)+", name)
        and not NEW.fullmatch(name)
        and not re.search(r"/\d$", name)
    ]


def symbols() -> list[tuple[str, str]]:
    found = [(page, name.removeprefix("guestmark.")) for page in PAGES for name in named(page)]
    return [
        (page, re.sub(r"\(.*\)$", "", name))
        for page, name in found
        if "." in name
        and "/" not in name
        and name.split(".")[0] in {*MODULES, "tests"}
        and not name.endswith(".py")
    ]


def exists(dotted: str) -> bool:
    """Whether `dotted`, below the package or in `tests`, is a module or an attribute of one."""
    parts = dotted.split(".") if dotted.startswith("tests.") else [guestmark.__name__, *dotted.split(".")]
    for length in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for name in parts[length:]:
            if not hasattr(found, name):
                return False
            found = getattr(found, name)
        return True
    return False


@pytest.mark.parametrize(("page", "path"), paths())
def test_a_named_file_exists(page: str, path: str) -> None:
    path = path.replace("VERB", "exec")  # stands for each of them
    assert any((base / path).exists() for base in (ROOT, PACKAGE)), f"{page} names {path}"


@pytest.mark.parametrize(("page", "symbol"), symbols())
def test_a_named_symbol_exists(page: str, symbol: str) -> None:
    assert exists(symbol), f"{page} names {symbol}"


def test_the_map_has_every_package_and_no_other() -> None:
    the_map = next(
        text for _, text in FENCE.findall((ROOT / "ARCHITECTURE.md").read_text()) if "crates/" in text
    )
    python = the_map.split("python/guestmark/\n")[1].split("\nexamples/")[0]
    mapped = set(re.findall(r"^  (\w+)/ ", python, re.MULTILINE))
    assert mapped == {path.parent.name for path in PACKAGE.glob("*/__init__.py")}


def shown_factor() -> DiskSetting[str]:
    blocks = FENCE.findall((ROOT / "ARCHITECTURE.md").read_text())
    source = next(text for language, text in blocks if language == "python" and "WRITE_ZEROES" in text)
    names = dict(vars(drive))
    exec(textwrap.dedent(source), names)
    found: DiskSetting[str] = names["WRITE_ZEROES"]
    return found


@pytest.mark.parametrize("bus", ["virtio-blk", "virtio-scsi", "nvme", "ide"])
def test_the_factor_shown_is_refused_where_qemu_has_no_such_option(bus: str) -> None:
    factor = shown_factor()
    disk = DiskSpec.from_levels(Role.TARGET, 16 << 20, bus=bus)
    cell = Cell("shown", WorkloadSpec("shown"), PlatformSpec.read("tcg"), {"bus": bus})
    assert list(factor.device("off", disk)) == ["write-zeroes=off"]
    assert (factor.refuse("off", disk, cell) is None) == (bus == "virtio-blk")


def test_the_workload_shown_measures(tmp_path: Path, guestmark: CommandLine) -> None:
    """The recipe as somebody follows it: the package that is shown, in a copy of this one, and a plan with it."""
    section = (
        (ROOT / "ARCHITECTURE.md").read_text().split("## Add a workload")[1].split("## Add a platform")[0]
    )
    shown = [textwrap.dedent(text) for language, text in FENCE.findall(section) if language == "python"]
    assert len(shown) == 2  # parameters and class
    copy = tmp_path / "python/guestmark"
    shutil.copytree(PACKAGE, copy, copy_function=os.symlink)
    (copy / "workloads/true_loop").mkdir()
    (copy / "workloads/true_loop/__init__.py").write_text("\n\n".join(shown))
    plan = tmp_path / "loops.toml"
    plan.write_text(
        'name = "l"\ntitle = "How long?"\nplatforms = ["host"]\n[workloads.true-loop]\nparams.times = 3\n'
    )
    # Another value than that of this process: an interpreter that has this package loaded would not look into the copy.
    environment = {"PYTHONPATH": str(copy.parent), "PYTHONSAFEPATH": "1"}
    done = guestmark("run", str(plan), "--blocks", "2", env=environment)
    assert done.status == 0, done.stderr
    assert "3 × true" in done.stdout
