"""Operators of ONNX without a kernel in qrun: onnx.reference, the standard's own code, runs their nodes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from qrun.declare.memo import Memo
from qrun.ir import Array, Model, Node
from qrun.ir.schema import ML, Schema, stated_attributes
from qrun.ir.types import type_name
from qrun.ops._context import Context, bad_attribute, refuse

_SINGLE = frozenset({np.dtype(np.float32)})


def _number(args: Sequence[Any], index: int, otherwise: int = 0) -> int:
    """The number in an input, which may be of any shape."""
    given = args[index] if index < len(args) else None
    return otherwise if given is None else int(given.max(initial=0))


def _frames(args: Sequence[Any]) -> Sequence[int]:
    """The output shape of STFT, for the memory claim."""
    signal, window = args[0], args[2] if len(args) > 2 else None
    batch, samples = signal.shape[:2] if signal.ndim > 1 else (1, 0)
    length = _number(args, 3, samples if window is None else window.size)
    return batch, max(samples - length, 0) // max(_number(args, 1), 1) + 1, length, 2


_SIZES: Mapping[str, Callable[[Sequence[Any], Mapping[str, Any]], Sequence[int]]] = {
    **dict.fromkeys(("RandomNormal", "RandomUniform"), lambda _, attributes: attributes["shape"]),
    **dict.fromkeys(("HannWindow", "HammingWindow", "BlackmanWindow"), lambda args, _: [_number(args, 0)]),
    "MelWeightMatrix": lambda args, _: [_number(args, 1) // 2 + 1, _number(args, 0)],
    "DFT": lambda args, _: [_number(args, 1), 2],
    "STFT": lambda args, _: _frames(args),
}
"""Functions of inputs and attributes that give the shapes of results whose size the inputs' sizes do not bound."""


def _ignores(attributes: Mapping[str, Any], args: Sequence[Any]) -> bool:
    """Whether the loss averages over targets of -1, which onnx.reference gets wrong."""
    mean = attributes.get("reduction", "mean") == "mean"
    return mean and attributes.get("ignore_index") == -1 and (len(args) < 3 or args[2] is None)


_WRONG: Mapping[str, tuple[Callable[[Mapping[str, Any], Sequence[Any]], bool], str, str]] = {
    **dict.fromkeys(
        ("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"),
        (_ignores, "ignore_index", "counts elements that are ignored where ignore_index is -1: give weights of 1"),
    ),
    "TreeEnsembleClassifier": (
        lambda attributes, _: len(found := {*attributes.get("class_ids", ())}) == 1 and 0 not in found,
        "class_ids",
        "drops the votes where all of them are for a class that is not the first",
    ),
    "SVMClassifier": (
        lambda attributes, _: not attributes.get("vectors_per_class"),
        "vectors_per_class",
        "makes labels that are none of the classes where there are no support vectors",
    ),
}
"""Forms of operators that onnx.reference computes unlike their pages: a test, the attribute, and what it does."""


def standard_kernel(domain: str, op_type: str, known: Schema) -> Callable[..., Any]:
    """A reference kernel that passes its node to onnx.reference."""

    def kernel(*args: Array | None, ctx: Context, **attributes: Any) -> tuple[Array, ...]:
        _check(op_type, args, attributes, ctx)
        given = {f"x{index}": wide(array) for index, array in enumerate(args) if array is not None}
        inputs = tuple([f"x{index}" if f"x{index}" in given else "" for index in range(len(args))])
        outputs = tuple([f"y{index}" for index in range(ctx.outputs)])
        named = {name.removesuffix("_"): value for name, value in attributes.items() if value is not None}
        node = Node(0, op_type, domain, op_type, known.version, inputs, outputs, named)
        made = _compute(node, given, ctx.memo)
        return tuple([_of_type(np.asarray(value), index, known, args) for index, value in enumerate(made)])

    def wide(array: Array) -> Array:
        """The input; integers as float64 if results are float32: onnx.reference computes in the inputs' type."""
        return array.astype(np.float64) if narrows and array.dtype.kind in "iu" else array

    narrows = domain == ML and any(formal.types == _SINGLE for formal in known.outputs)
    kernel.__doc__ = "Computed by onnx.reference, the standard's own code, in steps of the inputs' types."
    return kernel


