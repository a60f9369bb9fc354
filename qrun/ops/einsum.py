"""Einsum: an equation to products of two matrices at a time."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import numpy as np

from qrun.declare.frozen import frozen
from qrun.errors import OperatorError
from qrun.ir.types import shape_text
from qrun.ops._chains import chained_products
from qrun.ops._float import is_integer, narrow, product
from qrun.ops._op import Array, Context, misfit, op, refuse
from qrun.ops._reduce import sum_over
from qrun.ops._shape import claim

_TERM = re.compile(r"[A-Za-z]*(\.\.\.[A-Za-z]*)?")


@frozen
class _Operand:
    """A tensor whose axes carry labels: a letter, or a number for an axis that the ellipsis stands for."""

    array: Array
    labels: tuple[str, ...]


@op("Einsum", since=12)
def einsum(*Inputs: Array, equation: str, ctx: Context) -> Array:
    """Sums of products by Einstein's convention: output[out] = sum over all other indices of Inputs[0][t0] * ...

    equation: ``t0,t1,...->out``; terms of letters, one for each axis, and at most one ellipsis, which stands for axes
    that broadcast. Without ``->out`` the ellipsis comes first, then the letters that occur once, in ASCII order.
    Repeated letters in a term take the diagonal. An axis of length 1 broadcasts.
    Inputs are multiplied from left to right, two at a time. Sums of floating point have the order of docs/numerics.md,
    F1, each step in float32, and float64 in float64. Integers wrap.
    Raises OperatorError for an equation that is malformed or does not fit the inputs.
    """
    if not Inputs or any(x is None for x in Inputs):
        raise refuse("an input is missing", "Inputs", "one tensor or more", "nothing", code="QR205")
    dtype = Inputs[0].dtype
    terms, out = _parse(equation, Inputs)
    sizes = _sizes(terms, Inputs)
    claim(ctx, [sizes[label] for label in out], dtype, "equation")
    kept = is_integer(dtype) or dtype == np.float64
    arrays = Inputs if kept else [x.astype(np.float32) for x in Inputs]
    pending = [_operand(x, labels, sizes) for x, labels in zip(arrays, terms, strict=True)]
    total = pending.pop(0)
    while pending:
        following = pending.pop(0)
        needed = {*out, *(label for operand in pending for label in operand.labels)}
        total = _contract(total, following, needed, sizes, ctx)
    total = _reduced(total, set(out))
    result = total.array.transpose([total.labels.index(label) for label in out])
    return result if is_integer(dtype) else narrow(result, dtype)


def _malformed(message: str, expected: str, equation: str) -> OperatorError:
    return refuse(message, "equation", expected, equation[:80], code="QR204")


def _parse(equation: str, inputs: Sequence[Array]) -> tuple[list[tuple[str, ...]], tuple[str, ...]]:
    """The labels of each input's axes, and of the output's."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    texts = left.split(",")
    for text in (*texts, right):
        if not _TERM.fullmatch(text):
            raise _malformed("a term is malformed", "letters and at most one ellipsis in each term", equation)
    if len(texts) != len(inputs):
        raise _malformed(f"{len(texts)} terms for {len(inputs)} inputs", f"{len(inputs)} terms", equation)
    letters = [text.replace("...", "") for text in texts]
    hidden = 0
    for place, (text, x) in enumerate(zip(texts, inputs, strict=True)):
        more = x.ndim - len(letters[place])
        if more < 0 or ("..." not in text and more):
            raise misfit(
                f"term {text!r} does not fit Inputs[{place}]",
                f"Inputs[{place}]",
                f"rank {len(letters[place])}" + (" or more" if "..." in text else ""),
                x,
            )
        hidden = max(hidden, more)
    every = "".join(letters)
    if not arrow:
        once = sorted(c for c in set(every) if every.count(c) == 1)
        right = ("..." if "..." in left else "") + "".join(once)
    plain = right.replace("...", "")
    if len(set(plain)) < len(plain) or not set(plain) <= set(every) or ("..." in right and "..." not in left):
        raise _malformed("the output term does not fit", "each letter of the inputs at most once", equation)

    def labels(text: str, rank: int) -> tuple[str, ...]:
        before, dots, after = text.partition("...")
        count = rank - len(before) - len(after) if dots else 0
        return (*before, *(str(i) for i in range(hidden - count, hidden)), *after)

    terms = [labels(text, x.ndim) for text, x in zip(texts, inputs, strict=True)]
    return terms, labels(right, len(plain) + hidden)


def _sizes(terms: Sequence[tuple[str, ...]], inputs: Sequence[Array]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for place, (labels, x) in enumerate(zip(terms, inputs, strict=True)):
        for label, n in zip(labels, x.shape, strict=True):
            known = sizes.get(label, 1)
            if known != n and 1 not in (known, n):
                raise misfit(
                    f"index {label} has {known} places before, {n} in Inputs[{place}]",
                    f"Inputs[{place}]",
                    f"{known} or 1 places",
                    f"{n}, in {shape_text(x.shape)}",
                )
            sizes[label] = n if known == 1 else known
    return sizes


def _operand(x: Array, labels: tuple[str, ...], sizes: dict[str, int]) -> _Operand:
    """x with each label once; axes that broadcast are dropped."""
    kept = [place for place, label in enumerate(labels) if x.shape[place] == sizes[label]]
    array = x.reshape([x.shape[place] for place in kept])
    left = [labels[place] for place in kept]
    for label in dict.fromkeys(left):
        while left.count(label) > 1:
            first = left.index(label)
            second = left.index(label, first + 1)
            array = np.diagonal(array, 0, first, second)
            left = [c for place, c in enumerate(left) if place not in (first, second)] + [label]
    return _Operand(array, tuple(left))


def _reduced(operand: _Operand, needed: set[str]) -> _Operand:
    """Summed over the labels that nobody needs."""
    gone = tuple(place for place, label in enumerate(operand.labels) if label not in needed)
    if not gone:
        return operand
    with np.errstate(all="ignore"):
        if is_integer(operand.array.dtype):
            made = np.asarray(np.sum(operand.array, axis=gone, dtype=operand.array.dtype))
        else:
            made = sum_over(operand.array, gone, False).astype(operand.array.dtype)
    return _Operand(made, tuple(label for label in operand.labels if label in needed))


def _contract(a: _Operand, b: _Operand, needed: set[str], sizes: dict[str, int], ctx: Context) -> _Operand:
    """a * b, summed over the labels that are not needed any more."""
    a, b = _reduced(a, needed | set(b.labels)), _reduced(b, needed | set(a.labels))
    shared = [label for label in a.labels if label in b.labels]
    batch = [label for label in shared if label in needed]
    inner = [label for label in shared if label not in needed]
    rows = [label for label in a.labels if label not in shared]
    columns = [label for label in b.labels if label not in shared]
    labels = (*batch, *rows, *columns)
    shape = claim(ctx, [sizes[label] for label in labels], a.array.dtype, "equation")

    def matrices(operand: _Operand, first: Sequence[str], second: Sequence[str]) -> Array:
        order = [operand.labels.index(label) for label in (*batch, *first, *second)]
        dims = [math.prod(sizes[label] for label in group) for group in (batch, first, second)]
        return operand.array.transpose(order).reshape(dims)

    left, right = matrices(a, rows, inner), matrices(b, inner, columns)
    made = product(left, right) if is_integer(left.dtype) else chained_products(left, right, left.dtype)
    return _Operand(made.reshape(shape), labels)
