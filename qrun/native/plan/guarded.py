"""Items that a value of the run decides on: what they do is done if that value, one bool, is true."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from qrun.native.machine.engine import Engine
from qrun.native.plan.fusing import fused, made_by
from qrun.native.plan.items import Item, Key, PythonStep

Guards = Mapping[int, Key]
"""Of items by number that are guarded, the value that decides."""


def fused_apart(engine: Engine, items: Sequence[Item], wanted: Sequence[Key], guards: Guards) -> list[Item]:
    """The items as `fused` makes them, but that none does the work of items with another guard than its own."""
    if not guards:
        return fused(engine, items, wanted)
    made = list(items)
    for guard in dict.fromkeys((None, *guards.values())):
        own = [guards.get(number) == guard for number in range(len(items))]
        seen = [item if is_own else _opaque(item) for item, is_own in zip(items, own, strict=True)]
        read = (key for item, is_own in zip(items, own, strict=True) if not is_own for key in item.inputs)
        kept = tuple(dict.fromkeys((*wanted, *guards.values(), *read)))
        for number, item in enumerate(fused(engine, seen, kept)):
            if own[number]:
                made[number] = item
    return made


def _opaque(item: Item) -> PythonStep:
    """A step that reads and makes what the item does, and whose work nobody else does."""
    return PythonStep(item.inputs, tuple(made_by(item)))
