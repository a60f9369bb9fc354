"""Operators that contain graphs: If, Loop and Scan."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qrun.errors import TimeLimitError
from qrun.ir.compound import Compound
from qrun.ir.types import shape_text, type_name
from qrun.ops._context import Body
from qrun.ops._float import axis_in
from qrun.ops._op import Array, Context, misfit, op, refuse, require
from qrun.ops._shape import check_shape

_FORWARD, _REVERSE = 0, 1


@op("If", since=1, graphs=("then_branch", "else_branch"))
def if_(cond: Array, *, ctx: Context) -> Sequence[Array]:
    """Run then_branch if cond is true, else else_branch, and return its outputs. The other branch does not run.

    cond: a bool, a scalar or of one element. The branches have no inputs, and take names from outside; they return as
    many values as the node has outputs. Raises OperatorError for a cond of more elements.
    """
    name = "then_branch" if _truth(cond, "cond", "cond") else "else_branch"
    return tuple(_body(ctx, name, 0, ctx.outputs).run(()))


def _truth(value: Array, param: str, what: str) -> bool:
    """The bool of a condition. Raises OperatorError if it is not one bool."""
    if value.dtype != np.bool_:
        raise refuse(f"{what} is {type_name(value.dtype)}", param, "bool", type_name(value.dtype), code="QR203")
    if value.size != 1:
        raise misfit(f"{what} is not one element", param, "a scalar", value)
    return bool(value.reshape(())[()])


def _body(ctx: Context, name: str, takes: int, makes: int) -> Body:
    """A graph of the node. It must take `takes` inputs and make at least `makes` outputs; refuses any other."""
    body = ctx.bodies[name]
    ins, outs = len(body.inputs), len(body.outputs)
    if ins != takes:
        raise refuse(f"{name} takes {ins} inputs", name, str(takes), str(ins), code="QR205")
    if outs < makes:
        raise refuse(f"{name} makes {outs} outputs", name, f"{makes} or more", str(outs), code="QR205")
    return body


@op("Loop", since=1, graphs=("body",), compounds="passes")
def loop(M: Array | None = None, cond: Array | None = None, *v_initial: Array, ctx: Context) -> Sequence[Array]:
    """Run body M times, or until its condition is false; without both, forever.

    M: int64, and cond: bool, scalars or of one element. The body takes the number of the iteration, the condition, and
    the loop-carried values, v_initial at first; it makes the condition, these values, whose shapes may change, and
    elements of scan outputs. The outputs are the values after the last iteration, then the scan outputs, stacked along
    a first axis. Without iterations these have the shapes that the body states, 0 for sizes that it does not.
    Raises OperatorError for elements whose shapes differ, and where the body does not fit.
    """
    state = _require_all(v_initial, "v_initial")
    body = _body(ctx, "body", 2 + len(state), 1 + max(len(state), ctx.outputs))
    going = cond is None or _truth(cond, "cond", "cond")
    most, number = 1 << 62 if M is None else int(_one(M)), 0
    stacks = [ScanOutput(ctx) for _ in body.outputs[1 + len(state) :]]
    while going and number < most:
        args = [_as(body, 0, np.array(number, np.int64)), _as(body, 1, np.array(going)), *state]
        count, (condition, *state) = _turns(body, number, most - number, args, (), stacks, ctx)
        going, number = _truth(condition, "body", "the condition that body makes"), number + count
    stated = body.outputs[1 + len(state) :]
    return (*state, *(stack.whole(value.shape, value.dtype, 0) for stack, value in zip(stacks, stated, strict=True)))


def _turns(
    body: Body,
    number: int,
    left: int,
    args: Sequence[Array],
    scanned: Sequence[Array],
    stacks: Sequence[ScanOutput],
    ctx: Context,
) -> tuple[int, list[Array]]:
    """Runs one or more of the remaining iterations: returns their number, and the loop-carried values after them. Adds
    their scan outputs to `stacks`. number: of the first one, from 0; args: its inputs; scanned: see `Body`. Raises
    TimeLimitError with the iteration."""
    try:
        ctx.budget.in_time()
        kept = sum(stack.nbytes for stack in stacks)
        found = body.repeat(args, number, scanned, left, kept) if left > 1 else None
        made = () if found else body.run(args)
    except TimeLimitError as error:
        error.in_turn(number + 1)
        raise
    carried = len(body.outputs) - len(stacks)
    for index, stack in enumerate(stacks):
        stack.add_all(found[2][index]) if found else stack.add(made[carried + index])
    return found[:2] if found else (1, list(made[:carried]))


class ScanOutput:
    """Collects the elements of a scan output, in the order in which they are made."""

    def __init__(self, ctx: Context) -> None:
        self._ctx, self._blocks, self.nbytes = ctx, list[Array](), 0

    def add(self, element: Array) -> None:
        """Adds one element. Raises MemoryLimitError if all elements, and the array that joins them, are too large."""
        if isinstance(element, Compound):
            got = type_name(element.dtype)
            raise refuse("an element of a scan output is not a tensor", "body", "a tensor", got, code="QR203")
        self.add_all(element[None])

    def add_all(self, block: Array) -> None:
        """Adds one or more elements, stacked along a first axis. Raises as `add`."""
        first = self._blocks[0] if self._blocks else block
        if (block.shape[1:], block.dtype) != (first.shape[1:], first.dtype):
            raise misfit(
                f"element {sum(map(len, self._blocks))} of a scan output has another shape or type",
                "body",
                f"{type_name(first.dtype)} {shape_text(first.shape[1:])}, as the first",
                f"{type_name(block.dtype)} {shape_text(block.shape[1:])}",
            )
        self.nbytes += block.nbytes
        self._ctx.claim((2 * self.nbytes,), 1, "scan output")
        self._blocks.append(block)

    def whole(
        self, stated: Sequence[int | str | None] | None, dtype: np.dtype | None, axis: int, backward: bool = False
    ) -> Array:
        """All elements, along a new axis. stated, dtype: shape and type of an element, used if there is none."""
        blocks = self._blocks
        if blocks:
            (_, *shape), count = blocks[0].shape, sum(map(len, blocks))
            axis = axis_in(axis, blocks[0].ndim, "scan_output_axes")
            check_shape((*shape[:axis], count, *shape[axis:]), blocks[0].itemsize, "body")
            one = blocks[0] if len(blocks) == 1 else np.concatenate(blocks)
            return np.require(np.moveaxis(one[::-1] if backward else one, 0, axis), requirements="C")
        if dtype is None:
            raise refuse("a scan output without elements has no type", "body", "a type of the output", "none stated")
        shape = [size if isinstance(size, int) else 0 for size in stated or ()]
        axis = axis_in(axis, len(shape) + 1, "scan_output_axes")
        return np.zeros((*shape[:axis], 0, *shape[axis:]), dtype)


def _one(value: Array) -> int:
    """The one integer of M. Raises OperatorError."""
    if value.size != 1:
        raise misfit("M is not one element", "M", "a scalar", value)
    return int(value.reshape(())[()])


def _as(body: Body, index: int, value: Array) -> Array:
    """A scalar; reshaped to [1] if the body's input states that shape."""
    stated = body.inputs[index].shape if index < len(body.inputs) else None
    return value.reshape(1) if stated is not None and len(stated) == 1 else value


