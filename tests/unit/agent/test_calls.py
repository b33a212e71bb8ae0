"""Every call, against the real agent as a child over a pair of pipes."""

import contextlib
import hashlib
import os
import platform
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from guestmark.agent.binary import start_host_agent
from guestmark.agent.client import Agent, CallError, CommandError, ExecResult
from guestmark.agent.clocks import read_host_boot_id
from guestmark.core.errors import AgentError, GuestmarkError
from guestmark.core.own_program import find_agent_binary
from guestmark.core.performance_events import EVENTS, explain_errno
from guestmark.platforms import confinement
from tests.framework import PACKAGES
from tests.framework.processes import alive, gone, wait_until

LIMIT = 30.0


@pytest.fixture(scope="module")
def shared() -> Iterator[Agent]:
    _, transport = start_host_agent()
    with Agent(transport) as agent:
        yield agent


@pytest.fixture
def agent(shared: Agent) -> Agent:
    assert not shared.closed, "an earlier test broke the agent"
    return shared


def sh(agent: Agent, script: str, **more: Any) -> ExecResult:
    return agent.exec(["/bin/sh", "-c", script], **{"timeout_s": LIMIT, **more})


def test_hello_says_who_answers(agent: Agent) -> None:
    hello = agent.hello()
    assert hello.boot_id == read_host_boot_id()
    assert hello.uid == os.getuid()
    assert hello.kernel == os.uname().release
    assert hello.arch == os.uname().machine
    assert abs(hello.clock.monotonic_ns - time.monotonic_ns()) < 60e9
    assert agent.hello().clock.monotonic_ns > hello.clock.monotonic_ns


def test_exec_keeps_streams_apart_and_reports_usage(agent: Agent) -> None:
    result = agent.exec(["sh", "-c", "echo out; echo err >&2; exit 7"], timeout_s=LIMIT)
    assert (result.status, result.signal, result.timed_out) == (7, None, False)
    assert (result.stdout, result.stderr) == (b"out\n", b"err\n")
    assert not result.ok
    assert result.wall_s == result.guest_wall_s > 0
    assert result.wall_error_s == 0
    assert result.clock_warning == ""
    assert result.leftovers == 0
    assert not result.oom_killed


def test_processor_time_and_memory_are_the_programs(agent: Agent) -> None:
    script = "x = bytearray(200 << 20)\nimport time\nwhile time.process_time() < 0.3: pass"
    result = agent.exec([sys.executable, "-c", script], timeout_s=LIMIT)
    assert result.ok
    assert result.user_s + result.system_s >= 0.3
    assert 200 << 20 < result.max_rss_bytes < 300 << 20
    small = agent.exec(["true"], timeout_s=LIMIT)
    assert small.max_rss_bytes < 16 << 20


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the program is written in x86-64 machine code")
def test_a_small_programs_memory_is_not_the_agents(agent: Agent, tmp_path: Path) -> None:
    code = bytes.fromhex("b83c000000 31ff 0f05")  # mov eax, 60; xor edi, edi; syscall: exit(0)
    base, head = 0x400000, 64 + 56
    size = head + len(code)
    elf = b"\x7fELF\x02\x01\x01".ljust(16, b"\0") + struct.pack(
        "<HHIQQQIHHHHHH", 2, 62, 1, base + head, 64, 0, 0, 64, 56, 1, 0, 0, 0
    )
    segment = struct.pack("<IIQQQQQQ", 1, 5, 0, base, base, size, size, 0x1000)
    program = tmp_path / "exit"
    program.write_bytes(elf + segment + code)
    program.chmod(0o755)
    for _ in range(3):
        result = agent.exec([str(program)], timeout_s=LIMIT)
        assert result.ok
        assert result.max_rss_bytes < 3 << 19  # all of the agent's code is over 2.5 MB


def test_output_kept_by_the_agent_does_not_count_as_the_next_programs_memory(agent: Agent) -> None:
    big = sh(agent, "head -c 50000000 /dev/zero", output_limit=60_000_000)
    assert len(big.stdout) == 50_000_000
    assert agent.exec(["true"], timeout_s=LIMIT).max_rss_bytes < 16 << 20


