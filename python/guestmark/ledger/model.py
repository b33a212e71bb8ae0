"""The contents of a ledger as the rest of guestmark sees them. Cheap to import."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from guestmark.core.model import LeftOut, Plan, RunState, Trial


class SignatureStatus(StrEnum):
    """The result of checking the signature of a run in a file."""

    # Signed by the user's own key, and unchanged.
    OWN = "own"
    # Written by an earlier version, or planted.
    UNSIGNED = "unsigned"
    OTHERS = "others"  # signed by another key
    # Signed by the user's own key, and changed since.
    CHANGED = "changed"


@dataclass(frozen=True, slots=True)
class RunOverview:
    """One line of `guestmark runs`; times are Unix times in seconds."""

    id: str
    name: str
    created_at: float
    state: RunState
    cells: int
    # The number of blocks with at least one trial.
    blocks: int
    trials: int
    failed: int
    label: str = ""  # of the first workload
    title: str = ""  # the plan's
    platforms: tuple[str, ...] = ()
    # The name that the user gave; `name` is the plan's.
    given_name: str = ""
    notes: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    # Unix time; a removed run is hidden until the ledger is vacuumed.
    removed: float | None = None
    # The run's source; empty if the run was measured here.
    imported: str = ""
    standing: SignatureStatus = SignatureStatus.OWN

    @property
    def measured(self) -> str:
        """What the run measured: the command or commands, or the plan with its title."""
        if self.name == "exec":
            return self.title or self.label
        if self.title:
            return f"{self.name}: {self.title}"
        return self.name or self.label


@dataclass(frozen=True, slots=True)
class StoredRatio:
    """One ratio of a run, as it is indexed by `host` and by question (`what`, a digest).

    `low` and `high` are the ends of the interval of `log_ratio`, as logs too; `typical` is the median of the side that
    the cell was compared with.
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
    """What `guestmark runs --check` found: sentences about damage, and how many rows have no checksum.

    `checked` is False for a ledger of version 0.1, which has no checksums at all.
    """

    runs: int
    without_checksum: int
    problems: tuple[str, ...]
    checked: bool
    # The number of runs that the user's own key has not signed.
    not_own: int = 0


@dataclass(frozen=True, slots=True)
class RunOrigin:
    """The origin of a run that is not this user's own: a file or a URL, the bundle's digest and its signer's key.

    If it is not `trusted`, its commands are another user's: they are shown, but not run. Only if
    `standing` is OWN is this record certain, because the user's own key has signed it.
    """

    source: str
    # When it was imported (Unix time in seconds).
    at: float = 0.0
    sha256: str = ""
    trusted: bool = False
    # Public key; empty if the bundle is unsigned.
    signer: str = ""
    standing: SignatureStatus = SignatureStatus.OWN

    def describe(self) -> str:
        """Return the rest of a sentence about the run: why it is not this user's own."""
        match self.standing:
            case SignatureStatus.OWN:
                said = f"comes from {self.source}"
                if self.signer:
                    said += f", signed by {self.signer}"
                return said
            case SignatureStatus.UNSIGNED:
                return f"in {self.source} is not signed: an earlier version stored it, or another user did"
            case SignatureStatus.OTHERS:
                return f"in {self.source} is signed by another key than yours"
            case SignatureStatus.CHANGED:
                return f"in {self.source} was changed after you had signed it"


@dataclass(frozen=True, slots=True)
class RunHead:
    """A run without its trials and environments; `state` is as stored, whoever executes the run now."""

    id: str
    plan: Plan
    state: RunState
    unusable: tuple[LeftOut, ...] = ()
    origin: RunOrigin | None = None  # None if it was measured here


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
    origin: RunOrigin | None = None  # None if it was measured here

    @property
    def head(self) -> RunHead:
        """The run without its trials and environments."""
        return RunHead(self.id, self.plan, self.state, self.unusable, self.origin)

    @property
    def environment(self) -> Mapping[str, Any]:
        """The environment the run was created in; empty when none was recorded."""
        return self.environments[0] if self.environments else {}

    @property
    def is_trusted(self) -> bool:
        """True if its commands may run without asking, as it is this user's own or was imported as trusted."""
        return self.origin is None or self.origin.trusted

    @property
    def blocks(self) -> int:
        """The number of blocks that hold at least one trial."""
        return len({trial.block for trial in self.trials})
