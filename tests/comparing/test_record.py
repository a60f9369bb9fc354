"""A recorded run: planted changes are found at their tensor without the tensors, and records that lie are refused."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import ml_dtypes
import numpy as np
import onnx
import pytest
from helpers.cli import conv_model
from helpers.models import make_model, typed
from onnx import TensorProto, helper

import qrun
from qrun.comparing import record as recording
from qrun.comparing.differences import EXACT, NOISE, Tolerance
from qrun.comparing.emulated import run_emulated
from qrun.comparing.record import (
    RecordedInput,
    RecordedModel,
    RecordEntry,
    check_folder,
    fill,
    places,
    read_record,
    record,
    walk,
)
from qrun.comparing.recordchanges import RecordComparison, compare_record, judge
from qrun.errors import CallError
from qrun.io.storable import digest
from qrun.ir import Array, Model, Node

SCHEMA = json.loads(files("qrun").joinpath("schemas/record-1.0.json").read_text())
MODELS = Path(__file__).resolve().parents[2] / "models" / "digits"
Tensors = dict[str, Array]


def proto() -> onnx.ModelProto:
    """x -> q (uint8) -> d (float32) -> y, the product with weights, which are made of constants."""
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], name="quantize"),
        helper.make_node("DequantizeLinear", ["w", "s"], ["weights"], name="weights"),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"], name="dequantize"),
        helper.make_node("MatMul", ["d", "weights"], ["y"], name="product"),
    ]
    rng = np.random.default_rng(3)
    constants = {"s": np.float32(0.02), "z": np.uint8(120), "w": rng.integers(-9, 9, (20, 5)).astype(np.int8)}
    return make_model(nodes, {"x": [8, 20]}, {"y": [8, 5]}, constants)


@pytest.fixture
def model(tmp_path: Path) -> Model:
    onnx.save(proto(), tmp_path / "m.onnx")
    return qrun.load(tmp_path / "m.onnx")


FEEDS = {"x": np.random.default_rng(1).uniform(-2, 2, (8, 20)).astype(np.float32)}


def run(model: Model) -> Tensors:
    names = [name for node in model.nodes for name in node.outputs]
    made = qrun.Session(model, backend="reference", fuse=False).run(FEEDS, names)
    return {name: made[name].copy() for name in names}


def recorded(model: Model, folder: Path, tensors: Tensors | None = None, feeds: Tensors = FEEDS) -> Path:
    record(run(model) if tensors is None else tensors, model, feeds, "qrun test", folder)
    return folder


def against(model: Model, tensors: Any, folder: Path, tolerance: Tolerance = EXACT, **more: Any) -> RecordComparison:
    return compare_record(tensors, model, FEEDS, folder, tolerance, label="qrun test", **more)


# What a record holds


def test_round_trip(model: Model, tmp_path: Path) -> None:
    folder = recorded(model, tmp_path / "rec")
    tensors = run(model)
    found = read_record(folder)
    assert [path.name for path in folder.iterdir()] == ["record.json"]
    assert (found.head.model, found.head.label) == (RecordedModel(model.sha256, len(model.nodes)), "qrun test")
    assert found.entries == {made.name: made.entry() for made in walk(tensors, model, FEEDS)}
    assert list(found.entries) == ["q", "weights", "d", "y"]
    assert found.head.inputs == (RecordedInput("x", "float32 [8,20]", digest(FEEDS["x"])),)
    compared = against(model, tensors, folder)
    assert compared.equal
    assert compared.first is None
    assert compared.settings == ()


def test_what_is_kept_of_codes(model: Model, tmp_path: Path) -> None:
    tensors = run(model)
    kept = read_record(recorded(model, tmp_path / "rec", tensors)).entries["q"]
    q = tensors["q"]
    assert (kept.node, kept.op, kept.type, kept.shape) == (0, "QuantizeLinear", "uint8", (8, 20))
    assert (kept.low, kept.high, kept.mean) == (q.min(), q.max(), pytest.approx(q.mean()))
    assert kept.saturated == ((q == 0).sum(), (q == 255).sum())
    assert kept.histogram is not None
    assert kept.histogram.counts == tuple(np.bincount(q.ravel())[q.min() :])
    assert kept.sample == tuple(q.ravel()[list(places(q.size))])
    exact = FEEDS["x"].astype(np.float64) / np.float64(np.float32(0.02)) + 120
    distance = np.abs(exact - np.floor(exact) - 0.5)
    assert kept.ties is not None
    assert kept.ties.smallest == pytest.approx(distance.min(), rel=1e-2)
    assert (kept.ties.tie, kept.ties.near) == ((distance <= 1e-5).sum(), (distance <= 1e-3).sum())


def test_what_is_kept_of_floats(model: Model, tmp_path: Path) -> None:
    tensors = run(model)
    found = read_record(recorded(model, tmp_path / "rec", tensors)).entries
    y = tensors["y"]
    assert found["y"].quantiles == tuple(
        float(str(v)) for v in np.sort(y, axis=None)[[39 * q // 100 for q in (1, 10, 50, 90, 99)]]
    )
    assert tuple(np.float32(v) for v in found["y"].sample) == tuple(y.ravel()[list(places(y.size))]), "exactly"
    assert (found["y"].histogram, found["y"].ties) == (None, None)
    assert (found["weights"].sample, found["weights"].low) == ((), None), "the model alone makes it"
    assert found["weights"].sha256 == digest(tensors["weights"])


def test_same_bytes_wherever_and_whenever(model: Model, tmp_path: Path) -> None:
    """No clock and no path is in a record, and a stream makes the same one as a mapping in any order."""
    first, second, third = tmp_path / "one", tmp_path / "other" / "deeper", tmp_path / "third"
    tensors = run(model)
    recorded(model, first)
    record(iter(tensors.items()), model, FEEDS, "qrun test", second)
    moved = tmp_path / "moved.onnx"
    moved.write_bytes((tmp_path / "m.onnx").read_bytes())
    record(dict(reversed(tensors.items())), qrun.load(moved), FEEDS, "qrun test", third)
    data = (first / "record.json").read_bytes()
    assert data == (second / "record.json").read_bytes() == (third / "record.json").read_bytes()
    assert str(tmp_path).encode() not in data
    assert data.count(b"\n") == 4 + 3, "one tensor a line"


def test_schema(model: Model, tmp_path: Path) -> None:
    tensors = run(model)
    tensors["y"][0, :3] = [np.nan, np.inf, -np.inf]
    recorded(model, tmp_path / "rec", tensors)
    document = json.loads((tmp_path / "rec/record.json").read_text(), parse_constant=pytest.fail)
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.validate(document, SCHEMA)
    assert (document["tensors"][3]["nan"], document["tensors"][3]["inf"]) == (1, 2)
    document["tensors"][0]["sha256"] = "0"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, SCHEMA)


def test_a_stream_is_not_held(model: Model) -> None:
    """Of what a stream gives, only what a later node reads is alive."""
    import weakref

    class Kept(np.ndarray):  # type: ignore[type-arg]
        pass

    seen: dict[str, weakref.ref[Kept]] = {}

    def stream() -> Iterator[tuple[str, Array]]:
        for name, array in run(model).items():
            held = array.view(Kept)
            seen[name] = weakref.ref(held)
            yield name, held
            del held

    alive = []
    for made in walk(stream(), model, FEEDS):
        alive.append({name for name, ref in seen.items() if ref() is not None} - {made.name})
    assert alive == [set(), {"q"}, {"q", "weights"}, {"weights", "d"}]


def test_size(tmp_path: Path) -> None:
    """Some hundred bytes a tensor, so that a network fits in a repository."""
    model = (
        qrun.load(MODELS / "qdq" / "model.onnx")
        if (MODELS / "qdq").is_dir()
        else qrun.load(next(MODELS.rglob("*.onnx")))
    )
    rng = np.random.default_rng(0)
    feeds = {
        v.name: rng.uniform(0, 1, [n if isinstance(n, int) else 1 for n in v.shape or ()]).astype(v.dtype)
        for v in model.inputs
    }
    names = [name for node in model.nodes for name in node.outputs if name]
    made = record(
        qrun.Session(model, backend="reference", fuse=False).run(feeds, names), model, feeds, "qrun", tmp_path / "rec"
    )
    assert made.tensors == len(names)
    assert made.nbytes == (tmp_path / "rec/record.json").stat().st_size < 1000 + 1500 * made.tensors


# Planted changes


def changed(model: Model, name: str, change: Callable[[Array], None]) -> Tensors:
    tensors = run(model)
    change(tensors[name])
    return tensors


def put(index: tuple[int, ...], value: Any) -> Callable[[Array], None]:
    def change(array: Array) -> None:
        array[index] = value

    return change


@pytest.mark.parametrize("name", ["q", "weights", "d", "y"])
def test_one_changed_element_is_found_at_its_tensor(model: Model, tmp_path: Path, name: str) -> None:
    folder = recorded(model, tmp_path / "rec")
    found = against(model, changed(model, name, lambda a: np.copyto(a[1:2, 2:3], a[1:2, 2:3] + 1)), folder)
    assert not found.equal
    assert found.first is not None
    assert found.first.now.name == name
    assert found.first.inputs_equal
    assert [t.verdict for t in found.tensors if t.now.name != name] == ["equal"] * 3
    assert found.first.elements >= 1


def test_later_tensors_have_other_inputs(model: Model, tmp_path: Path) -> None:
    folder = recorded(model, tmp_path / "rec")
    tensors = changed(model, "q", put((3, 7), 0))
    tensors["d"][3, 7] = 99
    found = {t.now.name: t for t in against(model, tensors, folder).tensors}
    assert found["q"].inputs == (("x", True), ("s", True), ("z", True))
    assert (found["d"].inputs_equal, found["y"].inputs_equal) == (False, False)
    assert "different bits: q" in found["d"].reading


def test_bounds_from_the_histogram(model: Model, tmp_path: Path) -> None:
    """Elements outside the sample: their number and step are bounded by the histogram alone."""
    tensors = run(model)
    flat = tensors["q"].ravel()
    flat[:] = 100
    folder = recorded(model, tmp_path / "rec", tensors)
    free = [at for at in range(flat.size) if at not in places(flat.size)]
    other = {**tensors, "q": tensors["q"].copy()}
    other["q"].ravel()[free[:5]] = 101
    other["q"].ravel()[free[5]] = 104
    first = against(model, other, folder).first
    assert first is not None
    assert (first.elements, first.step, first.sampled) == (6, 4, ())
    assert "not only ties" in first.reading
    two = {**tensors, "q": other["q"].copy()}
    two["q"].ravel()[free[5]] = 102
    assert [t.now.name for t in against(model, two, folder, Tolerance(lsb=2)).undecided] == ["q"]
    assert against(model, two, folder, Tolerance(lsb=1)).undecided == ()
    assert not against(model, two, folder, Tolerance(lsb=1)).equal


def test_bounds_hold_for_random_changes(model: Model) -> None:
    """Never more elements, nor a larger step, than really changed."""
    seed = int(np.random.SeedSequence().generate_state(1)[0])
    rng = np.random.default_rng(seed)
    node = Node(0, "n", "", "Relu", 14, ("x",), ("y",))
    for _ in range(200):
        dtype = rng.choice([np.uint8, np.int8, np.int16, np.float32])
        a = rng.integers(-9 if dtype is not np.uint8 else 0, 99, rng.integers(1, 60)).astype(dtype)
        b = a.copy()
        some = rng.random(a.size) < 0.2
        b[some] = np.clip(b[some] + rng.integers(-5, 6, some.sum()), 0, 99)
        found = judge(*(fill(RecordEntry.bare("y", x, node), x, node, None) for x in (a, b)), EXACT)
        moved = np.abs(a.astype(float) - b)
        assert found.elements <= np.count_nonzero(moved), f"seed {seed}"
        assert found.step <= moved.max(), f"seed {seed}"
        assert (found.verdict == "equal") == (not moved.any()), f"seed {seed}"


def test_floats_within_the_tolerance(model: Model, tmp_path: Path) -> None:
    folder = recorded(model, tmp_path / "rec")
    tensors = run(model)
    tensors["y"] *= np.float32(1 + 1e-5)
    close = against(model, tensors, folder, Tolerance())
    assert not close.equal
    assert close.first is not None
    assert [t.now.name for t in close.undecided] == ["y"], "24 of its 40 elements are not in the record"
    assert "not recorded" in close.first.reading
    assert not against(model, tensors, folder, EXACT).equal
    tensors["y"].ravel()[places(40)[3]] += 1
    far = against(model, tensors, folder, Tolerance())
    assert not far.equal
    assert far.first is not None
    assert far.first.step == pytest.approx(1, rel=0.1)


@pytest.mark.parametrize(("size", "verdict"), [(16, "close"), (17, "unknown")])
def test_only_a_record_of_all_elements_tells_that_they_are_close(size: int, verdict: str) -> None:
    node = Node(0, "n", "", "Relu", 14, ("x",), ("y",))
    a = np.linspace(1, 2, size, dtype=np.float32)
    entries = [fill(RecordEntry.bare("y", x, node), x, node, None) for x in (a, a * np.float32(1 + 1e-5))]
    assert judge(*entries, Tolerance()).verdict == verdict


def test_a_record_knows_nothing_of_the_noise_of_sums() -> None:
    """A large element on both sides makes no small one right."""
    node = Node(0, "n", "", "MatMul", 13, ("x",), ("y",))
    a = np.array([1e-6, 40], np.float32)
    entries = [fill(RecordEntry.bare("y", x, node), x, node, None) for x in (a, a + np.array([40e-6, 0], np.float32))]
    assert judge(*entries, Tolerance(eps=NOISE)).verdict == "differs"
    assert judge(*entries, Tolerance(atol=1e-4)).verdict == "close"


def test_other_codes_are_other_numbers(model: Model, tmp_path: Path) -> None:
    """One code outside of the sample moves by a step: so does the real number, by 0.02, in its tensor of floats."""
    tensors = run(model)
    folder = recorded(model, tmp_path / "rec", tensors)
    low, high = int(tensors["q"].min()), int(tensors["q"].max())
    free = next(at for at, q in enumerate(tensors["q"].ravel()) if at not in places(160) and low < q < high - 1)
    other = {**tensors, "q": tensors["q"].copy(), "d": tensors["d"].copy()}
    other["q"].ravel()[free] += 1
    other["d"].ravel()[free] += np.float32(0.02)
    found = {t.now.name: t for t in against(model, other, folder, Tolerance()).tensors}
    assert found["d"].sampled == ()
    assert (found["q"].verdict, found["d"].verdict) == ("differs", "differs")
    assert 0.0199 < found["d"].step <= 0.02
    within = {t.now.name: t for t in against(model, other, folder, Tolerance(0, 0, 0.03)).tensors}
    assert within["d"].verdict == "unknown"


def test_nan_and_infinity(model: Model, tmp_path: Path) -> None:
    tensors = run(model)
    tensors["y"][0] = np.nan
    folder = recorded(model, tmp_path / "rec", tensors)
    assert against(model, tensors, folder).equal
    first = against(model, run(model), folder, Tolerance(rtol=1e9)).first
    assert first is not None
    assert (first.verdict, first.step, first.elements) == ("differs", np.inf, 5)


@pytest.fixture
def ties(model: Model, tmp_path: Path) -> tuple[Tensors, Callable[[Tensors], str]]:
    """A record whose tensor q has three near-ties, what it holds, and how a change of it is read."""
    x = np.full((8, 20), 0.313, np.float32)
    x[2, :3] = np.float32(0.02) * np.array([0.5, 1.5, 2.5], np.float32)
    names = [name for node in model.nodes for name in node.outputs]
    made = qrun.Session(model, backend="reference", fuse=False).run({"x": x}, names)
    tensors = {name: array.copy() for name, array in made.items()}
    record(tensors, model, {"x": x}, "qrun test", tmp_path / "rec")

    def reading(other: Tensors) -> str:
        first = compare_record(other, model, {"x": x}, tmp_path / "rec", EXACT).first
        assert first is not None
        assert first.recorded.ties is not None
        assert first.recorded.ties.tie == 3
        return first.reading

    return tensors, reading


def test_ties_are_proved(ties: tuple[Tensors, Callable[[Tensors], str]]) -> None:
    """The recorded bytes are made again, so nothing but the ties differs."""
    tensors, reading = ties
    q = tensors["q"][2]
    codes = [int(code) for code in q[:3]]
    assert codes == [120, 122, 122]
    q[:3] = [121, 121, 123]
    assert (
        reading(tensors)
        == "the record is exact; only near-ties: 3 of 3 elements within 1e-05 LSB of a tie round the other way"
    )
    q[:3] = [120, 122, 123]
    assert "only near-ties: 1 of 3" in reading(tensors)


def test_other_differences_are_no_ties(ties: tuple[Tensors, Callable[[Tensors], str]]) -> None:
    tensors, reading = ties
    before = tensors["q"].copy()
    tensors["q"][2, :2] = [121, 124]
    assert "the record is exact; not only ties: an element differs by 2 steps or more" in reading(tensors)
    tensors["q"][:] = before
    tensors["q"][2, 0], tensors["q"][0, 0] = 121, before[0, 0] + 1
    assert reading(tensors).startswith("the record is exact; 3 elements were within 1e-05 LSB of a tie, 3 within 0.001")
    tensors["q"][5] = before[5] + 1
    assert "more than rounding of near-ties: 22 or more elements differ" in reading(tensors)


def test_a_cause_is_proved_from_either_side(tmp_path: Path) -> None:
    """Sums that saturated on another CPU are named by the recorded hash alone."""
    rng = np.random.default_rng(2)
    onnx.save(
        conv_model(w=rng.choice([-128, 127], (16, 3, 3, 3)).astype(np.int8), y_scale=np.float32(4)), tmp_path / "m.onnx"
    )
    model = qrun.load(tmp_path / "m.onnx")
    feeds = {"image": rng.integers(200, 256, (1, 3, 8, 8)).astype(np.uint8)}
    exact = qrun.Session(model, backend="reference").run(feeds)
    saturated = run_emulated(model, feeds, ["y"])
    assert (exact["y"] != saturated["y"]).any()
    for made, now, said in ((saturated, exact, "the record has pair-saturation: "),
                            (exact, saturated, "the record is exact; now: pair-saturation: ")):  # fmt: skip
        record(made, model, feeds, "one", tmp_path / "rec")
        first = compare_record(now, model, feeds, tmp_path / "rec", EXACT).first
        assert first is not None
        assert first.reading.startswith(said), first.reading


def test_nothing_is_proved_from_other_inputs(tmp_path: Path) -> None:
    """Where a node read other values than the recorded one, its bytes prove nothing."""
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("MaxPool", ["q"], ["p"], kernel_shape=[2]),
    ]
    constants = {"s": np.float32(1), "z": np.uint8(0)}
    made = make_model(nodes, {"x": [1, 1, 4]}, {"p": typed(TensorProto.UINT8, [1, 1, 3])}, constants)
    onnx.save(made, tmp_path / "m.onnx")
    model, feeds = qrun.load(tmp_path / "m.onnx"), {"x": np.float32([[[1, 5, 2, 6]]])}
    q, p = np.uint8([[[1, 5, 2, 6]]]), np.uint8([[[5, 5, 6]]])
    record({"q": q, "p": p}, model, feeds, "one", tmp_path / "rec")
    now = {"q": np.uint8([[[0, 5, 2, 6]]]), "p": np.uint8([[[5, 5, 7]]])}
    found = compare_record(now, model, feeds, tmp_path / "rec", EXACT).tensors
    assert found[0].reading.startswith("the record is exact")
    assert found[1].reading == "an input already has different bits: q"


def test_form_and_missing_tensors(model: Model, tmp_path: Path) -> None:
    folder = recorded(model, tmp_path / "rec")
    tensors = run(model)
    fewer = against(model, {"y": tensors["y"]}, folder)
    assert fewer.equal
    assert fewer.only_recorded == ("q", "weights", "d")
    assert fewer.tensors[0].inputs == (("d", None), ("weights", None))
    assert fewer.tensors[0].inputs_equal is None
    tensors["y"] = tensors["y"].astype(np.float64)
    found = against(model, tensors, folder)
    assert not found.equal
    assert found.first is not None
    assert found.first.verdict == "form"
    with pytest.raises(CallError, match="share no tensor"):
        against(model, {}, folder)


@pytest.mark.parametrize("dtype", [np.bool_, np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.int4, ml_dtypes.uint4,
                                   np.int16, np.int64, np.uint64, np.complex64, object])  # fmt: skip
@pytest.mark.parametrize("shape", [(), (0, 3), (3, 4), (5, 5)])
def test_every_type_round_trips(tmp_path: Path, model: Model, dtype: Any, shape: tuple[int, ...]) -> None:
    array = np.asarray(np.arange(np.prod(shape, dtype=int)).reshape(shape) % 2).astype(dtype)
    folder = recorded(model, tmp_path / "rec", {"y": array})
    jsonschema.validate(json.loads((folder / "record.json").read_text()), SCHEMA)
    assert against(model, {"y": array}, folder).equal
    if array.size:
        other = array.copy()
        other[(0,) * array.ndim] = array.dtype.type(1) if dtype is not object else "b"
        found = against(model, {"y": other}, folder)
        assert not found.equal
        assert found.first is not None
        assert found.first.elements == 1


def test_bytes_do_not_depend_on_the_layout() -> None:
    a = np.arange(12, dtype=np.int32).reshape(3, 4)
    assert digest(a) == digest(np.asfortranarray(a))
    assert digest(a) == hashlib.sha256(a.astype("<i4").tobytes("C")).hexdigest() != digest(a.T)
    assert digest(np.array([-3], ml_dtypes.int4)) == digest(np.array([13 - 16], np.int8))


# What is refused


def test_another_model_or_other_inputs(model: Model, tmp_path: Path) -> None:
    folder = recorded(model, tmp_path / "rec")
    other = proto()
    other.producer_name = "other"
    onnx.save(other, tmp_path / "other.onnx")
    with pytest.raises(CallError, match="different model") as error:
        against(qrun.load(tmp_path / "other.onnx"), run(model), folder)
    assert model.sha256 in dict(error.value.facts)["recorded"]
    with pytest.raises(CallError, match="input 'x'") as error:
        compare_record(run(model), model, {"x": FEEDS["x"] + 1}, folder, EXACT)
    assert digest(FEEDS["x"]) in dict(error.value.facts)["recorded"]
    with pytest.raises(CallError, match="input 'x'"):
        compare_record(run(model), model, {}, folder, EXACT)


def test_external_data_is_part_of_the_model(tmp_path: Path) -> None:
    made = proto()
    onnx.save(made, tmp_path / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    model = qrun.load(tmp_path / "m.onnx")
    folder = recorded(model, tmp_path / "rec")
    tensors = run(model)
    assert against(model, tensors, folder).equal
    data = bytearray((tmp_path / "w.bin").read_bytes())
    data[-1] ^= 1
    (tmp_path / "copy.bin").write_bytes(bytes(data))
    (tmp_path / "copy.bin").replace(tmp_path / "w.bin")
    with pytest.raises(CallError, match="different model") as error:
        against(qrun.load(tmp_path / "m.onnx"), tensors, folder)
    assert "w.bin" in error.value.where


def test_only_a_record_is_written_over(model: Model, tmp_path: Path) -> None:
    folder = recorded(model, tmp_path / "rec")
    recorded(model, folder, {"y": run(model)["y"]})
    assert list(read_record(folder).entries) == ["y"]
    empty = tmp_path / "empty"
    empty.mkdir()
    recorded(model, empty)
    photos = tmp_path / "photos"
    photos.mkdir()
    (photos / "a.jpg").write_text("")
    for wrong in (photos, tmp_path / "m.onnx", tmp_path / "m.onnx" / "rec"):
        with pytest.raises(CallError, match="cannot write"):
            recorded(model, wrong)
    (photos / "record.json").write_text("{}")
    with pytest.raises(CallError):
        check_folder(photos)
    assert (photos / "record.json").read_text() == "{}"


def test_a_failed_run_leaves_the_older_record(model: Model, tmp_path: Path) -> None:
    folder = recorded(model, tmp_path / "rec")
    before = (folder / "record.json").read_bytes()

    def stream() -> Iterator[tuple[str, Array]]:
        yield "q", run(model)["q"]
        raise ZeroDivisionError

    for target in (folder, tmp_path / "new"):
        with pytest.raises(ZeroDivisionError):
            record(stream(), model, FEEDS, "qrun", target)
    assert (folder / "record.json").read_bytes() == before
    assert [p.name for p in folder.iterdir()] == ["record.json"]
    assert not (tmp_path / "new").exists()


def test_no_record(model: Model, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for wrong in ("nothing", "folder", "m.onnx"):
        with pytest.raises(CallError, match="not a record") as error:
            against(model, run(model), tmp_path / wrong)
        assert "--record DIR" in error.value.fixes[0]


def damage(document: dict[str, Any]) -> dict[str, tuple[Callable[[], Any], str]]:
    tensor = document["tensors"][0]
    return {
        "later": (lambda: document.update(schema="qrun/record/2.0"), "qrun/record/1.x"),
        "other kind": (lambda: document.update(schema="qrun/run/1.0"), "qrun/record/1.x"),
        "no tensors": (lambda: document.pop("tensors"), "'tensors'"),
        "hash": (lambda: tensor.update(sha256="z" * 64), "sha256: 64 hexadecimal"),
        "shape": (lambda: tensor.update(shape=[-8, -20]), "shape[0]"),
        "counts": (lambda: tensor["histogram"]["counts"].append(1), "160 in all"),
        "negative": (lambda: tensor["histogram"]["counts"].__setitem__(0, -1), "counts[0]"),
        "first": (lambda: tensor["histogram"].update(first=10**9), "counts of codes"),
        "sample": (lambda: tensor["sample"].append(1), "16 numbers"),
        "texts": (lambda: tensor["sample"].__setitem__(0, "many"), "sample[0]: a number"),
        "twice": (lambda: document["tensors"].append(tensor), "'q' again"),
        "saturated": (lambda: tensor.update(saturated=[1]), "saturated: 2 values"),
        "ties": (lambda: tensor.update(ties=3), "ties: an object"),
        "model": (lambda: document.update(model=[]), "model: an object"),
    }


def test_damaged(model: Model, tmp_path: Path) -> None:
    file = recorded(model, tmp_path / "rec") / "record.json"
    good, tensors = file.read_text(), run(model)
    for case in damage({"tensors": [{}]}):
        document = json.loads(good)
        change, said = damage(document)[case]
        change()
        file.write_text(json.dumps(document))
        with pytest.raises(CallError) as error:
            against(model, tensors, file.parent)
        assert any(said in text for _, text in error.value.facts), (case, error.value.facts)


def test_changed_at_random(model: Model, tmp_path: Path) -> None:
    """Whatever byte is changed, the record is compared or refused."""
    folder = recorded(model, tmp_path / "rec")
    good, tensors = (folder / "record.json").read_bytes(), run(model)
    tensors["y"] *= 2
    seed = int(np.random.SeedSequence().generate_state(1)[0])
    rng = np.random.default_rng(seed)
    for _ in range(300):
        data = bytearray(good)
        for place in rng.integers(0, len(data), rng.integers(1, 4)):
            data[place] = rng.choice(list(b'0123456789-e.",:[]{}nx'))
        (folder / "record.json").write_bytes(bytes(data))
        try:
            against(model, tensors, folder, Tolerance())
        except CallError:
            continue
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error


def test_other_machine_is_told(model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "host", lambda: {**HOST, "cpu": "Another CPU", "isa": "avx512vnni"})
    folder = recorded(model, tmp_path / "rec")
    monkeypatch.undo()
    settings = {s.name: s.a for s in against(model, run(model), folder).settings}
    assert settings["cpu"] == "Another CPU"


HOST = recording.host()
