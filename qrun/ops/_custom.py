"""Custom operators: Python functions of a user's file or of an installed package that run as reference kernels.

A declaration is the same as inside qrun, without a Context. qrun trusts no result: exceptions, arrays that are none,
element types that ONNX lacks and missing outputs become errors that name the function's file and line.
"""

from __future__ import annotations

import ctypes
import inspect
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import NoneType
from typing import Any, get_args

import numpy as np

from qrun.errors import CallError, OperatorError, QrunError
from qrun.ir import Array
from qrun.ir.types import BY_ONNX_NAME, NUMBERS, odd_objects, texts
from qrun.memory import Budget, out_of_time
from qrun.ops._context import Context, refuse
from qrun.ops._op import CUSTOM, LATEST, REGISTRY, Cost, Kernel, OpDef, find, no_cost
from qrun.ops._signature import Types, signature_of

_KINDS = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.KEYWORD_ONLY)
_HELD = 3
"""References to a result that nothing else holds: the list of results, the loop's variable and the call that counts."""


def op(
    op_type: str, *, domain: str = "", since: int = 1, types: Types | None = None, cost: Cost = no_cost
) -> Callable[[Kernel], Kernel]:
    """Declares a custom operator: ``@qrun.op("Triple", domain="com.example")`` above a function.

    The function's positional parameters are the inputs in order (``= None``: optional, ``*xs``: variadic), its
    keyword-only parameters are the attributes, with their defaults. It gets numpy arrays that it must not change, and
    returns one new array, or a tuple of them; their shapes and types are the outputs'. It remains an ordinary function.

    since: the first version of the domain that has this form of the operator.
    types: by variable, the ONNX types that it allows and the inputs that have it:
           ``{"T": ("float float16", "X scale")}``. Inputs that are not named may have any type.
    cost:  (input shapes, output shapes, attributes) to multiply-adds, for profiles.

    A later declaration of the same operator replaces an earlier one. Raises CallError QR018 for an operator that qrun
    has, and for a function that declares none.
    """

    def declare(function: Kernel) -> Kernel:
        _check_name(op_type, domain, since)
        name = f"{domain}::{op_type}" if domain else op_type
        signature = _signature(function, name)
        inputs = [p.name for p in signature.parameters.values() if p.kind is not inspect.Parameter.KEYWORD_ONLY]
        _check_types(types or {}, inputs, name)
        made = OpDef(domain, op_type, since, partial(_run, function, name), types or {}, cost)
        made.runner, made.stated = CUSTOM, lambda: signature
        made.__doc__ = inspect.getdoc(function)
        versions = REGISTRY.declared.setdefault((domain, op_type), [])
        versions[:] = sorted([*(d for d in versions if d.since != since), made], key=lambda d: d.since)
        find.cache_clear()
        return function

    return declare


def _check_name(op_type: str, domain: str, since: int) -> None:
    """Raise CallError unless an operator of this name can be declared."""
    if not isinstance(op_type, str) or not op_type or not isinstance(domain, str):
        raise declaration_error("an operator's name and domain are texts", repr((op_type, domain)))
    if type(since) is not int or not 1 <= since <= LATEST:
        raise declaration_error(f"{op_type}: since is the first version, 1 or more", repr(since))
    known = find(domain, op_type, LATEST if domain else 1) or find(domain, op_type, LATEST)
    if known is not None and known.runner != CUSTOM:
        fix = f'@op("{op_type}", domain="com.example"), and the same domain in the model'
        raise declaration_error(f"qrun runs {domain + '::' if domain else ''}{op_type} itself", "a second one", fix)


def _signature(function: Kernel, name: str) -> inspect.Signature:
    """The function's inputs and attributes, with a `ctx` for the kernel. An attribute without an annotation has the
    type of its default."""
    if not callable(function):
        raise declaration_error(f"{name} is not a function", repr(function)[:60])
    try:
        written = signature_of(function)
    except (TypeError, ValueError, NameError, SyntaxError, AttributeError) as error:
        raise declaration_error(f"the parameters of {name} cannot be read", str(error)) from None
    found = []
    for p in written.parameters.values():
        if p.kind not in _KINDS or p.name == "ctx":
            raise declaration_error(f"{name}: parameter {p} is neither an input nor an attribute", str(p), _FORM)
        found.append(p.replace(annotation=_attribute_type(p, name)) if p.kind is _KINDS[-1] else p)
    return written.replace(parameters=[*found, inspect.Parameter("ctx", inspect.Parameter.KEYWORD_ONLY)])


_FORM = "def name(x, y=None, *, alpha: float = 1.0): inputs first, then a *, then attributes"
_ATTRIBUTES = (int, float, str, tuple[int, ...], tuple[float, ...], tuple[str, ...], np.ndarray)


def _attribute_type(p: inspect.Parameter, name: str) -> Any:
    """The type of an attribute. Raises CallError if neither annotation nor default states one that ONNX has."""
    kind, default = p.annotation, p.default
    if kind is inspect.Parameter.empty:
        of_items = isinstance(default, tuple) and default
        kind = tuple[type(default[0]), ...] if of_items else type(default)  # type: ignore[misc]
    if kind is Array:
        kind = np.ndarray
    plain = [each for each in get_args(kind) if each is not NoneType] if NoneType in get_args(kind) else [kind]
    if len(plain) != 1 or plain[0] not in _ATTRIBUTES:
        expected = "int, float, str, np.ndarray, or tuple[int, ...] and alike"
        raise declaration_error(f"{name}: attribute {p.name!r} needs a type", str(p), f"annotate it: {expected}")
    return kind


