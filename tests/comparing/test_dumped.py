"""Dumps of devices as a side of compare: no pair is wrong, the first difference is found, what is unsure is said."""

from __future__ import annotations

import json
import logging
from contextlib import suppress
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from helpers.cli import call
from helpers.dumps import FORMS, Array, Device, channels_last, quantized, run_device
from helpers.small_networks import NETWORKS

import qrun
from qrun.comparing.dumped import AUTO, DumpMap, DumpSide, dump_partner, map_dump
from qrun.comparing.mapping.targets import targets
from qrun.comparing.runtimes import compare_runtimes
from qrun.comparing.sides import QrunSide
from qrun.dumps import read_dump
from qrun.errors import CallError

logging.getLogger().setLevel(logging.ERROR)  # onnxruntime's quantizer talks
ROOT = Path(__file__).resolve().parents[2]
DIGITS = ROOT / "models" / "digits"
SCHEMAS = {
    name: json.loads(files("qrun").joinpath(f"schemas/{name}-1.0.json").read_text()) for name in ("map", "compare")
}


def mapped(device: Device, path: Path, names: dict[str, str | None]) -> tuple[DumpSide, DumpMap]:
    """The dump as a side, after a look at every pair: it is the right tensor, or one that has its values by rearranging
    them, and the values are the device's, bit for bit."""
    side = dump_partner(device.model)
    known = targets(device.model, device.feeds, side.run(device.feeds))
    dump, found = map_dump(read_dump(path), side, device.feeds, AUTO, path.with_name("names.json"))
    for row in found.pairs:
        true = names[row.dump]
        assert true is not None, row
        assert row.onnx is not None
        assert known[row.onnx].root == known[true].root, row
        if row.onnx == true and device.values[true].dtype.kind != "f":
            assert np.array_equal(dump.tensors[true], device.values[true]), row
    return dump, found


def check(network: str, form: str, kind: str, folder: Path) -> None:
    """Map a device's dump, and find the first of its tensors that differs."""
    _, model, feeds = quantized(network, kind)
    device = run_device(model, feeds, list(FORMS).index(form) + 3)
    written = FORMS[form](device, folder)
    dump, found = mapped(device, written.path, dict(written.names))
    assert len(found.pairs) >= 0.5 * len(written.names)
    side = dump_partner(model)
    mine = side.run(feeds)
    order = [name for unit in side.units for name in unit.gives if name in dump.tensors]
    wrong = [name for name in order if not np.array_equal(dump.tensors[name], mine[name])]
    first = compare_runtimes(side, dump, feeds).first
    assert (first and first.name) == (wrong[0] if wrong else None)
    if device.planted in dump.tensors:
        assert wrong[0] == device.planted


FEW = [("cnn", "tflite"), ("residual", "described_raw"), ("depthwise", "log"), ("gemm", "snpe"), ("mlp", "tidl")]


@pytest.mark.parametrize(("network", "form"), FEW)
def test_no_pair_is_wrong(network: str, form: str, tmp_path: Path) -> None:
    check(network, form, "QDQ", tmp_path)


@pytest.mark.parametrize(("network", "form", "kind"), [*product(NETWORKS, FORMS, ("QDQ", "QOperator"))])
def test_no_pair_of_any_network_is_wrong(network: str, form: str, kind: str, tmp_path: Path) -> None:
    check(network, form, kind, tmp_path)


@pytest.mark.parametrize("network", NETWORKS)
def test_names_that_say_the_wrong_tensor_are_not_believed(network: str, tmp_path: Path) -> None:
    _, model, feeds = quantized(network, "QDQ")
    device = run_device(model, feeds, 1)
    names = list(device.values)
    turned = dict(zip(names, names[1:] + names[:1], strict=True))
    np.savez(tmp_path / "d.npz", **{name: device.values[true] for name, true in turned.items()})
    with suppress(CallError):  # nothing may be certain
        mapped(device, tmp_path / "d.npz", dict(turned))


@pytest.mark.parametrize("network", NETWORKS)
def test_tensors_of_other_inputs_fit_nothing(network: str, tmp_path: Path) -> None:
    _, model, feeds = quantized(network, "QDQ")
    side = QrunSide(model, fuse=True)
    others = side.run({"x": NETWORKS[network]()[0].sample(77)})
    np.savez(tmp_path / "d.npz", **{f"b{at}": array for at, array in enumerate(others.values()) if array is not None})
    with pytest.raises(CallError, match=r"no tensor of|holds floats"):
        map_dump(read_dump(tmp_path / "d.npz"), side, feeds, AUTO, tmp_path / "n.json")


