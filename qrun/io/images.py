"""Reads image files as arrays for inputs, as ``--image`` states it (`imagesettings`).

Pillow decodes and resizes. Colours are converted before the resize, which rounds to 8 bits; then each pixel becomes the
value that the settings give it. Colour profiles and gamma are ignored.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from qrun.errors import QrunError, UnsupportedError
from qrun.io.arrays import bad_file, no_such_file
from qrun.io.imagesettings import ImageSettings, by, complete, parse_settings, pixel_table
from qrun.ir import Array, TensorType
from qrun.memory import Budget

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".bmp": "BMP", ".webp": "WEBP"}
"""Pillow's formats by suffix."""
_COLORS = ("1", "L", "LA", "P", "PA", "RGB", "RGBA")
"""Pillow's modes of 8 bits or fewer a channel whose colours are known without a profile."""
_ORIENTATION = 0x0112
"""The EXIF tag of the camera's orientation; 1: upright, 5 to 8: width and height change places."""
_DEPTH = 24
"""The place of the bits per channel in a .png file."""


def read_image(spec: str, value: TensorType, words: Sequence[str], budget: Budget) -> tuple[Array, str]:
    """Read an image for an input. words: of ``--image``.

    Returns the array and how it was made: ``resized bilinear 640x480 -> 224x224, rgb, /255, mean 0.485 0.456 0.406,
    std 0.229 0.224 0.225, nchw``. Raises CallError for a damaged file, and for settings that are missing or do not fit
    the input; UnsupportedError without Pillow, MemoryLimitError.
    """
    pillow = _pillow(spec)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        image, orientation = _decode(spec, pillow, budget)
        stated = parse_settings(words)
        upright = image.size[::-1] if orientation > 4 and stated.exif == "apply" else image.size
        settings = complete(spec, value, stated, upright, orientation != 1)
        table = pixel_table(spec, value, settings)
        image, said = _colored(spec, image, settings)
        if orientation != 1:
            said.append(f"EXIF orientation {orientation} {'applied' if settings.exif == 'apply' else 'ignored'}")
            image = _turned(image) if settings.exif == "apply" else image
        size = settings.resized(image.size)
        sizes = by(size)
        if size != image.size:
            sizes = f"resized {settings.resize} {by(image.size)} -> {by(size)}"
            budget.claim((*size, len(image.getbands())), 1, spec)
            image = image.resize(size, getattr(pillow.Resampling, settings.resize.upper()))
        if settings.crop and settings.crop != size:
            sizes += f", center {by(settings.crop)}"
            image = _cropped(image, settings.crop)
        pixels = np.asarray(image)
    budget.claim(pixels.shape, table.itemsize, spec)
    return _arranged(pixels, table, settings), ", ".join([sizes, *said, *_formula(settings), settings.layout])


def _pillow(spec: str) -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise UnsupportedError(
            "QR012",
            "image files need the package Pillow",
            where=[spec],
            facts=[("got", str(error))],
            fixes=["pip install pillow"],
        ) from None
    return Image


