"""Declares conformance rules: generators over a Model, and perhaps a run of it, that yield Findings. Also formats
numbers, counts and places for findings, and converts errors to findings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from qrun.declare import InNotebook
from qrun.declare.frozen import frozen, keys
from qrun.declare.registry import Registry
from qrun.errors import QrunError
from qrun.ir import Array
from qrun.ops import op_names, quantized_operators

if TYPE_CHECKING:
    from qrun.checking.rules._scope import Shape
    from qrun.ir import Array, Model, Node
    from qrun.ops import Granularity
    from qrun.running.session import RunResult


Level = Literal["error", "warning", "note"]
LEVELS: tuple[Level, ...] = get_args(Level)
Operators = tuple[str, ...] | Callable[[], tuple[str, ...]]


@frozen
class Finding(InNotebook):
    """One finding of a rule.

    rule, name, level: the rule's id, name and level, e.g. QR301, scale-shape, error.
    message:  one line with the facts in it, e.g. "w_scale has shape [3], expected scalar or [16]".
    node:     the node's label; index: its place, or None; op: operator with domain and version.
    tensor:   the tensor's name and which input or output it is.
    cause:    a key: findings with the same cause are merged into the first one; "" for a finding on its own.
    others:   the labels of other nodes with the same defect, which the message counts.
    """

    KEYS = keys("rule name level message node index op tensor expected got why fix")

    message: str
    node: str = ""
    index: int | None = None
    op: str = ""
    tensor: str = ""
    expected: str = ""
    got: str = ""
    why: str = ""
    fix: str = ""
    rule: str = ""
    name: str = ""
    level: Level = "error"
    cause: str = ""
    others: tuple[str, ...] = ()

    def __repr__(self) -> str:
        place = f"{self.numbered}: " if self.node else ""
        return f"<qrun.Finding {self.rule} {self.name} ({self.level}) {place}{self.message}>"

    @property
    def numbered(self) -> str:
        """``node 3 conv``; ``node conv`` if the loader refused it before nodes had places; "" without a node."""
        if not self.node:
            return ""
        return f"node {self.node}" if self.index is None else f"node {self.index} {self.node}"


@frozen
class Rule:
    """A declared rule.

    runs:      does it take a RunResult?
    fed:       does it take the inputs of a run? These must be a user's, because random inputs prove nothing.
    needs_run: does it need a result or inputs to find anything?
    infers:    does it take the shapes that ONNX infers for node outputs?

    fix: the usual fix, for findings that name none of their own.
    concerns: the operators that the rule is about, or a function that lists them; () for all.
    stops:   does a run that meets the defect end with an error of the same code, whatever the level?
    replaces: rules that say less about the same defect: this rule's finding at a node removes theirs.
    every:   does a finding count only if all sets of inputs show it?
    follows: is a finding dropped if an earlier node has one from which it may follow: one about values or scales, or,
             for inferred shapes, an error?
    """

    id: str
    name: str
    level: Level
    since: str
    spec: str
    function: Callable[..., Iterator[Finding]]
    runs: bool
    fed: bool
    needs_run: bool
    infers: bool
    fix: str = ""
    concerns: Operators = ()
    stops: bool = False
    replaces: tuple[str, ...] = ()
    every: bool = False
    follows: bool = False

    @property
    def applies(self) -> tuple[str, ...]:
        """The operators that the rule is about; () for all."""
        return self.concerns() if callable(self.concerns) else self.concerns

    @property
    def doc(self) -> str:
        return inspect.cleandoc(self.function.__doc__ or "")

    @property
    def summary(self) -> str:
        return " ".join(self.doc.split("\n\n")[0].split())

    @property
    def sections(self) -> dict[str, str]:
        """The text under each fixed heading: ``Why is this bad?``, ``Bad``, ``Good``."""
        found: dict[str, list[str]] = {}
        heading = ""
        for line in self.doc.splitlines():
            if line in HEADINGS:
                heading = line
            elif heading:
                found.setdefault(heading, []).append(line)
        texts = {heading: inspect.cleandoc("\n".join(["", *lines])).strip() for heading, lines in found.items()}
        return {h: f"{MODEL}\n{text}" if text.startswith("main ") else text for h, text in texts.items()}

    def find(
        self,
        model: Model,
        result: RunResult | None,
        feeds: Mapping[str, Array] | None = None,
        inferred: Callable[[], Mapping[str, Shape]] | None = None,
    ) -> Iterator[Finding]:
        if self.needs_run and ((self.runs and result is None) or (self.fed and feeds is None)):
            return
        if self.infers and inferred is None:
            return
        more: list[Any] = [*([result] if self.runs else ()), *([feeds] if self.fed else ())]
        if self.infers and inferred is not None:
            more.append(inferred())
        yield from self.fill_in(model, self.function(model, *more))

    def fill_in(self, model: Model, found: Iterable[Finding]) -> Iterator[Finding]:
        """Yield the findings with the rule's code, name, level and fix filled in."""
        for finding in found:
            yield replace(
                finding,
                rule=self.id,
                name=self.name,
                level=self.level,
                why=model.fill_in(finding.why),
                fix=model.fill_in(finding.fix or self.fix),
            )


