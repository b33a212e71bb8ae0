"""Declares `guestmark capture`."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from guestmark.core.option import Argument, Option

# Connections in the table unless --top says otherwise.
TABLE_ROWS = 20


class Format(StrEnum):
    """Formats in which the answer can be written."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    TCP_STATS = "tcp-stats"
    PARQUET = "parquet"


class RowSubject(StrEnum):
    """What each row of the table stands for."""

    CONNECTION = "connection"
    ENDPOINT = "endpoint"


@dataclass(frozen=True, kw_only=True)
class Options:
    """Find out who is slow in a packet capture: the client, the server, the network or something else."""

    files: Annotated[
        list[str] | None,
        Argument(
            "FILE...",
            "pcap, pcapng or Wireshark's CSV, or any of them as .gz, .zst, .xz or .bz2; - is stdin.",
        ),
    ] = None
    filter_by: Annotated[
        str | None,
        Option(
            "--filter",
            "Analyse only this traffic: 10.0.0.1, 10.0.0.0/8, 80, http, A:80, A:80-B:1024.",
            metavar="HOST|PORT|FLOW",
        ),
    ] = None
    format: Annotated[Format, Option("--format -f", "Format of the answer.")] = Format.TABLE
    by: Annotated[RowSubject, Option("--by", "What each row of the table stands for.")] = (
        RowSubject.CONNECTION
    )
    plot: Annotated[
        Path | None,
        Option("--plot --html", "Also draw a picture, as one HTML file.", metavar="FILE", parse=Path),
    ] = None
    extract: Annotated[
        Path | None,
        Option(
            "--extract",
            "Write the packets that ended the longest waits, as pcapng.",
            metavar="OUT",
            parse=Path,
        ),
    ] = None
    details: Annotated[
        bool, Option("--details", "Also time requests one by one: HTTP/1, TLS handshakes and DNS.")
    ] = False
    output: Annotated[
        str, Option("--output -o", "Where to write the answer (- is standard output).", metavar="FILE")
    ] = "-"
    top: Annotated[
        int | None,
        Option(
            "--top",
            f"Show only the N connections that waited longest (default for the table: {TABLE_ROWS}).",
            metavar="N",
            minimum=1,
        ),
    ] = None
    live: Annotated[
        str | None,
        Option("--live", "Capture from this interface until Ctrl-C, then report.", metavar="IFACE"),
    ] = None
    merge: Annotated[
        bool, Option("--merge", "Treat all FILEs as one trace, in this order, instead of one by one.")
    ] = False
    both: Annotated[
        bool,
        Option(
            "--both",
            "The FILEs are captures of the same traffic at several points: give one answer from all of them.",
        ),
    ] = False
    memory: Annotated[
        int | None,
        Option(
            "--memory",
            "Memory for open connections (default: an eighth of the available memory).",
            metavar="MB",
            minimum=1,
        ),
    ] = None
