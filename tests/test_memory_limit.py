"""--max-memory limits what a run holds: every output of every operator counts, and is refused before it is made."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.models import make_model
from helpers.native import OBJECTS
from helpers.node_cases import array as tensor_of
from helpers.node_cases import cases
from helpers.nodes import NODES
from helpers.support import node_model
from onnx import TensorProto, helper

import qrun
from qrun.io.inputs import read_inputs
from qrun.memory import Budget
from qrun.ops import REGISTRY

BACKENDS = ("reference", "native")
F = np.float32
Case = tuple[onnx.ModelProto, dict[str, np.ndarray]]


def own_cases(domain: str, op_type: str) -> Iterator[Case]:
    if (domain, op_type) in NODES:
        inputs, attributes, made = NODES[domain, op_type]
        model, feeds = node_model(op_type, inputs, attributes, domain=domain, outputs=[made])
        yield model, feeds
    for case in cases().get(op_type, ()) if not domain else ():
        names = [value.name for value in case.model.graph.input]
        inputs, _ = case.data_sets[0]
        tensors = [value.type.HasField("tensor_type") for value in (*case.model.graph.input, *case.model.graph.output)]
        if all(tensors):
            yield case.model, {name: tensor_of(v) for name, v in zip(names, inputs, strict=True)}


class Watched(Budget):
    """Notes what kernels made, in bytes, and which tensors were there before the limit was asked for them."""

    made = 0
    late: Sequence[str] = ()

    def hold_made(self, array: Any, what: str) -> None:
        before = self.live
        try:
            super().hold_made(array, what)
        except qrun.MemoryLimitError:
            Watched.late = [*Watched.late, what]
            raise
        Watched.made += self.live - before


SIZED = ("Constant", "Shape", "Size", "QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear")
"""What they make is as large as the file, or a few bytes: a constant, a shape; some cases make their zero points so."""


OF_TENSORS = sorted(key for key, found in REGISTRY.items() if found[-1].compounds != "makes")
"""Those of sequences and maps have tests of their own (tests/ops/test_sequences.py)."""


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("domain", "op_type"), OF_TENSORS, ids=lambda part: str(part) or "ai.onnx")
def test_outputs_of_every_operator_count(
    domain: str, op_type: str, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qrun.running.execution.Budget", Watched)
    tried = 0
    for model, inputs in own_cases(domain, op_type):
        feeds = {name: a.copy() for name, a in inputs.items()}
        session = qrun.Session(model, backend=backend, cache=OBJECTS)
        Watched.made = 0
        result = session.execute(feeds, observe=False)
        fed, made = sum(a.nbytes for a in feeds.values()), Watched.made
        given = sum(a.nbytes for a in result.outputs.values())
        if any(definition.graphs for definition in REGISTRY[domain, op_type]):
            made = given - fed  # bodies make much that is gone before the end
        assert result.peak_bytes >= max(fed + made, given)
        tried += given > 0
        for limit in {fed + made, fed, given} - {0}:
            session.max_memory, Watched.late = limit - 1, ()
            with pytest.raises(qrun.MemoryLimitError) as caught:
                session.execute(feeds, observe=False)
            assert caught.value.code == "QR010"
            assert not Watched.late or op_type in SIZED, f"{op_type} made {Watched.late} before it asked for the memory"
        session.max_memory = None
        session.run(feeds)
        session.max_memory = max(fed, given) - 1
        with pytest.raises(qrun.MemoryLimitError):
            session.run(feeds)
    assert tried, f"no case of {op_type} makes anything"


RUN = """
import resource, sys
import numpy as np
import qrun
from qrun.memory import Budget
session = qrun.Session(sys.argv[1], backend=sys.argv[2], max_memory=int(sys.argv[3]) or None)
feeds = {v.name: np.ones(v.shape, v.dtype) for v in session.inputs}
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    session.run(feeds)
    print("ran")
except qrun.QrunError as error:
    print(error)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


def taken(path: Path, backend: str, limit: int = 0) -> tuple[str, int]:
    """What a run in a process of its own says, and the MiB that it took beyond its inputs."""
    words = [sys.executable, "-c", RUN, str(path), backend, str(limit)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=True)
    *told, mib = done.stdout.splitlines()
    return "\n".join(told), int(mib)