def test_values_before_an_activation_are_not_those_after_it(tmp_path: Path) -> None:
    _, model, feeds = quantized("cnn", "QDQ")
    side = dump_partner(model)
    mine = {name: array for name, array in side.run(feeds).items() if array is not None}
    name = "t1_QuantizeLinear_Output"
    codes = mine[name].astype(np.float64)
    low = codes == codes.min()
    found = targets(model, feeds, mine)[name]
    real = (
        np.where(low, codes - 1.0 - np.arange(codes.size).reshape(codes.shape) % 3, codes) - found.zero
    ) * found.scale
    np.savez(tmp_path / "d.npz", before=real.astype(np.float32))
    with pytest.raises(CallError) as caught:
        map_dump(read_dump(tmp_path / "d.npz"), side, feeds, AUTO, tmp_path / "n.json")
    assert "before" in str(caught.value.facts)


@pytest.mark.parametrize("network", NETWORKS)
def test_floats_that_no_quantization_explains_are_said(network: str, tmp_path: Path) -> None:
    float_model, model, feeds = quantized(network, "QDQ")
    values = {
        f"f{at}": array for at, array in enumerate(QrunSide(float_model).run(feeds).values()) if array is not None
    }
    np.savez(tmp_path / "d.npz", **values)
    side = QrunSide(model, fuse=True)
    said = ""
    try:
        dump, found = map_dump(read_dump(tmp_path / "d.npz"), side, feeds, AUTO, tmp_path / "n.json")
    except CallError as error:
        said = error.message
    if said:
        assert "holds floats that no quantization of the model explains" in said
    else:
        assert found.floats
        assert all(array.dtype.kind == "f" for array in dump.tensors.values())


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The digits, and what a device dumped: channels last, int8, one code in c1 a step off, and no c2."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.onnx").write_bytes((DIGITS / "qdq" / "model.onnx").read_bytes())
    images = np.load(DIGITS / "x.npy")[:2]
    np.save("x.npy", images)
    _write_digits(images)
    return tmp_path


def _write_digits(images: Array, **more: Array) -> None:
    side = QrunSide(qrun.load("m.onnx"), fuse=True)
    values: dict[str, Any] = {"images": images}
    for unit in side.units:
        values |= {name: np.array(array) for name, array in side.alone(unit, values).items() if array is not None}
        if "c1_QuantizeLinear_Output" in unit.gives:
            values["c1_QuantizeLinear_Output"][0, 3, 2, 1] += 1
    names = [n for n, a in values.items() if a.dtype == np.uint8 and n != "c2_QuantizeLinear_Output"]
    arrays = {n.partition("_")[0]: channels_last((values[n] ^ 128).view(np.int8)) for n in names}
    np.savez("dump.npz", **arrays, **more)


def test_the_command(folder: Path) -> None:
    ended = call("compare", "m.onnx", "dump.npz", "-i", "x.npy", "--map", "auto")
    assert ended.code == 1
    assert "first at node 12 by 1 step" in ended.out
    assert "c1_QuantizeLinear_Output" in ended.out
    assert "wrote dump.names.json" in ended.err
    assert "int8 NHWC" in ended.out
    written = json.loads((folder / "dump.names.json").read_text())
    jsonschema.validate(written, SCHEMAS["map"])
    again = call("compare", "m.onnx", "dump.npz", "-i", "x.npy", "--map", "dump.names.json", "--json")
    jsonschema.validate(again.json, SCHEMAS["compare"])
    assert again.code == 1
    assert not again.json["map"]["proposed"]
    assert again.json["first"]["node"] == 12
    inputs = {t["name"]: t["inputs_equal"] for t in again.json["tensors"]}
    assert inputs["c1_QuantizeLinear_Output"] is True
    assert inputs["dw_QuantizeLinear_Output"] is False


def test_codes_of_pools_and_reshapes_are_found(folder: Path) -> None:
    """A fused group moves these operators to integers and would remove the codes between them."""
    session = qrun.Session("m.onnx", fuse=False)
    wanted = [f"{name}_QuantizeLinear_Output" for name in ("pool", "mean", "features")]
    made = session.values({"images": np.load("x.npy")}, wanted)
    arrays = {f"t{n}": channels_last((made[name] ^ 128).view(np.int8)) for n, name in enumerate(wanted)}
    np.savez("dump.npz", **arrays)  # type: ignore[arg-type]
    call("compare", "m.onnx", "dump.npz", "-i", "x.npy", "--map", "auto")
    rows = json.loads((folder / "dump.names.json").read_text())["tensors"]
    assert rows[0]["onnx"] == "pool_QuantizeLinear_Output"
    assert rows[1]["onnx"] == "mean_QuantizeLinear_Output"


