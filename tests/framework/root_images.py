"""Creates root filesystems and container images in their usual formats."""

import io
import json
import subprocess
import tarfile
from collections.abc import Mapping
from pathlib import Path


def tar(files: Mapping[str, bytes], links: Mapping[str, str] | None = None) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o755
            archive.addfile(entry, io.BytesIO(content))
        for name, target in (links or {}).items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            archive.addfile(entry)
    return stream.getvalue()


def saved(path: Path, layers: list[bytes], *, oci: bool = False) -> str:
    """Write an image as `docker save` does, or with `oci` as `podman save --format oci-archive`; return its path."""
    files = {f"blobs/sha256/{number}": layer for number, layer in enumerate(layers)}
    if oci:
        described = {"layers": [{"digest": f"sha256:{number}"} for number in range(len(layers))]}
        files |= {
            "blobs/sha256/m": json.dumps(described).encode(),
            "index.json": json.dumps({"manifests": [{"digest": "sha256:m"}]}).encode(),
        }
    else:
        files["manifest.json"] = json.dumps([{"Layers": list(files)}]).encode()
    path.write_bytes(tar(files))
    return str(path)


def squashfs(tree: Path, image: Path) -> None:
    subprocess.run(["mksquashfs", tree, image, "-quiet", "-no-progress"], check=True, capture_output=True)


def ext4(tree: Path, image: Path) -> None:
    content = sum(path.lstat().st_size for path in tree.rglob("*"))
    with image.open("wb") as stream:
        stream.truncate(2 * content + (8 << 20))
    subprocess.run(["/usr/sbin/mke2fs", "-q", "-t", "ext4", "-d", tree, image], check=True)


def archive(tree: Path, image: Path) -> None:
    with tarfile.open(image, "w:xz") as written:
        written.add(tree, ".")


def image_of_layers(tree: Path, image: Path) -> None:
    layer = image.with_name("layer")
    archive(tree, layer)
    saved(image, [layer.read_bytes(), tar({"etc/added": b""})])


FORMS = (squashfs, ext4, archive, image_of_layers)
