"""The reference of the statistics names what the product calls, and the product calls all there is.

Whatever only tests and benchmarks call fails here, and so does a method that the reference describes without saying
which function it is.
"""

import ast
import functools
import re
from collections.abc import Mapping

import pytest

from guestmark.cli.parser import derive_module_name
from tests.framework import CHECKOUT
from tests.framework.call_graph import BODY, graph, reachable, sources

REFERENCE = (CHECKOUT / "docs/reference/statistics.md").read_text()
# Methods by their usual names. What the reference calls by one of these stands in its last table, with its function.
METHODS = re.compile(
    r"\b(?:[A-Z][a-zé]+[–-][A-Z][a-zé]+(?= estimate|'s|’s| test| interval)"  # Hodges–Lehmann's
    r"|(?:[A-Z][a-zé]+)(?:'s|’s)(?= (?:\w+ )?(?:test|interval|estimate|slope|t\b|distribution|method|correction))"
    r"|Holm|Bonferroni|BCa|[Bb]ootstrap|PELT|[Cc]hangepoint|Welch|TOST|Mann–Whitney|Kruskal|Kolmogorov|ANOVA|Bayes"
    r"|signed-rank|sign-flip|[Ss]pearman|[Tt]heil|F test|Clopper and Pearson|Benjamini and Hochberg|Kalibera and Jones"
    r"|equivalence test|effective number|rule of three|[Gg]rubbs|[Ww]insori[sz]ed|median polish)"
)
NOT_USED = re.compile(r"[^.]*\bnot used\b[^.]*\.")
GLOSSARY = "## Which function it is"
SOURCES = "## Sources"


@functools.cache
def product() -> Mapping[str, str]:
    return sources(CHECKOUT / "python")


def called(modules: Mapping[str, str]) -> set[str]:
    """All that the commands can reach: the verbs, and the descriptions of platforms and workloads."""
    edges = graph(modules)
    table = modules["guestmark.cli.verbs"].partition("GROUPS = {")[2].partition("\n}\n")[0]
    verbs = re.findall(r'^        "(\w+)": "', table, re.M)
    roots = [f"guestmark.cli.do.{derive_module_name(verb)}.run" for verb in verbs]
    roots.append(f"guestmark.__main__.{BODY}")
    roots += [
        f"{module}.{BODY}"
        for module, text in modules.items()
        if re.match(r"guestmark\.platforms\.\w+$", module) and re.search(r"^PLATFORMS\b", text, re.M)
    ]
    # The registry finds workloads by their class, so nothing else calls them.
    roots += [
        f"{module}.{name}"
        for module, text in modules.items()
        if re.match(r"guestmark\.workloads\.\w+$", module)
        for name in re.findall(r"^class (\w+)\(\w*Workload\[", text, re.M)
    ]
    assert len(roots) > 20
    return reachable(edges, roots)


def dead(modules: Mapping[str, str]) -> list[str]:
    """Public functions and classes of the statistics that no command can reach."""
    found = called(modules)
    return [
        f"{module}.{node.name}"
        for module, text in modules.items()
        if module.startswith("guestmark.stats.")
        for node in ast.parse(text).body
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
        and not node.name.startswith("_")
        and f"{module}.{node.name}" not in found
    ]


def glossary(text: str) -> list[tuple[str, list[str], list[str]]]:
    """The rows of the last table: the method, the numbers of its sources, its functions."""
    table = text.partition(GLOSSARY)[2].partition(SOURCES)[0]
    rows = re.findall(r"^\| (.+?) \| ?(.*?) ?\| (.+?) \|$", table, re.M)[2:]
    return [
        (method, re.findall(r"\d+", source), re.findall(r"`([\w.]+)`", where))
        for method, source, where in rows
    ]


def complaints(text: str, modules: Mapping[str, str]) -> list[str]:
    """What the reference says that the product does not do."""
    rows = glossary(text)
    reached = called(modules)
    found = [
        f"{function}: no command calls it"
        for _, _, functions in rows
        for function in functions
        if f"guestmark.stats.{function}" not in reached
    ]
    prose, _, listed = text.partition(GLOSSARY)
    methods = " ".join(method for method, _, _ in rows).casefold()
    named = {match[0] for match in METHODS.finditer(NOT_USED.sub("", " ".join(prose.split())))}
    found += [
        f"{name}: in no row of the table of functions"
        for name in sorted(named)
        if re.sub(r"['’]s$", "", name).casefold() not in methods
    ]
    numbers = set(re.findall(r"^(\d+)\. ", listed.partition(SOURCES)[2], re.M))
    used = {number for _, source, _ in rows for number in source}
    return found + [f"source {number}: of no method in the table" for number in sorted(numbers ^ used)]


def test_there_is_no_statistic_that_only_tests_call() -> None:
    assert dead(product()) == []


def test_the_reference_names_what_the_product_calls() -> None:
    rows = glossary(REFERENCE)
    assert len(rows) > 12
    assert all(functions for _, _, functions in rows)
    assert complaints(REFERENCE, product()) == []


def changed(module: str, old: str, new: str) -> dict[str, str]:
    text = product()[module]
    assert old in text
    return {**product(), module: text.replace(old, new)}


@pytest.mark.parametrize(
    ("module", "old", "lost"),
    [
        ("guestmark.stats.compare", "paired.signed_rank_p(", "paired.signed_rank_p"),
        ("guestmark.stats.stopping", "predict_half_width(", "repetition.predict_half_width"),
        ("guestmark.stats.estimands", "count_needed_warmups(", "repetition.count_needed_warmups"),
        ("guestmark.stats.conditions", "detect_order_effects(", "validity.detect_order_effects"),
        ("guestmark.engine.trial_schedule", "choose_iterations(", "repetition.choose_iterations"),
        ("guestmark.stats.total", "sign_flip_p(", "paired.sign_flip_p"),
    ],
)
def test_a_method_that_is_no_longer_called_is_found(module: str, old: str, lost: str) -> None:
    modules = changed(module, old, "print(")
    assert f"guestmark.stats.{lost}" in dead(modules)
    assert f"{lost}: no command calls it" in complaints(REFERENCE, modules)


def test_a_function_that_nothing_calls_is_found() -> None:
    more = changed(
        "guestmark.stats.noise", "def flag_blocks", "def steady_from(x):\n    return x\n\n\ndef flag_blocks"
    )
    more["guestmark.stats"] += "\nfrom guestmark.stats.noise import steady_from\n__all__ += ['steady_from']\n"
    assert set(dead(more)) - set(dead(product())) == {"guestmark.stats.noise.steady_from"}


@pytest.mark.parametrize(
    "sentence",
    [
        "A gate uses Dunnett's correction.",
        "PELT finds the steady part.",
        "Outliers are found by Grubbs' test.",
        "Intervals come from the BCa bootstrap.",
        "Two runs are compared with Welch's test.",
        "Medians are compared by Mood's test.",
        "The Mann–Whitney test compares cells.",
    ],
)
def test_a_method_that_no_function_has_is_found(sentence: str) -> None:
    at = REFERENCE.index("## The verdict")
    assert complaints(f"{REFERENCE[:at]}{sentence}\n\n{REFERENCE[at:]}", product())


def test_a_source_that_no_method_has_is_found() -> None:
    assert complaints(f'{REFERENCE.rstrip()}\n99. Someone, "Something", 1999.\n', product()) == [
        "source 99: of no method in the table"
    ]