@op("Scan", since=8, graphs=("body",))
def scan_8(
    sequence_lens: Array | None,
    *initial_state_and_scan_inputs: Array,
    num_scan_inputs: int,
    directions: tuple[int, ...] | None = None,
    ctx: Context,
) -> Sequence[Array]:
    """Scan-9 of each element of a batch, which is the first axis of all inputs and outputs;
    axis 1 of scan inputs is scanned.

    sequence_lens: int64 [batch], how many elements of each are scanned; scan outputs are 0 beyond that.
    Raises OperatorError for shapes and attributes that do not fit. Source: ONNX operators, Scan-8.
    """
    inputs = _require_all(initial_state_and_scan_inputs, "initial_state_and_scan_inputs")
    count = _states(inputs, num_scan_inputs)
    body = _body(ctx, "body", len(inputs), max(count, ctx.outputs))
    backward = _numbers(directions, num_scan_inputs, "directions")
    batch, longest = _batch(inputs, count)
    lengths = np.full(batch, longest) if sequence_lens is None else sequence_lens
    if lengths.shape != (batch,) or ((lengths < 0) | (lengths > longest)).any():
        raise misfit("sequence_lens does not fit", "sequence_lens", f"[{batch}] of 0 to {longest}", lengths)
    results: list[list[Array]] = []
    for number, length in enumerate(lengths.tolist()):
        own = [np.asarray(x[number]) for x in inputs]
        parts = [x[:length] for x in own[count:]]
        how = [0] * num_scan_inputs, backward
        states, outputs = _scan(body, own[:count], parts, how, length, ctx)
        wholes = [s.whole(v.shape, v.dtype, 0) for s, v in zip(outputs, body.outputs[count:], strict=True)]
        results.append([*states, *(_pad(whole, longest) for whole in wholes)])
    if not results:
        wholes = [ScanOutput(ctx).whole(v.shape, v.dtype, 0) for v in body.outputs[count:]]
        return (*inputs[:count], *(np.zeros((0, longest, *whole.shape[1:]), whole.dtype) for whole in wholes))
    return tuple(_of_batch(parts) for parts in zip(*results, strict=True))


def _batch(inputs: Sequence[Array], states: int) -> tuple[int, int]:
    """The batch size and the longest sequence. states: the number of inputs, the first ones, that are states."""
    name, shapes = "initial_state_and_scan_inputs", ", ".join(shape_text(x.shape) for x in inputs)
    if any(x.ndim < (1 if index < states else 2) for index, x in enumerate(inputs)):
        raise misfit("an input has no batch or no sequence", name, "[batch,...], [batch,seq,...]", shapes)
    if len({x.shape[0] for x in inputs}) != 1 or len({x.shape[1] for x in inputs[states:]}) != 1:
        raise misfit("inputs have other batches or sequences", name, "one size of each", shapes)
    batch, longest = inputs[-1].shape[:2]
    return batch, longest


