"""What the layers of an export share: the model, the family, the layout, and the tensors of the runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from qrun.arithmetics.family import Arithmetic
from qrun.exporting.layer import NHWC, CodeScale, LayerTensor, NotExported
from qrun.ir import Array, Model, Node
from qrun.ops._quantized import bias, quantizers

_IMAGES = ("QLinearConv", "ConvInteger", "QLinearAveragePool", "QLinearGlobalAveragePool", "MaxPool")
_KEEP_AXES = ("QLinearAdd", "QLinearMul", "QLinearConcat", "Clip")


class ExportContext:
    """The model with its integer operators, and what its runs gave.

    runs: the values of a tensor by name, one for each sample. narrow: the types of constants that have 4 bits.
    alike: pairs of tensors with the same axes.
    """

    def __init__(
        self,
        model: Model,
        family: Arithmetic,
        layout: str,
        runs: Mapping[str, Sequence[Array]],
        narrow: Mapping[str, np.dtype],
        alike: Iterable[tuple[str, str]],
    ) -> None:
        self.model = model
        self._narrow = narrow
        self.family = family
        self.layout = layout
        self.runs = runs
        self.samples = max((len(values) for values in runs.values()), default=0)
        self._images = _images(model, alike)

    def constant(self, name: str) -> Array | None:
        """The value of a constant, None for other tensors."""
        return self.model.constant(name)

    def run(self, name: str) -> Sequence[Array]:
        """The value of a tensor in each sample. Raises NotExported where no run computes it."""
        value = self.constant(name)
        if value is not None:
            return [value]
        if name not in self.runs:
            raise NotExported(f"no run computes {name}")
        return self.runs[name]

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor in a sample."""
        shape: tuple[int, ...] = self.run(name)[0].shape
        return shape

    def dtype(self, name: str) -> np.dtype:
        """The element type of a tensor."""
        return self.run(name)[0].dtype

    def parameters(self, node: Node) -> Iterator[tuple[str, str]]:
        """Scales, zero points and the bias of a node: what they are, and their tensors."""
        for each in quantizers(node):
            yield from ((slot.name, slot.tensor) for slot in (each.scale, each.zero_point) if slot)
        if added := bias(node):
            yield added.bias.name, added.bias.tensor

    def layout_of(self, name: str, rank: int) -> str:
        """The letters of a tensor's axes as written, "" if it is no image."""
        if rank not in (3, 4) or name not in self._images:
            return ""
        if self.layout == NHWC:
            return "NLC" if rank == 3 else "NHWC"
        return "NCL" if rank == 3 else "NCHW"

    def turn(self, array: Array, name: str) -> Array:
        """A tensor in the layout in which it is written."""
        turned = self.is_turned(name) and array.ndim in (3, 4)
        return np.ascontiguousarray(np.moveaxis(array, 1, -1) if turned else array)

    def is_turned(self, name: str) -> bool:
        """Whether channels are the last axis of this tensor as written."""
        return self.layout == NHWC and name in self._images

    def stored(self, name: str, value: Array) -> Array:
        """The value of a constant in the type that the model's file has for it."""
        return value.astype(self._narrow.get(name, value.dtype), copy=False)

    def weights(self, weights: Array) -> Array:
        """The weights of a convolution in the layout in which they are written."""
        return np.ascontiguousarray(np.moveaxis(weights, 1, -1) if self.layout == NHWC else weights)

    def weights_layout(self, rank: int) -> str:
        """The letters of their axes."""
        return {("nchw", 3): "OIL", ("nchw", 4): "OIHW", (NHWC, 3): "OLI", (NHWC, 4): "OHWI"}[self.layout, rank]

    def vector(self, role: str, name: str, quantization: CodeScale | None = None) -> LayerTensor:
        """A tensor of all samples; a constant has no axis of samples."""
        values = self.run(name)
        if values[0].dtype.kind not in "iu" or values[0].dtype.itemsize > 2:
            raise NotExported(f"{name} has no codes of 8 or 16 bits")
        return self.numbers(role, name, quantization)

    def numbers(self, role: str, name: str, quantization: CodeScale | None = None) -> LayerTensor:
        """A tensor of numbers of any type, in all samples. Raises NotExported where there is none."""
        values = self.run(name)
        if len({value.shape for value in values}) > 1:
            raise NotExported(f"the shapes of {name} differ between samples")
        if values[0].dtype.kind in "OSTU":
            raise NotExported(f"{name} has no numbers")
        constant = self.constant(name) is not None
        turned = [self.turn(value, name) for value in values]
        array = self.stored(name, turned[0]) if constant else np.stack(turned)
        return LayerTensor(role, array, not constant, name, self.layout_of(name, values[0].ndim), quantization)


def _images(model: Model, alike: Iterable[tuple[str, str]]) -> frozenset[str]:
    """The tensors that a convolution or pool reads or writes, and those that elementwise operators make of them."""
    constant = model.constants
    links = [set(pair) for pair in alike]
    found: set[str] = set()
    for node in model.nodes:
        names = [name for name in (*(q.tensor.tensor for q in quantizers(node)), *node.outputs[:1]) if name]
        names = [name for name in (*names, *node.inputs[:1]) if name not in constant]
        if node.op_type in _IMAGES:
            found.update(names)
        elif node.op_type in _KEEP_AXES:
            links.append(set(names))
    while grown := [link for link in links if found & link and not link <= found]:
        for link in grown:
            found |= link
    return frozenset(found)
