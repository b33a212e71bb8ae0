"""The parameters of the workload `exec` as plans spell them; apart, as a command line needs no model of plans."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from guestmark.agent.wire import StandardOutput
from guestmark.core import regex
from guestmark.core.metric_spec import parse_metrics, split
from guestmark.plan.schema import Strict, param

_PLACEHOLDER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_-]*)\}", re.ASCII)


def runnable(words: list[str]) -> list[str]:
    """The words of a command as they are. Raises `ValueError` for those that no kernel runs."""
    if not words or not words[0] or any("\0" in word for word in words):
        raise ValueError("an empty name or a NUL character cannot be run")
    return words


class ExecParams(Strict):
    """`command` is the argument list; `{name}` in it stands for an entry of `values`, which `scale` may name.

    With factors of disks it runs in a new directory on that disk, or has its path as `{disk}`. `host_disk`: what
    it then has on the host, as for `sysbench`; by default a directory where the cells it is compared with have disks.
    `output`: its standard output goes to `/dev/null`, or through a pipe where `metrics` or `expect` read it.
    """

    command: list[str] = param(..., "the program and its arguments", "words", min_length=1)
    values: dict[str, str | int | float] = param(
        {}, "what `{NAME}` in the command stands for; `scale` may name them"
    )
    metrics: list[str] = param([], "more metrics, as `--metric` has them")
    input: str | None = param(None, "standard input", "path")
    ignore_failure: bool = param(False, "count runs that fail")
    push: list[str] = param([], "files to bring to another machine", "paths")
    setup: str | None = param(None, "runs once on each fresh machine", "shell command")
    prepare: str | None = param(None, "runs before each run", "shell command")
    conclude: str | None = param(None, "runs after each run and its check", "shell command")
    cleanup: str | None = param(None, "runs once, last", "shell command")
    check: str | None = param(None, "runs after each run; if it fails, so does the trial", "shell command")
    statuses: Annotated[list[int], Field(min_length=1)] | None = param(None, "exit statuses of success")
    expect: str | None = param(None, "must match the output", "regular expression")
    host_disk: Literal["directory", "loop"] | None = param(None, "what the host has for a disk")
    output: Annotated[StandardOutput | None, Field(strict=False)] = param(None, "where standard output goes")

    @field_validator("command")
    @classmethod
    def _runnable(cls, command: list[str]) -> list[str]:
        return runnable(command)

    @field_validator("expect")
    @classmethod
    def _expression(cls, text: str | None) -> str | None:
        try:
            regex.check(text or "")
        except regex.PatternError as error:
            raise ValueError(f"it is not a regular expression: {error}") from error
        return text

    def to_params(self) -> dict[str, Any]:
        """As `guestmark exec` gives them to the workload. Raises `UsageError`, `ValueError` for an unused value."""
        from guestmark.workloads.exec.command import Command
        from guestmark.workloads.exec.plan import described, input_of, output_of

        given = {
            "setup": self.setup,
            "prepare": self.prepare,
            "conclude": self.conclude,
            "cleanup": self.cleanup,
            "check": self.check,
        }
        hooks = {name: self._filled(text) for name, text in given.items() if text}
        texts = [*self.command, *(text for text in given.values() if text)]
        for name in self.values:
            if not any("{" + name + "}" in text for text in texts):
                raise ValueError(f"values.{name} is not used: the command holds no {{{name}}}")
        specs, derived = split(parse_metrics(self.metrics))
        if derived:
            raise ValueError(f"metrics.{derived[0].metric.name}: in plans, arithmetic belongs in [derived]")
        argv = [self._filled(word) for word in self.command]
        named = dict.fromkeys(_PLACEHOLDER.findall(" ".join([*self.command, *hooks.values()])))
        return Command(
            argv=argv,
            metrics=[spec.to_params() for spec in specs],
            stdin=input_of(self.input),
            hooks=hooks,
            parameters=[
                name for name in named if any("{" + name + "}" in text for text in (*argv, *hooks.values()))
            ],
            ignore_failure=self.ignore_failure,
            push=described(self.push),
            statuses=tuple(self.statuses or (0,)),
            expect=self.expect,
            output=output_of(self.output, specs, expected=self.expect is not None),
            disks=[{"role": "target", "host": self.host_disk}] if self.host_disk else [],
        ).stored()

    def _filled(self, word: str) -> str:
        def value(match: re.Match[str]) -> str:
            name = match.group(1)
            return str(self.values[name]) if name in self.values else match.group()

        return re.sub(r"\{([A-Za-z0-9_-]+)\}", value, word)
