"""Sources of values that machines may share, each with a command that is run in every machine.

A command prints one value per line. Two machines with the same state print the same values, perhaps at different
times, so a single common value is enough to call them twins. For a control, the program `resident` is saved with a
template: Python with OpenSSL, which runs before there is a root.
"""

from __future__ import annotations

import functools
import json
import os
import shlex
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path

from guestmark.core.errors import PlatformUnusableError
from guestmark.platforms.own.snapshots import SAVED_MARK

SOCKET = "guestmark-resident"  # an abstract socket, which needs no root filesystem
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_SHELL = ("sh", "-c")
_PYTHON = "/usr/bin/python3"
# A directory below /guestmark in the initramfs; the agent runs the command line in its file `words`.
_BELOW = "resident"
_TOLD_S = 20.0
# Prints all files that such a program has mapped, and the modules that are not part of the interpreter.
_ASKED = """
import sys, json, os, _ssl, _random, _socket, encodings.ascii
mapped = {line.split(maxsplit=5)[5].strip() for line in open("/proc/self/maps") if line.count("/") > 1}
modules = {m.__file__ for m in list(sys.modules.values()) if getattr(m, "__file__", None)}
print(json.dumps([sys.prefix, "python%d.%d" % sys.version_info[:2], sorted(mapped), sorted(modules), os.__file__]))
"""


class Kind(Enum):
    """The consequence of sharing values."""

    SECRET = auto()  # others can guess the secret
    NAME = auto()  # the machines are mistaken for each other
    # Addresses: an attack on one works on the other.
    LAYOUT = auto()


@dataclass(frozen=True, slots=True)
class Source:
    """A command that prints values, one per line."""

    name: str
    kind: Kind
    command: tuple[str, ...]
    absent: str = ""  # the meaning of an empty output
    # A machine with its own kernel gets none of these from the host.
    of_kernel: bool = False

    @property
    def shell_command(self) -> str:
        """The command as typed in a shell."""
        return self.command[2] if self.command[:2] == _SHELL else shlex.join(self.command)

    @property
    def decides_twins(self) -> bool:
        """True if machines that share its values are twins."""
        return self.kind is not Kind.LAYOUT


def _build_shell_argv(text: str) -> tuple[str, ...]:
    return (*_SHELL, text)


def _build_python_argv(text: str) -> tuple[str, ...]:
    return ("python3", "-I", "-c", text)


# A TLS server sends the name of the key that encrypts a ticket in the clear before it. Only the module `_ssl` is
# used, so that this also runs without Python's library.
TICKETS = """\
import _ssl

def ticket_key(server):
    client = _ssl._SSLContext(_ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_mode = 0
    for context in (server, client):
        context.set_ciphers("AECDH-AES128-SHA:@SECLEVEL=0")
        context.maximum_version = 771
    up, down = _ssl.MemoryBIO(), _ssl.MemoryBIO()
    ends = client._wrap_bio(down, up, False, None), server._wrap_bio(up, down, True, None)
    said = b""
    for step in range(8):
        try:
            ends[step % 2].do_handshake()
        except _ssl.SSLWantReadError:
            pass
        if step % 2:
            sent = down.read()
            said += sent
            down.write(sent)
    while len(said) > 5:
        size = int.from_bytes(said[3:5], "big")
        if said[0] == 22 and said[5] == 4:
            return said[15:31].hex()
        said = said[5 + size:]

"""
# The program of a saved machine: random generators in use, and a server with a key for tickets. It answers each
# connection with one value of each.
RESIDENT = f"""{TICKETS}
import _random, _socket, os, sys
generator = _random.Random()
generator.getrandbits(128)
_ssl.RAND_bytes(16)
server = _ssl._SSLContext(_ssl.PROTOCOL_TLS_SERVER)
ticket_key(server)
listener = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
listener.bind("\\0{SOCKET}")
listener.listen(8)
os.write(1, b"ready\\n")
while True:
    end, _ = listener._accept()
    for _ in range(8):
        os.write(end, b"random %032x\\n" % generator.getrandbits(128))
        os.write(end, b"openssl %s\\n" % _ssl.RAND_bytes(16).hex().encode())
    os.write(end, b"tickets %s\\n" % ticket_key(server).encode())
    os.close(end)
"""

