"""Metrics computed from others, such as `mb_per_s = "bytes / wall_s / 1e6"`, for each iteration of a trial."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from guestmark.core.errors import UsageError, WorkloadError
from guestmark.core.factor import ARGUMENT
from guestmark.core.metric import Better, Measurement, Metric

_LONGEST = 500  # characters of an expression
_HINT = "e.g. 'bytes / wall_s / 1e6': metrics, numeric factors, + - * / **, and min, max, sqrt, log, abs"
_OPERATORS: Mapping[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: math.pow,
}
_FUNCTIONS: Mapping[str, Callable[..., float]] = {
    "min": min,
    "max": max,
    "sqrt": math.sqrt,
    "log": math.log,
    "abs": abs,
}


@dataclass(frozen=True, slots=True)
class Derived:
    """A computed metric: its name, unit and direction, and the expression `of` that gives its value."""

    name: str
    unit: str
    better: Better
    of: str

    @property
    def metric(self) -> Metric:
        """The metric as tables and statistics know it."""
        return Metric(self.name, self.unit, self.better)

    @property
    def operands(self) -> frozenset[str]:
        """The names that the expression refers to."""
        return _collect_names(_parse_expression(self.of))

    def compute_value(self, known: Mapping[str, float]) -> float:
        """Return the value; `known` must have every name. Raises `WorkloadError` if the value is not finite."""
        try:
            found = float(_evaluate(_parse_expression(self.of), known))
        except (ArithmeticError, ValueError) as error:
            raise WorkloadError(f"metric {self.name}: {self.of}: {error}") from error
        if not math.isfinite(found):
            raise WorkloadError(f"metric {self.name}: {self.of} is {found}")
        return found


def parse_derived(name: str, expression: str, unit: str = "", better: str = "lower") -> Derived:
    """Return the metric. Raises `ValueError` with one line if the expression is not valid arithmetic."""
    _parse_expression(expression)
    return Derived(name, unit, Better(better), expression)


def check_derived_names(every: Sequence[Derived], known: Iterable[str]) -> None:
    """Raises `UsageError` for a metric that is already measured, or that refers to a name unknown until then."""
    names = set(known)
    for derived in every:
        if derived.name in names:
            raise UsageError(f"metric {derived.name} is already measured", hint="choose another name")
        if missing := sorted(derived.operands - names):
            raise UsageError(
                f"metric {derived.name}: nothing measures {', '.join(missing)}",
                hint=f"known: {', '.join(sorted(names))}",
            )
        # Later expressions may use this one.
        names.add(derived.name)


def add_derived(
    every: Sequence[Derived], measured: Sequence[Measurement], levels: Mapping[str, str]
) -> list[Measurement]:
    """Return an iteration's measurements with the derived metrics; a metric that lacks an operand is left out."""
    found = list(measured)
    known: dict[str, float] = {}
    for name, level in levels.items():
        number = _parse_number(level)
        if number is not None:
            known[name.removeprefix(ARGUMENT)] = number
    for measurement in measured:
        known[measurement.metric.name] = measurement.value
    for derived in every:
        if derived.operands <= known.keys():
            known[derived.name] = value = derived.compute_value(known)
            found.append(Measurement(derived.metric, value, (value,)))
    return found


def _parse_number(text: str) -> float | None:
    try:
        found = float(text)
    except ValueError:
        return None
    return found if math.isfinite(found) else None


def _parse_expression(expression: str) -> ast.expr:
    if len(expression) > _LONGEST:
        raise ValueError(f"the expression is longer than {_LONGEST} characters")
    try:
        body = ast.parse(expression.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"{expression!r} is not an allowed expression ({_HINT})") from error
    _check_node(body)
    return body


def _check_node(node: ast.expr) -> None:
    match node:
        case ast.Constant(value=bool()):
            pass
        case ast.Constant(value=int() | float()) | ast.Name():
            return
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            _check_node(left)
            _check_node(right)
            return
        case ast.UnaryOp(op=ast.USub() | ast.UAdd(), operand=operand):
            _check_node(operand)
            return
        case ast.Call(func=ast.Name(id=name), args=[_, *_] as arguments, keywords=[]) if name in _FUNCTIONS:
            for argument in arguments:
                _check_node(argument)
            return
    raise ValueError(f"{ast.unparse(node)!r} is not an allowed expression ({_HINT})")


def _collect_names(node: ast.expr) -> frozenset[str]:
    names: set[str] = set()
    called: set[int] = set()
    # A call comes before the name of its function.
    for part in ast.walk(node):
        if isinstance(part, ast.Call):
            called.add(id(part.func))
        elif isinstance(part, ast.Name) and id(part) not in called:
            names.add(part.id)
    return frozenset(names)


def _evaluate(node: ast.expr, known: Mapping[str, float]) -> float:
    match node:
        case ast.Constant(value=int() | float() as number):
            return float(number)
        case ast.Name(id=name):
            return known[name]
        case ast.BinOp(left=left, op=op, right=right):
            return _OPERATORS[type(op)](_evaluate(left, known), _evaluate(right, known))
        case ast.UnaryOp(op=op, operand=operand):
            value = _evaluate(operand, known)
            return -value if isinstance(op, ast.USub) else value
        case ast.Call(func=ast.Name(id=name), args=arguments):
            return _FUNCTIONS[name](*(_evaluate(argument, known) for argument in arguments))
    raise ValueError(f"{ast.unparse(node)!r} is not an allowed expression")
