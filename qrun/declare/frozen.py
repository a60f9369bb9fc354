"""Dataclasses that cost little to declare, frozen or not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, FrozenInstanceError, dataclass, field, fields
from inspect import get_annotations
from typing import Any, TypeVar, dataclass_transform, overload

T = TypeVar("T")
_set = object.__setattr__
_FEW = 32
"""The number of objects of a class that are made before it gets code of its own."""


@overload
def frozen(cls: type[T], /) -> type[T]: ...
@overload
def frozen(*, slots: bool = True, weak: bool = False, eq: bool = True) -> Callable[[type[T]], type[T]]: ...
@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(cls: type[Any] | None = None, *, slots: bool = True, weak: bool = False, eq: bool = True) -> Any:
    """The same as ``@dataclass(frozen=True, slots=True)``, in a thirtieth of the time; ``replace``, ``fields``,
    ``asdict`` accept it.

    dataclass writes and compiles seven methods for every class, which was a quarter of qrun's start-up time. Here all
    classes share them. The two methods that can be faster are written once a class has made some objects, and
    dataclass's own description of the fields is made on first access. Fields of bases come first, as in dataclass.

    slots: False for a class with a ``cached_property``.
    weak:  with slots, allow weak references to objects.
    eq:    objects are equal if all values are; False: an object is equal only to itself.
    """
    methods = {**_METHODS, **_FROZEN, **(_BY_VALUE if eq else {})}
    return _declare(cls, methods, slots, weak) if cls else lambda later: _declare(later, methods, slots, weak)


@overload
def changeable(cls: type[T], /) -> type[T]: ...
@overload
def changeable(*, eq: bool = True) -> Callable[[type[T]], type[T]]: ...
@dataclass_transform(field_specifiers=(field,))
def changeable(cls: type[Any] | None = None, *, eq: bool = True) -> Any:
    """The same as ``@dataclass(slots=True)``, made in the same way. eq: as for `frozen`."""
    methods = {**_METHODS, **({**_BY_VALUE, "__hash__": None} if eq else {})}
    return _declare(cls, methods, True, False) if cls else lambda later: _declare(later, methods, True, False)


def _declare(cls: type[Any], methods: Mapping[str, object], slots: bool, weak: bool) -> type[Any]:
    """A copy of the class with these methods, unless it has its own."""
    own = get_annotations(cls)
    inherited, defaults = getattr(cls, "_declared", ((), {}))
    names = (*inherited, *(name for name in own if name not in inherited))
    made = {**methods, **cls.__dict__}
    made.pop("__dict__", None)
    made.pop("__weakref__", None)
    made["_count"] = 0
    made["_declared"] = names, defaults | {name: made.pop(name) for name in own if name in made}
    made["__dataclass_fields__"], made["__match_args__"] = _DESCRIBED, names
    made["__qualname__"], made["__doc__"] = cls.__qualname__, cls.__doc__ or cls.__name__
    if slots:
        made["__slots__"] = (*names[len(inherited) :], *(("__weakref__",) if weak else ()))
    kind: Any = type(cls)
    declared: Any = kind(cls.__name__, cls.__bases__, made)
    declared._owner = declared
    return declared  # type: ignore[no-any-return]


def fields_of(cls: type[Any]) -> Mapping[str, Any]:
    """The fields of a class made by `frozen` or `changeable`, in order, with their defaults; MISSING where there is
    none."""
    names, defaults = cls._declared
    return {name: defaults.get(name, MISSING) for name in names}


def field_types(cls: type[Any]) -> Mapping[str, Any]:
    """The types of the fields of such a class, as written."""
    written = {name: kind for base in reversed(cls.__mro__) for name, kind in get_annotations(base).items()}
    return {name: written[name] for name in cls._declared[0]}


class _Described:
    """dataclass's description of a class's fields, made on first access."""

    def __get__(self, made: object, owner: type[Any]) -> dict[str, Field[Any]]:
        _, defaults = owner._declared
        body = {"__annotations__": field_types(owner), "__doc__": "", **defaults}
        plain: Any = dataclass(init=False, repr=False, eq=False)(type(owner.__name__, (), body))
        found: dict[str, Field[Any]] = plain.__dataclass_fields__
        owner.__dataclass_fields__ = found
        return found


_DESCRIBED = _Described()


def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
    """Initializes the first objects of a class. Writing and compiling the class's own ``__init__`` takes as long as a
    hundred objects, and most classes of a short run have fewer."""
    made: Any = self._owner
    names, _ = made._declared
    made._count += 1
    values = args if len(args) == len(names) and not kwargs else _complete(made, args, kwargs)
    if values is None or made._count > _FEW:
        _write(made)
        made.__init__(self, *args, **kwargs)
        return
    for name, value in zip(names, values, strict=True):
        _set(self, name, value)
    if hasattr(made, "__post_init__"):
        self.__post_init__()


def _complete(made: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Sequence[Any] | None:
    """The values of all fields; None if some are missing or unknown: the class's own ``__init__`` then raises the
    error."""
    names, defaults = made._declared
    values = dict(zip(names, args, strict=False))
    if len(args) > len(names) or not (values.keys().isdisjoint(kwargs) and kwargs.keys() <= set(names)):
        return None
    values |= kwargs
    for name in names if len(values) < len(names) else ():
        if name not in values:
            default = defaults.get(name, MISSING)
            if isinstance(default, Field):
                default = default.default if default.default_factory is MISSING else default.default_factory()
            if default is MISSING:
                return None
            values[name] = default
    return [values[name] for name in names]


def _write(made: Any) -> None:
    """Write the class's own ``__init__``, and the method that returns the tuple of an object's values."""
    slots = "__slots__" in vars(made)
    known: dict[str, Any] = {}
    parameters, steps, values = [], [] if slots else [" __dict__ = self.__dict__"], []
    names, defaults = made._declared
    for name in names:
        default, factory = defaults.get(name, MISSING), False
        if isinstance(default, Field):
            factory = default.default_factory is not MISSING
            default = default.default_factory if factory else default.default
        known[f"_{name}"] = default
        known[f"_set_{name}"] = getattr(made, name).__set__ if slots else None
        parameters.append(name if default is MISSING else f"{name}=_{name}")
        value = f"_{name}() if {name} is _{name} else {name}" if factory else name
        written = f" _set_{name}(self, {value})" if slots else f" __dict__[{name!r}] = {value}"
        steps.append(written if made.__setattr__ is __setattr__ else f" self.{name} = {value}")
        values.append(f"self.{name},")
    if hasattr(made, "__post_init__"):
        steps.append(" self.__post_init__()")
    body = "\n".join(steps) or " pass"
    exec(
        f"def __init__(self, {', '.join(parameters)}):\n{body}\ndef values(self):\n return ({' '.join(values)})", known
    )
    made.__init__, made._values = known["__init__"], known["values"]


def _values(self: Any) -> tuple[Any, ...]:
    """The values of a record's fields."""
    return tuple([getattr(self, name) for name in self._declared[0]])


def replace(record: T, /, **changes: Any) -> T:
    """The record with other values in some fields. `dataclasses.replace` does the same, but needs dataclass's own
    description of the fields. Raises TypeError for an unknown field."""
    kind: Any = type(record)
    made: T = kind(**{name: getattr(record, name) for name in kind._declared[0]} | changes)
    return made


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


def _field_names(*methods: Callable[..., object]) -> dict[str, object]:
    """Methods by name."""
    return {method.__name__: method for method in methods}


_METHODS = _field_names(__init__, __repr__, __reduce__, _values)
_FROZEN = _field_names(__setattr__, __delattr__)
_BY_VALUE = _field_names(__eq__, __hash__)


def keys(text: str) -> dict[str, str]:
    """The JSON keys of a record, as its ``KEYS``: names of attributes, ``key=attribute`` where the two differ:
    ``"index=node.index name"``."""
    pairs = (word.partition("=") for word in text.split())
    return {key: name or key for key, _, name in pairs}


def through(part: str, inner: Mapping[str, str]) -> dict[str, str]:
    """KEYS of a part as keys of the record that contains it."""
    return {key: f"{part}.{name}" for key, name in inner.items()}
