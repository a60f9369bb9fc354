"""``--image``: how image files become inputs. What it states is completed only by what a model's input leaves no choice
about; everything else that is needed is an error that names the key."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np

from qrun.declare.frozen import frozen, replace
from qrun.errors import CallError, close_matches
from qrun.io.sizes import fits
from qrun.ir import Array, TensorType
from qrun.ir.types import NUMBERS, integer_range, type_name

CHANNELS = {"gray": 1, "rgb": 3, "bgr": 3, "rgba": 4}
"""The number of channels by color."""
LAYOUTS = ("nchw", "nhwc", "chw", "hwc", "hw")
_RESIZES = ("size", "shorter")
"""Keys of which one counts."""
FILTERS = ("bilinear", "nearest", "box", "hamming", "bicubic", "lanczos")

_NUMBER = re.compile(r"[+-]?(\d{1,12}(\.\d{1,18}|/\d{1,12})?|\.\d{1,18})", re.ASCII)


@frozen
class ImageSettings:
    """What ``--image`` states; "", None and () where it says nothing.

    layout: order of the axes. size: width and height; or shorter: the length of the shorter side, which keeps the
    proportions. crop: width and height of the part in the middle, after that. resize: Pillow's filter. color: order of
    the channels.
    scale, mean, std: a value is ``(pixel * scale - mean) / std``, with one mean and std, or one for each channel.
    exif: "apply" or "ignore", for a camera's orientation.
    """

    layout: str = ""
    size: tuple[int, int] | None = None
    shorter: int | None = None
    crop: tuple[int, int] | None = None
    resize: str = "bilinear"
    color: str = ""
    scale: Fraction | None = None
    mean: tuple[Fraction, ...] = ()
    std: tuple[Fraction, ...] = ()
    exif: str = ""

    def resized(self, size: tuple[int, int]) -> tuple[int, int]:
        """Width and height of an image of this width and height after the resize. The longer side of `shorter` is
        rounded down, as torchvision's Resize does."""
        if self.shorter is None:
            return self.size or size
        width, height = (side * self.shorter // min(size) for side in size)
        return width, height


def parse_settings(words: Sequence[str]) -> ImageSettings:
    """Parse words such as ``size=224``; of equal keys the last counts, and of size and shorter. Raises CallError."""
    found: dict[str, Any] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or key not in _PARSERS:
            near = close_matches(key, _PARSERS)
            fixes = [f"did you mean --image {near[0]}={text}?"] if near else []
            raise _bad_word(word, f"KEY=VALUE, with the keys {', '.join(_PARSERS)}", fixes)
        expected, parse = _PARSERS[key]
        if key in _RESIZES:
            found = {other: value for other, value in found.items() if other not in _RESIZES}
        try:
            found[key] = parse(text.strip().lower())
        except (ValueError, ZeroDivisionError):
            raise _bad_word(word, f"{key}={expected}") from None
    return ImageSettings(**found)


def _bad_word(word: str, expected: str, fixes: Sequence[str] = ()) -> CallError:
    facts = [("expected", expected), ("got", word)]
    return CallError("QR005", f"--image {word} cannot be read", facts=facts, fixes=fixes or ["qrun explain image"])


def _one_of(*known: str) -> tuple[str, Callable[[str], str]]:
    def parse(text: str) -> str:
        if text not in known:
            raise ValueError(text)
        return text

    return f"{', '.join(known[:-1])} or {known[-1]}", parse


def _size(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"([1-9]\d{0,5})(?:x([1-9]\d{0,5}))?", text, re.ASCII)
    if found is None:
        raise ValueError(text)
    return int(found[1]), int(found[2] or found[1])


def _length(text: str) -> int:
    if not re.fullmatch(r"[1-9]\d{0,5}", text, re.ASCII):
        raise ValueError(text)
    return int(text)


def _numbers(text: str) -> tuple[Fraction, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(_NUMBER.fullmatch(part) for part in parts):
        raise ValueError(text)
    return tuple(map(Fraction, parts))


def _above_zero(text: str) -> tuple[Fraction, ...]:
    found = _numbers(text)
    if min(found) <= 0:
        raise ValueError(text)
    return found


def _scale(text: str) -> Fraction:
    (found,) = _above_zero(text)
    return found


_PARSERS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "layout": _one_of(*LAYOUTS),
    "size": ("WIDTHxHEIGHT, or one number for both", _size),
    "shorter": ("the shorter side in pixels", _length),
    "crop": ("WIDTHxHEIGHT, or one number for both", _size),
    "resize": _one_of(*FILTERS),
    "color": _one_of(*CHANNELS),
    "scale": ("a number above 0, such as 1/255", _scale),
    "mean": ("a number, or one for each channel, such as 0.485,0.456,0.406", _numbers),
    "std": ("a number above 0, or one for each channel, such as 0.229,0.224,0.225", _above_zero),
    "exif": _one_of("apply", "ignore"),
}
"""The keys of ``--image``: what each expects, and how it is parsed."""


def complete(spec: str, value: TensorType, stated: ImageSettings, size: tuple[int, int], turned: bool) -> ImageSettings:
    """The settings with the layout and color that fit an input.

    size: width and height of the image, upright. turned: does the file state an orientation other than upright?
    Raises CallError for keys that are missing, and for those that do not fit the input.
    """
    fitting = list(_fitting(value, stated))
    if value.dtype is None or value.dtype not in NUMBERS or value.dtype.kind in "bcO" or not fitting:
        raise _unfit(spec, value, stated)
    layouts, colors = ([*dict.fromkeys(column)] for column in zip(*fitting, strict=True))
    made = replace(stated, layout=layouts[0], color=colors[0])
    missing = {}
    if len(layouts) > 1:
        missing["layout"] = f"{', '.join(layouts)} fit", layouts[0]
    if len(colors) > 1:
        own = [color for layout, color in fitting if layout == layouts[0]]
        missing["color"] = f"{', '.join(colors)} fit", "rgb" if "rgb" in own else own[0]
    _check_crop(spec, stated, size)
    width, height = _free_or_fixed(value, made.layout)
    if not fits(stated.crop or stated.resized(size), (width, height)):
        if stated.crop or stated.size or stated.shorter:
            raise _unfit(spec, value, stated)
        wanted = f"{width or size[0]}x{height or size[1]}"
        missing["size"] = f"the input takes {wanted}", wanted
    if stated.scale is None and not _is_integer(value):
        missing["scale"] = "1/255 gives pixels from 0 to 1, 1 from 0 to 255", "1/255"
    if turned and not stated.exif:
        missing["exif"] = "the camera's orientation is not upright: apply or ignore it", "apply"
    if missing:
        raise _missing(spec, value, size, missing)
    for key, numbers in (("mean", made.mean), ("std", made.std)):
        if len(numbers) not in (0, 1, CHANNELS[made.color]):
            count = CHANNELS[made.color]
            what = f"--image {key} has {len(numbers)} numbers, and {made.color} has {count} channel{'s' * (count > 1)}"
            raise CallError("QR005", what, where=[spec], fixes=[f"give {key} one number, or {count}"])
    return made


def _check_crop(spec: str, stated: ImageSettings, size: tuple[int, int]) -> None:
    """Raise CallError if the image, resized, is smaller than the crop."""
    resized = stated.resized(size)
    if stated.crop and (stated.crop[0] > resized[0] or stated.crop[1] > resized[1]):
        facts = [("expected", f"at least {by(stated.crop)}"), ("got", f"{by(resized)} before the crop")]
        raise CallError(
            "QR003", f"{spec} is smaller than its crop", where=[spec], facts=facts,
            fixes=[f"add --image shorter={max(stated.crop)}, or what training used"],
        )  # fmt: skip


def by(size: tuple[int, int]) -> str:
    """Width and height as text."""
    return f"{size[0]}x{size[1]}"


def _fitting(value: TensorType, stated: ImageSettings) -> Iterator[tuple[str, str]]:
    """The layouts and colors that are stated, or else fit the input."""
    for layout in [stated.layout] if stated.layout else LAYOUTS:
        if value.shape is not None and len(value.shape) != len(layout):
            continue
        axis = layout.find("c")
        channels = value.shape[axis] if value.shape is not None and axis >= 0 else None
        for color in [stated.color] if stated.color else CHANNELS:
            count = CHANNELS[color]
            if count == channels or (not isinstance(channels, int) and (axis >= 0 or count == 1)):
                yield layout, color


def _free_or_fixed(value: TensorType, layout: str) -> tuple[int | None, int | None]:
    """Width and height that the input fixes; None where it fixes none."""
    sizes = value.shape if value.shape is not None else [None] * len(layout)
    found = (sizes[layout.index(axis)] for axis in "wh")
    width, height = (size if isinstance(size, int) else None for size in found)
    return width, height


def _is_integer(value: TensorType) -> bool:
    return value.dtype is not None and "int" in type_name(value.dtype)


def _missing(spec: str, value: TensorType, size: tuple[int, int], missing: dict[str, tuple[str, str]]) -> CallError:
    keys = list(missing)
    told = " and ".join(filter(None, [", ".join(keys[:-1]), keys[-1]]))
    example = " ".join(f"{key}={example}" for key, (_, example) in missing.items())
    example = f"'{example}'" if keys[1:] else example
    return CallError(
        "QR005",
        f"{spec} needs --image with {told}: qrun guesses nothing",
        where=[spec, f"input {value.name}"],
        facts=[
            ("expected", str(value)),
            ("got", f"an image of {size[0]}x{size[1]}"),
            *((key, why) for key, (why, _) in missing.items()),
        ],
        fixes=[f"add --image {example}, or what training used"],
    )


def _unfit(spec: str, value: TensorType, stated: ImageSettings) -> CallError:
    given = {
        "layout": stated.layout,
        "color": stated.color,
        "size": stated.size and by(stated.size),
        "shorter": stated.shorter,
        "crop": stated.crop and by(stated.crop),
    }
    words = " ".join(f"{key}={word}" for key, word in given.items() if word)
    what = f"--image {words} does not fit input {value.name!r}" if words else f"input {value.name!r} takes no image"
    expected = f"{value.name} {value}"
    return CallError(
        "QR003", what, where=[spec], facts=[("expected", expected), ("got", words or f"the image {spec}")],
        fixes=["qrun explain image lists the keys of --image"],
    )  # fmt: skip


def pixel_table(spec: str, value: TensorType, settings: ImageSettings) -> Array:
    """The input's value of each pixel, [channels, 256], in the input's element type: each is computed exactly, and
    rounded once. settings: those of `complete`. Raises CallError if the type does not hold them."""
    assert value.dtype is not None
    scale, mean, std = settings.scale or Fraction(1), settings.mean or (Fraction(0),), settings.std or (Fraction(1),)
    count = CHANNELS[settings.color]
    channels = tuple(zip(*(each * (count if len(each) == 1 else 1) for each in (mean, std)), strict=True))
    table = _table(value.dtype, scale, channels)
    if table is not None:
        return table
    ends = [float((pixel * scale - mean) / std) for mean, std in channels for pixel in (0, 255)]
    fix = "omit scale, mean and std: integer inputs take raw pixels"
    if value.dtype == np.int8:
        fix = "--image mean=128, without scale and std, gives pixels minus 128"
    raise CallError(
        "QR003",
        f"the pixels of {spec} do not fit input {value.name!r}",
        where=[spec],
        facts=[("expected", f"{value.name} {value}"), ("got", f"values from {min(ends):g} to {max(ends):g}")],
        why="integer inputs take whole numbers that their type holds." if _is_integer(value) else "",
        fixes=[fix],
    )


@lru_cache(16)
def _table(dtype: np.dtype[Any], scale: Fraction, channels: tuple[tuple[Fraction, Fraction], ...]) -> Array | None:
    """The values ``(pixel * scale - mean) / std`` of 256 pixels, for each channel's mean and std; None if the type does
    not hold them."""
    rows = [[(pixel * scale - mean) / std for pixel in range(256)] for mean, std in channels]
    if "int" not in type_name(dtype):
        with np.errstate(all="ignore"):
            made: Array = np.array([[float(exact) for exact in row] for row in rows]).astype(dtype)
        return made if np.isfinite(made.astype(np.float64)).all() else None
    low, high = integer_range(dtype)
    if any(exact.denominator != 1 or not low <= exact <= high for row in rows for exact in row):
        return None
    whole: Array = np.array([[int(exact) for exact in row] for row in rows]).astype(dtype)
    return whole