def chain(nodes: Sequence[onnx.NodeProto], shape: Sequence[int], stored: Sequence[Any] = ()) -> onnx.ModelProto:
    """Nodes from x to the last one's output."""
    return make_model(nodes, {"x": shape}, {nodes[-1].output[0]: None}, dict(stored), opset=17)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_chain_stays_below_its_limit(backend: str, tmp_path: Path) -> None:
    model = chain([helper.make_node("Relu", [f"t{i}" if i else "x"], [f"t{i + 1}"]) for i in range(40)], [12 << 20])
    onnx.save(model, tmp_path / "m.onnx")
    said, mib = taken(tmp_path / "m.onnx", backend, 90 << 20)
    assert "QR010" in said
    assert "node 0" in said
    assert mib < 40


def doubling(op_type: str) -> onnx.ModelProto:
    """A model of a few hundred bytes that makes 2**35 elements."""
    names = ["x", *(f"t{i}" for i in range(35))]
    pairs = list(zip(names, names[1:], strict=False))
    if op_type == "Concat":
        return chain([helper.make_node("Concat", [a, a], [b], axis=0) for a, b in pairs], [1])
    if op_type == "Tile":
        return chain([helper.make_node("Tile", [a, "r"], [b]) for a, b in pairs], [1], [("r", np.array([2]))])
    if op_type == "Pad":
        return chain([helper.make_node("Pad", [a, f"p{i}"], [b]) for i, (a, b) in enumerate(pairs)], [1],
                     [(f"p{i}", np.array([0, 2**i])) for i in range(35)])  # fmt: skip
    if op_type == "Resize":
        return chain(
            [helper.make_node("Resize", [a, "", "s"], [b]) for a, b in pairs], [1, 1, 1], [("s", F([1, 1, 2]))]
        )
    if op_type == "ConvTranspose":
        return chain([helper.make_node("ConvTranspose", [a, "w"], [b], strides=[2]) for a, b in pairs], [1, 1, 1],
                     [("w", np.ones((1, 1, 2), F))])  # fmt: skip
    if op_type == "Einsum":
        made = [helper.make_node("Einsum", [a, "o"], [f"g{b}"], equation="ij,k->kij") for a, b in pairs]
    elif op_type == "Gather":
        made = [helper.make_node("Gather", [a, "i"], [f"g{b}"], axis=0) for a, b in pairs]
    else:
        made = [helper.make_node("Add", [a, "z"], [f"g{b}"]) for a, b in pairs]
    back = [helper.make_node("Reshape", [f"g{b}", "row"], [b]) for _, b in pairs]
    stored = [
        ("o", np.ones(2, F)),
        ("i", np.zeros(2, np.int64)),
        ("z", np.zeros((2, 1), F)),
        ("row", np.array([1, -1])),
    ]
    return chain([node for both in zip(made, back, strict=True) for node in both], [1, 1], stored)


@pytest.mark.parametrize("op_type", ["Concat", "Tile", "Pad", "Resize", "ConvTranspose", "Gather", "Einsum", "Add"])
def test_what_doubles_is_refused_before_it_is_large(op_type: str, tmp_path: Path) -> None:
    onnx.save(doubling(op_type), tmp_path / "m.onnx")
    for backend in BACKENDS:
        said, mib = taken(tmp_path / "m.onnx", backend)
        assert "QR010" in said
        assert "max_memory=" in said
        assert op_type in said
        assert mib < 800


def test_folding_and_looking_at_what_doubles(tmp_path: Path) -> None:
    """What makes constants of constants, and what only reads the model, stays small as well."""
    model = doubling("Concat")
    del model.graph.input[:]
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(1, F), "x"))
    onnx.save(model, tmp_path / "m.onnx")
    said, mib = taken(tmp_path / "m.onnx", "native")
    assert "QR010" in said
    assert mib < 800
    for word in ("inspect", "check"):
        script = (
            f"import resource, qrun.cli; qrun.cli.main(['{word}', {str(tmp_path / 'm.onnx')!r}], standalone_mode=False)"
        )
        done = subprocess.run([sys.executable, "-c", "import resource, sys\n"
                               "resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))\n" + script],
                              capture_output=True, text=True, timeout=300)  # fmt: skip
        assert "MemoryError" not in done.stderr, done.stderr
        assert done.returncode in (0, 1), done.stderr


