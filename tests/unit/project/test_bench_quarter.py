"""How the bench of the published experiments scores what they answered."""

from typing import Any

from bench.quarter.__main__ import find_contradictions
from bench.sharing.__main__ import judge, read_ratios


def ask(*answers: dict[str, Any]) -> dict[str, Any]:
    return {"questions": [{"ask": "Which?", "answers": list(answers)}]}


def pair(verdict: str, *ends: float | None, answered: bool = True) -> dict[str, Any]:
    about = {"cell": "a", "against": "b", "metric": "wall_s"}
    return {**about, "verdict": verdict, "ci": list(ends), "answered": answered}


def best(cell: str, *alike: str) -> dict[str, Any]:
    return {"of": ["tcg"], "metric": "wall_s", "best": cell, "not_worse": [cell, *alike], "answered": True}


def test_only_answers_that_both_give_can_contradict() -> None:
    faster, slower = pair("faster", 0.8, 0.9), pair("slower", 1.1, 1.2)
    assert find_contradictions(ask(faster), ask(faster)) == (1, [])
    assert find_contradictions(ask(faster), ask(pair("slower", 1.1, 1.2, answered=False))) == (0, [])
    assert find_contradictions(ask(faster), ask(slower)) == (1, ["Which? a b wall_s: faster, then slower"])
    assert find_contradictions(ask(best("x")), ask(best("y", "x"))) == (1, [])
    assert find_contradictions(ask(best("x")), ask(best("y"))) == (1, ["Which? tcg wall_s: x, then y"])


def test_a_best_cell_is_contradicted_by_the_ratio_to_another() -> None:
    """A short run may say of two that neither is worse, with a bound that the long run exceeds."""

    def leading(cell: str, other: str, *ends: float | None, alike: bool) -> dict[str, Any]:
        against = {other: {"ci": list(ends)}}
        return {**best(cell, *([other] if alike else [])), "against_best": against}

    short = leading("x", "y", 0.97, 1.09, alike=True)
    assert find_contradictions(ask(short), ask(leading("y", "x", 1.01, 1.05, alike=True)))[1] == []
    assert find_contradictions(ask(short), ask(leading("y", "x", 0.99, None, alike=True)))[1] == []
    assert find_contradictions(ask(short), ask(leading("y", "x", 2.9, 3.1, alike=False)))[1] == [
        "Which? tcg wall_s: x, then y"
    ]


def test_another_largest_part_is_a_contradiction_where_it_is_clear() -> None:
    def parts(client: float, server: float) -> dict[str, Any]:
        return {"cell": "a", "parts": {"client_share": client, "server_share": server}}

    assert find_contradictions(ask(parts(0.3, 0.6)), ask(parts(0.2, 0.7))) == (1, [])
    assert find_contradictions(ask(parts(0.3, 0.6)), ask(parts(0.51, 0.49))) == (1, [])
    (wrong,) = find_contradictions(ask(parts(0.3, 0.6)), ask(parts(0.6, 0.2)))[1]
    assert wrong.endswith("server_share, then client_share")


def test_an_answer_is_not_contradicted_by_a_closer_one() -> None:
    bound = pair("no difference", 0.98, 1.02)

    assert find_contradictions(ask(bound), ask(pair("slower", 1.005, 1.01))) == (1, [])
    assert find_contradictions(ask(bound), ask(pair("slower", 1.03, 1.04)))[1]
    assert find_contradictions(ask(pair("inconclusive", 0.9, None)), ask(pair("slower", 30.0, None))) == (
        1,
        [],
    )
    assert find_contradictions(ask(best("x", "y")), ask(best("y"))) == (1, [])


def test_a_published_ratio_is_an_answer_with_todays_interval() -> None:
    def document(verdict: str, *ends: float | None) -> dict[str, Any]:
        compared = {"wall_s": {"ci": list(ends)}}
        part = {"name": "", "metric": "wall_s", "cell": "a", "ratio": 2.0, "verdict": verdict}
        return {"cells": [{"id": "a", "vs_baseline": compared}], "published": [part]}

    agrees = document("agrees", 1.8, 2.2)
    assert find_contradictions(agrees, document("open", None, None)) == (0, [])
    assert find_contradictions(agrees, document("same way", 1.5, 1.9)) == (1, [])
    assert len(find_contradictions(agrees, document("opposite", 0.5, 0.6))[1]) == 1


def test_sharing_is_found_where_every_block_shows_it() -> None:
    def cell(name: str, values: list[float], null_of: str | None = None) -> dict[str, Any]:
        trials = [{"block": number, "measurements": {"wall_s": value}} for number, value in enumerate(values)]
        return {"id": name, "null_of": null_of, "shared": {"status": "ok"}, "trials": trials}

    own = [1.0, 1.01, 0.99, 1.0, 1.02, 0.98]
    document = {
        "plan": {"metrics": [{"name": "wall_s"}]},
        "cells": [cell("a", [1.2 * value for value in own]), cell("b", own[::-1])],
        "null_cells": [cell("a#2", own, "a"), cell("b#2", own, "b")],
    }

    found = {name: judge(name, logs, 2) for name, logs in read_ratios(document).items()}

    assert found["a"].is_found
    assert round(found["a"].ratio, 6) == 1.2
    assert not found["b"].is_found
