"""The verbs and the help that lists them. `--help` imports only this, because neither needs a parser."""

from __future__ import annotations

import textwrap

from guestmark import __version__

# What each verb does, by purpose. Its modules are `guestmark.cli.commands.VERB` and `guestmark.cli.do.VERB`.
GROUPS = {
    "Measure": {
        "exec": "Measure any command on the host and in guests.",
        "ab": "Compare two programs, kernels, QEMUs or settings side by side.",
        "tour": "See what virtualization costs here, in one to three minutes.",
        "run": "Run a plan: workloads, platforms and factors from a TOML file.",
        "boot": "Measure how guests start and end, phase by phase.",
        "powercut": "Cut the power during a guest's writes, and see what is lost.",
        "tune": "Race configurations within your limits.",
        "fleet": "Run a plan on the machines of a lab.",
        "block": "Measure one block of a run, for instance as a job of a cluster.",
        "resume": "Continue a run where it stopped, or extend it.",
        "campaign": "Compare a host before and after a restart, A B B A.",
        "bisect": "Find the commit that made a command slower.",
    },
    "Results": {
        "show": "Show the result of a run.",
        "runs": "List the runs in the ledger.",
        "compare": "Compare runs and the environments they were measured in.",
        "history": "Plot ratios over runs, and find where they changed.",
        "gate": "Check a run against limits; the exit status is for build servers.",
        "export": "Write a run as JSON, CSV, Parquet, Markdown or HTML, or runs as a bundle to share.",
    },
    "Machines and plans": {
        "doctor": "Boot every platform to see which work here.",
        "plans": "List the built-in plans, or print one to edit.",
        "prepare": "Build guests for other architectures in advance.",
        "machine": "Define machines of your own by commands in a file.",
        "shell": "Open a shell in the very guest that would be measured.",
        "clean": "Remove leftovers of crashes.",
        "quiet": "Make the host's speed steadier.",
    },
    "Ledgers": {
        "edit": "Give a run a name, a note, labels and tags.",
        "rm": "Remove runs, or bring them back.",
        "vacuum": "Delete removed runs for good.",
        "import": "Import runs from bundles and other ledgers.",
        "ledger": "Copy runs between ledgers, or set up a lab's server.",
    },
    "Captures": {
        "capture": "Find out who is slow in a packet capture: client, server or network.",
    },
}
VERBS = {verb: does for group in GROUPS.values() for verb, does in group.items()}
# The verbs on the first screen of the help; the others are reached through groups, and by their own names as well.
FIRST = (
    "exec", "ab", "run", "tune", "boot", "show", "compare", "gate", "doctor", "capture", "tour", "resume",
)  # fmt: skip
# The members of each group, with the verb that each of them stands for.
GROUPED = {
    "runs": {name: name for name in ("block", "history", "export", "import", "edit", "rm", "vacuum")}
    | {"list": "runs"},
    "changes": {"bisect": "bisect", "campaign": "campaign"},
    "disk": {"powercut": "powercut"},
    "host": {"quiet": "quiet"},
    "guest": {"shell": "shell", "prepare": "prepare", "clean": "clean"},
}
# Verbs with actions of their own are listed among the groups.
_VERBS_WITH_ACTIONS = {
    "ledger": "copy runs between ledgers, sign them, or set up a server",
    "fleet": "run a plan on the machines of a lab",
    "plans": "list the built-in plans, or print one to edit",
    "machine": "define machines of your own, and check that they can be measured",
}
SYNONYMS = {
    "bench": "exec -- COMMAND", "benchmark": "exec -- COMMAND", "time": "exec -- COMMAND",
    "measure": "exec -- COMMAND", "list": "runs", "ls": "runs", "log": "runs", "diff": "compare RUN RUN",
    "plot": "show --html FILE", "chart": "show --html FILE", "graph": "show --html FILE",
    "report": "show --details", "html": "show --html FILE", "delete": "runs rm RUN", "remove": "runs rm RUN",
    "continue": "resume", "check": "doctor", "stats": "show --details", "help": "--help", "version": "--version",
    "ssh": "exec --on ssh:DEST -- COMMAND", "pcap": "capture FILE", "init": "doctor", "ci": "gate RUN",
    "open": "show --open", "view": "show", "cleanup": "clean", "uninstall": "clean --all", "purge": "clean --all",
    "strace": "run syscalls", "syscalls": "run syscalls", "start": "boot", "startup": "boot",
    "share": "runs export RUN --bundle FILE", "bundle": "runs export RUN --bundle FILE",
    "save": "runs export RUN -o FILE",
    "regression": "bisect", "kernel": "ab --kernel A B -- COMMAND", "setup": "doctor", "install": "doctor",
}  # fmt: skip


def replace_group(words: list[str]) -> list[str]:
    """Replaces a group and its member by the verb itself: `runs rm ID` is `rm ID`."""
    if len(words) > 1 and (verb := GROUPED.get(words[0], {}).get(words[1])):
        return [verb, *words[2:]]
    return words


def describe_version() -> str:
    """Returns what `guestmark --version` prints."""
    return f"guestmark {__version__}"


SUMMARY = "Measure what virtualization costs your workload: hyperfine for hypervisors."
_OPTIONS = {
    "-V, --version": "Show the version and exit.",
    "--install-completion": "Install completion for the current shell.",
    "--show-completion": "Show completion for the current shell, to copy or adapt it.",
    "-h, --help": "Show this message and exit.",
}
_WIDTH = 80


def render_first_screen() -> str:
    """Returns what `guestmark --help` prints."""
    groups = {group: ", ".join(sorted(members)) for group, members in GROUPED.items()} | _VERBS_WITH_ACTIONS
    parts = [
        "Usage: guestmark COMMAND [OPTIONS] [ARGUMENTS]...\n",
        f"  {SUMMARY}\n",
        _render_list("Commands", {verb: VERBS[verb] for verb in FIRST}),
        _render_list("Groups (guestmark GROUP COMMAND)", groups),
        _render_list("Options", _OPTIONS),
        "guestmark COMMAND --help explains a command; `guestmark tour` is a first run.",
    ]
    return "\n".join(parts)


def _render_list(title: str, rows: dict[str, str]) -> str:
    """Renders `title` with a definition list below it."""
    widest = max(map(len, rows))
    text = [f"{title}:"]
    for name, does in rows.items():
        first, *rest = textwrap.wrap(does, _WIDTH - widest - 4)
        text.append(f"  {name:{widest}}  {first}")
        for line in rest:
            text.append(" " * (widest + 4) + line)
    return "\n".join([*text, ""])
