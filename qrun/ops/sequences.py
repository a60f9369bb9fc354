"""Operators on sequences of tensors and on optional values: SequenceConstruct, SequenceAt, ..., SequenceMap, Optional,
OptionalGetElement."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qrun.ir import TensorType
from qrun.ir.compound import Compound, empty_optional, sequence
from qrun.ir.types import DTYPES, OPTIONAL, SEQUENCE, shape_text, type_name
from qrun.ops._float import axis_in
from qrun.ops._op import Array, Context, misfit, one_of, op, refuse
from qrun.ops._shape import claim, same_but

_FLOAT = 1
_VIEW = 256
"""The least bytes that an element of a sequence takes in addition to its data."""


@op("SequenceConstruct", since=11, compounds="makes")
def sequence_construct(*inputs: Array) -> Array:
    """Return a sequence of the inputs: tensors of one type and any shapes. It holds them, not copies."""
    given = [_tensor(value, f"inputs[{index}]") for index, value in enumerate(inputs)]
    if not given:
        raise refuse("an input is missing", "inputs", "one or more tensors", "nothing", code="QR205")
    return sequence(given)


@op("SequenceEmpty", since=11, compounds="makes")
def sequence_empty(*, dtype: int | None = None) -> Array:
    """Return an empty sequence of tensors of type dtype, float32 by default."""
    number = _FLOAT if dtype is None else dtype
    if number not in DTYPES:
        raise refuse("dtype is not an element type", "dtype", "a number of TensorProto.DataType", number, code="QR204")
    return sequence((), DTYPES[number])


@op("SequenceAt", since=11, compounds="makes")
def sequence_at(input_sequence: Array, position: Array) -> Array:
    """The element at position, a scalar from -n to n - 1, of a sequence of n elements. Raises OperatorError outside."""
    elements = _sequence(input_sequence).elements
    return elements[_place(position, -len(elements), len(elements) - 1)]


@op("SequenceInsert", since=11, compounds="makes")
def sequence_insert(input_sequence: Array, tensor: Array, position: Array | None = None, *, ctx: Context) -> Array:
    """The sequence with tensor before the element at position, a scalar from -n to n; behind the last one without it.

    Raises OperatorError outside, and for a tensor of another type than the elements.
    """
    given, element = _sequence(input_sequence), _tensor(tensor, "tensor")
    count = len(given.elements)
    if given.element not in (None, element.dtype):
        what = f"tensor is {type_name(element.dtype)}, the elements are {type_name(given.element)}"
        raise refuse(what, "tensor", type_name(given.element), type_name(element.dtype), code="QR203")
    index = count if position is None else _place(position, -count, count)
    ctx.claim((count + 1, 8))
    return sequence([*given.elements[:index], element, *given.elements[index:]], element.dtype)


@op("SequenceErase", since=11, compounds="makes")
def sequence_erase(input_sequence: Array, position: Array | None = None) -> Array:
    """The sequence without the element at position, a scalar from -n to n - 1; without the last one if position is
    omitted.

    Raises OperatorError outside.
    """
    given = _sequence(input_sequence)
    count = len(given.elements)
    if position is None and not count:
        raise refuse("the sequence has no element", "input_sequence", "one element or more", "none", code="QR209")
    index = count - 1 if position is None else _place(position, -count, count - 1)
    return sequence([*given.elements[:index], *given.elements[index + 1 :]], given.element)


@op("SequenceLength", since=11, compounds="makes")
def sequence_length(input_sequence: Array) -> Array:
    """Return the number of elements of a sequence as an int64 scalar."""
    return np.array(len(_sequence(input_sequence).elements), np.int64)


@op("ConcatFromSequence", since=11, compounds="makes")
def concat_from_sequence(input_sequence: Array, *, axis: int, new_axis: int = 0, ctx: Context) -> Array:
    """Concatenate the elements along `axis`, or with new_axis = 1 stack them along a new axis.

    Raises OperatorError for no elements, for shapes that do not fit, and for another new_axis.
    """
    elements = _sequence(input_sequence).elements
    one_of("new_axis", new_axis, (0, 1))
    if not elements:
        raise misfit("the sequence has no elements", "input_sequence", "one element or more", "none")
    first = elements[0]
    dim = axis_in(axis, first.ndim + new_axis)
    for number, element in enumerate(elements):
        if element.shape != first.shape and (new_axis or not same_but(element.shape, first.shape, dim)):
            expected = f"{shape_text(first.shape)}, as the first" + (f", but for axis {dim}" if not new_axis else "")
            what = f"element {number} does not fit the first"
            raise misfit(what, "input_sequence", expected, element)
    length = len(elements) if new_axis else sum(element.shape[dim] for element in elements)
    shape = (*first.shape[:dim], length, *first.shape[dim + 1 - new_axis :])
    claim(ctx, shape, first.dtype, "input_sequence")
    return np.stack(elements, dim) if new_axis else np.concatenate(elements, dim)


@op("SplitToSequence", since=11, compounds="makes")
def split_to_sequence(
    input: Array, split: Array | None = None, *, axis: int = 0, keepdims: int = 1, ctx: Context
) -> Array:
    """Views of the input along `axis`: of `split` elements each, the last one of the rest, if split is a scalar; of
    split[i] elements if it is a list; of one element if it is omitted, and then without that axis if keepdims is 0.

    Raises OperatorError for lengths that are negative or do not add up, and for a scalar below 1.
    """
    dim = axis_in(axis, input.ndim)
    size = input.shape[dim]
    lengths = _lengths(split, size)
    ctx.claim((len(lengths), _VIEW))
    ends = np.cumsum([0, *lengths]).tolist()
    lead = (slice(None),) * dim
    if split is None and not keepdims:
        return sequence([input[(*lead, start)] for start in ends[:-1]], input.dtype)
    parts = [input[(*lead, slice(start, end))] for start, end in zip(ends, ends[1:], strict=False)]
    return sequence(parts, input.dtype)


def _lengths(split: Array | None, size: int) -> Sequence[int]:
    """The lengths of the parts of a SplitToSequence. Raises OperatorError."""
    if split is None or split.ndim == 0:
        length = 1 if split is None else int(split)
        if length < 1:
            raise misfit("the parts are empty", "split", "1 or more", length)
        rest = size % length
        return [length] * (size // length) + [rest] * bool(rest)
    if split.ndim != 1:
        raise misfit("split is not a list", "split", "a scalar, or [parts]", split)
    lengths: list[int] = split.tolist()
    if any(n < 0 for n in lengths) or sum(lengths) != size:
        expected = f"numbers of 0 or more that add up to {size}"
        raise misfit("the lengths do not fit", "split", expected, str(lengths[:12]))
    return lengths


@op("SequenceMap", since=17, graphs=("body",), compounds="makes")
def sequence_map(input_sequence: Array, *additional_inputs: Array | None, ctx: Context) -> tuple[Array, ...]:
    """Run body for each element and collect each of its outputs in a sequence.

    Further inputs that are sequences have as many elements, and body gets the one at the same place; tensors are
    the same each time. Raises OperatorError for other lengths, and if the body does not fit.
    """
    first, body = _sequence(input_sequence), ctx.bodies["body"]
    inputs = (first, *(_present(value, f"additional_inputs[{n}]") for n, value in enumerate(additional_inputs)))
    if len(body.inputs) != len(inputs) or len(body.outputs) < ctx.outputs:
        got = f"{len(body.inputs)} inputs, {len(body.outputs)} outputs"
        expected = f"{len(inputs)} inputs, {ctx.outputs} outputs"
        raise refuse("the body does not fit the node", "body", expected, got, code="QR205")
    count = len(first.elements)
    for index, value in enumerate(inputs):
        if isinstance(value, Compound) and (value.dtype != SEQUENCE or len(value.elements) != count):
            what = f"additional_inputs[{index - 1}]"
            raise misfit(f"{what} has another length", what, f"{count} elements", len(value.elements))
    made: list[list[Array]] = [[] for _ in body.outputs]
    nbytes = 0
    for number in range(count):
        given = [value.elements[number] if isinstance(value, Compound) else value for value in inputs]
        for kept, value in zip(made, body.run(given), strict=True):
            kept.append(_tensor(value, "body"))
            nbytes += value.nbytes + _VIEW
        ctx.claim((nbytes,), 1, "sequences")
    return tuple(_one_type(kept, stated) for kept, stated in zip(made, body.outputs, strict=True))


def _one_type(elements: Sequence[Array], stated: TensorType) -> Array:
    """A sequence of tensors of one type. Raises OperatorError if they differ."""
    types = dict.fromkeys(element.dtype for element in elements)
    if len(types) > 1:
        got = ", ".join(map(type_name, types))
        raise refuse("the elements of a sequence differ in type", "body", "one type", got, code="QR203")
    return sequence(elements, next(iter(types), stated.dtype))


@op("Optional", since=15, compounds="makes")
def optional(input: Array | None = None, *, type_: TensorType | None = None) -> Array:
    """Return the input, or without it an empty optional value of the type `type`.

    Raises OperatorError where both are left out.
    """
    if input is not None:
        return input
    if type_ is None:
        raise refuse("an optional without value has no type", "type", "a type, or an input", "neither", code="QR204")
    return empty_optional()


@op("OptionalHasElement", since=15, compounds="makes")
def optional_has_element(input: Array | None = None) -> Array:
    """Whether there is a value: bool, a scalar; a tensor or a sequence is one."""
    return np.array(input is not None and input.dtype != OPTIONAL)


@op("OptionalGetElement", since=15, compounds="makes")
def optional_get_element(input: Array) -> Array:
    """Return the value of an optional, or the given tensor or sequence. Raises OperatorError if it is empty."""
    if input.dtype == OPTIONAL:
        raise refuse("the optional has no value", "input", "a value", "none")
    return input


def _sequence(value: Array) -> Compound:
    """The sequence. Raises OperatorError for anything else."""
    if not isinstance(value, Compound) or value.dtype != SEQUENCE:
        name, got = "input_sequence", type_name(value.dtype)
        raise refuse(f"{name} is not a sequence", name, "a sequence of tensors", got, code="QR203")
    return value


def _present(value: Array | None, param: str) -> Array:
    """The value. Raises OperatorError if it is missing."""
    if value is None:
        raise refuse(f"{param} is missing", param, "a sequence or a tensor", "nothing", code="QR205")
    return value


def _tensor(value: Array | None, param: str) -> Array:
    """The tensor. Raises OperatorError if it is missing, a sequence or a map."""
    if value is None or isinstance(value, Compound):
        got = "nothing" if value is None else type_name(value.dtype)
        raise refuse(f"{param} is not a tensor", param, "a tensor", got, code="QR205" if value is None else "QR203")
    return value


def _place(position: Array, low: int, high: int) -> int:
    """A position, counted from 0."""
    if position.size != 1:
        raise misfit("position is not one number", "position", "a scalar", position)
    index = int(position.reshape(())[()])
    if not low <= index <= high:
        expected = f"{low} to {high}" if low <= high else "no position, as the sequence is empty"
        raise refuse(f"position {index} is outside the sequence", "position", expected, str(index), code="QR209")
    return index - low if index < 0 else index
