"""The workload `powercut` in plans: how records are made durable, and how many crash states are looked at."""

import shlex
from typing import Any, Literal

from pydantic import Field

from guestmark.plan.schema import Strict
from guestmark.powercut.records import Method

_STATES, _OF_SERVERS = 300, 40


class Powercut(Strict):
    """`method`: how each of `records` is written and made durable; `states`: how many crash states are judged: 300 if
    not given, 40 of a database server, which has to be started for each. `settings` are the server's.
    The method `command` runs `command`, whose lines are acknowledgements, and `check` on what is left.
    """

    method: Literal[
        "append", "replace", "overwrite", "dsync", "sqlite", "mariadb", "postgresql", "command"
    ] = "append"
    records: int = Field(default=100, ge=2, le=100_000)
    settings: dict[str, str] = Field(default_factory=dict)
    command: list[str] = Field(default_factory=list)
    check: str = ""
    states: int | None = Field(default=None, ge=1, le=100_000)

    def to_params(self) -> dict[str, Any]:
        """As the workload gets them; on the host an image is mounted through a loop device."""
        method = Method(self.method)
        if self.settings and not method.served:
            raise ValueError(f"settings are those of a database server, and {self.method} has none")
        if (method is Method.COMMAND) != bool(self.command and self.check):
            raise ValueError("command and check belong together, and to the method command")
        disk = {"role": "target", "host": "loop", "logged": True}
        states = self.states or (_OF_SERVERS if method.served else _STATES)
        given = {**self.model_dump(mode="json"), "states": states}
        return {
            **given,
            "words": shlex.join(self.command) or method.words,
            "disks": [{**disk, **({"size": "256M"} if method.served else {})}],
        }