def _check_types(types: Types, inputs: Sequence[str], name: str) -> None:
    """Raise CallError for types that ONNX lacks, and for inputs that the function lacks."""
    for variable, value in types.items() if isinstance(types, Mapping) else [("", types)]:
        if not (isinstance(value, tuple) and len(value) == 2 and all(isinstance(text, str) for text in value)):
            raise declaration_error(f'{name}: types are {{"T": ("float int8", "X Y")}}', repr(value)[:80])
        unknown = [text for text in value[0].split() if text not in BY_ONNX_NAME]
        absent = [text for text in value[1].split() if text not in inputs]
        if unknown or absent:
            what = f"ONNX has no type {unknown[0]}" if unknown else f"there is no input {absent[0]}"
            fix = ", ".join(BY_ONNX_NAME) if unknown else f"inputs: {', '.join(inputs)}"
            raise declaration_error(f"{name}: {what}", f"{variable}: {value}", fix)


def declaration_error(message: str, got: str = "", fix: str = "") -> CallError:
    """The error of an operator that cannot be declared. The place is the line of the nearest file outside qrun."""
    home = os.path.dirname(os.path.dirname(__file__))
    outside = (f for f in reversed(traceback.extract_stack()) if not f.filename.startswith((home, "<frozen")))
    frame = next(outside, None)
    where = [f"{frame.filename}, line {frame.lineno}"] if frame else []
    facts = [("got", got)] if got else []
    return CallError("QR018", message, where=where, facts=facts, fixes=[fix] if fix else [])


def _run(function: Kernel, name: str, *args: Array | None, ctx: Context, **attributes: Any) -> tuple[Array, ...]:
    """The function's results for these inputs, checked. Raises OperatorError, and TimeLimitError if it runs on."""
    given = [_read_only(array) for array in args]
    try:
        with _stopped_in_time(ctx.budget):
            made = function(*given, **attributes)
    except (QrunError, KeyboardInterrupt, MemoryError):
        raise
    except BaseException as error:  # a plug-in may call sys.exit
        raise _failure(error, function, name) from None
    found = list(made) if isinstance(made, (tuple, list)) else [made]
    wanted = max((index + 1 for index in range(ctx.outputs) if ctx.wants(index)), default=0)
    if len(found) < wanted:
        expected, got = f"{ctx.outputs} outputs, which the node names", str(len(found))
        raise refuse(f"{name} returned too few arrays", "", expected, got, fix=_place(function), code="QR210")
    return tuple([_own(value, index, function, name) for index, value in enumerate(found[: ctx.outputs])])


def _read_only(array: Array | None) -> Array | None:
    """A view that the function cannot write to: the array may be a weight, or another node's input."""
    if array is None:
        return None
    view = array.view()
    view.flags.writeable = False
    return view


def _own(value: object, index: int, function: Kernel, name: str) -> Array:
    """A result as an array that only the run holds, in memory order and of the machine's byte order."""
    array = value if isinstance(value, np.ndarray) else np.asarray(value) if isinstance(value, np.generic) else None
    what = f"output {index}"
    if array is None:
        got = "None" if value is None else f"a value of type {type(value).__name__}"
        raise refuse(f"{name} returned no array", what, "a numpy array", got, fix=_place(function), code="QR210")
    plain = np.asarray(array).astype(array.dtype.newbyteorder("="), copy=False)
    plain = texts(plain, np.dtype(object))
    odd = odd_objects(plain)
    if plain.dtype not in NUMBERS or odd:
        got = f"objects of type {type(odd[0]).__name__}" if odd else str(plain.dtype)
        expected = "a type of ONNX, such as float32 or int8"
        raise refuse(
            f"{name} returned elements that ONNX lacks", what, expected, got, fix=_place(function), code="QR210"
        )
    held = sys.getrefcount(value) > _HELD + 1 or not plain.flags.owndata or not plain.flags.writeable
    return np.array(plain, order="C") if held else np.asarray(plain, order="C")


def _place(function: Kernel, line: int = 0) -> str:
    """What to correct: the function's file and line."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return f"correct {code.co_filename}, line {line or code.co_firstlineno}" if code else f"correct {function!r}"


def _failure(error: BaseException, function: Kernel, name: str) -> OperatorError:
    """The error of a function that raised. The place is the deepest line of the function's own file."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    frames = [f for f in traceback.extract_tb(error.__traceback__) if code and f.filename == code.co_filename]
    text = next(iter(str(error).splitlines()), "")
    return refuse(
        f"{name} raised {type(error).__name__}",
        got=f"{type(error).__name__}: {text}"[:300] if text else type(error).__name__,
        why=f"line {frames[-1].lineno}: {frames[-1].line}" if frames and frames[-1].line else "",
        fix=_place(function, frames[-1].lineno or 0 if frames else 0),
        code="QR210",
    )


class _Overdue(BaseException):
    """Raised inside a function that runs longer than allowed."""


@contextmanager
def _stopped_in_time(budget: Budget) -> Iterator[None]:
    """Ends a call when the run's time is over, at the next line of Python: a user's loop may have no end.

    Raises TimeLimitError.
    """
    deadline = budget.deadline
    if deadline is None:
        yield
        return
    thread, done, lock = ctypes.c_ulong(threading.get_ident()), threading.Event(), threading.Lock()

    def interrupt() -> None:
        if not done.wait(deadline.left):
            with lock:
                if not done.is_set():
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(_Overdue))

    watch = threading.Thread(target=interrupt, daemon=True)
    try:
        watch.start()
        yield
        with lock:
            done.set()
    except _Overdue:
        raise out_of_time(deadline.seconds) from None
    finally:
        done.set()
