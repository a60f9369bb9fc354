"""Images of models: what they hold is what is made without them, and damaged ones are made again."""

from __future__ import annotations

import gc
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.graphs_images import image_compare
from helpers.graphs_images import told as facts
from helpers.native import ISAS, OBJECTS

import qrun
from qrun import passes
from qrun.checking.rules import RULES, check, rule_count
from qrun.ir import Model
from qrun.ir.external import _File
from qrun.native.machine import blob
from qrun.native.machine.cache import ObjectCache
from qrun.running.kept.images import Images
from qrun.running.kept.packed import Bundle, Unstorable, pack_mapping, unpack, unpack_mapping
from qrun.running.kept.versions import SUFFIX

DIGITS = Path(__file__).parents[1] / "models" / "digits"
pytestmark = pytest.mark.skipif(not ISAS, reason="no native kernels for this machine")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return Path(shutil.copy(DIGITS / "qdq" / "model.onnx", tmp_path))


def images(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"*{SUFFIX}"))


def plain(value: Any) -> Any:
    """A value in a form in which equal means equal in all bits."""
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.shape, value.tobytes()
    if isinstance(value, tuple):
        return tuple(map(plain, value))
    return type(value), repr(value)


def told(model: Model) -> Iterator[Any]:
    """All of a model that a run depends on."""
    for node in model.nodes:
        yield node.index, node.name, node.op, node.version, node.inputs, node.outputs
        yield [(name, plain(value)) for name, value in node.attributes.items() if not isinstance(value, Model)]
        for _, graph in node.graphs():
            yield from told(graph)
    yield [(name, plain(array)) for name, array in model.constants.items()]
    yield list(model.types.items()), list(model.opsets.items()), model.inputs, model.outputs, model.defaults


@pytest.mark.parametrize("observe", [True, False], ids=["observing", "with tables"])
def test_an_optimized_model_is_made_once(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, observe: bool
) -> None:
    cache = tmp_path / "cache"
    qrun.Session(model, cache=cache)._runs.prepare((), observe)
    monkeypatch.setattr(passes, "_optimize", lambda *_: pytest.fail("made again"))
    found = qrun.Session(model, cache=cache)._runs.prepare((), observe)
    monkeypatch.undo()
    made = qrun.Session(model, cache=False)._runs.prepare((), observe)
    assert list(told(found.plan.model)) == list(told(made.plan.model))
    assert (found.groups, found.reasons) == (made.groups, made.reasons)


