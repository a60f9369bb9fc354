"""Facts about a model that need no run: sizes, quantization, operators, and whether qrun can run it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import numpy as np

from qrun.checking.rules import Finding
from qrun.checking.rules._scope import Scope, constant_value, nodes, scopes
from qrun.declare import grouped
from qrun.declare.frozen import frozen
from qrun.documents.answers import OperatorFacts
from qrun.errors import QrunError, some
from qrun.ir import Array, Model, Node
from qrun.ir.schema import DOMAINS, FORMER, QONNX, QUARK, VAI, VENDORS
from qrun.ir.types import type_name
from qrun.ops import Quantizer, find, quantizers
from qrun.ops._op import no_cost

DYNAMIC = ("DynamicQuantizeLinear", "DynamicQuantizeMatMul", "DynamicQuantizeLSTM")
INTEGER = ("MatMulInteger", "ConvInteger", "MatMulIntegerToFloat")
QUANTIZED = ("QLinear", "QGemm", "QAttention", "QOrdered", "QEmbedLayerNormalization")
"""Prefixes of the names of operators on quantized tensors."""
_CODED = {"MatMulNBits": (1,), "QMoE": (2, 5, 8), "GatherBlockQuantized": (0,), "MatMulBnb4": (1,)}
"""Operators whose attributes give the bit width of their weights, and the places of those inputs."""
FORMS = {
    "tensor": "per tensor",
    "channel": "per channel",
    "row": "per row",
    "column": "per column",
    "gemm": "per column",
    "axis": "per channel",
}


@frozen(slots=False)
class ModelFacts:
    """Facts of one model; each is computed on first access."""

    model: Model

    @cached_property
    def node_count(self) -> int:
        return sum(1 for _ in nodes(self.model))

    @cached_property
    def stored(self) -> Mapping[str, Array]:
        """Initializers and Constant nodes by name; names in inner graphs are prefixed with the graph's path."""
        found: dict[str, Array] = {}
        for scope in scopes(self.model):
            found |= {scope.path + name: array for name, array in scope.model.constants.items()}
            for node in scope.model.nodes:
                value = constant_value(node)
                if value is not None and node.outputs:
                    found[scope.path + node.outputs[0]] = value
        return found

    @cached_property
    def parameters(self) -> int:
        return sum(array.size for array in self.stored.values())

    @cached_property
    def macs(self) -> int | None:
        """Multiply-adds with every size symbol of the inputs taken as 1; None if unknown."""
        return None if self.uncounted else sum(macs or 0 for macs in self._node_macs)

    @cached_property
    def uncounted(self) -> str:
        """Why `macs` is None; "" if it is known."""
        for (scope, node), macs in zip(nodes(self.model), self._node_macs, strict=True):
            if macs is None and find(node.domain, node.op_type, node.version) is None:
                return f"no cost is known for {node.op}"
            if macs is None:
                names, symbols = filter(None, (*node.inputs, *node.outputs)), set(self.symbols)
                unknown = next((name for name in names if _sizes(scope, name, symbols) is None), "")
                return f"no static shape for {unknown}" if unknown else f"{node.label} has shapes that do not fit"
        return ""

    @cached_property
    def _node_macs(self) -> tuple[int | None, ...]:
        symbols = set(self.symbols)
        return tuple(_node_macs(scope, node, symbols) for scope, node in nodes(self.model))

    @cached_property
    def symbols(self) -> tuple[str, ...]:
        """The size symbols of the inputs."""
        return tuple(dict.fromkeys(d for v in self.model.inputs for d in v.shape or () if isinstance(d, str)))

    @cached_property
    def form(self) -> str:
        """``QOperator``, ``QDQ``, ``dynamic``, ``weight only``, ``quantized cache``, several of them, or ``float``."""
        found: dict[str, None] = {}
        ops = {_plain(node) for _, node in nodes(self.model)}
        dynamic = ops.intersection(DYNAMIC)
        if any(op.startswith(QUANTIZED) for op in ops):
            found["QOperator"] = None
        if dynamic or (ops.intersection(INTEGER) and "QOperator" not in found):
            found["dynamic" if dynamic else "integer"] = None
        if any(_qonnx(node) for _, node in nodes(self.model)):
            found["QONNX"] = None
        if ops.intersection(_CODED):
            found["weight only"] = None
        if "DequantizeLinear" in ops and any(self._weights_of("DequantizeLinear")):
            found["QDQ" if ops.intersection(("QuantizeLinear", *dynamic)) else "weight only"] = None
        elif not found and ops.intersection(("QuantizeLinear", "DequantizeLinear")):
            found["QDQ"] = None
        if any(_has_coded_cache(node) for _, node in nodes(self.model)):
            found["quantized cache"] = None
        return ", ".join(found) or "float"

    @cached_property
    def brief(self) -> str:
        """The form and the type of most quantized weights: ``QOperator int8``, ``QDQ int4``, ``not quantized``."""
        if self.form == "float":
            return "not quantized"
        sizes: Counter[str] = Counter()
        for scope, node in nodes(self.model):
            for q in quantizers(node):
                value = None if q.is_output else scope.value(q.tensor.tensor)
                if value is not None and value.dtype != np.int32 and value.dtype.kind != "f":
                    sizes[type_name(value.dtype)] += value.size
            coded = _CODED.get(node.op_type, (0,) if _qonnx(node) else ())
            for place in coded:
                stored = scope.value(node.inputs[place]) if len(node.inputs) > place else None
                sizes[_bits(scope, node)] += stored.size if stored is not None else 0
        return " ".join([self.form, *(name for name, _ in sizes.most_common(1))])

    def _weights_of(self, op_type: str) -> Iterator[str]:
        """Stored tensors, without biases, that nodes of this operator dequantize."""
        for scope, node in nodes(self.model):
            value = scope.value(node.inputs[0]) if _plain(node) == op_type and node.inputs else None
            if value is not None and value.dtype != np.int32:
                yield node.inputs[0]

    @cached_property
    def quantized(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Types and granularities of quantized activations, and of weights, such as ``uint8 per tensor``, the most
        frequent first."""
        activations: Counter[str] = Counter()
        weights: Counter[str] = Counter()
        for scope, node in nodes(self.model):
            for q in quantizers(node):
                dtype = scope.dtype(q.tensor.tensor)
                if dtype is None or dtype == np.int32 or dtype.kind == "f":
                    continue
                stored = not q.is_output and scope.value(q.tensor.tensor) is not None
                (weights if stored else activations)[f"{type_name(dtype)} {_granularity(scope, node, q)}".strip()] += 1
            if node.op_type == "DynamicQuantizeLinear":
                activations["uint8 per tensor"] += 1
            if node.op_type in _CODED:
                block = node.attributes.get("block_size")
                bits = _bits(scope, node)
                weights[f"{bits} in blocks of {block!r}" if block else f"{bits} per channel"] += 1
            if _qonnx(node) and node.inputs:
                stored = scope.value(node.inputs[0]) is not None
                (weights if stored else activations)[f"{_bits(scope, node)} {_spread(scope, node, 1)}".strip()] += 1
            if node.op_type == "QAttention" and len(node.inputs) > 4:
                for counts, tensor, scale in ((activations, 0, 3), (weights, 1, 4)):
                    dtype = scope.dtype(node.inputs[tensor])
                    if dtype is not None:
                        counts[f"{type_name(dtype)} {_spread(scope, node, scale)}".strip()] += 1
        return _rank(activations), _rank(weights)

    @cached_property
    def operators(self) -> tuple[OperatorFacts, ...]:
        groups = grouped((node.op, (scope, node)) for scope, node in nodes(self.model))
        facts = [_operator(op, members) for op, members in groups.items()]
        return tuple(sorted(facts, key=lambda f: (f.supported, -f.nodes, f.op)))

    @cached_property
    def obstacle(self) -> str:
        """Why qrun cannot run the model; "" if it can."""
        if self.model.missing_files:
            return f"external data missing: {some(self.model.missing_files)}"
        missing = [f.op for f in self.operators if not f.supported]
        if missing:
            return f"{len(missing)} operator{'s' if len(missing) > 1 else ''} missing: {', '.join(missing)}"
        from qrun.checking.rules._foretold import (
            obstacle,
        )  # imported here, because the other facts need neither kernels nor rules

        odd = next((v for v in self.model.inputs if v.kind == "sparse_tensor"), None)
        if odd is not None:
            return f"input {odd.name} is a {odd.kind}"
        found = obstacle(self.model)
        if found is None:
            return ""
        if isinstance(found, Finding):
            return f"{found.message} ({found.rule}, node {found.index} {found.node} ({found.op}))"
        place = f", {found.where[1]}" if len(found.where) > 1 else ""
        return f"{found.message} ({found.code}{place})"


def _bits(scope: Scope, node: Node) -> str:
    """The bit width of a node's quantized values, as ``4-bit``, from its attributes or one of its inputs."""
    if _qonnx(node):
        width = scope.value(node.inputs[3]) if len(node.inputs) > 3 else np.ones(1)
        return f"{float(width.reshape(-1)[0]):g}-bit" if width is not None and width.size else "?-bit"
    given = node.attributes.get("expert_weight_bits" if node.op_type == "QMoE" else "bits")
    return f"{given or 4!r}-bit"


def _plain(node: Node) -> str:
    """The name of the operator; in Quark's domains, of the one that it extends."""
    quark = node.domain in (QUARK, VAI)
    return node.op_type.removeprefix("Extended").removeprefix("Vitis") if quark else node.op_type


def _qonnx(node: Node) -> bool:
    """Whether the node quantizes but keeps floats, in the style of QONNX."""
    return FORMER.get(node.domain, node.domain) == QONNX and node.op_type in ("Quant", "IntQuant", "BipolarQuant")


def _has_coded_cache(node: Node) -> bool:
    """Whether the node's cache of keys and values is quantized."""
    return node.op_type == "GroupQueryAttention" and node.attributes.get("k_quant_type", "NONE") != "NONE"


def _spread(scope: Scope, node: Node, place: int) -> str:
    """``per tensor`` or ``per channel``, by the shape of the scale that is input number `place`; "" if unknown."""
    shape = scope.shape(node.inputs[place]) if len(node.inputs) > place else None
    return "" if shape is None else "per channel" if any(size != 1 for size in shape) else "per tensor"


def _rank(found: Counter[str]) -> tuple[str, ...]:
    """The most frequent first; a type of unknown granularity only if it does not occur with a known one."""
    return tuple(k for k, _ in found.most_common() if " " in k or not any(o.startswith(f"{k} ") for o in found))


def _granularity(scope: Scope, node: Node, q: Quantizer) -> str:
    slot = q.scale or q.zero_point
    shape = scope.shape(slot.tensor) if slot else None
    block = node.attributes.get("block_size", 0)
    if isinstance(block, int) and block > 0:
        return f"in blocks of {block}"
    if slot is not None and shape is None:
        return "per tensor" if q.form == "tensor" else ""
    return "per tensor" if not shape or shape == (1,) else FORMS[q.form]


def _operator(op: str, members: list[tuple[Scope, Node]]) -> OperatorFacts:
    types: Counter[str] = Counter()
    weights: dict[tuple[int, str], int] = {}
    for scope, node in members:
        types[_input_types(scope, node)] += 1
        for name in node.inputs:
            home = scope.home(name) if name else None
            value = home.value(name) if home else None
            if home is not None and value is not None and value.size > 1:
                weights[id(home.model), name] = value.nbytes
    node = members[0][1]
    support = "yes"
    if find(node.domain, node.op_type, node.version) is None:
        support = "no" if node.domain in {*DOMAINS, *VENDORS} else "no, unknown domain"
    versions = tuple(sorted({n.version for _, n in members}))
    return OperatorFacts(
        op, len(members), versions, tuple(t for t, _ in types.most_common() if t), sum(weights.values()), support
    )


def _input_types(scope: Scope, node: Node) -> str:
    """Types of the inputs that hold data: ``uint8 x int8`` for a product, else those of the first one."""
    owners = [q.tensor.tensor for q in quantizers(node) if not q.is_output] or list(node.inputs[:1])
    found = [scope.dtype(name) for name in owners if name]
    if not found or None in found:
        return "?" if found else ""
    names = [type_name(dtype) for dtype in found]
    return " x ".join(names) if len(names) <= 2 else ", ".join(dict.fromkeys(names))


def _node_macs(scope: Scope, node: Node, symbols: set[str]) -> int | None:
    definition = find(node.domain, node.op_type, node.version)
    if definition is None:
        return None
    if definition.cost is no_cost:
        return 0
    inputs = [_sizes(scope, name, symbols) if name else () for name in node.inputs]
    outputs = [_sizes(scope, name, symbols) for name in node.outputs if name]
    if None in inputs or None in outputs:
        return None
    known: Any = definition.cost
    try:
        return int(known(inputs, outputs, definition.bind(node)))
    except (QrunError, IndexError, ValueError, TypeError, KeyError, ZeroDivisionError):
        return None


def _sizes(scope: Scope, name: str, symbols: set[str]) -> tuple[int, ...] | None:
    shape = scope.shape(name)
    if shape is None or any(d is None or (isinstance(d, str) and d not in symbols) for d in shape):
        return None
    return tuple(d if isinstance(d, int) else 1 for d in shape)
