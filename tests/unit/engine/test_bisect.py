"""Bisections of made repositories: a planted slowdown is found, and the user's checkout is left alone."""

import os
import random
import shutil
import subprocess
from pathlib import Path

import pytest

from guestmark.engine.bisection import Bisection, Commit, list_looks
from tests.framework.command_line import CommandLine, Result
from tests.framework.marks import count_cases

# Its cost is a number of bytes: what else runs on this machine changes it as little as the planted slowdown says.
PROGRAM = """import random
cost = 1e9
{slowdown}
print("cost:", cost * random.gauss(1, {noise}))
"""


def git(folder: Path, *words: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    done = subprocess.run(
        ["git", "-C", str(folder), *identity, *words], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def repository(folder: Path, commits: int, slow_from: int, *, slowdown: float, noise: float) -> list[str]:
    """Commits of which all from `slow_from` on are slower; their hashes, oldest first."""
    folder.mkdir()
    git(folder, "init", "--quiet")
    for number in range(commits):
        line = f"cost *= 1 + {slowdown}" if number >= slow_from else ""
        (folder / "program.py").write_text(PROGRAM.format(slowdown=line, noise=noise))
        (folder / "notes").write_text(str(number))
        git(folder, "add", ".")
        git(folder, "commit", "--quiet", "--message", f"Change {number}")
    return git(folder, "rev-list", "--reverse", "HEAD").split()


def bisected(guestmark: CommandLine, folder: Path, *options: str, good: str) -> Result:
    return guestmark(
        "bisect", "--repo", folder, "--good", good, "--iterations", "1", "--warmup", "0",
        "--metric", "cost:B=cost: (.*)", *options, "--", "python3", "{build}/program.py", timeout=280,
    )  # fmt: skip


def test_a_planted_slowdown_is_found(guestmark: CommandLine, tmp_path: Path) -> None:
    folder = tmp_path / "repository"
    commits = repository(folder, 3, 2, slowdown=0.10, noise=0.0005)
    (folder / "program.py").write_text("mine")
    done = bisected(guestmark, folder, "--fail-if", "> +5%", good=commits[0])
    assert done.status == 0, done.stderr
    assert done.stdout.startswith(f"{commits[2]} is the first bad commit")
    # Both sides were measured in one run for each candidate, and nothing of it is left.
    assert len(guestmark.runs()) == 2
    assert {run.labels["commit"] for run in guestmark.runs()} == {commits[2], commits[1]}
    assert (folder / "program.py").read_text() == "mine"
    assert len(git(folder, "worktree", "list").splitlines()) == 1
    assert git(folder, "branch", "--list", "--all").splitlines() == [
        f"* {git(folder, 'branch', '--show-current')}"
    ]
    # The metric that was asked for decided.
    assert "decided, because" not in done.stderr
    guestmark.assert_nothing_left()


# From git 2.55 on the term is quoted, and in other languages all words are others.
_OTHER_GIT = """#!/bin/sh
{git} "$@" >out 2>&1
status=$?
sed "s/is the first bad commit/ist der erste 'bad' Commit/" out
rm -f out
exit $status
"""


@pytest.mark.parametrize("slow_from", range(1, 8))
def test_a_search_ends_whatever_git_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slow_from: int
) -> None:
    commits = repository(tmp_path / "repository", 8, 99, slowdown=0, noise=0)
    (tmp_path / "git").write_text(_OTHER_GIT.format(git=shutil.which("git")))
    (tmp_path / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    bisection = Bisection(tmp_path / "repository", tmp_path, commits[0], commits[-1])
    with bisection.make_worktrees():
        candidate: Commit | str | None = bisection.start_bisect()
        for _ in range(8):
            if not isinstance(candidate, Commit):
                break
            is_bad = commits.index(candidate.hash) >= slow_from
            candidate = bisection.mark_candidate("bad" if is_bad else "good")
    assert candidate == commits[slow_from]


def test_the_only_candidate_is_known_at_once(tmp_path: Path) -> None:
    commits = repository(tmp_path / "repository", 2, 99, slowdown=0, noise=0)
    bisection = Bisection(tmp_path / "repository", tmp_path, *commits)
    with bisection.make_worktrees():
        assert bisection.start_bisect() is None


@pytest.mark.parametrize(
    "options", [("--on", "host,tcg"), ("--on", "tcg", "--set", "memory=256M,1G")], ids=["platforms", "levels"]
)
def test_builds_are_compared_on_one_machine(
    guestmark: CommandLine, tmp_path: Path, options: tuple[str, ...]
) -> None:
    """A second one would be compared with the good build on the first, and every candidate be bad."""
    commits = repository(tmp_path / "repository", 2, 1, slowdown=0, noise=0)
    done = bisected(guestmark, tmp_path / "repository", "--fail-if", "> +5%", *options, good=commits[0])
    assert done.status == 2
    assert "bisect compares two builds on one machine" in done.stderr


# Its wall time says nothing: it waits long and short in turn where `turns` says so.
WAITING = """import pathlib, time
runs = pathlib.Path(__file__).with_name("runs")
count = int(runs.read_text()) if runs.exists() else 0
runs.write_text(str(count + 1))
time.sleep([0.01, 0.6][count % 2] if {turns} else 0.08)
for _ in range({loops}):
    pass
"""


def waiting(folder: Path, loops: list[int]) -> list[str]:
    """Commits of a program whose wall time is chance, and whose user time is its loop; their hashes, oldest first."""
    folder.mkdir()
    git(folder, "init", "--quiet")
    for number, count in enumerate(loops):
        (folder / "program.py").write_text(WAITING.format(loops=count, turns=number > 0))
        (folder / "notes").write_text(str(number))
        git(folder, "add", ".")
        git(folder, "commit", "--quiet", "--message", f"Change {number}")
    return git(folder, "rev-list", "--reverse", "HEAD").split()


@pytest.mark.long
def test_user_time_decides_where_wall_time_cannot_tell(guestmark: CommandLine, tmp_path: Path) -> None:
    folder = tmp_path / "repository"
    commits = waiting(folder, [1_500_000, 1_500_000, 6_000_000])
    words = (
        "bisect",
        "--repo",
        folder,
        "--good",
        commits[0],
        "--iterations",
        "1",
        "--warmup",
        "0",
        "--max-blocks",
        "16",
    )
    program = ("--fail-if", "> +60%", "--", "python3", "{build}/program.py")
    done = guestmark(*words, *program, timeout=280)
    assert done.status == 0, done.stderr
    assert done.stdout.startswith(f"{commits[2]} is the first bad commit")
    assert "user_s decided" in done.stderr
    unknown = guestmark(*words, "--by", "usr_s", *program)
    assert (unknown.status, "user_s" in unknown.stderr) == (2, True)


@pytest.mark.long
def test_a_bad_commit_that_is_not_slower_ends_the_search(guestmark: CommandLine, tmp_path: Path) -> None:
    folder = tmp_path / "repository"
    commits = repository(folder, 3, 9, slowdown=0.0, noise=0.0005)
    done = bisected(guestmark, folder, "--fail-if", "> +5%", good=commits[0])
    assert done.status == 1
    assert "not shown to be slower" in done.stderr


@pytest.mark.parametrize(
    ("options", "good", "said"),
    [
        ((), "HEAD~1", "takes one --fail-if"),
        (("--fail-if", "> 5%"), "nothing", "there is no commit 'nothing'"),
        (("--fail-if", "> 5%", "--bad", "HEAD~1"), "HEAD", "is not an ancestor"),
        (
            ("--fail-if", "> 5%", "--build", "echo no compiler; exit 1"),
            "HEAD~1",
            "cannot be built: no compiler",
        ),
    ],
)
def test_mistakes_are_told_before_anything_is_measured(
    guestmark: CommandLine, tmp_path: Path, options: tuple[str, ...], good: str, said: str
) -> None:
    folder = tmp_path / "repository"
    repository(folder, 2, 1, slowdown=0.1, noise=0.01)
    done = bisected(guestmark, folder, *options, good=good)
    assert done.status == 2
    assert said in done.stderr
    assert guestmark.runs() == []


def test_looks_double_and_end_at_the_most() -> None:
    assert list_looks(8) == [8]
    assert list_looks(64) == [8, 16, 32, 64]
    assert list_looks(40) == [8, 16, 32, 40]


@pytest.mark.long
@pytest.mark.parametrize("number", range(count_cases(3)))
def test_three_per_cent_are_found_every_time(guestmark: CommandLine, tmp_path: Path, number: int) -> None:
    where = random.Random(number).randrange(1, 10)
    folder = tmp_path / "repository"
    commits = repository(folder, 10, where, slowdown=0.03, noise=0.007)
    done = bisected(guestmark, folder, "--fail-if", "> +1.5%", good=commits[0])
    assert done.status == 0, done.stderr
    assert done.stdout.startswith(f"{commits[where]} is the first bad commit"), done.stderr
