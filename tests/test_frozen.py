"""What @frozen makes is what dataclass makes."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, asdict, dataclass, field, fields, is_dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from qrun.declare.frozen import frozen


@frozen
class Point:
    x: int
    y: float = 2.0
    names: list[str] = field(default_factory=list)

    def moved(self) -> Point:
        return replace(self, x=self.x + 1)


class Written:
    x: int
    y: float = 2.0
    names: list[str] = field(default_factory=list)
    far: bool = field(default=False, repr=False)

    def __post_init__(self) -> None:
        if self.x < 0:
            raise ValueError("x")


def both() -> list[Any]:
    kinds: list[Callable[[type], Any]] = [frozen, partial(dataclass, frozen=True, slots=True)]  # type: ignore[list-item]
    return [kind(type("Written", (), dict(vars(Written)))) for kind in kinds]


def told(kind: Any, *calls: tuple[tuple[Any, ...], dict[str, Any]]) -> list[object]:
    """What each call makes, as text, or the type of the error that it raises."""
    found: list[object] = []
    for args, kwargs in calls:
        try:
            found.append(repr(kind(*args, **kwargs)))
        except (TypeError, ValueError) as error:
            found.append(type(error))
    return found


def test_is_made_and_printed_as_a_dataclass() -> None:
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((), {}), ((1,), {}), ((1, 3.0), {}), ((), {"x": 1, "names": ["a"]}), ((1,), {"x": 2}), ((1,), {"z": 2}),
        ((1, 2.0, [], True), {}), ((1, 2.0, [], True, 5), {}), ((-1,), {}),
    ]  # fmt: skip
    mine, theirs = (told(kind, *calls) for kind in both())
    assert mine == theirs
    assert {TypeError, ValueError, "Written(x=1, y=2.0, names=[])"} < set(mine)


def test_has_fields_slots_and_a_doc() -> None:
    for kind in both():
        made = kind(1)
        assert [f.name for f in fields(made)] == ["x", "y", "names", "far"] == list(kind.__match_args__)
        assert is_dataclass(kind)
        assert asdict(made) == {"x": 1, "y": 2.0, "names": [], "far": False}
        assert replace(made, x=5).x == 5
        assert not hasattr(made, "__dict__")
        assert made.names is not kind(1).names
        for change in (partial(setattr, made, "x", 2), partial(setattr, made, "new", 2), partial(delattr, made, "x")):
            with pytest.raises((FrozenInstanceError, TypeError)):
                change()


def test_equal_and_hashed_by_values() -> None:
    for kind in both():
        assert kind(1, names=()) == kind(1, names=())
        assert hash(kind(1, names=())) == hash(kind(1, names=())) == hash((1, 2.0, (), False))
        assert kind(1) != kind(2)
        assert kind(1) != (1, 2.0, [], False)
        array = np.zeros(2)
        assert kind(1, array) == kind(1, array)
        with pytest.raises(TypeError):
            hash(kind(1))


def test_of_two_classes_none_is_equal() -> None:
    one, other = (frozen(type("One", (), {"__annotations__": {"x": "int"}})) for _ in range(2))
    assert one(1) == one(1)  # type: ignore[call-arg]
    assert one(1) != other(1)  # type: ignore[call-arg]


def test_copied_and_pickled() -> None:
    point = Point(3, names=["a"]).moved()
    for made in (copy.copy(point), copy.deepcopy(point), pickle.loads(pickle.dumps(point))):
        assert made == point == Point(4, 2.0, ["a"])
    assert copy.deepcopy(point).names is not point.names


def test_own_methods_stay() -> None:
    @frozen
    class Name:
        text: str

        def __repr__(self) -> str:
            return self.text

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Name)

        def __hash__(self) -> int:
            return 7

    assert (repr(Name("a")), Name("a") == Name("b"), hash(Name("a"))) == ("a", True, 7)
    assert Name.__doc__
