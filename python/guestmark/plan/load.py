"""Reads plans in TOML, checks them as a whole, and converts them to outlines."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from guestmark.core import registry
from guestmark.core.cell_levels import NESTED, PLATFORM, WORKLOAD
from guestmark.core.context import HostCommands
from guestmark.core.derived import Derived, check_derived_names, parse_derived
from guestmark.core.errors import UsageError, make_unknown_name_error
from guestmark.core.metric import Metric
from guestmark.core.model import Policy, Published, PublishedFigure, Question
from guestmark.core.platform_spec import PlatformSpec, parse_platform, parse_row_platform
from guestmark.core.toml import read_toml
from guestmark.core.tuning import Settings
from guestmark.core.units import check_unit, parse_positive_duration
from guestmark.core.workload_kind import WorkloadClass
from guestmark.plan import pattern, schema
from guestmark.plan.library import apply_overrides, resolve_extends
from guestmark.plan.matrix import Entry, Exclusion, NullCells, Row, Shape
from guestmark.plan.outline import Outline
from guestmark.plan.policy_options import find_plan_conflicts, list_policy_options
from guestmark.plan.problems import Problems, drop_malformed
from guestmark.plan.questions import make_question
from guestmark.plan.scale import scale_table, split_product
from guestmark.plan.schema import find_own_factors, find_placeholders
from guestmark.plan.tuning import make_race_settings


def load_outline(text: str, where: str, *, scale: float = 1.0, overrides: Sequence[str] = ()) -> Outline:
    """Return the outline of the plan `text`, which users know as `where` (a path).

    Values that the plan marks are multiplied by `scale`. `overrides` replace values of keys: `KEY.KEY=VALUE`. Raises
    `UsageError` with every mistake, its path and its line.
    """
    problems = Problems(where, text)
    data = apply_overrides(resolve_extends(read_toml(text, where), where), overrides)
    try:
        model = schema.Plan.model_validate(data)
    except ValidationError as error:
        problems.add_invalid(error, schema.Plan)
        rest = drop_malformed(data, error)
        # The parts that are well-formed may contain further mistakes, which are reported in the same error.
        if rest is not None:
            _OutlineReader(rest, problems, 1.0).read_outline()
        problems.raise_if_any()
        raise
    reader = _OutlineReader(model, problems, scale)
    outline = reader.read_outline()
    problems.raise_if_any()
    return outline


class _OutlineReader:
    """Turns pydantic's model of a plan into an outline; mistakes are collected, not raised."""

    def __init__(self, model: schema.Plan, problems: Problems, scale: float) -> None:
        self._model = model
        self._problems = problems
        self._scale = scale
        # The names in `scale` that some workload or factor has.
        self._scaled_names: set[str] = set()
        self._kinds: dict[str, WorkloadClass] = {}
        self._own = find_own_factors(model)
        self._derived: tuple[Derived, ...] = ()

    def read_outline(self) -> Outline:
        """Return the outline; it is meaningless if there are problems."""
        model = self._model
        platforms = self._read_platforms(("platforms",), model.platforms)
        common = self._read_levels(("factors",), model.factors)
        entries = []
        for key in model.workloads:
            entry = self._read_entry(key, common)
            if entry is not None:
                entries.append(entry)
        metrics = self._read_metrics(entries)
        budget_s = self._read_budget()
        shape = Shape(
            entries=tuple(entries),
            platforms=platforms,
            include=tuple(self._read_row(number, row) for number, row in enumerate(model.include)),
            exclude=tuple(self._read_exclusion(number, row) for number, row in enumerate(model.exclude)),
            baseline=self._read_baseline(model.baseline),
            within=self._read_compare_within(),
            null=NullCells(model.repetition.null),
            title=model.title,
        )
        self._check_levels(shape)
        for number, name in enumerate(model.scale):
            if name not in self._scaled_names:
                self._problems.add_mistake(
                    ("scale", number), f"{name!r} is neither a parameter nor a factor of the plan"
                )
        return Outline(
            model.name,
            shape,
            self._read_policy(budget_s),
            metrics,
            title=model.title,
            description=model.description.strip(),
            published=tuple(self._read_published(number, metrics) for number in range(len(model.published))),
            cost=self._read_seconds("cost", self._model.cost),
            start=self._read_seconds("start", self._model.start),
            scale=self._scale,
            questions=self._read_questions(metrics),
            race=self._read_race(metrics),
            budget_s=budget_s,
            gates=tuple(model.fail_if),
            derived=self._derived,
            around=HostCommands(**model.around.model_dump(exclude_none=True)),
        )

    def _read_questions(self, metrics: Sequence[Metric]) -> tuple[Question, ...]:
        found = []
        for number, model in enumerate(self._model.question):
            path = ("question", number)
            tables = {}
            for name in ("where", "compare", "against"):
                tables[name] = self._read_question_levels((*path, name), getattr(model, name))
            try:
                found.append(make_question(model, tables, metrics))
            except ValueError as error:
                self._problems.add_mistake(path, str(error))
        return tuple(found)

    def _read_question_levels(
        self, path: tuple[str | int, ...], table: Mapping[str, Sequence[str]]
    ) -> dict[str, tuple[str, ...]]:
        """Return the levels of a pattern, in which `nested` is allowed too."""
        # Patterns do not know `nested`, which is not a factor.
        known = {name: levels for name, levels in table.items() if name != NESTED}
        found = self._read_conditions(path, known)
        if NESTED in table:
            found[NESTED] = tuple(table[NESTED])
        return found

    def _read_baseline(self, given: Mapping[str, str] | str | None) -> pattern.Pattern | str | None:
        """Return a pattern, or the text that `--baseline` would take."""
        if given is None or isinstance(given, str):
            return given
        return self._read_single_levels(("baseline",), given)

    def _read_race(self, metrics: Sequence[Metric]) -> Settings | None:
        """Return the settings of `[tune]`; None without that table."""
        model = self._model.tune
        if model is None:
            return None
        try:
            return make_race_settings(model, metrics)
        except ValueError as error:
            self._problems.add_mistake(("tune",), str(error))
            return None

    def _check_levels(self, shape: Shape) -> None:
        """Report levels in `exclude` and `baseline` that no cell can have, except platforms, which `--on` may add."""
        there: dict[str, set[str]] = {}
        sources: tuple[Entry | Row, ...] = (*shape.entries, *shape.include)
        for source in sources:
            for name, some in source.levels.items():
                there.setdefault(name, set()).update(some)
        patterns: list[tuple[tuple[str | int, ...], pattern.Pattern]] = []
        for number, exclusion in enumerate(shape.exclude):
            patterns.append((("exclude", number), exclusion.pattern))
        if isinstance(shape.baseline, tuple):
            patterns.append((("baseline",), shape.baseline))
        for path, conditions in patterns:
            for condition in conditions:
                name = condition.name
                if name in {WORKLOAD, PLATFORM}:
                    continue
                for level in condition.levels:
                    if level not in there.get(name, ()):
                        self._problems.add_mistake((*path, name), f"no cell of the plan has {name}={level}")

    # --- workloads, platforms, factors

    def _read_entry(self, key: str, common: Mapping[str, tuple[str, ...]]) -> Entry | None:
        given = self._model.workloads[key]
        path = ("workloads", key)
        where = (*path, "kind") if given.kind is not None else path
        kind: WorkloadClass | None = None
        with self._problems.collect_at(*where):
            kind = registry.workload_kind(given.kind or key)
        levels = {**common, **self._read_levels((*path, "factors"), given.factors)}
        platforms = None
        if given.platforms is not None:
            platforms = self._read_platforms((*path, "platforms"), given.platforms)
        if kind is None:
            return None
        self._kinds[key] = kind
        # Smaller sizes would have other answers.
        scale = max(self._scale, given.least_scale or 0.0)
        params = self._read_params((*path, "params"), kind, given.params, scale)
        if params is None:
            return None
        spec = kind.make_spec(params, given.label or "", key)
        return Entry(
            replace(spec, label=spec.label or key),
            levels,
            platforms,
            kind,
            spans=given.matrix,
            own=find_placeholders(given.params) & self._own,
        )

    def _read_params(
        self, path: tuple[str, ...], kind: WorkloadClass, raw: Mapping[str, Any], scale: float
    ) -> Mapping[str, Any] | None:
        for name in self._model.scale:
            if all(_has_key(raw, part) for part in split_product(name)):
                self._scaled_names.add(name)
        try:
            # Both the written and the scaled parameters must be valid, so that a mistake shows at any
            # scale.
            params = kind.check_params(raw)
            # Also at scale 1, so that impossible values are reported at once.
            scaled = scale_table(raw, self._model.scale, scale)
            if scale != 1.0:
                params = kind.check_params(scaled)
        except ValidationError as error:
            self._problems.add_invalid(error, kind.params_model(), path)
        except UsageError as error:
            self._problems.add_mistake(path, error.message, error.hint)
        except ValueError as error:
            self._problems.add_mistake(path, str(error))
        else:
            return params
        return None

    def _read_platforms(
        self,
        path: tuple[str | int, ...],
        names: Sequence[str],
        parse: Callable[[str], PlatformSpec] = parse_platform,
    ) -> tuple[PlatformSpec, ...]:
        specs = []
        for number, name in enumerate(names):
            with self._problems.collect_at(*path, number):
                specs.append(parse(name))
        return tuple(specs)

    def _read_levels(
        self, path: tuple[str, ...], given: Mapping[str, Sequence[str]]
    ) -> dict[str, tuple[str, ...]]:
        found: dict[str, tuple[str, ...]] = {}
        marked = [name for name in self._model.scale if name in given]
        self._scaled_names |= set(marked)
        for name, texts in given.items():
            with self._problems.collect_at(*path, name):
                known = name if name in self._own else registry.find_factor(name).name
                levels = texts
                if self._scale != 1.0:
                    levels = scale_table({name: texts}, marked, self._scale)[name]
                canonical = [pattern.parse_condition_level(name, level, (), self._own)[1] for level in levels]
                # Different levels may become equal when they are scaled down, which is not a mistake in the plan.
                for level in canonical:
                    if canonical.count(level) > 1 and self._scale == 1.0:
                        raise UsageError(f"level {level!r} is given twice")
                found[known] = tuple(dict.fromkeys(canonical))
                registry.require_different_labels(known, found[known])
        return found

    # --- patterns

    def _read_pattern(
        self, path: tuple[str | int, ...], table: Mapping[str, Sequence[str]]
    ) -> pattern.Pattern:
        conditions: list[pattern.Condition] = []
        for name, levels in table.items():
            with self._problems.collect_at(*path, name):
                conditions += pattern.parse_table(
                    {name: self._scale_levels(name, levels)}, self._model.workloads, self._own
                )
        return tuple(conditions)

    def _read_single_levels(self, path: tuple[str | int, ...], table: Mapping[str, str]) -> pattern.Pattern:
        return self._read_pattern(path, {name: [level] for name, level in table.items()})

    def _scale_levels(self, name: str, levels: Sequence[str]) -> Sequence[str]:
        """Scale the levels of a scaled factor, which are written unscaled everywhere in the plan."""
        if self._scale == 1.0 or name not in self._model.scale:
            return levels
        scaled: Sequence[str] = scale_table({name: levels}, [name], self._scale)[name]
        return scaled

    def _read_row(self, number: int, table: Mapping[str, Sequence[str]]) -> Row:
        path = ("include", number)
        named: dict[str, Sequence[str]] = {}
        others: dict[str, Sequence[str]] = {}
        for name, levels in table.items():
            if name.strip().lower() == PLATFORM:
                named[name] = levels
            else:
                others[name] = levels
        conditions = self._read_conditions(path, others)
        workloads = conditions.pop(WORKLOAD, None)
        specs = None
        for name, platforms in named.items():
            specs = self._read_platforms((*path, name), platforms, parse_row_platform)
        return Row(conditions, workloads, specs)

    def _read_conditions(
        self, path: tuple[str | int, ...], table: Mapping[str, Sequence[str]]
    ) -> dict[str, tuple[str, ...]]:
        """Return the levels of a pattern by canonical name."""
        return {condition.name: condition.levels for condition in self._read_pattern(path, table)}

    def _read_exclusion(self, number: int, table: Mapping[str, Sequence[str]]) -> Exclusion:
        levels = {name: some for name, some in table.items() if name != "reason"}
        if not levels:
            self._problems.add_mistake(
                ("exclude", number), "it names no level, so it would leave out every cell"
            )
        return Exclusion(self._read_pattern(("exclude", number), levels), " ".join(table.get("reason", ())))

    def _read_compare_within(self) -> tuple[str, ...]:
        names = []
        for number, name in enumerate(self._model.compare_within):
            if name not in {WORKLOAD, PLATFORM}:
                with self._problems.collect_at("compare_within", number):
                    if name not in registry.factors():
                        raise make_unknown_name_error("name", name, [WORKLOAD, PLATFORM, *registry.factors()])
            names.append(name)
        return tuple(names)

    # --- metrics, repetition, cost, published

    def _read_metrics(self, entries: Sequence[Entry]) -> tuple[Metric, ...]:
        known: dict[str, Metric] = {}
        for entry in entries:
            for metric in self._kinds[entry.key].metrics_of(entry.workload):
                known.setdefault(metric.name, metric)
        every = []
        for name, given in self._model.derived.items():
            every.append(parse_derived(name, given.of, given.unit, given.better))
        if entries:
            names = set(known)
            for entry in entries:
                names.update(entry.levels)
            with self._problems.collect_at("derived"):
                check_derived_names(every, names)
        self._derived = tuple(every)
        known |= {derived.name: derived.metric for derived in every}
        first = []
        for number, name in enumerate(self._model.metrics):
            if name in known:
                first.append(known[name])
            elif known:
                with self._problems.collect_at("metrics", number):
                    raise make_unknown_name_error("metric", name, known)
        return tuple({metric.name: metric for metric in (*first, *known.values())}.values())

    def _read_policy(self, budget_s: float | None) -> Policy:
        given = self._model.repetition
        values: dict[str, Any] = {}
        for name, option in list_policy_options().items():
            # Neither is part of the policy: the matrix has cells to measure twice, and a budget chooses the policy.
            if not option.key or name in {"null", "budget_s"}:
                continue
            value = getattr(given, option.key)
            if value is None:
                continue
            with self._problems.collect_at("repetition", option.key):
                values[name] = option.parse(value) if option.parse else value
        asked = dict(values)
        if budget_s is not None:
            asked["budget_s"] = budget_s
        for key, conflict in find_plan_conflicts(asked):
            self._problems.add_mistake(("repetition", key), conflict)
        if "precision" in values:
            # A quick run stops at the precision that the plan names, and does not continue to half of that width.
            values["fine_s"] = 0.0
        return Policy(**values)

    def _read_budget(self) -> float | None:
        """Return the plan's own wall time in seconds; None if it has none."""
        option = list_policy_options()["budget_s"]
        text = getattr(self._model.repetition, option.key)
        with self._problems.collect_at("repetition", option.key):
            return None if text is None or option.parse is None else float(option.parse(text))
        return None

    def _read_seconds(self, table: str, given: Mapping[str, str]) -> dict[str, float]:
        """Return seconds by platform, or by kind of platform."""
        found = {}
        for name, text in given.items():
            with self._problems.collect_at(table, name):
                kind = name in registry.index_platform_kinds()
                found[name if kind else str(parse_platform(name))] = parse_positive_duration(text)
        return found

    def _read_published(self, number: int, metrics: Sequence[Metric]) -> Published:
        given = self._model.published[number]
        path = ("published", number)
        known = {metric.name: metric for metric in metrics}
        if given.metric in known:
            with self._problems.collect_at(*path, "unit"):
                check_unit(given.unit, known[given.metric].unit)
        elif known:
            with self._problems.collect_at(*path, "metric"):
                raise make_unknown_name_error("metric", given.metric, known)
        asked: dict[str, str] | str | None = given.baseline
        if asked is None:
            asked = self._model.baseline
        # A baseline that is text can only name the platform: publications have no cell ids.
        if isinstance(asked, str):
            asked = {"platform": asked}
        wanted = self._read_cell_levels((*path, "baseline"), asked or {})
        cells = []
        for at, figure in enumerate(given.figures):
            cells.append(self._read_cell_levels((*path, "figures", at, "cell"), figure.cell))
        figures = []
        for cell, figure in zip(cells, given.figures, strict=True):
            base = self._find_published_baseline(cell, cells, wanted)
            compared_with = None if base is None else given.figures[base].value
            figures.append(PublishedFigure(cell, figure.value, compared_with))
        return Published(
            given.source,
            given.metric,
            given.unit,
            given.percent_of,
            tuple(figures),
            given.name,
            given.conditions,
            wanted,
        )

    def _read_cell_levels(self, path: tuple[str | int, ...], table: Mapping[str, str]) -> dict[str, str]:
        return {condition.name: condition.levels[0] for condition in self._read_single_levels(path, table)}

    def _find_published_baseline(
        self, cell: Mapping[str, str], cells: Sequence[Mapping[str, str]], wanted: Mapping[str, str]
    ) -> int | None:
        """Return the index of the figure with which `cell`'s was compared: in its group, with the baseline's levels.

        The baseline may name more than the publication varied, so only the keys of a figure have to match.
        """
        for index, other in enumerate(cells):
            if self._is_published_baseline(other, cell, wanted):
                return index
        return None

    def _is_published_baseline(
        self, other: Mapping[str, str], cell: Mapping[str, str], wanted: Mapping[str, str]
    ) -> bool:
        within = self._model.compare_within
        if any(other.get(name) != cell.get(name) for name in within):
            return False
        names = [name for name in wanted if name not in within or name in other]
        return bool(names) and all(other.get(name, wanted[name]) == wanted[name] for name in names)


def _has_key(table: Mapping[str, Any], name: str) -> bool:
    head, _, rest = name.partition(".")
    if head not in table:
        return False
    return not rest or (isinstance(table[head], Mapping) and _has_key(table[head], rest))
