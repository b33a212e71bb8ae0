"""Finds out which platforms can be used here, by booting them."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, cast

from rich.table import Table
from rich.text import Text

from guestmark.cli.commands.doctor import Options
from guestmark.cli.console import Console, make_inert_text
from guestmark.core.errors import ExitStatus
from guestmark.core.parallel import report_interrupt, start_call
from guestmark.core.platform_spec import parse_platform
from guestmark.core.redaction import redact_url
from guestmark.core.registry import list_platform_names, programs
from guestmark.engine.environment import record_environment
from guestmark.fleet import parsl_engine
from guestmark.foreign.parts import State, survey_parts
from guestmark.ledger import find_default_ledger
from guestmark.page.say import say, tell_json
from guestmark.page.text import keep_clauses
from guestmark.platforms import probe, registry
from guestmark.platforms.base import Unusable, Usable
from guestmark.platforms.probe import Startable

# A guest inside a guest exercises KVM wherever TCG runs.
_NESTED = "tcg/kvm"
_BRIEF_FACTS = ("processor", "memory", "kernel", "system")
# Facts of the host that are long and describe only this process.
_NOT_SHOWN = {"command_line", "libraries"}
_STATE_WORDS = {
    True: ("usable", "green"),
    False: ("unusable", "red"),
    None: ("unknown", "yellow"),
}


def run(given: Options) -> int:
    """Examines platforms or architectures, and shows the findings as text or JSON."""
    if given.arch:
        architectures = examine_architectures()
        if given.json:
            _print_json({"architectures": architectures})
        else:
            _show_architectures(architectures)
        return ExitStatus.ALL_MEASURED
    if sys.stderr.isatty() and not given.json:
        limit = "" if given.nested else " (15 s at most)"
        say(f"booting a guest on each platform{limit} …")
    report = examine_host(given.again, given.nested)
    if given.json:
        _print_json(report)
    elif given.details:
        _show_details(report)
    else:
        _show_summary(report)
    return ExitStatus.ALL_MEASURED


def _print_json(document: Mapping[str, Any]) -> None:
    tell_json(json.dumps(document, indent=2, ensure_ascii=False))


def examine_host(again: bool, nested: bool = False) -> dict[str, Any]:
    """Builds the document of `doctor --json`: platforms, host, ledger, tools, and versions that matter in a fleet."""
    names = list_platform_names()
    tools = programs()
    # Asking every program for its version takes seconds, during which the guests boot.
    host_recording = start_call(partial(record_environment, programs=tools))
    deadline = _Deadline(probe.measure_overload(), nested)
    with report_interrupt(say):
        results = _probe_platforms(names, again, deadline)
    host = host_recording.result()
    versions = host.pop("programs", {})
    return {
        "platforms": [_describe_result(name, results[name], deadline) for name in (*names, _NESTED)],
        "host": {name: value for name, value in host.items() if name not in _NOT_SHOWN},
        "ledger": _locate_ledger(),
        "tools": {tool.name: versions.get(tool.name) for tool in tools},
        "fleet": parsl_engine.read_versions(),
    }


class _Deadline:
    """How long guests may take to start. On a busy machine they get more time, because a slow platform is usable."""

    def __init__(self, load: float | None, nested: bool) -> None:
        self._began = time.monotonic()
        self._nested = nested
        self.load = load
        is_busy = load is not None
        self.each_s, self.total_s = probe.DOCTOR_DEADLINE_S, probe.DOCTOR_IN_ALL_S
        if is_busy:
            self.each_s, self.total_s = probe.BUSY_DEADLINE_S, probe.BUSY_IN_ALL_S
            say(f"{self.describe_load()}, so a guest gets up to {self.each_s:.0f} s to start")

    def describe_load(self) -> str:
        """Describes the load because of which guests get more time."""
        processors = len(os.sched_getaffinity(0))
        return f"the machine is busy (load {self.load or 0.0:.2g} on {processors} processors)"

    def compute_remaining_s(self) -> float | None:
        """Returns the time left for a guest inside a guest; None if it may take as long as it needs."""
        return None if self._nested else self.total_s - (time.monotonic() - self._began)


def _probe_platforms(
    names: Sequence[str], again: bool, deadline: _Deadline
) -> dict[str, Usable | Unusable | None]:
    """Boots each platform; None if there was not enough time to find out whether it is usable."""
    hosts = [name for name in names if not parse_platform(name).is_guest]
    guests = cast("list[Startable]", [registry.get_platform(name) for name in names if name not in hosts])
    results: dict[str, Usable | Unusable | None] = {}
    for name in hosts:
        results[name] = registry.get_platform(name).probe()
    # Guests boot side by side, each with the whole deadline.
    results |= probe.probe_all(guests, deadline_s=deadline.each_s, refresh=again)
    late = [name for name, result in results.items() if probe.was_late(result)]
    if late and deadline.load is None:
        # The machine may have become busy since the beginning.
        deadline.load = probe.measure_overload()
    if deadline.load is not None:
        results |= dict.fromkeys(late)
    if isinstance(results[str(parse_platform(_NESTED).outer)], Usable):
        nested = cast("Startable", registry.get_platform(_NESTED))
        results[_NESTED] = probe.probe_nested(nested, deadline.compute_remaining_s(), refresh=again)
    elif deadline.load is not None:
        results[_NESTED] = None
    else:
        results[_NESTED] = Unusable("tcg, which it would run in, cannot be used", "")
    return results


def _locate_ledger() -> str:
    """Finds where runs are kept unless `--ledger` names another place; opens nothing, and hides a password."""
    where = os.environ.get("GUESTMARK_LEDGER")
    if not where:
        return str(find_default_ledger())
    if "://" in where:
        return redact_url(where)
    return os.path.abspath(os.path.expanduser(where))


def _describe_result(name: str, result: Usable | Unusable | None, deadline: _Deadline) -> dict[str, Any]:
    """Builds the platform's entry in the document; `usable` is null when there was not enough time to find out."""
    if isinstance(result, Usable):
        return {
            "name": name,
            "usable": True,
            "reason": "",
            "hint": "",
            "ready_s": round(result.ready_s, 4),
            "confined": result.confined,
        }
    usable: bool | None = False
    if result is not None:
        reason, hint = result.reason, result.hint
    elif deadline.load is not None:
        usable = None
        reason = deadline.describe_load()
        hint = "run guestmark doctor again when the machine is less busy"
    else:
        usable = None
        reason = f"still unknown after {deadline.total_s + 0.5:.0f} s"
        hint = "guestmark doctor --nested waits as long as it needs"
    return {"name": name, "usable": usable, "reason": reason, "hint": hint, "ready_s": None}


