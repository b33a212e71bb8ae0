"""An archive in the kernel's initramfs format (cpio "newc"; Documentation/driver-api/early-userspace/buffer-format)."""

import stat


class Archive:
    """Collects entries and yields the archive's bytes. Device nodes need no privileges: they are only described."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._inode = 0

    def directory(self, path: str) -> None:
        """A directory, mode 0755."""
        self._entry(path, stat.S_IFDIR | 0o755)

    def file(self, path: str, content: bytes, mode: int = 0o644) -> None:
        """A regular file."""
        self._entry(path, stat.S_IFREG | mode, content)

    def character_device(self, path: str, major: int, minor: int) -> None:
        """A character device node, mode 0600."""
        self._entry(path, stat.S_IFCHR | 0o600, device=(major, minor))

    def content(self) -> bytes:
        """The whole archive with its trailer, padded to 512 bytes."""
        self._entry("TRAILER!!!", 0)
        whole = b"".join(self._parts)
        return whole + bytes(-len(whole) % 512)

    def _entry(self, path: str, mode: int, content: bytes = b"", device: tuple[int, int] = (0, 0)) -> None:
        self._inode += 1
        name = path.encode() + b"\0"
        # ino, mode, uid, gid, nlink, mtime, size, dev major and minor, rdev major and minor, name size, check
        fields = (self._inode, mode, 0, 0, 1, 0, len(content), 0, 0, *device, len(name), 0)
        head = b"070701" + b"".join(b"%08X" % value for value in fields) + name
        self._parts += [head, bytes(-len(head) % 4), content, bytes(-len(content) % 4)]
