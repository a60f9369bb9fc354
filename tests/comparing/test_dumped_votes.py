"""Dumps of devices in known arithmetics, in four forms: the pairs are right, the first difference is found, and the
arithmetic is named from the dump alone."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from helpers.devices import (
    DEVICES,
    LARGE,
    NETWORKS,
    assert_true_of,
    device_values,
    first_different,
    network,
)
from helpers.dumps import FORMS, Device

from qrun.arithmetics import FAMILIES
from qrun.comparing.dumped import AUTO, map_dump
from qrun.comparing.runtimes import compare_runtimes
from qrun.comparing.sides import QrunSide
from qrun.dumps import read_dump
from qrun.errors import CallError

DUMPED = ("npz_renamed", "npy_folder", "snpe", "described_raw")
"""Renamed and channels last; some tensors fused away; dequantized without shapes; padded with other zero points."""


def judged(name: str, family: str, form: str, folder: Path) -> tuple[int, int]:
    """Large nodes whose group is named, and all large nodes that vote. Fails for a false name, a wrong pair or another
    first difference."""
    model, feeds = network(name)
    truth = FAMILIES[family]
    values = device_values(model, feeds, lambda node: truth)
    side = QrunSide(model, fuse=True)
    shown = {n: values[n] for n, array in side.run(feeds).items() if array is not None and n in values}
    first = first_different(name, values)
    written = FORMS[form](Device(model, feeds, shown, first or ""), folder)
    proposal = folder / "names.json"
    try:
        dump, _ = map_dump(read_dump(written.path), side, feeds, AUTO, proposal)
    except CallError:  # nothing is certain: the user decides what the proposal leaves open
        rows = json.loads(proposal.read_text())
        rows["tensors"] = [row | {"onnx": written.names[row["dump"]]} for row in rows["tensors"]]
        proposal.write_text(json.dumps(rows))
        dump, _ = map_dump(read_dump(written.path), side, feeds, str(proposal), proposal)
    for tensor, array in dump.tensors.items():
        if array.dtype.kind != "f" and tensor in values:
            np.testing.assert_array_equal(array, values[tensor], tensor)
    found = compare_runtimes(side, dump, feeds)
    if first in dump.tensors:
        assert found.first is not None
        assert found.first.name == first
    named = large = 0
    for claim in found.arithmetic:
        assert not claim.unlike, (name, family, form, claim)
        if claim.named:
            assert truth.name in claim.families, (name, family, form, claim.text)
            assert_true_of(truth, claim.text)
        for vote in claim.votes:
            large += vote.elements >= LARGE
            named += vote.elements >= LARGE and claim.named
    return named, large


FEW = (
    ("SqueezeNet-like, int8", "tfl-double", "npz_renamed"),
    ("mobile, QDQ uint8 per channel", "tfl-halfup2", "described_raw"),
    ("MLP, QGemm", "fp32", "snpe"),
)


@pytest.mark.parametrize(("name", "family", "form"), FEW)
def test_the_arithmetic_of_a_dump(name: str, family: str, form: str, tmp_path: Path) -> None:
    named, large = judged(name, family, form, tmp_path)
    assert named == large > 0


@pytest.mark.parametrize(("place", "name"), list(enumerate(NETWORKS)))
def test_ten_networks_on_six_devices(place: int, name: str, tmp_path: Path) -> None:
    """Each device's dump in one of the forms, another for each network."""
    counts = []
    for number, family in enumerate(DEVICES, place):
        folder = tmp_path / family
        folder.mkdir()
        counts.append(judged(name, family, DUMPED[number % len(DUMPED)], folder))
    named, large = map(sum, zip(*counts, strict=True))
    print(f"{name}: {named} of {large} nodes of {LARGE} elements or more")
    assert named >= 0.95 * large
