"""The published schemas: made from the types, and kept by every document that can be made."""

import base64
import json
import re
import zlib
from pathlib import Path

import pytest

import guestmark
from guestmark.core.errors import LedgerError
from guestmark.ledger import codec
from guestmark.report import schema
from guestmark.report.document import make_result_document
from tests.framework import CHECKOUT, run_kinds
from tests.framework.command_line import CommandLine
from tools import schema as tool


def test_the_files_are_made_from_the_types() -> None:
    assert tool.main(["--check"]) == 0


def test_each_key_has_a_type() -> None:
    made = schema.make_json_schema(schema.ResultDocument, "")
    document = made["$defs"]["ResultDocument"]
    assert set(document["required"]) == set(document["properties"])
    own = [made["$defs"][name] for name in schema.list_part_names() if name in made["$defs"]]
    assert len(own) > 25
    for part in own:
        assert part["description"]
        assert part["additionalProperties"] is False


@pytest.mark.parametrize("kind", run_kinds.RUNS)
def test_the_document_of_every_kind_of_run_has_the_schema(kind: str) -> None:
    document = json.loads(json.dumps(make_result_document(run_kinds.run_of(kind))))
    codec.convert_plain(document, schema.ResultDocument, kind)


@pytest.mark.parametrize(
    "where", [(), ("run",), ("cells", 0), ("cells", 0, "trials", 0), ("report", "sections", 0)]
)
def test_an_unknown_key_or_another_type_is_found(where: tuple[str | int, ...]) -> None:
    for change in ({"surprise": 1}, None):
        document = json.loads(json.dumps(make_result_document(run_kinds.run_of("plain"))))
        part = document
        for step in where:
            part = part[step]
        if change is None:
            part[next(iter(part))] = {"an": "object"}
        else:
            part |= change
        with pytest.raises(LedgerError):
            codec.convert_plain(document, schema.ResultDocument, "it")


def test_a_bundle_has_its_schema(guestmark: CommandLine, tmp_path: Path) -> None:
    assert guestmark("exec", "-q", "-r", "2", "sleep 0", "sleep 0.01").status == 0
    assert guestmark("export", "last", "--bundle", "b.gmk.html").status == 0
    block = re.search(r'id="guestmark-bundle">(.*?)</script>', (tmp_path / "b.gmk.html").read_text())
    assert block is not None
    head = codec.convert_plain(json.loads(block[1]), schema.Bundle, "the bundle")
    (run,) = json.loads(zlib.decompress(base64.b64decode(head.data)))
    codec.convert_plain(run, schema.PackedRun, "the run")


def test_the_library_s_result_is_described_field_by_field() -> None:
    """Every public attribute of a result is described in the guide, field by field."""
    text = (CHECKOUT / "docs/guide/library.md").read_text()
    public = [name for name in vars(guestmark.Result) if not name.startswith("_")]
    assert [name for name in public if f"`{name}" not in text] == []


def test_a_comparison_in_the_library_prints_as_a_line(tmp_path: Path) -> None:
    runs = [guestmark.exec(["sleep", "0.01"], ledger=tmp_path / "l", blocks=2) for _ in range(2)]
    found = runs[0].compare(runs[1])
    assert len(repr(found)) < 300
    assert (found.before, found.after) == tuple(run.id for run in runs)
    assert found.same_host
    assert found.document()["comparisons"]
    assert found.html().startswith("<!doctype html>")
