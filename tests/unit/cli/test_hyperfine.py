"""What people have in their fingers from hyperfine: parameters, several commands, hooks, and names of options."""

import json
import os
import random
import re
import shlex
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from guestmark.cli.app import app
from guestmark.cli.hyperfine import (
    find_command_texts,
    join_option_words,
    parse_parameters,
    put_options_first,
    split_commands,
)
from guestmark.cli.parser import build_command, collect_known_options
from guestmark.cli.verbs import VERBS
from guestmark.core import registry
from guestmark.core.errors import UsageError
from guestmark.core.model import Policy, RunState
from guestmark.core.platform_kind import is_machine_factor
from guestmark.core.shell_syntax import needs_shell
from guestmark.plan.matrix import NullCells
from guestmark.stats import stopping
from guestmark.workloads.exec.command import name_factor
from guestmark.workloads.exec.plan import ExecOptions, build_plan, map_names_to_command_lines
from tests.framework import CHECKOUT
from tests.framework.command_line import CommandLine

_GROUP: Any = app
KNOWN = collect_known_options(build_command("exec"))


def test_the_words_of_a_parameter_become_one() -> None:
    typed = ["exec", "-L", "level", "1,9", "-P", "t", "1", "8", "--", "program", "-L", "a", "b"]
    assert join_option_words(typed) == [
        "exec",
        "-L",
        "level=1,9",
        "-P",
        "t=1:8",
        "--",
        "program",
        "-L",
        "a",
        "b",
    ]
    assert join_option_words(["exec", "-L", "level=1,9"]) == ["exec", "-L", "level=1,9"]
    assert join_option_words(["exec", "-L"]) == ["exec", "-L"]


@pytest.mark.parametrize(
    ("typed", "texts"),
    [
        (["sleep 0.1", "sleep 0.2"], ["sleep 0.1", "sleep 0.2"]),
        (["sleep 0.1", "true"], ["sleep 0.1", "true"]),
        (["f() { true; }; f | cat"], ["f() { true; }; f | cat"]),
        (["{compiler} -O2 main.cpp"], ["{compiler} -O2 main.cpp"]),
        (["sleep", "0.1"], []),
        (["grep x", "no-such-file"], []),  # perhaps a program's name with a blank, and its argument
        (["no-such-program 1"], []),
        (["sleep 0.1", "---", "true"], []),
        (["sleep 'open"], ["sleep 'open"]),  # refused where it is split
        (["!", "false"], []),
        (["true;"], ["true;"]),
        (["a|b", "true"], ["a|b", "true"]),
        (["a|b", "--option"], []),
        (["exit"], ["exit"]),
        (["exit", "true"], []),
        ([], []),
    ],
)
def test_commands_that_are_one_word_each(typed: list[str], texts: list[str]) -> None:
    assert find_command_texts(typed) == texts


def test_commands_on_the_host_alone_take_as_long_as_in_hyperfine() -> None:
    plan = build_plan(ExecOptions(commands=(["true"],), timing=True), ["sleep", "0.1"])
    assert (plan.policy.min_blocks, plan.policy.enough_s) == (10, 6.0)
    assert not [cell for cell in plan.cells if cell.null_of]
    for others in (
        ExecOptions(on=("host", "tcg"), timing=True),
        ExecOptions(precision=0.01, timing=True),
        ExecOptions(null=NullCells.BASELINE, timing=True),
        ExecOptions(),
    ):
        asked = build_plan(others, ["sleep", "0.1"])
        assert asked.policy.enough_s is None
        assert [cell for cell in asked.cells if cell.null_of]
    five = build_plan(ExecOptions(blocks=5, timing=True), ["sleep", "0.1"])
    assert (five.policy.blocks, five.policy.iterations, five.policy.enough_s, len(five.cells)) == (
        5,
        1,
        None,
        1,
    )


def test_guests_that_take_a_minute_to_start_are_started_once() -> None:
    """Unless something is compared, or an option says how often."""
    plan = build_plan(ExecOptions(on=("tcg/tcg",), settings=("memory=256M",), timing=True), ["true"])
    assert (plan.policy.min_blocks, plan.policy.enough_s, len(plan.cells)) == (1, 60.0, 1)
    for others in (
        ExecOptions(on=("tcg/kvm",), timing=True),
        ExecOptions(on=("tcg/tcg", "tcg"), timing=True),
        ExecOptions(on=("tcg/tcg",), settings=("memory=256M,512M",), timing=True),
        ExecOptions(on=("tcg/tcg",), commands=(["false"],), timing=True),
        ExecOptions(on=("tcg/tcg",), time_limit_s=900.0, timing=True),
        ExecOptions(on=("tcg/tcg",), null=NullCells.BASELINE, timing=True),
    ):
        assert build_plan(others, ["true"]).policy.enough_s is None


