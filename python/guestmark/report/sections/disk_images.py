"""Descriptions of the disk images that guests booted from."""

from __future__ import annotations

import os
from collections import Counter

from guestmark.core.machine_facts import DiskImage, GuestMachine, ImageFirmware, NestedMachine
from guestmark.ledger.model import StoredRun
from guestmark.page.text import join_parts

_DIGEST_CHARACTERS = 12  # that are shown
_FIRMWARE = {
    ImageFirmware.BIOS: "BIOS",
    ImageFirmware.UEFI: "UEFI",
    ImageFirmware.EMULATOR: "the emulator's firmware",
}


def describe_images(run: StoredRun) -> dict[str, str]:
    """Return a description of each image of the run, by file name; of a changed file, all its versions.

    Where files in several directories have the same name, their whole paths are the keys.
    """
    versions: dict[str, dict[str, None]] = {}
    for trial in run.trials:
        nested = trial.facts.find_fact(NestedMachine)
        guest = nested.inner if nested is not None else trial.facts.find_fact(GuestMachine)
        if guest is not None and guest.image is not None:
            texts = versions.setdefault(guest.image.path, {})
            texts[_describe_image(guest.image, guest.guest.kernel)] = None
    names = Counter(map(os.path.basename, versions))
    described = {}
    for path, texts in versions.items():
        name = os.path.basename(path)
        if names[name] > 1:
            name = path
        described[f"image {name}"] = "; then ".join(texts)
    return described


def _describe_image(image: DiskImage, kernel: str) -> str:
    parts = [
        image.distribution,
        f"its own kernel {kernel}",
        f"booted by {_FIRMWARE[image.firmware]}",
        f"agent in {image.entered.value}",
        f"SHA-256 {image.sha256[:_DIGEST_CHARACTERS]}…",
    ]
    return join_parts(parts)