def test_environment_directory_and_identity_are_taken(agent: Agent, tmp_path: Path) -> None:
    result = agent.exec(["env"], env={"PATH": os.environ["PATH"], "A": "ü b"}, timeout_s=LIMIT)
    assert sorted(result.stdout.decode().splitlines()) == sorted([f"PATH={os.environ['PATH']}", "A=ü b"])
    assert agent.exec(["pwd"], cwd=str(tmp_path), timeout_s=LIMIT).stdout.decode().strip() == str(tmp_path)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
def test_user_and_groups_are_taken(agent: Agent) -> None:
    result = agent.exec(["id"], uid=65534, gid=65533, groups=[7, 8], cwd="/", timeout_s=LIMIT)
    text = result.stdout.decode()
    assert text.startswith("uid=65534(")
    assert "gid=65533" in text
    assert {word.split("(")[0] for word in text.split("groups=")[1].split(",")} >= {"7", "8"}


def test_stdin_is_empty_or_streamed(agent: Agent) -> None:
    assert agent.exec(["cat"], timeout_s=LIMIT).stdout == b""
    data = os.urandom(5_000_000)
    result = agent.exec(["sha256sum"], stdin=data, timeout_s=LIMIT)
    assert result.stdout.split()[0].decode() == hashlib.sha256(data).hexdigest()
    echoed = agent.exec(["cat"], stdin=data, output_limit=len(data), timeout_s=LIMIT)
    assert echoed.stdout == data


def test_a_program_may_leave_its_input_unread(agent: Agent) -> None:
    assert agent.exec(["true"], stdin=bytes(20_000_000), timeout_s=LIMIT).ok
    # More than the agent keeps for a program that never reads: the time limit must still end it.
    result = agent.exec(["sleep", "60"], stdin=bytes(20_000_000), timeout_s=0.3)
    assert result.timed_out
    assert agent.exec(["echo", "next"], timeout_s=LIMIT).stdout == b"next\n"


def test_output_past_the_limit_is_counted_not_lost_silently(agent: Agent) -> None:
    result = sh(agent, "head -c 5000000 /dev/zero; head -c 3000 /dev/zero >&2", output_limit=1000)
    assert (len(result.stdout), result.stdout_discarded) == (1000, 4_999_000)
    assert (len(result.stderr), result.stderr_discarded) == (1000, 2000)
    nothing = sh(agent, "echo x", output_limit=0)
    assert (nothing.stdout, nothing.stdout_discarded) == (b"", 2)


def test_bytes_that_are_no_text_pass_unchanged(agent: Agent, tmp_path: Path) -> None:
    odd = bytes(range(1, 256))
    result = agent.exec([b"printf", b"%s", odd], timeout_s=LIMIT)
    assert result.stdout == odd
    name = os.fsencode(tmp_path) + b"/\xff\xfe"
    assert agent.exec(["touch", name], timeout_s=LIMIT).ok
    assert os.path.exists(name)
    assert agent.stat(os.fsdecode(name)).size == 0


def test_a_signal_is_told_from_a_status(agent: Agent) -> None:
    result = sh(agent, "kill -SEGV $$")
    assert (result.status, result.signal, result.timed_out) == (None, signal.SIGSEGV, False)


def test_programs_start_with_default_signals_and_no_foreign_descriptors(agent: Agent) -> None:
    status = agent.exec(["cat", "/proc/self/status"], timeout_s=LIMIT).stdout.decode()
    masks = dict(line.split(":\t") for line in status.splitlines() if line.startswith("Sig"))
    assert int(masks["SigBlk"], 16) == int(masks["SigIgn"], 16) == 0
    listed = sh(agent, "ls /proc/self/fd").stdout.split()
    assert listed == [b"0", b"1", b"2", b"3"]  # 3 is the directory that ls reads


def test_the_time_limit_ends_the_whole_group_and_those_that_fled_it(agent: Agent) -> None:
    script = "echo $$; sleep 300 & echo $!; setsid sleep 300 & echo $!; (sleep 300 & echo $!); exec sleep 300"
    result = sh(agent, script, timeout_s=0.5)
    assert result.timed_out
    assert result.signal == signal.SIGKILL
    assert 0.5 <= result.wall_s < 10
    pids = [int(word) for word in result.stdout.split()]
    assert len(pids) == 4
    assert gone(*pids)


def test_what_a_program_leaves_behind_is_killed_and_counted(agent: Agent) -> None:
    away = "setsid setsid sh -c 'echo $$; exec sleep 300'"
    result = sh(agent, f"sleep 300 & echo $!; {away} & sleep 0.5")
    assert result.ok
    assert result.leftovers == 2
    assert gone(*(int(word) for word in result.stdout.split()))


