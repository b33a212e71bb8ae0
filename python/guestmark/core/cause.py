"""The reasons for failures, each with its wording and a hint.

Errors, failed trials and unusable platforms carry a `Cause`, and code that depends on the reason tests it. No decision
depends on the text of a message (`tools/decisions.py` checks that). `classify_message` derives the cause from what
other programs print.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto


class Cause(Enum):
    """A reason for a failure. Its value is stored in ledgers and result documents; users see `words` and `hint`."""

    words: str
    hint: str

    def __new__(cls, value: str, words: str = "", hint: str = "") -> Cause:
        """Create a member with its wording, which is part of a sentence, and a hint on what to do."""
        member = object.__new__(cls)
        member._value_, member.words, member.hint = value, words, hint
        return member

    OTHER = "other"
    # The machine
    # It was still starting at its deadline.
    LATE = "late", "was not ready after"
    # Its hypervisor or a helper was killed from outside.
    KILLED = "killed", "was killed"
    ENDED = "ended", "ended"
    HANGS = "hangs", "hangs"
    SILENT = "agent", "does not speak the agent's protocol"
    NOT_AS_ASKED = "not as asked", "is not what was asked for"
    # A thread was not on the processor that it was assigned to.
    PLACEMENT = "placement", "the placement of"
    LOST = "lost", "ended in the middle of the trial"  # the process that measured it
    # What it needs
    NO_ROOM = "no room", "no room for"
    DISKS_GONE = "disks gone", "the directory of its disks is gone"
    NO_DIRECT_IO = "no direct I/O"
    NO_TABLE = "no table"
    # QEMU translates nothing, so it counts nothing either.
    NO_TRANSLATION = "no translation"
    NO_FILE = "no file"
    NO_TLS = "no TLS"
    NO_TRACING = (
        "no tracing",
        "this host does not let User-Mode Linux trace its guest's processes",
        "in a container: --cap-add=SYS_PTRACE, or --security-opt seccomp=unconfined; elsewhere check the sysctl "
        "kernel.yama.ptrace_scope, and do not run it in a debugger; or use tcg",
    )
    NO_EXECUTION = (
        "no execution",
        "User-Mode Linux cannot execute code in its memory file",
        "set TMPDIR to a directory on a filesystem that is not mounted noexec",
    )
    # The workload
    NOT_FOUND = "not found", "command not found"
    TIME_LIMIT = "time limit", "ran past its limit of"
    SIGNAL = "signal", "was killed by"
    OUT_OF_MEMORY = "out of memory", "the machine ran out of memory"
    STATUS = "exit status", "failed with exit status"
    # ssh, of a machine
    CUT = "connection cut", "closed the connection"
    NEW_HOST_KEY = (
        "another host key",
        "has a different host key than the one in known_hosts",
        "if the change is expected: ssh-keygen -R {name}; then log in once to accept the new key: ssh {name}",
    )
    UNKNOWN_HOST_KEY = (
        "unknown host key",
        "has a host key that is not in known_hosts",
        "log in once and verify its fingerprint: ssh {name}",
    )
    NO_KEY = (
        "no key",
        "does not accept a login without a password",
        "install your key there: ssh-copy-id {name}; or share a connection: ControlMaster in ssh_config",
    )
    TOO_MANY_KEYS = (
        "too many keys",
        "refuses the login, because too many keys were tried",
        "select its key in ssh_config: IdentityFile and IdentitiesOnly",
    )
    UNKNOWN_NAME = (
        "unknown name",
        "has a name that cannot be resolved",
        "check the name, or set its HostName in ssh_config",
    )
    CONNECTION_REFUSED = (
        "connection refused",
        "refuses connections",
        "check that sshd is running there, and check the port",
    )
    NO_ROUTE = (
        "no route",
        "cannot be reached: no route to host",
        "check that it is powered on and answers ping",
    )
    NO_NETWORK = (
        "no network",
        "cannot be reached: the network is unreachable",
        "check this machine's network configuration",
    )
    NO_ANSWER = (
        "no answer",
        "does not answer",
        "check that it is powered on and that no firewall blocks the connection",
    )
    SSH_CONFIGURATION = (
        "ssh configuration",
        "cannot be reached: the ssh configuration has an error",
        "to see the error: ssh {name}",
    )
    READABLE_KEY = (
        "readable key",
        "cannot be reached: ssh refuses a key file that others can read",
        "run chmod 600 on the key file",
    )
    NO_SHELL = (
        "no shell",
        "has no POSIX shell at /bin/sh",
        "only Linux machines can be measured",
    )
    NO_ACCOUNT = (
        "no account",
        "does not let this user run commands",
        "log in as another user: ssh:USER@HOST",
    )
    # What libvirt reports about a domain
    NO_DOMAIN = (
        "no domain",
        "is not a domain known to libvirt",
        "virsh list --all lists the domains; LIBVIRT_DEFAULT_URI selects the connection",
    )
    NO_LIBVIRT = (
        "no libvirt",
        "cannot be looked up: libvirt does not answer",
        "try virsh list --all; LIBVIRT_DEFAULT_URI selects the connection, e.g. qemu:///system",
    )
    NO_SNAPSHOT = (
        "no snapshot",
        "has no snapshot of that name",
        "virsh snapshot-list {name} lists the snapshots",
    )
    NOT_TRANSIENT = (
        "not transient",
        "has a disk whose changes libvirt cannot discard",
        "create a snapshot and name it: --set snapshot=NAME",
    )

    @classmethod
    def _missing_(cls, value: object) -> Cause | None:
        """Return `OTHER` for a cause that only another version knows."""
        return cls.OTHER if isinstance(value, str) else None

    @property
    def may_pass(self) -> bool:
        """Whether the same start may succeed next time although nothing was changed."""
        return self in {Cause.LATE, Cause.KILLED, Cause.NO_ROOM}

    @property
    def is_failed_start(self) -> bool:
        """Whether a guest was started and never became ready."""
        return self in {Cause.LATE, Cause.KILLED, Cause.ENDED, Cause.HANGS}

    @property
    def may_answer_later(self) -> bool:
        """Whether an unreachable machine may answer later, for instance because it is still starting."""
        return self in {Cause.CUT, Cause.CONNECTION_REFUSED, Cause.NO_ROUTE, Cause.NO_ANSWER}


def classify_errno(number: int | None) -> Cause:
    """Return the cause that a system error number stands for."""
    return Cause.NO_ROOM if number in {errno.ENOSPC, errno.EDQUOT} else Cause.OTHER


class Speaker(Enum):
    """A program, or kind of program, whose messages can be classified."""

    ANY = auto()
    # The database server under test.
    DATABASE = auto()
    DEBUGFS = auto()
    DRIVER = auto()  # the database driver of the ledger
    QEMU = auto()
    SSH = auto()
    TAR = auto()
    UML = auto()  # User-Mode Linux's checks of the host at its start (arch/um/os-Linux/start_up.c)
    VIRSH = auto()


_NO_ROOM = ("[Nn]o space left on device|Disk quota exceeded", Cause.NO_ROOM)
# The first pattern that matches counts.
_MESSAGES: Mapping[Speaker, tuple[tuple[str, Cause], ...]] = {
    Speaker.ANY: (_NO_ROOM,),
    Speaker.DATABASE: (("exist", Cause.NO_TABLE),),
    Speaker.DEBUGFS: (("File not found", Cause.NO_FILE),),
    Speaker.DRIVER: (("SSL", Cause.NO_TLS),),
    # "JIT information is only available with accel=tcg"
    Speaker.QEMU: (("accel=tcg", Cause.NO_TRANSLATION), _NO_ROOM),
    Speaker.SSH: (
        ("Connection reset by|Connection closed by|kex_exchange_identification|Broken pipe", Cause.CUT),
        ("REMOTE HOST IDENTIFICATION HAS CHANGED", Cause.NEW_HOST_KEY),
        ("Host key verification failed", Cause.UNKNOWN_HOST_KEY),
        ("Permission denied", Cause.NO_KEY),
        ("Too many authentication failures", Cause.TOO_MANY_KEYS),
        ("Could not resolve hostname", Cause.UNKNOWN_NAME),
        ("Connection refused", Cause.CONNECTION_REFUSED),
        ("No route to host", Cause.NO_ROUTE),
        ("Network is unreachable", Cause.NO_NETWORK),
        ("timed out", Cause.NO_ANSWER),
        ("Bad configuration option", Cause.SSH_CONFIGURATION),
        ("bad permissions", Cause.READABLE_KEY),
        ("not found", Cause.NO_SHELL),
        ("This account is currently not available", Cause.NO_ACCOUNT),
    ),
    Speaker.TAR: (("No space left|Wrote only|Disk quota exceeded", Cause.NO_ROOM),),
    Speaker.UML: (
        (r"check_ptrace|check_sysemu|start_ptraced_child|PTRACE_\w+|ptrace: ", Cause.NO_TRACING),
        ("must not be mounted noexec|/dev/shm must be not mounted noexec", Cause.NO_EXECUTION),
    ),
    Speaker.VIRSH: (
        ("failed to get domain '", Cause.NO_DOMAIN),
        ("failed to connect to the hypervisor", Cause.NO_LIBVIRT),
        ("no domain snapshot with matching name", Cause.NO_SNAPSHOT),
        ("transient disk", Cause.NOT_TRANSIENT),
    ),
}


@dataclass(frozen=True, slots=True)
class ClassifiedMessage:
    """The cause of a program's message, and the line that revealed it."""

    cause: Cause
    line: str = ""


