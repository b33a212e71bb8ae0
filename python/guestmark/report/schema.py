"""The types of the documents that guestmark publishes, the result document and the bundle, and their JSON Schemas.

`tools/schema.py` generates `docs/reference/*.schema.json` from them. Tests decode every document as these types, so an
unknown key or a value of another type fails.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from guestmark.core.cause import Cause
from guestmark.core.metric import Better
from guestmark.core.model import CellStatus, LeftOut, Plan, QuestionKind, RunState, TrialStatus
from guestmark.ledger.model import RunOrigin
from guestmark.stats.compare import Verdict
from guestmark.stats.gates import Outcome
from guestmark.stats.published import Repetition
from guestmark.stats.validity import Severity

Interval = tuple[float | None, float | None]  # nulls without an interval
Values = dict[str, list[float | None]]


class _Part(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A part of a document, all of whose keys are known."""


class RunPart(_Part):
    """The run itself."""

    id: Annotated[str, Meta(description="the name of the run in every command")]
    name: Annotated[str, Meta(description="the plan's name; `exec` for a command line")]
    created_at: Annotated[str, Meta(description="UTC, ISO 8601")]
    seed: Annotated[int, Meta(description="the seed of the random order")]
    state: Annotated[RunState, Meta(description="how it ended")]
    blocks: Annotated[int, Meta(description="blocks with at least one trial")]
    trials: int
    failed: Annotated[int, Meta(description="trials that failed")]
    imported: Annotated[RunOrigin | UnsetType, Meta(description="origin of an imported run")] = UNSET


class TrialPart(_Part):
    """One trial: one cell in one block, on a machine started for it."""

    block: Annotated[int, Meta(description="number of the block, from 0")]
    order: Annotated[int, Meta(description="position in the random order of the block")]
    status: TrialStatus
    measurements: Annotated[
        dict[str, float | None], Meta(description="by metric: its iterations reduced to one value")
    ]
    reason: Annotated[str, Meta(description="why it failed, in a line")]
    cause: Annotated[Cause | None, Meta(description="machine-readable cause; null if unknown")]
    warmups: Annotated[Values, Meta(description="runs before the measured ones, by metric")]
    run_s: Annotated[
        list[float], Meta(description="wall time of each iteration on the host's clock, hooks included")
    ]
    iterations: Annotated[Values, Meta(description="every measured run, by metric, in order")]
    started_at: Annotated[str, Meta(description="UTC, ISO 8601")]
    duration_s: Annotated[float, Meta(description="the whole trial, with the start and end of its machine")]
    phases: Annotated[dict[str, Any], Meta(description="seconds from the start of the machine to each phase")]
    attestation: Annotated[
        dict[str, Any] | None,
        Meta(
            description="what the machine really had beyond the cell's `shared`; null if nothing was attested"
        ),
    ]
    noise: Annotated[
        dict[str, Any], Meta(description="the host during the trial: pressure, steal, frequency, swap")
    ]
    warnings: list[str]
    command_line: Annotated[
        list[str | None] | None,
        Meta(description="the arguments at the nulls of the shared command line; null if there is none"),
    ]
    console: Annotated[str | UnsetType, Meta(description="the end of a failed trial's console")] = UNSET
    console_truncated: bool | UnsetType = UNSET


class SharedPart(_Part):
    """What the trials of a cell have in common; `guestmark.read_document` puts it back into each trial."""

    attestation: dict[str, Any]
    command_line: list[str | None]


class SummaryPart(_Part):
    """A cell's values of a metric: one for each trial."""

    unit: str
    better: Better
    n: Annotated[int, Meta(description="trials")]
    mean: float | None
    median: float | None
    ci: Annotated[Interval, Meta(description="95 % interval of the mean")]
    typical: Annotated[float | None, Meta(description="the typical run, as in the report")]
    typical_ci: Annotated[Interval, Meta(description="95 % interval of the typical run")]


class ComparisonPart(_Part):
    """A cell's ratio to its baseline, by block; of a copy that shows the noise, its ratio to the cell it copies."""

    ratio: Annotated[float | None, Meta(description="cell over baseline; null without a common block")]
    ci: Annotated[Interval, Meta(description="95 % interval of the ratio, widened by the noise floor")]
    median_ratio: float | None
    median_ci: Interval
    p: float | None
    verdict: Verdict
    alike: Annotated[
        bool, Meta(description="the typical run equals the baseline's; rarer slow runs may differ")
    ]
    reason: Annotated[str, Meta(description="the reason for the verdict")]
    n: Annotated[int, Meta(description="pairs of trials")]
    q: Annotated[float | None, Meta(description="p adjusted over the report's family")]
    equivalence_p: float | None
    equivalence_q: float | None
    noise_floor: Annotated[float | None, Meta(description="|ratio - 1| that copies of the baseline show")]
    stretch: Annotated[
        float | None,
        Meta(
            description="logarithm by which each end of the interval was moved out because of other programs"
        ),
    ]


class TotalPart(ComparisonPart):
    """The ratio of the totals: what a batch of many runs costs, relative to the baseline."""

    seen_ci: Annotated[Interval, Meta(description="the same as ci")]
    pessimistic_ci: Annotated[
        Interval | UnsetType,
        Meta(description="the interval if an event too rare to be seen was missed"),
    ] = UNSET


