"""Replaces calls of model-local functions by their bodies. Each error names the call or the function concerned."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from qrun.errors import ModelError
from qrun.ir.schema import schema

if TYPE_CHECKING:
    import onnx

MAX_INLINED = 2 * 10**5
_Key = tuple[str, str, str]
_Calls = Mapping[_Key | None, Sequence[tuple[_Key, "onnx.NodeProto"]]]
"""By function, None for the graph: its nodes, also those of graphs inside them, and the function each calls."""

_LIBRARY: dict[_Key, onnx.FunctionProto] = {}
"""Functions for operators that a model uses and does not define, added by `add_library`."""


def add_library(functions: Iterable[onnx.FunctionProto]) -> None:
    """Makes these functions the definitions of their operators in models that do not define them."""
    _LIBRARY.update({(function.domain, function.name, function.overload): function for function in functions})


def has_library() -> bool:
    """Whether functions were added: what a file means then depends on more than its bytes."""
    return bool(_LIBRARY)


def with_library(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model with the functions of the library that it calls and does not define; itself if it calls none."""
    defined = {(function.domain, function.name, function.overload) for function in proto.functions}
    left = [*all_nodes(proto.graph.node), *(node for f in proto.functions for node in all_nodes(f.node))]
    found: dict[_Key, onnx.FunctionProto] = {}
    while _LIBRARY and left:
        key = _key_of(left.pop())
        if key in _LIBRARY and key not in defined and key not in found:
            found[key] = _LIBRARY[key]
            left += all_nodes(found[key].node)
    if not found:
        return proto
    made = type(proto)()
    made.CopyFrom(proto)
    made.functions.extend(found.values())
    imported = {entry.domain for entry in made.opset_import}
    for domain in {key[0] for key in found} - imported:
        made.opset_import.add(domain=domain, version=1)
    return made


def inline_functions(proto: onnx.ModelProto, label: str) -> onnx.ModelProto:
    """The model without functions. label: its name in messages. Raises ModelError for functions that cannot be
    replaced."""
    if not proto.functions:
        return proto
    functions: dict[_Key, onnx.FunctionProto] = {}
    for function in proto.functions:
        key = function.domain, function.name, function.overload
        if key in functions:
            raise _error(f"there are two model-local functions {_name(key)}", (label,), fix="keep one of them")
        functions[key] = function
    calls: _Calls = {
        None: [(_key_of(n), n) for n in all_nodes(proto.graph.node)],
        **{key: [(_key_of(n), n) for n in all_nodes(f.node)] for key, f in functions.items()},
    }
    _check_calls(functions, calls, label)
    _refuse_explosion(calls, label)
    proto = _with_common_imports(proto, _reachable(calls), calls, label)
    import onnx.inliner

    try:
        made = onnx.inliner.inline_local_functions(proto)
    except Exception as error:
        what = "a model-local function cannot be inlined"
        facts = [("got", str(error).splitlines()[0][:200] if str(error) else type(error).__name__)]
        fixes = ["onnx.inliner.inline_local_functions(model) shows the same error"]
        raise ModelError("QR107", what, where=[label], facts=facts, fixes=fixes) from None
    return made


def all_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterable[onnx.NodeProto]:
    """These nodes, and the nodes of the graphs inside them."""
    for node in nodes:
        yield node
        for attribute in node.attribute:
            yield from all_nodes(attribute.g.node)
            for graph in attribute.graphs:
                yield from all_nodes(graph.node)


def _key_of(node: onnx.NodeProto) -> _Key:
    """The domain, name and overload that a node calls."""
    return node.domain, node.op_type, node.overload


def _name(key: _Key) -> str:
    """A function's name in words."""
    domain, name, overload = key
    return f"{domain}::{name}" + (f" ({overload})" if overload else "")


def _error(message: str, where: Sequence[str], expected: str = "", got: str = "", fix: str = "") -> ModelError:
    """The QR107 error of a local function."""
    facts = [(what, text) for what, text in (("expected", expected), ("got", got)) if text]
    return ModelError("QR107", message, where=where, facts=facts, fixes=[fix] if fix else [])