def classify_message(speaker: Speaker, text: str) -> ClassifiedMessage:
    """Return the cause of what a program printed; `Cause.OTHER` if no line of it is known."""
    for pattern, cause in _MESSAGES[speaker]:
        if found := re.search(f"^.*(?:{pattern}).*$", text, re.MULTILINE):
            return ClassifiedMessage(cause, found.group().strip())
    return ClassifiedMessage(Cause.OTHER)


# Beginnings of the reasons that versions up to 0.2 stored for failed trials, without a cause.
_OLD_REASONS = (
    ("the placement of ", Cause.PLACEMENT),
    ("the command ran past its limit", Cause.TIME_LIMIT),
    ("the machine ran out of memory", Cause.OUT_OF_MEMORY),
    ("the command was killed by", Cause.SIGNAL),
    ("the command failed with exit status", Cause.STATUS),
    ("command not found", Cause.NOT_FOUND),
    (r"the guest was not ready after \d", Cause.LATE),
    (r"(?:the guest|\S+) was killed\b", Cause.KILLED),
    ("no room for|.*(?:No space left on device|Disk quota exceeded)", Cause.NO_ROOM),
    (r".*\bnot (?:what was asked for|the same program)", Cause.NOT_AS_ASKED),
    ("the guest ended", Cause.ENDED),
    ("the guest hangs", Cause.HANGS),
    ("the directory of its disks is gone", Cause.DISKS_GONE),
    (".* ended in the middle of the trial|.* stopped in the middle of the trial", Cause.LOST),
)


def classify_old_reason(reason: str) -> Cause | None:
    """Return the cause of a reason that versions up to 0.2 stored; None if the text does not show it."""
    for pattern, cause in _OLD_REASONS:
        if re.match(pattern, reason):
            return cause
    return None