class SlowPart(_Part):
    """The slow runs of cell and baseline: shares of runs over twice the typical one, and 95th percentiles."""

    cell: dict[str, Any]
    baseline: dict[str, Any]
    difference: Annotated[float | None, Meta(description="difference of the shares")]
    ci: Interval
    p95_ratio: float | None
    p95_ci: Interval
    p: float | None
    q: float | None
    verdict: Verdict
    reason: str
    n: int


class UnseenPart(_Part):
    """The largest share of starts, and of runs, that an event may have affected unseen, at 95 % confidence."""

    starts: float | None
    iterations: float | None


class AnswersPart(_Part):
    """The four answers about a cell's primary metric."""

    typical: ComparisonPart
    total: TotalPart | UnsetType = UNSET
    slow: SlowPart | UnsetType = UNSET
    unseen: UnseenPart | UnsetType = UNSET
    first: Annotated[ComparisonPart | UnsetType, Meta(description="the first run on a fresh machine")] = UNSET


class PastRun(_Part):
    """A ratio that an earlier run found."""

    id: str
    ratio: float
    ci: tuple[float, float]
    n: int


class PastPart(_Part):
    """Earlier runs of this host that had the same cell and baseline."""

    runs: list[PastRun]
    lowest: float
    highest: float
    outside: Annotated[bool, Meta(description="whether a change since those runs is shown")]


class CellPart(_Part):
    """A workload on a platform at one level of every factor."""

    id: str
    workload: str
    platform: str
    factors: dict[str, str]
    labels: dict[str, str]
    baseline: bool
    null_of: Annotated[str | None, Meta(description="the cell that it copies to show the noise")]
    status: CellStatus
    reason: str
    shared: SharedPart
    trials: list[TrialPart]
    summary: Annotated[dict[str, SummaryPart], Meta(description="by metric")]
    vs_baseline: Annotated[dict[str, ComparisonPart], Meta(description="by metric")]
    answers: Annotated[dict[str, AnswersPart], Meta(description="of the primary metric, by its name")]


class OwnCell(CellPart):
    """A cell of the plan."""

    history: PastPart | None


class NullCell(CellPart):
    """A copy of a cell."""

    differs: Annotated[
        list[str],
        Meta(description="metrics in which it differs from the cell it copies, although both are equal"),
    ]


class FloorPart(_Part):
    """The noise floor of a workload."""

    workload: str
    floor: Annotated[
        dict[str, float | None],
        Meta(description="by metric: |ratio - 1| up to which a difference means nothing"),
    ]


class WidenedPart(_Part):
    """Metrics of a workload whose intervals are wider because a copy differs from the cell it copies."""

    workload: str
    metrics: list[str]


class ProspectPart(_Part):
    """The precision of a ratio: the half-width of the interval of its logarithm."""

    cell: str
    half_width: float
    then: Annotated[float, Meta(description="half-width after that many more blocks")]


class MoreTimePart(_Part):
    """How many more blocks would make ratios more precise, and by how much."""

    blocks: int
    seconds: float
    cells: list[ProspectPart]
    blocks_in_all: int


class QuestionPart(_Part):
    """A question of the plan and its answers."""

    ask: str
    wants: QuestionKind
    answered: bool
    answers: Annotated[
        list[dict[str, Any]],
        Meta(description="the figures of each answer, which depend on the kind of question"),
    ]
    sentences: Annotated[list[str], Meta(description="the answers as the report words them")]


class PublishedPart(_Part):
    """A published ratio of a cell to its baseline; today's is in `vs_baseline` of the cell."""

    source: str
    name: Annotated[str, Meta(description="of the table in the publication; empty if it has one")]
    metric: str
    cell: str
    ratio: float
    verdict: Annotated[
        Repetition, Meta(description="whether today's ratio agrees; `open` if it shows nothing")
    ]


class GatePart(_Part):
    """The outcome of a `--fail-if` limit."""

    gate: Annotated[str, Meta(description="as typed")]
    cell: str
    metric: str
    limit: Annotated[float | None, Meta(description="the ratio; null for a limit on power cuts")]
    above: bool | None
    loss: Annotated[str | None, Meta(description="the refused outcome of a power cut")]
    outcome: Outcome
    reason: str
    ratio: float | None
    ci: list[float | None] | None
    n: int
    p_broken: float | None
    p_kept: float | None
    more_blocks: Annotated[int | None, Meta(description="blocks that would probably decide it")]
    finds: Annotated[
        float | None, Meta(description="the smallest ratio that 3 in 4 such runs would report as broken")
    ]


class FindingPart(_Part):
    """A finding that limits what the figures mean."""

    name: str
    severity: Severity
    reason: str
    advice: str
    effect: float | None
    p: float | None
    workload: Annotated[str | None, Meta(description="null if the finding is about the whole run")]
    inconclusive: Annotated[list[str], Meta(description="cells whose verdicts this finding withdraws")]


