"""Native DynamicQuantizeLSTM equals the reference's, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.native import OBJECTS, every_isa, thin
from helpers.placed import natively, reference_nodes, same_everywhere, same_refusal
from helpers.support import MS, assert_equal, node_model
from ops.test_recurrent import dynamic_case, dynamic_kernel

import qrun
from qrun.native.kernels import recurrent as planned

F = np.float32
SIZES = ((3, 1, 4, 1), (2, 3, 5, 8), (4, 2, 3, 33), (2, 1, 2, 150), (3, 7, 3, 40))
"""Steps, batch, inputs, units."""
LAST = 2.0**-23
"""The last place of 1."""
CONSTANTS = (1, 2, 3, 7, 8, 9, 10, 11)


def plain(seed: int, sizes: tuple[int, int, int, int]) -> tuple[list[Any], dict[str, Any]]:
    """A case that the engine takes: weights within int8 of their zero points, activations that it knows."""
    inputs, attributes = dynamic_case(seed, sizes)
    inputs[4] = inputs[7] = None
    for name in ("activations", "activation_alpha", "activation_beta", "input_forget"):
        attributes.pop(name, None)
    for place in (9, 11):
        inputs[place] = np.full_like(inputs[place], 128 if inputs[place].dtype == np.uint8 else 0)
    return inputs, attributes


def model_of(inputs: list[Any], attributes: dict[str, Any], count: int = 3, constants: Any = CONSTANTS) -> Any:
    return node_model("DynamicQuantizeLSTM", inputs, attributes, domain=MS, outputs=[F] * count, constants=constants)


@thin(*SIZES, other=2, name="sizes")
def test_sizes(isa: str, sizes: tuple[int, int, int, int]) -> None:
    for seed in range(6):
        inputs, attributes = plain(seed, sizes)
        model, feeds = model_of(inputs, attributes)
        want = dynamic_kernel(inputs, **attributes)
        for threads in (1, 2):
            session = qrun.Session(model, backend="native", isa=isa, threads=threads, cache=OBJECTS)
            assert session.execute(feeds).events[0].backend == "native"
            for got, expected in zip(session.run(feeds).values(), want, strict=True):
                assert_equal(got, expected, f"{seed} {threads}")


@every_isa
@pytest.mark.parametrize(("sizes", "threads"), [((4, 5, 3, 40), 2), ((4, 13, 2, 17), 3), ((3, 1, 3, 70), 2)])
def test_threads_share_steps(
    isa: str, sizes: tuple[int, int, int, int], threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its sequences, or its units where sequences are few."""
    monkeypatch.setattr(planned, "_CODES_LONG", 0)
    for seed in range(2):
        inputs, attributes = plain(seed, sizes)
        model, feeds = model_of(inputs, attributes)
        want = dynamic_kernel(inputs, **attributes)
        session = qrun.Session(model, backend="native", isa=isa, threads=threads, cache=OBJECTS)
        for _ in range(3):
            for got, expected in zip(session.run(feeds).values(), want, strict=True):
                assert_equal(got, expected, f"{seed}")


@every_isa
@pytest.mark.parametrize(
    ("scales", "bias"),
    [
        ((2.0**-10, 2.0**-14), 1),
        ((2.0**-10 * (1 + LAST), 2.0**-14 * (1 - LAST)), 1 + LAST),
        ((2.0**-24 * (1 + LAST), 2.0**-126 * (1 - LAST)), 2.0**-127 + 2.0**-149),
    ],
)
def test_sums_in_the_middle_between_two_numbers(isa: str, scales: tuple[float, float], bias: float) -> None:
    """With the gates i and o open, H is the sum of g: codes of H times half the bias's last place, plus the bias. Odd
    sums are ties, which go to the even neighbour, or by 2**-46 of the product less, which float64 loses."""
    units = 20
    h = np.zeros((1, 1, units), F)
    h[0, 0, :3] = np.array([255, 1, 3], F) * F(scales[0])
    assert h[0, 0, 0] / F(255) == F(scales[0])
    r = np.zeros((1, units, 4 * units), np.int8)
    r[0, 1] = np.arange(4 * units) % 7
    r[0, 2] = -1
    w, b = np.zeros((1, 1, 4 * units), np.int8), np.zeros((1, 8 * units), F)
    b[:, : 4 * units] = np.repeat(np.array([100, 100, 100, bias], F), units)
    none, one = np.zeros(1, np.int8), np.ones(1, F)
    inputs = [np.ones((1, 1, 1), F), w, r, b, None, h, None, None, one, none, F([scales[1]]), none]
    attributes = {"activations": ["Sigmoid", "Relu", "Relu"], "hidden_size": units}
    want = dynamic_kernel(inputs, **attributes)
    assert len(np.unique(want[0])) > 2
    model, feeds = model_of(inputs, attributes)
    session = qrun.Session(model, backend="native", isa=isa, cache=OBJECTS)
    for got, expected in zip(session.run(feeds).values(), want, strict=True):
        assert_equal(got, expected)