def test_a_timed_run_ends_after_its_seconds_and_its_blocks() -> None:
    policy = Policy(min_blocks=10, enough_s=3.0)
    assert [stopping.decide_timed_run(policy, [], *at).state for at in ((9, 5.0), (10, 2.9), (10, 3.0))] == [
        None,
        None,
        RunState.COMPLETE,
    ]
    # Getting ready took half a second, which is no measuring.
    assert stopping.decide_timed_run(policy, [], 10, 3.4, 0.5).state is None
    assert stopping.decide_timed_run(policy, [], 10, 3.5, 0.5).state is RunState.COMPLETE


@pytest.mark.parametrize(
    ("lists", "scans", "step", "found"),
    [
        (["c=gcc,clang"], None, None, {"c": ("gcc", "clang")}),
        (None, ["t=1:4"], None, {"t": ("1", "2", "3", "4")}),
        (None, ["d=0.3:0.7"], "0.2", {"d": ("0.3", "0.5", "0.7")}),
        (["a=1"], ["b=-1:1"], "2", {"a": ("1",), "b": ("-1", "1")}),
    ],
)
def test_levels(
    lists: list[str] | None, scans: list[str] | None, step: str | None, found: dict[str, tuple[str, ...]]
) -> None:
    assert parse_parameters(lists, scans, step) == found


