"""All turns of a loop as one operation: the program of one turn, and which tensors it reads and makes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from qrun.running.compiled import Compiled
from qrun.running.events import TensorInfo
from qrun.running.flat.repeats import LoopTurns
from qrun.running.flat.steps import Flattened
from qrun.running.plan import moving

if TYPE_CHECKING:
    from qrun.native.machine.engine import Engine
    from qrun.native.plan.repeated import Repeated

Compiling = Callable[[Flattened, Mapping[str, TensorInfo]], Compiled | None]


def repeated_turns(
    engine: Engine, compiling: Compiling, one: Flattened, turns: LoopTurns
) -> tuple[Repeated, tuple[str, ...]] | None:
    """The operation that makes all turns, and the names of the tensors that it reads; None where it cannot be made.

    compiling: compiles a flat plan for inputs of given types and shapes. one: the flat plan of one turn.
    """
    from qrun.native.errors import Declined
    from qrun.native.machine.operation import Operand
    from qrun.native.plan.repeated import Repeated, RepeatedForm
    from qrun.native.plan.turns import Turning

    infos, constants, fed = one.infos, one.plan.model.constants, tuple(turns.fed)
    outside = _outside(one, turns)
    if any(name not in infos for name in outside):
        return None
    compiled = compiling(one, {name: infos[name] for name in (*outside, *fed)})
    if compiled is None:
        return None
    told = [name for name in (turns.count, turns.going) if name]
    read = tuple(dict.fromkeys((*outside, *turns.states, *turns.elements, *told)))
    places = {name: place for place, name in enumerate(read)}
    around, states = turns.until + len(turns.states), fed[turns.until + turns.until :][: len(turns.states)]
    begin = fed[1 : around + 1] if turns.until else states
    scanned = fed[:1] if turns.until else fed[around:]
    form = RepeatedForm(
        read,
        {key: places[name] for key, name in zip(states, turns.states, strict=True)},
        {key: places[name] for key, name in zip(scanned, turns.elements, strict=False)},
        places.get(turns.count),
        places.get(turns.going),
        turns.most,
        tuple(states[place] for place in turns.wanted),
    )
    known = {name: constants[name] for name in (*turns.made, *turns.stacked) if name in constants}
    operands = [Operand(a.shape, a.dtype) for a in (infos.get(name) or constants[name] for name in read)]
    try:
        carried = list(zip(turns.made, begin, strict=True))
        turning = Turning(compiled.program, carried, scanned, turns.stacked, known, turns.until)
        return Repeated(engine, turning, form, operands), read
    except Declined:
        return None


def _outside(one: Flattened, turns: LoopTurns) -> tuple[str, ...]:
    """The tensors from around the loop that a turn reads or returns, without those that are the same in each run."""
    constants = one.plan.model.constants
    made = {name for step in one.plan.steps for name in step.node.outputs}
    read = (name for step in one.plan.steps for name in moving(one.plan, step))
    names = dict.fromkeys((*read, *one.flat.guards.values(), *turns.made, *turns.stacked))
    inside = made.union(turns.fed, one.shapes, constants)
    return tuple(name for name in names if name not in inside)
