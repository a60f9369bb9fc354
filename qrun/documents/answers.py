"""Records of JSON documents: those that several reports, or a report and its reader, share, and those of ``qrun
inspect``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

from qrun.declare.frozen import frozen, keys
from qrun.documents.record import optional_field, unwritten
from qrun.ir import Node
from qrun.ir.types import shape_text
from qrun.ops.lowering.kernel import NativeSection

SHORT = 12
"""The number of digits of a hash that are shown."""


@frozen
class TensorForm:
    """Name, element type and shape of a tensor."""

    name: str = ""
    type: str = ""
    shape: tuple[int, ...] = ()

    def __str__(self) -> str:
        """``uint8 [1,96,56,56]``."""
        return f"{self.type} {shape_text(self.shape)}"


@frozen
class RanNode:
    """A node that ran, or several of the model's that ran as one.

    index:   its place in the model, the # of every table.
    backend: what ran it; why: the reason why it did not run natively, "" if it did, or was not meant to.
    kernels: the parts of a native kernel, by channels.
    group:   the model's nodes that it replaces, if they are several; runs_as: the operator that ran in their place.
    """

    index: int
    name: str = ""
    domain: str = ""
    op: str = ""
    backend: str = ""
    why: str = ""
    kernels: tuple[NativeSection, ...] = ()
    group: tuple[int, ...] = optional_field(())
    runs_as: str = optional_field("")

    @property
    def label(self) -> str:
        """Its name; without one, ``MaxPool_4``, as everywhere."""
        return self.name or f"{self.op}_{self.index}"

    @property
    def qualified(self) -> str:
        """The operator with its domain unless that is ai.onnx."""
        return self.op if self.domain in ("", "ai.onnx") else f"{self.domain}::{self.op}"

    @property
    def kernel(self) -> str:
        """The kernel, without a reason why it is not native: ``native y32``, ``reference``."""
        return self.kernel_text if self.backend == "native" else self.backend

    @property
    def kernel_text(self) -> str:
        """The kernel: ``native y32``, ``native f64 (exact ties)``, ``reference: w is not constant``."""
        if self.backend != "native":
            return f"{self.backend}: {self.why}" if self.why else self.backend
        alike: dict[tuple[str, str], list[str]] = {}
        for k in self.kernels:
            places = alike.setdefault((k.form, k.why), [])
            places += [f"{k.first}..{k.first + k.channels - 1}"] if k.channels else []
        many = len(alike) > 1
        parts = ([form, *(places if many else []), f"({why})" if why else ""] for (form, why), places in alike.items())
        return " ".join(["native", ", ".join(" ".join(filter(None, part)) for part in parts)]).rstrip()


@frozen
class RunNode(RanNode):
    """A node of one run."""

    time_ms: float = 0.0
    outputs: tuple[TensorForm, ...] = ()


@frozen
class ProfileNode(RanNode):
    """A node of a profile, with statistics of its times.

    inserted:   onnxruntime inserted it; it corresponds to no node of the model.
                ran_by: the kernel, or onnxruntime's operator.
    sd_ms:      sample deviation; None for a single run.
    share:      of the sum of all nodes' medians.
    gmacs:      10^9 multiply-adds per second; bytes: of inputs (weights included) and outputs.
    roof_share: share of the machine's maximum, None if unknown; bound: the resource that bounds it.
    roof_ns:    the time that it would take at the maximum.
    step:       the model's nodes that ran as one step with this one, whose time covers all of them.
    arithmetic: "integer" if onnxruntime's node computes on quantized values, else "float"; "" for conversions.
    """

    inserted: bool = False
    ran_by: str = ""
    median_ms: float = 0.0
    min_ms: float | None = None
    p90_ms: float | None = None
    max_ms: float | None = None
    mean_ms: float | None = None
    sd_ms: float | None = None
    share: float = 0.0
    macs: int = 0
    gmacs: float | None = None
    bytes: int = 0
    roof_share: float | None = None
    bound: str | None = None
    samples_ms: tuple[float, ...] = ()
    outputs: tuple[TensorForm, ...] = ()
    step: tuple[int, ...] = optional_field(())
    arithmetic: str = optional_field("")
    median_ns: float = unwritten(0.0)
    roof_ns: float | None = unwritten(None)

    @property
    def output_text(self) -> str:
        return ", ".join(map(str, self.outputs))


@frozen
class InsideTimes:
    """A node of a graph inside another node: all its runs within one run of the model.

    path: ``If_3/then_branch/Conv_7``; time_ms: of all its runs; why: see RanNode.
    """

    path: str
    op: str
    runs: int
    time_ms: float
    backend: str
    why: str


@frozen
class OperatorTimes:
    """All nodes of one operator in a profile. ran_by: their kernels and how many ran on each."""

    op: str
    nodes: int
    median_ms: float
    share: float
    macs: int
    gmacs: float | None
    roof_share: float | None
    ran_by: Mapping[str, int]


@frozen
class GroupTimes:
    """Nodes of the model that two runtimes ran as a whole, named after the heaviest, with both medians (None: nothing
    ran).

    folded: neither runtime ran anything for it. ratio: `other_ms` / `median_ms`. events, other_events: places in the
    nodes of both.
    """

    nodes: tuple[int, ...]
    name: str
    op: str
    folded: bool
    median_ms: float | None
    other_ms: float | None
    ratio: float | None
    events: tuple[int, ...]
    other_events: tuple[int, ...]
    mine: tuple[ProfileNode, ...] = unwritten(())
    others: tuple[ProfileNode, ...] = unwritten(())
    heaviest: ProfileNode | None = unwritten(None)


@frozen
class PairedTimes:
    """The groups whose heaviest node has one operator: their number, their nodes, and both medians. ratio: see
    GroupTimes."""

    op: str
    groups: int
    nodes: int
    median_ms: float
    other_ms: float
    ratio: float | None
    mine: tuple[ProfileNode, ...] = unwritten(())
    others: tuple[ProfileNode, ...] = unwritten(())


@frozen
class TensorCodes:
    """Statistics of the values of a quantized tensor.

    index, node: of the node that makes it or reads it first. kind: activation, weight or bias.
    scale, zero_point: the smallest and the largest. limits: of the type; used: of the values.
    at_low, at_high: elements at the limits. bins: counts of the other elements in parts of the range;
    bin_codes: the number of codes in each part.
    """

    name: str
    index: int
    node: str = ""
    kind: str = "activation"
    type: str = ""
    shape: tuple[int, ...] = ()
    scale: tuple[float, float] | None = None
    zero_point: tuple[float, float] | None = None
    size: int = 0
    limits: tuple[float, float] | None = None
    used: tuple[float, float] | None = None
    at_low: int = 0
    at_high: int = 0
    bins: tuple[int, ...] = ()
    bin_codes: tuple[int, ...] = ()


@frozen
class ModelFile:
    """A model as a document names it; "" and None for unknown facts. bytes, form: only in pages."""

    path: str | None = None
    sha256: str | None = ""
    ir_version: int = 0
    producer: str = ""
    opsets: Mapping[str, int] = field(default_factory=dict)
    nodes: int | None = None
    bytes: int = optional_field(0)
    form: str = optional_field("")

    def __str__(self) -> str:
        return f"{self.path or 'a model without a path'}{f', sha256 {self.sha256[:SHORT]}' if self.sha256 else ''}"

    def is_the(self, other: ModelFile) -> bool:
        """Whether both have the same SHA-256; if one has none, whether both have the same path, or one has no path."""
        if self.sha256 and other.sha256:
            return self.sha256 == other.sha256
        return self.path == other.path or not self.path or not other.path


@frozen
class FedInput:
    """An input of a run, its source, and the hash of its bytes."""

    name: str
    type: str
    shape: tuple[int, ...]
    source: str = ""
    sha256: str = optional_field("")


@frozen
class NamedClass:
    """A class of a model. index: its place among the scores."""

    index: int
    name: str
    score: float


@frozen
class OutputClasses:
    """The best classes of each row of an output.

    kind: "probability" if the scores of every row are 0 or more and add up to 1, else "score". rows: of the first rows,
    the best class first; rows_left: the number of rows left out.
    """

    output: str
    kind: str
    rows: tuple[tuple[NamedClass, ...], ...]
    rows_left: int = optional_field(0)


@frozen
class Bin:
    """A bin of a histogram. For integers, low and high are its first and last integer; for floats, it is without high,
    unless it is the last."""

    low: float
    high: float
    count: int


@frozen
class CodeUse:
    """The codes of a quantized tensor. low, high: of its type; used: the number of codes that occur; at_low, at_high:
    the share of elements at these ends."""

    low: int
    high: int
    used: int
    at_low: float
    at_high: float


@frozen
class TensorHistogram:
    """A histogram of a tensor. min, max: of the finite elements, None if there are none. codes: for integers of up to
    16 bits."""

    name: str
    type: str
    shape: tuple[int, ...]
    min: float | None
    max: float | None
    nan: int
    inf: int
    bins: tuple[Bin, ...]
    codes: CodeUse | None = None


@frozen
class RunOutput:
    """An output of a run.

    min, max, mean, nan, inf, argmax: see `qrun.report.stats.Stats`; argmax_rows: of the first rows;
    argmax_rows_left: the number of rows left out. values: nested lists; None for large arrays. None also marks what a
    saved run does not contain.
    """

    name: str
    type: str
    shape: tuple[int, ...]
    min: float | None
    max: float | None
    mean: float | None
    nan: int | None
    inf: int | None
    argmax: tuple[int, ...] | None
    argmax_rows: tuple[int | None, ...] | None
    sha256: str
    values: Any = None
    argmax_rows_left: int = optional_field(0)

    @property
    def form(self) -> TensorForm:
        return TensorForm(self.name, self.type, self.shape)


@frozen
class Environment:
    """Versions, machine and runtime of a result."""

    python: str = ""
    numpy: str = ""
    onnx: str = ""
    machine: str = ""
    backend: str = ""
    runtime: str = ""
    arith: str = ""
    cpus: int = 0


@frozen
class Samples:
    """Times of whole runs, and their statistics."""

    median_ms: float = 0.0
    min_ms: float | None = None
    p90_ms: float | None = None
    max_ms: float | None = None
    mean_ms: float | None = None
    sd_ms: float | None = None
    samples_ms: tuple[float, ...] = ()


@frozen
class OperatorFacts:
    """One operator of a model: number of nodes, versions, input types, bytes of stored inputs, and support.

    support: ``yes``, or why not.
    """

    KEYS = keys("op nodes versions inputs weights_bytes=weights supported")

    op: str
    nodes: int
    versions: tuple[int, ...]
    inputs: tuple[str, ...]
    weights: int
    support: str

    @property
    def supported(self) -> bool:
        return self.support == "yes"


@frozen
class DeclaredValue:
    """An input or output as the model declares it; None for what it omits. optional: may an input be left out?"""

    name: str
    kind: str
    type: str | None
    shape: tuple[int | str | None, ...] | None
    optional: bool | None = optional_field(None)


@frozen
class NodeTensor:
    """A tensor that a node reads or makes; type and shape as far as they are known without a run."""

    name: str
    type: str | None
    shape: tuple[int | str | None, ...] | None

    def __str__(self) -> str:
        """``x uint8 [1,3,224,224]``."""
        return " ".join(filter(None, (self.name, self.type, shape_text(self.shape) if self.shape is not None else "")))


@frozen
class NodeFacts:
    """A node, its place in the graph, and its tensors; None for those that are left out.

    targets: what each target does with it, by the target's name: a consequence, "int", or "not int" if that is due to
    another node; None for nodes that the target does not judge, or that the file does not want in integers.
    """

    index: int
    name: str
    domain: str
    op: str
    version: int
    inputs: tuple[NodeTensor | None, ...]
    outputs: tuple[NodeTensor | None, ...]
    node: Node = unwritten(None)
    targets: Mapping[str, str | None] | None = optional_field(None)


@frozen
class StoredTensor:
    """A tensor in the file. min, max, nan, inf: see `qrun.report.stats.Stats`; values: nested lists, None for large
    tensors."""

    name: str
    type: str
    shape: tuple[int, ...]
    min: float | int | None
    max: float | int | None
    nan: int
    inf: int
    values: Any


@frozen
class Quantization:
    """The form, and the types and granularities of activations and weights, the most frequent first."""

    form: str
    activations: tuple[str, ...]
    weights: tuple[str, ...]


@frozen
class Inspection:
    """The JSON of ``qrun inspect``. macs: None if unknown, then `macs_unknown` has the reason; `assumed`: the sizes for
    which they are counted. obstacle: why qrun does not run the model."""

    model: Mapping[str, Any]
    parameters: int
    macs: int | None
    macs_unknown: str | None
    assumed: Mapping[str, int]
    quantization: Quantization
    runs: bool
    obstacle: str | None
    inputs: Sequence[DeclaredValue]
    outputs: Sequence[DeclaredValue]
    operators: Sequence[OperatorFacts]
    nodes: Sequence[NodeFacts] | None = optional_field(None)
    tensors: Sequence[StoredTensor] | None = optional_field(None)
