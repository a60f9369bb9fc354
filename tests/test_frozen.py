"""What @frozen makes is what dataclass makes."""

from __future__ import annotations

import copy
import pickle
import weakref
from collections.abc import Callable
from dataclasses import FrozenInstanceError, asdict, dataclass, field, fields, is_dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import pytest

from qrun.declare.frozen import __init__ as frozen_init
from qrun.declare.frozen import changeable, frozen
from qrun.declare.frozen import replace as replaced


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


@pytest.mark.parametrize("before", [0, 100])
def test_is_made_and_printed_as_a_dataclass(before: int) -> None:
    """Whether its class has made few objects, and so has no code of its own, or many."""
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((), {}), ((1,), {}), ((1, 3.0), {}), ((), {"x": 1, "names": ["a"]}), ((1,), {"x": 2}), ((1,), {"z": 2}),
        ((1, 2.0, [], True), {}), ((1, 2.0, [], True, 5), {}), ((-1,), {}),
    ]  # fmt: skip
    one, other = both()
    for _ in range(before):
        assert one(1) == one(1, 2.0, [])
    assert ("_values" in vars(one) and one.__init__ is not frozen_init) == (before > 0)
    theirs = told(other, *calls)
    for call, want in zip(calls, theirs, strict=True):
        kind = one if before else both()[0]
        assert told(kind, call) == [want]
    mine = told(one, *calls)
    assert mine == theirs
    assert {TypeError, ValueError, "Written(x=1, y=2.0, names=[])"} < set(mine)


def test_has_fields_slots_and_a_doc() -> None:
    for kind in both():
        made = kind(1)
        assert [f.name for f in fields(made)] == ["x", "y", "names", "far"] == list(kind.__match_args__)
        assert is_dataclass(kind)
        assert asdict(made) == {"x": 1, "y": 2.0, "names": [], "far": False}
        assert replace(made, x=5).x == 5
        if kind.__init__ is frozen_init:
            assert replaced(made, x=5, y=3.0) == replace(made, x=5, y=3.0)
            with pytest.raises(TypeError):
                replaced(made, z=5)
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


def test_a_class_without_slots_keeps_what_it_computes() -> None:
    @frozen(slots=False)
    class Word:
        text: str
        times: int = 2
        values: list[str] = field(default_factory=list)

        @cached_property
        def long(self) -> str:
            self.values.append(self.text)
            return self.text * self.times

    word = Word("ab", values=[])
    assert (word.long, word.long, word.values) == ("abab", "abab", ["ab"])
    assert vars(word).keys() == {"text", "times", "values", "long"}
    assert word == Word("ab", values=["ab"])
    assert Word("ab").values is not Word("ab").values
    with pytest.raises(FrozenInstanceError):
        word.times = 3  # type: ignore[misc]


def test_a_class_without_equality_is_its_objects_and_may_be_held_weakly() -> None:
    @frozen(eq=False, weak=True)
    class Held:
        value: Any

    held = Held(np.zeros(2))
    assert held != Held(held.value)
    assert {held: 1}[held] == 1
    assert weakref.ref(held)() is held
    assert not hasattr(held, "__dict__")


def test_a_changeable_class_is_equal_by_value_and_has_no_hash() -> None:
    mine, theirs = (
        kind(type("Written", (), dict(vars(Written)))) for kind in (changeable, partial(dataclass, slots=True))
    )
    for kind in (mine, theirs):
        made = kind(1, names=["a"])
        assert not hasattr(made, "__dict__")
        made.x = 5
        del made.y
        made.y = 3.0
        assert repr(made) == "Written(x=5, y=3.0, names=['a'])"
        assert made == kind(5, 3.0, ["a"]) == replace(kind(1, 3.0, ["a"]), x=5) != kind(1, 3.0, ["a"])
        with pytest.raises(AttributeError):
            made.new = 1
        with pytest.raises(TypeError, match="unhashable"):
            hash(made)


def test_a_changeable_class_without_equality_is_its_objects() -> None:
    @changeable(eq=False)
    class Held:
        value: int

    held = Held(1)
    assert held != Held(1)
    assert {held: 2}[held] == 2


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


def test_a_class_that_extends_one_makes_its_objects_itself() -> None:
    @changeable
    class Base:
        x: int
        y: int = 2

    class Extended(Base):
        def __init__(self, x: int) -> None:
            super().__init__(2 * x)
            self.z = x

    for _ in range(2):
        made = Extended(3)
        assert (made.x, made.y, made.z) == (6, 2, 3)
    assert Base(1, 5) == Base(1, 5) != Base(1)


def test_fields_of_a_base_come_first() -> None:
    def classes(kind: Any) -> tuple[Any, Any]:
        class Base:
            x: int
            names: tuple[str, ...] = ()

        made = kind(Base)

        class More(made):  # type: ignore[misc]
            y: int = 3
            names: tuple[str, ...] = ("a",)

        return made, kind(More)

    for base, more in map(classes, (frozen, partial(dataclass, frozen=True, slots=True))):
        for _ in range(50):
            one = more(1, y=5)
        assert [f.name for f in fields(more)] == ["x", "names", "y"] == list(more.__match_args__)
        assert [f.name for f in fields(base)] == ["x", "names"]
        assert asdict(one) == {"x": 1, "names": ("a",), "y": 5}
        assert one == replace(more(1), y=5) == copy.copy(one) != base(1, ("a",))
        assert hash(one) == hash((1, ("a",), 5))
        assert isinstance(one, base)
        assert not hasattr(one, "__dict__")
        assert base(1) == base(x=1, names=())
        with pytest.raises(TypeError):
            more()