@every_isa
def test_one_sum_in_the_middle(isa: str) -> None:
    """Whichever it is. It is a tie but for 2**-46 of what is added to the bias, so that it goes down."""
    units, scales = 20, (2.0**-10 * (1 + LAST), 2.0**-14 * (1 - LAST))
    h = np.zeros((1, 1, units), F)
    h[0, 0, :2] = np.array([255, 1], F) * F(scales[0])
    w, b = np.zeros((1, 1, 4 * units), np.int8), np.zeros((1, 8 * units), F)
    b[:, : 4 * units] = np.repeat(np.array([100, 100, 100, 1 + LAST], F), units)
    none, one = np.zeros(1, np.int8), np.ones(1, F)
    attributes = {"activations": ["Sigmoid", "Relu", "Relu"], "hidden_size": units}
    for unit in range(units):
        r = np.zeros((1, units, 4 * units), np.int8)
        r[0, 1, 3 * units :] = 2
        r[0, 1, 3 * units + unit] = 1
        inputs = [np.ones((1, 1, 1), F), w, r, b, None, h, None, None, one, none, F([scales[1]]), none]
        model, feeds = model_of(inputs, attributes)
        session = qrun.Session(model, backend="native", isa=isa, cache=OBJECTS)
        assert session.execute(feeds).events[0].backend == "native"
        y = session.run(feeds)["y0"].reshape(-1)
        assert_equal(y, np.where(np.arange(units) == unit, F(1 + LAST), F(1 + 2 * LAST)))


@every_isa
@pytest.mark.parametrize("code", [0, 255])
@pytest.mark.parametrize("weight", [-128, 127])
def test_greatest_sums(isa: str, code: int, weight: int) -> None:
    """All codes of H and all weights at one end of their range, for more of them than fit in 16 bits."""
    for batch, units in ((1, 150), (5, 70)):
        h = np.full((1, batch, units), 0.5 if code else -0.5, F)
        w, r = np.zeros((1, 1, 4 * units), np.int8), np.full((1, units, 4 * units), weight, np.int8)
        none, one = np.zeros(1, np.int8), np.ones(1, F)
        b = np.zeros((1, 8 * units), F)
        inputs = [np.ones((2, batch, 1), F), w, r, b, None, h, None, None, one, none, F([2.0**-14]), none]
        attributes = {"hidden_size": units}
        want = dynamic_kernel(inputs, **attributes)
        model, feeds = model_of(inputs, attributes)
        session = qrun.Session(model, backend="native", isa=isa, cache=OBJECTS)
        assert session.execute(feeds).events[0].backend == "native"
        for got, expected in zip(session.run(feeds).values(), want, strict=True):
            assert_equal(got, expected)


def test_nodes_in_every_form() -> None:
    native = 0
    for seed in range(30):
        inputs, attributes = dynamic_case(seed) if seed % 3 else plain(seed, (4, 3, 2, 17))
        attributes = {name: value for name, value in attributes.items() if value != []}
        model, feeds = model_of(inputs, attributes, 1 + seed % 3)
        native += same_everywhere(model, feeds).events[0].backend == "native"
    assert native >= 10


def test_it_is_part_of_a_program() -> None:
    inputs, attributes = plain(0, (4, 2, 5, 20))
    model, feeds = model_of(inputs, attributes)
    session = qrun.Session(model, backend="native")
    for _ in range(3):
        session.run(feeds)
    assert not reference_nodes(session)


@pytest.mark.parametrize("sizes", SIZES)
def test_full_lengths_are_native(sizes: tuple[int, int, int, int]) -> None:
    inputs, attributes = plain(1, sizes)
    inputs[4] = np.full(sizes[1], sizes[0], np.int32)
    natively(*model_of(inputs, attributes, constants=(*CONSTANTS, 4)))


def test_states_that_are_no_numbers_are_refused_as_the_reference_does() -> None:
    inputs, attributes = plain(0, (3, 2, 3, 17))
    for number in (np.nan, -np.inf, np.inf):
        inputs[5] = np.zeros((1, 2, 17), F)
        inputs[5][0, 1, 16] = number
        same_refusal(*model_of(inputs, attributes))
    for place, name in ((0, "X"), (5, "H")):
        inputs, attributes = plain(0, (3, 2, 3, 17))
        inputs[5] = np.zeros((1, 2, 17), F)
        inputs[place].reshape(-1)[3] = np.nan
        model, feeds = model_of(inputs, attributes)
        with pytest.raises(qrun.OperatorError, match=f"^QR202 node-refused: {name} holds NaN"):
            qrun.Session(model).run(feeds)


def test_reasons() -> None:
    inputs, attributes = plain(0, (3, 2, 3, 4))

    def why(changed: dict[int, Any], arith: Any = "exact", constants: Any = CONSTANTS, **more: Any) -> str:
        own = [changed.get(place, value) for place, value in enumerate(inputs)]
        model, feeds = model_of(own, attributes | more, constants=constants)
        event = qrun.Session(model, backend="native", arith=arith).execute(feeds).events[0]
        assert event.backend == "reference"
        return event.why

    assert "peepholes" in why({7: np.ones((1, 12), F)})
    assert "input_forget" in why({}, input_forget=1)
    assert "sequence_lens is not constant" in why({4: np.array([3, 3], np.int32)})
    assert "lengths below" in why({4: np.array([3, 2], np.int32)}, constants=(*CONSTANTS, 4))
    assert "ort arithmetic" in why({}, arith="ort")
    assert "softsign" in why({}, activations=["Sigmoid", "Softsign", "Tanh"])
    assert "leave int8" in why({2: np.full((1, 4, 16), 200, np.uint8), 11: np.zeros(1, np.uint8)})
    assert "positive" in why({10: np.zeros(1, F)})
