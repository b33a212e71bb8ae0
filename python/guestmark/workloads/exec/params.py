"""The workload `exec` in plans: any command, with numbers in it that `--scale` can multiply."""

import re
from typing import Any

from pydantic import Field, field_validator

from guestmark.core.metric_spec import parse_metrics
from guestmark.plan.schema import Strict


class ExecParams(Strict):
    """`command` is the argument list; `{name}` in it stands for an entry of `values`, which `scale` may name."""

    command: list[str] = Field(min_length=1)
    values: dict[str, str | int | float] = Field(default_factory=dict)
    metrics: list[str] = Field(default_factory=list)
    input: str | None = None
    ignore_failure: bool = False
    push: list[str] = Field(default_factory=list)

    @field_validator("command")
    @classmethod
    def _runnable(cls, command: list[str]) -> list[str]:
        if not command[0] or any("\0" in word for word in command):
            raise ValueError("an empty name or a NUL character cannot be run")
        return command

    def to_params(self) -> dict[str, Any]:
        """As `guestmark exec` gives them to the workload. Raises `UsageError`, `ValueError` for an unused value."""
        from guestmark.workloads.exec.plan import exec_params

        for name in self.values:
            if not any("{" + name + "}" in word for word in self.command):
                raise ValueError(f"values.{name} is not used: the command holds no {{{name}}}")
        params = exec_params(
            [self._filled(word) for word in self.command],
            parse_metrics(self.metrics),
            stdin_path=self.input,
            ignore_failure=self.ignore_failure,
        )
        if self.push:
            from guestmark.workloads.exec.push import described

            params["push"] = described(self.push)
        return params

    def _filled(self, word: str) -> str:
        def value(match: re.Match[str]) -> str:
            name = match.group(1)
            return str(self.values[name]) if name in self.values else match.group()

        return re.sub(r"\{([A-Za-z0-9_-]+)\}", value, word)
