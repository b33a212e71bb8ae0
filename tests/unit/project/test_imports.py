"""The contract of imports catches what it is there for."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
CHECK = """
import sys
from importlinter.cli import lint_imports
sys.exit(lint_imports(no_cache=True, no_logo=True))
"""


@pytest.mark.parametrize(
    ("module", "line", "broken"),
    [
        ("core/units.py", "from guestmark.cli import app", "imports point down"),
        ("stats/paired.py", "from guestmark.report import formats", "imports point down"),
        ("disks/sparse.py", "from guestmark.platforms import registry", "imports point down"),
        ("platforms/qmp.py", "from guestmark.platforms.qemu import platform", "no circles"),
        ("plan/pattern.py", "from guestmark.plan import matrix", "no circles"),
        ("engine/bisection.py", "from guestmark.cli import measure", "imports point down"),
        ("fleet/block_task.py", "from guestmark.cli import measure", "imports point down"),
        (
            "cli/do/run.py",
            "from guestmark.engine import measurement_loop",
            "the command line makes no runs",
        ),
    ],
)
def test_an_import_that_is_put_in_by_hand_breaks_the_contract(
    tmp_path: Path, module: str, line: str, broken: str
) -> None:
    shutil.copytree(
        ROOT / "python", tmp_path / "python", ignore=shutil.ignore_patterns("__pycache__", "*.toml")
    )
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    changed = tmp_path / "python" / "guestmark" / module
    changed.write_text(f"{changed.read_text()}\n{line}\n")
    # -P and the variable: the copy is looked at, not the checkout that the environment leads to.
    done = subprocess.run(
        [sys.executable, "-c", CHECK],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path / "python")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"{broken} BROKEN" in done.stdout
