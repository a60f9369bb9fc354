"""Chooses the kernel of a step: a native one, built when the step first meets its inputs' shapes, or the reference."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cached_property
from inspect import Parameter
from typing import TYPE_CHECKING, Any, Literal, Protocol
from weakref import WeakValueDictionary

import numpy as np

from qrun.declare.frozen import frozen
from qrun.declare.memo import Memo
from qrun.declare.stored import Part, borrow, parts
from qrun.errors import MemoryLimitError
from qrun.ir import Array, Model, Node
from qrun.memory import Budget
from qrun.native.errors import Declined, Undecided
from qrun.ops import Arith, Context, Observation
from qrun.ops._context import Claim, Repeated
from qrun.ops.lowering.kernel import EveryType, LoweringContext, NativeKernel, OfShapes
from qrun.ops.lowering.narrow import narrow_kernel, narrow_type
from qrun.running.derived import SMALL, TensorLike, blank, derived_tensors
from qrun.running.events import TensorInfo
from qrun.running.plan import Plan, Step
from qrun.running.twins import Key, Twins

if TYPE_CHECKING:
    from qrun.native.machine.engine import Engine

VARIANTS = 32
"""How many kernels a node keeps, for different shapes; the oldest is dropped first. They share data that does not
depend on shapes."""

How = Literal["", "constant", "value"]
"""Whether an input of a node is the same in each run. ``value``: it follows from shapes; one kernel is cached per
value."""
Fixed = tuple[How, ...]


@frozen(slots=False)
class KernelBinding:
    """A native kernel ready to run, or the reason why the reference kernel runs (`why`, then `kernel` is None).

    claims: memory to claim before each run; observations: those that follow from the parameters, the same in each run.
    """

    kernel: NativeKernel | None
    why: str
    claims: tuple[Claim, ...] = ()
    observations: tuple[Observation, ...] = ()

    @cached_property
    def shaped(self) -> tuple[Array, ...]:
        """The kernel's results as arrays without memory; none if its stages do not tell their shapes."""
        stages = self.kernel.stages if self.kernel else ()
        found = {stage.output: stage.operation.result for stage in stages if isinstance(stage.output, int)}
        if found.keys() != set(range(len(found))):
            return ()
        return tuple([blank(found[index].shape, found[index].dtype) for index in range(len(found))])

    def wait(self) -> None:
        """Wait until the kernels are compiled."""
        for stage in self.kernel.stages if self.kernel else ():
            for call in stage.operation.tight:
                _ = call.kernel.address


class Bodies(Protocol):
    """Runs a graph inside a node as native programs (running/bodies.py). run: a `Run` of running/steps.py; events:
    NodeEvents of running/events.py."""

    def run(self, plan: Plan, given: Mapping[str, Array], run: Any) -> Sequence[Array] | None:
        """Run a body once natively; None if there is no program for it."""

    def repeat(self, plan: Plan, outside: Mapping[str, Array], run: Any, *how: Any) -> Repeated | None:
        """Run all turns of a Loop or Scan natively; None if there is no program for them."""

    def native(self, plan: Plan, given: Mapping[str, Array]) -> Any:
        """The native program of a body; None if there is none."""

    def ran(self, plan: Plan, given: Mapping[str, Array], events: Sequence[Any]) -> None:
        """Note a run of a body and the events of its nodes."""


