"""The pydantic models of a TOML plan: strict, and unknown keys are refused. Used only by `load`."""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    create_model,
    field_validator,
    model_validator,
)

from guestmark.core import registry
from guestmark.core.derived import parse_derived
from guestmark.core.option import Option
from guestmark.core.units import parse_positive_duration
from guestmark.plan.policy_options import list_policy_options

# Parameters of the workload `exec` that hold commands.
HOOKS = ("setup", "prepare", "conclude", "cleanup", "check")
_PLACEHOLDER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_-]*)\}", re.ASCII)


def _list_levels(value: object) -> object:
    """Return levels as a list of strings; a single level becomes a list, and numbers and booleans are levels too."""
    if not isinstance(value, list):
        value = [value]
    return [_spell_level(item) for item in value]


def _spell_level(value: object) -> object:
    # Levels of switches are `on` and `off`, which TOML writers tend to give as booleans.
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value) if isinstance(value, int | float) else value


Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]
Texts = Annotated[list[str], Field(min_length=1), BeforeValidator(_list_levels)]
Level = Annotated[str, BeforeValidator(_spell_level)]
Duration = Annotated[str, BeforeValidator(_spell_level)]


class Strict(BaseModel):
    """The base of all tables, with strict types; unknown keys are refused."""

    model_config = ConfigDict(strict=True, extra="forbid")


class Workload(Strict):
    """`[workloads.KEY]`: one workload; `kind` defaults to the key."""

    kind: str | None = None
    label: str | None = None
    platforms: Texts | None = None
    factors: dict[str, Texts] = {}
    params: dict[str, object] = {}
    matrix: bool = True
    least_scale: Annotated[float, Field(gt=0, le=1)] | None = None


def _find_key_type(name: str, option: Option) -> tuple[Any, Any]:
    """Return the type and the default of a key of `[repetition]`, for pydantic to check."""
    if name == "null":
        return Literal["baseline", "all", "none"], "baseline"
    if name == "share_machine":
        return bool, False
    if option.parse is parse_positive_duration:
        return Duration | None, None
    if option.parse is not None:
        return str | None, None
    return Annotated[int, Field(ge=option.minimum)] | None, None


def _list_repetition_keys() -> dict[str, tuple[Any, Any]]:
    keys = {}
    for name, option in list_policy_options().items():
        if option.key:
            keys[option.key] = _find_key_type(name, option)
    return keys


if TYPE_CHECKING:

    class Repetition(Strict):
        """`[repetition]`: how often, with the keys that `policy_options` declares."""

        null: str = "baseline"
else:
    Repetition = create_model(
        "Repetition",
        __base__=Strict,
        __doc__="`[repetition]`: how often, with the keys that `policy_options` declares.",
        **_list_repetition_keys(),
    )


class Figure(Strict):
    """One published figure and the cells it is about."""

    cell: dict[str, Level]
    value: Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Published(Strict):
    """`[[published]]`: figures of one publication under one set of conditions."""

    source: Annotated[str, Field(min_length=1)]
    name: str = ""
    conditions: str = ""
    metric: str
    unit: str
    percent_of: Literal["time", "throughput"]
    baseline: dict[str, Level] | None = None
    figures: Annotated[list[Figure], Field(min_length=1)]


class Tune(Strict):
    """`[tune]`: the plan is a race for the best of its cells, as `guestmark.core.tuning.Settings`."""

    objective: str = ""
    durability: Texts | None = None
    on_disk: bool = False
    limits: list[str] = []
    margin: str | None = None
    screen: bool = True
    max_blocks: Annotated[int, Field(ge=2)] | None = None
    finalists: Annotated[int, Field(ge=1)] | None = None
    confirm: Annotated[int, Field(ge=0)] | None = None


