"""`guestmark doctor`: which platforms can be used here, found out by booting them."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from guestmark.page.say import say, tell_json

if TYPE_CHECKING:
    from rich.text import Text

    from guestmark.foreign.parts import State
    from guestmark.platforms.base import Unusable, Usable
    from guestmark.platforms.probe import Startable

_NESTED = "tcg/kvm"  # what exercises KVM wherever TCG runs


def command(
    json: Annotated[bool, typer.Option("--json", help="As JSON, for programs.")] = False,
    again: Annotated[
        bool,
        typer.Option("--again", help="Boot them again, even those already tried since the host was started."),
    ] = False,
    nested: Annotated[
        bool,
        typer.Option(
            "--nested", help="Take the time that a guest inside a guest needs to start (up to three minutes)."
        ),
    ] = False,
    arch: Annotated[
        bool,
        typer.Option(
            "--arch",
            help="List the architectures of guests and what is missing for each; boots nothing.",
        ),
    ] = False,
    details: Annotated[
        bool,
        typer.Option(
            "--details", help="Show whole reasons, what to do, how guests are confined, and versions."
        ),
    ] = False,
) -> None:
    """Find out which platforms can be used here, by booting them.

    Takes at most 15 s, or 90 s where other programs want more than the processors there are: nothing is called unusable
    that is only late then. tcg/kvm, a guest inside a guest, gets what the others leave of it; on a slow host --nested
    gives it enough. Results are kept until the host restarts or the hypervisor changes.
    """
    if arch:
        _architectures(json)
        return
    if sys.stderr.isatty() and not json:
        limit = "" if nested else " (15 s at most)"
        say(f"booting a guest on each platform{limit} …")
    report = examine(again, nested)
    if json:
        from json import dumps

        tell_json(dumps(report, indent=2, ensure_ascii=False))
        return
    (_show_all if details else _show)(report)


def _architectures(json: bool) -> None:
    document = examine_architectures()
    if not json:
        _show_architectures(document)
        return
    from json import dumps

    tell_json(dumps({"architectures": document}, indent=2, ensure_ascii=False))


def examine(again: bool, nested: bool = False) -> dict[str, Any]:
    """The document of `doctor --json`: platforms, host, ledger, tools, and versions that matter in a fleet."""
    from guestmark.core.beside import begin, told
    from guestmark.core.registry import platform_names, programs
    from guestmark.engine.environment import record_environment
    from guestmark.fleet import parsl_engine
    from guestmark.platforms import probe

    names = platform_names()
    tools = programs()
    host_now = begin(partial(record_environment, programs=tools))
    waiting = _Waiting(probe.measure_overload(), nested)
    with told(say):
        found = _try_all(names, again, waiting)
    host = host_now.result()
    versions = host.pop("programs", {})
    return {
        "platforms": [_finding(name, found[name], waiting) for name in (*names, _NESTED)],
        "host": {name: value for name, value in host.items() if name not in {"command_line", "libraries"}},
        "ledger": _ledger(),
        "tools": {tool.name: versions.get(tool.name) for tool in tools},
        "fleet": parsl_engine.versions(),
    }


class _Waiting:
    """How long guests may take to start, of which a busy machine gives them more."""

    def __init__(self, load: float | None, nested: bool) -> None:
        from guestmark.platforms import probe

        self._begin = time.monotonic()
        self._nested = nested
        self.load = load
        busy = load is not None
        self.deadline_s = probe.BUSY_DEADLINE_S if busy else probe.DOCTOR_DEADLINE_S
        self.in_all_s = probe.BUSY_IN_ALL_S if busy else probe.DOCTOR_IN_ALL_S
        if busy:
            say(f"{self.busy}, so a guest gets up to {self.deadline_s:.0f} s to start")

    @property
    def busy(self) -> str:
        """What is said of the machine."""
        return (
            f"the machine is busy (load {self.load or 0.0:.2g} on {len(os.sched_getaffinity(0))} processors)"
        )

    @property
    def left_s(self) -> float | None:
        """What is left for a guest inside a guest; None: as long as it takes."""
        return None if self._nested else self.in_all_s - (time.monotonic() - self._begin)


def _try_all(names: Sequence[str], again: bool, waiting: _Waiting) -> dict[str, Usable | Unusable | None]:
    """What can be used; None where that could not be found out."""
    from guestmark.core.platform_spec import parse_platform
    from guestmark.platforms import probe, registry
    from guestmark.platforms.base import Unusable, Usable

    hosts = [name for name in names if not parse_platform(name).is_guest]
    guests = cast("list[Startable]", [registry.get_platform(name) for name in names if name not in hosts])
    found: dict[str, Usable | Unusable | None] = {name: registry.get_platform(name).probe() for name in hosts}
    found |= probe.probe_all(guests, deadline_s=waiting.deadline_s, refresh=again)
    if waiting.load is None and any(map(probe.was_late, found.values())):
        waiting.load = probe.measure_overload()  # it has become busy
    if waiting.load is not None:
        found |= {name: None for name, finding in found.items() if probe.was_late(finding)}
    if isinstance(found[str(parse_platform(_NESTED).outer)], Usable):
        platform_in_tcg = cast("Startable", registry.get_platform(_NESTED))
        found[_NESTED] = probe.probe_nested(platform_in_tcg, waiting.left_s, refresh=again)
    elif waiting.load is not None:
        found[_NESTED] = None
    else:
        found[_NESTED] = Unusable("tcg, which it would run in, cannot be used", "")
    return found


def _ledger() -> str:
    """Where runs are kept unless `--ledger` says otherwise; nothing is opened, and no password shown."""
    from guestmark.ledger import default_path

    where = os.environ.get("GUESTMARK_LEDGER")
    if not where:
        return str(default_path())
    if "://" not in where:
        return os.path.abspath(os.path.expanduser(where))
    from guestmark.core.redaction import redact_url

    return redact_url(where)


def _finding(name: str, result: Usable | Unusable | None, waiting: _Waiting) -> dict[str, Any]:
    """`usable` is null when there was not enough time to find out."""
    from guestmark.platforms.base import Unusable

    if result is None:
        hint = "guestmark doctor --nested takes the time it needs"
        reason = f"not found out within {waiting.in_all_s + 0.5:.0f} s"
        if waiting.load is not None:
            hint = "guestmark doctor tries again when the machine is quiet"
            reason = f"not known: {waiting.busy}"
        return {"name": name, "usable": None, "reason": reason, "hint": hint, "ready_s": None}
    if isinstance(result, Unusable):
        return {"name": name, "usable": False, "reason": result.reason, "hint": result.hint, "ready_s": None}
    return {
        "name": name,
        "usable": True,
        "reason": "",
        "hint": "",
        "ready_s": round(result.ready_s, 4),
        "confined": result.confined,
    }


def _show(report: dict[str, Any]) -> None:
    """One screen: what the machine is, and last a line for each platform, those that work at the end."""
    from rich.text import Text

    from guestmark.cli.console import Console, shown

    console = Console()
    facts = dict(facts_of(report["host"]))
    guest = ["itself a guest"] if facts.pop("itself a guest", "no") == "yes" else []
    console.print(shown("; ".join([*(facts[name] for name in _BRIEF if name in facts), *guest]), "dim"))
    console.print(shown(f"ledger {report['ledger']}", "dim"))
    console.print()
    platforms = sorted(report["platforms"], key=lambda one: bool(one["usable"]))
    longest = max(len(one["name"]) for one in platforms)
    for one in platforms:
        said = f"ready in {one['ready_s']:.2g} s" if one["usable"] else one["reason"]
        line = Text.assemble((f"{one['name']:{longest}}  ", "bold"), _word(one["usable"]), "  ", shown(said))
        if console.is_terminal:  # --details has the rest
            line.truncate(console.width, overflow="ellipsis")
        console.print(line, soft_wrap=True)
    if not all(one["usable"] for one in platforms):
        console.print(shown("guestmark doctor --details says why and what to do, and lists versions", "dim"))


_BRIEF = ("processor", "memory", "kernel", "system")


def _word(usable: bool | None) -> Text:
    from rich.text import Text

    words = {True: ("usable", "green"), False: ("unusable", "red"), None: ("unknown", "yellow")}
    return Text(*words[usable])


def _show_all(report: dict[str, Any]) -> None:
    from rich.table import Table

    from guestmark.cli.console import Console, shown

    console = Console()
    table = Table(box=None, pad_edge=False, show_header=False)
    for one in report["platforms"]:
        if one["usable"]:
            said = shown(f"ready in {one['ready_s']:.2g} s")
            if one["confined"]:
                said.append_text(shown(f"; confined by {one['confined']}", "dim"))
            table.add_row(shown(one["name"], "bold"), _word(usable=True), said)
        else:
            said = shown(one["reason"])
            if one["hint"]:
                said.append("\n").append_text(shown(one["hint"], "dim"))
            table.add_row(shown(one["name"], "bold"), _word(one["usable"]), said)
    console.print(table)
    console.print()
    facts = Table(box=None, pad_edge=False, show_header=False)
    for label, value in facts_of(report["host"]):
        facts.add_row(shown(label, "dim"), shown(value))
    ledger = shown(report["ledger"])
    ledger.overflow = "fold"
    facts.add_row(shown("ledger", "dim"), ledger)
    for tool, version in report["tools"].items():
        facts.add_row(shown(tool, "dim"), shown(version) if version else shown("not installed", "yellow"))
    console.print(facts)


def facts_of(host: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What a person wants to know of a machine first: label and value."""
    processor, kernel = host.get("processor", {}), host.get("kernel", {})
    virtual = host.get("virtualization", {})
    facts = [
        ("processor", f"{processor.get('model', 'unknown')}, {processor.get('usable', '?')} usable"),
        ("memory", f"{(host.get('memory_bytes') or 0) / 2**30:.1f} GiB"),
        ("kernel", str(kernel.get("release", ""))),
        ("system", str(host.get("distribution", ""))),
        ("governor", str(host.get("frequency", {}).get("governor", ""))),
        ("itself a guest", "yes" if virtual.get("hypervisor") else "no"),
    ]
    return [(label, value) for label, value in facts if value]


