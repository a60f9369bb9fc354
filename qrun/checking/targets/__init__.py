"""Says what a runtime or device does with each node of a quantized model, from rules in JSON files.

    names()                       the targets that qrun knows, and those of installed packages (entry points)
    find("tensorrt")              a target by its name or by the path of a file; load_target(path) for files only
    target.verdict(model)         a TargetVerdict: .worst, .reasons, .integers, .not_judged, .proof, .broken, .judged

`verdict.worst` is one of CONSEQUENCES, from int to refused. Each of `verdict.reasons` is a cause with its `rule`
(`cause`, `why`, `fix`, `says`, `source`, `proof`), `consequence`, `count`, `operators` (counts by name), `nodes`,
`index` of the first, and `seen` (what broke the rule at each node, such as "zero point 81"). `verdict.integers` has an
`op`, `nodes`, `integer` (now) and `fixed` (once all that can be fixed is fixed) for each operator. `verdict.judged` has
the NodeVerdict of every node. `target` has `name`, `version`, `on`, `verified`, and `options`.

A file (its JSON Schema: qrun/schemas/target-1.0.json) has the `name` of the target, the machines that it is `on`, the
`versions` that the rules are of (the last is judged), how they are proved (`proof`, and `verified`: whether the target
was run), what is `not_judged`, the user's `options` with their defaults, and the rules.

Each rule names operators (`excepted`: all but these, and but QuantizeLinear and DequantizeLinear) and a condition on
their nodes, `require`; `when` restricts it to nodes for which another one holds. `otherwise` is the consequence for
nodes that fail it:

    note     worth knowing                  weight-only  computes in float with decompressed weights
    slow     in integers, but slower        float        computes in float
    cpu      leaves it to the CPU           refused      does not load the model
    crash    loads the model and fails      wrong        computes other numbers than the file says, without an error

`@NAME` means the operators under `sets`. `cause` says what is wrong, as a clause; `why` is the target's reason; `fix`
what to change, in the words of quantizers; `says` the target's own message. With `chosen`, the model's author left the
node in float. `fixable` is false if no change brings the node into integers. `always` also reports nodes in float that
the file does not want in integers. With `in_integers`, the rule concerns only nodes that no other rule keeps from
integers. `since` and `until` are the first and the
last of the versions that have the rule; null means the first, or the last, of all. `source` says where a rule is from;
`proof` how it is known: source, docs, threads (public reports), oracle (observed behaviour of the target).

A condition is one of

    {"all": [..]} {"any": [..]} {"not": c} {"use": NAME}      NAME is defined under `define`
    {"port": P, FACT: TEST, ..}      facts of a tensor at the node; an omitted input passes
    {"attr": A, "default": d, TEST}  an attribute; {"attr": A, "present": true}
    {"opset": TEST}                  the model's version of ai.onnx; {"domain": TEST}: the node's domain
    {"inputs": TEST} {"outputs": TEST}  their number
    {"option": NAME, TEST}           a user's option
    {"same": FACT, "ports": [P, ..]} the fact is the same at all ports; "parameters" are type, scale and zero point
    {"log2": {P: k, ..}, "min": a, "max": b, "tol": t}        the sum of k log2(scale of P) is from a to b
    {"hook": NAME}                   a function of `_hooks`

What a file leaves open breaks no rule. A port is the number of an input; x, w or b (data, weights, bias: inputs 0, 1,
2, and the same operands of integer operators such as QLinearConv); inputs (all that represent real numbers); data (the
inputs among these that are not stored); y (output 0); outputs; q (the codes of a QuantizeLinear or DequantizeLinear).
Every tensor has the facts given, quantized, type, real (the type outside the codes), rank, dim (all sizes), batch,
channels, last (sizes), size, static, readers (their number). An input also has const, stored, prev (the operator before
it, also across QuantizeLinear). An output also has q_readers, graph_output, next (the operator of the only reader, if
that has one reader too). A quantized tensor also has declared (its type in the file; `type` is the one that the target
gives it), scale, scale_type, scale_stored, scalar (no axes), zero, zero_given, per (tensor, channel or block), axis,
axis_given, axis_back (from the end: 1 is the last), block, domain, spread (the target adds its
QuantizeLinear, with the parameters of a dequantized input). A test is a value, a list of values, or some of min,
max, not, multiple, pow2, near (value and tolerance). `prepare` says how the target changes the graph first
(`Preparation`).

May be imported by the rules and everything above them. Knows operators as the files name them, and no runtime.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from qrun.checking.targets._file import read_file, read_target
from qrun.checking.targets._target import (
    CONSEQUENCES,
    DeployTarget,
    IntegerCount,
    Judged,
    NodeVerdict,
    TargetReason,
    TargetRule,
    TargetVerdict,
)
from qrun.declare.frozen import frozen, keys, replace
from qrun.errors import CallError, suggest
from qrun.ir import Model, once_per_model

__all__ = ["CONSEQUENCES", "Count", "DeployTarget", "InFloat", "IntegerCount", "Integers", "Judged", "NodeVerdict"]
__all__ += ["TargetReason", "TargetRule", "TargetVerdict", "find", "integers", "load_target", "names", "target"]


@frozen
class InFloat:
    """A rule that keeps nodes in float, and these nodes."""

    KEYS = keys("id=rule.id cause=rule.cause fix=rule.fix nodes")

    rule: TargetRule
    judged: tuple[Judged, ...]

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes' names."""
        return tuple(judged.scope.path + judged.node.label for judged in self.judged)