def test_no_zombies_are_left(agent: Agent) -> None:
    hello = agent.hello()
    # Whatever a machine takes: cat ends when the last of them has.
    script = "{ for i in 1 2 3 4 5 6 7 8 9; do (sh -c 'sleep 0.0$0' $i &); done; } | cat; sleep 0.2"
    assert sh(agent, script).leftovers == 0
    children = Path(f"/proc/{hello.pid}/task/{hello.pid}/children").read_text()
    assert children.split() == []


def test_commands_that_cannot_start_are_told_apart(agent: Agent, tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("#!/bin/sh\n")
    text = tmp_path / "text"
    text.write_text("not a program\n")
    text.chmod(0o755)
    orphan = tmp_path / "orphan"
    orphan.write_text("#!/no/such/interpreter\n")
    orphan.chmod(0o755)
    cases = [
        (["guestmark-no-such"], "not_found"),
        (["/no/such/file"], "not_found"),
        ([str(plain)], "permission_denied"),
        ([str(tmp_path)], "permission_denied"),
        ([str(text)], "bad_format"),
        ([str(orphan)], "not_found"),
        ([""], "not_found"),
    ]
    for argv, kind in cases:
        with pytest.raises(CommandError) as caught:
            agent.exec(argv, timeout_s=LIMIT)
        assert caught.value.kind == kind, argv
        assert caught.value.hint
    with pytest.raises(CommandError) as caught:
        agent.exec(["true"], cwd="/no/such/directory", timeout_s=LIMIT)
    assert caught.value.kind == "bad_cwd"
    with pytest.raises(CallError) as refused:
        agent.exec([], timeout_s=LIMIT)
    assert refused.value.kind == "bad_request"
    with pytest.raises(CallError):
        agent.exec(["true", "x" * 2_000_000], timeout_s=LIMIT)
    assert agent.exec(["true"], timeout_s=LIMIT).ok


def test_commands_are_looked_up_as_execvp_does(agent: Agent, tmp_path: Path) -> None:
    for directory, mode in (("a", 0o644), ("b", 0o755)):
        (tmp_path / directory).mkdir()
        tool = tmp_path / directory / "tool"
        tool.write_text(f"#!/bin/sh\necho {directory} $0\n")
        tool.chmod(mode)
    path = f"{tmp_path}/none:{tmp_path}/a:{tmp_path}/b"
    result = agent.exec(["tool"], env={"PATH": path}, timeout_s=LIMIT)
    assert result.stdout.decode() == f"b {tmp_path}/b/tool\n"
    assert agent.which("tool", path=path) == f"{tmp_path}/b/tool"
    relative = agent.exec(["b/tool"], cwd=str(tmp_path), timeout_s=LIMIT)
    assert relative.stdout == b"b b/tool\n"
    assert agent.which("b/tool", cwd=str(tmp_path)) == f"{tmp_path}/b/tool"
    with pytest.raises(CommandError) as denied:
        agent.exec(["tool"], env={"PATH": f"{tmp_path}/a"}, timeout_s=LIMIT)
    assert denied.value.kind == "permission_denied"
    with pytest.raises(CommandError):
        agent.which("guestmark-no-such")


def test_files_are_written_read_and_digested(agent: Agent, tmp_path: Path) -> None:
    path, data = str(tmp_path / "file"), os.urandom(3_500_000)
    count = agent.write_file(path, data, mode=0o640, fsync=True)
    assert count.bytes == len(data)
    assert count.ended_ns > count.started_ns
    assert Path(path).read_bytes() == data
    assert agent.read_file(path) == data
    assert agent.read_file(path, offset=1_000_000, limit=70) == data[1_000_000:1_000_070]
    digest = agent.sha256(path)
    assert (digest.sha256, digest.size) == (hashlib.sha256(data).hexdigest(), len(data))
    stat = agent.stat(path)
    assert (stat.size, stat.mode & 0o777, stat.uid) == (len(data), 0o640, os.getuid())
    assert agent.write_file(path, [b"ab", b"", b"c"]).bytes == 3
    assert agent.read_file(path) == b"abc"
    assert agent.read_file("/proc/version") == Path("/proc/version").read_bytes()
    assert agent.read_file("/dev/zero", limit=3_000_000) == bytes(3_000_000)
    assert agent.statfs(str(tmp_path)).block_size == os.statvfs(tmp_path).f_bsize


def test_failing_file_calls_leave_the_agent_usable(agent: Agent, tmp_path: Path) -> None:
    missing = str(tmp_path / "no" / "file")
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    for call in (
        lambda: agent.read_file(missing),
        lambda: agent.sha256(missing),
        lambda: agent.write_file(missing, bytes(5_000_000)),
        lambda: agent.stat(missing),
        lambda: agent.remove(missing),
        lambda: agent.umount(str(tmp_path)),
        lambda: agent.mount("none", str(tmp_path), "no-such-filesystem"),
        lambda: agent.read_file(str(tmp_path)),
        lambda: agent.read_file(str(fifo)),
        lambda: agent.write_file("/dev/full", b"x"),
    ):
        with pytest.raises(CallError):
            call()
    assert agent.exec(["echo", "fine"], timeout_s=LIMIT).stdout == b"fine\n"


def test_directories_are_made_and_removed(agent: Agent, tmp_path: Path) -> None:
    agent.mkdir(str(tmp_path / "a" / "b"), parents=True)
    with pytest.raises(CallError):
        agent.mkdir(str(tmp_path / "a"))
    (tmp_path / "a" / "b" / "c").write_text("x")
    target = tmp_path / "kept"
    target.mkdir()
    (tmp_path / "a" / "link").symlink_to(target)
    with pytest.raises(CallError):
        agent.remove(str(tmp_path / "a"))
    agent.remove(str(tmp_path / "a"), recursive=True)
    assert [entry.name for entry in tmp_path.iterdir()] == ["kept"]


def test_sink_counts_and_facts_say_what_the_kernel_says(agent: Agent) -> None:
    assert agent.send_to_sink(bytes(3_000_001)).bytes == 3_000_001
    assert agent.send_to_sink(b"").bytes == 0
    facts = agent.read_facts()
    assert facts.cpus_online == os.cpu_count()
    meminfo = Path("/proc/meminfo").read_text()
    assert facts.mem_total_kib == int(meminfo.split("MemTotal:")[1].split()[0])
    assert facts.cmdline == Path("/proc/cmdline").read_text().strip()
    assert " / " in facts.mounts
    assert facts.cpu_model
    assert "fpu" in facts.cpu_flags or os.uname().machine != "x86_64"
    agent.sync()
    ping = agent.ping()
    assert 0 < ping.round_trip_ns < 5e9


def test_a_terminal_is_joined(agent: Agent) -> None:
    ours, theirs = os.pipe(), os.pipe()
    os.write(ours[1], b"stty size; tty; read x; echo got $x\nhello\nexit 9\n")
    status = agent.run_interactive(
        ["sh"], env={"PATH": os.environ["PATH"], "PS1": ""}, stdin_fd=ours[0], stdout_fd=theirs[1]
    )
    os.close(theirs[1])
    shown = os.read(theirs[0], 65536)
    assert status == 9
    assert b"24 80" in shown
    assert b"/dev/pts/" in shown
    assert b"got hello" in shown
    with pytest.raises(CommandError):
        agent.run_interactive(["guestmark-no-such"], stdin_fd=ours[0], stdout_fd=ours[1])
    for fd in (*ours, theirs[0]):
        os.close(fd)
    assert agent.exec(["true"], timeout_s=LIMIT).ok


def test_a_terminals_input_may_end(agent: Agent) -> None:
    out = os.pipe()
    null = os.open("/dev/null", os.O_RDONLY)
    assert agent.run_interactive(["cat"], stdin_fd=null, stdout_fd=out[1]) == 0
    for fd in (null, *out):
        os.close(fd)


def test_power_off_ends_a_host_agent() -> None:
    process, transport = start_host_agent()
    agent = Agent(transport)
    agent.power_off()
    assert process.wait(10) == 0
    with pytest.raises(AgentError, match="was shut down"):
        agent.read_clock()


def test_closing_ends_all_that_runs(tmp_path: Path) -> None:
    process, transport = start_host_agent()
    agent = Agent(transport)
    agent.hello()
    pids = tmp_path / "pids"
    script = f"sleep 300 & echo $! >> {pids}; setsid sleep 300 & echo $! >> {pids}; echo $$ >> {pids}; wait"
    with pytest.raises(AgentError, match="no answer in time"):
        agent.exec(["sh", "-c", script], timeout_s=0.8, grace_s=-0.3)
    assert process.wait(10) == 0
    found = [int(word) for word in pids.read_text().split()]
    assert len(found) == 3
    assert gone(*found)


def test_a_killed_controller_leaves_nothing(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    script = f"echo $$ >> {pids}; setsid sleep 300 & echo $! >> {pids}; echo done >> {pids}; wait"
    code = (
        "from guestmark.agent.binary import start_host_agent\n"
        "from guestmark.agent.client import Agent\n"
        "process, transport = start_host_agent()\n"
        f"open({str(pids)!r}, 'a').write(f'{{process.pid}}\\n')\n"
        f"Agent(transport).exec(['sh', '-c', {script!r}], timeout_s=100)\n"
    )
    controller = subprocess.Popen(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(PACKAGES)}
    )
    assert wait_until(lambda: pids.exists() and "done" in pids.read_text())
    found = [int(word) for word in pids.read_text().split() if word.isdigit()]
    assert len(found) == 3
    assert all(alive(pid) for pid in found)
    controller.kill()
    controller.wait()
    assert gone(*found)


def test_a_killed_agent_takes_its_program_along(tmp_path: Path) -> None:
    process, transport = start_host_agent()
    pids = tmp_path / "pids"

    def kill_when_running() -> None:
        wait_until(lambda: pids.exists() and pids.read_text().endswith("\n"))
        process.kill()

    killer = threading.Thread(target=kill_when_running)
    killer.start()
    agent = Agent(transport)
    with pytest.raises(AgentError, match="closed the connection"):
        agent.exec(["sh", "-c", f"echo $$ > {pids}; exec sleep 300"], timeout_s=LIMIT)
    killer.join()
    assert gone(int(pids.read_text()))
    with pytest.raises(AgentError, match="closed the connection"):
        agent.exec(["true"], timeout_s=LIMIT)


def test_a_missing_binary_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GUESTMARK_AGENT", str(tmp_path / "nothing"))
    with pytest.raises(GuestmarkError) as caught:
        find_agent_binary()
    assert "cargo build" in caught.value.hint
    monkeypatch.delenv("GUESTMARK_AGENT")
    assert find_agent_binary().is_file()


def test_the_agent_is_static_and_small() -> None:
    binary = find_agent_binary()
    assert binary.stat().st_size <= 13 << 18  # a checkout makes it a seventh larger than a wheel's
    with contextlib.suppress(FileNotFoundError):
        headers = subprocess.run(["readelf", "-lW", str(binary)], capture_output=True, text=True, check=True)
        assert "INTERP" not in headers.stdout


def test_what_runs_out_of_memory_elsewhere_is_no_reason(agent: Agent) -> None:
    limited = confinement.make_control_groups("test", 32 << 20)
    if not limited:
        pytest.skip("this process may not make control groups")
    joins = " ".join(f"echo $$ > {group}/cgroup.procs;" for group in limited)
    with ThreadPoolExecutor(1) as beside:
        found = beside.submit(sh, agent, "sleep 3")
        words = ["sh", "-c", f'{joins} exec "$0" -c "bytearray(200 << 20)"', sys.executable]
        other = subprocess.run(words, check=False)
        assert other.returncode == -signal.SIGKILL
        assert (found.result().status, found.result().oom_killed) == (0, False)


def test_performance_events_are_counted(agent: Agent) -> None:
    """Of software, which every kernel has: the program's own, its children's included, nothing of the agent's."""
    wanted = [EVENTS["page-faults"], EVENTS["task-clock"], EVENTS["instructions"]]
    small = agent.exec(["/bin/true"], timeout_s=10, counters=wanted)
    large = agent.exec(
        ["sh", "-c", "sh -c 'head -c 40000000 /dev/zero | tail -c 39999999 >/dev/null'"],
        timeout_s=30,
        counters=wanted,
    )
    assert large.status == 0
    assert 0 < small.counted[0] < 3000
    assert large.counted[0] > small.counted[0] + 5000  # what a grandchild keeps in memory
    used_s = large.user_s + large.system_s
    assert large.counted[1] / 1e9 == pytest.approx(used_s, rel=0.3, abs=0.05)
    for result in (small, large):
        assert result.counted[2] > 1000 or explain_errno(-result.counted[2])
    assert agent.exec(["/bin/true"], timeout_s=10).counted == ()
