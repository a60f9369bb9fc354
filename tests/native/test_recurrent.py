"""Native LSTM, GRU and RNN equal the reference's, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.aarch64 import Foreign, every_aarch64, needs_qemu
from helpers.native import EMULATED, Array, engine
from helpers.placed import natively, reference_nodes, run_placed, same_everywhere, same_refusal
from helpers.support import assert_equal, node_model
from helpers.widths import every_width, thin_width
from ops.test_recurrent import FUNCTIONS_OF, GATES, OUTPUTS, case, kernel

import qrun
from qrun.native.kernels import recurrent as planned
from qrun.native.kernels.recurrent import CellForm, Recurrent, Walk
from qrun.native.machine.engine import Engine
from qrun.ops._recurrent import activations

F = np.float32
KINDS = {"lstm": "LSTM", "gru": "GRU", "linear": "GRU", "rnn": "RNN"}
FUNCTIONS = {"lstm": ("sigmoid", "tanh", "tanh"), "gru": ("sigmoid", "tanh"), "rnn": ("tanh",)}
FUNCTIONS["linear"] = FUNCTIONS["gru"]
SIZES = ((3, 1, 1), (5, 1, 16), (2, 3, 33), (4, 2, 130), (1, 7, 8), (3, 13, 20), (2, 1, 300))
"""Steps, batch, units."""


def tensors(kind: str, sizes: tuple[int, int, int], directions: int, seed: int = 0) -> list[Any]:
    """What inputs give to the gates, R, both initial states, lengths, and what is added to the product of h."""
    steps, batch, units = sizes
    rng = np.random.default_rng([seed, *sizes])
    gates = GATES[KINDS[kind]]

    def drawn(*shape: int) -> Array:
        return rng.uniform(-1, 1, shape).astype(F)

    return [
        drawn(steps, batch, directions * gates * units), drawn(directions, gates * units, units) * F(units**-0.5),
        drawn(directions, batch, units), drawn(directions, batch, units),
        rng.integers(0, steps + 1, batch).astype(np.int32), drawn(directions, units),
    ]  # fmt: skip


def reference(kind: str, given: list[Any], directions: int, lengths: Array | None) -> Any:
    """The operator, of inputs that W leaves as they are."""
    x, r, h, c, _, added = given
    wide, gates, units = x.shape[-1], GATES[KINDS[kind]], h.shape[-1]
    w = np.eye(wide, dtype=F).reshape(directions, gates * units, wide)
    b = np.zeros((directions, 2 * gates * units), F)
    if kind == "linear":
        b[:, -units:] = added
    inputs = [x, w, r, b, lengths, h, *([c] if kind == "lstm" else [])]
    direction = "bidirectional" if directions == 2 else "reverse"
    return kernel(KINDS[kind], inputs, direction=direction, **({"linear_before_reset": 1} if kind == "linear" else {}))


def operation(native: Engine, kind: str, given: list[Any], directions: int, some: bool) -> Recurrent:
    x, r, h, *_, added = given
    backward = (False, True) if directions == 2 else (True,)
    walk = Walk(len(x), x.shape[1], h.shape[-1], backward)
    form = CellForm(kind, FUNCTIONS[kind])
    states = (True, kind == "lstm", some)
    return Recurrent(native, walk, form, r, states, added=added if kind == "linear" else None)


@thin_width(*SIZES, name="sizes")
@pytest.mark.parametrize("kind", KINDS)
def test_sizes(isa: str, sizes: tuple[int, int, int], kind: str) -> None:
    for directions in (1, 2):
        given = tensors(kind, sizes, directions)
        for some, threads in ((True, 1), (False, 2)):
            made = operation(engine(isa, threads), kind, given, directions, some)
            own = [given[0], given[2], *([given[3]] if kind == "lstm" else []), *([given[4]] if some else [])]
            got = run_placed(engine(isa, threads), made, own, [0] * (len(own) + 1), some)
            want = reference(kind, given, directions, given[4] if some else None)
            for copy, expected in zip(made.outputs(), want, strict=True):
                assert_equal(engine(isa, threads).run(copy, [got]), expected, f"{directions} {some}")


@every_width
@pytest.mark.parametrize("kind", KINDS)
def test_threads_share_the_units_of_a_step(isa: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planned, "_LONG", 0)
    for sizes, directions, threads in (((4, 1, 128), 1, 2), ((3, 3, 128), 1, 2), ((2, 1, 128), 2, 4)):
        given, native = tensors(kind, sizes, directions), engine(isa, threads)
        made = operation(native, kind, given, directions, True)
        assert made.share.rounds == (kind != "gru")
        own = [given[0], given[2], *([given[3]] if kind == "lstm" else []), given[4]]
        want = reference(kind, given, directions, given[4])
        for _ in range(3):
            got = native.run(made, own)
            for copy, expected in zip(made.outputs(), want, strict=True):
                assert_equal(native.run(copy, [got]), expected, f"{sizes}")


@needs_qemu
@every_aarch64
def test_aarch64(isa: str, tmp_path: Path) -> None:
    foreign, cases = Foreign(isa), []
    for kind in KINDS:
        for sizes in ((3, 1, 16), (2, 3, 33), (3, 1, 5)):
            given = tensors(kind, sizes, 1)
            made = operation(foreign, kind, given, 1, False)
            states = given[2:4] if kind == "lstm" else given[2:3]
            y = foreign.run(made, [given[0], *states])
            cases.append((y.reshape(-1)[: made.y_size].reshape(made.walk.y_shape), kind, given))
    foreign.finish(tmp_path)
    for got, kind, given in cases:
        assert_equal(got, reference(kind, given, 1, None)[0], kind)


@every_width
@pytest.mark.parametrize("kind", KINDS)
def test_special_numbers(isa: str, kind: str) -> None:
    """Zeros of both signs, subnormals, sums that cancel or overflow, infinities and NaN; W of the reference leaves no
    infinities and no -0 of what inputs give."""
    special = np.array([0, -0.0, 2.0**-149, -(2.0**-127), 2.0**-126, 1, -1, 1 + 2.0**-23, 3e38, -3e38], F)
    for seed, more in enumerate(([], [], [], [np.inf], [np.nan, -np.inf])):
        rng = np.random.default_rng(seed)
        given = tensors(kind, (3, 3, 33), 1, seed)
        chosen = np.concatenate([special[: (4, 8, 10)[min(seed, 2)]], np.array(more, F)])
        for place in (0, 1, 2, 3, 5):
            other = rng.random(given[place].shape) < (0.9, 0.5, 0.3, 0.01, 0.01)[seed]
            drawn = rng.choice(chosen if place else special, given[place].shape)
            given[place] = np.where(other, drawn, given[place]) + F(-0.0 if place else 0)
        made = operation(engine(isa), kind, given, 1, True)
        got = engine(isa).run(made, [given[0], given[2], *([given[3]] if kind == "lstm" else []), given[4]])
        want = reference(kind, given, 1, given[4])
        for copy, expected in zip(made.outputs(), want, strict=True):
            result = engine(isa).run(copy, [got])
            assert (result.view(np.uint32) == expected.view(np.uint32)).all(), f"seed {seed}"


@every_width
@pytest.mark.parametrize("function", ["sigmoid", "tanh"])
def test_activations_of_all_sizes(isa: str, function: str) -> None:
    rng = np.random.default_rng(0)
    steps, batch, units = 4, 8 if isa in EMULATED else 2048, 64
    low, high = np.array([[0, 0, 0, 0.009], [12, 100, 1, 0.0108]])[:, :, None, None]
    x = rng.uniform(low, high, (steps, batch, units)).astype(F) * rng.choice(np.array([-1, 1], F), (1, batch, units))
    odd = rng.integers(0, 1 << 32, (2, batch // 4, units), dtype=np.uint32).view(F)
    edges = np.array([0, 2.0**-149, 2.0**-126, 2.0**-125, 2.0**-27, 80, 87, 104, 160, np.finfo(F).max, np.inf], F)
    odd[0, 0, : 4 * len(edges)] = np.concatenate(
        [edges, -edges, np.nextafter(edges, F(0)), np.nextafter(edges, F(9e9))]
    )
    x[:2, : batch // 4] = np.where(np.isnan(odd), F(-1), odd)
    zeros = np.zeros((1, units, units), F), np.zeros((1, batch, units), F)
    walk, form = Walk(steps, batch, units, (False,)), CellForm("rnn", (function,))
    (reference,) = activations((function,), ("Tanh",), 1, None, None, None).of(0)
    made = Recurrent(engine(isa), walk, form, zeros[0], (True, False, False))
    got = run_placed(engine(isa), made, [x, zeros[1]], [0] * 3)
    with np.errstate(all="ignore"):
        want = reference(x + F(0))
    assert_equal(engine(isa).run(made.outputs()[0], [got])[:, 0], want)


@pytest.mark.parametrize("op", GATES)
def test_nodes_in_every_form(op: str) -> None:
    """Those that the engine declines run too, by the reference."""
    native = 0
    for seed in range(40):
        inputs, attributes = case(op, seed, sizes=(5, 2, 4, 17) if seed % 2 else (3, 4, 6, 3))
        if seed % 3:
            attributes.pop("activations", None)
            attributes.pop("activation_alpha", None)
            attributes.pop("activation_beta", None)
            inputs[7:] = [None] * len(inputs[7:])
            attributes.pop("input_forget", None)
        attributes = {name: value for name, value in attributes.items() if value != []}
        if seed % 4 == 1:
            attributes["layout"] = 1
            inputs[0] = inputs[0].swapaxes(0, 1)
            inputs[5:7] = [None if x is None else x.swapaxes(0, 1) for x in inputs[5:7]]
        count = 1 + seed % OUTPUTS[op]
        model, feeds = node_model(op, inputs, attributes, opset=14, constants=(1, 2, 3, 7), outputs=[F] * count)
        result = same_everywhere(model, feeds)
        native += result.events[0].backend == "native"
    assert native > 15


def test_it_is_part_of_a_program_and_lengths_are_checked_in_every_run() -> None:
    inputs, attributes = case("LSTM", 0, sizes=(4, 3, 5, 20))
    inputs[3:] = [None, np.array([4, 1, 2], np.int32), None, None, None]
    attributes = {"hidden_size": 20}
    model, feeds = node_model("LSTM", inputs, attributes, opset=14, constants=(1, 2), outputs=[F] * 3)
    same_everywhere(model, feeds)
    session = qrun.Session(model, backend="native")
    for _ in range(3):
        session.run(feeds)
    assert not reference_nodes(session)
    for wrong in (5, -1):
        bad = {**feeds, "i4": np.array([4, wrong, 2], np.int32)}
        with pytest.raises(qrun.OperatorError) as caught:
            session.run(bad)
        assert f"length {wrong}" in str(caught.value)
        same_refusal(model, bad)
    assert_equal(session.run(feeds)["y0"], kernel("LSTM", inputs, **attributes)[0])


def test_numbers_that_are_none() -> None:
    for op in GATES:
        inputs, _ = case(op, 0, sizes=(3, 4, 2, 20))
        inputs[3:] = [None] * len(inputs[3:])
        inputs[0][1, :3, 0] = np.inf, -np.inf, np.nan
        natively(*node_model(op, inputs, {"hidden_size": 20}, opset=14, constants=(1, 2), outputs=[F] * 2))


@pytest.mark.parametrize("op", GATES)
def test_every_nan_has_one_bit_pattern(op: str) -> None:
    """That of numpy, whatever made it: NaN of both signs, and sums and products that are none."""
    nan = np.array([0xFFC00000, 0x7F800001, 0x7FC01234], np.uint32).view(F)
    for attributes in ({}, {"activations": ["Relu"] * FUNCTIONS_OF[op]}):
        inputs, _ = case(op, 0, sizes=(3, 6, 2, 20))
        inputs[3:] = [None] * 3
        inputs[0][1, :5, 0] = [*nan, np.inf, -np.inf]
        states = [np.ones((1, 6, 20), F) for _ in range(1 + (op == "LSTM"))]
        for state in states:
            state[0, 5, :5] = [*nan, np.inf, -np.inf]
        model, feeds = node_model(
            op, inputs[:5] + states, {"hidden_size": 20, **attributes}, opset=14, constants=(1, 2), outputs=[F] * 2
        )
        want, got = (list(qrun.Session(model, backend=name).run(feeds).values()) for name in ("reference", "native"))
        for expected, made in zip(want, got, strict=True):
            assert np.isnan(expected).any()
            assert (expected[np.isnan(expected)].view(np.uint32) == 0x7FC00000).all()
            assert (expected.view(np.uint32) == made.view(np.uint32)).all()


def test_reasons() -> None:
    inputs, _ = case("LSTM", 0)
    inputs[3:] = [None] * 5

    def why(changed: dict[int, Any], constants: Any = (1, 2, 7), arith: Any = "exact", **attributes: Any) -> str:
        own = [changed.get(place, value) for place, value in enumerate(inputs)]
        model, feeds = node_model("LSTM", own, attributes, opset=14, constants=constants, outputs=[own[0].dtype])
        event = qrun.Session(model, backend="native", arith=arith).execute(feeds).events[0]
        assert event.backend == "reference"
        return event.why

    assert "R is not constant" in why({}, (1,))
    assert "peepholes" in why({7: np.ones((1, 6), F)})
    assert "input_forget" in why({}, input_forget=1)
    assert "softsign" in why({}, activations=["Sigmoid", "Softsign", "Tanh"])
    assert "clip in ort" in why({}, arith="ort", clip=1.0)
    assert "empty" in why({0: np.zeros((0, 2, 3), F)})
    half = {n: x.astype(np.float16) for n, x in enumerate(inputs[:3])}
    assert "float16" in why(half)
    two = {n: np.concatenate([x, x]) for n, x in enumerate(inputs[1:3], 1)}
    own = ["Sigmoid", "Tanh", "Tanh", "Sigmoid", "Relu", "Tanh"]
    assert "directions" in why(two, direction="bidirectional", activations=own)
