"""Metrics of the disk workloads, and of the I/O on the layers below them.

Rates are content bytes a second, shown in MB/s (10^6 bytes).
"""

from collections.abc import Iterable

from guestmark.core.metric import Better, Measurement, Metric

HOST_WRITTEN = Metric("host_written_bytes", "B")  # bytes that the hypervisor wrote to the images
HOST_WRITES = Metric("host_writes", "1")  # number of write requests for that
WRITES_PER_MB = Metric("host_writes_per_mb", "1/MB")  # for 10^6 bytes of content
# Bytes written to the images for each byte of content.
WRITE_AMPLIFICATION = Metric("write_amplification", "ratio")
HOST_READ = Metric("host_read_bytes", "B")
# Flush requests that the guest's kernel sent to the disk.
GUEST_FLUSHES = Metric("guest_flushes", "1")
# Flushes that the hypervisor passed on to the host.
HOST_FLUSHES = Metric("host_flushes", "1")
FLUSHES_PER_MB = Metric("guest_flushes_per_mb", "1/MB")
# Bytes that the target occupies on the host's disk afterwards.
ALLOCATED = Metric("allocated_bytes", "B")
# Busy time of all the guest's processors, including kernel and interrupts.
GUEST_CPU = Metric("guest_cpu_s", "s")
VMM_CPU = Metric("vmm_cpu_s", "s")  # processor time of the hypervisor's process on the host

BELOW: tuple[Metric, ...] = (
    HOST_WRITTEN,
    HOST_WRITES,
    WRITES_PER_MB,
    WRITE_AMPLIFICATION,
    HOST_READ,
    GUEST_FLUSHES,
    HOST_FLUSHES,
    FLUSHES_PER_MB,
    ALLOCATED,
    GUEST_CPU,
    VMM_CPU,
)


# Bytes of content a second, with flushes included in the time.
THROUGHPUT = Metric("throughput", "B/s", Better.HIGHER)
WALL = Metric("wall_s", "s")
GUEST_WALL = Metric("guest_wall_s", "s")
# The part of the time spent in fsync and syncfs in the guest.
GUEST_FLUSH = Metric("guest_flush_s", "s")
# The part of the time spent in fsync of the image on the host.
HOST_FLUSH = Metric("host_flush_s", "s")
LAUNCH = Metric("launch_s", "s")
THROUGHPUT_WITH_LAUNCH = Metric("throughput_with_launch", "B/s", Better.HIGHER)
WALL_WITH_LAUNCH = Metric("wall_with_launch_s", "s")

WRITING = (THROUGHPUT, WALL, GUEST_WALL, GUEST_FLUSH, HOST_FLUSH, *BELOW)
READING = (THROUGHPUT, WALL, GUEST_WALL, *BELOW)
CHANNEL = (THROUGHPUT, WALL, GUEST_WALL)
LAUNCHING = (THROUGHPUT, WALL, GUEST_FLUSH, HOST_FLUSH, LAUNCH, THROUGHPUT_WITH_LAUNCH, WALL_WITH_LAUNCH)


def to_measurements(values: Iterable[tuple[Metric, float]]) -> list[Measurement]:
    """Returns one measurement for each value."""
    return [Measurement(metric, value, (value,)) for metric, value in values]


def to_known_measurements(values: Iterable[tuple[Metric, float | None]]) -> list[Measurement]:
    """Returns one measurement for each value that is known."""
    return to_measurements((metric, value) for metric, value in values if value is not None)
