"""The workflow that the guide prints, step by step as a runner executes it: each step is a file for `sh -e`."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.framework import CHECKOUT
from tests.framework.documented import blocks

pytestmark = [
    pytest.mark.skipif(
        os.getuid() != 0, reason="a container's steps are root's, and a loop device takes root"
    ),
    pytest.mark.skipif(not (CHECKOUT / ".git").exists(), reason="a step clones this repository"),
    pytest.mark.timeout(900),
]
yaml = pytest.importorskip("yaml")
MIRROR = "https://YOUR-MIRROR/guestmark"
MAKEFILE = "store: store.c\n\tcc -O1 -Wall -Werror -o store store.c\n"
STORE = """
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
int main(int count, char **words) {
    char fresh[256];
    if (count != 4) return 2;
    snprintf(fresh, sizeof fresh, "%s.new", words[2]);
    int file = open(fresh, O_CREAT | O_TRUNC | O_WRONLY, 0644);
    if (write(file, words[3], strlen(words[3])) < 0 || fsync(file) || rename(fresh, words[2])) return 1;
    return SYNC;
}
"""


def workflow() -> dict[str, Any]:
    (block,) = [one for one in blocks(CHECKOUT / "docs/guide/powercut-ci.md") if one.language == "yaml"]
    (job,) = yaml.safe_load(block.text)["jobs"].values()
    assert isinstance(job, dict)
    return job


class Runner:
    """Runs the steps of a job in a workspace; what they put into /opt, or have apt-get do, is not this host's."""

    def __init__(self, folder: Path) -> None:
        self.workspace, self._opt, self._programs = folder / "workspace", folder / "opt", folder / "programs"
        for made in (self.workspace, self._opt, self._programs):
            made.mkdir()
        # The real one decides whether there are such packages, and whether they go together.
        apt = self._programs / "apt-get"
        apt.write_text('#!/bin/sh\n[ "$1" != update ] || exit 0\nexec /usr/bin/apt-get --simulate "$@"\n')
        apt.chmod(0o755)
        self._environment = {
            "PATH": f"{self._programs}:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": str(folder),
            "GUESTMARK_LOCK": "none",
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": f"url.file://{CHECKOUT}.insteadOf",
            "GIT_CONFIG_VALUE_0": MIRROR,
            "GITHUB_STEP_SUMMARY": str(folder / "summary"),
        }

    def run_step(self, text: str) -> subprocess.CompletedProcess[str]:
        script = self._opt.parent / "step.sh"
        script.write_text(text)
        inside = f'mount --bind "{self._opt}" /opt && exec sh -e "{script}"'
        return subprocess.run(
            ["unshare", "--mount", "sh", "-c", inside], cwd=self.workspace, env=self._environment, text=True,
            capture_output=True, check=False, timeout=800,
        )  # fmt: skip

    def lend_built(self) -> None:
        """Gives the clone what this checkout has built, as a runner's cache would; set-up takes it if it fits."""
        clone = self._opt / "guestmark"
        # What is not committed yet is tried, too.
        changed = subprocess.run(
            ["git", "-C", CHECKOUT, "diff", "--binary", "HEAD"], capture_output=True, check=True
        )
        if changed.stdout:
            subprocess.run(["git", "-C", clone, "apply"], input=changed.stdout, check=True)
        for name in (".venv", ".setup"):
            subprocess.run(["cp", "-al", CHECKOUT / name, clone / name], check=True)
        for name in ("agent", "capture"):
            built = (CHECKOUT / ".setup" / name).read_text().split("\n")[0]
            (clone / built).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(CHECKOUT / built, clone / built)


@pytest.fixture
def runner(tmp_path: Path) -> Runner:
    return Runner(tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("synced", [True, False])
def test_the_printed_workflow_fails_the_build_whose_sync_is_missing(runner: Runner, synced: bool) -> None:
    last = 'fsync(open(".", O_RDONLY))' if synced else "0"
    failed = None
    artifacts = []
    for step in workflow()["steps"]:
        if failed is not None and step.get("if") != "always()":
            continue
        match step.get("uses", "").partition("@")[0]:
            case "actions/checkout":
                (runner.workspace / "Makefile").write_text(MAKEFILE)
                (runner.workspace / "store.c").write_text(STORE.replace("SYNC", last))
            case "actions/upload-artifact":
                artifacts.append(runner.workspace / step["with"]["path"])
            case "":
                done = runner.run_step(step["run"])
                if done.returncode:
                    failed = (step["run"], done.returncode, done.stderr)
                if MIRROR in step["run"]:
                    assert not failed, failed
                    runner.lend_built()
            case other:
                pytest.fail(f"no step does {other!r}")
    (report,) = [ElementTree.parse(artifact).getroot() for artifact in artifacts]
    assert report.get("failures") == str(int(not synced))
    if synced:
        assert failed is None, failed
    else:
        assert failed is not None
        assert "--fail-if part" in failed[0]
        assert failed[1] == 1, failed


def test_the_workflow_uses_no_step_that_is_not_tried() -> None:
    job = workflow()
    assert {next(iter({"run", "uses"} & step.keys())) for step in job["steps"]} == {"run", "uses"}
    assert MIRROR in str(job)
