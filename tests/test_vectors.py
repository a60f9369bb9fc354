"""Recorded vectors: which files are read, what is compared, and how a difference is classified."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from helpers.cli import conv_model, quantize_model, save, sum_model
from helpers.models import make_model, typed
from onnx import TensorProto, helper, numpy_helper

from qrun.checking.check import Settings, check_model, runner_maker
from qrun.checking.vectors import Vector, compare, replay, vector_folders
from qrun.comparing.differences import Tolerance
from qrun.comparing.ties import before_rounding, ties
from qrun.errors import CallError
from qrun.ir.load import load
from qrun.running.session import Session

Array = np.ndarray[Any, Any]


def write(folder: Path, kind: str, *arrays: Any, names: tuple[str, ...] = ()) -> None:
    folder.mkdir(exist_ok=True)
    for place, array in enumerate(arrays):
        name = names[place] if names else ""
        (folder / f"{kind}_{place}.pb").write_bytes(
            numpy_helper.from_array(np.asarray(array), name).SerializeToString()
        )


def judged(model: onnx.ModelProto, folder: Path, tolerance: Tolerance = Tolerance()) -> Vector:  # noqa: B008
    loaded = load(model)
    return replay(loaded, Session(loaded, backend="reference"), folder, tolerance)


def codes(vector: Vector) -> list[str]:
    return [finding.rule for finding in vector.findings]


# Files


def test_a_good_vector(tmp_path: Path) -> None:
    write(tmp_path, "input", np.float32([1, 2]), np.float32([3, 4]))
    write(tmp_path, "output", np.float32([4, 6]))
    vector = judged(sum_model(), tmp_path)
    assert (vector.status, vector.findings) == ("passed", [])
    assert [(o.name, o.verdict, o.total) for o in vector.outputs] == [("y", "equal", 2)]


def test_names_in_the_files_win_over_their_order(tmp_path: Path) -> None:
    write(tmp_path, "input", np.float32([10, 20, 30]), np.float32([3]), names=("b", "a"))
    nodes = [helper.make_node("Concat", ["a", "b"], ["y"], axis=0)]
    write(tmp_path, "output", np.float32([3, 10, 20, 30]))
    assert judged(make_model(nodes, {"a": [1], "b": [3]}, "y"), tmp_path).status == "passed"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
@pytest.mark.parametrize("odd", ["/dev/zero", "pipe", "large"])
def test_a_file_that_cannot_be_read_costs_its_own_vector_only(tmp_path: Path, odd: str) -> None:
    """A link to a device or a pipe, or a file beyond --max-memory, in a repository that is checked."""
    for name in ("test_data_set_0", "test_data_set_1"):
        write(tmp_path / name, "input", np.float32([1, 2]), np.float32([3, 4]))
        write(tmp_path / name, "output", np.float32([4, 6]))
    os.mkfifo(tmp_path / "pipe")
    with open(tmp_path / "large", "wb") as stream:
        stream.truncate(1 << 40)
    (tmp_path / "test_data_set_0" / "input_0.pb").unlink()
    (tmp_path / "test_data_set_0" / "input_0.pb").symlink_to(tmp_path / odd)
    save(sum_model(), tmp_path / "m.onnx")
    settings = Settings(frozenset({"QR505"}))
    checked = check_model(tmp_path / "m.onnx", settings, runner_maker("reference", "exact", 1 << 20))
    assert [vector.status for vector in checked.vectors] == ["skipped" if odd == "large" else "failed", "passed"]
    assert [finding.rule for finding in checked.findings] == ["QR505"]
    assert ("more memory" if odd == "large" else "not a regular file") in checked.findings[0].message


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_named_pipe_is_no_model(tmp_path: Path) -> None:
    """It is found in a folder, and nobody writes to it."""
    os.mkfifo(tmp_path / "m.onnx")
    checked = check_model(tmp_path / "m.onnx", Settings(frozenset()), runner_maker("reference", "exact"))
    assert checked.nodes == 0
    with pytest.raises(CallError, match="not a regular file"):
        load(tmp_path / "m.onnx")


@pytest.mark.parametrize(
    ("removed", "expected"),
    [("input_1.pb", ["QR503"]), ("output_0.pb", ["QR503"]), ("input_0.pb", ["QR503"])],
)
def test_missing_files(tmp_path: Path, removed: str, expected: list[str]) -> None:
    write(tmp_path, "input", np.float32([1, 2]), np.float32([3, 4]))
    write(tmp_path, "output", np.float32([4, 6]))
    (tmp_path / removed).unlink()
    vector = judged(sum_model(), tmp_path)
    assert vector.status == "failed"
    assert codes(vector) == expected
    assert removed in vector.findings[0].message


def test_extra_files(tmp_path: Path) -> None:
    write(tmp_path, "input", *[np.float32([1, 2])] * 3)
    write(tmp_path, "output", *[np.float32([2, 4])] * 2)
    vector = judged(sum_model(), tmp_path)
    assert codes(vector) == ["QR504", "QR504"]
    assert "input_2.pb" in vector.findings[0].message
    assert "output_1.pb" in vector.findings[1].message
    assert [o.verdict for o in vector.outputs] == ["equal"], "what fits is compared all the same"


def test_an_input_of_another_form(tmp_path: Path) -> None:
    write(tmp_path, "input", np.float64([1, 2]), np.float32([3, 4]))
    write(tmp_path, "output", np.float32([4, 6]))
    vector = judged(sum_model(), tmp_path)
    assert codes(vector) == ["QR502"]
    assert (vector.findings[0].expected, vector.findings[0].got) == ("float32 [2]", "float64 [2]")


@pytest.mark.parametrize("record", [np.float64([4, 6]), np.float32([[4, 6]])])
def test_an_output_of_another_form(tmp_path: Path, record: Array) -> None:
    write(tmp_path, "input", np.float32([1, 2]), np.float32([3, 4]))
    write(tmp_path, "output", record)
    vector = judged(sum_model(), tmp_path)
    assert codes(vector) == ["QR502"]
    assert vector.findings[0].node == "add0"


def test_a_file_that_is_no_tensor(tmp_path: Path) -> None:
    write(tmp_path, "input", np.float32([1, 2]), np.float32([3, 4]))
    (tmp_path / "output_0.pb").write_bytes(b"hello")
    assert codes(judged(sum_model(), tmp_path)) == ["QR007"]


def test_sparse_tensors_are_skipped_with_the_reason(tmp_path: Path) -> None:
    node = helper.make_node("Identity", ["s"], ["y"])
    model = load(make_model([node], {"s": helper.make_sparse_tensor_type_proto(TensorProto.FLOAT, [2])}, "y", opset=17))
    vector = replay(model, None, tmp_path, Tolerance())  # type: ignore[arg-type]
    assert vector.status == "skipped"
    assert "sparse_tensor" in vector.reason


def test_folders(tmp_path: Path) -> None:
    model = tmp_path / "m.onnx"
    for name in ("test_data_set_10", "test_data_set_2", "other"):
        write(tmp_path / name, "input", 1)
    assert [f.name for f in vector_folders(model, None)] == ["test_data_set_2", "test_data_set_10"]
    assert [f.name for f in vector_folders(model, [tmp_path / "other"])] == ["other"]
    assert [f.name for f in vector_folders(model, [tmp_path])] == ["test_data_set_2", "test_data_set_10"]
    assert vector_folders(model, []) == []
    (tmp_path / "empty").mkdir()
    with pytest.raises(CallError, match="no vectors"):
        vector_folders(model, [tmp_path / "empty"])


# Comparison


def differing(got: Any, want: Any, **tolerance: Any) -> int:
    return compare("y", "f", np.asarray(got), np.asarray(want), Tolerance(**tolerance)).differing


def test_floats() -> None:
    assert differing(np.float32([1.001, 5]), np.float32([1.0, 5])) == 0
    assert differing(np.float32([1.002, 5]), np.float32([1.0, 5])) == 1
    assert differing(np.float32([1.002, 5]), np.float32([1.0, 5]), rtol=0.01) == 0
    assert differing(np.float32([0, 1e-6]), np.float32([0, 0])) == 1
    nan, inf = np.nan, np.inf
    assert differing(np.float32([nan, inf, -inf]), np.float32([nan, inf, -inf])) == 0
    assert differing(np.float32([1, nan, inf, -inf, 1]), np.float32([nan, 1, -inf, inf, inf])) == 5
    assert differing(np.float32([]), np.float32([])) == 0
    assert differing(np.array([1, 2], ml_dtypes.float8_e4m3fn), np.array([1, 4], ml_dtypes.float8_e4m3fn)) == 1


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.uint16, np.int32, np.int64, np.uint64, ml_dtypes.int4])
def test_integers(dtype: Any) -> None:
    big = 7 if dtype is ml_dtypes.int4 else np.iinfo(dtype).max
    low = -8 if dtype is ml_dtypes.int4 else np.iinfo(dtype).min
    assert differing(np.array([3, big], dtype), np.array([3, big], dtype)) == 0
    found = compare("y", "f", np.array([2, big], dtype), np.array([3, low], dtype), Tolerance(lsb=1))
    assert (found.differing, found.first, found.largest) == (1, (1,), float(big - low))
    assert (found.got, found.recorded) == (big, low)


def test_booleans_and_strings() -> None:
    assert differing([True, False], [True, True], lsb=5) == 1
    assert differing(np.array(["a", "b"], object), np.array(["a", "c"], object)) == 1


# Ties


def quantized(tmp_path: Path, x: Any, recorded: Any, **more: Any) -> Vector:
    write(tmp_path, "input", np.float32(x))
    write(tmp_path, "output", np.asarray(recorded, np.uint8))
    return judged(quantize_model(0.5, np.uint8(3), ("N",)), tmp_path, Tolerance(**more))


def test_a_tie_is_an_arithmetic_choice(tmp_path: Path) -> None:
    vector = quantized(tmp_path, [1.0, 1.25, 2.25], [5, 6, 8])
    assert codes(vector) == ["QR501"]
    (found,) = vector.outputs
    assert (found.differing, found.first, found.got, found.recorded) == (2, (1,), 5, 6)
    assert (found.exact, found.verdict) == (5.5, "tie")
    assert "all 2 differing" in vector.findings[0].why
    assert "arithmetic choice" in vector.findings[0].why
    assert "5.5" in vector.findings[0].got
    assert vector.findings[0].node == "quant"


def test_everything_else_is_an_error(tmp_path: Path) -> None:
    vector = quantized(tmp_path, [1.0, 1.25, 1.26], [5, 6, 5])
    (found,) = vector.outputs
    assert (found.differing, found.verdict) == (2, "error")
    assert "1 of 2" in vector.findings[0].why


def test_two_steps_off_a_tie_is_an_error(tmp_path: Path) -> None:
    assert quantized(tmp_path, [1.25], [7]).outputs[0].verdict == "error"


def test_ties_are_between_neighbours() -> None:
    exact, got = np.array([6.5, 6.5, 6.6, np.nan]), np.array([6, 5, 6, 6], np.uint8)
    assert ties(exact, got, np.array([7, 8, 7, 7], np.uint8)) == 1
    assert ties(exact, np.array([7, 8, 7, 7], np.uint8), got) == 1


def test_lsb_allows_steps(tmp_path: Path) -> None:
    assert quantized(tmp_path, [1.0, 1.25], [5, 6], lsb=1).status == "passed"
    assert quantized(tmp_path, [1.0, 1.25], [5, 7], lsb=1).outputs[0].differing == 1


def test_a_node_whose_exact_value_is_not_known(tmp_path: Path) -> None:
    model = sum_model(number=TensorProto.INT32)
    write(tmp_path, "input", np.int32([1, 2]), np.int32([3, 4]))
    write(tmp_path, "output", np.int32([4, 7]))
    vector = judged(model, tmp_path)
    assert vector.outputs[0].verdict == "unclassified"
    assert "not classified" in vector.findings[0].why


# The exact values of every operator that has them, against a run with the same arithmetic

EIGHT = TensorProto.UINT8
RNG = np.random.default_rng(5)
F, U, I = np.float32, np.uint8, np.int8  # noqa: E741


def ms(op: str, inputs: list[str], **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, inputs, ["y"], "n", domain="com.microsoft", **attributes)


def ranks(shape: tuple[int, ...]) -> Array:
    return RNG.integers(0, 256, shape).astype(U)


PARAMETERS = {"s": F(0.1), "z": U(7), "t": F(0.25), "u": U(130), "v": F(0.5), "o": U(120)}
WEIGHTS = RNG.integers(-128, 128, (6, 4)).astype(I)
PER_COLUMN = {"wz": RNG.integers(-9, 9, 4).astype(I), "ws": F([0.1, 0.2, 0.05, 0.3])}
CASES: dict[str, tuple[onnx.NodeProto, tuple[int, ...], dict[str, Any]]] = {
    "QLinearConv": (
        helper.make_node("QLinearConv", ["x", "s", "z", "k", "ks", "kz", "v", "o", "b"], ["y"], "n", pads=[1, 1, 0, 0], group=2),
        (2, 4, 5, 5),
        {"k": RNG.integers(-99, 99, (6, 2, 3, 3)).astype(I), "ks": F([0.1, 0.2, 0.3, 0.1, 0.2, 0.3]), "kz": np.zeros(6, I),
         "b": RNG.integers(-99, 99, 6).astype(np.int32)},
    ),
    "QLinearMatMul": (
        helper.make_node("QLinearMatMul", ["x", "s", "z", "w", "ws", "wz", "v", "o"], ["y"], "n"), (3, 6), {"w": WEIGHTS, **PER_COLUMN},
    ),
    "QGemm": (
        ms("QGemm", ["x", "s", "z", "w", "ws", "wz", "b", "v", "o"], transB=1, alpha=0.5), (3, 6),
        {"w": WEIGHTS.T.copy(), **PER_COLUMN, "b": np.int32([1, 2, -3, 4])},
    ),
    "QLinearAdd": (ms("QLinearAdd", ["x", "s", "z", "a", "t", "u", "v", "o"]), (3, 6), {"a": ranks((6,))}),
    "QLinearMul": (ms("QLinearMul", ["x", "s", "z", "a", "t", "u", "v", "o"]), (3, 6), {"a": ranks((3, 1))}),
}  # fmt: skip


@pytest.mark.parametrize("op", CASES)
def test_exact_values_round_to_the_output(op: str) -> None:
    node, shape, stored = CASES[op]
    model = make_model([node], {"x": typed(EIGHT, shape)}, {"y": typed(EIGHT)}, {**PARAMETERS, **stored})
    loaded = load(model)
    x = ranks(shape)
    values = Session(loaded, backend="reference").run({"x": x}, [*node.input, "y"])
    exact = before_rounding(loaded.nodes[0], [values[name] for name in node.input])
    assert exact is not None
    assert exact.shape == values["y"].shape
    zero = 120
    settled = np.abs(np.abs(exact - np.floor(exact)) - 0.5) > 1e-6
    want = np.clip(np.rint(exact - zero) + zero, 0, 255)
    assert settled.any()
    np.testing.assert_array_equal(want[settled], values["y"].astype(np.float64)[settled])


@pytest.mark.parametrize(("axis", "block"), [(0, 0), (1, 0), (-1, 0), (1, 2)])
def test_exact_values_of_quantize_linear(axis: int, block: int) -> None:
    x = RNG.uniform(-3, 3, (3, 4)).astype(F)
    shape = (3, 2) if block else (x.shape[axis],)
    more = {"block_size": block} if block else {}
    node = helper.make_node("QuantizeLinear", ["x", "s", "z"], ["y"], "n", axis=axis, **more)
    stored = {"s": RNG.uniform(0.01, 0.1, shape).astype(F), "z": RNG.integers(100, 150, shape).astype(U)}
    model = load(make_model([node], {"x": x.shape}, {"y": typed(EIGHT)}, stored))
    y = Session(model, backend="reference").run({"x": x})["y"]
    exact = before_rounding(model.nodes[0], [x, stored["s"], stored["z"]])
    assert exact is not None
    np.testing.assert_array_equal(np.clip(np.rint(exact), 0, 255), y.astype(np.float64))


def test_a_whole_convolution_one_step_off(tmp_path: Path) -> None:
    model = conv_model()
    path = save(model, tmp_path / "m.onnx")
    session = Session(path)
    x = RNG.integers(0, 256, (1, 3, 8, 8)).astype(U)
    y = session.run({"image": x})["y"].copy()
    y[0, 3, 2, 1] += 1 if y[0, 3, 2, 1] < 255 else -1
    write(tmp_path / "test_data_set_0", "input", x)
    write(tmp_path / "test_data_set_0", "output", y)
    vector = judged(model, tmp_path / "test_data_set_0")
    (found,) = vector.outputs
    assert (found.differing, found.first, found.verdict) == (1, (0, 3, 2, 1), "error")
    assert found.exact is not None
    assert abs(found.exact - found.got) <= 0.5
