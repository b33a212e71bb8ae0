"""Makes the table of claims from the stored comparisons."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from bench.truth.contest import SCENARIOS
from scipy.special import ndtri

TOOLS = ("guestmark", "hyperfine", "with Welch", "pyperf", "benchstat")
Record = Mapping[str, Any]


def wilson_interval(hits: int, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """Return Wilson's interval of a share (1927)."""
    z = float(ndtri((1 + confidence) / 2))
    centre, spread = (
        (hits + z * z / 2) / (n + z * z),
        z * (hits * (n - hits) / n + z * z / 4) ** 0.5 / (n + z * z),
    )
    return max(0.0, centre - spread), min(1.0, centre + spread)


def _found(record: Record, tool: str) -> Mapping[str, Any] | None:
    found: Mapping[str, Any] | None = (
        record["guestmark"] if tool == "guestmark" else record["peers"].get(tool)
    )
    return found


def count_claims(records: Sequence[Record], tool: str, scenario: str) -> tuple[int, int, int]:
    """Count true claims, false claims and comparisons. Of equal commands every claim is false, else "faster" is."""
    found = [result for record in records if (result := _found(record, tool)) is not None]
    differs = SCENARIOS[scenario].differs
    right = sum(result["claim"] == "slower" for result in found) if differs else 0
    wrong = sum(result["claim"] == "faster" or (result["claim"] != "" and not differs) for result in found)
    return right, wrong, len(found)


def _share(hits: int, n: int) -> str:
    if not n:
        return "–"
    low, high = wilson_interval(hits, n)
    return f"{hits}/{n} [{low:.2f}, {high:.2f}]"


def _width(records: Sequence[Record], tool: str) -> str:
    widths = [result["half_width"] for record in records
              if (result := _found(record, tool)) is not None and result["half_width"] is not None]  # fmt: skip
    return f"; ±{100 * statistics.median(widths):.1f} %" if widths else ""


def render_tables(records: Sequence[Record]) -> str:
    """Render tables of false claims and of power, with the median half-width of each tool's uncertainty."""
    compared = [record for record in records if "guestmark" in record]
    groups: dict[tuple[str, str], list[Record]] = {}
    for platform in ("host", "uml", "tcg"):
        for name in SCENARIOS:
            found = [r for r in compared if r["scenario"] == name and r["platform"] == platform]
            if found:
                groups[name, platform] = found
    lines = []
    for title, differs in (
        ("False claims where there is no difference", False),
        ("Known slowdowns found", True),
    ):
        lines += [
            f"### {title}",
            "",
            "| commands | on | seconds each | " + " | ".join(TOOLS) + " |",
            "| --- " * (3 + len(TOOLS)) + "|",
        ]
        for (name, platform), found in groups.items():
            if SCENARIOS[name].differs is not differs:
                continue
            seconds = "{:.0f}, {:.0f}".format(
                *(statistics.median(r[side]["seconds"] for r in found) for side in ("guestmark", "peers"))
            )
            fields = []
            for tool in TOOLS:
                right, wrong, n = count_claims(found, tool, name)
                text = _share(right if differs else wrong, n) + _width(found, tool)
                fields.append(text + (f"; {wrong} faster" if differs and wrong else ""))
            lines.append(f"| {name} | {platform} | {seconds} | " + " | ".join(fields) + " |")
        lines.append("")
    hands = [record["by_hand"] for record in records if "by_hand" in record]
    if hands:
        lines += [
            "### Beside figures taken by hand",
            "",
            "| figure | guestmark | by hand | ratio |",
            "| --- | --- | --- | --- |",
        ]
        lines += [
            f"| {row['figure']} | {row['ours']:.4g} | {row['theirs']:.4g} | {row['ours'] / row['theirs']:.3f} |"
            for row in hands[-1]
        ]
        lines.append("")
    return "\n".join(lines)