def examine_architectures() -> list[dict[str, Any]]:
    """The document of `doctor --arch --json`; nothing is booted."""
    from guestmark.foreign.parts import survey_parts

    return [_document(state) for state in survey_parts()]


def _document(state: State) -> dict[str, Any]:
    row = state.architecture
    return {
        "architecture": row.name,
        "machine_name": row.machine_name,
        "platform": state.platform,
        "big_endian": row.big_endian,
        "page_size": row.page_size,
        "kernel": row.kernel.value,
        "programs": row.root,
        "made": state.made,
        "first_use_s": state.first_use_s,
        "missing": [{"program": each.name, "package": each.package} for each in state.missing],
        "fault": state.fault,
    }


def _show_architectures(document: list[dict[str, Any]]) -> None:
    """Prints a row for each architecture."""
    from rich.table import Table

    from guestmark.cli.console import Console, shown

    table = Table(box=None, pad_edge=False)
    for heading in ("platform", "uname -m", "bytes", "pages", "state"):
        table.add_column(heading)
    for row in document:
        table.add_row(
            shown(row["platform"], "bold"),
            shown(row["machine_name"]),
            shown("big-endian" if row["big_endian"] else "little-endian"),
            shown(f"{row['page_size'] >> 10} KiB"),
            shown(said(row)),
        )
    Console().print(table)


def said(row: dict[str, Any]) -> str:
    """What the row's last column says."""
    if row["fault"]:
        return str(row["fault"])
    if row["missing"]:
        packages = " ".join(dict.fromkeys(each["package"] for each in row["missing"]))
        return f"needs packages: apt-get install {packages}"
    programs = (
        "" if row["programs"] else "; no programs, as Debian has no packages: its agent's own workloads"
    )
    if not row["made"]:
        return "this host's own"
    if row["first_use_s"]:
        absent = ", ".join(name for name, there in row["made"].items() if not there)
        minutes = -(-row["first_use_s"] // 30) / 2
        return f"made on first use: {absent} (about {minutes:g} min){programs}"
    return f"ready{programs}"
