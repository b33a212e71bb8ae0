"""The workload `powercut` in plans: how records are made durable, and how many crash states are looked at."""

from typing import Any, Literal

from pydantic import Field

from guestmark.plan.schema import Strict
from guestmark.powercut.records import Method

_STATES, _OF_SERVERS = 300, 40


class Powercut(Strict):
    """`method`: how each of `records` is written and made durable; `states`: how many crash states are judged: 300 if
    not given, 40 of a database server, which has to be started for each.
    """

    method: Literal["append", "replace", "overwrite", "dsync", "sqlite", "mariadb", "postgresql"] = "append"
    records: int = Field(default=100, ge=2, le=100_000)
    states: int | None = Field(default=None, ge=1, le=100_000)

    def to_params(self) -> dict[str, Any]:
        """As the workload gets them; on the host an image is mounted through a loop device."""
        method = Method(self.method)
        disk = {"role": "target", "host": "loop", "logged": True}
        states = self.states or (_OF_SERVERS if method.served else _STATES)
        given = {**self.model_dump(mode="json"), "states": states}
        return {
            **given,
            "words": method.words,
            "disks": [{**disk, **({"size": "256M"} if method.served else {})}],
        }