def _place(label: str, around: _Key | None, node: onnx.NodeProto) -> list[str]:
    """The place of a node, which may be in a function."""
    inside = [f"function {_name(around)}"] if around else []
    return [label, *inside, f"node {node.name or node.op_type} ({_name(_key_of(node))})"]


def _check_calls(functions: Mapping[_Key, onnx.FunctionProto], calls: _Calls, label: str) -> None:
    """Raise ModelError for calls with more inputs or outputs than their function; calls may omit the last."""
    for around, nodes in calls.items():
        for key, node in nodes:
            function = functions.get(key)
            if function is None:
                continue
            for what, given, known in (
                ("input", node.input, function.input),
                ("output", node.output, function.output),
            ):
                if len(given) > len(known):
                    raise _error(
                        f"a call has more {what}s than its model-local function",
                        [*_place(label, around, node), f"{what} {given[len(known)]}"],
                        f"at most {len(known)}: {', '.join(known) or 'none'}",
                        f"{len(given)}: {', '.join(given)}",
                    )


def _refuse_explosion(calls: _Calls, label: str) -> None:
    """Raise ModelError if functions are recursive, or if inlining them would make more than MAX_INLINED nodes."""
    from graphlib import CycleError, TopologicalSorter

    bodies = {key: [called for called, _ in nodes] for key, nodes in calls.items()}
    try:
        order = list(TopologicalSorter({key: bodies.keys() & set(body) for key, body in bodies.items()}).static_order())
    except CycleError as error:
        what = "model-local functions call each other recursively"
        facts = [("functions", ", ".join(name for _, name, _ in error.args[1][:12]))]
        why = "ONNX IR: functions must not be recursive."
        raise ModelError("QR107", what, where=[label], facts=facts, why=why) from None
    sizes: dict[_Key | None, int] = {}
    for key in order:
        sizes[key] = min(sum(sizes.get(called, 1) for called in bodies[key]), MAX_INLINED + 1)
    if sizes[None] > MAX_INLINED:
        most = f"at most {MAX_INLINED} once every call is replaced by its body"
        raise _error("model-local functions contain too many nodes", [label], most, "more")


def _reachable(calls: _Calls) -> set[_Key]:
    """The functions that the graph calls, directly or through others."""
    found: set[_Key] = set()
    left = [key for key, _ in calls[None]]
    while left:
        key = left.pop()
        if key in calls and key not in found:
            found.add(key)
            left += [called for called, _ in calls[key]]
    return found


def _with_common_imports(proto: onnx.ModelProto, reached: set[_Key], calls: _Calls, label: str) -> onnx.ModelProto:
    """The model, with the functions that run importing the same versions as it, as onnx inlines no others.

    A function may import other versions, if they mean the same operators. Domains that only functions import become
    imports of the model. Raises ModelError where versions mean different operators.
    """
    made = type(proto)()
    made.CopyFrom(proto)
    versions = {_domain(entry.domain): entry.version for entry in proto.opset_import}
    for function in made.functions:
        key = function.domain, function.name, function.overload
        for entry in function.opset_import if key in reached else ():
            domain = _domain(entry.domain)
            if domain not in versions:
                made.opset_import.add(domain=domain, version=entry.version)
            version = versions.setdefault(domain, entry.version)
            own = {node.op_type for called, node in calls[key] if _domain(called[0]) == domain and called not in calls}
            changed = [name for name in sorted(own) if not _same_operator(domain, name, entry.version, version)]
            if changed:
                raise _error(
                    f"a model-local function is written for different versions of {', '.join(changed)} than the model",
                    (label, f"function {_name(key)}"),
                    f"{domain or 'ai.onnx'} {version}, as the model",
                    f"{domain or 'ai.onnx'} {entry.version}",
                )
            entry.version = version
    return made


def _domain(name: str) -> str:
    """The domain, "" for ai.onnx."""
    return "" if name == "ai.onnx" else name


def _same_operator(domain: str, op_type: str, one: int, other: int) -> bool:
    """Whether both versions of a domain select the same version of an operator; true for an operator that ONNX does not
    define, as it has only one version."""
    first, second = schema(domain, op_type, one), schema(domain, op_type, other)
    return (first and first.version) == (second and second.version)
