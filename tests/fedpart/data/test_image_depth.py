"""Images in colour of 16 bits a channel, which PIL cuts to 8."""

import io
import struct
import zlib
from functools import partial

import numpy as np
import pytest
import refusals
from PIL import Image

from fedpart.data.image_dataset import pixels


def png(depth, kind, channels):
    """A PNG of 4x4 pixels, by the standard's letter."""

    def chunk(name, content):
        return (
            struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))
        )

    rows = (b"\0" + bytes(4 * channels * depth // 8)) * 4
    head = struct.pack(">IIBBBBB", 4, 4, depth, kind, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )


def read(content):
    return pixels(Image.open(io.BytesIO(content)), None, "rgb")


def test_more_than_8_bits_are_refused():
    files = {
        "RGB": png(16, 2, 3),
        "RGBA": png(16, 6, 4),
        "grey with alpha": png(16, 4, 2),
        "grey": png(16, 0, 1),
        "PPM of 65535": b"P6 4 4 65535\n" + bytes(96),
        "PPM of 1023": b"P6 4 4 1023\n" + bytes(96),
    }
    refusals.check((what, partial(read, file), "more than 8 bits") for what, file in files.items())


@pytest.mark.parametrize("kind, channels", [(2, 3), (6, 4), (0, 1), (4, 2)])
def test_8_bits_are_read(kind, channels):
    assert not read(png(8, kind, channels)).any()
    assert np.array_equal(read(b"P6 4 4 255\n" + bytes(range(48)))[0], np.arange(0, 48, 3).reshape(4, 4))
