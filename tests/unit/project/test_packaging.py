"""What a product to install brings along: manual page, completions, the step of a build server."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from guestmark.cli.verbs import VERBS
from tests.framework import CHECKOUT
from tests.framework.command_line import CommandLine
from tests.framework.known import known
from tools import manual, release_notes


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("usr")
    assert len(manual.write_files(folder)) == 4
    return folder


def test_the_manual_page_has_every_command_and_option(made: Path) -> None:
    text = (made / manual.PAGE).read_text()
    assert re.findall(r"^\.SS guestmark (\S+)", text, re.M) == list(VERBS)
    for option in ("\\-\\-fail\\-if", "\\-\\-parameter\\-list", "\\-\\-bundle"):
        assert option in text
    # No line of text is taken for a request.
    requests = {line.split()[0] for line in text.splitlines() if line.startswith((".", "'"))}
    assert requests == {".TH", ".SH", ".SS", ".PP", ".TP", ".B", ".I"}


@pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not installed")
def test_groff_has_nothing_to_say_against_it(made: Path) -> None:
    done = subprocess.run(
        ["groff", "-man", "-ww", "-z", "-K", "utf-8", str(made / manual.PAGE)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stderr == ""


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completions_are_for_the_shell_that_reads_them(made: Path, shell: str) -> None:
    file = made / manual.COMPLETIONS[shell]
    assert "_GUESTMARK_COMPLETE" in file.read_text()
    if shutil.which(shell):
        subprocess.run([known(shutil.which(shell)), "-n", str(file)], check=True, capture_output=True)


ACTION = CHECKOUT / "tools/action"


def job(inputs: Mapping[str, str], environment: Mapping[str, str], folder: Path) -> tuple[int, str]:
    """Runs the steps of the composite action as GitHub's runner does, up to the first that fails.

    Steps that are actions of their own, for caches and artifacts, are left out.
    """
    text = (ACTION / "action.yml").read_text()
    assert set(inputs) == set(re.findall(r"^  ([a-z-]+):\n    description: ", text, re.M))
    printed = ""
    for step in text.split("    - name: ")[1:]:
        if "      uses: " in step:
            continue
        variables = {
            name: inputs[of]
            for name, of in re.findall(r"^ +([A-Z]+): \$\{\{ inputs\.([a-z-]+) \}\}$", step, re.M)
        }
        assert step.count("${{") == len(variables)
        (script,) = re.findall(r"^      run: (.+)$", step, re.M)
        (folder / "step.sh").write_text(script[1:-1] if script[0] == "'" else script)
        status, said = in_bash(folder, {**environment, **variables, "GITHUB_ACTION_PATH": str(ACTION)})
        printed += said
        if status:
            return status, printed
    return 0, printed


def in_bash(folder: Path, environment: Mapping[str, str]) -> tuple[int, str]:
    """Runs step.sh in `folder` as a runner does; its exit status and all that it printed."""
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "step.sh"],
        env=environment, cwd=folder, capture_output=True, text=True, check=False, timeout=200,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def runner(guestmark: CommandLine, folder: Path) -> dict[str, str]:
    """The environment of a runner's job, in which `guestmark` is the program of this checkout."""
    for name, text in {"program": f'exec {sys.executable} -m guestmark "$@"', "sudo": 'exec "$@"'}.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    return {
        **guestmark.environment,
        "GUESTMARK": str(folder / "program"),
        "PATH": f"{folder}:{os.environ['PATH']}",
    }