@frozen
class Count:
    """The number of nodes of an operator that should run in integers, and the number that do (`integer`)."""

    op: str
    nodes: int
    integer: int


@frozen
class Integers:
    """Which nodes of a quantized model a target computes in integers, by operator, and why others stay in float.

    runtime: the target's name and version. on: the machines that it runs on.
    """

    KEYS = keys("target runtime on operators in_float=causes")

    target: str
    runtime: str
    on: str
    judged: tuple[Judged, ...]

    @property
    def operators(self) -> tuple[Count, ...]:
        """For each operator, how many nodes there are and how many run in integers."""
        nodes = Counter(j.node.op for j in self.judged)
        integer = Counter(j.node.op for j in self.judged if j.integer)
        return tuple(Count(op, count, integer[op]) for op, count in nodes.most_common())

    @property
    def causes(self) -> tuple[InFloat, ...]:
        """The causes, in the order of their first nodes; rules with the same `cause` text are one cause."""
        found: dict[str, tuple[TargetRule, list[Judged]]] = {}
        for judged in self.judged:
            if judged.rule is not None:
                found.setdefault(judged.rule.cause, (judged.rule, []))[1].append(judged)
        return tuple(InFloat(rule, tuple(of)) for rule, of in found.values())

    def count(self, op_type: str) -> int:
        """The number of nodes of an operator."""
        return sum(judged.node.op_type == op_type for judged in self.judged)

    def __str__(self) -> str:
        return ", ".join(f"{each.integer} of {each.nodes} {each.op}" for each in self.operators)


@once_per_model
def integers(model: Model) -> Integers | None:
    """The nodes that onnxruntime computes in integers on x86 CPUs; None if the model has no quantized activations."""
    known = target("onnxruntime-cpu")
    judged = tuple(known.judge(model))
    return Integers(known.id, f"{known.name} {known.version}", known.on, judged) if judged else None


def names() -> tuple[str, ...]:
    """The names of the targets that `find` knows, of this package and of entry points. Loads none of them."""
    from qrun.checking.targets._installed import installed

    return tuple(dict.fromkeys([*_own(), *sorted(installed())]))


def find(name: str | Path, version: str = "", options: Mapping[str, Any] | None = None) -> DeployTarget:
    """A target by its name, such as "tensorrt" or "onnxruntime-cpu@1.24.4", or by the path of its file.

    version: one of the file's; "" for the newest. options: values for the file's options, such as {"htp_arch": 73}.

    Raises CallError QR005 for an unknown name, version or option, QR004 for a file that cannot be read, and QR017 for
    one that is no target.
    """
    found = _found(str(name), version)
    for option in options or {}:
        if option not in found.options:
            known = ", ".join(found.options) or "none"
            raise CallError("QR005", f"{found.id} has no option {option}", facts=[("known", known)])
    return replace(found, options={**found.options, **options}) if options else found


def _found(name: str, version: str) -> DeployTarget:
    """The target of `find`, with its own options."""
    name, _, asked = name.partition("@") if "@" in name and name.partition("@")[0] in names() else (name, "", "")
    version = version or asked
    if name in _own():
        return target(name, version)
    if Path(name).suffix == ".json" or Path(name).is_file():
        return load_target(name, version)
    from qrun.checking.targets._installed import installed, resource

    others = installed()
    if name in others:
        path = resource(others[name])
        return read_target(read_file(path), name, str(path), version)
    known = names()
    near = suggest(name, known)
    raise CallError(
        "QR005",
        f"no target is named {name}",
        facts=[("known", ", ".join(known))],
        why="a target is one of these names, or the path of a file that ends in .json",
        fixes=[f"--target {near}"] if near else (),
        calls=[f'find("{near}")'] if near else (),
    )


def load_target(path: str | Path, version: str = "") -> DeployTarget:
    """Load a target from a file. Raises CallError QR004 or QR017, as `find` does."""
    return read_target(read_file(Path(path)), Path(path).name.removesuffix(".json"), str(path), version)


@cache
def _own() -> tuple[str, ...]:
    """The targets of this package."""
    return tuple(sorted(path.stem for path in Path(__file__).parent.glob("*.json")))


@cache
def target(name: str, version: str = "") -> DeployTarget:
    """A target of this package, such as `onnxruntime-cpu`, with the rules of a version; "" for the newest."""
    return read_target(read_file(Path(__file__).with_name(f"{name}.json")), name, name, version)
