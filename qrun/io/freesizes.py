"""Sizes for the free axes of random inputs: what an axis is likely to be, and the sizes that are tried for it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Literal

import numpy as np

from qrun.ir import TensorType
from qrun.ir.types import type_name

Axes = tuple[TensorType, Sequence[int | str]]
"""An input and the sizes of its axes, names for free ones."""
Kind = Literal["batch", "sequence", "state", "image", "channels"]

IMAGES = (32, 64, 224, 320, 640)
SEQUENCES = (16, 64, 128, 512)
CHANNELS = (3, 1)
"""The sizes tried, in this order; a batch is 1."""

_ORDER: tuple[Kind, ...] = ("batch", "sequence", "state", "image", "channels")
"""An axis that two inputs share is of the kind that comes first."""
_BATCH = re.compile(r"batch|^(n|b|bs)$", re.I)
_SEQUENCE = re.compile(r"seq|time|len|frame|step|token|^(t|l|s)$", re.I)


def kinds(axes: Iterable[Axes], free: frozenset[str]) -> dict[str, Kind]:
    """What each of the free axes is likely to be, by name."""
    found: dict[str, Kind] = {}
    for value, sizes in axes:
        image = _image_axes(value, sizes)
        for place, size in enumerate(sizes):
            if isinstance(size, str) and size in free:
                kind = _kind(value, sizes, place, image)
                found[size] = min(found.get(size, kind), kind, key=_ORDER.index)
    return found


def named_batch(name: str) -> bool:
    """Whether the name of an axis says that it is the batch."""
    return bool(_BATCH.search(name))


def _kind(value: TensorType, sizes: Sequence[int | str], place: int, image: Sequence[int]) -> Kind:
    rank, name = len(sizes), str(sizes[place])
    if named_batch(name):
        return "batch"
    if place in image:
        return "image"
    if rank == 4 and place == 1 and image == (2, 3):
        return "channels"
    if _SEQUENCE.search(name):
        return "sequence"
    if place == 0 and (rank > 1 or not _is_float(value)):
        return "batch"
    if rank == 3 and place == 1 and isinstance(sizes[0], int) and isinstance(sizes[2], int):
        return "batch" if sizes[0] > 1 else "state"  # layers of a recurrent network, its batch and width
    return "sequence"


def _image_axes(value: TensorType, sizes: Sequence[int | str]) -> tuple[int, ...]:
    """The axes of height and width of an input that looks like images; none for others."""
    rank = len(sizes)
    if rank not in (3, 4) or not (_is_float(value) or value.dtype in (np.uint8, np.int8)):
        return ()
    colors = (1, 3) if rank == 4 else (3,)
    first, last = sizes[rank - 3], sizes[-1]
    if isinstance(last, str) and (first in colors or (rank == 4 and all(isinstance(size, str) for size in sizes))):
        return rank - 2, rank - 1
    if last in colors and isinstance(sizes[-2], str) and isinstance(sizes[-3], str):
        return rank - 3, rank - 2
    return ()


def _is_float(value: TensorType) -> bool:
    return value.dtype is not None and "float" in type_name(value.dtype)


def tries(kinds: Mapping[str, Kind]) -> Iterator[dict[str, int]]:
    """Sizes of all axes, the likeliest first; at last 1 for each."""
    present = set(kinds.values())

    def choices(kind: Kind, sizes: Sequence[int]) -> Sequence[int]:
        return sizes if kind in present else sizes[:1]

    lengths = SEQUENCES if present & {"sequence", "state"} else SEQUENCES[:1]
    given = choices("image", IMAGES), lengths, choices("channels", CHANNELS), choices("state", (0, 1))
    for image, length, channels, state in product(*given):
        size = {"batch": 1, "sequence": length, "state": state or length, "image": image, "channels": channels}
        yield {name: size[kind] for name, kind in kinds.items()}
    if present - {"batch"}:
        yield dict.fromkeys(kinds, 1)
