"""The workload `powercut` in plans: how records are made durable, and how many crash states are looked at."""

import shlex
from typing import Any, Literal

from guestmark.plan.schema import Strict, param
from guestmark.powercut.records import Method

_STATES, _OF_SERVERS = 300, 40


class Powercut(Strict):
    """`method`: how each of `records` is written and made durable; `states`: how many crash states are judged: 300 if
    not given, 40 of a database server, which has to be started for each. `settings` are the server's.
    The method `command` runs `command`, whose lines are acknowledgements, and `check` on what is left. `syncs` runs
    `command`, whose own calls of `fsync` and the like are; `before` are shell commands that run first, `files` texts by
    their names, `env` variables besides the caller's, `cwd` where it runs if not on the disk.
    """

    method: Literal[
        "append", "replace", "overwrite", "dsync", "sqlite", "mariadb", "postgresql", "command", "syncs"
    ] = param("append", "how records are made durable")
    records: int = param(100, "how many", ge=2, le=100_000)
    settings: dict[str, str] = param({}, "settings of the database server")
    command: list[str] = param([], "the program of the methods `command` and `syncs`", "words")
    check: str = param("", "judges each recovered disk, for the method `command`", "shell command")
    before: list[str] = param([], "run first", "shell commands")
    files: dict[str, str] = param({}, "texts of files that the command finds, by name")
    env: dict[str, str] = param({}, "environment variables")
    cwd: str = param("", "where the command runs, if not on the disk", "path")
    statuses: list[int] = param([0], "exit statuses of success")
    states: int | None = param(
        None, "crash states that are judged: 300, of a database server 40", ge=1, le=100_000
    )

    def to_params(self) -> dict[str, Any]:
        """As the workload gets them; on the host an image is mounted through a loop device."""
        method = Method(self.method)
        if self.settings and not method.served:
            raise ValueError(f"settings belong to a database server, and {self.method} has none")
        if bool(self.check) != (method is Method.COMMAND) or bool(self.command) != method.of_program:
            raise ValueError("command and check belong together, and to the method command")
        disk = {"role": "target", "host": "loop", "logged": True}
        states = self.states or (_OF_SERVERS if method.served else _STATES)
        given = {**self.model_dump(mode="json"), "states": states}
        return {
            **given,
            "words": shlex.join(self.command) or method.words,
            "disks": [{**disk, **({"size": "256M"} if method.served else {})}],
        }
