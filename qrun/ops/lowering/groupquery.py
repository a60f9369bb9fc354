"""The native lowering of GroupQueryAttention: decoder steps, and prompts whose sequences have the same length."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from qrun.declare.frozen import frozen
from qrun.ops._body import node
from qrun.ops._complete import ALWAYS
from qrun.ops._op import Array, Context, Shape
from qrun.ops.lowering.kernel import FLOAT, LoweringContext, NativeKernel, Stage, decline_error, staged_kernel

if TYPE_CHECKING:
    from qrun.native.kernels.copy import Copy
    from qrun.native.kernels.decoder import Heads

_QUERY, _PAST, _ENDS, _ANGLES, _BIAS = 0, 3, 5, (7, 8), 10
"""Numbers of inputs: the first of query, key and value; the first of the two pasts; the ends of the sequences; cos and
sin; attention_bias."""


@frozen
class GroupQuery:
    """The shapes and attributes of a node.

    groups: number of key (and of value) heads; each: query heads per key head; places: new places; size: elements of a
    head; total: places including those of the cache; past: the cache's shape, None without a cache.
    packed: whether the query holds keys and values too. scale: of the scores. causal: whether later places are hidden;
    window: how many last places are visible, 0 for all. bias: the shape of attention_bias, None for none.
    angles: the shape of cos_cache, None without rotary embedding; pairs: whether neighbours are rotated together.
    cap: the softcap, 0 for none. sink: for each head, one more score that counts in the sums of Softmax.
    """

    batch: int
    groups: int
    each: int
    places: int
    size: int
    total: int
    past: Shape | None
    packed: bool
    scale: float
    causal: bool
    window: int
    bias: Shape | None
    angles: Shape | None
    pairs: bool
    cap: float
    sink: Array | None

    @property
    def kept(self) -> int:
        """The places of the cache that a run keeps."""
        return self.total - self.places

    @property
    def ragged(self) -> bool:
        """Whether sequences may have different lengths: in a batch with a cache they may."""
        return self.batch > 1 and self.kept > 0

    @property
    def ends(self) -> tuple[int, int]:
        """The least and the greatest last place that a sequence may have, counted from 0."""
        return (self.places - 1 if self.ragged else self.total - 1), self.total - 1

    @property
    def room(self) -> int:
        """The rows of the present caches."""
        return max(self.total, self.past[2] if self.past else 0)

    @property
    def rows(self) -> tuple[int, ...]:
        """The axes of a group's queries before the head size: with one place, the heads are the rows of one matrix."""
        return (self.each,) if self.places == 1 else (self.each, self.places)

    def heads(self, part: int) -> Heads:
        """The layout of the heads of the query (0), key (1) or value (2)."""
        from qrun.native.kernels.decoder import Heads

        counts = (self.groups * self.each, self.groups, self.groups)
        shape = (self.batch, counts[part], self.places, self.size)
        return Heads.beside(shape, *((sum(counts[:part]), sum(counts)) if self.packed else (0, counts[part])))


def group_query_kernel(site: LoweringContext, form: GroupQuery) -> NativeKernel:
    """The kernel of a node whose shapes and attributes are checked. A run reads how many places each sequence has;
    without a cache, or with one sequence, it ends undecided if these are not `total`. Raises Declined if the numbers do
    not fit; the reference kernel then reports the error.
    """
    if 0 in (form.batch, form.places, form.size):
        raise decline_error("no elements")
    if not 0 <= form.kept <= (form.past[2] if form.past else 0):
        raise decline_error("its cache has fewer places")
    if form.ragged and form.bias:
        raise decline_error("attention_bias is given for sequences that may have different places")
    if form.angles and form.total > form.angles[0]:
        raise decline_error("there are places without angles")
    stages = [*_cache_stages(site, form), *_attention_stages(site, form), *_outputs(site, form)]
    return staged_kernel(site, stages, [stage.operation for stage in stages if not stage.operation.view], ALWAYS)


