"""The contents of a ledger as the rest of guestmark sees them. Cheap to import."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from guestmark.core.model import LeftOut, Plan, RunState, Trial


class SignatureStatus(StrEnum):
    """What the signature of a run in a file says of it."""

    OWN = "own"  # the user's own key has signed it as it is
    UNSIGNED = "unsigned"  # an earlier version wrote it, or somebody who put it there
    OTHERS = "others"  # another key has signed it
    CHANGED = "changed"  # the user's own key has signed it, but as something else


@dataclass(frozen=True, slots=True)
class RunOverview:
    """One line of `guestmark runs`; times are Unix times in seconds."""

    id: str
    name: str
    created_at: float
    state: RunState
    cells: int
    blocks: int  # blocks that hold at least one trial
    trials: int
    failed: int
    label: str = ""  # of the first workload
    title: str = ""  # the plan's
    platforms: tuple[str, ...] = ()
    given_name: str = ""  # by the user; `name` is the plan's
    notes: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    removed: float | None = None  # Unix time: out of sight until the ledger is vacuumed
    imported: str = ""  # from where; empty: made here
    standing: SignatureStatus = SignatureStatus.OWN

    @property
    def measured(self) -> str:
        """What it is about: the command, the commands, or the plan with its title."""
        if self.name == "exec":
            return self.title or self.label
        return f"{self.name}: {self.title}" if self.title else self.name or self.label


@dataclass(frozen=True, slots=True)
class StoredRatio:
    """One ratio that a run found, as it is indexed: on which `host`, and in answer to `what`, a digest of the question.

    `log_ratio` has its interval's ends as logs; `typical` is the median of the side that the cell was held against.
    """

    run_id: str
    cell_id: str
    host: str
    what: str
    created_at: float  # of the run; Unix time, seconds
    log_ratio: float
    low: float
    high: float
    blocks: int
    typical: float


@dataclass(frozen=True, slots=True)
class LedgerCheck:
    """What `guestmark runs --check` found: sentences about what is damaged, and how many rows have no checksum.

    Not `checked` is a ledger of version 0.1, which has none at all.
    """

    runs: int
    without_checksum: int
    problems: tuple[str, ...]
    checked: bool
    not_own: int = 0  # runs that the user's own key has not signed


@dataclass(frozen=True, slots=True)
class RunOrigin:
    """Where a run that is not this user's own comes from: a file or a URL, the bundle's digest and its signer's key.

    The commands of one that is not `trusted` are somebody else's: they are shown, and not run. Only where `standing` is
    OWN has the user's own key signed that it was imported, and whether it is trusted.
    """

    source: str
    at: float = 0.0  # when it was imported; Unix time, seconds
    sha256: str = ""
    trusted: bool = False
    signer: str = ""  # public key; empty: nobody has signed the bundle
    standing: SignatureStatus = SignatureStatus.OWN

    def describe(self) -> str:
        """What makes the run somebody else's, as a predicate of it."""
        match self.standing:
            case SignatureStatus.OWN:
                signed = f", signed by {self.signer}" if self.signer else ""
                return f"comes from {self.source}{signed}"
            case SignatureStatus.UNSIGNED:
                return f"in {self.source} is not signed: an earlier version stored it, or somebody else did"
            case SignatureStatus.OTHERS:
                return f"in {self.source} is signed by another key than yours"
            case SignatureStatus.CHANGED:
                return f"in {self.source} was changed after you had signed it"


@dataclass(frozen=True, slots=True)
class RunHead:
    """A run without its trials and environments; `state` as it is stored, whoever executes it now."""

    id: str
    plan: Plan
    state: RunState
    unusable: tuple[LeftOut, ...] = ()
    origin: RunOrigin | None = None  # None: made here


@dataclass(frozen=True, slots=True)
class StoredRun:
    """A whole run; `trials` are ordered by block and by position inside the block.

    `environments` holds one record for each time the run was started or resumed; `environment` is the first.
    """

    id: str
    plan: Plan
    environments: tuple[Mapping[str, Any], ...]
    seed: int
    state: RunState
    created_at: float  # Unix time, seconds
    trials: tuple[Trial, ...] = ()
    unusable: tuple[LeftOut, ...] = ()
    origin: RunOrigin | None = None  # None: made here

    @property
    def head(self) -> RunHead:
        """It without its trials and environments."""
        return RunHead(self.id, self.plan, self.state, self.unusable, self.origin)

    @property
    def environment(self) -> Mapping[str, Any]:
        """The environment the run was created in; empty when none was recorded."""
        return self.environments[0] if self.environments else {}

    @property
    def is_trusted(self) -> bool:
        """Whether its commands are run unasked: it is this user's own, or was taken as that."""
        return self.origin is None or self.origin.trusted

    @property
    def blocks(self) -> int:
        """Number of blocks that hold at least one trial."""
        return len({trial.block for trial in self.trials})
