"""Large initializers are read past protobuf: the same model comes out, and unusual files take the ordinary way."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import qrun
from qrun.errors import QrunError
from qrun.ir.load import load
from qrun.ir.wire import lift

LARGE = {
    "w": np.arange(-3000, 3000, dtype=np.float32).reshape(60, 100),
    "bytes": np.resize(np.arange(256, dtype=np.uint8), (70, 80)),
    "longs": np.arange(700, dtype=np.int64),
    "flags": np.arange(5000) % 3 == 0,
    "half": np.linspace(-4, 4, 4000, dtype=np.float16),
}
SMALL = {"shape": np.array([60, 100]), "none": np.zeros((0, 4), np.float32)}


def model(**more: Any) -> onnx.ModelProto:
    tensors = [numpy_helper.from_array(value, name) for name, value in {**LARGE, **SMALL}.items()]
    typed = helper.make_tensor("typed", TensorProto.FLOAT, [2000], np.linspace(0, 1, 2000))
    nibbles = helper.make_tensor("nibbles", TensorProto.INT4, [9000], bytes(4500), raw=True)
    bits = helper.make_tensor("brain", TensorProto.BFLOAT16, [3000], bytes(range(250)) * 24, raw=True)
    node = helper.make_node("Add", ["x", "w"], ["y"])
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [60, 100]) for name in "xy")
    graph = helper.make_graph([node], "g", [x], [y], [*tensors[:3], typed, nibbles, *tensors[3:], bits])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], **more)


def same(a: qrun.Model, b: qrun.Model) -> None:
    assert list(a.constants) == list(b.constants)
    for name, value in a.constants.items():
        other = b.constants[name]
        assert (value.dtype, value.shape) == (other.dtype, other.shape), name
        assert value.tobytes() == other.tobytes(), name
        assert not value.flags.writeable
        assert value.ctypes.data % value.dtype.alignment == 0
    assert (a.nodes, a.inputs, a.outputs, a.size, a.producer) == (b.nodes, b.inputs, b.outputs, b.size, b.producer)


def test_a_file_and_its_bytes_are_one_model(tmp_path: Path) -> None:
    path, proto = tmp_path / "m.onnx", model(producer_name="p", doc_string="d" * 9000)
    onnx.save(proto, path)
    lifted = lift(path)
    assert lifted is not None
    assert len(lifted.payloads) == 7
    assert len(lifted.proto) < lifted.size - sum(map(len, lifted.payloads.values())) + 500
    same(load(path), load(path.read_bytes()))
    assert load(path).sha256 == load(path.read_bytes()).sha256
    for name, value in {**LARGE, **SMALL}.items():
        assert np.array_equal(load(path).constants[name], value)


def test_local_functions_keep_large_tensors(tmp_path: Path) -> None:
    proto, path = model(), tmp_path / "m.onnx"
    proto.graph.node[0].CopyFrom(helper.make_node("Plus", ["x", "w"], ["y"], domain="own"))
    plus = helper.make_function(
        "own", "Plus", ["a", "b"], ["c"], [helper.make_node("Add", ["a", "b"], ["c"])], [helper.make_opsetid("", 21)]
    )
    proto.functions.append(plus)
    proto.opset_import.append(helper.make_opsetid("own", 1))
    onnx.save(proto, path)
    assert [node.op_type for node in load(path).nodes] == ["Add"]
    same(load(path), load(path.read_bytes()))


def raw_field(number: int, value: bytes) -> bytes:
    size, length = len(value), b""
    while size > 127:
        length += bytes([size & 127 | 128])
        size >>= 7
    return bytes([number << 3 | 2]) + length + bytes([size]) + value


def tensor(*more: bytes) -> bytes:
    return TensorProto(name="t", data_type=TensorProto.UINT8, dims=[5000]).SerializeToString() + b"".join(more)


PAYLOAD = raw_field(9, bytes(5000))
UNUSUAL = {
    "nothing large": helper.make_model(helper.make_graph([], "g", [], [])).SerializeToString(),
    "two graphs": raw_field(7, raw_field(5, tensor(PAYLOAD))) * 2,
    "raw data twice": raw_field(7, raw_field(5, tensor(PAYLOAD, PAYLOAD))),
    "no graph": raw_field(5, tensor(PAYLOAD)),
    "a group": raw_field(7, raw_field(5, tensor(PAYLOAD))) + b"\x4b\x4c",
    "an endless number": raw_field(7, raw_field(5, tensor(PAYLOAD))) + b"\xff" * 12,
    "longer than its parent": raw_field(7, b"\x2a\xff\xff\x03" + tensor(PAYLOAD)),
    "empty": b"",
}


@pytest.mark.parametrize("what", UNUSUAL)
def test_unusual_files_are_left_to_protobuf(tmp_path: Path, what: str) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(UNUSUAL[what])
    assert lift(path) is None
    outcomes = []
    for source in (path, UNUSUAL[what]):
        try:
            outcomes.append([sorted(load(source).constants)])
        except QrunError as error:
            outcomes.append([error.code, error.name])
    assert outcomes[0] == outcomes[1]


def test_cut_files_end_in_the_same_error(tmp_path: Path) -> None:
    path, whole = tmp_path / "m.onnx", model().SerializeToString()
    rng = np.random.default_rng(7)
    for cut in sorted({*rng.integers(0, len(whole), 60).tolist(), 1, len(whole) - 1}):
        path.write_bytes(whole[:cut])
        codes = []
        for source in (path, whole[:cut]):
            with pytest.raises(QrunError) as caught:
                load(source)
            codes.append((caught.value.code, caught.value.name))
        assert codes[0] == codes[1], cut


def test_damaged_files_end_alike(tmp_path: Path) -> None:
    path, whole = tmp_path / "m.onnx", bytearray(model().SerializeToString())
    rng = np.random.default_rng(8)
    for number in range(150):
        data = bytearray(whole)
        for place in rng.integers(0, len(data) if number % 2 else 400, 3):
            data[place] = rng.integers(0, 256)
        path.write_bytes(data)
        outcomes: list[Any] = []
        for source in (path, bytes(data)):
            try:
                found = load(source)
                outcomes.append({name: (v.dtype, v.shape, v.tobytes()) for name, v in found.constants.items()})
            except QrunError as error:
                outcomes.append((error.code, error.name))
        assert outcomes[0] == outcomes[1], number


def test_wrong_sizes_are_found(tmp_path: Path) -> None:
    proto, path = model(), tmp_path / "m.onnx"
    proto.graph.initializer[0].raw_data += b"more"
    onnx.save(proto, path)
    assert lift(path) is not None
    with pytest.raises(qrun.ModelError, match="'w' contradicts itself") as caught:
        load(path)
    assert ("got", "24004 bytes") in caught.value.facts


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_what_is_no_regular_file_is_left_alone(tmp_path: Path) -> None:
    assert lift(tmp_path) is None
    assert lift(tmp_path / "absent") is None
    assert lift(Path(os.devnull)) is None
    os.mkfifo(tmp_path / "pipe")
    assert lift(tmp_path / "pipe") is None


def test_payloads_are_read_alike_with_one_call_or_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(model(), path)
    whole = lift(path)
    monkeypatch.setattr("qrun.ir.wire._AT_ONCE", 3)
    some = lift(path)
    monkeypatch.delattr("os.preadv", raising=False)
    single = lift(path)
    assert whole is not None
    assert some is not None
    assert single is not None
    for other in (some, single):
        assert list(map(bytes, other.payloads.values())) == list(map(bytes, whole.payloads.values()))
        assert other.content.digest == whole.content.digest