def _show_summary(report: dict[str, Any]) -> None:
    """Prints one screen: the machine, then a line for each platform, with those that work at the end."""
    console = Console()
    facts = dict(list_facts(report["host"]))
    brief = [facts[name] for name in _BRIEF_FACTS if name in facts]
    if facts.get("itself a guest") == "yes":
        brief.append("itself a guest")
    console.print(make_inert_text("; ".join(brief), "dim"))
    console.print(make_inert_text(f"ledger {report['ledger']}", "dim"))
    console.print()
    platforms = sorted(report["platforms"], key=lambda platform: bool(platform["usable"]))
    longest = max(len(platform["name"]) for platform in platforms)
    widest = max(len(_STATE_WORDS[platform["usable"]][0]) for platform in platforms)
    for platform in platforms:
        name, usable = platform["name"], platform["usable"]
        state = f"ready in {platform['ready_s']:.2g} s" if usable else platform["reason"]
        word, style = _STATE_WORDS[usable]
        if console.is_terminal:
            # --details has the rest of the reason.
            state = keep_clauses(state, console.width - longest - widest - len("    "))
        line = Text.assemble(
            (f"{name:{longest}}  ", "bold"), (f"{word:{widest}}", style), "  ", make_inert_text(state)
        )
        console.print(line, soft_wrap=True)
    if not all(platform["usable"] for platform in platforms):
        advice = "guestmark doctor --details shows why and what to do, and lists versions"
        console.print(make_inert_text(advice, "dim"))


def _render_platform_state(usable: bool | None) -> Text:
    return Text(*_STATE_WORDS[usable])


