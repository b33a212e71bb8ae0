"""The workload `netboot` in plans: how many files of which size iPXE fetches; the machine is made of factors."""

import os
import ssl

from pydantic import field_validator

from guestmark.core.units import format_size, parse_size
from guestmark.plan.schema import Strict, param

_LARGEST = 1 << 30  # bytes; iPXE under BIOS keeps a file below 4 GB, and the hypervisor's hole is there


class NetbootParams(Strict):
    """`port` is the file server's on the host; 0 takes any free one, which keeps runs apart.

    `kernel` ends each boot in a kernel, fetched like the files, whose agent answers; then a trial is one round.
    `certificate` is for protocol=https: a PEM file that also holds the key.
    """

    size: str = param("100M", "of each file", "size")
    files: int = param(5, "files of a round", ge=1, le=1000)
    port: int = param(0, "of the file server; 0: any free one", ge=0, le=65535)
    certificate: str | None = param(None, "certificate and key for `protocol=https` (PEM)", "path")
    kernel: bool = param(False, "end each boot in a kernel whose agent answers")

    @field_validator("certificate")
    @classmethod
    def _is_a_certificate(cls, certificate: str | None) -> str | None:
        if certificate is None:
            return None
        path = os.path.abspath(os.path.expanduser(certificate))
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(path)
        except OSError as error:  # of SSL's, too
            raise ValueError(
                f"{certificate} is not a PEM file with certificate and key: {error.strerror}"
            ) from error
        return path

    @field_validator("size")
    @classmethod
    def _is_a_size(cls, size: str) -> str:
        number = parse_size(size)
        if not 4096 <= number <= _LARGEST:
            raise ValueError(f"{size!r} is not between 4K and 1G, which is what iPXE can keep")
        return format_size(number)
