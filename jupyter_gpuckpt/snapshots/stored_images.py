"""A reader of CRIU's images from the store, except the large ones that hold memory."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from ..errors import ObjectCorrupt
from ..images.unpack import read_stream
from ..store.read_only import ReadableStore
from ..wire.manifest_records import Manifest

#: The stream of all images but large ones, which have streams of their own.
IMAGES_STREAM = "images"

#: The limit of an image that is read into memory.
_MAX_IMAGE_BYTES = 1 << 28

#: The kinds of images with the tree's open files.
FILES = ("files", "remap-fpath")
#: The kinds of images with its processes, their page maps and descriptors.
PROCESSES = ("pstree", "core", "pagemap", "fdinfo")
#: The kinds of images with the memory that processes share.
MEMORY = ("mm", "pagemap")


def write_images(
    manifest: Manifest, store: ReadableStore, directory: Path, kinds: Collection[str]
) -> None:
    """Write the images of these kinds, e.g. `files` or `pagemap`, into `directory`.

    Raises ObjectCorrupt if one of them cannot be read from the store.
    """
    wanted = [image for image in manifest.images if _kind(image.name) in kinds]
    if not wanted:
        return
    small = memoryview(read_stream(manifest.stream(IMAGES_STREAM), store))
    for image in wanted:
        if image.length > _MAX_IMAGE_BYTES:
            raise ObjectCorrupt(
                f"Image {image.name} is longer than can be: {image.length:,} bytes."
            )
        if image.stream:
            content = read_stream(manifest.stream(image.stream), store)
        else:
            content = bytes(small[image.offset : image.offset + image.length])
        (directory / image.name).write_bytes(content)


def _kind(name: str) -> str:
    """Return `pagemap` for `pagemap-12.img` and `remap-fpath` for `remap-fpath.img`."""
    stem = name.removesuffix(".img")
    head, _, number = stem.rpartition("-")
    return head if number.isdecimal() else stem
