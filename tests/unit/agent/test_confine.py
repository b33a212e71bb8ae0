"""`guestmark-agent confine`, as root and as somebody else, tried by what it must refuse."""

import contextlib
import os
import shutil
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from guestmark.core.own_program import find_agent_binary
from tests.framework.kernels import KERNEL

NOBODY = 65534
# Prints a word for each thing that it can do.
ATTEMPTS = r"""
import contextlib, os, signal, socket, sys
outside, inside, port, other = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
def attempt(name, function, *arguments):
    with contextlib.suppress(OSError):
        function(*arguments)
        print(name)
def write(path):
    with open(path, "w") as file:
        file.write("x")
def fill(path):  # and cut nothing off, which before Linux 6.2 Landlock cannot allow in one place alone
    file = os.open(path, os.O_WRONLY | os.O_CREAT)
    os.write(file, b"x")
attempt("inside", fill, f"{inside}/made")
attempt("inside-folder", os.mkdir, f"{inside}/folder")
attempt("null", fill, "/dev/null")
attempt("read", lambda: open("/etc/passwd").read())
for name, function, arguments in (
    ("write", write, (f"{outside}/victim",)), ("make", write, (f"{outside}/made",)),
    ("folder", os.mkdir, (f"{outside}/folder",)), ("fifo", os.mkfifo, (f"{outside}/fifo",)),
    ("remove", os.remove, (f"{outside}/victim",)), ("rename", os.rename, (f"{outside}/victim", f"{outside}/b")),
    ("take", os.rename, (f"{outside}/victim", f"{inside}/b")), ("link", os.link, (f"{outside}/victim", f"{inside}/l")),
    ("symlink", os.symlink, ("x", f"{outside}/s")), ("chmod", os.chmod, (f"{outside}/victim", 0o777)),
    ("chown", os.chown, (f"{outside}/victim", os.getuid(), os.getgid())), ("utime", os.utime, (f"{outside}/victim",)),
    ("truncate", os.truncate, (f"{outside}/victim", 0)), ("swappiness", write, ("/proc/sys/vm/swappiness",)),
    ("signal", os.kill, (other, signal.SIGKILL)), ("memory", lambda: open(f"/proc/{other}/mem", "rb").read(1), ()),
    ("connect", socket.create_connection, (("127.0.0.1", port), 2)),
    ("listen", socket.create_server, (("127.0.0.1", 0),)),
    ("setuid", os.setuid, (1 if os.getuid() != 1 else 2,)),
    ("chroot", os.chroot, ("/",)),
):
    attempt(name, function, *arguments)
for disk in os.listdir("/sys/block"):
    attempt(f"disk {disk}", lambda: os.close(os.open(f"/dev/{disk}", os.O_WRONLY)))
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
if libc.mount(None, b"/", None, 32, None) == 0: print("remount")
if libc.unshare(0x20000) == 0: print("namespace")
if libc.ptrace(16, other, None, None) == 0: print("ptrace")
attempt("descriptor", write, f"/proc/{other}/fd/1")
attempt("mknod", os.mknod, f"{inside}/disk", 0o600 | 0o060000, os.stat("/").st_dev)
if os.path.exists(f"{inside}/disk"):
    attempt("own disk", lambda: os.close(os.open(f"{inside}/disk", os.O_WRONLY)))
with open("/proc/self/mountinfo") as mounts:
    for where in {line.split()[4] for line in mounts}:
        if libc.mount(None, where.encode(), None, 32 | 4096, None) == 0: print("remount", where)
with contextlib.suppress(OSError):
    mode = os.stat(f"{outside}/victim").st_mode
    descriptor = os.open(f"{outside}/victim", os.O_RDONLY)
    with contextlib.suppress(OSError):
        os.fchmod(descriptor, 0o707)
    if os.stat(f"{outside}/victim").st_mode != mode: print("fchmod")
print("status", *[line.split()[1] for line in open("/proc/self/status") if line.startswith("NoNewPrivs")])
print("held", os.environ["GUESTMARK_CONFINED"])
"""
HARMLESS = {"inside", "inside-folder", "null", "read"}
# Without a namespace of processes, which only root has for it, Landlock keeps signals in.
KEEPS_SIGNALS_IN = KERNEL >= (6, 12)
PYTHON = "/usr/bin/python3"  # that anybody may execute, unlike one in somebody's home


@pytest.fixture
def public() -> Iterator[Path]:
    """A directory that other users can enter, with the agent in it."""
    folder = Path("/tmp") / f"guestmark-test-{os.getpid()}"
    folder.mkdir(mode=0o755)
    try:
        shutil.copy(find_agent_binary(), folder / "agent")
        (folder / "agent").chmod(0o755)
        yield folder
    finally:
        shutil.rmtree(folder)


def run(folder: Path, uid: int, *options: str, outside_owner: int | None = None) -> list[str]:
    outside, inside = folder / "outside", folder / "inside"
    for path in (outside, inside):
        path.mkdir()
        os.chown(path, uid, uid)
    victim = outside / "victim"
    victim.write_text("untouched")
    os.chown(victim, uid, uid)
    mode = stat.S_IMODE(victim.stat().st_mode)
    become = [] if uid == 0 else ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        subprocess.Popen([*become, "sleep", "60"]) as other,
    ):
        done = subprocess.run(
            [*become, folder / "agent", "confine", f"--writable={inside}", *options, "--", PYTHON, "-I", "-c",
             ATTEMPTS, outside, inside, str(server.getsockname()[1]), str(other.pid)],
            capture_output=True, text=True, timeout=60, check=False, cwd=inside,
        )  # fmt: skip
        assert other.poll() is None or (uid and not KEEPS_SIGNALS_IN), "the other process was ended"
        other.kill()
    assert done.returncode == 0, done.stderr
    assert victim.read_text() == "untouched"
    assert stat.S_IMODE(victim.stat().st_mode) == mode
    assert [path.name for path in outside.iterdir()] == ["victim"]
    return done.stdout.splitlines()


