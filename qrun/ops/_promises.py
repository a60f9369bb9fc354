"""What a declaration says of an operator besides its signature:
how its results depend on its inputs, what it computes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Literal

from qrun.declare.frozen import frozen

Form = Literal["", "pointwise", "broadcast", "moves", "shape"]
"""On which elements of its inputs an output element depends.

pointwise: on the one at its place in the first input. The other inputs are parameters: each is one number, or has one
           for each place along the attribute `axis`, or along axis 1 if there is no such attribute.
broadcast: on those at its place in all inputs, which broadcast as in numpy.
moves:     it is an element of the first input; the others, and the attributes, tell which.
shape:     on none, only on the inputs' shapes.

For nodes with one output, without training mode or blocks. An empty form promises nothing.
"""
Compounds = Literal["", "passes", "makes"]
"""What an operator has to do with values that are no tensors (qrun/ir/compound.py): it takes none; it passes on those
that it is given; it makes or reads them."""
Granularity = Literal["tensor", "channel", "row", "column", "gemm", "axis"]
"""How many scales a quantized tensor may have.

tensor: one. channel: one, or one for each index of the first axis (output channels of a weight).
row, column: one, or one for each row or column of a matrix. gemm: as column, of a matrix that transB may turn.
axis: by the node's axis and block_size.
"""


@frozen
class Real:
    """What a quantized operator computes with the numbers that its codes mean: an operator of ai.onnx.

    per:  granularity of the tensors that may have more than one scale; those of the weight stand last.
    bias: the input that is added, one number for each scale that the weight may have.
    """

    op_type: str
    per: Mapping[str, Granularity] = field(default_factory=dict)
    bias: str = ""


@frozen
class Whole:
    """What an input that says how much of other inputs counts has where all of them counts.

    of:   inputs whose elements are counted, each with the axis, or with the attribute that has its number (0 if left
          out). They add up; inputs that are left out count nothing.
    less: what is taken off.
    mask: with two axes or more it is 1 for each element that counts, and no number of them.
    """

    of: tuple[tuple[str, int | str], ...] = ()
    less: int = 0
    mask: bool = False


MASK = Whole(mask=True)
"""What is 1 for each element that counts, however many axes it has."""
