"""Tensors that a file stores more than once."""

from __future__ import annotations

from collections.abc import Hashable, Iterator

from qrun.checking.rules._rule import Finding, rule
from qrun.checking.rules._scope import Scope, constant_value, scopes
from qrun.checking.rules._words import several
from qrun.declare import grouped
from qrun.ir import Array, Model

LARGE = 1 << 8
"""Bytes of the smallest tensor that is reported."""
_PROBE = 16
"""Elements at each end that are compared before whole tensors are."""


@rule(
    "QR121", "note", spec="IR", fix="store each tensor once in the main graph; graphs inside nodes read it from there"
)
def stored_copies(model: Model) -> Iterator[Finding]:
    """The same tensors are stored in several graphs, as in both branches of an If. One finding for the model.

    Counts tensors of 256 bytes or more with equal types, shapes and elements, if a graph inside a node stores one.

    Why is this bad?
        The file, and the memory of every runtime that reads it, hold the tensors several times. Exporters that write a
        decoder with and without its cache as the branches of an If double all weights in this way.

    Bad
        main (bool c, double[32] x) => (double[32] y)
        {
            y = If (c) <
                then_branch = a () => (double[32] p)
                <double[32] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16,
                                17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32}> {
                    p = Add(x, w)
                },
                else_branch = b () => (double[32] q)
                <double[32] v = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16,
                                17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32}> {
                    q = Sub(x, v)
                }
            >
        }

    Good
        main (bool c, double[32] x) => (double[32] y)
        <double[32] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16,
                        17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32}>
        {
            y = If (c) <
                then_branch = a () => (double[32] p) {
                    p = Add(x, w)
                },
                else_branch = b () => (double[32] q) {
                    q = Sub(x, w)
                }
            >
        }
    """
    copies = list(_copies(model))
    if copies:
        (scope, name, array), again = copies[0]
        wasted = sum(array.nbytes * len(others) for (_, _, array), others in copies)
        more = f", and {several(len(copies) - 1, 'more tensor')}" if copies[1:] else ""
        yield Finding(
            f"{scope.path}{name} is stored again as {again[0][0].path}{again[0][1]}{more}: {wasted} bytes of copies",
            node=again[0][0].path[:-1],
            index=again[0][0].index,
            tensor=f"{again[0][0].path}{again[0][1]}",
            expected="one copy, in a graph that both are inside",
            got=f"{wasted} bytes of copies of {several(len(copies), 'tensor')}",
            why="ONNX IR: a graph inside a node reads the tensors of the graphs around it.",
        )


_Stored = tuple[Scope, str, Array]


def _copies(model: Model) -> Iterator[tuple[_Stored, list[_Stored]]]:
    """Each tensor that is stored several times: where it is first, and where again."""
    found = grouped((_key(each[2]), each) for each in _large(model))
    for group in found.values():
        while len(group) > 1:
            first, rest = group[0], group[1:]
            again = [each for each in rest if each[2].tobytes() == first[2].tobytes()]
            group = [each for each in rest if not any(each is other for other in again)]
            if any(each[0].outer is not None for each in again):
                yield first, again


def _large(model: Model) -> Iterator[_Stored]:
    places = scopes(model)
    for scope in places if len(places) > 1 else ():
        stored = dict(scope.model.constants)
        stored |= {node.outputs[0]: v for node in scope.model.nodes if (v := constant_value(node)) is not None}
        for name, array in stored.items():
            if array.nbytes >= LARGE and array.dtype.kind not in "OUS":
                yield scope, name, array


def _key(array: Array) -> Hashable:
    flat = array.reshape(-1)
    return array.dtype.name, array.shape, flat[:_PROBE].tobytes(), flat[-_PROBE:].tobytes()