def test_an_edited_map_is_used_and_never_replaced(folder: Path) -> None:
    assert call("compare", "m.onnx", "dump.npz", "-i", "x.npy", "--map", "auto").code == 1
    path = folder / "dump.names.json"
    edited = json.loads(path.read_text())
    edited["tensors"] = [{"dump": row["dump"], "onnx": row["onnx"]} for row in edited["tensors"] if row["dump"] == "c1"]
    path.write_text(json.dumps(edited))
    refused = call("compare", "m.onnx", "dump.npz", "-i", "x.npy", "--map", "auto")
    assert refused.code == 2
    assert "holds another map" in refused.err
    used = call("compare", "m.onnx", "dump.npz", "-i", "x.npy", "--map", str(path), "--json")
    assert used.code == 1
    assert [t["name"] for t in used.json["tensors"]] == ["c1_QuantizeLinear_Output"]


def test_inputs_of_the_dump(folder: Path) -> None:
    images = np.load("x.npy")
    _write_digits(images, **{"images:0": images})
    with np.load("dump.npz") as stored:
        np.savez("dump.npz", **{name: array for name, array in stored.items() if name != "images"})
    ended = call("compare", "m.onnx", "dump.npz", "--map", "auto", "--json")
    assert ended.json["inputs"][0]["source"] == "dump.npz"
    assert ended.json["first"]["node"] == 12
    np.save("y.npy", images + 1)
    (folder / "dump.names.json").unlink()
    wrong = call("compare", "m.onnx", "dump.npz", "-i", "y.npy", "--map", "auto")
    assert wrong.code == 2
    assert "made from other inputs: 128 of 128 elements of images differ" in wrong.err


ROWS: list[tuple[dict[str, Any], str]] = [
    ({"dump": "c9", "onnx": "logits"}, "has no tensor 'c9'"),
    ({"dump": "c1", "onnx": "c1"}, "has no tensor 'c1'"),
    ({"dump": "c1", "onnx": "pw_QuantizeLinear_Output"}, "cannot be read as pw_QuantizeLinear_Output"),
    ({"dump": "c1", "onnx": "c1_QuantizeLinear_Output", "layout": "NHXC"}, "layout NHXC does not fit"),
    ({"dump": "c1", "onnx": "c1_QuantizeLinear_Output", "layout": "HWC"}, "layout HWC does not fit"),
    ({"dump": "c1", "onnx": "c1_QuantizeLinear_Output", "channels": 32}, "elements do not fit"),
    ({"dump": "c1", "onnx": "c1_QuantizeLinear_Output", "scale": -1}, "a scale above 0"),
    ({"dump": "c1", "onnx": "c1_QuantizeLinear_Output", "exponent": 10**9}, "a scale above 0"),
    ({"dump": "c1", "onnx": "c1_QuantizeLinear_Output", "scale": 0.5}, "cannot be read"),
    ({"dump": "c1", "onnx": "c1_QuantizeLinear_Output", "kind": "int8"}, "kind"),
    ({"dump": "c1", "onnx": 7}, "a string"),
]


@pytest.mark.parametrize(("row", "told"), ROWS)
def test_rows_that_do_not_fit(folder: Path, row: dict[str, Any], told: str) -> None:
    Path("n.json").write_text(json.dumps({"schema": "qrun/map/1.0", "tensors": [row]}))
    ended = call("compare", "m.onnx", "dump.npz", "-i", "x.npy", "--map", "n.json")
    assert ended.code == 2
    assert told in ended.err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["m.onnx", "--map", "auto"], "--map needs a model and a dump"),
        (["dump.npz", "dump.npz", "--map", "auto"], "--map needs a model and a dump"),
        (["m.onnx", "dump.npz", "--map", "auto", "--against", "ort"], "--against does not fit"),
        (["m.onnx", "dump.npz", "--map", "auto"], "does not hold the input images"),
        (["m.onnx", "dump.npz", "--map", "none.json", "-i", "x.npy"], "cannot read"),
        (["m.onnx", "none.npz", "--map", "auto", "-i", "x.npy"], "cannot read"),
        (["m.onnx", "dump.npz", "--map", "x.npy", "-i", "x.npy"], "not a valid"),
    ],
)
def test_arguments_that_do_not_fit(folder: Path, arguments: list[str], told: str) -> None:
    np.savez("dump.npz", **{n: a for n, a in np.load("dump.npz").items() if n != "images"})
    ended = call("compare", *arguments)
    assert ended.code == 2
    assert told in ended.err


def test_a_dump_of_another_model(folder: Path) -> None:
    np.savez("dump.npz", a=np.arange(2048).astype(np.uint8).reshape(2, 8, 8, 16), b=np.ones(3, np.float32))
    ended = call("compare", "m.onnx", "dump.npz", "-i", "x.npy", "--map", "auto")
    assert ended.code == 2
    assert "no tensor of dump.npz is certainly one of the model" in ended.err