def _decode(spec: str, pillow: Any, budget: Budget) -> tuple[Image, int]:
    """The image in a file, and its orientation. Raises CallError unless it is whole, with one frame of at most 8 bits a
    channel."""
    warnings.simplefilter("error", pillow.DecompressionBombWarning)
    try:
        with open(spec, "rb") as stream:
            start = stream.read(_DEPTH + 1)
            stream.seek(0)
            image: Image = pillow.open(stream, formats=sorted(set(FORMATS.values())))
            if frames := getattr(image, "n_frames", 1) - 1:
                raise bad_file(spec, f"{frames + 1} frames", "one frame", fix="save one of them as .png")
            deep = image.format == "PNG" and start[_DEPTH] > 8
            if deep or image.mode not in _COLORS:
                got = "16 bits a channel" if deep else f"an image of mode {image.mode}"
                fix = "convert it to RGB or gray with 8 bits a channel"
                raise bad_file(spec, got, "8 bits a channel, in gray, palette or RGB, with alpha or without", fix=fix)
            budget.claim((*image.size, len(image.getbands())), 1, spec)
            image.load()
            orientation = image.getexif().get(_ORIENTATION, 1)
            return image, orientation if orientation in range(2, 9) else 1
    except QrunError:
        raise
    except (pillow.DecompressionBombError, pillow.DecompressionBombWarning):
        most = f"at most {pillow.MAX_IMAGE_PIXELS / 1e6:.0f} million pixels"
        raise bad_file(spec, "an image with more pixels", most, fix="make it smaller") from None
    except pillow.UnidentifiedImageError:
        got = f"a file that starts with {start[:8]!r}" if start else "an empty file"
        raise bad_file(spec, got, f"an image: {', '.join(FORMATS)}", fix="check the file") from None
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise no_such_file(spec, error) from None
        raise bad_file(spec, f"a damaged image: {error}"[:160], "a whole image", fix="write it again") from None


def _colored(spec: str, image: Image, settings: ImageSettings) -> tuple[Image, list[str]]:
    """The image in the colors of the settings, without alpha unless they have it; and what was done."""
    said = [settings.color]
    if image.mode in ("P", "PA"):
        said.append("palette")
    if image.mode == "PA" or "transparency" in image.info:
        image = image.convert("RGBA")
    elif image.mode == "P":
        image = image.convert("RGB")
    elif image.mode == "1":
        image = image.convert("L")
    alpha = image.getchannel("A").getextrema() if "A" in image.getbands() else (255, 255)
    if settings.color == "rgba":
        return image.convert("RGBA"), said
    if alpha != (255, 255):
        raise bad_file(
            spec,
            "an image with transparent pixels",
            f"an opaque image, for color={settings.color}",
            fix="put it on the background that training used, or --image color=rgba for an input of 4 channels",
        )
    said += ["opaque alpha dropped"] if image.mode in ("RGBA", "LA") else []
    gray = image.mode in ("L", "LA")
    if settings.color != "gray":
        said[0] += " from gray" if gray else ""
        return image.convert("RGB"), said
    said[0] += "" if gray else " by ITU-R 601"
    return image.convert("L"), said


def _turned(image: Image) -> Image:
    from PIL import ImageOps

    return ImageOps.exif_transpose(image)


def _cropped(image: Image, size: tuple[int, int]) -> Image:
    """The part in the middle. Of an odd margin, half a pixel is rounded to even, as torchvision's CenterCrop does."""
    left, top = (round((whole - part) / 2) for whole, part in zip(image.size, size, strict=True))
    return image.crop((left, top, left + size[0], top + size[1]))


def _arranged(pixels: Array, table: Array, settings: ImageSettings) -> Array:
    """The values of pixels, [H,W] or [H,W,C], in the layout of the settings."""
    channels = pixels[..., None] if pixels.ndim == 2 else pixels
    if settings.color == "bgr":
        channels = channels[..., ::-1]
    values = np.stack([row[channels[..., at]] for at, row in enumerate(table)])
    layout = settings.layout.removeprefix("n")
    made = values[0] if layout == "hw" else values if layout == "chw" else values.transpose(1, 2, 0)
    return np.ascontiguousarray(made[None] if "n" in settings.layout else made)


def _formula(settings: ImageSettings) -> Iterator[str]:
    """What the settings do to the values, in words."""
    if settings.scale is None and not settings.mean and not settings.std:
        yield "raw pixels"
        return
    scale = Fraction(1) if settings.scale is None else settings.scale
    yield (
        "pixels from 0 to 255"
        if scale == 1
        else f"/{scale.denominator}"
        if scale.numerator == 1
        else f"x {float(scale):g}"
    )
    for key, numbers in (("mean", settings.mean), ("std", settings.std)):
        yield f"{key} {' '.join(f'{float(each):g}' for each in numbers)}" if numbers else f"no {key}"
