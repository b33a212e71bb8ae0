"""Checks rules for prose and code; `./test` runs this. Prints PATH:LINE: WHAT for each break; exit status 1 if any.

- no names of hosts, except for a few that are allowed (never package registries, because mirrors differ)
- no numbers of issues or pull requests: state the reason itself
- no paths that exist on one machine only
- no phrases in guides or the reference that read as translated: "is that of", "is told", "held
  against", "nobody", "a plan of its own", "in whatever way"
- no shares formatted by Python in code that prints: `format_share` adds the space before the sign
- links between documents, and mentions of documents in code, lead somewhere
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# Lock files have a test of their own; logs, golden files, seeds and the licence are not prose of this project.
SKIPPED = re.compile(r"(.*\.lock|requirements.*\.txt|LICENSE|tests/unit/(boot_logs|golden)/.*|fuzz/seeds/.*)")
HOSTS = {"json-schema.org", "www.w3.org", "libvirt.org", "www.apache.org", "ipxe.org", "example.org"}
FOLDERS = set(
    "bin boot dev etc home lib lib64 media mnt opt proc root run sbin srv sys tmp usr var".split()  # noqa: SIM905
)

_URL = re.compile(r"\b(?:https?|ftp|git|ssh)://(?:[^/@\s]*@)?([a-z0-9-]+(?:\.[a-z0-9-]+)+)", re.IGNORECASE)
_BARE_HOST = re.compile(r"(?<![\w@/.-])((?:[a-z0-9-]+\.)+(?:org|com|io|dev|net))\b(?![\w(=.-])")
_TRACKER = re.compile(
    r"\b(?:issue|ticket|pull request|PR|MR|GH)s?[ -]?(?:#|no\. ?)?\d+\b|\(#\d+\)", re.IGNORECASE
)
_NUMBER = re.compile(r"(?<![\w&/#])#\d{1,5}\b")
_PATH = re.compile(r"(?<![\w.${}~<>*)\]\\/-])/([a-z][\w.-]*)/[a-z]", re.IGNORECASE)
_TRANSLATED = re.compile(
    r"\b(?:is|are|was|were|than|with) (?:that|those) of\b|\b(?:is|are) told\b(?! apart)|\bsaid of\b"
    r"|\b(?:held|holds?) (?:\w+ )?against\b|(?<!`)\b(?:nobody|anybody)\b(?!`)|\bas (?:much|many) of (?:\w+ )+as\b"
    r"|\bin whatever way\b|\bas far as (?:it|they) can\b|\btaken back\b|\ba \w+ of its own\b"
    r"|\bgoes on (?:when|until)\b",
    re.IGNORECASE,
)
_SHARE = re.compile(r"\{[^{}]*:[+,.0-9]*%\}")
# Records of what was found or changed may use phrases that guides may not.
_RECORDS = ("docs/results/", "CHANGELOG.md")
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
_MENTION = re.compile(r"\bdocs/[\w/-]+\.md\b")
_HEADING = re.compile(r"^#{1,6} +(.+?)\s*$", re.MULTILINE)
_FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)


def find_broken_rules(path: str, line: str) -> Iterator[str]:
    """Yield the rules that one line of the file at `path` (relative to the checkout) breaks."""
    prose = path.endswith(".md")
    if path.startswith("python/") and path.endswith(".py") and _SHARE.search(line):
        yield "formats a share without a space before the sign: use format_share"
    for host in {match[1].lower() for match in _URL.finditer(line)} - HOSTS:
        if not re.fullmatch(r"[\d.]+", host):
            yield f"names the host {host}"
    if prose:
        for host in {match[1].lower() for match in _BARE_HOST.finditer(line)} - HOSTS:
            yield f"names the host {host}"
    for match in [*_TRACKER.finditer(line), *(_NUMBER.finditer(line) if prose else ())]:
        yield f"refers to {match[0]}: say what it was about instead"
    places = {str(ROOT), str(Path.home())} - {"/", "/root", "/home", "/tmp", "/src"}
    yield from (f"holds {place}, a path of this machine" for place in places if place in line)
    if prose and not path.startswith(_RECORDS):
        for match in _TRANSLATED.finditer(line):
            yield f"says {match[0]!r}: a plain sentence says who does what"
    if prose:
        for match in _PATH.finditer(re.sub(r"https?://\S+", "", line)):
            if match[1] not in FOLDERS:
                yield f"holds /{match[1]}/…, which is no usual directory"


def find_broken_links(path: str, text: str) -> Iterator[tuple[int, str]]:
    """Yield line number and description of links and mentions in `text` that lead nowhere."""
    here = (ROOT / path).parent
    if path.endswith(".md"):
        # Code blocks are blanked line by line, so that line numbers stay right.
        prose = _FENCE.sub(lambda fence: "\n" * fence[0].count("\n"), text)
        for match in _LINK.finditer(prose):
            file, _, anchor = match[1].partition("#")
            target = (here / file).resolve() if file else ROOT / path
            number = prose.count("\n", 0, match.start()) + 1
            if "://" in file or file.startswith("mailto:"):
                continue
            if not target.exists():
                yield number, f"links to {match[1]}, which does not exist"
            elif anchor and target.suffix == ".md" and anchor not in anchors_of(target.read_text()):
                yield number, f"links to {match[1]}: no heading gives that anchor"
    for match in _MENTION.finditer(text):
        if not (ROOT / match[0]).exists():
            yield text.count("\n", 0, match.start()) + 1, f"mentions {match[0]}, which does not exist"


def anchors_of(text: str) -> set[str]:
    """Return the anchors that forges give to a document's headings."""
    headings = (re.sub(r"[`*]", "", match[1]) for match in _HEADING.finditer(_FENCE.sub("", text)))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def main() -> int:
    """Check every file that git tracks or would add."""
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        capture_output=True,
        check=True,
    )
    count = 0
    for path in sorted(filter(None, listed.stdout.decode().split("\0"))):
        file = ROOT / path
        if SKIPPED.fullmatch(path) or not file.is_file():
            continue
        try:
            text = file.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            # A binary file.
            continue
        found = [*find_broken_links(path, text)]
        for number, line in enumerate(text.splitlines(), 1):
            found += [(number, rule) for rule in find_broken_rules(path, line)]
        for number, rule in sorted(found):
            sys.stdout.write(f"{path}:{number}: {rule}\n")
        count += len(found)
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