def _cache_stages(site: LoweringContext, form: GroupQuery) -> list[Stage]:
    """The stages that make the rotated ``query`` and ``key``, and the present caches, ``keys`` and ``values``."""
    from qrun.native.kernels.decoder import Heads, Present, RaggedPresent, Rotary

    engine, ends, tables = site.engine, site.inputs[_ENDS].shape, _ANGLES if form.angles else ()
    turned = []
    for part, name in enumerate(("query", "key")):
        heads = form.heads(part)
        shape = heads.shape if part else (form.batch, form.groups, *form.rows, form.size)
        position = 0 if form.ragged else form.kept
        turn = Rotary(engine, heads, ends, form.ends, form.angles, position, form.pairs, shape)
        turned.append(Stage(turn, (_QUERY + (0 if form.packed else part), _ENDS, *tables), name))
    past = form.past if form.kept else None
    made = []
    for part, name in enumerate(("keys", "values")):
        new = form.heads(2) if part else Heads.plain(form.heads(1).shape)
        source = ("key", _QUERY if form.packed else _QUERY + 2)[part]
        if form.ragged and past:
            ragged = RaggedPresent(engine, past, new, ends, form.ends, form.room)
            made.append(Stage(ragged, (_PAST + part, source, _ENDS), name))
            continue
        present = Present(engine, past, form.kept, new, form.room)
        made.append(Stage(present, (*((_PAST + part,) if past else ()), source), name))
    return [*turned, *made]


def _attention_stages(site: LoweringContext, form: GroupQuery) -> list[Stage]:
    """The stages that make ``mixed``: Softmax(capped(scale * query @ keys') + bias + mask) @ values."""
    from qrun.native.kernels.elementwise import Elementwise
    from qrun.native.kernels.fma_product import FloatMatmul

    engine = site.engine
    columns, rows = _matrices(site, form, turned=True), _matrices(site, form, turned=False)
    queries = (form.batch, form.groups, *form.rows, form.size)
    product = FloatMatmul(engine, queries, columns.result.shape)
    made = [Stage(columns, ("keys",), "columns"), Stage(product, ("query", "columns"), "scores")]
    name, scores = "scores", product.result
    for what, function, source in _score_steps(site, form):
        others = [] if source is None else [source]
        operands = [scores, *(stage.operation.result for stage in others)]
        step = Elementwise(engine, function, operands)
        made += [*others, Stage(step, (name, *(stage.output for stage in others)), what)]
        name = what
    mixed = FloatMatmul(engine, scores.shape, rows.result.shape)
    made += [*_shares(site, form, scores.shape, name), Stage(rows, ("values",), "rows")]
    return [*made, Stage(mixed, ("shares", "rows"), "mixed")]


def _shares(site: LoweringContext, form: GroupQuery, shape: Shape, name: str) -> list[Stage]:
    """The stages that make ``shares``: Softmax of these scores and each head's sink, whose own share is left out."""
    from qrun.native.kernels.copy import slice_copy
    from qrun.native.kernels.decoder import Constant
    from qrun.native.kernels.rearrange import Concat
    from qrun.native.kernels.softmax import SoftmaxF32

    engine = site.engine
    if form.sink is None:
        return [Stage(SoftmaxF32(engine, shape, form.total), (name,), "shares")]
    sinks = form.sink.reshape(form.groups, form.each, *(1,) * (len(shape) - 3))
    beside = Constant(engine, np.ascontiguousarray(np.broadcast_to(sinks, (*shape[:-1], 1))))
    joined = Concat(engine, [shape, beside.array.shape], -1, [None] * 2, x_types=[FLOAT] * 2, y_type=FLOAT)
    longer = joined.result.shape
    softmax = SoftmaxF32(engine, longer, longer[-1])
    kept = slice_copy(engine, longer, FLOAT, [0] * len(longer), [1] * len(longer), shape)
    return [
        Stage(beside, (), "sinks"),
        Stage(joined, (name, "sinks"), "scores and sinks"),
        Stage(softmax, ("scores and sinks",), "all shares"),
        Stage(kept, ("all shares",), "shares"),
    ]


