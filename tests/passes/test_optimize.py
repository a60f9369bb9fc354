"""optimize: what it keeps, what each node stands for, how errors read; random graphs; real networks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.passes import ARITHS, Graph, assert_same, codes, ops, reasons, rewritten, run

import qrun
from qrun.errors import OperatorError, QrunError
from qrun.passes import optimize

F, U8, S8 = np.float32, np.uint8, np.int8
MODELS = Path(__file__).resolve().parents[2] / "models"


def network(opset: int = 17, relu: bool = True) -> Graph:
    """Conv, Relu, MaxPool, Add of two convolutions, GlobalAveragePool, Flatten, Gemm, Softmax."""
    rng = np.random.default_rng(7)
    g = Graph(opset)

    def conv(t: str, c: int, m: int, size: int, scale: float, z: int) -> str:
        w = g.dq(g.const(codes(rng, S8, (m, c, size, size))), rng.uniform(0.002, 0.004, m), np.zeros(m, S8), axis=0)
        y = g.node("Conv", t, w, pads=[size // 2] * 4, label=f"conv{g.count}")
        y = g.node("Relu", y, label=f"relu{g.count}") if relu else y
        return g.dq(g.q(y, scale, U8(z)), scale, U8(z))

    x = g.dq(g.q(g.feed(rng.normal(0, 1, (1, 3, 8, 8)).astype(F)), 0.02, U8(128)), 0.02, U8(128))
    a = conv(x, 3, 4, 3, 0.03, 0)
    a = g.dq(g.q(g.node("MaxPool", a, kernel_shape=[2, 2], strides=[2, 2], label="pool"), 0.03, U8(0)), 0.03, U8(0))
    b, c = conv(a, 4, 4, 3, 0.03, 0), conv(a, 4, 4, 1, 0.03, 7)
    s = g.dq(g.q(g.node("Add", b, c, label="add"), 0.05, U8(0)), 0.05, U8(0))
    m = g.dq(g.q(g.node("GlobalAveragePool", s, label="gap"), 0.02, U8(0)), 0.02, U8(0))
    f = g.dq(g.q(g.node("Flatten", m), 0.02, U8(0)), 0.02, U8(0))
    w = g.dq(g.const(codes(rng, S8, (5, 4))), 0.01, S8(0))
    y = g.dq(g.q(g.node("Gemm", f, w, transB=1, label="fc"), 0.03, U8(128)), 0.03, U8(128))
    return g.output(g.node("Softmax", y, label="softmax"))


def test_a_network() -> None:
    g = network()
    done = rewritten(g)
    assert ops(done) == [
        "QuantizeLinear", "QLinearConv", "MaxPool", "QLinearConv", "QLinearConv", "Table", "QLinearAdd",
        "QLinearGlobalAveragePool", "Flatten", "QGemm", "DequantizeLinear", "Softmax",
    ]  # fmt: skip
    assert [(r.name, r.reason) for r in done.refused] == [("softmax", "its result is asked for")]
    assert done.refused[0].index == g.model().producers[g.outputs[0].name].index
    np.testing.assert_allclose(run(done.model, g)[0], run(g.model(), g)[0], atol=0.02)


def test_every_node_says_what_it_stands_for() -> None:
    g = network()
    model, done = g.model(), rewritten(g)
    for node in done.model.nodes:
        assert node.index in done.groups[node.index], node
        assert node.label == model.nodes[node.index].label
    conv = next(n for n in done.model.nodes if n.op_type == "QLinearConv")
    types = [model.nodes[i].op_type for i in done.groups[conv.index]]
    assert types == ["DequantizeLinear", "DequantizeLinear", "Conv", "Relu", "QuantizeLinear"]
    table = next(n for n in done.model.nodes if n.op_type == "Table")
    assert [model.nodes[i].op_type for i in done.groups[table.index]] == ["Relu", "QuantizeLinear"]
    missing = set(range(len(model.nodes))) - {i for group in done.groups.values() for i in group}
    assert {model.nodes[i].op_type for i in missing} == {"QuantizeLinear", "DequantizeLinear"}
    assert len({n.index for n in done.model.nodes}) == len(done.model.nodes) == len(done.groups)


def test_every_tensor_can_be_kept() -> None:
    g = network()
    names = [name for node in g.model().nodes for name in node.outputs]
    literal = dict(zip(names, run(g.model(), g, outputs=names), strict=True))
    for name in names:
        (got,) = run(rewritten(g, keep=(name,)).model, g, outputs=(name,))
        want = literal[name]
        assert (got.dtype, got.shape) == (want.dtype, want.shape), name
        if got.dtype == np.uint8:
            assert np.abs(got.astype(int) - want.astype(int)).max() <= 1, name
        else:
            np.testing.assert_allclose(got, want, atol=0.051, err_msg=name)
    done = assert_same(g, keep=names)
    assert not [op for op in ops(done) if op.startswith("Q") and op != "QuantizeLinear"]


def test_it_changes_nothing_twice() -> None:
    done = rewritten(network())
    again = optimize(done.model, frozenset(), "exact")
    assert again.model.nodes == done.model.nodes
    assert again.groups == {n.index: (n.index,) for n in done.model.nodes}


def test_the_model_it_is_given_stays_as_it_is() -> None:
    g = network()
    model = g.model()
    nodes, constants = model.nodes, dict(model.constants)
    optimize(model, frozenset(), "exact")
    assert model.nodes is nodes
    assert dict(model.constants) == constants


def test_what_is_made_for_the_outputs_is_made_once() -> None:
    model, keep = network().model(), frozenset({"conv1"})
    names = [value.name for value in model.outputs]
    done = optimize(model, frozenset(), "exact")
    assert optimize(model, frozenset(names), "exact") is done
    assert optimize(model, keep, "exact") is not optimize(model, keep, "exact")
    literal = optimize(model, frozenset(), "exact", "literal")
    assert literal is not done
    assert optimize(model, frozenset(), "exact", "literal") is literal
    assert optimize(model, frozenset(), "ort") is not done
    assert optimize(network().model(), frozenset(), "exact") is not done


def test_nodes_without_a_name_keep_their_label() -> None:
    g = Graph()
    t = g.dq(g.feed(codes(np.random.default_rng(1), U8, (2, 3))), 0.1, U8(3))
    g.output(g.node("Softmax", g.dq(g.q(g.node("Relu", t), 0.1, U8(3)), 0.1, U8(3))))
    done = rewritten(g)
    assert [n.label for n in done.model.nodes] == ["Relu_1", "DequantizeLinear_3", "Softmax_4"]


def test_errors_name_the_node_of_the_file() -> None:
    g = Graph()
    x = g.dq(g.feed(codes(np.random.default_rng(1), U8, (1, 2, 4, 4)), [1, "C", 4, 4]), 0.1, U8(3))
    g.node("Relu", g.feed(F(1)))
    w = g.dq(g.const(codes(np.random.default_rng(1), S8, (3, 2, 1, 1))), 0.1, S8(0))
    g.output(g.q(g.node("Conv", x, w, label="stem"), 0.1, U8(3)))
    done = rewritten(g)
    assert ops(done) == ["Relu", "QLinearConv"]
    g.feeds[next(iter(g.feeds))] = codes(np.random.default_rng(1), U8, (1, 5, 4, 4))
    places = []
    for model in (g.model(), done.model):
        with pytest.raises(OperatorError) as error:
            run(model, g)
        places.append(error.value.where[1])
    assert places == ["node 3 stem (Conv-11)", "node 3 stem (QLinearConv-10)"]


def test_integer_inputs_and_outputs() -> None:
    rng = np.random.default_rng(3)
    g = Graph()
    w = g.dq(g.const(codes(rng, S8, (2, 3, 1, 1))), 0.1, S8(0))
    x = g.dq(g.feed(codes(rng, U8, (1, 3, 4, 4))), 0.1, U8(128))
    done = rewritten(g.output(g.q(g.node("Conv", x, w), 1.5, U8(128))))
    assert ops(done) == ["QLinearConv"]
    assert done.model.inputs == g.model().inputs


def test_microsoft_domain() -> None:
    rng = np.random.default_rng(3)
    g = Graph()
    params = g.params(0.1, U8(128))
    x, y = (g.node("DequantizeLinear", g.feed(codes(rng, U8, (2, 3))), *params, domain="com.microsoft") for _ in "ab")
    z = g.node("QuantizeLinear", g.node("Add", x, y), *params, domain="com.microsoft")
    assert ops(rewritten(g.output(z))) == ["QLinearAdd"]


@pytest.mark.parametrize("op_type", ["DequantizeLinear", "QuantizeLinear", "Conv", "MatMul", "Gemm", "Add", "Concat", "Relu",
                                     "AveragePool", "MaxPool", "Pad", "Identity", "Dropout", "Reshape", "Shape", "Clip"])  # fmt: skip
def test_nodes_without_inputs_or_outputs_do_not_stop_it(op_type: str) -> None:
    for outputs in ([], [""], ["out"]):
        for count in range(4):
            g = Graph()
            t = g.dq(g.feed(codes(np.random.default_rng(1), U8, (1, 1, 4, 4))), 0.1, U8(3))
            g.nodes.append(onnx.helper.make_node(op_type, [t, "", t, t][:count], outputs))
            g.output(g.node("Neg", t))
            if outputs == ["out"]:
                g.output(g.q("out", 0.1, U8(3)))
            assert "Neg" in ops(rewritten(g))


UNARY = ("Relu", "Sigmoid", "Tanh", "Neg", "Abs", "Exp", "HardSwish", "Elu", "Erf", "Identity")


def random_graph(rng: np.random.Generator) -> tuple[Graph, list[str]]:
    """Elementwise operators, moves, requantizations, with several readers; and all the names."""
    g = Graph(21)
    shape = (2, 3, 4)
    quantized = [(g.feed(codes(rng, U8, shape)), 0.04, U8(100)), (g.feed(codes(rng, S8, shape)), 0.02, S8(-3))]
    real = [g.dq(*side) for side in quantized]
    names: list[str] = []
    for _ in range(rng.integers(6, 24)):
        t = real[-1 - int(rng.integers(min(len(real), 3)))]
        kind = rng.integers(6)
        if kind == 0:
            z = [U8(rng.integers(256)), S8(rng.integers(-128, 128))][rng.integers(2)]
            scale = float(rng.choice([0.01, 0.05, 0.5, 1 / 255]))
            q = g.q(t, scale, z)
            names.append(q)
            t = g.dq(q, scale, z)
        elif kind == 1:
            t = g.node(str(rng.choice(UNARY)), t)
        elif kind == 2:
            c = g.const(rng.normal(0, 1, [(), (3, 1), (1, 3, 1), (4,)][rng.integers(4)]).astype(F))
            t = g.node(str(rng.choice(["Add", "Mul", "Sub", "Div", "Max"])), *([t, c] if rng.integers(2) else [c, t]))
        elif kind == 3:
            other = real[rng.integers(len(real))]
            t = g.node(str(rng.choice(["Div", "Sub", "Min"])), t, other)
        elif kind == 4:
            t = g.node("Transpose", g.node("Transpose", t, perm=[2, 0, 1]), perm=[1, 2, 0])
        else:
            t = g.node("Reshape", g.node("Flatten", t), g.const(np.array(shape, np.int64)))
        names.append(t)
        real.append(t)
    g.output(names[-1], *{str(n) for n in rng.choice(names[:-1], 1)})
    needed = {v.name for v in g.outputs}
    for node in reversed(list(g.nodes)):
        if needed.isdisjoint(node.output):
            g.nodes.remove(node)
        else:
            needed.update(node.input)
    return g, [name for node in g.nodes for name in node.output]


@pytest.mark.parametrize("arith", ARITHS)
def test_random_graphs_of_elementwise_nodes_and_moves_keep_their_bits(arith: Any) -> None:
    smaller = 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        g, names = random_graph(rng)
        keep = [str(n) for n in rng.choice(names, int(rng.integers(3)))]
        done = assert_same(g, arith, keep, f"seed {seed}")
        smaller += len(done.model.nodes) < len(g.nodes)
    assert smaller > 30


def of_one_tensor(kind: str) -> Graph:
    """Add or Mul of all codes and a constant, or what one tensor has at another place."""
    g = Graph()
    x = g.feed(np.arange(256, dtype=U8).reshape(1, 2, 8, 16))
    t = g.dq(x, 0.0371, U8(113))
    if kind == "Mul":
        other = g.dq(g.q(g.node("HardSigmoid", t), 0.02, U8(3)), 0.02, U8(3))
    else:
        constants = {"Add": U8(200), "Add along an axis": np.array([200, 31], U8).reshape(2, 1, 1)}
        other = g.dq(g.const(constants[kind]), 0.0371, U8(100))
    return g.output(g.q(g.node("Relu", g.node(kind.split()[0], t, other)), 2 * 0.0371, U8(128)))


@pytest.mark.parametrize("kind", ["Mul", "Add", "Add along an axis"])
@pytest.mark.parametrize("arith", ARITHS)
def test_functions_of_one_tensor_are_those_of_the_literal_graph(kind: str, arith: Any) -> None:
    g = of_one_tensor(kind)
    assert ops(assert_same(g, arith)) == ["Table"]
    (want,) = run(g.model(), g, arith)
    literal = optimize(g.model(), frozenset(), arith, "literal")
    np.testing.assert_array_equal(run(literal.model, g, arith)[0], want)
    fused = optimize(g.model(), frozenset(), arith, "fused")
    assert f"QLinear{kind.split()[0]}" in ops(fused)
    differ = np.abs(run(fused.model, g, arith)[0].astype(int) - want.astype(int))
    assert differ.max() == 1, "ties of the real quotient, which float32 steps miss"


@pytest.mark.parametrize("backend", ["native", "reference"])
@pytest.mark.parametrize("arith", ["exact", "ort"])
def test_runs_that_observe_have_the_results_of_those_that_do_not(backend: Any, arith: Any) -> None:
    for kind in ("Mul", "Add"):
        g = of_one_tensor(kind)
        session = qrun.Session(g.model(), backend=backend, fuse=True, arith=arith, cache=False)
        first, second = (session.execute(g.feeds, observe=observe).outputs for observe in (True, False))
        for name, want in second.items():
            np.testing.assert_array_equal(first[name], want)


def test_a_function_of_one_tensor_without_a_table_stays() -> None:
    g = Graph()
    t = g.dq(g.feed(np.array([[0, 1, 255]], U8)), 3e38, U8(0))
    huge = g.dq(g.const(U8(255)), 3e38, U8(0))
    model = g.output(g.q(g.node("Mul", t, huge, label="n"), 1.0, U8(0))).model()
    for functions in ("tables", "literal"):
        done = optimize(model, frozenset(), "exact", functions)
        np.testing.assert_array_equal(run(done.model, g)[0], run(model, g)[0])
        assert reasons(done)["n"] == "it is a function of one tensor, and has no table"


@pytest.mark.parametrize("path", sorted(MODELS.rglob("model.onnx")), ids=lambda p: p.parent.name)
def test_models_in_the_repository(path: Path) -> None:
    model = qrun.load(path)
    done = optimize(model, frozenset(), "exact")
    feeds = {}
    for number, value in enumerate(model.inputs):
        stored = path.parent / "test_data_set_0" / f"input_{number}.pb"
        if not stored.exists():
            images = path.parents[1] / "x.npy"
            feeds[value.name] = np.load(images)
            continue
        feeds[value.name] = onnx.numpy_helper.to_array(onnx.load_tensor(stored))
    outputs = []
    for candidate in (model, done.model):
        try:
            outputs.append(list(qrun.Session(candidate, backend="reference", fuse=False).run(feeds).values()))
        except QrunError as error:
            outputs.append([np.array(str(error))])
    for got, want in zip(outputs[1], outputs[0], strict=True):
        assert got.dtype == want.dtype
        if got.tobytes() != want.tobytes():
            assert any(n.op_type.startswith(("QLinear", "QGemm")) for n in done.model.nodes)
            np.testing.assert_allclose(got.astype(float), want.astype(float), atol=1.5)
