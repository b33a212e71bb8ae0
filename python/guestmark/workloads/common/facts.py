"""What workloads that move bytes find out, read without the machinery that moves them."""

from guestmark.core.findings import Fact


class Moving(Fact, kw_only=True):
    """How the disk was made ready, and how the bytes were moved; each workload has some of these."""

    image_prepared_s: float | None = None
    image_from_template: bool | None = None
    direct: bool | None = None  # past the guest's page cache
    preallocated: bool | None = None  # the file that was written
    archive_bytes: int | None = None
    share: str | None = None  # as the guest's kernel was told to mount it