def _matrices(site: LoweringContext, form: GroupQuery, turned: bool) -> Copy:
    """The copy of the filled rows of a present cache to one matrix per key head. turned: rows become columns."""
    from qrun.native.kernels.copy import Copy, Move
    from qrun.native.machine.operation import Operand

    lead, ones = (form.batch, form.groups), (1,) * (len(form.rows) - 1)
    matrix = (form.size, form.total) if turned else (form.total, form.size)
    places = (0, 1, -1, -2) if turned else (0, 1, -2, -1)
    counts = (*lead, form.total, form.size)
    moves = [Move(n, axis, 1, target, 1) for axis, (n, target) in enumerate(zip(counts, places, strict=True))]
    operands = Operand((*lead, form.room, form.size), FLOAT), Operand((*lead, *ones, *matrix), FLOAT)
    return Copy(site.engine, operands, ("plain", "plain"), moves, view=not turned and form.room == form.total)


def _score_steps(site: LoweringContext, form: GroupQuery) -> Iterator[tuple[str, str, Stage | None]]:
    """The steps from products to masked scores: the result's name, the function, and the stage of its other operand."""
    from qrun.native.kernels.copy import view
    from qrun.native.kernels.decoder import Constant, RaggedMask

    engine, ends = site.engine, site.inputs[_ENDS]
    mask = _mask(site, form)
    if form.scale != 1:
        yield "scaled", "mul", Stage(Constant(engine, np.asarray(form.scale, FLOAT)), (), "factor")
    if form.cap:
        cap = Constant(engine, np.asarray(form.cap, FLOAT))
        yield "divided", "div", Stage(cap, (), "cap")
        yield "bent", "tanh", None
        yield "capped", "mul", Stage(cap, (), "cap again")
    if form.bias is not None:
        batch, heads = form.bias[:2]
        groups = (form.groups, form.each) if heads > 1 else (1, 1)
        shape = (batch, *groups, *form.rows[1:], form.total)
        yield "biased", "add", Stage(view(engine, form.bias, shape, FLOAT), (_BIAS,), "bias")
    if form.ragged and ends is not None:
        shape = (form.batch, 1, 1, *form.rows[1:], form.total)
        sizes = (form.batch, form.places, form.total)
        hidden = RaggedMask(engine, ends.shape, form.ends, sizes, shape, form.causal, form.window)
        yield "masked", "add", Stage(hidden, (_ENDS,), "mask")
    elif mask is not None:
        yield "masked", "add", Stage(Constant(engine, mask), (), "mask")


def _mask(site: LoweringContext, form: GroupQuery) -> Array | None:
    """The mask [places, total] that hides later places, and those before the window; None if none are hidden."""
    if not form.window and (not form.causal or form.places == 1):
        return None
    site.afford(4 * form.places * form.total)
    own, keys = form.kept + np.arange(form.places)[:, None], np.arange(form.total)
    seen = keys <= own if form.causal else np.ones((form.places, form.total), bool)
    seen = seen & (keys > own - form.window) if form.window else seen
    return np.where(seen, np.float32(0), np.float32(-np.inf))


def _reference(op_type: str) -> Callable[[Array], Array]:
    """The reference kernel of an operator with one input."""
    return lambda x: np.asarray(node(op_type, [x], Context()))


def _outputs(site: LoweringContext, form: GroupQuery) -> list[Stage]:
    """The stages of the outputs: ``mixed`` with the heads of a place side by side, and the caches that are wanted."""
    from qrun.native.kernels.copy import Copy, Move, view
    from qrun.native.machine.operation import Operand

    counts = (form.batch, form.groups, form.each, form.places, form.size)
    shape = (form.batch, form.groups, *form.rows, form.size)
    y = (form.batch, form.places, form.groups * form.each * form.size)
    if form.places == 1:
        merged = view(site.engine, shape, y, FLOAT)
    else:
        places = ((0, 1), (2, form.each * form.size), (2, form.size), (1, 1), (2, 1))
        moves = [Move(n, axis, 1, *target) for axis, (n, target) in enumerate(zip(counts, places, strict=True))]
        merged = Copy(site.engine, (Operand(shape, FLOAT), Operand(y, FLOAT)), ("plain", "plain"), moves)
    cache = (form.batch, form.groups, form.room, form.size)
    whole = view(site.engine, cache, cache, FLOAT)
    presents = [
        Stage(whole, (name,), target) for target, name in ((1, "keys"), (2, "values")) if site.ctx.wants(target)
    ]
    return [Stage(merged, ("mixed",), 0), *presents]