class Question(Strict):
    """`[[question]]`: a question that the run's last sentences answer, as `guestmark.core.model.Question`."""

    ask: Annotated[str, Field(min_length=1)]
    wants: Literal["best", "compare", "parts", "durability"]
    metric: str = ""
    where: dict[str, Texts] = {}
    per: list[str] = []
    durability: Texts | None = None
    disk: Texts | None = None
    compare: dict[str, Texts] = {}
    against: dict[str, Texts] = {}
    conclusion: str = ""
    parts: list[str] = []


def _wrap_expression(value: object) -> object:
    """Return the table that a bare expression of a derived metric stands for."""
    return {"of": value} if isinstance(value, str) else value


class DerivedMetric(Strict):
    """`[derived] NAME = "EXPRESSION"`, or a table that also has a unit."""

    of: str
    unit: str = ""
    better: Literal["lower", "higher"] = "lower"

    @field_validator("of")
    @classmethod
    def _check_expression(cls, text: str) -> str:
        parse_derived("metric", text)
        return text


class AroundRun(Strict):
    """`[around.run]`: commands on this host, before the first trial and after the last one."""

    setup: str | None = None
    cleanup: str | None = None


class AroundTrial(Strict):
    """`[around.trial]`: commands on this host, before each machine is started and after it is gone."""

    prepare: str | None = None
    conclude: str | None = None


class Around(Strict):
    """`[around]`: commands on this host around what is measured."""

    run: AroundRun = AroundRun()
    trial: AroundTrial = AroundTrial()


class Plan(Strict):
    """A whole plan."""

    schema_: Annotated[Literal["guestmark-plan/1", "guestmark-plan/2"], Field(alias="schema")] = (
        "guestmark-plan/1"
    )
    name: Name
    title: Annotated[str, Field(min_length=1)]
    description: str = ""
    platforms: Texts
    workloads: Annotated[dict[Name, Workload], Field(min_length=1)]
    factors: dict[str, Texts] = {}
    exclude: list[dict[str, Texts]] = []
    include: list[dict[str, Texts]] = []
    baseline: dict[str, Level] | str | None = None
    compare_within: list[str] = ["workload"]
    metrics: list[str] = []
    scale: list[str] = []
    repetition: Repetition = Repetition()
    cost: dict[str, Duration] = {}
    start: dict[str, Duration] = {}
    published: list[Published] = []
    question: list[Question] = []
    tune: Tune | None = None
    fail_if: list[str] = []
    derived: dict[Name, Annotated[DerivedMetric, BeforeValidator(_wrap_expression)]] = {}
    around: Around = Around()

    @model_validator(mode="after")
    def _check_edition(self) -> Self:
        """Refuse keys that only the second edition has."""
        if self.schema_ == "guestmark-plan/1":
            for name in ("derived", "around"):
                if name in self.model_fields_set:
                    raise ValueError(f'{name} requires the second edition: schema = "guestmark-plan/2"')
            if isinstance(self.baseline, str):
                raise ValueError(
                    'a baseline that is text requires the second edition: schema = "guestmark-plan/2"'
                )
        return self


def find_own_factors(model: Plan) -> frozenset[str]:
    """Return the user's own factors: unknown to machines and workloads, and used in some command as `{name}`.

    The first edition of plans has none.
    """
    if model.schema_ == "guestmark-plan/1":
        return frozenset()
    named = set(model.factors)
    used: set[str] = set()
    for workload in model.workloads.values():
        named |= workload.factors.keys()
        used |= find_placeholders(workload.params)
    return frozenset((named & used) - registry.factors().keys())


def find_placeholders(params: Mapping[str, Any]) -> frozenset[str]:
    """Return the names that occur as `{name}` in a command, or in commands around it."""
    command = params.get("command")
    texts = list(command) if isinstance(command, list) else []
    texts += [params.get(hook) for hook in HOOKS]
    found: set[str] = set()
    for text in texts:
        if isinstance(text, str):
            found.update(_PLACEHOLDER.findall(text))
    return frozenset(found)