def _of_batch(parts: Sequence[Array]) -> Array:
    """Stacks the results of a batch's elements along a first axis."""
    first = parts[0]
    for number, part in enumerate(parts):
        if (part.shape, part.dtype) != (first.shape, first.dtype):
            raise misfit(
                f"element {number} of the batch makes another shape or type",
                "body",
                f"{type_name(first.dtype)} {shape_text(first.shape)}, as the first",
                f"{type_name(part.dtype)} {shape_text(part.shape)}",
            )
    check_shape((len(parts), *first.shape), first.itemsize, "body")
    return np.stack(parts)


def _pad(whole: Array, length: int) -> Array:
    """An array with zeros appended along its first axis."""
    return np.concatenate([whole, np.zeros((length - len(whole), *whole.shape[1:]), whole.dtype)])


@op("Scan", since=9, graphs=("body",))
def scan(
    *initial_state_and_scan_inputs: Array,
    num_scan_inputs: int,
    scan_input_axes: tuple[int, ...] | None = None,
    scan_input_directions: tuple[int, ...] | None = None,
    scan_output_axes: tuple[int, ...] | None = None,
    scan_output_directions: tuple[int, ...] | None = None,
    ctx: Context,
) -> Sequence[Array]:
    """Run body for each element of the scan inputs along their axes, which are the last num_scan_inputs inputs.

    The body takes states, the other inputs at first, and an element of each scan input; it makes the states and an
    element of each scan output. The outputs are the last states, and the scan outputs, stacked along scan_output_axes.
    A direction of 1 goes from the end. Axes and directions are 0 where they are not given.
    Raises OperatorError for shapes and attributes that do not fit.
    """
    inputs = _require_all(initial_state_and_scan_inputs, "initial_state_and_scan_inputs")
    count = _states(inputs, num_scan_inputs)
    body = _body(ctx, "body", len(inputs), max(count, ctx.outputs))
    scanned = inputs[count:]
    given = _numbers(scan_input_axes, num_scan_inputs, "scan_input_axes")
    axes = [axis_in(axis, x.ndim, "scan_input_axes") for axis, x in zip(given, scanned, strict=True)]
    backward = _numbers(scan_input_directions, num_scan_inputs, "scan_input_directions")
    made = len(body.outputs) - count
    output_axes = _numbers(scan_output_axes, made, "scan_output_axes")
    turned = _numbers(scan_output_directions, made, "scan_output_directions")
    lengths = {x.shape[axis] for x, axis in zip(scanned, axes, strict=True)}
    if len(lengths) != 1:
        shapes = ", ".join(shape_text(x.shape) for x in scanned)
        raise misfit("scan inputs have other lengths", "initial_state_and_scan_inputs", "one length", shapes)
    states, stacks = _scan(body, inputs[:count], scanned, (axes, backward), lengths.pop(), ctx)
    stated = zip(stacks, body.outputs[count:], output_axes, turned, strict=True)
    return (*states, *(s.whole(v.shape, v.dtype, axis, bool(turn)) for s, v, axis, turn in stated))


def _scan(
    body: Body,
    states: list[Array],
    scanned: Sequence[Array],
    how: tuple[Sequence[int], Sequence[int]],
    length: int,
    ctx: Context,
) -> tuple[list[Array], list[ScanOutput]]:
    """Runs the body: the last states and the scan outputs. how: the axis and the direction of each scan input."""
    ordered = [np.moveaxis(x, axis, 0)[:: -1 if b else 1] for x, axis, b in zip(scanned, *how, strict=True)]
    stacks, number = [ScanOutput(ctx) for _ in body.outputs[len(states) :]], 0
    while number < length:
        args = [*states, *(np.ascontiguousarray(x[number]).reshape(x.shape[1:]) for x in ordered)]
        left = [x[number:] for x in ordered]
        count, states = _turns(body, number, length - number, args, left, stacks, ctx)
        number += count
    return states, stacks


def _require_all(values: Sequence[Array | None], name: str) -> list[Array]:
    """Returns variadic inputs; refuses if one of them is left out."""
    given = [value for value in values if value is not None]
    if len(given) < len(values):
        left_out = next(index for index, value in enumerate(values) if value is None)
        raise refuse(f"{name}[{left_out}] is missing", name, "a tensor", "nothing", code="QR205")
    return given


def _states(inputs: Sequence[Array], scanned: int) -> int:
    """The number of state variables of a Scan."""
    require("num_scan_inputs", 0 < scanned <= len(inputs), f"1 to {len(inputs)}, the inputs", scanned)
    return len(inputs) - scanned


def _numbers(given: Sequence[int] | None, count: int, name: str) -> Sequence[int]:
    """An axis or direction for each scan input or output; 0 if not given. Raises OperatorError."""
    numbers = (0,) * count if given is None else given
    if len(numbers) != count or ("directions" in name and not {*numbers} <= {_FORWARD, _REVERSE}):
        expected = f"{count} numbers" + (", 0 or 1" if "directions" in name else "")
        raise refuse(f"{name} does not fit", name, expected, str(list(numbers)), code="QR204")
    return numbers
