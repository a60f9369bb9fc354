"""A run beside a record: the first tensor that differs, by how much, as far as the recorded facts
tell, and why, where making the recorded bytes again shows it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np

from qrun.comparing.causes import CAUSES, UNKNOWN, Suspect, reason
from qrun.comparing.differences import Tolerance, integral
from qrun.comparing.records.change import Gap, TensorChange, judged
from qrun.comparing.records.entry import TIE, RecordedInput, RecordEntry, exact_values
from qrun.comparing.records.record import (
    Made,
    Record,
    Tensors,
    host,
    read_record,
    recorded_inputs,
    recorded_model,
    walk,
)
from qrun.comparing.settings import Setting, differing, lone
from qrun.comparing.sides import Unit, Values
from qrun.comparing.ties import tie_distance
from qrun.declare.frozen import frozen
from qrun.errors import CallError
from qrun.io.storable import digest
from qrun.ir import Model, Node
from qrun.ir.types import integer_range


@frozen
class RecordComparison:
    """All tensors in graph order, and the names of those that only the record or only the run has.

    recorded, now: labels of what made them. settings: in what versions, machines and threads differ.
    """

    folder: Path
    recorded: str
    now: str
    settings: tuple[Setting, ...]
    tolerance: Tolerance
    tensors: tuple[TensorChange, ...]
    only_recorded: tuple[str, ...] = ()
    only_now: tuple[str, ...] = ()

    @property
    def equal(self) -> bool:
        """Is every tensor known to be within the tolerance?"""
        return all(t.verdict in ("equal", "close") for t in self.tensors)

    @property
    def undecided(self) -> tuple[TensorChange, ...]:
        """The tensors of which the record cannot tell whether they are within the tolerance."""
        return tuple(t for t in self.tensors if t.verdict == "unknown")

    @property
    def first(self) -> TensorChange | None:
        """The first tensor that is known to differ by more than the tolerance;
        if none is, the first with another hash."""
        changed = [t for t in self.tensors if t.verdict != "equal"]
        return next((t for t in changed if t.verdict in ("differs", "form")), changed[0] if changed else None)


def compare_record(
    tensors: Tensors, model: Model, feeds: Values, folder: Path, tolerance: Tolerance, *, label: str = ""
) -> RecordComparison:
    """Compare a run with the record in `folder`.

    tensors, feeds, label: of the run, as `qrun.comparing.record.record` takes them.
    Raises CallError if `folder` is no record, is damaged, or was made with another model or other inputs; what
    `tensors` raises.
    """
    record = read_record(folder)
    _same_model(record, model)
    _same_inputs(record, feeds)
    now, wholes, proofs = _now(tensors, model, feeds, record)
    if now.keys().isdisjoint(record.entries):
        there, here = (", ".join(list(found)[:3]) or "none" for found in (record.entries, now))
        message = "the record and this run have no tensor in common"
        raise _other("QR005", message, [str(folder)], there, here, "record it again")
    settings = differing(record.made_by, {"runtime": label, **host()})
    changes = tuple(_changes(record, now, wholes, proofs, model, tolerance))
    names = lone(record.entries, now)
    return RecordComparison(folder, record.head.label, label, settings, tolerance, changes, *names)


def _now(
    tensors: Tensors, model: Model, feeds: Values, record: Record
) -> tuple[dict[str, RecordEntry], dict[str, str], dict[str, str]]:
    """The entries of a run; the node's output that each is of; and for tensors that differ though their inputs do not,
    what is proved about the reason."""
    now: dict[str, RecordEntry] = {}
    wholes: dict[str, str] = {}
    proofs: dict[str, str] = {}
    same = {*feeds, *model.constants, ""}
    for made in walk(tensors, model, feeds):
        wholes[made.name] = made.whole
        known, bare = record.entries.get(made.name), RecordEntry.bare(made.name, made.array, made.node)
        if known is not None and (known.sha256, known.type, known.shape) == (bare.sha256, bare.type, bare.shape):
            now[made.name] = known
            same.add(made.name)
            continue
        now[made.name] = made.entry()
        if known is not None and made.values is not None and same.issuperset(made.node.inputs):
            proofs[made.name] = proved(made, model, known.sha256)
    return now, wholes, proofs


def _changes(
    record: Record,
    now: Mapping[str, RecordEntry],
    wholes: Mapping[str, str],
    proofs: Mapping[str, str],
    model: Model,
    tolerance: Tolerance,
) -> Iterator[TensorChange]:
    """What became of each tensor that both have, in graph order."""
    equal = dict.fromkeys([*model.constants, *(v.name for v in (*model.inputs, *model.defaults))], True)
    done: dict[str, TensorChange] = {}
    for name, whole in wholes.items():
        node = model.producers[whole]
        if name in record.entries:
            inputs = tuple((read, equal.get(read)) for read in dict.fromkeys(node.inputs) if read)
            gap = _codes_gap(node, model, done)
            change = done[name] = judged(record.entries[name], now[name], tolerance, inputs, gap)
            equal[whole] = change.verdict == "equal" and equal.get(whole, True)
            proof = proofs.get(name, "")
            told = (proof, change.reading) if proof in ("", RECORD_EXACT) else (proof,)
            yield replace(change, reading="; ".join(filter(None, told)))


def _codes_gap(node: Node, model: Model, done: Mapping[str, TensorChange]) -> Gap | None:
    """How far the results of a DequantizeLinear may differ, from the difference of its codes and its least scale.

    None for other nodes, if the codes are equal, and if the scale is not known.
    """
    codes = done.get(node.inputs[0]) if node.op_type == "DequantizeLinear" and node.inputs else None
    scale = model.constants.get(node.inputs[1]) if codes is not None else None
    if codes is None or codes.verdict in ("equal", "form") or scale is None or not scale.size:
        return None
    return Gap(codes.elements, codes.step * float(np.abs(scale.astype(np.float64)).min()))


def _same_model(record: Record, model: Model) -> None:
    then, now = record.head.model, recorded_model(model)
    pairs = [("the model", then.sha256, now.sha256)]
    files, others = then.external or {}, now.external or {}
    pairs += [(name, files.get(name, "none"), others.get(name, "none")) for name in {**files, **others}]
    for what, recorded, got in pairs:
        if recorded != got:
            message = f"the record in {str(record.folder)!r} was made with another model"
            fix = "compare with the model that was recorded, or --record it again"
            raise _other("QR005", message, [model.label, what], f"sha256 {recorded}", f"sha256 {got}", fix)


def _same_inputs(record: Record, feeds: Values) -> None:
    then, now = ({i.name: i for i in side} for side in (record.head.inputs, recorded_inputs(feeds)))
    for name in {**then, **now}:
        recorded, got = (side.get(name, RecordedInput(name, "none", "none")) for side in (then, now))
        if recorded != got:
            message, where = f"input {name!r} is not the one that was recorded", [str(record.folder), f"input {name}"]
            there, here = (f"{side.form}, sha256 {side.sha256}" for side in (recorded, got))
            fix = "give the inputs that were recorded, or --record again"
            raise _other("QR003", message, where, there, here, fix)


def _other(code: str, message: str, where: Sequence[str], recorded: str, got: str, fix: str) -> CallError:
    """A record that is not of this run."""
    return CallError(code, message, where=where, facts=[("recorded", recorded), ("got", got)], fixes=[fix])


RECORD_EXACT = "the record is exact"
SUBSETS = 10
"""Near-ties of which all subsets are tried."""
HASHED = 1 << 29
"""Bytes to hash at most while trying subsets."""


def proved(made: Made, model: Model, sha256: str) -> str:
    """Which cause, or which rounding of near-ties, leads from the node's inputs to the recorded hash; "" if none does.

    made: a tensor whose hash is another one, though its node read the same values. If the record has the exact result,
    it is told what led to this tensor instead. Only for tensors of integers.
    """
    if made.values is None or not integral(made.array.dtype):
        return ""
    values = {name: v for name, v in zip(made.node.inputs, made.values, strict=True) if v is not None}
    suspect = Suspect(model, Unit(made.node, (made.node,)), made.name, values, made.array, made.array)
    exact = suspect.evaluate()
    if exact is not None:
        suspect = replace(suspect, mine=exact)
        if digest(exact) == sha256:
            found = reason(suspect)
            named = f"now: {found.cause}: {found.text}" if found.cause != UNKNOWN else _ties(made, sha256)
            return f"{RECORD_EXACT}; {named}" if named else RECORD_EXACT
        with np.errstate(all="ignore"):
            for known in sorted(CAUSES.values(), key=lambda c: c.rank):
                for tried in known.function(replace(suspect, theirs=None)):
                    if tried.array is not None and digest(tried.array) == sha256:
                        return f"the record has {known.name}: {tried.text}"
    return _ties(made, sha256)


def _ties(made: Made, sha256: str) -> str:
    """Tells that the recorded bytes follow if elements within 1e-5 LSB of a tie are rounded to the other side;
    "" if not."""
    array, exact = made.array, exact_values(made.array, made.node, made.values)
    if exact is None:
        return ""
    low, high = integer_range(array.dtype)
    flat, below = exact.reshape(-1), np.floor(exact.reshape(-1))
    now = array.reshape(-1).astype(np.float64)
    between = ((now == below) | (now == below + 1)) & (below >= low) & (below + 1 <= high)
    places = np.flatnonzero(between & (tie_distance(flat) <= TIE))
    other = 2 * below[places] + 1 - now[places]
    for chosen in _subsets(len(places), HASHED // max(array.nbytes, 1)):
        tried = array.reshape(-1).copy()
        tried[places[chosen]] = other[chosen].astype(np.int64).astype(array.dtype)
        if digest(tried.reshape(array.shape)) == sha256:
            return f"only near-ties: {len(chosen)} of {len(places)} elements within {TIE:g} LSB of one go to the other side"
    return ""


def _subsets(count: int, most: int) -> Iterator[list[int]]:
    """All of them first, then all smaller subsets, if there are at most `most`."""
    yield list(range(count))
    if count <= SUBSETS and 2**count <= most:
        for size in range(1, count):
            yield from map(list, combinations(range(count), size))