def test_weights_do_not_count(tmp_path: Path) -> None:
    """A view of a weight counts nothing, however many weights lie in the same block of memory."""
    nodes = [helper.make_node("Reshape", ["w", "s"], ["t"]), helper.make_node("Add", ["x", "t"], ["y"])]
    stored = [("w", np.ones((1, 4), F)), ("s", np.array([4])), ("other", np.ones(1 << 20, F)), ("u", np.ones(2048, F))]
    onnx.save(chain(nodes, [4], stored), tmp_path / "m.onnx")
    for backend in BACKENDS:
        session = qrun.Session(tmp_path / "m.onnx", backend=backend, fuse=False, cache=OBJECTS, max_memory=20_000)
        for _ in range(3):
            assert session.run({"x": np.zeros(4, F)})["y"].tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize("backend", BACKENDS)
def test_external_weights_are_in_memory_once(backend: str, tmp_path: Path) -> None:
    """Beside them only what a backend packs: 2.2 times their size for int8, not 3."""
    side, layers = 4096, 6
    names = ["x", *(f"t{i}" for i in range(layers))]
    nodes = [helper.make_node("QLinearMatMul", [a, "s", "z", f"w{i}", "s", "n", "s", "z"], [b])
             for i, (a, b) in enumerate(zip(names, names[1:], strict=False))]  # fmt: skip
    stored = [("s", F(0.01)), ("z", np.uint8(128)), ("n", np.int8(0))]
    weights = [
        (f"w{i}", np.random.default_rng(i).integers(-128, 128, (side, side)).astype(np.int8)) for i in range(layers)
    ]
    model = chain(nodes, [1, side], [*stored, *weights])
    for value in (model.graph.input[0], model.graph.output[0]):
        value.type.tensor_type.elem_type = TensorProto.UINT8
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="w.bin")
    begin = "import resource\nbefore = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
    script = "import numpy, qrun.running.session\n" + begin + RUN.replace("before =", "later =")
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path / "m.onnx"), backend, "0"],
                          capture_output=True, text=True, timeout=300, check=True)  # fmt: skip
    assert "ran" in done.stdout
    assert int(done.stdout.split()[-1]) < 2.8 * side * side * layers / 2**20


@pytest.mark.parametrize("kind", ["npy", "npz"])
def test_all_input_files_together_count(kind: str, tmp_path: Path) -> None:
    """An archive of zeros is small, and its arrays are not."""
    values = {name: np.zeros(250_000, F) for name in "abc"}
    model = qrun.load(make_model([helper.make_node("Sum", list(values), ["y"])], values, "y", opset=17))
    if kind == "npz":
        np.savez_compressed(tmp_path / "x.npz", **values)
        specs = [str(tmp_path / "x.npz")]
    else:
        specs = [f"{name}={tmp_path / name}.npy" for name in values]
        for name, array in values.items():
            np.save(tmp_path / f"{name}.npy", array)
    assert read_inputs(model, specs, max_memory=3_100_000).arrays.keys() == values.keys()
    with pytest.raises(qrun.MemoryLimitError):
        read_inputs(model, specs, max_memory=2_900_000)


def test_native_runs_need_no_more_than_the_reference() -> None:
    """A kernel that does is left to the reference."""
    inputs = [np.arange(5, dtype=np.uint32).reshape(5, 1), np.arange(5, dtype=np.uint32)]
    model, feeds = node_model("Greater", inputs, outputs=[np.bool_])
    want = qrun.Session(model, backend="reference", max_memory=65).run(feeds)["y0"]
    session = qrun.Session(model, backend="native", max_memory=65, cache=OBJECTS)
    for _ in range(3):
        assert np.array_equal(session.run(feeds)["y0"], want)
    session.max_memory = None
    assert np.array_equal(session.run(feeds)["y0"], want)


def test_of_a_larger_array_only_what_is_fed_counts() -> None:
    images = np.zeros((1000, 1000), F)
    for backend in BACKENDS:
        session = qrun.Session(
            chain([helper.make_node("Neg", ["x"], ["y"])], [1, 1000]), backend=backend, cache=OBJECTS, max_memory=20_000
        )
        for _ in range(3):
            assert session.run({"x": images[3:4]})["y"].shape == (1, 1000)


@pytest.mark.parametrize("backend", BACKENDS)
def test_memory_that_the_machine_lacks(backend: Any) -> None:
    """More than 47 bits address, of which a limit this high does not tell."""
    shape = np.array([2**46], np.int64)
    model, feeds = node_model("ConstantOfShape", [shape], outputs=[F])
    with pytest.raises(qrun.MemoryLimitError) as caught:
        qrun.Session(model, backend=backend, max_memory=2**62).run(feeds)
    said = str(caught.value)
    assert caught.value.code == "QR010"
    assert "no memory left" in said
    assert "node 0" in said
    assert "Unable to allocate" in said