@pytest.mark.parametrize(
    ("lists", "scans", "step", "said"),
    [
        (["memory=1,2"], None, None, "is a factor of machines"),
        (["a b=1"], None, None, "cannot be a parameter's name"),
        (["a=1,1"], None, None, "given twice"),
        (["a=1,"], None, None, "empty"),
        (None, ["a=1:x"], None, "not all numbers"),
        (None, ["a=1:nan"], None, "there is no level"),
        (None, ["a=5:1"], None, "there is no level"),
        (None, ["a=1:5"], "0", "there is no level"),
        (None, ["a=1:1e9"], None, "more than 1000 levels"),
        (None, None, "2", "-D requires -P"),
    ],
)
def test_levels_that_mean_nothing(
    lists: list[str] | None, scans: list[str] | None, step: str | None, said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        parse_parameters(lists, scans, step)


@pytest.mark.parametrize(
    ("argv", "texts", "found"),
    [
        (["a", "b"], None, [["a", "b"]]),
        (["a", "b", "---", "c"], None, [["a", "b"], ["c"]]),
        ([], ["grep -R 'a b' x"], [["grep", "-R", "a b", "x"]]),
        (["a"], ["grep -R TODO *"], [["a"], ["sh", "-c", "grep -R TODO *"]]),
        ([], ["echo '*'"], [["echo", "*"]]),
        ([], ['echo "$HOME"'], [["sh", "-c", 'echo "$HOME"']]),
        ([], ["make -j {threads}"], [["make", "-j", "{threads}"]]),
        ([], ["FOO=1 sleep 0.01"], [["sh", "-c", "FOO=1 sleep 0.01"]]),
        ([], ["! false"], [["sh", "-c", "! false"]]),
        ([], ["ls [ab]*"], [["sh", "-c", "ls [ab]*"]]),
        ([], ["true\ntrue"], [["sh", "-c", "true\ntrue"]]),
        ([], ["test 1 = 1"], [["test", "1", "=", "1"]]),
    ],
)
def test_commands(argv: list[str], texts: list[str] | None, found: list[list[str]]) -> None:
    assert split_commands(argv, texts) == found


@pytest.mark.parametrize(("argv", "texts"), [(["a", "---"], None), ([], [""]), ([], ["echo 'x"])])
def test_commands_that_mean_nothing(argv: list[str], texts: list[str] | None) -> None:
    with pytest.raises(UsageError):
        split_commands(argv, texts)


def test_several_commands_are_compared_with_the_first() -> None:
    given = ExecOptions(commands=[["gzip", "-9"], ["zstd"]], names=["fast"], null=NullCells.NONE)
    plan = build_plan(given, ["gzip", "-1"])
    assert [cell.id for cell in plan.cells] == ["fast host", "gzip host", "zstd host"]
    assert [cell.workload.label for cell in plan.cells] == ["fast", "gzip -9", "zstd"]
    assert [cell.baseline for cell in plan.cells] == [True, False, False]
    assert all(cell.compares_with(plan.cells[0]) for cell in plan.cells)
    with pytest.raises(UsageError, match="2 names for 1 command"):
        build_plan(ExecOptions(names=["a", "b"]), ["true"])
    with pytest.raises(UsageError, match=r"no command contains \{level\}"):
        build_plan(ExecOptions(parameters={"level": ("1",)}), ["true"])


def test_what_runs_around_a_command_runs_as_often_as_it_should(
    guestmark: CommandLine, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    hooks = {"-s": "setup", "-p": "prepare {x}", "-C": "conclude", "-c": "cleanup"}
    options = [word for option, said in hooks.items() for word in (option, f"echo {said} >>{log}")]
    done = guestmark.measure(
        "-r", "2", "-w", "1", "--iterations", "2", "--null", "none", *options, "-L", "x", "1,2",
        "--", "sh", "-c", f"echo run {{x}} >>{log}",
    )  # fmt: skip
    assert done.status == 0, done.stderr
    # Two levels, two blocks of two iterations; the host is warmed up once for each command.
    assert Counter(log.read_text().splitlines()) == {
        "setup": 4, "cleanup": 4, "conclude": 10,
        "prepare 1": 5, "prepare 2": 5, "run 1": 5, "run 2": 5,
    }  # fmt: skip
    first = log.read_text().splitlines()[:4]
    assert first[0] == "setup"
    assert [line.split()[0] for line in first[1:]] == ["prepare", "run", "conclude"]
    assert [cell["id"] for cell in done.document()["cells"]] == ["host x=1", "host x=2"]


def test_each_command_has_its_own_hooks_where_there_are_as_many(
    guestmark: CommandLine, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    hooks = [("-p", "p1"), ("-p", "p2"), ("--conclude", "c1"), ("-C", "c2"), ("-s", "s")]
    options = [word for option, said in hooks for word in (option, f"echo {said} >>{log}")]
    done = guestmark("exec", "-q", "-r", "2", *options, f"echo r1 >>{log}", f"echo r2 >>{log}")
    assert done.status == 0, done.stderr
    said = log.read_text().split()
    assert Counter(said) == {"s": 4, "p1": 2, "r1": 2, "c1": 2, "p2": 2, "r2": 2, "c2": 2}
    for number in "12":
        for at in (index for index, word in enumerate(said) if word == f"r{number}"):
            assert said[at - 1 : at + 2] == [f"p{number}", f"r{number}", f"c{number}"]


@pytest.mark.parametrize("option", ["--setup", "--prepare", "--check", "--conclude", "--cleanup"])
def test_a_hook_that_is_given_too_often_is_refused(guestmark: CommandLine, option: str) -> None:
    for typed in (["true"], ["true", "---", "false", "---", "true"]):
        done = guestmark("exec", option, "true A", option, "true B", "--", *typed)
        assert (done.status, done.stdout) == (2, "")
        assert f"{option} is given 2 times for {len(typed) // 2 + 1} command" in done.stderr
        assert "give it once" in done.stderr
    alone = guestmark(
        "exec", "-q", "-r", "1", option, "true A", option, "true B", "--", "true", "---", "true"
    )
    assert alone.status == (0 if option in {"--prepare", "--conclude"} else 2)


def test_a_command_that_fails_is_told_of_i(guestmark: CommandLine) -> None:
    failed = guestmark("exec", "-q", "-r", "1", "false")
    assert failed.status == 3
    assert "-i measures failing runs, too" in " ".join(failed.stdout.split())
    assert guestmark("exec", "-q", "-r", "1", "-i", "false").status == 0
    hook = guestmark("exec", "-q", "-r", "1", "-p", "false", "true")
    assert "-i measures" not in " ".join(hook.stdout.split())  # -i is not for hooks


@pytest.mark.parametrize("options", [(), ("-q",), ("--json", "-")])
def test_a_platform_that_is_left_out_is_the_last_word(
    guestmark: CommandLine, options: tuple[str, ...]
) -> None:
    done = guestmark("exec", *options, "-r", "1", "--on", "host,ssh:gone.invalid", "true")
    assert done.status == 1
    last = done.stderr.splitlines()[-1]
    assert last == "guestmark: not measured, because it cannot be used here: ssh:gone.invalid (exit status 1)"


def test_a_hook_that_fails_is_named(guestmark: CommandLine) -> None:
    done = guestmark("exec", "-q", "-r", "1", "--null", "none", "-p", "echo broken >&2; exit 3", "--", "true")
    assert done.status == 3
    assert "--prepare: " in done.stdout


def test_quick_makes_six_blocks_and_no_more(guestmark: CommandLine) -> None:
    done = guestmark("exec", "-q", "--quick", "--", "sleep", "0.02", "---", "sleep", "0.2")
    assert "times slower" in done.stdout
    assert "Not yet" not in done.stdout
    assert "6 blocks" in done.stdout
    assert guestmark("exec", "--quick", "-r", "5", "--", "true").status == 2


@pytest.mark.long
def test_quick_says_not_yet_when_its_time_is_up(guestmark: CommandLine) -> None:
    started = time.monotonic()
    done = guestmark("exec", "-q", "--quick", "--", "sleep", "7", "---", "sleep", "0.1")
    assert time.monotonic() - started < 40  # of 20 s, on a busy machine
    assert "Not enough yet: there was time for 1 of 6 blocks" in done.stdout
    assert "--blocks 6" in done.stdout


def test_show_output_shows_what_each_trial_printed(guestmark: CommandLine) -> None:
    done = guestmark("exec", "-r", "2", "--show-output", "--", "sh", "-c", "echo said; echo '\033[31m' >&2")
    assert done.stderr.count("said") == 2
    assert "\033[31m" not in done.stderr
    assert "said" in guestmark("show", "--console", "host").stdout


def test_the_console_says_that_output_was_discarded(guestmark: CommandLine) -> None:
    guestmark("exec", "-q", "-r", "1", "--", "sh", "-c", "echo said; echo wrong >&2")
    shown = guestmark("show", "--console", "host")
    assert shown.stdout == "wrong\n"
    assert "/dev/null" in shown.stderr
    guestmark("exec", "-q", "-r", "1", "--output", "pipe", "--", "true")
    assert "nothing was printed" in guestmark("show", "--console", "host").stderr


def test_show_open_hands_the_page_to_a_browser(guestmark: CommandLine, tmp_path: Path) -> None:
    guestmark("exec", "-q", "-r", "1", "--", "true")
    seen = tmp_path / "seen"
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" >{seen}\n')
    browser.chmod(0o755)
    done = guestmark("show", "--open", env={"BROWSER": str(browser)})
    page = Path(done.stdout.strip())
    assert page.parent.name == "pages"
    assert "<h1>true</h1>" in page.read_text()
    assert seen.read_text().strip() == page.as_uri()


def test_programs_that_look_for_dev_null_are_named(guestmark: CommandLine) -> None:
    assert "--output pipe" in guestmark("exec", "-r", "1", "--", "grep", "root", "/etc/passwd").stderr
    assert (
        "--output pipe"
        not in guestmark("exec", "-r", "1", "--output", "pipe", "--", "grep", "root", "/etc/passwd").stderr
    )


@pytest.mark.long
def test_every_line_of_the_guide_runs(guestmark: CommandLine, tmp_path: Path) -> None:
    """Programs that not every machine has, and what only root may do, do nothing here."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("hexdump", "xxd", "make", "gcc", "clang", "zsh", "sudo"):
        (programs / name).write_text("#!/bin/sh\n")
        (programs / name).chmod(0o755)
    here = tmp_path / "here"
    here.mkdir()
    (here / "file").write_text("TODO\n")
    text = (CHECKOUT / "docs/guide/hyperfine.md").read_text().replace("\\|", "|")
    lines = re.findall(r"\| `guestmark exec (.+?)` \|$", text, re.M)
    assert len(lines) == 15
    for line in lines:
        words = shlex.split(line.replace("results.md …", "results.md -- true").replace("…", "file"))
        brief = ["-q", "--iterations", "1", "--null", "none"]
        brief += [] if "--warmup" in line else ["-w", "0"]
        brief += [] if "--runs" in line else ["-r", "1"]
        function = {"BASH_FUNC_my_function%%": "() { sleep 0.01; }"}  # as `export -f` hands it on
        path = f"{programs}:{os.environ['PATH']}"
        done = guestmark("exec", *brief, *words, env={"PATH": path, **function}, cwd=here)
        assert done.status == 0, (line, done.stderr, done.stdout)
    assert (here / "results.md").read_text()


@pytest.mark.parametrize(
    ("typed", "read"),
    [
        ("-n a 'sleep 1' -n b 'sleep 2' --csv f", "-n a -n b --csv f -- 'sleep 1' 'sleep 2'"),
        ("-N 'sleep 1' -r 5", "-N -r 5 -- 'sleep 1'"),
        ("'sleep 1' --runs=5 -w3 'sleep 2'", "--runs=5 -w3 -- 'sleep 1' 'sleep 2'"),
        ("-r 5 -- ls -n a", "-r 5 -- ls -n a"),
        ("-r 5 ls -l a", "-r 5 ls -l a"),  # an option of the command
        ("-n a -- head -n 5 f", "-n a -- head -n 5 f"),
        ("'sleep 1' -- -n", "'sleep 1' -- -n"),
        ("'sleep 1' --no-wait 'sleep 2'", "--no-wait -- 'sleep 1' 'sleep 2'"),
        ("-L x 1,2 sleep {x}", "-L x=1,2 sleep {x}"),
        ("true --- false", "true --- false"),
        ("-q", "-q"),
        ("", ""),
    ],
)
def test_options_may_stand_between_commands_that_are_texts(typed: str, read: str) -> None:
    assert put_options_first(shlex.split(typed), KNOWN) == shlex.split(read)


AFTER = (
    "--warmup 3", "--warmup=3", "-r 3", "-r3", "-w1", "-i", "-n a", "-q", "--no-wait", "--json f", "-m 5", "--shell sh",
    "--sort=command", "-L x 1,2", "-h",
)  # fmt: skip


@pytest.mark.parametrize("before", ["", "-q", "-n a", "-L y 1,2 -r 2"])
@pytest.mark.parametrize("after", AFTER)
@pytest.mark.parametrize("command", ["true {}", "true x {} y", "true --- false {}", "no-such-program {}"])
def test_an_option_after_the_command_is_nobody_s_in_silence(before: str, after: str, command: str) -> None:
    words = command.format(after)
    with pytest.raises(UsageError, match="could be guestmark's or the command's") as refused:
        put_options_first(shlex.split(f"{before} {words}"), KNOWN)
    for line, own in zip(refused.value.hint.splitlines(), (True, False), strict=True):
        _, _, typed = line.partition("guestmark exec ")
        options, _, rest = typed.partition(" -- " if before or own else "-- ")
        first = join_option_words(shlex.split(before))
        if own:
            assert options.split() == [*first, *join_option_words(shlex.split(after))]
            assert rest.split() == command.format("").split()
        else:
            assert (options.split(), rest) == (first, words)
        put_options_first(shlex.split(typed), KNOWN)


@pytest.mark.parametrize("unknown", ["--list", "--no-such=1", "-Z", "--lst x"])
@pytest.mark.parametrize(
    "typed", ["{} --on tcg --set thp=on -- true", "-q {} true -r 3", "{} 'sleep 1' -r 3"]
)
def test_an_unknown_option_is_what_is_refused(guestmark: CommandLine, unknown: str, typed: str) -> None:
    """And not an option behind it, in lines that cannot work."""
    done = guestmark("exec", *shlex.split(typed.format(unknown)))
    assert done.status == 2
    assert done.stderr.startswith(f"guestmark: no such option: {re.split('[= ]', unknown)[0]}\n")


@pytest.mark.parametrize("options", ["", "-q -r 1", "-L y 1,2"])
@pytest.mark.parametrize(
    ("typed", "several"),
    [
        ("./old ./new", "./old --- ./new"),
        ("true 'sleep 0.1'", "true --- sleep 0.1"),
        ("./old './new x'", "./old --- ./new x"),
        ("sh ./old", "sh --- ./old"),
        ("true 'true; true' ./old", "true --- sh -c 'true; true' --- ./old"),
    ],
)
def test_words_that_are_all_commands_are_not_one_in_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: str, several: str, options: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("old", "new"):
        Path(name).write_text("#!/bin/sh\n")
        Path(name).chmod(0o755)
    with pytest.raises(UsageError, match="could be one command or") as refused:
        put_options_first(shlex.split(f"{options} {typed}"), KNOWN)
    compared, one = (line.partition(" -- ")[2] for line in refused.value.hint.splitlines())
    assert (compared, one) == (several, typed)


@pytest.mark.parametrize(
    "typed", ["sleep 0.1", "ls /tmp", "./old ./absent", "./absent true", "grep 'no such' true"]
)
def test_words_of_which_one_is_no_command_are_one(tmp_path: Path, typed: str) -> None:
    assert put_options_first(shlex.split(typed), KNOWN) == shlex.split(typed)


SHELL_TEXTS = [
    "FOO=1 sleep 0.01",
    "FOO='a b' true",
    "cd /tmp",
    "ulimit -n 64",
    "! false",
    ": x",
    "true\ntrue",
]


@pytest.mark.parametrize(
    "text", ['"./old"', "'./old'", "./ol\\d", '"./my prog"', "./my\\ prog", '"./my prog" x', "./o'l'd x"]
)
def test_a_text_may_quote_its_program(guestmark: CommandLine, tmp_path: Path, text: str) -> None:
    """As scripts do that put a path into a line for hyperfine."""
    for name in ("old", "my prog"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    done = guestmark("exec", "-q", "-r", "1", text, cwd=tmp_path)
    assert done.status == 0, done.stderr


@pytest.mark.parametrize("text", SHELL_TEXTS)
def test_a_text_for_a_shell_gets_one_and_that_is_said(guestmark: CommandLine, text: str) -> None:
    done = guestmark("exec", "-r", "1", text)
    assert done.status == 0, done.stderr
    assert done.stderr.count("sh -c runs") == 1
    assert "sh -c" not in guestmark("exec", "-q", "-r", "1", text).stderr


@pytest.mark.parametrize(
    "typed", ["FOO=1 sleep 0.01", "FOO='a b' sleep 0", "cd /tmp", "ulimit -t 60", "! false", "exit 0"]
)
@pytest.mark.parametrize("dashes", [(), ("--",)])
def test_words_for_a_shell_are_refused_with_a_line_that_runs(
    guestmark: CommandLine, typed: str, dashes: tuple[str, ...]
) -> None:
    refused = guestmark("exec", "-q", *dashes, *shlex.split(typed))
    assert refused.status == 2
    assert "is part of the shell" in refused.stderr
    meant = refused.stderr.rpartition("did you mean: ")[2]
    assert guestmark("exec", "-q", "-r", "1", *shlex.split(meant)).status == 0, meant


def test_the_lines_that_a_refusal_says_run(guestmark: CommandLine, tmp_path: Path) -> None:
    for name in ("old", "new"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    for typed, counts in (("-r 1 ./old ./new", [2, 1]), ("./old x -r 1 --warmup 0", [1, 1])):
        refused = guestmark("exec", "-q", "--json", "-", *shlex.split(typed))
        assert (refused.status, refused.stdout) == (2, "")
        _, *lines = refused.stderr.splitlines()
        for line, count in zip(lines, counts, strict=True):
            done = guestmark(*shlex.split(line.partition("guestmark ")[2]))
            assert done.status == 0, (line, done.stderr)
            assert len(done.document()["cells"]) == count


def test_the_report_keeps_the_text_of_a_named_command() -> None:
    plan = build_plan(ExecOptions(commands=(["true"],), names=("slow",)), ["sleep", "0.1 s"])
    assert map_names_to_command_lines(plan.cells) == {"slow": "sleep '0.1 s'"}


@pytest.mark.parametrize("verb", [name for name in VERBS if name != "block"])
def test_an_option_that_would_replace_itself_is_refused(verb: str) -> None:
    """For every option of every verb that takes one value."""
    command = _GROUP.get_command(None, verb)
    context = _GROUP.make_context("guestmark", ["runs"])
    for param in command.params:
        if param.param_type_name != "option" or param.is_flag or param.multiple or param.count:
            continue
        for name in param.opts:
            words = [name, *["1"] * param.nargs] * 2
            with pytest.raises(UsageError, match=f"{' or '.join(param.opts)} is given twice"):
                command.make_context(verb, words, parent=context)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("ab ./old x -r 3", "ab -r 3 -- ./old x"),
        ("ab --env X 1 2 sleep 0.01 -r 1", "ab --env X 1 2 -r 1 -- sleep 0.01"),
        ("ab sleep 0.01 --env X 1 2", "ab --env X 1 2 -- sleep 0.01"),
        ("powercut ./store put --on host", "powercut --on host -- ./store put"),
        ("boot --on tcg ls -r 3", "boot --on tcg -r 3 -- ls"),
        ("bisect --good v1 {build}/program -r 3", "bisect --good v1 -r 3 -- '{build}/program'"),
    ],
)
def test_options_after_a_command_are_not_swallowed_by_any_verb(
    guestmark: CommandLine, typed: str, meant: str
) -> None:
    done = guestmark(*shlex.split(typed))
    assert (done.status, done.stdout) == (2, "")
    assert f"guestmark's: guestmark {meant}\n" in done.stderr
    verb, *_ = typed.split()
    assert done.stderr.splitlines()[2].startswith(f"  the command's: guestmark {verb} ")


def test_texts_are_compared_by_ab_too(guestmark: CommandLine) -> None:
    done = guestmark(
        "ab", "-q", "-r", "1", "--null", "none", "sleep 0.01", "echo | sleep 0.01", "--json", "-"
    )
    assert done.status == 0, done.stderr
    assert len(done.document()["cells"]) == 2


MACHINES_FACTORS = sorted(name for name in registry.factors() if is_machine_factor(name))


@pytest.mark.parametrize("name", [*MACHINES_FACTORS[::7], "cache", "memory", "platform", "workload"])
def test_a_parameter_may_have_any_name_where_no_machine_is_asked_for(
    guestmark: CommandLine, name: str
) -> None:
    done = guestmark.measure(
        "-r", "1", "-L", name, "a,b", "--", "sh", "-c", f"test {{{name}}} = a || test {{{name}}} = b"
    )
    assert done.status == 0, done.stderr
    cells = done.document()["cells"]
    assert [cell["factors"][name_factor(name)] for cell in cells] == ["a", "b"]
    exported = json.loads(guestmark("export", "last", "-f", "hyperfine").stdout)["results"]
    assert [each["parameters"] for each in exported] == [{name: "a"}, {name: "b"}]


@pytest.mark.parametrize(
    "machines", [("--on", "tcg"), ("--on", "host,uml"), ("--set", "smp=2"), ("--kernel", "k")]
)
def test_where_machines_are_asked_for_their_factors_are_theirs(
    guestmark: CommandLine, machines: tuple[str, ...]
) -> None:
    done = guestmark("exec", *machines, "-L", "cache", "none,writeback", "--", "echo", "{cache}")
    assert (done.status, "cache is a factor of machines" in done.stderr) == (2, True)


def test_a_metric_may_divide_by_such_a_parameter(guestmark: CommandLine) -> None:
    done = guestmark.measure(
        "-r", "1", "-L", "size", "10,20", "--metric", "each=expr:wall_s / size", "--", "sleep", "0.0{size}"
    )
    assert done.status == 0, done.stderr
    for cell in done.document()["cells"]:
        (trial,) = cell["trials"]
        found = trial["measurements"]
        assert found["each"] == pytest.approx(found["wall_s"] / float(cell["factors"]["arg:size"]))


@pytest.mark.parametrize(
    ("typed", "line"),
    [
        ("sleep 0.1", "guestmark exec -- sleep 0.1"),
        ("'sleep 0.1' 'sleep 0.2'", "guestmark exec 'sleep 0.1' 'sleep 0.2'"),
        ("cat /dev/null", "guestmark exec -- cat /dev/null"),
    ],
)
def test_a_command_in_place_of_a_verb_is_told_of_exec(guestmark: CommandLine, typed: str, line: str) -> None:
    done = guestmark(*shlex.split(typed))
    assert (done.status, done.stderr.splitlines()[1]) == (2, f"  to measure it: {line}")
    assert guestmark(*shlex.split(line)[1:2], "-q", "-r", "1", *shlex.split(line)[2:]).status == 0


def test_a_mistyped_verb_is_still_told_of_the_nearest(guestmark: CommandLine) -> None:
    assert "did you mean 'doctor'?" in guestmark("docter").stderr


def test_a_text_without_a_shell_has_the_words_that_a_shell_would_find() -> None:
    """Generated from what quotes, escapes and separates; each is read by /bin/sh as well."""
    chance = random.Random(4)
    parts = [
        "a",
        "b c",
        " ",
        "  ",
        "\\",
        '"',
        "'",
        '\\"',
        "\\'",
        "|",
        "&&",
        ";",
        ">",
        "$x",
        "`",
        "*",
        "x=1",
        "\\$",
        "~",
    ]
    without = 0
    for _ in range(4000):
        text = "".join(chance.choices(parts, k=chance.randint(1, 7)))
        if needs_shell(f"echo {text}"):
            continue
        try:
            words = shlex.split(text)
        except ValueError:
            continue
        without += 1
        done = subprocess.run(
            ["/bin/sh", "-c", f"printf '%s\\n' {text} end"],
            capture_output=True,
            text=True,
            check=True,
            cwd="/",
        )
        assert done.stdout == "\n".join([*words, "end", ""]), text
    assert without > 200


@pytest.mark.parametrize(("option", "made"), [((), "t{1,2}"), (("-S", "bash"), "t1 t2")])
def test_what_runs_around_a_command_is_for_the_same_shell(
    guestmark: CommandLine, tmp_path: Path, option: tuple[str, ...], made: str
) -> None:
    for hook in ("-s", "-p", "-C", "-c"):
        folder = tmp_path / hook
        folder.mkdir()
        done = guestmark("exec", "-r", "1", *option, hook, f"touch {folder}/t{{1,2}}", "sleep 0.001")
        assert done.status == 0, done.stderr
        assert " ".join(sorted(path.name for path in folder.iterdir())) == made


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"LANG": "C"}, "ANSI_X3.4-1968"),
        ({}, "ANSI_X3.4-1968"),
        ({"LANG": "C", "LC_CTYPE": "C.UTF-8"}, "UTF-8"),
        ({"LC_ALL": "C.UTF-8"}, "UTF-8"),
    ],
)
def test_a_command_has_the_caller_s_locale(
    guestmark: CommandLine, tmp_path: Path, given: dict[str, str], told: str
) -> None:
    """CPython sets one for itself where the caller's is C."""
    plain = {
        name: value for name, value in guestmark.environment.items() if not name.startswith(("LC_", "LANG"))
    }
    done = subprocess.run(
        [CHECKOUT / "guestmark", "exec", "-r", "1", f"locale charmap >{tmp_path}/told"],
        env={**plain, **given}, capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "told").read_text().strip() == told


@pytest.mark.parametrize(
    "option",
    ["-M 2000000", "-r 10000001", "-w 2000000", "--iterations 2000000", "--min-benchmarking-time 1e10",
     "--over 40000d -r 2", "--trial-limit 100000d"],
)  # fmt: skip
def test_what_no_run_can_have_is_refused_before_there_is_one(guestmark: CommandLine, option: str) -> None:
    done = guestmark("exec", *option.split(), "--", "true")
    assert done.status == 2, done.stderr
    assert len(done.stderr.splitlines()) == 2
    assert guestmark.runs() == []


def test_ignored_failures_are_said_on_the_screen_and_no_exit_code_is_made_up(guestmark: CommandLine) -> None:
    done = guestmark("exec", "-r", "2", "-i", "--export-json", "-", "sleep 0.01; exit 3", "sleep 0.02")
    document = json.loads(done.stdout)
    assert document["results"][0]["exit_codes"] == [None, None]
    shown = " ".join(guestmark("show").stdout.split())
    assert "sleep 0.01; exit 3: failures were ignored, with exit status 3 (2 runs)" in shown
    one = guestmark("exec", "-r", "2", "-i=1", "--export-json", "-", "exit 1")
    assert json.loads(one.stdout)["results"][0]["exit_codes"] == [None, None]


def test_a_comma_in_a_level_is_escaped_as_in_set(guestmark: CommandLine) -> None:
    done = guestmark("exec", "-r", "1", "-L", "x", "a\\,b,c", "--json", "-", "echo {x}")
    assert [cell["factors"][name_factor("x")] for cell in done.document()["cells"]] == ["a,b", "c"]


def test_a_least_time_applies_only_where_it_is_kept(guestmark: CommandLine) -> None:
    done = guestmark("exec", "--min-benchmarking-time", "40", "--time-limit", "6s", "sleep 0.02")
    assert (done.status, "only timed" in done.stderr) == (2, True)


def test_an_option_is_refused_as_it_was_typed(guestmark: CommandLine) -> None:
    done = guestmark("exec", "sed", "-i=bak", "file")
    assert done.status == 2
    assert "-i=bak after the command" in done.stderr
    assert "guestmark exec -i=bak -- sed file" in done.stderr
    assert "--ignored-statuses" not in done.stderr


def test_no_colour_in_a_file_is_no_escape_sequence_either(guestmark: CommandLine) -> None:
    done = guestmark("exec", "-q", "-r", "2", "--style", "nocolor", "sleep 0.01", "sleep 0.02")
    assert done.stdout
    assert "\x1b" not in done.stdout


def test_one_unit_is_that_of_all_times(guestmark: CommandLine) -> None:
    done = guestmark("exec", "-r", "3", "-u", "second", "sleep 0.01")
    assert "user, s" in done.stdout
    assert "system, s" in done.stdout