GETRANDOM = Source(
    "getrandom()",
    Kind.SECRET,
    _build_python_argv("import os; [print(os.getrandom(16).hex()) for _ in range(32)]"),
)
URANDOM = Source(
    "/dev/urandom", Kind.SECRET, _build_shell_argv("od -An -v -tx1 -w16 -N512 /dev/urandom | tr -d ' '")
)
BOOT_ID = Source("boot id", Kind.NAME, ("cat", "/proc/sys/kernel/random/boot_id"), of_kernel=True)
# Uses the shell alone, so that a machine without any other program is caught, too.
SEEDED = Source(
    "a generator seeded with 1",
    Kind.SECRET,
    _build_shell_argv(
        "x=1; for i in 1 2 3 4; do v=; for j in 1 2 3 4; do x=$(((x * 1103515245 + 12345) & 0x7fffffff)); "
        'v=$v$(printf %08x $x); done; echo "$v"; done'
    ),
)
SOURCES = (
    GETRANDOM,
    URANDOM,
    Source(
        "Python's random",
        Kind.SECRET,
        _build_python_argv("import random; [print('%032x' % random.getrandbits(128)) for _ in range(32)]"),
    ),
    Source("openssl rand", Kind.SECRET, _build_shell_argv("openssl rand -hex 256 | fold -w 32")),
    Source("uuidgen", Kind.SECRET, _build_shell_argv("for i in 1 2 3 4; do uuidgen; done")),
    Source(
        "bash's RANDOM",
        Kind.SECRET,
        ("bash", "-c", "printf '%04x' $RANDOM $RANDOM $RANDOM $RANDOM $RANDOM $RANDOM $RANDOM $RANDOM; echo"),
    ),
    Source(
        "a new SSH key",
        Kind.SECRET,
        _build_shell_argv(
            "d=$(mktemp -d) && ssh-keygen -q -t ed25519 -N '' -f $d/k && cut -d' ' -f2 $d/k.pub; rm -rf $d"
        ),
    ),
    Source(
        "key of TLS tickets, new server",
        Kind.SECRET,
        _build_python_argv(f"{TICKETS}print(ticket_key(_ssl._SSLContext(_ssl.PROTOCOL_TLS_SERVER)))"),
    ),
    BOOT_ID,
    Source("machine id", Kind.NAME, ("cat", "/etc/machine-id"), "there is none"),
    Source(
        "SSH host keys",
        Kind.SECRET,
        _build_shell_argv("cat /etc/ssh/ssh_host_*_key.pub | cut -d' ' -f2"),
        "there are none",
    ),
    Source(
        "MAC addresses",
        Kind.NAME,
        _build_shell_argv("cat /sys/class/net/*/address | grep -v '^00:00:00:00:00:00'; true"),
        "there is no network card",
    ),
    Source("addresses: program", Kind.LAYOUT, _build_shell_argv("head -n1 /proc/self/maps | cut -d- -f1")),
    Source(
        "addresses: C library",
        Kind.LAYOUT,
        _build_shell_argv("grep -m1 /libc /proc/self/maps | cut -d- -f1"),
        "no library",
    ),
    Source(
        "addresses: stack",
        Kind.LAYOUT,
        _build_shell_argv("grep -F '[stack]' /proc/self/maps | cut -d- -f1"),
        "no stack",
    ),
    Source(
        "addresses: kernel",
        Kind.LAYOUT,
        _build_shell_argv("grep -m1 ' _text$' /proc/kallsyms | cut -d' ' -f1 | grep -v '^0*$'"),
        "its kernel does not show it",
        of_kernel=True,
    ),
)  # fmt: skip


# Left in a machine by `platforms.own.snapshots` before it is saved.
SAVED_FILE = Source(
    "a file of the saved machine",
    Kind.SECRET,
    _build_shell_argv(f"cat /var/tmp/{SAVED_MARK}* /root/{SAVED_MARK}* /tmp/{SAVED_MARK}* 2>/dev/null"),
)
SAVED_PROGRAM = Source(
    "a program of the saved machine",
    Kind.SECRET,
    _build_shell_argv(f"cat /proc/[0-9]*/cmdline | tr '\\0' '\\n' | grep '^{SAVED_MARK}'"),
)


def _make_resident_source(name: str, word: str) -> Source:
    program = (
        f"import socket; s = socket.socket(socket.AF_UNIX); s.connect('\\0{SOCKET}'); "
        f"[print(line.split()[1]) for line in s.makefile() if line.startswith('{word} ')]"
    )
    return Source(name, Kind.SECRET, _build_python_argv(program))


# Values of a program that was already running when the machine was saved.
RESIDENTS = (
    _make_resident_source("Python's random, running before", "random"),
    _make_resident_source("OpenSSL, running before", "openssl"),
    _make_resident_source("key of TLS tickets, running before", "tickets"),
)


@functools.cache
def collect_resident_files() -> Mapping[str, Path | bytes]:
    """Returns files for the initramfs by their paths below /guestmark.

    Raises `PlatformUnusableError` if this host has no Python with OpenSSL.
    """
    try:
        told = subprocess.run(
            [_PYTHON, "-I", "-S", "-c", _ASKED], capture_output=True, timeout=_TOLD_S, check=True
        ).stdout
        prefix, name, mapped, modules, landmark = json.loads(told)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise PlatformUnusableError(
            f"{_PYTHON} with OpenSSL, which is saved with a template, is not installed",
            hint="install Debian's package python3",
        ) from error
    files: dict[str, Path | bytes] = {}
    loader = ""
    for path in filter(os.path.isfile, (*mapped, *modules, landmark)):
        file = Path(path)
        if file.is_relative_to(f"{prefix}/lib/{name}"):
            files[f"{_BELOW}/lib/{file.relative_to(f'{prefix}/lib')}"] = file
        elif ".so" in file.name:
            if file.name.startswith("ld-"):
                loader = file.name
            for link in _find_library_names(file):
                files[f"{_BELOW}/libraries/{link}"] = file
    here = f"/guestmark/{_BELOW}"
    program = f"{_BELOW}/bin/{name}"
    files[program] = Path(os.path.realpath(_PYTHON))
    files[f"{_BELOW}/program.py"] = RESIDENT.encode()
    words = [
        f"{here}/libraries/{loader}", "--library-path", f"{here}/libraries",
        f"/guestmark/{program}", "-I", "-S", f"{here}/program.py",
    ]  # fmt: skip
    files[f"{_BELOW}/words"] = "".join(f"{word}\n" for word in words).encode()
    return files


def _find_library_names(library: Path) -> list[str]:
    """Returns the names under which programs load a library: the links to it in its directory."""
    stem = library.name.partition(".so")[0]
    names = []
    for file in library.parent.glob(f"{stem}.so*"):
        if file.samefile(library):
            names.append(file.name)
    return names