def _show_details(report: dict[str, Any]) -> None:
    """Prints whole reasons and hints, then the facts of the machine and versions."""
    console = Console()
    table = Table(box=None, pad_edge=False, show_header=False)
    for platform in report["platforms"]:
        if platform["usable"]:
            state = make_inert_text(f"ready in {platform['ready_s']:.2g} s")
            if platform["confined"]:
                state.append_text(make_inert_text(f"; confined by {platform['confined']}", "dim"))
        else:
            state = make_inert_text(platform["reason"])
            if platform["hint"]:
                state.append("\n").append_text(make_inert_text(platform["hint"], "dim"))
        table.add_row(
            make_inert_text(platform["name"], "bold"), _render_platform_state(platform["usable"]), state
        )
    console.print(table)
    console.print()
    facts = Table(box=None, pad_edge=False, show_header=False)
    for label, value in list_facts(report["host"]):
        facts.add_row(make_inert_text(label, "dim"), make_inert_text(value))
    ledger = make_inert_text(report["ledger"])
    # The user may want to copy the path, so it is not cut.
    ledger.overflow = "fold"
    facts.add_row(make_inert_text("ledger", "dim"), ledger)
    for tool, version in report["tools"].items():
        installed = make_inert_text(version) if version else make_inert_text("not installed", "yellow")
        facts.add_row(make_inert_text(tool, "dim"), installed)
    console.print(facts)


def list_facts(host: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Lists the label and value of each fact that people ask for first, except unknown ones."""
    processor, kernel = host.get("processor", {}), host.get("kernel", {})
    virtual = host.get("virtualization", {})
    model, usable, memory = processor.get("model"), processor.get("usable"), host.get("memory_bytes")
    of_processor = [str(model)] if model else []
    if usable:
        of_processor.append(f"{usable} usable")
    facts = [
        ("processor", ", ".join(of_processor)),
        ("memory", f"{memory / 2**30:.1f} GiB" if memory else ""),
        ("kernel", str(kernel.get("release", ""))),
        ("system", str(host.get("distribution", ""))),
        ("governor", str(host.get("frequency", {}).get("governor", ""))),
        ("itself a guest", "yes" if virtual.get("hypervisor") else "no"),
    ]
    return [(label, value) for label, value in facts if value]


def examine_architectures() -> list[dict[str, Any]]:
    """Builds the document of `doctor --arch --json`; boots nothing."""
    return [_describe_architecture(state) for state in survey_parts()]


def _describe_architecture(state: State) -> dict[str, Any]:
    architecture = state.architecture
    return {
        "architecture": architecture.name,
        "machine_name": architecture.machine_name,
        "platform": state.platform,
        "big_endian": architecture.big_endian,
        "page_size": architecture.page_size,
        "kernel": architecture.kernel.value,
        "programs": architecture.root,
        "made": state.made,
        "first_use_s": state.first_use_s,
        "missing": [{"program": program.name, "package": program.package} for program in state.missing],
        "fault": state.fault,
    }


def _show_architectures(architectures: list[dict[str, Any]]) -> None:
    """Prints a row for each architecture."""
    table = Table(box=None, pad_edge=False)
    for heading in ("platform", "uname -m", "bytes", "pages", "state"):
        table.add_column(heading)
    for row in architectures:
        table.add_row(
            make_inert_text(row["platform"], "bold"),
            make_inert_text(row["machine_name"]),
            make_inert_text("big-endian" if row["big_endian"] else "little-endian"),
            make_inert_text(f"{row['page_size'] >> 10} KiB"),
            make_inert_text(describe_state(row)),
        )
    Console().print(table)


def describe_state(row: Mapping[str, Any]) -> str:
    """Describes what an architecture's guests need before they can boot here: nothing, some time, or packages."""
    if row["fault"]:
        return str(row["fault"])
    if row["missing"]:
        packages = " ".join(dict.fromkeys(program["package"] for program in row["missing"]))
        return f"needs packages: apt-get install {packages}"
    if not row["made"]:
        return "this host's own"
    limits = ""
    if not row["programs"]:
        limits = "; only the agent's own workloads, as Debian has no packages for it"
    if not row["first_use_s"]:
        return f"ready{limits}"
    absent = ", ".join(name for name, exists in row["made"].items() if not exists)
    # Rounded up to half minutes.
    minutes = -(-row["first_use_s"] // 30) / 2
    return f"built on first use: {absent} (about {minutes:g} min){limits}"
