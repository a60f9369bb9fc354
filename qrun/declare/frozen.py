"""Frozen dataclasses with slots that cost little to declare."""

from __future__ import annotations

from dataclasses import MISSING, FrozenInstanceError, dataclass, field, fields
from typing import Any, TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(cls: type[T]) -> type[T]:
    """What ``@dataclass(frozen=True, slots=True)`` makes, in a tenth of the time; ``replace``, ``fields``, ``asdict`` take it.

    dataclass writes and compiles seven methods for every class, which was a quarter of what starting qrun took. Here all
    classes share five of them, and the two that differ are written when the first object of a class is made.
    """
    cls.__doc__ = cls.__doc__ or cls.__name__  # without one, dataclass has inspect write the signature
    for method in (__init__, __repr__, __eq__, __hash__, __reduce__, __setattr__, __delattr__):
        if method.__name__ not in vars(cls):
            setattr(cls, method.__name__, method)
    return dataclass(init=False, repr=False, eq=False, slots=True)(cls)


def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
    """The first object of a class: write the class's own ``__init__`` and the tuple of its values, then call it."""
    made = type(self)
    known: dict[str, Any] = {}
    parameters, steps, values = [], [], []
    for f in fields(made):
        default = f.default if f.default_factory is MISSING else f.default_factory
        known[f"_{f.name}"] = default
        known[f"_set_{f.name}"] = getattr(made, f.name).__set__
        parameters.append(f.name if default is MISSING else f"{f.name}=_{f.name}")
        value = f.name if f.default_factory is MISSING else f"_{f.name}() if {f.name} is _{f.name} else {f.name}"
        steps.append(f" _set_{f.name}(self, {value})")
        values.append(f"self.{f.name},")
    if hasattr(made, "__post_init__"):
        steps.append(" self.__post_init__()")
    body = "\n".join(steps)
    exec(
        f"def __init__(self, {', '.join(parameters)}):\n{body}\ndef values(self):\n return ({' '.join(values)})", known
    )
    made.__init__, made._values = known["__init__"], known["values"]
    made.__init__(self, *args, **kwargs)


def __repr__(self: Any) -> str:
    told = ", ".join(f"{f.name}={getattr(self, f.name)!r}" for f in fields(self) if f.repr)
    return f"{type(self).__qualname__}({told})"


def __eq__(self: Any, other: Any) -> Any:
    return self._values() == other._values() if other.__class__ is self.__class__ else NotImplemented


def __hash__(self: Any) -> int:
    return hash(self._values())


def __reduce__(self: Any) -> tuple[Any, ...]:
    return type(self), self._values()


def __setattr__(self: Any, name: str, value: object) -> None:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def __delattr__(self: Any, name: str) -> None:
    raise FrozenInstanceError(f"cannot delete field {name!r}")
