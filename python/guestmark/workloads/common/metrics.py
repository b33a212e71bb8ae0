"""What the disk workloads measure, and what happened below them.

Rates are of content bytes, in bytes a second; shown in MB/s, which is 10^6.
"""

from guestmark.core.metric import Better, Metric

HOST_WRITTEN = Metric("host_written_bytes", "B")  # that the hypervisor wrote to the images
HOST_WRITES = Metric("host_writes", "1")  # the number of requests
WRITES_PER_MB = Metric("host_writes_per_mb", "1/MB")  # of content, 10^6 bytes
WRITE_AMPLIFICATION = Metric(
    "write_amplification", "ratio"
)  # bytes written to the images for each of content
HOST_READ = Metric("host_read_bytes", "B")
GUEST_FLUSHES = Metric("guest_flushes", "1")  # flush requests that the guest's kernel sent to the disk
HOST_FLUSHES = Metric("host_flushes", "1")  # flushes that the hypervisor passed on to the host
FLUSHES_PER_MB = Metric("guest_flushes_per_mb", "1/MB")
ALLOCATED = Metric("allocated_bytes", "B")  # of the target on the host's disk, afterwards
GUEST_CPU = Metric("guest_cpu_s", "s")  # of all processors of the guest, kernel and interrupts included
VMM_CPU = Metric("vmm_cpu_s", "s")  # of the hypervisor's process on the host

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


THROUGHPUT = Metric("throughput", "B/s", Better.HIGHER)  # bytes of content, flushes included in the time
WALL = Metric("wall_s", "s")
GUEST_WALL = Metric("guest_wall_s", "s")
GUEST_FLUSH = Metric("guest_flush_s", "s")  # the part of it in fsync and syncfs in the guest
HOST_FLUSH = Metric("host_flush_s", "s")  # the part of it in fsync of the image on the host
LAUNCH = Metric("launch_s", "s")
THROUGHPUT_WITH_LAUNCH = Metric("throughput_with_launch", "B/s", Better.HIGHER)
WALL_WITH_LAUNCH = Metric("wall_with_launch_s", "s")

WRITING = (THROUGHPUT, WALL, GUEST_WALL, GUEST_FLUSH, HOST_FLUSH, *BELOW)
READING = (THROUGHPUT, WALL, GUEST_WALL, *BELOW)
CHANNEL = (THROUGHPUT, WALL, GUEST_WALL)
LAUNCHING = (THROUGHPUT, WALL, GUEST_FLUSH, HOST_FLUSH, LAUNCH, THROUGHPUT_WITH_LAUNCH, WALL_WITH_LAUNCH)
