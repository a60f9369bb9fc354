"""Operations on operands that a test places: rows apart, memory guarded, and nodes run by every backend."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest

import qrun
from helpers.native import OBJECTS, Array, Guarded
from helpers.sums import assert_bits
from helpers.support import assert_equal
from qrun.checking.rules import check
from qrun.native.kernels.elementwise import Expression
from qrun.native.machine.engine import Engine
from qrun.native.machine.operation import Operation
from qrun.native.plan.items import PythonStep, Task
from qrun.native.plan.schedule import Schedule
from qrun.running.plan import BACKENDS

UNTOUCHED = 0xA5


def rows_of(shape: tuple[int, ...], itemsize: int) -> tuple[int, int]:
    """How many rows an array in memory has, and their bytes."""
    columns = shape[-1] if shape else 1
    return int(np.prod(shape[:-1], dtype=np.int64)) if columns else 0, columns * itemsize


def run_placed(
    engine: Engine, operation: Operation, arrays: Sequence[Array], strides: Sequence[int], at_end: bool = True
) -> Array:
    """The result of an operation whose operands lie between unreadable pages, rows `strides` bytes apart.

    Bytes of the result that are no row, or a border, must stay as they are.
    """
    guard = Guarded()
    sections = operation.sections(strides)
    buffers = []
    for place, operand in enumerate(operation.operands):
        last = place == len(operation.operands) - 1
        order = operation.result_order if last else operation.source_order
        stored = operand.memory_shape(order)
        rows, width = rows_of(stored, operand.dtype.itemsize)
        stride = strides[place] or width
        span = (rows - 1) * stride + width if rows else 0
        need = max((s.extents[place] for s in sections), default=0)
        if last:
            assert need <= span
        memory = guard.take(span if last else max(need, 1), at_end)
        memory[:] = UNTOUCHED
        if not last:
            array = arrays[place]
            inner = np.moveaxis(array, 1, -1) if order == "channels" and array.ndim > 2 else array
            whole = np.zeros(max(span, len(memory)), np.uint8)
            if rows and width:
                filled = np.ascontiguousarray(inner).reshape(-1).view(np.uint8).reshape(rows, width)
                np.lib.stride_tricks.as_strided(whole, (rows, width), (stride, 1))[...] = filled
            memory[:] = whole[: len(memory)]
        buffers.append((memory, stored, stride, order))
    engine.execute(sections, [memory for memory, *_ in buffers])
    memory, stored, stride, order = buffers[-1]
    result = operation.result
    rows, width = rows_of(stored, result.dtype.itemsize)
    if not rows or not width:
        return np.zeros(result.shape, result.dtype)
    view = np.lib.stride_tricks.as_strided(memory, (rows, width), (stride, 1))
    made = view.copy().view(result.dtype).reshape(stored)
    if any(result.border):
        frame = made.copy()
        frame[result.interior("channels")] = np.frombuffer(bytes([UNTOUCHED]) * result.dtype.itemsize, result.dtype)[0]
        assert (frame.view(np.uint8) == UNTOUCHED).all(), "the border was written"
        made = made[result.interior("channels")]
    view[...] = UNTOUCHED
    assert (memory == UNTOUCHED).all(), "bytes between rows were written"
    return np.moveaxis(made, -1, 1) if order == "channels" and made.ndim > 2 else made


def same_everywhere(
    model: Any, feeds: Mapping[str, Array], outputs: Sequence[str] | None = None, **options: Any
) -> qrun.RunResult:
    """Run a model natively, node by node and then as a program; all outputs and findings are the reference's.

    Returns the result of the node-by-node run.
    """
    want = qrun.Session(model, arith=options.get("arith", "exact"), backend="reference").execute(feeds, outputs)
    session = qrun.Session(model, backend="native", cache=OBJECTS, **options)
    watched = session.execute(feeds, outputs)
    assert check(qrun.load(model), watched) == check(qrun.load(model), want)
    for got in (watched.outputs, *(session.run(feeds, outputs) for _ in range(3))):
        assert list(got) == list(want.outputs)
        for name, array in want.outputs.items():
            assert_equal(got[name], array, name)
    return watched


def natively(
    model: onnx.ModelProto, feeds: Mapping[str, Array], outputs: Sequence[str] | None = None, **options: Any
) -> qrun.RunResult:
    """As `same_everywhere`; every node has a native kernel."""
    result = same_everywhere(model, feeds, outputs, **options)
    for event in result.events:
        shapes = [f"{array.dtype} {array.shape}" for array in feeds.values()]
        assert (event.backend, event.why) == ("native", ""), f"{event.op}: {event.why}; {shapes}; {options}"
    return result


def same_runs(
    model: Any,
    feeds: Mapping[str, Array] | Iterable[Mapping[str, Array]],
    outputs: Sequence[str] | None = None,
    *,
    times: int = 3,
    fuse: bool = False,
    same: Callable[[Array, Array, str], None] = assert_equal,
    **options: Any,
) -> qrun.Session:
    """A native session in which each of the feeds gives what the reference does, so many times in turn.

    fuse: of the reference. same: assert_bits where all are float32, and every NaN has one form.
    """
    reference = qrun.Session(model, arith=options.get("arith", "exact"), backend="reference", fuse=fuse)
    session = qrun.Session(model, backend="native", cache=OBJECTS, **options)
    with np.errstate(all="ignore"):
        for number, fed in enumerate([feeds] if isinstance(feeds, Mapping) else feeds):
            want = reference.run(fed, outputs)
            for turn in range(times):
                for name, array in session.run(fed, outputs).items():
                    same(array, want[name], f"{name} of feeds {number} in turn {turn}")
    return session


def same_refusal(model: Any, feeds: Mapping[str, Array]) -> None:
    """The native backend refuses the model with the reference's words."""
    texts = []
    for backend in BACKENDS:
        with pytest.raises(qrun.OperatorError) as caught:
            qrun.Session(model, backend=backend, cache=OBJECTS, fuse=False).run(feeds)
        texts.append(str(caught.value))
    assert texts[0] == texts[1]


def schedules(session: qrun.Session) -> list[Schedule]:
    """What the session's programs were made of."""
    compiled = [made for p in session._runs.plans.values() if p.programs for made in p.programs._made.values() if made]
    assert compiled, "no program was made"
    return [c.program.schedule for c in compiled if c.program.schedule]


def operations_of(model: onnx.ModelProto, feeds: Mapping[str, Array], **options: Any) -> list[Operation]:
    """The operations of the model's program, the results of which have the bits of the reference, run after run."""
    (schedule,) = schedules(same_runs(model, feeds, same=assert_bits, **options))
    return [item.operation for item in schedule.items if isinstance(item, Task)]


def reference_nodes(session: qrun.Session) -> list[Any]:
    """The steps of the session's programs that Python runs."""
    items = [item for schedule in schedules(session) for item in schedule.items]
    return [item for item in items if isinstance(item, PythonStep) and item.outputs]


def chains(session: qrun.Session) -> list[int]:
    """Of how many functions each elementwise kernel of the session's programs is, but for those of one."""
    operations = [placed.operation for schedule in schedules(session) for placed in schedule.placement.placed]
    return [len(o.steps) for o in operations if isinstance(o, Expression) and len(o.steps) > 1]