def operators(*forms: Granularity) -> Callable[[], tuple[str, ...]]:
    """A function that lists the operators with scales or zero points (of these granularities), as users write them."""

    def listed() -> tuple[str, ...]:

        return op_names(quantized_operators(*forms))

    return listed


RULES: Registry[str, Rule] = Registry("qrun.checking.rules")
HEADINGS = ("Why is this bad?", "Bad", "Good")
MODEL = '<ir_version: 8, opset_import: ["" : 13]>'
"""The header of an example's model that has no header of its own."""
PAGES = {
    "IR": "https://onnx.ai/onnx/repo-docs/IR.html",
    "operators": "https://onnx.ai/onnx/operators/index.html",
    "com.microsoft": "https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md",
    "ort-quantization": "https://onnxruntime.ai/docs/performance/model-optimizations/quantization.html",
}


def rule(
    id: str, level: Level, *, spec: str, since: str = "0.1", applies: Operators = (), **more: Any
) -> Callable[[Callable[..., Any]], Rule]:
    """Declare a rule: a function of the model and of the parameters that it names: ``result``, ``feeds`` or both, or
    ``inferred``. The rule takes the function's name.

    The docstring has a summary, ``Why is this bad?``, ``Bad`` and ``Good``; the last two hold models in ONNX text form,
    of opset 13 if they have no header. spec: the specification: an address, one of PAGES, or an operator of ai.onnx.
    since: the first version of qrun that has the rule. applies: the operators that it is about, as users write them
    (``com.microsoft::QGemm``), or a function that lists them. more: fix, stops, replaces, every, follows, see Rule.
    Raises ValueError if the id is declared twice.
    """

    def register(function: Callable[..., Iterator[Finding]]) -> Rule:
        if id in RULES.declared:
            raise ValueError(f"rule {id} is declared twice")
        names = function.__code__.co_varnames[: function.__code__.co_argcount]
        page, sign, part = spec.partition("#")
        operator = f"https://onnx.ai/onnx/operators/onnx__{page}.html"
        known = spec if "://" in spec else PAGES.get(page, operator) + sign + part
        name, runs, fed = function.__name__.replace("_", "-"), "result" in names, "feeds" in names
        needs_run = runs or (fed and not function.__defaults__)
        takes = runs, fed, needs_run, "inferred" in names
        made = Rule(id, name, level, since, known, function, *takes, concerns=applies, **more)
        RULES.declared[id] = made
        return made

    return register


def at(node: Node) -> dict[str, Any]:
    """The Finding fields that locate a node: ``Finding("...", **at(node))``."""
    return {"node": node.label, "index": node.index, "op": f"{node.op}-{node.version}"}


TOLERANCE = 1e-5
_STEPS = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float8_e8m0fnu": 1.0}


def tolerance(*scales: Array | None) -> float:
    """The relative difference of scales to ignore: 1e-5, or one rounding to the coarsest type of these scales."""
    return max([TOLERANCE, *(_STEPS.get(str(scale.dtype), 0.0) for scale in scales if scale is not None)])


def digits(value: float, other: float) -> str:
    """Format a number with six digits, or nine if six would read like the other number."""
    return f"{value:.6g}" if f"{value:.6g}" != f"{other:.6g}" else f"{value:.9g}"


def several(count: int, noun: str) -> str:
    """A count with its noun: ``1 node``, ``3 nodes``."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def first_of(bad: Array) -> tuple[tuple[int, ...], str]:
    """The index of the first true element, as a tuple and as text: ``[0,3]``, "" for a scalar."""
    index = tuple(int(i) for i in np.argwhere(bad)[0])
    return index, f"[{','.join(map(str, index))}]" if index else ""


def join_names(names: Sequence[str], most: int = 3) -> str:
    """Join names, at most `most` of them: ``a, b, c and 4 more``."""
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")


_NODE = re.compile(r"node (?:(\d+) (?=.* \(.+-\d+\)$))?(.*) \(([^()]+)\)", re.DOTALL)
"""Matches a node in an error's location: with its index if a kernel refused it, without if the loader did."""


def as_finding(error: QrunError) -> Finding:
    """Convert an error of the loader, a kernel or another runtime to a finding with the same code."""
    facts = dict(error.facts)
    expected = facts.pop("expected", "")
    got = facts.pop("got", "")
    others = "; ".join(f"{label} {value}".strip() for label, value in facts.items())
    node = next((m for part in error.where if (m := _NODE.fullmatch(part))), None)
    tensor = next((part.removeprefix("tensor ") for part in error.where if part.startswith("tensor ")), "")
    found = Finding(
        error.message,
        tensor=tensor,
        expected=expected,
        got="; ".join(part for part in (got, others) if part),
        why=error.why,
        fix="; or ".join(error.fixes),
        rule=error.code,
        name=error.name,
        level="error",
    )
    return replace(found, index=int(node[1]) if node[1] else None, node=node[2], op=node[3]) if node else found
