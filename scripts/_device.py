"""What a device with TFLite's arithmetic would dump: channels last, int8, padded to 16 channels, some tensors fused."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import qrun
from qrun.arithmetics import FAMILIES
from qrun.comparing.causes._steps import sums_and_scales
from qrun.comparing.dumped import dump_partner
from qrun.comparing.emulated import NodeGroup
from qrun.ir import Array, Model
from qrun.ops._quantize import limits

DUMPED = {
    "images": "input", "c1": "conv1", "pw": "conv3", "pool": "maxpool", "c2": "conv4", "sum": "add", "mean": "avgpool",
    "logits": "fc",
}  # fmt: skip
"""Tensors of the digits that the device shows, and its names for them; what it fuses is not there."""


def write(folder: Path, model: str, images: Array) -> None:
    """Write a folder of .npy files, as a device would after it ran the quantized digits."""
    folder.mkdir()
    values = run(qrun.load(model), {"images": images})
    for name, shown in DUMPED.items():
        codes = np.moveaxis((values[f"{name}_QuantizeLinear_Output"] ^ 128).view(np.int8), 1, -1)
        extra = -codes.shape[-1] % 16
        np.save(folder / f"{shown}.npy", np.pad(codes, [(0, 0)] * (codes.ndim - 1) + [(0, extra)]))


def run(model: Model, feeds: dict[str, Array], family: str = "tfl-double") -> dict[str, Array]:
    """All tensors of a model whose integer sums are requantized as a family of arithmetics does."""
    values = dict(feeds)
    side = dump_partner(model)
    for unit in side.units:
        made = {name: array for name, array in side.alone(unit, values).items() if array is not None}
        for name in unit.gives:
            suspect = NodeGroup(model, unit, name, {**model.constants, **values}).fused_node(None)
            sums = sums_and_scales(suspect) if suspect is not None else None
            if suspect is not None and sums is not None:
                kind = suspect.mine.dtype
                made[name] = FAMILIES[family].codes(*sums, suspect.zero, *limits(kind)).astype(kind)
        values |= made
    return values