@pytest.mark.parametrize("form", ["qdq", "qoperator", "dynamic", "float"])
def test_runs_that_observe_make_no_tables(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What depends on no table is one plan for both kinds of runs."""
    path = DIGITS / form / "model.onnx"
    feeds = {qrun.load(path).inputs[0].name: np.load(DIGITS / "x.npy")}
    tables = passes.has_tables(qrun.Session(path, cache=False)._runs.prepare((), False).plan.model)
    assert passes.makes_tables(qrun.load(path), "exact") == tables
    session = qrun.Session(path, cache=tmp_path / "cache")
    want = session.run_observed(feeds)
    keep = session._runs.names(None)
    assert ((keep, False) in session._runs.plans) == (not tables)
    got = session.run(feeds)
    assert [plain(a) for a in got.values()] == [plain(a) for a in want.outputs.values()]
    assert (session._runs.plans[keep, False] is session._runs.plans[keep, True]) == (not tables)


def test_another_model_has_another_image(model: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    qrun.Session(model, cache=cache)
    before = images(cache)
    proto = onnx.load(model)
    scale = next(t for t in proto.graph.initializer if t.name.endswith("scale"))
    scale.float_data[:] = [] if scale.raw_data else [2 * scale.float_data[0]]
    if scale.raw_data:
        scale.raw_data = (2 * np.frombuffer(scale.raw_data, np.float32)).tobytes()
    onnx.save(proto, model)
    other = qrun.Session(model, cache=cache)
    assert len(images(cache)) == 2 * len(before)
    assert list(told(other._runs.prepare((), False).plan.model)) == list(
        told(qrun.Session(model, cache=False)._runs.prepare((), False).plan.model)
    )


def test_external_data_is_part_of_a_model(model: Path, tmp_path: Path) -> None:
    cache, weights = tmp_path / "cache", tmp_path / "weights"
    onnx.save(onnx.load(model), model, save_as_external_data=True, location="weights", size_threshold=64)
    qrun.Session(model, cache=cache)
    before = images(cache)
    qrun.Session(model, cache=cache)
    assert images(cache) == before
    data = bytearray(weights.read_bytes())
    data[100] ^= 1
    weights.write_bytes(data)
    qrun.Session(model, cache=cache)
    assert len(images(cache)) == 2 * len(before)


def test_files_of_external_data_are_told_by_their_state(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once they are older than a tick of the clock; until then by their bytes."""
    onnx.save(onnx.load(model), model, save_as_external_data=True, location="weights", size_threshold=64)
    weights = tmp_path / "weights"

    def digest() -> str:
        content = qrun.load(model).content
        assert content is not None
        return content.digest

    fresh = digest()
    weights.write_bytes(weights.read_bytes())
    assert digest() == fresh, "the same bytes in a new file"
    fill = _File._fill

    def slow(*given: Any) -> Any:
        found = fill(*given)
        monkeypatch.setattr("qrun.ir.external._TICK", -(1 << 62))
        return found

    with monkeypatch.context() as patched:
        patched.setattr(_File, "_fill", slow)
        assert digest() == fresh, "a file that was new when reading began, which took long"
    old = digest()
    assert old != fresh
    assert digest() == old
    data, times = bytearray(weights.read_bytes()), weights.stat()
    data[100] ^= 1
    weights.write_bytes(data)
    os.utime(weights, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert digest() != old, "other bytes at the same time of modification"


LARGE = {
    "float": ("MatMul(x, w)", {"w": (np.float32, (512, 1025))}),
    "float, turned": ("Gemm<transB = 1>(x, w)", {"w": (np.float32, (1025, 512))}),
    "int8": ("MatMulInteger(q, w, zero)", {"w": (np.int8, (512, 2051))}),
    "uint8": ("MatMulInteger(q, w, zero, z)", {"w": (np.uint8, (512, 2051)), "z": (np.uint8, ())}),
    "4 bits": (
        "com.microsoft.MatMulNBits<K = 512, N = 8196, bits = 4, block_size = 32>(x, w, s)",
        {"w": (np.uint8, (8196, 16, 16)), "s": (np.float32, (8196 * 16,))},
    ),
    "convolution": ("Conv(images, w)", {"w": (np.float32, (640, 512, 1, 1))}),
}


@pytest.mark.parametrize("form", LARGE)
def test_large_weights_are_packed_again(form: str, tmp_path: Path) -> None:
    """By sessions that find a program: it is small, and gives the same bits."""
    path, cache, rng = tmp_path / "model.onnx", tmp_path / "cache", np.random.default_rng(3)
    call, stored = LARGE[form]
    header = '<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]> main (float[4, 512] x) => (y)'
    before = "q, scale, zero = DynamicQuantizeLinear(x) shape = Constant<value_ints = [4, 512, 1, 1]>() images = Reshape(x, shape)"
    proto = onnx.parser.parse_model(f"{header} {{ {before} y = {call} }}")
    for name, (dtype, shape) in stored.items():
        values = rng.integers(-99, 99, shape).astype(dtype) if np.dtype(dtype).kind in "iu" else rng.normal(size=shape)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(values, dtype), name))
    onnx.save(proto, path)
    feeds = {"x": rng.normal(size=(4, 512)).astype(np.float32)}
    want = plain(qrun.Session(path, cache=False).run(feeds)["y"])
    for run in range(3):
        session = qrun.Session(path, cache=cache, threads=2)
        assert plain(session.run(feeds)["y"]) == want
        assert served(session) == (run > 0)
        gc.collect()
    sizes = sum(image.stat().st_size for image in images(cache))
    copied = form == "uint8"  # such weights are not packed as they are stored
    assert (sizes < path.stat().st_size // 4) == (not copied)


def test_what_replace_makes_of_a_model_has_no_image(tmp_path: Path) -> None:
    path, cache = tmp_path / "model.onnx", tmp_path / "cache"
    header = '<ir_version: 8, opset_import: ["" : 13]>'
    onnx.save(onnx.parser.parse_model(header + " main (float[2] x) => (float[2] y) { y = Relu(x) }"), path)
    loaded, x = qrun.load(path), np.array([-1, 2], np.float32)
    for fuse in (True, False):
        qrun.Session(loaded, cache=cache, fuse=fuse).run_observed({"x": x})
        qrun.Session(loaded, cache=cache, fuse=fuse).run({"x": x})
        other = replace(loaded, nodes=(replace(loaded.nodes[0], op_type="Neg"),))
        assert plain(qrun.Session(other, cache=cache, fuse=fuse).run({"x": x})["y"]) == plain(-x)
        optimized = qrun.Session(DIGITS / "qdq" / "model.onnx", cache=cache)._runs.prepare((), True).plan.model
        assert not qrun.Session(optimized, cache=cache, fuse=fuse)._runs.kept, "its nodes are not the file's"


def test_no_image_is_made_where_nothing_is_kept(model: Path, tmp_path: Path) -> None:
    x = np.load(DIGITS / "x.npy")
    for given, cache in (
        (model, False),
        (model.read_bytes(), tmp_path / "cache"),
        (onnx.load(model), tmp_path / "cache"),
    ):
        session = qrun.Session(given, cache=cache)
        session.run_observed({session.inputs[0].name: x})
    assert not list(tmp_path.rglob(f"*{SUFFIX}"))


def weighted(path: Path, middle: str = "Relu") -> Path:
    """A model that is large enough to be kept wherever it comes from."""
    header = '<ir_version: 8, opset_import: ["" : 13]>'
    text = f"{header} main (float[2,128] x) => (float[2,256] y) {{ a = MatMul(x, w) b = {middle}(a) y = Relu(b) }}"
    proto = onnx.parser.parse_model(text)
    weights = np.random.default_rng(1).normal(size=(128, 256)).astype(np.float32)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    onnx.save(proto, path)
    return path


def test_models_that_are_in_no_file_have_images(tmp_path: Path) -> None:
    path, cache = weighted(tmp_path / "model.onnx"), tmp_path / "cache"
    feeds = {"x": np.random.default_rng(2).normal(size=(2, 128)).astype(np.float32)}
    want = facts(qrun.Session(path, cache=False).execute(feeds))[0]
    for given in (path.read_bytes(), onnx.load(path)):
        assert facts(qrun.Session(given, cache=cache).run_observed(feeds))[0] == want
        session = qrun.Session(given, cache=cache)
        assert facts(session.execute(feeds))[0] == want
        assert served(session)
    proto = onnx.load(path)
    proto.graph.node[-1].op_type = "Neg"
    other = qrun.Session(proto, cache=cache)
    np.testing.assert_array_equal(other.run(feeds)["y"], -qrun.Session(path, cache=False).run(feeds, ["b"])["b"])
    assert not served(other)


def test_a_program_of_a_run_step_by_step_is_kept_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One step has no native kernel; the program does not run in the process that makes it."""
    path, cache = weighted(tmp_path / "model.onnx", "Hardmax"), tmp_path / "cache"
    feeds = {"x": np.random.default_rng(2).normal(size=(2, 128)).astype(np.float32)}
    first = qrun.Session(path, cache=cache)
    with monkeypatch.context() as patch:
        patch.setattr("qrun.running.runs.run_program", lambda *_: pytest.fail("run again"))
        want = first.run_observed(feeds)
    assert any(event.backend == "reference" for event in want.events)
    session = qrun.Session(path, cache=cache)
    assert facts(session.execute(feeds))[0] == facts(want)[0]
    assert served(session)


BODIES = {
    "If": """main (float[2,3] x, float k) => (float[2,3] y)
    <float[3] w = {1, 2, 3}, float zero = {0}> {
        d = Mul(x, w)
        c = Less(zero, k)
        y = If(c) <
            then_branch = a () => (float[2,3] ay) { ay = Add(d, w) },
            else_branch = b () => (float[2,3] by) <float[3] v = {5, 6, 7}> { t = Neg(d) by = Mul(t, v) }
        >
    }""",
    "Loop": """main (float[2,3] x, float k) => (float[2,3] y) {
        n = Cast<to = 7>(k)
        p = Mul(x, k)
        r = Loop(n, , p) <body = b (int64 i, bool c, float[2,3] v) => (bool o, float[2,3] u)
            <float two = {2}> { o = Identity(c) m = Mul(v, two) u = Add(m, x) }>
        y = Add(r, k)
    }""",
    "Scan": """main (float[2,3] x, float k) => (float[3] s, float[2,3] y) <float[3] z = {1, 2, 3}> {
        p = Mul(x, k)
        e = Mul(z, k)
        s, y = Scan<num_scan_inputs = 1, body = b (float[3] v, float[3] r) => (float[3] u, float[3] q)
            { u = Add(v, r) q = Mul(u, z) }>(e, p)
    }""",
}


@pytest.mark.parametrize("name", BODIES)
def test_models_with_graphs_inside_nodes_have_images(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, cache = tmp_path / "model.onnx", tmp_path / "cache"
    onnx.save(onnx.parser.parse_model('<ir_version: 8, opset_import: ["" : 17]> ' + BODIES[name]), path)
    x = np.arange(6, dtype=np.float32).reshape(2, 3) - 2
    feeds = [{"x": x, "k": np.array(k, np.float32)} for k in (2, 3, -1, 0)]
    want = [qrun.Session(path, backend="reference", cache=False).execute(given) for given in feeds]
    qrun.Session(path, cache=cache).run(feeds[0])
    session = qrun.Session(path, cache=cache)
    for given, expected in zip(feeds, want, strict=True):
        ran = session.execute(given, observe=False)
        assert [plain(a) for a in ran.outputs.values()] == [plain(a) for a in expected.outputs.values()]
        assert [(e.path, e.op, e.runs) for e in ran.inside] == [(e.path, e.op, e.runs) for e in expected.inside]
    assert served(session)
    assert list(told(qrun.load(path))) == list(told(session.model))
    for given in feeds:
        observed = qrun.Session(path, cache=cache).run_observed(given)
        assert facts(observed) == facts(qrun.Session(replace(qrun.load(path)), cache=False).run_observed(given))
    monkeypatch.setattr(ObjectCache, "save_parts", lambda *_: pytest.fail("kept again"))
    qrun.Session(path, cache=cache).run_observed(feeds[0])


@pytest.mark.parametrize(
    ("error", "told"), [(ValueError, False), (qrun.CallError, False), (KeyError, True), (TypeError, True)]
)
def test_only_refusals_are_left_to_a_run_step_by_step(
    error: type[Exception], told: bool, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planning ahead hides no defect of its own."""
    session = qrun.Session(model, cache=tmp_path / "cache")
    feeds = {session.inputs[0].name: np.load(DIGITS / "x.npy")}

    def dry_run(*_: object) -> None:
        raise error("QR005", "refused") if error is qrun.CallError else error("refused")

    monkeypatch.setattr("qrun.running.dryrun.dry_run", dry_run)
    if told:
        with pytest.raises(error, match="refused"):
            session.execute(feeds)
    else:
        want = qrun.Session(model, cache=False).run(feeds)
        assert [plain(a) for a in session.execute(feeds).outputs.values()] == [plain(a) for a in want.values()]


def test_no_damaged_byte_is_believed(tmp_path: Path) -> None:
    cache = ObjectCache(tmp_path / "cache")
    bundle = Bundle()
    index = "index", bundle.array(np.arange(40, dtype=np.int16)), bundle.array(np.float32(2).reshape(()))
    cache.save_parts("key", bundle.parts(index), SUFFIX)
    (file,) = images(tmp_path / "cache")
    good = file.read_bytes()
    for place in range(len(good)):
        file.write_bytes(good[:place] + bytes((good[place] ^ 1 << place % 8,)) + good[place + 1 :])
        assert cache.map_entry("key", SUFFIX) is None, place
    for size in range(len(good)):
        file.write_bytes(good[:size])
        assert cache.map_entry("key", SUFFIX) is None, size
    file.write_bytes(good)
    assert cache.map_entry("another key", SUFFIX) is None
    body = cache.map_entry("key", SUFFIX)
    assert body is not None
    found, arrays = unpack(body)
    assert found == index
    assert [plain(array) for array in arrays] == [plain(np.arange(40, dtype=np.int16)), plain(np.array(2, "f4"))]


def test_pieces_of_any_size_have_the_checks_of_the_whole(tmp_path: Path) -> None:
    cache = ObjectCache(tmp_path / "cache")
    data = np.random.default_rng(0).bytes(5 << 19)
    cache.save_parts("key", [data[:7], b"", data[7 : 1 << 20], data[1 << 20 :]], SUFFIX)
    assert cache.map_entry("key", SUFFIX) == data


def test_attributes_come_back_as_they_were() -> None:
    values = {"a": 1, "b": -0.0, "c": float("nan"), "d": "é", "e": b"\xff", "f": (1, 2.0, "x"), "g": np.arange(3),
              "h": (np.zeros((0, 2), np.int8), np.array(True)), "i": ()}  # fmt: skip
    bundle = Bundle()
    index, arrays = unpack(memoryview(b"".join(bundle.parts(pack_mapping(values, bundle)))))
    assert plain(tuple(unpack_mapping(index, arrays).items())) == plain(tuple(values.items()))
    for value in (np.array(["text"], object), object()):
        with pytest.raises(Unstorable):
            pack_mapping({"x": value}, bundle)


def outcome(session: qrun.Session, feeds: Any) -> Any:
    """What a session tells of these inputs, or the words with which it refuses them."""
    try:
        first = session.execute(feeds)
        again = session.run_observed(feeds)
    except qrun.QrunError as error:
        return str(error)
    return facts(first), check(session.model, first), [plain(array) for array in again.outputs.values()]


def served(session: qrun.Session) -> bool:
    """Whether it ran programs that earlier sessions made, and planned nothing."""
    return not session._runs.plans and session._runs.kept is not None and any(session._runs.kept._found.values())


@pytest.mark.parametrize("arith", ["exact", "ort", "onnx-ref"])
@pytest.mark.parametrize("form", ["qdq", "qoperator", "dynamic", "float"])
def test_a_kept_program_tells_what_a_first_run_tells(form: str, arith: Any) -> None:
    path, cache = DIGITS / form / "model.onnx", OBJECTS
    x = np.load(DIGITS / "x.npy")
    odd = x.copy()
    odd.flat[::7] = np.nan
    bare = replace(qrun.load(path))
    for fuse in (True, False):
        options: dict[str, Any] = {"arith": arith, "fuse": fuse}
        feeds = {qrun.load(path).inputs[0].name: x}
        qrun.Session(path, cache=cache, **options).run_observed(feeds)
        for array in (x, 1000 * x, -x, odd, np.zeros_like(x)):
            feeds = dict.fromkeys(feeds, array)
            kept = qrun.Session(path, cache=cache, **options)
            want, got = (outcome(session, feeds) for session in (qrun.Session(bare, cache=cache, **options), kept))
            assert got == want
            assert served(kept) or arith == "onnx-ref" or isinstance(got, str)


def test_the_first_run_makes_what_the_next_process_runs(model: Path, tmp_path: Path) -> None:
    cache, feeds = tmp_path / "cache", {"x": np.load(DIGITS / "x.npy")}
    feeds = {qrun.load(model).inputs[0].name: feeds["x"]}
    want = qrun.Session(model, cache=cache).run(feeds)
    session = qrun.Session(model, cache=cache)
    for _ in range(2):
        assert [plain(a) for a in session.run(feeds).values()] == [plain(a) for a in want.values()]
    assert served(session)
    other = {name: np.repeat(array, 2, 0) for name, array in feeds.items()}
    limited = qrun.Session(model, cache=cache, max_memory=1 << 30)
    assert [plain(a) for a in limited.run(feeds).values()] == [plain(a) for a in want.values()]
    assert not served(limited), "what a limit allows is found out each time"
    assert len(session.run(other)) == 1
    assert session._runs.plans, "inputs of other shapes"


@pytest.mark.parametrize("observe", [True, False], ids=["observing", "not observing"])
@pytest.mark.parametrize("form", ["qdq", "qoperator", "dynamic", "float"])
def test_the_first_run_of_all_is_a_program(
    form: str, observe: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where shapes tell all that it takes; it tells what a run step by step does."""
    path = DIGITS / form / "model.onnx"
    x = np.load(DIGITS / "x.npy")
    for array in (x, 1000 * x, np.zeros_like(x)):
        feeds = {qrun.load(path).inputs[0].name: array}
        want = qrun.Session(replace(qrun.load(path)), cache=OBJECTS).execute(feeds, observe=observe)
        with monkeypatch.context() as patch:
            patch.setattr("qrun.running.runs.Runs._step_by_step", lambda *_: pytest.fail("step by step"))
            cache = tmp_path / f"{len(list(tmp_path.iterdir()))}"
            session = qrun.Session(path, cache=cache)
            got = session.execute(feeds, observe=observe)
            assert [plain(a) for a in got.outputs.values()] == [plain(a) for a in want.outputs.values()]
            if observe:
                assert facts(got) == facts(want)
            later = qrun.Session(path, cache=cache)
            again = later.execute(feeds, observe=observe)
            assert [plain(a) for a in again.outputs.values()] == [plain(a) for a in want.outputs.values()]
            assert served(later)


@pytest.mark.parametrize("form", ["qdq", "qoperator", "dynamic", "float"])
def test_keeping_a_program_compiles_nothing(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = qrun.Session(DIGITS / form / "model.onnx", cache=tmp_path / "cache")
    assert session._engine is not None
    kernels, keep, counts = session._engine.kernels, Images.keep, []

    def counted(*given: Any, **more: Any) -> None:
        counts.append(kernels.compiled)
        keep(*given, **more)
        counts.append(kernels.compiled)

    monkeypatch.setattr(Images, "keep", counted)
    session.run_observed({session.inputs[0].name: np.load(DIGITS / "x.npy")})
    before, after = counts
    assert before == after > 0


def test_an_image_brings_its_machine_code(model: Path, tmp_path: Path) -> None:
    """Nothing is looked for among the kernels that are kept one by one, which others may have evicted."""
    cache, feeds = tmp_path / "cache", {qrun.load(model).inputs[0].name: np.load(DIGITS / "x.npy")}
    want = qrun.Session(model, cache=cache).run(feeds)
    kernels = [entry for entry in cache.iterdir() if entry.suffix in (".blob", ".o")]
    assert len(kernels) > 3
    for entry in kernels:
        entry.unlink()
    session = qrun.Session(model, cache=cache)
    assert [plain(a) for a in session.run(feeds).values()] == [plain(a) for a in want.values()]
    assert served(session)
    assert session._engine is not None
    assert not session._engine.kernels.compiled or not blob.USABLE
    assert not [entry for entry in cache.iterdir() if entry.suffix == ".blob"]


@pytest.mark.parametrize("form", ["qdq", "float"])
def test_a_program_is_kept_once(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the runs that make it, not by those that use it."""
    path, kept = DIGITS / form / "model.onnx", []
    monkeypatch.setattr(Images, "keep", lambda self, made, serves, *_: kept.append(serves))
    session = qrun.Session(path, cache=tmp_path / "cache")
    feeds = {qrun.load(path).inputs[0].name: np.load(DIGITS / "x.npy")}
    for _ in range(6):
        session.run(feeds)
    assert 1 <= len(kept) <= 2


def test_programs_for_further_shapes_are_kept_when_these_came_often(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where they came in a row: what repeats the last run counts them."""
    monkeypatch.setattr("qrun.running.kept.images.OFTEN", 3)
    cache, name = tmp_path / "cache", qrun.load(model).inputs[0].name
    feeds = [{name: np.repeat(np.load(DIGITS / "x.npy"), count, 0)} for count in (1, 2, 3)]
    session = qrun.Session(model, cache=cache)
    want = [plain(next(iter(session.run(given).values()))) for given in feeds]
    for turn in range(3):
        for given, expected in zip(feeds, want, strict=True):
            later = qrun.Session(model, cache=cache)
            keeps = later._runs.kept is not None and later._runs.kept._images.program(
                later._runs.names(None), False, given
            )
            assert bool(keeps) == (turn == 2 or given is feeds[0])
            for _ in range(1 + turn):
                assert plain(next(iter(session.run(given).values()))) == expected


def test_a_session_keeps_programs_for_some_shapes(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where ever new ones come twice, as those of a cache that grows, it writes no file for each of them."""
    monkeypatch.setattr("qrun.running.kept.images.MOST", 3)
    monkeypatch.setattr("qrun.running.kept.images.OFTEN", 2)
    cache, name = tmp_path / "cache", qrun.load(model).inputs[0].name
    session, later = qrun.Session(model, cache=cache), qrun.Session(model, cache=cache)
    assert later._runs.kept is not None
    kept = []
    for count in range(1, 7):
        given = {name: np.repeat(np.load(DIGITS / "x.npy"), count, 0)}
        want = [plain(next(iter(session.run(given).values()))) for _ in range(4)]
        assert want == want[:1] * 4
        kept.append(later._runs.kept._images.program(later._runs.names(None), False, given) is not None)
    assert kept[:3] == [True] * 3
    assert kept[4:] == [False] * 2


def test_kept_programs_take_no_more_memory_than_made_ones(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qrun.running.kept.images.OFTEN", 1)
    cache, name = tmp_path / "cache", qrun.load(model).inputs[0].name
    x = np.load(DIGITS / "x.npy")
    feeds = [{name: np.repeat(x, count, 0)} for count in (1, 2, 3)]
    first = qrun.Session(model, cache=cache)
    for given in feeds:
        first.run(given)
        first.run(given)
    monkeypatch.setattr("qrun.running.programs.KEPT_BYTES", 1)
    session = qrun.Session(model, cache=cache)
    for given in feeds:
        session.run(given)
        assert served(session)
        assert session._runs.kept is not None
        assert len(session._runs.kept._found) == 1


def test_errors_are_those_of_a_run_step_by_step(tmp_path: Path) -> None:
    path, cache = tmp_path / "model.onnx", tmp_path / "cache"
    proto = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 13]> main (float[4] x, int64[1] i) => (float[1] z)'
        " { y = Relu(x) z = Gather(y, i) }"
    )
    onnx.save(proto, path)
    good = {"x": np.arange(4, dtype=np.float32), "i": np.array([3])}
    bad = good | {"i": np.array([9])}
    qrun.Session(path, cache=cache).run_observed(good)
    with pytest.raises(qrun.QrunError) as want:
        qrun.Session(path, cache=False).execute(bad)
    for observe in (True, False):
        session = qrun.Session(path, cache=cache)
        with pytest.raises(qrun.QrunError) as got:
            session.execute(bad, observe=observe)
        assert str(got.value) == str(want.value)
        assert plain(session.execute(good, observe=observe).outputs["z"]) == plain(np.array([3], np.float32))


def test_a_model_that_cannot_run_is_refused_each_time(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(
        onnx.parser.parse_model(
            '<ir_version: 8, opset_import: ["" : 20]> main (uint8[4] x) => (uint8[h,w,3] y) { y = Frobnicate(x) }'
        ),
        path,
    )
    for _ in range(2):
        with pytest.raises(qrun.QrunError, match="QR201"):
            qrun.Session(path, cache=tmp_path / "cache")


@pytest.mark.parametrize("first", range(0, 32, 8))
def test_random_graphs_with_and_without_an_image(first: int, tmp_path: Path) -> None:
    assert sum(image_compare(seed, tmp_path, OBJECTS) for seed in range(first, first + 8)) > 0


def test_damaged_images_are_made_again(model: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    feeds = {qrun.load(model).inputs[0].name: np.load(DIGITS / "x.npy")}
    want = facts(qrun.Session(model, cache=cache).run_observed(feeds))[0]
    rng = np.random.default_rng(3)
    for turn in range(24):
        for file in images(cache):
            data = bytearray(file.read_bytes())
            place = int(rng.integers(max(len(data), 1)))
            if turn % 3:
                data[place : place + 1] = bytes(byte ^ int(rng.integers(1, 256)) for byte in data[place : place + 1])
            else:
                del data[place:]
            file.write_bytes(data)
        session = qrun.Session(model, cache=cache)
        assert facts(session.execute(feeds))[0] == want
        assert not served(session)
        session.run_observed(feeds)


def test_an_image_of_other_sources_is_not_used(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "cache"
    feeds = {qrun.load(model).inputs[0].name: np.load(DIGITS / "x.npy")}
    qrun.Session(model, cache=cache).run_observed(feeds)
    monkeypatch.setattr("qrun.running.kept.versions.version", lambda: "another version")
    session = qrun.Session(model, cache=cache)
    session.execute(feeds)
    assert not served(session)


def test_an_image_is_of_the_sources_that_its_process_imported(tmp_path: Path) -> None:
    """Also where they are edited before it is made."""
    package, cache = tmp_path / "sources" / "qrun", tmp_path / "cache"
    shutil.copytree(Path(qrun.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    script = (
        "import os, sys, numpy as np; from qrun import Session\n"
        "path, x, *edited = sys.argv[1:]\n"
        "for source in edited: os.utime(source, ns=(1, 1))\n"
        "session = Session(path); session.run({session.inputs[0].name: np.load(x)})"
    )
    command = [
        sys.executable,
        "-c",
        script,
        str(DIGITS / "qoperator" / "model.onnx"),
        str(DIGITS.parent / "digits" / "x.npy"),
    ]
    environment = {**os.environ, "PYTHONPATH": str(package.parent), "QRUN_CACHE_DIR": str(cache)}
    counts = []
    for edited in ([str(package / "memory.py")], [], []):
        subprocess.run([*command, *edited], env=environment, cwd=tmp_path, check=True)
        counts.append(len(images(cache)))
    assert counts[0] < counts[1] == counts[2], counts


def test_processes_at_once_make_whole_images(model: Path, tmp_path: Path) -> None:
    x = DIGITS / "x.npy"
    command = [sys.executable, "-m", "qrun", str(model), "-i", str(x), "--format", "json"]
    environment = {**os.environ, "QRUN_CACHE_DIR": str(tmp_path / "cache")}
    runs = [subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) for _ in range(6)]
    killed = [subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment) for _ in range(3)]
    for place, process in enumerate(killed):
        time.sleep(0.3 * place)
        process.kill()
        process.wait()
    shown = [json.loads(process.communicate(timeout=120)[0]) for process in runs]
    shown.append(json.loads(subprocess.run(command, stdout=subprocess.PIPE, env=environment, check=True).stdout))
    assert [process.returncode for process in runs] == [0] * len(runs)
    assert len({report["outputs"][0]["sha256"] for report in shown}) == 1
    for report in shown:
        assert report["findings"] == shown[0]["findings"]
        assert [{**node, "time_ms": 0} for node in report["nodes"]] == [
            {**node, "time_ms": 0} for node in shown[0]["nodes"]
        ]


@pytest.mark.parametrize("form", ["qdq", "qoperator", "dynamic", "float"])
def test_findings_are_the_same_whether_kept_or_not(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = Path(shutil.copy(DIGITS / form / "model.onnx", tmp_path))
    x = 1000 * np.load(DIGITS / "x.npy")
    for _ in range(2):
        session = qrun.Session(path, cache=OBJECTS)
        result = session.execute({session.inputs[0].name: x})
        assert check(session.model, result, keeper=session.load_or_make) == check(qrun.load(path), result)
    assert rule_count() == len(RULES)
    monkeypatch.setattr(
        "qrun.checking.rules._rule.Rule.find", lambda rule, *_: [] if rule.runs else pytest.fail(rule.id)
    )
    check(session.model, result, keeper=session.load_or_make)
    other = Path(shutil.copy(path, tmp_path / "other.onnx"))
    with pytest.raises(pytest.fail.Exception):
        check(qrun.load(other), result, keeper=qrun.Session(other, cache=OBJECTS).load_or_make)
