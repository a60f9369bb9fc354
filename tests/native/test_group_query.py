"""GroupQueryAttention as a native kernel has the bits of the reference:
steps with a cache, prompts, sequences that differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from helpers.models import make_model, typed
from helpers.native import ISAS, OBJECTS, Array
from helpers.placed import reference_nodes, run_placed, same_everywhere, same_runs, schedules
from helpers.sums import assert_bits
from helpers.support import MS
from helpers.widths import every_width
from onnx import ModelProto, TensorProto, helper

import qrun
from qrun.native.errors import Undecided
from qrun.native.kernels.decoder import Constant, Heads, Present, RaggedMask, RaggedPresent, Rotary
from qrun.native.machine.engine import Engine
from qrun.native.plan.program import Program

F = np.float32
pytestmark = pytest.mark.skipif(not ISAS, reason="no native kernels for this machine")
SPECIAL = np.array([np.inf, -np.inf, np.nan, 0, -0.0, 3e38, 1e-45], F)
NAMES = ["query", "key", "value", "past_key", "past_value", "ends", "total", "cos", "sin"]


class Step:
    """A node with its inputs. past: places before the new ones; room: rows of the cache, 0 without one; half: pairs
    that turn, 0 for none; special: how many of the numbers are infinities, NaN and zeros; shorter: how many places
    fewer than the longest each sequence has; bias: how many batches and heads attention_bias has."""

    def __init__(
        self,
        batch: int = 1,
        groups: int = 2,
        each: int = 2,
        new: int = 1,
        size: int = 8,
        past: int = 5,
        room: int | None = None,
        half: int | None = None,
        packed: bool = False,
        special: float = 0,
        shorter: Sequence[int] = (),
        bias: tuple[int, int] | None = None,
        **attributes: Any,
    ) -> None:
        rng = np.random.default_rng([batch, groups, each, new, size, past])
        self.total, heads, room = past + new, groups * each, past if room is None else room
        half = size // 2 if half is None else half
        shapes: dict[str, tuple[int, ...]] = {"query": (batch, new, (heads + 2 * groups * packed) * size)}
        if not packed:
            shapes |= dict.fromkeys(("key", "value"), (batch, new, groups * size))
        if room:
            shapes |= dict.fromkeys(("past_key", "past_value"), (batch, groups, room, size))
        if bias:
            shapes["attention_bias"] = (*bias, new, self.total)
        if half:
            shapes |= dict.fromkeys(("cos", "sin"), (self.total + 2, half))
        numbers = {name: rng.standard_normal(shape).astype(F) for name, shape in shapes.items()}
        numbers = {
            n: np.where(rng.random(x.shape) < special, rng.choice(SPECIAL, x.shape), x) for n, x in numbers.items()
        }
        self.angles = {name: numbers.pop(name) for name in ("cos", "sin") if name in numbers}
        self.feeds: dict[str, Array] = numbers
        self.feeds |= {"ends": np.full(batch, self.total - 1, np.int32), "mask": np.ones((batch, self.total), np.int64)}
        for number, fewer in enumerate(shorter):
            self.feeds["ends"][number] -= fewer
        self.attributes = {"num_heads": heads, "kv_num_heads": groups, "do_rotary": int(half > 0), **attributes}

    def model(self, outputs: Sequence[str] = ("y", "keys", "values"), **more: Array) -> ModelProto:
        """Its total follows from the shape of a mask. more: constants for further inputs, by name."""
        given = {"total", *self.feeds, *self.angles}
        further = [
            "position_ids",
            "attention_bias",
            "head_sink",
            "k_scale",
            "v_scale",
            "q_norm_weight",
            "k_norm_weight",
        ]
        names = [name if name in given or name in more else "" for name in (*NAMES, *further)]
        while not names[-1]:
            names.pop()
        nodes = [
            helper.make_node("Shape", ["mask"], ["shape"], start=1),
            helper.make_node("Squeeze", ["shape"], ["long"]),
            helper.make_node("Cast", ["long"], ["total"], to=TensorProto.INT32),
            helper.make_node("GroupQueryAttention", names, outputs, domain=MS, **self.attributes),
        ]
        return make_model(
            nodes,
            {n: typed(helper.np_dtype_to_tensor_dtype(x.dtype), x.shape) for n, x in self.feeds.items()},
            {name: None for name in outputs if name},
            {**self.angles, **more},
            opset=20,
        )

    def run(self, **options: Any) -> None:
        """Three runs with the bits of the reference, none of which leaves a step to Python."""
        assert not reference_nodes(same_runs(self.model(), self.feeds, same=assert_bits, **options))


@pytest.mark.parametrize("threads", [1, 2])
@every_width
def test_steps(isa: str, threads: int) -> None:
    for size in (1, 7, 64, 80):
        for past in (0, 128):
            for batch, groups, each in ((1, 4, 4), (3, 1, 2), (1, 1, 1)):
                Step(batch, groups, each, 1, size, past).run(isa=isa, threads=threads)


@pytest.mark.parametrize("pairs", [0, 1])
@every_width
def test_forms(isa: str, pairs: int) -> None:
    for form in (
        Step(batch=2, room=9),
        Step(batch=2, new=4, past=0, room=0),
        Step(batch=2, groups=1, new=3, past=6, size=34),
        Step(new=3, past=0, room=7),
        Step(batch=2, new=3, packed=True, past=2, room=8, size=12),
        Step(batch=3, packed=True, size=40, half=5),
        Step(new=3, causal=0),
        Step(scale=1.0),
        Step(new=2, scale=-0.3, local_window_size=7),
        Step(batch=2, new=3, special=0.05, size=40),
        Step(batch=2, special=0.01, size=40, past=30),
        Step(local_window_size=5),
        Step(new=4, local_window_size=2, past=9),
        Step(new=6, past=0, room=0, local_window_size=1),
        Step(bias=(1, 1)),
        Step(bias=(1, 4), new=3, special=0.02, past=9),
        Step(batch=2, bias=(2, 1), new=5, past=0, room=0),
        Step(batch=2, bias=(1, 4), new=5, past=0, room=0, local_window_size=2),
        Step(softcap=1.5, past=30),
        Step(batch=2, softcap=0.3, new=5, special=0.02, bias=(1, 1), past=0, room=0),
        Step(smooth_softmax=1, new=3, past=9),
        Step(batch=2, smooth_softmax=1, softcap=2.0, size=40),
    ):
        form.attributes["rotary_interleaved"] = pairs
        form.run(isa=isa)


@pytest.mark.parametrize("threads", [1, 2])
@every_width
def test_sequences_of_different_lengths(isa: str, threads: int) -> None:
    """With a cache; the first of them may be the shortest, and begin."""
    for form in (
        Step(batch=3, past=6, shorter=(0, 6, 3)),
        Step(batch=2, past=130, shorter=(129, 0), size=7),
        Step(batch=3, past=6, shorter=(1, 1, 2)),
        Step(batch=3, new=3, past=9, room=12, shorter=(2, 0, 9)),
        Step(batch=2, new=2, past=9, shorter=(4, 0), local_window_size=3, size=33),
        Step(batch=2, past=9, shorter=(4, 0), local_window_size=1, packed=True),
        Step(batch=2, new=3, past=9, shorter=(0, 5), causal=0),
        Step(batch=2, new=3, past=9, shorter=(0, 5), special=0.05, size=40),
        Step(batch=2, past=9, shorter=(0, 5), special=0.02, size=40, half=7, rotary_interleaved=1),
        Step(batch=2, past=4, half=0, shorter=(3, 0), groups=1, each=1, size=1),
        Step(batch=2, new=3, past=9, shorter=(0, 5), softcap=1.5, smooth_softmax=1),
    ):
        form.run(isa=isa, threads=threads)


@pytest.mark.parametrize("threads", [1, 2])
@every_width
def test_sinks_of_heads(isa: str, threads: int) -> None:
    """Each head has its own: greater than its scores, less, and of no size."""
    sinks = np.array([3, -np.inf, 0, 0.25], F)
    for form in (
        Step(past=30),
        Step(new=3, softcap=2.0, local_window_size=2),
        Step(batch=2, past=9, shorter=(4, 0)),
        Step(batch=2, new=4, past=0, room=0, special=0.02),
    ):
        model = form.model(head_sink=sinks)
        assert not reference_nodes(same_runs(model, form.feeds, same=assert_bits, isa=isa, threads=threads))


def test_a_sink_of_the_run_is_declined() -> None:
    form = Step()
    model = form.model(head_sink=np.ones(4, F))
    feeds = {**form.feeds, "head_sink": np.ones(4, F)}
    model.graph.initializer.remove(next(t for t in model.graph.initializer if t.name == "head_sink"))
    model.graph.input.append(helper.make_tensor_value_info("head_sink", TensorProto.FLOAT, [4]))
    assert same_everywhere(model, feeds).events[-1].why == "head_sink is not constant"


def test_lengths_change_from_run_to_run() -> None:
    form = Step(batch=3, past=6, room=9)
    session = qrun.Session(form.model(), backend="native", cache=OBJECTS)
    reference = qrun.Session(form.model(), backend="reference")
    for ends in ([6, 6, 6], [6, 3, 0], [0, 0, 0], [2, 6, 5], [6, 6, 6]):
        feeds = {**form.feeds, "ends": np.int32(ends)}
        for (name, array), want in zip(session.run(feeds).items(), reference.run(feeds).values(), strict=True):
            assert_bits(array, want, name)
    assert not reference_nodes(session)


def test_outputs_that_nobody_asks_for() -> None:
    form = Step(batch=2, new=2)
    for outputs in (("y",), ("y", "keys"), ("y", "", "values")):
        result = same_everywhere(form.model(outputs), form.feeds)
        assert result.events[-1].backend == "native"


@pytest.mark.parametrize("threads", [1, 2])
def test_prompts_that_differ_go_step_by_step(threads: int) -> None:
    for form in (Step(batch=3, new=4, past=0, room=0), Step(batch=3, new=4, past=0, room=5)):
        model, short = form.model(), {**form.feeds, "ends": form.feeds["ends"].copy()}
        for number in (1, 2):
            short["ends"][number] -= number
        want, plain = (qrun.Session(model, backend="reference").run(feeds) for feeds in (short, form.feeds))
        session = qrun.Session(model, backend="native", cache=OBJECTS, threads=threads)
        for feeds, expected in ((short, want), (form.feeds, plain), (short, want), (short, want), (form.feeds, plain)):
            for name, array in session.run(feeds).items():
                assert_bits(array, expected[name], name)
        (schedule,) = schedules(session)
        with pytest.raises(Undecided):
            Program.of(schedule).run(short, lambda item, arrays: [], qrun.memory.Budget())


def test_ends_that_no_sequence_has_are_refused() -> None:
    form = Step(batch=2)
    session = qrun.Session(form.model(), backend="native", cache=OBJECTS)
    for _ in range(2):
        session.run(form.feeds)
        with pytest.raises(qrun.QrunError, match="seqlens_k has 6"):
            session.run({**form.feeds, "ends": np.int32([5, 6])})


def test_what_is_declined_and_why() -> None:
    weight = np.ones(8, F)
    cases: list[tuple[str, Step, dict[str, Any]]] = [
        ("slides", Step(local_window_size=3, sliding_window_cache=1), {}),
        ("its scores", Step(qk_output=1), {"outputs": ("y", "keys", "values", "scores")}),
        ("position_ids", Step(), {"position_ids": np.array([[3]])}),
        ("attention_bias is given for sequences", Step(batch=2, bias=(1, 1)), {}),
        ("q_norm_weight", Step(), {"q_norm_weight": weight, "k_norm_weight": weight}),
        ("no elements", Step(batch=0), {}),
    ]
    for why, form, more in cases:
        assert why in same_everywhere(form.model(**more), form.feeds).events[-1].why


def test_a_total_of_the_run_is_declined() -> None:
    form = Step()
    model = form.model()
    del model.graph.node[:3]
    model.graph.input.append(helper.make_tensor_value_info("total", TensorProto.INT32, []))
    feeds = {**form.feeds, "total": np.int32(form.total)}
    assert "total_sequence_length is not constant" in same_everywhere(model, feeds).events[-1].why


@pytest.mark.parametrize("at_end", [True, False])
@every_width
def test_nothing_else_is_touched_by_ragged_steps(isa: str, at_end: bool) -> None:
    """The kernels between pages that cannot be touched, also where ends are those of no sequence."""
    engine, rng = Engine.create(isa, OBJECTS), np.random.default_rng(4)
    for count, places, size, ends in ((3, 2, 7, [1, 5, 3]), (1, 1, 40, [0, 4]), (2, 3, 1, [7, 7]), (2, 3, 9, [7, 2])):
        batch, bounds = len(ends), (places - 1, places + 4)
        x = rng.standard_normal((batch, places, (count + 2) * size)).astype(F)
        heads = Heads.beside((batch, count, places, size), 1, count + 2)
        own = x.reshape(batch, places, count + 2, size)[:, :, 1:-1].transpose(0, 2, 1, 3)
        past = rng.standard_normal((batch, count, 6, size)).astype(F)
        given, kept = np.int32(ends), [end + 1 - places for end in ends]
        for room in (5 + places, 8 + places):
            present = RaggedPresent(engine, past.shape, heads, given.shape, bounds, room)
            made = run_placed(engine, present, [past, x, given], [0] * 4, at_end)
            want = np.zeros((batch, count, room, size), F)
            for b, n in enumerate(kept):
                want[b, :, : n + places] = np.concatenate([past[b, :, :n], own[b]], axis=1)
            assert_bits(made, want)
            for wrong in (places - 2, places + 5, -(2**31), 2**31 - 1):
                bad = np.full(batch, wrong, np.int32)
                with pytest.raises(Undecided):
                    run_placed(engine, present, [past, x, bad], [0] * 4, at_end)
        for causal, window in ((True, 0), (True, 1), (True, 4), (False, 0)):
            total = places + 5
            shape = (batch, 1, places, total)
            mask = RaggedMask(engine, given.shape, bounds, (batch, places, total), shape, causal, window)
            made = run_placed(engine, mask, [given], [0] * 2, at_end)
            for b, s, t in np.ndindex(batch, places, total):
                place = kept[b] + s
                seen = t < kept[b] + places and (t <= place or not causal) and (not window or t > place - window)
                assert made[b, 0, s, t] == (0 if seen else -np.inf), (causal, window, b, s, t)


@pytest.mark.parametrize("at_end", [True, False])
@every_width
def test_nothing_else_is_touched(isa: str, at_end: bool) -> None:
    """The kernels between pages that cannot be touched."""
    engine, rng = Engine.create(isa, OBJECTS), np.random.default_rng(3)
    for batch, count, places, size, half in ((2, 3, 2, 7, 3), (1, 1, 1, 1, 0), (3, 2, 1, 40, 20), (1, 2, 3, 64, 5)):
        shape = (batch, count, places, size)
        x = rng.standard_normal((batch, places, (count + 2) * size)).astype(F)
        angles = list(rng.standard_normal((2, places + 1, half)).astype(F)) if half else []
        heads, ends = Heads.beside(shape, 1, count + 2), np.full(batch, 8, np.int32)
        own = x.reshape(batch, places, count + 2, size)[:, :, 1:-1].transpose(0, 2, 1, 3)
        for pairs in (False, True):
            turn = Rotary(
                engine, heads, ends.shape, (8, 8), angles[0].shape if half else None, 1 if half else 0, pairs, shape
            )
            made = run_placed(engine, turn, [x, ends, *angles], [0] * len(turn.operands), at_end)
            assert_bits(made, turned(own, *(a[1:] for a in angles), pairs=pairs) if half else np.ascontiguousarray(own))
        past = rng.standard_normal((batch, count, 5, size)).astype(F)
        for kept, room in ((0, places), (4, 4 + places), (5, 9 + places)):
            present = Present(engine, past.shape, kept, heads, room)
            made = run_placed(engine, present, [past, x], [0] * 3, at_end)
            zeros = np.zeros((batch, count, room - kept - places, size), F)
            assert_bits(made, np.concatenate([past[:, :, :kept], own, zeros], axis=2))
        constant = rng.standard_normal((places, size)).astype(F)
        assert_bits(run_placed(engine, Constant(engine, constant), [], [0], at_end), constant)


def turned(x: Array, cos: Array, sin: Array, *, pairs: bool) -> Array:
    """Each pair as a complex number times another one, part by part."""
    made, half = x.copy(), cos.shape[1]
    for i in range(half):
        a, b = (2 * i, 2 * i + 1) if pairs else (i, half + i)
        c, s = cos[:, i], sin[:, i]
        made[..., a], made[..., b] = c * x[..., a] - s * x[..., b], s * x[..., a] + c * x[..., b]
    return np.ascontiguousarray(made)


def test_a_kernel_that_does_not_fit_is_not_made() -> None:
    engine = Engine.create(cache=OBJECTS)
    heads = Heads.plain((2, 3, 4, 8))
    for ends, angles, position, shape in (
        ((3,), (9, 4), 0, (2, 3, 4, 8)),
        ((2,), (9, 4), 6, (2, 3, 4, 8)),
        ((2,), (9, 4), -1, (2, 3, 4, 8)),
        ((2,), (9, 5), 0, (2, 3, 4, 8)),
        ((2,), (9, 4), 0, (2, 3, 4, 7)),
    ):
        with pytest.raises(ValueError, match=r"ends|angles"):
            Rotary(engine, heads, ends, (3, 3), angles, position, False, shape)
    for past, kept, room in (((2, 3, 5, 8), 6, 20), ((2, 3, 5, 8), 5, 8), ((2, 3, 5, 7), 5, 20), (None, 1, 20)):
        with pytest.raises(ValueError, match="rows of"):
            Present(engine, past, kept, heads, room)
    for past, ends, last, room in (((2, 3, 5, 8), 2, 9, 20), ((2, 3, 5, 8), 2, 8, 8), ((2, 3, 5, 7), 2, 8, 20), ((2, 3, 5, 8), 3, 8, 20)):  # fmt: skip
        with pytest.raises(ValueError, match=r"rows of|ends"):
            RaggedPresent(engine, past, heads, (ends,), (3, last), room)
    for bounds, sizes, shape in (((3, 8), (2, 4, 8), (2, 4, 8)), ((3, 8), (2, 4, 9), (2, 4, 8)), ((4, 3), (2, 4, 9), (2, 4, 9))):  # fmt: skip
        with pytest.raises(ValueError, match=r"a mask|ends"):
            RaggedMask(engine, (2,), bounds, sizes, shape, True)
