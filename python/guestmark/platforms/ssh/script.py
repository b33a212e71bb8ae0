"""What the other machine's shell does: it takes the agent, becomes its parent, and removes everything afterwards.

The script is an argument of the login shell there, which may be anything: no quotation mark, no backslash, no
exclamation mark and no line break is in it, so that one pair of quotation marks protects it from all of them; and
it is no longer than a word may be for the old csh. `sh` itself, `head`, `mkdir`, `wc` and `uname` are those of POSIX
or BusyBox.
"""

from __future__ import annotations

GREETING = "guestmark-ssh-1"
READY = "guestmark-ready"
REFUSED = "guestmark-refused"
DIRECTORY = "guestmark-agent-"
# How often the agent sends something, by which its sshd notices that a network was cut and nobody is there any more. By
# itself sshd would keep the session, and the machine its lock, until TCP looks after two hours.
ALIVE_S = 30

# 1. says what machine this is, and hears the directory's name and the agent's size (or nothing, and ends);
# 2. looks for a directory of its own with room for the agent, where programs may be run;
# 3. takes the agent. Its file is removed as soon as it runs, the directory when it has ended, by itself or because
#    the connection has gone: both are the end of its input.
_LINES = (
    "umask 077",
    "echo",  # what the login has printed may not end its line
    f"echo {GREETING} $(uname -s) $(uname -m) $(cat /proc/sys/kernel/random/boot_id)",
    "read -r name size || exit 0",
    "d=",
    "why=",
    'gone() { [ -z "$d" ] || rm -rf "$d"; }',
    "trap gone EXIT",
    "trap : HUP PIPE",
    'trap "exit 1" INT TERM',
    'for parent in "${TMPDIR:-/tmp}" /var/tmp "$XDG_RUNTIME_DIR" "$HOME" /dev/shm; do '
    '[ -d "$parent" ] || continue; '
    'd=$parent/$name; mkdir -m 700 "$d" 2>/dev/null || { d=; why="$why; $parent cannot be written"; continue; }; '
    ': > "$d/try"; chmod 700 "$d/try"; '
    'if "$d/try" 2>/dev/null; then '
    'if head -c "$size" /dev/zero > "$d/agent" 2>/dev/null; then break; fi; '
    'why="$why; $parent has no room for $size bytes"; '
    'else why="$why; no program may be run in $parent"; fi; '
    'rm -rf "$d"; d=; done',
    f'[ -n "$d" ] || {{ echo "{REFUSED} ${{why#; }}"; exit 0; }}',
    'rm "$d/try"',
    f'echo "{READY} $d"',
    'head -c "$size" > "$d/agent"',
    '[ "$(wc -c < "$d/agent")" -eq "$size" ] || exit 1',
    'chmod 700 "$d/agent"',
    'exec 3< "$d/agent"',
    'rm "$d/agent"',
    f"/proc/self/fd/3 serve --alive {ALIVE_S}",
)


_LONGEST_WORD = 1024  # of csh


def remote_command() -> str:
    """The command line for the login shell there."""
    script = "; ".join(_LINES)
    assert not set("'\\!\n") & set(script)
    assert len(script) < _LONGEST_WORD
    return f"exec /bin/sh -c '{script}'"