class NativeKernels:
    """The native kernels of one model. Safe to use from several threads.

    literal: by node index, why the passes that build integer operators left the node in float.
    derived: names of the tensors whose values follow from shapes.
    bodies: the programs of a graph inside a node, None where it runs step by step; of_bodies: makes them from kernels.
    """

    def __init__(
        self,
        model: Model,
        engine: Engine,
        arith: Arith,
        literal: Mapping[int, str] | None = None,
        derived: frozenset[str] | None = None,
    ) -> None:
        self.model = model
        self.engine = engine
        self.arith: Arith = arith
        self.literal = literal or {}
        self.derived = derived_tensors(model) if derived is None else derived
        self.of_bodies: Callable[[NativeKernels], Bodies] | None = None
        self.bodies: Bodies | None = None
        self._fixed: dict[int, Fixed] = {}
        self._bound: dict[int, dict[Key, KernelBinding]] = {}
        self._memos: dict[int, Memo] = {}
        self._kinds, self._attributes = Memo(), Memo()
        self._numbers: dict[Hashable, int] = {}
        self._twins = Twins()
        self._inside: dict[tuple[int, str], NativeKernels] = {}
        self._alike: WeakValueDictionary[Hashable, KernelBinding] = WeakValueDictionary()
        self._lock = threading.Lock()

    def inside(self, step: Step, name: str) -> NativeKernels:
        """The native kernels of a graph inside a step. name: the attribute that holds the graph."""
        key = step.node.index, name
        with self._lock:
            found = self._inside.get(key)
            if found is None:
                found = self._inside[key] = NativeKernels(step.bodies[name].model, self.engine, self.arith)
                found.of_bodies, found.bodies = self.of_bodies, self.of_bodies(found) if self.of_bodies else None
            return found

    def find(self, step: Step, args: Sequence[Part | None]) -> KernelBinding | None:
        """The binding for inputs of these shapes and types, or None."""
        fixed = self._fixed.get(step.node.index)
        return None if fixed is None else self._bound[step.node.index].get(_key(args, fixed))

    def find_by_shapes(
        self, step: Step, infos: Mapping[str, TensorLike], shapes: Mapping[str, Array]
    ) -> KernelBinding | None:
        """The same as `find`, from types and shapes alone. shapes: the values that follow from shapes."""
        fixed = self._fixed.get(step.node.index)
        if fixed is None:
            return None
        names = zip(step.node.inputs, fixed, strict=True)
        args = [
            shapes.get(name) if f == "value" else infos[name] if name and f != "constant" else None for name, f in names
        ]
        return self._bound[step.node.index].get(_key(args, fixed))

    def bind(self, step: Step, args: Sequence[Part | None], budget: Budget) -> KernelBinding:
        """The kernel for these inputs, built if necessary. Raises what the reference kernel's checks raise."""
        index = step.node.index
        with self._lock:
            fixed = self._fixed.get(index)
            if fixed is None or not self.derived.isdisjoint(step.node.inputs):
                fixed = tuple(map(self._how_fixed, step.node.inputs, args))
            key, kept = _key(args, fixed), self._bound.setdefault(index, {})
            found = kept.get(key) if self._fixed.get(index) == fixed else None
            if found is None:
                found = self._resized_binding(index, key) or self._reuse(step, args, fixed, key, budget)
                while len(kept) >= VARIANTS:
                    del kept[next(iter(kept))]
                kept[key] = found
                self._fixed[index] = fixed
            return found

    def _how_fixed(self, name: str, array: Part | None) -> How:
        """How an input's value is fixed: "constant", "value" if small and derived from shapes, or ""."""
        if array is None or self.model.part(name) is not None:
            return "constant"
        return "value" if name in self.derived and array.size <= SMALL else ""

    def _reuse(self, step: Step, args: Sequence[Part | None], fixed: Fixed, key: Key, budget: Budget) -> KernelBinding:
        """The binding of an earlier node with the same attributes, constants and shapes, if there is one; else a new
        one. Where the lowering reads only the shapes of constants (`OfShapes`), their values do not count."""
        node = step.node
        of_shapes = isinstance(step.definition.lowering, OfShapes)
        given = [
            part if how != "constant" else name if a is None or not of_shapes else (a.shape, a.dtype)
            for name, how, part, a in zip(node.inputs, fixed, key, args, strict=True)
        ]
        kind = self._kinds.once(node.index, lambda: self._kind(step))
        if kind is None:
            return self._make(step, args, tuple(map(bool, fixed)), budget)
        alike = kind, tuple(given)
        found = self._alike.get(alike)
        if found is None:
            found = self._make(step, args, tuple(map(bool, fixed)), budget)
            if found.kernel is not None:
                self._alike[alike] = found
                if not self._twins.knows(node.index):
                    constants = [a if a is None else (a.shape, a.dtype) for a, f in zip(args, fixed, strict=True) if f]
                    own = kind, fixed, tuple(constants)
                    self._twins.learn(node.index, own, key, found.kernel, found.observations)
        return found

    def _resized_binding(self, index: int, key: Key) -> KernelBinding | None:
        """A binding made by giving this node's first kernel its leader's sizes (Twins); None without leader."""
        leader = self._twins.leader(index, key)
        found = None if leader is None else self._bound[leader].get(key)
        if found is None or found.kernel is None:
            return None
        kernel, observations = self._twins.with_leader_sizes(index, found.kernel)
        if kernel is None:
            return None
        made = KernelBinding(kernel, "", found.claims, observations)
        made.__dict__["shaped"] = found.shaped
        return made

    def _kind(self, step: Step) -> int | None:
        """A number that is the same for all nodes that differ only in their inputs; None for a node with an array
        attribute."""
        attributes = [  # numbers by their digits: 0.0 and -0.0 are equal
            (name, type(value), repr(value) if isinstance(value, float) else value)
            for name, value in step.node.attributes.items()
        ]
        stored = step.fixed if self.arith == "ort" else ()
        own = step.definition, step.node.version, tuple(attributes), tuple(map(bool, step.node.outputs)), stored
        try:
            return self._numbers.setdefault(own, len(self._numbers))
        except TypeError:
            return None

    def _make(self, step: Step, args: Sequence[Part | None], fixed: tuple[bool, ...], budget: Budget) -> KernelBinding:
        """Lower a node for these inputs: a native kernel, or the reason why there is none."""
        definition = step.definition
        if definition.lowering is None:
            reason = "the nodes inside have kernels of their own" if definition.graphs else "no native kernel"
            return KernelBinding(None, self._reason(step, self.literal.get(step.node.index, reason)))
        if any(a is not None and a.dtype.names for a in args):
            return KernelBinding(None, "a value that is not a tensor")
        missing = len(definition.inputs) - len(args)
        names = tuple(p.name for p in definition.inputs)
        wanted = tuple(bool(name) for name in step.node.outputs)
        ctx = Context(
            self.arith, step.node.version, len(wanted), wanted, budget=budget.aside(), claims=[], fixed=step.fixed
        )
        inputs, fixed = (*[borrow(part) for part in args], *(None,) * missing), (*fixed, *(True,) * missing)
        attributes = self._attributes.once(step.node.index, lambda: _attributes(step))
        types = [None if x is None else x.dtype for x in inputs]
        site = LoweringContext(self.engine, inputs, fixed, names, attributes, ctx,
                               lambda args, seen: definition(*args, **attributes, ctx=seen), self._memo_of(step.node),
                               results=definition.result_types(step.node.version, types, attributes))  # fmt: skip
        try:
            narrow = None if isinstance(definition.lowering, EveryType) else narrow_type(inputs)
            kernel = narrow_kernel(definition.lowering, site, narrow) if narrow else definition.lowering(site)
        except Declined as reason:
            return KernelBinding(None, self._reason(step, str(reason)))
        except MemoryLimitError:  # the reference kernel may need less
            return KernelBinding(None, "it needs more memory than is allowed")
        return KernelBinding(kernel, "", tuple(ctx.claims or ()), tuple(ctx.observations))

    def _reason(self, step: Step, reason: str) -> str:
        """Why the reference kernel runs: the reason given, unless the results are constants of every program."""
        made = {name for name in step.node.outputs if name}
        if not made or not made <= self.derived:
            return reason
        return "reads constants only" if made <= self._constant else "follows from shapes"

    @cached_property
    def constants(self) -> Mapping[str, TensorInfo]:
        """Type and shape of each of the model's constants."""
        return {name: TensorInfo(name, a.dtype, a.shape) for name, a in parts(self.model.constants).items()}

    @cached_property
    def _constant(self) -> frozenset[str]:
        """Names of the tensors computed from constants only."""
        return derived_tensors(self.model, shapes=False)

    def _memo_of(self, node: Node) -> Memo:
        """The memo that the node's kernels share; a new one for each kernel if an input follows from shapes."""
        if any(name in self.derived for name in node.inputs):
            return Memo()
        return self._memos.setdefault(node.index, Memo())


def _key(args: Sequence[TensorLike | None], fixed: Fixed) -> Key:
    """What a kernel depends on: shapes and types of the inputs, and the values that it takes as fixed."""
    return tuple(
        [
            None if f == "constant" or a is None else (a.shape, a.dtype, np.asarray(a).tobytes() if f else b"")
            for a, f in zip(args, fixed, strict=True)
        ]
    )


def _attributes(step: Step) -> Mapping[str, Any]:
    """The node's attributes, with defaults for missing ones."""
    parameters = step.definition.signature.parameters.values()
    defaults = {p.name: p.default for p in parameters if p.kind is Parameter.KEYWORD_ONLY and p.name != "ctx"}
    return {**defaults, **step.kwargs}


def is_undecided(error: Exception) -> bool:
    """Whether a native kernel raised this because it could not decide a result; the reference kernel can."""
    return isinstance(error, Undecided)