def standard_signature(domain: str, op_type: str, known: Schema) -> inspect.Signature:
    """The inputs and attributes that onnx.defs states, as the signature of a kernel."""
    found = [inspect.Parameter("ctx", inspect.Parameter.KEYWORD_ONLY)]
    taken = {formal.name for formal in known.inputs}
    for name, (kind, default) in stated_attributes(domain, op_type, known.version).items():
        own = f"{name}_" if name in taken else name
        none = inspect.Parameter.empty if default is ... else default
        found.append(inspect.Parameter(own, inspect.Parameter.KEYWORD_ONLY, default=none, annotation=kind))
    places = []
    for formal in known.inputs:
        several, optional = formal.option == "Variadic", formal.option == "Optional"
        how = inspect.Parameter.VAR_POSITIONAL if several else inspect.Parameter.POSITIONAL_OR_KEYWORD
        none = None if optional else inspect.Parameter.empty
        places.append(inspect.Parameter(formal.name, how, default=none, annotation=Array))
    return inspect.Signature([*places, *found])


def _check(op_type: str, args: Sequence[Array | None], attributes: Mapping[str, Any], ctx: Context) -> None:
    """Refuse nodes that onnx.reference would misinterpret, and claim a result that may be large."""
    seed = attributes.get("seed")
    if seed is not None and not np.isfinite(seed):
        raise bad_attribute("seed", "a finite number", seed)
    graph = next((name for name, value in attributes.items() if isinstance(value, Model)), None)
    if graph is not None:
        raise refuse(f"{graph} is a graph", graph, "a node without one, as onnx.reference gets it alone", "a graph")
    wrong, name, how = _WRONG.get(op_type, (None, "", ""))
    if wrong is not None and wrong(attributes, args):
        raise refuse(
            f"onnx.reference {how}",
            name,
            "a different form of the operator",
            str(attributes.get(name))[:60],
            code="QR204",
        )
    if op_type in _SIZES:
        ctx.claim(_SIZES[op_type](args, attributes), np.dtype(np.float64).itemsize)


def _compute(node: Node, feeds: Mapping[str, Array], memo: Memo) -> list[Any]:
    """Runs a node in onnx.reference. Raises OperatorError with its words if it refuses or fails."""
    from qrun.child.reference import ReferenceSession
    from qrun.ir.infer import single_node_model

    try:
        session = memo.once("onnx.reference", lambda: ReferenceSession(single_node_model(node)))
        fed = {name: array.view() for name, array in feeds.items()}
        for view in fed.values():
            view.flags.writeable = False  # some kernels of onnx.reference compute in place
        return session.run(fed, node.outputs)[0]
    except MemoryError:
        raise
    except Exception as error:
        cause = (isinstance(error, TypeError) and error.__cause__) or error
        got = f"{type(cause).__name__}: {cause}"[:300]
        raise refuse("onnx.reference cannot compute this node", got=got, code="QR210") from None


def _of_type(value: Array, index: int, known: Schema, args: Sequence[Array | None]) -> Array:
    """A result in the type that onnx.defs states; floats are rounded to it. OperatorError for other mismatches."""
    formal = known.outputs[min(index, len(known.outputs) - 1)]
    bound = [
        array.dtype
        for input, array in zip(known.inputs, args, strict=False)
        if array is not None and input.variable == formal.variable
    ]
    allowed = frozenset(bound[:1]) or formal.types
    if allowed is None or value.dtype in allowed:
        return value if value.flags.writeable else value.copy()
    stated = next(iter(allowed))
    if len(allowed) > 1 or value.dtype.kind != "f" or stated.kind != "f":
        names = ", ".join(sorted(map(type_name, allowed)))
        raise refuse(
            f"onnx.reference makes {formal.name} of a wrong type", "", names, type_name(value.dtype), code="QR210"
        )
    with np.errstate(all="ignore"):
        return value.astype(stated)
