"""Loading: what is read, in which order, and what is refused with which words."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import qrun
from qrun.ir.schema import MS
from qrun.ir.types import DTYPES


def value(name: str, shape: list[int | str] | None, elem: int = TensorProto.UINT8) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, elem, shape)


def model_of(
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
    initializers: list[onnx.TensorProto] | None = None,
    opsets: list[tuple[str, int]] | None = None,
    **kwargs: object,
) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "g", inputs, outputs, initializers or [])
    imports = [helper.make_opsetid(d, v) for d, v in opsets or [("", 21)]]
    model = helper.make_model(graph, opset_imports=imports, **kwargs)
    model.ir_version = 10
    return model


def identity_chain(order: list[int]) -> onnx.ModelProto:
    nodes = [helper.make_node("Identity", [f"t{i}"], [f"t{i + 1}"], name=f"n{i}") for i in range(4)]
    return model_of([nodes[i] for i in order], [value("t0", [2])], [value("t4", [2])])


def refused(model: onnx.ModelProto | bytes | str | Path) -> qrun.QrunError:
    with pytest.raises(qrun.QrunError) as caught:
        qrun.load(model)
    return caught.value


def test_unsorted_nodes_run_in_order() -> None:
    loaded = qrun.load(identity_chain([2, 0, 3, 1]))
    assert [n.name for n in loaded.nodes] == ["n0", "n1", "n2", "n3"]
    assert not loaded.was_sorted
    assert qrun.load(identity_chain([0, 1, 2, 3])).was_sorted


@pytest.mark.parametrize("captured", [False, True])
def test_a_circle_is_told_with_its_nodes_and_none_besides(captured: bool) -> None:
    """What only waits for it comes first, and reads other tensors first; a graph inside a node may read it too."""
    inner = helper.make_graph(
        [helper.make_node("Relu", ["c"], ["s"])], "b", [], [helper.make_empty_tensor_value_info("s")]
    )
    last = (
        helper.make_node("If", ["yes"], ["b"], "third", then_branch=inner, else_branch=inner)
        if captured
        else helper.make_node("Relu", ["c"], ["b"], "third")
    )
    nodes = [
        helper.make_node("Add", ["x", "c"], ["y"], "after"),
        helper.make_node("Add", ["x", "b"], ["a"], "first"),
        helper.make_node("Relu", ["a"], ["c"], "second"),
        last,
    ]
    inputs = [helper.make_tensor_value_info("x", 1, [2]), helper.make_tensor_value_info("yes", TensorProto.BOOL, [])]
    graph = helper.make_graph(nodes, "g", inputs, [helper.make_empty_tensor_value_info("y")])
    with pytest.raises(qrun.ModelError, match="form a cycle") as caught:
        qrun.load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))
    (_, node, tensor), circle = caught.value.where, dict(caught.value.facts)["circle"]
    kind = "If" if captured else "Relu"
    steps = {"a": "second (Relu)", "c": f"third ({kind})", "b": "first (Add)"}
    assert node == f"node {steps[tensor.removeprefix('tensor ')]}"
    assert sorted(circle.split(" to ")) == sorted(steps.values())


def test_unnamed_nodes_get_a_label() -> None:
    model = model_of([helper.make_node("Identity", ["a"], ["b"])], [value("a", [1])], [value("b", [1])])
    assert qrun.load(model).nodes[0].label == "Identity_0"


def test_initializer_with_graph_input_is_a_default_that_can_be_fed() -> None:
    model = model_of(
        [helper.make_node("ConvInteger", ["x", "w"], ["y"])],
        [value("x", [1, 1, 2]), value("w", [1, 1, 1])],
        [value("y", None, TensorProto.INT32)],
        [numpy_helper.from_array(np.full((1, 1, 1), 3, np.uint8), "w")],
    )
    session = qrun.Session(model)
    assert [v.name for v in session.inputs] == ["x"]
    x = np.array([[[1, 2]]], np.uint8)
    assert session.run({"x": x})["y"].tolist() == [[[3, 6]]]
    assert session.run({"x": x, "w": np.full((1, 1, 1), 5, np.uint8)})["y"].tolist() == [[[5, 10]]]


def test_any_tensor_of_the_graph_may_be_asked_for() -> None:
    session = qrun.Session(identity_chain([0, 1, 2, 3]))
    x = np.array([1, 2], np.uint8)
    assert list(session.run({"t0": x}, ["t2", "t0"])) == ["t2", "t0"]
    with pytest.raises(qrun.CallError, match="no tensor 't9'"):
        session.run({"t0": x}, ["t9"])


def test_model_local_functions_are_inlined() -> None:
    body = [helper.make_node("Identity", ["p"], ["q"])]
    function = helper.make_function("local", "Twice", ["p"], ["q"], body, [helper.make_opsetid("", 21)])
    nodes = [helper.make_node("Twice", ["a"], ["b"], domain="local")]
    model = model_of(nodes, [value("a", [1])], [value("b", [1])], opsets=[("", 21), ("local", 1)], functions=[function])
    assert [n.op_type for n in qrun.load(model).nodes] == ["Identity"]


def test_recursive_functions_are_refused() -> None:
    functions = [
        helper.make_function("local", a, ["p"], ["q"], [helper.make_node(b, ["p"], ["q"], domain="local")],
                             [helper.make_opsetid("local", 1)])
        for a, b in (("F", "G"), ("G", "F"))
    ]  # fmt: skip
    nodes = [helper.make_node("F", ["a"], ["b"], domain="local")]
    model = model_of(nodes, [value("a", [1])], [value("b", [1])], opsets=[("", 21), ("local", 1)], functions=functions)
    assert refused(model).code == "QR107"


def calling(inputs: list[str], outputs: list[str], opset: int = 21, copies: int = 1) -> onnx.ModelProto:
    """A model of one node, which calls a function of one input and one output."""
    body = [helper.make_node("Relu", ["p"], ["q"])]
    function = helper.make_function("local", "F", ["p"], ["q"], body, [helper.make_opsetid("", opset)])
    nodes = [helper.make_node("F", inputs, outputs, "call", domain="local")]
    opsets = [("", 21), ("local", 1)]
    return model_of(nodes, [value("a", [1])], [value("b", [1])], opsets=opsets, functions=[function] * copies)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (calling(["a", "extra"], ["b"]), ["node call (local::F)", "input extra", "at most 1: p"]),
        (calling(["a"], ["b", "more"]), ["node call (local::F)", "output more", "at most 1: q"]),
        (calling(["a"], ["b"], opset=13), ["versions of Relu", "function local::F", "ai.onnx 21, as", "ai.onnx 13"]),
        (calling(["a"], ["b"], copies=2), ["two model-local functions local::F"]),
    ],
)
def test_a_call_that_does_not_fit_its_function_is_named(model: onnx.ModelProto, words: list[str]) -> None:
    error = refused(model)
    assert error.code == "QR107"
    for word in words:
        assert word in str(error)


def test_a_function_may_import_other_versions_that_mean_the_same_operators() -> None:
    assert [n.op_type for n in qrun.load(calling(["a"], ["b"], opset=14)).nodes] == ["Relu"]
    assert [n.op_type for n in qrun.load(calling(["a"], ["b"], opset=22)).nodes] == ["Relu"]


def test_other_operators_of_a_function_count_in_graphs_inside_it_too() -> None:
    model = calling(["a"], ["b"], opset=13)
    branch = helper.make_graph([*model.functions[0].node], "branch", [], [value("q", [1])])
    for name, kept in (("F", True), ("unused", False)):
        branched = helper.make_node("If", ["p"], ["q"], then_branch=branch, else_branch=branch)
        del model.functions[0].node[:]
        model.functions[0].node.append(branched)
        model.functions[0].name = name
        model.graph.node[0].op_type, model.graph.node[0].domain = ("F", "local") if kept else ("Relu", "")
        if kept:
            assert "versions of If, Relu" in str(refused(model))
        else:
            assert len(qrun.load(model).nodes) == 1, "a function that nothing calls was refused"


def test_a_domain_that_only_a_function_imports() -> None:
    model = calling(["a"], ["b"])
    model.functions[0].node[0].CopyFrom(helper.make_node("Binarizer", ["p"], ["q"], domain="ai.onnx.ml"))
    model.functions[0].opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))
    assert [n.op for n in qrun.load(model).nodes] == ["ai.onnx.ml::Binarizer"]


def test_subgraphs_are_nested_models() -> None:
    branch = helper.make_graph([helper.make_node("Identity", ["x"], ["inner"])], "b", [], [value("inner", [1])])
    node = helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)
    model = model_of([node], [value("c", [], TensorProto.BOOL), value("x", [1])], [value("y", [1])])
    inner = qrun.load(model).nodes[0].attributes["then_branch"]
    assert isinstance(inner, qrun.Model)
    assert inner.nodes[0].op_type == "Identity"


@pytest.mark.parametrize(
    ("break_it", "code", "words"),
    [
        (lambda m: m.graph.node[1].input.__setitem__(0, "nowhere"), "QR102", "'nowhere' is read but never defined"),
        (lambda m: m.graph.node[1].output.__setitem__(0, "t1"), "QR102", "defined twice"),
        (lambda m: m.graph.node[0].input.__setitem__(0, "t4"), "QR102", "circle"),
        (lambda m: m.graph.output[0].__setattr__("name", "gone"), "QR102", "no node produces"),
        (lambda m: m.graph.node[0].__setattr__("domain", "com.acme"), "QR105", "com.acme"),
        (lambda m: m.opset_import[0].__setattr__("version", 99), "QR106", "opset 99"),
        (lambda m: m.opset_import.append(helper.make_opsetid("ai.onnx", 13)), "QR106", "twice"),
        (lambda m: m.graph.node[0].attribute.append(onnx.AttributeProto(name="z")), "QR102", "no type"),
    ],
)
def test_contradictory_graphs_are_refused(break_it, code: str, words: str) -> None:
    model = identity_chain([0, 1, 2, 3])
    break_it(model)
    error = refused(model)
    assert error.code == code
    assert words in str(error)
    assert error.exit_code in (3, 4)


def test_a_domain_may_be_imported_twice_where_that_means_the_same() -> None:
    """Identity of opset 20 is that of opset 19, but not that of opset 18."""
    model = identity_chain([0, 1, 2, 3])
    for version, taken in ((19, 20), (18, 0)):
        del model.opset_import[:]
        model.opset_import.extend([helper.make_opsetid("", version), helper.make_opsetid("ai.onnx", 20)])
        if taken:
            assert qrun.load(model).opsets[""] == taken
        else:
            assert refused(model).code == "QR106"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab\nsize 24536789\n", "Git LFS pointer"),
        (b"<!DOCTYPE html><html>", "HTML"),
        (b"\x93NUMPY\x01\x00", ".npy array"),
        (b"PK\x03\x04rest", "zip"),
        (b"\xff" * 40, "not an ONNX model"),
    ],
)
def test_other_files_are_named(tmp_path: Path, data: bytes, words: str) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(data)
    error = refused(path)
    assert (error.code, error.exit_code) == ("QR101", 3)
    assert words in str(error)
    assert error.fixes


def test_a_cut_file_says_where() -> None:
    weights = numpy_helper.from_array(np.zeros((64, 64), np.float32), "w")
    model = model_of([helper.make_node("Identity", ["w"], ["y"])], [], [value("y", None, TensorProto.FLOAT)], [weights])
    data = model.SerializeToString()
    error = refused(data[:5000])
    assert "ends in the middle of a field" in str(error)
    assert "cut at byte 5000" in str(error)
    needed = re.search(r"expected (\d+) bytes by the last length field", str(error))
    assert needed is not None
    assert 5000 < int(needed[1]) <= len(data)


def external_model(folder: Path, location: str, **info: object) -> Path:
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
    for key, item in {"location": location, **info}.items():
        tensor.external_data.add(key=key, value=str(item))
    model = model_of([helper.make_node("Identity", ["w"], ["y"])], [], [value("y", None, TensorProto.FLOAT)], [tensor])
    path = folder / "m.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def test_external_data_is_the_models_own(tmp_path: Path) -> None:
    """Rewriting or cutting the file off later changes nothing, on both backends."""
    (tmp_path / "sub").mkdir()
    file = tmp_path / "sub" / "w.bin"
    file.write_bytes(b"\0" * 8 + np.arange(4, dtype="<f4").tobytes())
    path = external_model(tmp_path, "sub/w.bin", offset=8, length=16)
    sessions = [qrun.Session(path, backend=backend, cache=False) for backend in ("reference", "native")]
    with open(file, "r+b") as stream:
        stream.write(b"\x7f" * 24)
    assert [s.run({})["y"].tolist() for s in sessions] == [[0, 1, 2, 3]] * 2
    os.truncate(file, 0)
    assert [s.run({})["y"].tolist() for s in sessions] == [[0, 1, 2, 3]] * 2
    assert sessions[0].model.external_files == ("sub/w.bin",)
    assert not maps(file)


def maps(file: Path) -> bool:
    """Whether this process has the file mapped; False where the system does not tell."""
    known = Path("/proc/self/maps")
    return known.exists() and str(file) in known.read_text()


def sharing_model(folder: Path, places: Sequence[tuple[int, int]]) -> Path:
    """Tensors of uint8, at (offset, length) in one file."""
    tensors = []
    for number, (offset, length) in enumerate(places):
        tensor = TensorProto(
            name=f"w{number}", data_type=TensorProto.UINT8, dims=[length], data_location=TensorProto.EXTERNAL
        )
        for key, item in {"location": "w.bin", "offset": offset, "length": length}.items():
            tensor.external_data.add(key=key, value=str(item))
        tensors.append(tensor)
    nodes = [helper.make_node("Identity", ["w0"], ["y"])]
    model = model_of(nodes, [], [value("y", None, TensorProto.UINT8)], tensors)
    (folder / "m.onnx").write_bytes(model.SerializeToString())
    return folder / "m.onnx"


def test_tensors_that_share_external_data_share_memory(tmp_path: Path) -> None:
    data = np.random.default_rng(0).integers(0, 256, 1000, np.uint8)
    (tmp_path / "w.bin").write_bytes(data.tobytes())
    places = [(0, 600), (0, 600), (600, 400), *((i, 999 - i) for i in range(300)), (1000, 0)]
    found = qrun.load(sharing_model(tmp_path, places)).constants
    for number, (offset, length) in enumerate(places):
        assert found[f"w{number}"].tobytes() == data[offset : offset + length].tobytes()
    owners = {}
    for array in found.values():
        while isinstance(array.base, np.ndarray):
            array = array.base
        owners[id(array)] = array.nbytes
    assert sum(owners.values()) < 3 * 1000 + 64 * len(owners)
    assert len(owners) < 6


def test_external_data_that_is_no_file(tmp_path: Path) -> None:
    """A pipe nobody writes to, and a folder, are refused at once."""
    (tmp_path / "folder").mkdir()
    assert "not a regular file" in str(refused(external_model(tmp_path, "folder")))
    if not hasattr(os, "mkfifo"):
        pytest.skip("this system has no named pipes")
    os.mkfifo(tmp_path / "pipe")
    assert "not a regular file" in str(refused(external_model(tmp_path, "pipe")))


def test_external_data_that_changes_while_it_is_read(tmp_path: Path) -> None:
    from qrun.errors import ModelError
    from qrun.ir.external import External

    (tmp_path / "w.bin").write_bytes(bytes(100))
    external = External(tmp_path)
    external.read("w.bin", "a", 0, 10)
    os.truncate(tmp_path / "w.bin", 50)
    with pytest.raises(ModelError, match="cannot be read") as caught:
        external.read("w.bin", "b", 10, 10)
    assert caught.value.code == "QR104"
    assert "changed while it was read" in str(caught.value)


def test_external_data_beyond_the_free_memory(tmp_path: Path) -> None:
    """A sparse file is as large as it says: refused before anything is read."""
    with open(tmp_path / "w.bin", "wb") as file:
        try:
            file.truncate(2**42)
        except OSError:
            pytest.skip("no sparse files of 4 TiB here")
    with pytest.raises(qrun.MemoryLimitError) as caught:
        qrun.load(sharing_model(tmp_path, [(0, 2**42)]))
    assert "4.0 TiB" in str(caught.value)
    assert any("m.onnx" in place for place in caught.value.where)


@pytest.mark.parametrize("location", ["../w.bin", "/etc/passwd", "a/../../w.bin", "C:\\w.bin", "", ".", "link/w.bin"])
def test_external_data_stays_inside_the_folder(tmp_path: Path, location: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    for folder in (tmp_path, outside):
        (folder / "w.bin").write_bytes(bytes(16))
    inside = tmp_path / "inside"
    inside.mkdir()
    try:
        (inside / "link").symlink_to(outside, target_is_directory=True)
    except OSError:
        pytest.skip("this system does not let tests make links")
    error = refused(external_model(inside, location))
    assert (error.code, error.exit_code) == ("QR104", 3)
    assert dict(error.facts)["got"] == ("it points outside the model's folder" if location else "no location")


@pytest.mark.parametrize(
    ("info", "code"),
    [({"offset": 12}, "QR104"), ({"offset": -4}, "QR104"), ({"length": 8}, "QR103"), ({"offset": "x"}, "QR103")],
)
def test_external_data_claims_are_checked(tmp_path: Path, info: dict[str, object], code: str) -> None:
    (tmp_path / "w.bin").write_bytes(bytes(20))
    assert refused(external_model(tmp_path, "w.bin", **info)).code == code


def test_missing_external_file_is_named(tmp_path: Path) -> None:
    error = refused(external_model(tmp_path, "gone.bin"))
    assert error.code == "QR104"
    assert "gone.bin" in str(error)


def test_external_data_above_2_gib(tmp_path: Path) -> None:
    with open(tmp_path / "w.bin", "wb") as file:
        file.seek(3 * 2**30)
        file.write(b"end")
    assert qrun.load(sharing_model(tmp_path, [(3 * 2**30, 3)])).constants["w0"].tobytes() == b"end"


def test_every_element_type_is_read() -> None:
    read, types = 0, [dtype for dtype in DTYPES.values() if dtype.kind != "O"]
    assert len(types) > 25
    for dtype, count, raw in product(types, (0, 1, 5), (True, False)):
        numbers = np.array([1, 2, 1, 0.5 if dtype == ml_dtypes.float8_e8m0fnu else 0, 1][:count])
        array = numbers.astype(dtype) if dtype.kind == "V" else (numbers % 2).astype(dtype)
        try:
            fields = helper.make_tensor("w", helper.np_dtype_to_tensor_dtype(dtype), array.shape, array)
        except (ValueError, TypeError, KeyError):
            fields = None  # onnx.helper cannot write this type as fields
        tensor = numpy_helper.from_array(array, "w") if raw else fields
        if tensor is not None:
            got = qrun.load(model_of([], [], [onnx.ValueInfoProto(name="w")], [tensor])).constants["w"]
            assert (got.dtype, got.tobytes()) == (array.dtype, array.tobytes()), f"{dtype} {count} raw {raw}"
            assert not got.flags.writeable, f"{dtype} {count} raw {raw}"
            read += 1
    assert read > 5 * len(types)


@pytest.mark.parametrize(
    ("dims", "raw", "dtype"),
    [
        ([2**62, 0, 5], b"", 3),
        ([2**31, 2**31, 0], b"", 1),
        ([3], bytes(8), 1),
        ([10**12], b"", 1),
        ([-1], b"", 1),
        ([2], bytes(2), 21),
        ([1], b"\0", 99),
        ([1] * 70, bytes(4), 1),
    ],
)
def test_tensors_that_contradict_themselves(dims: list[int], raw: bytes, dtype: int) -> None:
    tensor = TensorProto(name="w", dims=dims, raw_data=raw)
    tensor.data_type = dtype
    error = refused(model_of([], [], [onnx.ValueInfoProto(name="w")], [tensor]))
    assert error.code == "QR103"
    assert "expected" in str(error)


@pytest.mark.parametrize("number", [TensorProto.FLOAT, TensorProto.INT8, TensorProto.UINT64, TensorProto.STRING])
def test_a_tensor_whose_data_stand_in_two_fields(number: int) -> None:
    """onnx.proto: only one of the fields of data; which of two would count is open."""
    tensor = TensorProto(name="w", dims=[2], data_type=number)
    if number == TensorProto.STRING:
        tensor.string_data.extend([b"a", b"b"])
    else:
        tensor.raw_data = bytes(2 * np.dtype(helper.tensor_dtype_to_np_dtype(number)).itemsize)
    tensor.int64_data.extend([1, 2])
    error = refused(model_of([], [], [onnx.ValueInfoProto(name="w")], [tensor]))
    assert error.code == "QR103"
    assert "int64_data" in str(error)


@pytest.mark.parametrize(
    ("kind", "stored"),
    [("INT8", 300), ("INT8", -129), ("UINT8", -1), ("UINT16", 2**16), ("INT16", -(2**15) - 1), ("UINT32", 2**32), ("FLOAT16", -1),
     ("BFLOAT16", 2**16), ("FLOAT8E4M3FN", 256), ("FLOAT8E8M0", -1), ("UINT4", 256), ("INT4", -1)],
)  # fmt: skip
def test_a_number_that_its_element_type_has_not(kind: str, stored: int) -> None:
    tensor = TensorProto(name="w", dims=[1], data_type=getattr(TensorProto, kind))
    (tensor.uint64_data if kind == "UINT32" else tensor.int32_data).append(stored)
    error = refused(model_of([], [], [onnx.ValueInfoProto(name="w")], [tensor]))
    assert error.code == "QR103"
    assert str(stored) in str(error)


def test_constant_nodes_count_as_constants() -> None:
    node = helper.make_node("Constant", [], ["k"], value=numpy_helper.from_array(np.float32([1, 2])))
    loaded = qrun.load(model_of([node], [], [value("k", [2], TensorProto.FLOAT)]))
    constant = loaded.constant("k")
    assert constant is not None
    assert constant.tolist() == [1, 2]


def test_omitted_optional_inputs_and_com_microsoft() -> None:
    nodes = [helper.make_node("ConvInteger", ["x", "w", "", "z"], ["y"])]
    model = model_of(
        nodes,
        [value("x", [1, 1, 2]), value("w", [1, 1, 1]), value("z", [])],
        [value("y", None, TensorProto.INT32)],
        opsets=[("ai.onnx", 10), (MS, 1)],
    )
    feeds = {"x": np.array([[[1, 2]]], np.uint8), "w": np.array([[[3]]], np.uint8), "z": np.uint8(1)}
    assert qrun.Session(model).run(feeds)["y"].tolist() == [[[2, 4]]]


def test_no_such_file_lists_neighbours(tmp_path: Path) -> None:
    (tmp_path / "near.onnx").write_bytes(b"")
    error = refused(tmp_path / "neer.onnx")
    assert (error.code, error.exit_code) == ("QR004", 2)
    assert "near.onnx" in str(error)
    assert refused(tmp_path).exit_code == 2


@pytest.mark.parametrize("array", [np.zeros((2, 1, 1), np.uint8), np.zeros((1, 1, 1), np.int8), np.zeros(1, np.uint8)])
def test_an_initializer_fits_its_graph_input(array: np.ndarray) -> None:
    node = helper.make_node("Identity", ["w"], ["y"])
    model = model_of([node], [value("w", [1, 1, 1])], [value("y", None)], [numpy_helper.from_array(array, "w")])
    error = refused(model)
    assert error.code == "QR102"
    assert "does not match it" in str(error)


def test_a_file_without_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No more is read than a protobuf message may hold."""
    monkeypatch.setattr(sys.modules["qrun.ir.load"], "LARGEST", 999)
    (tmp_path / "long.onnx").write_bytes(bytes(1000))
    with pytest.raises(qrun.ModelError, match="too long for a model") as raised:
        qrun.load(tmp_path / "long.onnx")
    assert dict(raised.value.facts)["expected"].startswith("at most 999 bytes")
    with open(tmp_path / "huge.onnx", "wb") as stream:
        stream.truncate(1 << 40)
    with pytest.raises(qrun.ModelError, match="too long for a model") as raised:
        qrun.load(tmp_path / "huge.onnx")
    assert ("got", "1,099,511,627,776 bytes") in raised.value.facts
    if Path("/dev/zero").exists():
        with pytest.raises(qrun.CallError, match="not a regular file"):
            qrun.load("/dev/zero")