class DistancePart(_Part):
    """How far a configuration is behind the best one."""

    times_worse: float
    interval: tuple[float, float]
    # None until it is compared with fresh blocks.
    verdict: str | None


class DroppedPart(_Part):
    """A configuration that left a race."""

    cell: str
    blocks: int
    why: str
    how: str


class RacePart(_Part):
    """A race of configurations: the best, and which were dropped, when and why."""

    objective: str
    margin: float
    stage: str
    best: list[str]
    not_worse_for_sure: list[str]
    leader: str | None
    distances: dict[str, DistancePart]
    dropped: list[DroppedPart]
    fresh_blocks: int
    confirmed: bool
    alone: bool


class ProgramPart(_Part):
    """A program that was measured, with the digests of its file on each side."""

    path: str
    same: bool
    trials: int
    sha256: dict[str, list[str]]


class MachinePart(_Part):
    """How the machines of a platform were started."""

    platform: str
    command_line: list[str]
    cpu_flags_missing: Annotated[
        list[str] | None, Meta(description="features of the host that the guest lacks; null if unknown")
    ]


class SectionPart(_Part):
    """A section of the report."""

    part: str
    title: str
    subtitle: str
    nodes: Annotated[list[dict[str, Any]], Meta(description="each with its `kind` and the keys of that kind")]


class ReportPart(_Part):
    """The report, which every other format draws."""

    title: str
    sections: list[SectionPart]


class ResultDocument(_Part):
    """The document that `--json` writes: everything about a run."""

    schema: Annotated[str, Meta(pattern="^guestmark-result/2$")]
    run: RunPart
    plan: Annotated[
        Plan,
        Meta(
            description="what was measured and how often; environment variables by name only, as `env_names`"
        ),
    ]
    environment: Annotated[dict[str, Any], Meta(description="the host when the run began")]
    environments_resumed: Annotated[list[dict[str, Any]], Meta(description="the host at each resumption")]
    cells: list[OwnCell]
    null_cells: Annotated[list[NullCell], Meta(description="copies that show the noise")]
    noise_floor: list[FloorPart]
    downgraded: Annotated[list[Any], Meta(description="always empty; versions before 0.3 wrote it")]
    widened: list[WidenedPart]
    flagged_blocks: Annotated[
        list[int], Meta(description="blocks that the host disturbed; all are kept in every estimate")
    ]
    disturbances: Annotated[dict[str, int], Meta(description="number of disturbed blocks by rule")]
    more_time: MoreTimePart | None
    questions: list[QuestionPart]
    published: Annotated[
        list[PublishedPart], Meta(description="what became of published ratios, see `plan.published`")
    ]
    gates: list[GatePart]
    validity: list[FindingPart]
    since_earlier_runs: Annotated[
        dict[str, Any], Meta(description="what changed on the host since earlier runs")
    ]
    unusable: Annotated[list[LeftOut], Meta(description="what was requested and could not be measured")]
    tune: RacePart | None
    programs: list[ProgramPart]
    machines: list[MachinePart]
    report: ReportPart


class PackedTrial(_Part):
    """A trial in a bundle."""

    body: Annotated[str, Meta(description="the trial as compact JSON, with its iterations packed")]
    console: Annotated[str, Meta(description="compressed, base64; empty unless consoles were asked for")]


class PackedRemarks(_Part):
    """Remarks that users added to a run."""

    name: str
    notes: list[str]
    labels: dict[str, str]
    tags: list[str]


class PackedRun(_Part):
    """A run in a bundle."""

    id: str
    created_at: Annotated[float, Meta(description="Unix time in seconds")]
    seed: str
    state: RunState
    plan: Plan
    environments: list[dict[str, Any]]
    unusable: list[LeftOut]
    trials: list[PackedTrial]
    remarks: PackedRemarks


class Bundle(_Part):
    """The data block of a bundle's page. `data` holds a list of runs, each as `runs` describes it."""

    schema: Annotated[str, Meta(pattern="^guestmark-bundle/1$")]
    sha256: Annotated[str, Meta(description="digest of the runs' JSON")]
    key: Annotated[str, Meta(description="public key of whoever packed it; empty without a signature")]
    signature: str
    size: Annotated[int, Meta(description="bytes of the runs' JSON")]
    data: Annotated[str, Meta(description="the runs' JSON, compressed by zlib, base64")]


def list_part_names() -> tuple[str, ...]:
    """Return the names of the document types defined in this module, in order."""
    return tuple(
        name
        for name, kind in globals().items()
        if isinstance(kind, type) and issubclass(kind, _Part) and kind is not _Part
    )


def make_json_schema(kind: type[Any], name: str) -> Mapping[str, Any]:
    """Return the JSON Schema (draft 2020-12) of one of these types, with `name` as its id."""
    (found,), components = msgspec.json.schema_components(
        [kind], schema_hook=_make_text_schema, ref_template="#/$defs/{name}"
    )
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": name,
        **found,
        "$defs": components,
    }


def _make_text_schema(kind: type[Any]) -> dict[str, Any]:
    """Return the schema of a type that is written as text, such as a platform."""
    return {"type": "string", "description": (kind.__doc__ or "").partition("\n")[0]}
