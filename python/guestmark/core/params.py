"""The parameters of a workload, declared once: what a plan may give, what a ledger keeps, and what the code reads.

A declaration is a `Params` whose fields are annotated with `param(…)`:

    class WalkParams(Params):
        directory: Annotated[str, param("the tree that is walked", "path")] = "/usr/share"
        time_s: Annotated[float, param("how long", "duration", key="time", accepts=str, parse=parse_duration)] = 2.0

A plan spells `directory` and `time`; the ledger keeps `directory` and `time_s`, and the code reads the same names as
attributes. Checking a plan needs pydantic, which is imported only for that.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self, TypeVar, get_args, get_type_hints

import msgspec

if TYPE_CHECKING:
    from pydantic import BaseModel


@dataclass(frozen=True, slots=True)
class Param:
    """One parameter as a plan gives it.

    `description` and `kind` (of a text or number: size, duration, …) are for the reference. `key` is its name in a
    plan, if not the field's. `accepts` is the type of a plan's value, if not the field's; `coerce` runs
    before this type is checked and `parse`, which may raise `ValueError`, yields the field's value. `default` is
    spelled as in a plan; without it the field's default holds, and a parameter that has neither is required. `limits`
    are those of `pydantic.Field`.
    """

    description: str
    kind: str
    key: str
    accepts: Any
    coerce: Callable[[Any], Any] | None
    parse: Callable[[Any], Any] | None
    default: Any
    limits: Mapping[str, Any]


def param(
    description: str,
    kind: str = "",
    *,
    key: str = "",
    accepts: Any = None,
    coerce: Callable[[Any], Any] | None = None,
    parse: Callable[[Any], Any] | None = None,
    default: Any = msgspec.NODEFAULT,
    **limits: Any,
) -> Param:
    """Declare a parameter; see `Param`."""
    return Param(description, kind, key, accepts, coerce, parse, default, limits)


class Params(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters of one workload. Fields without a `Param` are kept, but no plan can give them."""

    # What plans may give besides, by key: `make` turns it into fields.
    INPUTS: ClassVar[Mapping[str, Param]] = {}

    @classmethod
    def make(cls, *_: Any, **given: Any) -> Self:
        """Build and check the parameters from a plan's values, keyed by field names and by the keys of `INPUTS`.

        Overridden if fields depend on each other. Raises `ValueError` or `UsageError` for contradictory values.
        """
        return cls(**given)

    def to_stored(self) -> dict[str, Any]:
        """Return the parameters as ledgers and result documents keep them: without values that are None."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return {name: value for name, value in plain.items() if value is not None}


P = TypeVar("P", bound=Params)


@dataclass(frozen=True, slots=True)
class Given:
    """One parameter that plans may give: its key there, the type of what they give, and its default."""

    declared: Param
    key: str
    accepts: Any
    default: Any  # `...` where it is required
    # Whether the default is spelled as in a plan, and is parsed like what a plan gives.
    spelled: bool


@functools.cache
def list_given_params(params: type[Params]) -> Mapping[str, Given]:
    """Return the parameters that plans may give, by field or by key of `INPUTS`."""
    fields = {each.name: each for each in msgspec.structs.fields(params)}
    found: dict[str, Given] = {}
    for name, hint in get_type_hints(params, include_extras=True).items():
        for declared in get_args(hint)[1:]:
            if name in fields and isinstance(declared, Param):
                found[name] = _read_given(declared, name, get_args(hint)[0], _make_default(fields[name]))
    for key, declared in params.INPUTS.items():
        found[key] = _read_given(declared, key, str, msgspec.NODEFAULT)
    return found


def _make_default(field: msgspec.structs.FieldInfo) -> Any:
    return field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()


def _read_given(declared: Param, name: str, typed: Any, default: Any) -> Given:
    spelled = declared.default is not msgspec.NODEFAULT
    if spelled:
        default = declared.default
    elif default is msgspec.NODEFAULT:
        default = ...
    accepts = typed if declared.accepts is None else declared.accepts
    return Given(declared, declared.key or name, accepts, default, spelled)


@functools.cache
def params_model(params: type[Params]) -> type[BaseModel]:
    """Make the strict pydantic model of what plans may give; it reports every mistake with its path."""
    from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, create_model

    fields: dict[str, Any] = {}
    for given in list_given_params(params).values():
        declared = given.declared
        accepted: Any = Annotated[given.accepts, Field(**declared.limits)]
        if declared.coerce is not None:
            accepted = Annotated[accepted, BeforeValidator(declared.coerce)]
        if declared.parse is not None:
            accepted = Annotated[accepted, AfterValidator(declared.parse)]
        extra: dict[str, Any] | None = {"kind": declared.kind} if declared.kind else None
        fields[given.key] = (
            accepted,
            Field(
                given.default,
                description=declared.description,
                json_schema_extra=extra,
                validate_default=given.spelled,
            ),
        )
    model: type[BaseModel] = create_model(
        params.__name__, __config__=ConfigDict(strict=True, extra="forbid"), **fields
    )
    return model


def parse_params(params: type[P], plain: Mapping[str, Any]) -> P:
    """Check what a plan gives. Raises `pydantic.ValidationError` (all mistakes), `ValueError` or `UsageError`."""
    checked = params_model(params).model_validate(dict(plain))
    return params.make(
        **{name: getattr(checked, given.key) for name, given in list_given_params(params).items()}
    )