@pytest.mark.long  # the first step installs packages
@pytest.mark.parametrize(
    ("limits", "undecided", "statuses"),
    [("x=2 > +900%\n\n", "fail", {0, 1}), ("x=2 > +10%", "pass", {1, 0}), ("nonsense", "pass", {2})],
)
def test_the_action_of_a_build_server(
    guestmark: CommandLine, tmp_path: Path, limits: str, undecided: str, statuses: set[int]
) -> None:
    """The real steps around the real program. What else runs on this machine may leave a limit undecided."""
    environment = {
        **runner(guestmark, tmp_path),
        "GITHUB_ACTIONS": "true",
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"),
    }
    inputs = {
        "command": "sleep 0.0{x}",
        "fail-if": limits,
        "on": "host",
        "options": "-q -L x 1,2 -r 6 -w 0 --iterations 1",
        "undecided": undecided,
        "artifact": "guestmark",
    }
    status, printed = job(inputs, environment, tmp_path)
    assert status in statuses, printed
    assert printed.startswith("guestmark 0.")  # the first step has set it up
    measured = status != 2
    assert (tmp_path / "guestmark-gates.xml").exists() == measured
    assert (tmp_path / "summary.md").exists() == measured
    assert (tmp_path / "guestmark.gmk.html").exists() == measured


@pytest.mark.long
def test_the_job_of_gitlab(guestmark: CommandLine, tmp_path: Path) -> None:
    """The script of the hidden job, with the variables that its example sets; the package is installed already."""
    text = (ACTION / "gitlab.yml").read_text()
    steps = re.findall(r"^    - (.+)$", text.partition("  script:\n")[2].partition("  artifacts:")[0], re.M)
    assert steps[-1] == "$GUESTMARK_CHECKOUT/tools/action/gate.sh"
    (tmp_path / "step.sh").write_text("\n".join(step for step in steps if "apt-get" not in step) + "\n")
    variables = {
        "GUESTMARK_CHECKOUT": str(CHECKOUT),
        "COMMAND": "sleep 0.0{x}",
        "LIMITS": "> x1000",
        "PLATFORMS": "host",
        "OPTIONS": "-q -L x 1,2 -r 6 -w 0 --iterations 1",
    }
    without = {name: value for name, value in runner(guestmark, tmp_path).items() if "GITHUB" not in name}
    status, printed = in_bash(tmp_path, {**without, **variables})
    assert status == 0, printed
    assert "::warning" not in printed
    for name in re.findall(r"guestmark[a-z.-]+\.(?:html|xml)", text.partition("  artifacts:")[2]):
        assert (tmp_path / name).exists()


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("sleep 0.01", ["sleep", "0.01"]),
        ("sh -c 'make check && ./bench'", ["sh", "-c", "make check && ./bench"]),
        ("program \"two words\" '' last", ["program", "two words", "", "last"]),
        ("program \\\n  --option\n  more", ["program", "--option", "more"]),
    ],
)
def test_a_command_in_a_file_of_a_build_server_has_the_words_of_a_shell(
    tmp_path: Path, command: str, words: list[str]
) -> None:
    (tmp_path / "program").write_text('#!/bin/bash\nprintf "%s\\0" "$@" >>said\n')
    (tmp_path / "program").chmod(0o755)
    (tmp_path / "step.sh").write_text(f"{ACTION / 'gate.sh'}\n")
    environment = {
        **os.environ,
        "GUESTMARK": str(tmp_path / "program"),
        "PLATFORMS": "host",
        "LIMITS": "> 5%",
    }
    status, printed = in_bash(tmp_path, {**environment, "COMMAND": command, "OPTIONS": "-n 'a name'"})
    assert status == 0, printed
    said = (tmp_path / "said").read_text().partition("\0export\0")[0].split("\0")
    assert said[said.index("--") + 1 :] == words
    assert said[said.index("-n") + 1] == "a name"
    status, printed = in_bash(tmp_path, {**environment, "COMMAND": "sh -c 'open"})
    assert (status, "cannot be told apart" in printed) == (130, True)


def test_the_notes_of_a_release_are_its_part_of_the_changelog() -> None:
    text = release_notes.CHANGELOG.read_text()
    version = re.findall(r"^## \[([0-9.]+)\]", text, re.M)
    newest, before = (release_notes.notes_of_version(text, each) for each in version[:2])
    assert newest.startswith("### ")
    assert newest in text
    assert before not in newest
    with pytest.raises(SystemExit, match="nothing about 99"):
        release_notes.notes_of_version(text, "99")
