"""Names of the formats in which a run can be exported. Listing them imports no library that writes one."""

from enum import StrEnum


class Format(StrEnum):
    """Formats in which a run can be exported."""

    JSON = "json"
    CSV = "csv"
    MARKDOWN = "markdown"
    PARQUET = "parquet"
    HTML = "html"
    HYPERFINE = "hyperfine"  # the document of its --export-json, and the tables of its other options
    HYPERFINE_CSV = "hyperfine-csv"
    HYPERFINE_MARKDOWN = "hyperfine-markdown"
    HYPERFINE_ASCIIDOC = "hyperfine-asciidoc"
    HYPERFINE_ORGMODE = "hyperfine-orgmode"
    BENCHER = "bencher"  # Bencher's metric format
    GITHUB = "github-action-benchmark"


SUFFIXES = {
    ".json": Format.JSON,
    ".csv": Format.CSV,
    ".parquet": Format.PARQUET,
    ".md": Format.MARKDOWN,
    ".markdown": Format.MARKDOWN,
    ".html": Format.HTML,
    ".htm": Format.HTML,
}