needs_root = pytest.mark.skipif(os.getuid() != 0, reason="becomes other users, which takes root")


@needs_root
@pytest.mark.parametrize("uid", [0, NOBODY])
def test_only_what_is_named_can_be_changed(public: Path, uid: int) -> None:
    *did, status, held = run(public, uid)
    assert status == "status 1"
    if "landlock" not in held and "mounts" not in held:
        pytest.skip("neither Landlock nor mount namespaces can be had here")
    if "landlock" not in held:
        did = [
            word
            for word in did
            if word not in {"signal", "memory", "connect", "listen"} and "disk" not in word
        ]
    if uid != 0:
        did = [word for word in did if word != "namespace"]  # an empty one, in which nothing can be mounted
    if uid != 0 and not KEEPS_SIGNALS_IN:
        did = [word for word in did if word != "signal"]
    assert set(did) == HARMLESS


@needs_root
def test_a_file_server_changes_nothing_either(public: Path) -> None:
    """It keeps root's ways of becoming others, and still has nothing that it could write to."""
    for uid in (0, NOBODY):
        folder = public / str(uid)
        folder.mkdir()
        shutil.copy(public / "agent", folder / "agent")
        *did, _, held = run(folder, uid, "--serves-files")
        if "mounts" in held:
            assert set(did) <= HARMLESS | {"setuid", "chroot", "namespace"}


@needs_root
def test_the_network_is_there_when_it_is_asked_for(public: Path) -> None:
    assert {"connect", "listen"} <= set(run(public, 0, "--network"))


# What becomes of connections to each path, and over one that was made what its server says.
_CONNECTS = r"""
import os, socket, sys
def said(path, blocking=True):
    with socket.socket(socket.AF_UNIX) as made:
        made.setblocking(blocking)
        try:
            made.connect(path)
            assert made.getblocking() is blocking and not os.get_inheritable(made.fileno())
            made.setblocking(True)
            return made.recv(16).decode()
        except OSError as error:
            return error.strerror
os.symlink(sys.argv[1], "link")
os.symlink(os.path.dirname(sys.argv[1]), "way")
for path in (os.path.abspath("own"), "own", sys.argv[1], "link", "way/host", "../outside/host", "\0host", "made"):
    print(said(path))
print(said("own", blocking=False))
with socket.socket(socket.AF_UNIX) as made:
    made.bind("made"); made.listen()
    with socket.socket(socket.AF_UNIX) as other:
        other.connect("made"); other.send(b"x")
        print(made.accept()[0].recv(1).decode())
print(os.environ["GUESTMARK_CONFINED"])
"""


@needs_root
@pytest.mark.parametrize("uid", [0, NOBODY])
@pytest.mark.parametrize("options", [(), ("--own-files",)])
def test_sockets_are_connected_to_what_is_its_own(public: Path, uid: int, options: tuple[str, ...]) -> None:
    outside, inside = public / "outside", public / "inside"
    become = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"] if uid else []
    with contextlib.ExitStack() as stack:
        for path in (outside / "host", inside / "own"):
            path.parent.mkdir()
            server = stack.enter_context(socket.socket(socket.AF_UNIX))
            server.bind(str(path))
            server.listen(16)
            stack.callback(server.shutdown, socket.SHUT_RDWR)
            path.chmod(0o777)
            os.chown(path.parent, uid, uid)
            threading.Thread(target=_greets, args=(server, path.name.encode()), daemon=True).start()
        lifeline, ours = os.pipe()
        stack.callback(os.close, lifeline)
        stack.callback(os.close, ours)
        done = subprocess.run(
            [*become, public / "agent", "confine", f"--writable={inside}", "--sockets", *options,
             f"--lifeline={lifeline}", "--", PYTHON, "-I", "-c", _CONNECTS, outside / "host"],
            capture_output=True, text=True, timeout=60, check=False, cwd=inside, pass_fds=(lifeline,),
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    *said, again, own, held = done.stdout.splitlines()
    if "own-sockets" not in held:
        pytest.skip("this kernel asks nobody about connections")
    assert said[:2] == ["own", "own"]
    assert not {"host", *said[:2]}.intersection(said[2:])
    assert (again, own) == ("own", "x")


def _greets(server: socket.socket, words: bytes) -> None:
    with contextlib.suppress(OSError):
        while True:
            made, _ = server.accept()
            with made:
                made.send(words)


def test_a_path_that_is_missing_ends_it(tmp_path: Path) -> None:
    done = subprocess.run(
        [find_agent_binary(), "confine", f"--writable={tmp_path / 'none'}", "--", "true"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 125
    assert "none: No such file or directory" in done.stderr


def test_programs_that_are_missing_end_as_in_a_shell(tmp_path: Path) -> None:
    for word, status in (("/nowhere/program", 127), (str(tmp_path), 126)):
        done = subprocess.run([find_agent_binary(), "confine", "--", word], capture_output=True, check=False)
        assert done.returncode == status, done.stderr


def test_the_temporary_directory_is_named_to_the_program(tmp_path: Path) -> None:
    code = "import os; print(os.environ['TMPDIR'])"
    done = subprocess.run(
        [find_agent_binary(), "confine", f"--temporary={tmp_path}", "--", sys.executable, "-c", code],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout == f"{tmp_path}\n", done.stderr
