"""Descriptions of elementwise expressions: kinds of operands, functions, steps. emit/functions.py writes their IR."""

from __future__ import annotations

from collections.abc import Sequence

from qrun.declare.frozen import frozen

KINDS = {
    "f": ("float", 4),
    "b": ("i8", 1),
    "h": ("i16", 2),
    "i": ("i32", 4),
    "l": ("i64", 8),
    "u": ("i8", 1),
    "w": ("i16", 2),
    "t": ("i8", 1),
    "e": ("i16", 2),
    "v": ("i16", 2),
    "m": ("i32", 4),
    "q": ("i64", 8),
    "d": ("double", 8),
}
"""Kinds of operands: LLVM type and bytes. A capital letter means one element that serves a whole row."""
KIND_OF = {
    "float32": "f", "float64": "d", "float16": "e", "bfloat16": "v", "bool": "t",
    "int8": "b", "int16": "h", "int32": "i", "int64": "l", "uint8": "u", "uint16": "w", "uint32": "m", "uint64": "q",
}  # fmt: skip
"""The kinds of numpy's types, by name. Kinds of signed integers also serve any type of as many bits. A bool is true
where it is not 0."""
MOVED = {1: "b", 2: "h", 4: "i", 8: "l"}
"""The kinds of elements that are only moved, by their bytes."""
UNSIGNED = "utwmq"
"""Kinds of unsigned integers, and bool."""
SHORT = {"e": "f16", "v": "bf16"}
"""Kinds of floats narrower than float32, with their names in conversions.py. Only ``cast`` and CONVERSIONS take them,
and only ``to_f16`` and ``to_bf16`` make them."""
LOGICAL = frozenset((
    "equal", "greater", "greater_or_equal", "less", "less_or_equal", "and", "or", "xor", "not", "is_nan", "is_inf",
))  # fmt: skip
"""Functions whose result is bool."""
POWERS = ("even_power", "odd_power", "real_power")
"""Functions that raise to a constant exponent: an even integer, an odd one, or any other number."""
QUANTIZED = {"quantize_i16": "h", "quantize_u16": "w"}
"""Functions that quantize to 16 bits, and the kinds of their results."""
FAKE_QUANTIZATIONS = tuple(
    f"fake_quantize_{way}" for way in ("half_even", "ceil", "floor", "up", "down", "half_up", "half_down", "sign")
)
"""Functions of x, a scale and a zero point that quantize and dequantize, one for each rounding mode."""
CONVERSIONS = {
    "to_int8": "b",
    "to_int16": "h",
    "to_int32": "i",
    "to_int64": "l",
    "to_uint8": "u",
    "to_uint16": "w",
    "to_uint32": "m",
    "to_uint64": "q",
    "to_bool": "t",
    "to_float64": "d",
}
"""Functions that convert to another type, and the kinds of their results: Cast, except to float32 (``cast``) and to
narrower floats."""
DIVISIONS = frozenset(("quotient", "remainder", "modulo"))
"""Functions of two integers, dividend and divisor. A run with a divisor of 0 ends undecided."""
LONG = frozenset((
    "exp", "tanh", "sigmoid", "erf", "gelu", "gelu_by_tanh", "swish", "elu", "selu", "celu", "log", "softplus", "mish",
    "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", *POWERS,
))  # fmt: skip
"""Functions of many steps."""
ANGLES = ("sin", "cos", "tan")
"""Functions of angles. A run with an angle wider than wide.WIDEST ends undecided."""
_ALL = "filubthwmqd"
TYPES = {
    **dict.fromkeys(("add", "sub", "mul"), "filubhwmqd"),
    "div": "fd",
    **dict.fromkeys(DIVISIONS, "ilubhwmq"),
    **dict.fromkeys(("greater", "greater_or_equal", "less", "less_or_equal"), "filubhwmqd"),
    **dict.fromkeys(("and", "or", "xor", "not"), "t"),
    **dict.fromkeys(("max", "min"), "filubhwmqd"),
    "equal": _ALL,
    "cast": f"{_ALL}ev",
    **dict.fromkeys(CONVERSIONS, f"{_ALL}ev"),
    "dequantize": "hw",
}
"""The kinds that functions take, if not only float32; `where` takes bool and two operands of the same kind."""
CONSTANTS = {
    "leaky_relu": 1,
    "clip": 2,
    "hard_sigmoid": 2,
    "swish": 1,
    "thresholded_relu": 1,
    "shrink": 2,
    "is_inf": 2,
    **dict.fromkeys(("elu", "celu", *POWERS), 1),
    "selu": 2,
    "dequantize": 2,
    **dict.fromkeys(QUANTIZED, 4),
    **dict.fromkeys(FAKE_QUANTIZATIONS, 2),
}
"""The number of constants of each function; functions that are not listed have none."""
UNROUNDED = frozenset((
    "abs", "ceil", "clip", "floor", "max", "min", "neg", "relu", "round", "sign", "thresholded_relu", "where",
    *LOGICAL, *CONVERSIONS, *QUANTIZED, "to_f16", "to_bf16",
))  # fmt: skip
"""Functions whose result needs no rounding to the narrower type of their operands: it is a number of that type already,
or not float32."""


@frozen
class FunctionStep:
    """A function, and the numbers of the values it takes: operands come first, then the results of earlier steps.

    narrow: the type to which the result is rounded, once; it is kept as float32. "" for float32 itself.
    """

    function: str
    values: tuple[int, ...]
    narrow: str = ""

    def __str__(self) -> str:
        name = f"{self.function}@{self.narrow}" if self.narrow else self.function
        return f"{name}:{','.join(map(str, self.values))}"

    @classmethod
    def read(cls, text: str) -> FunctionStep:
        """Parse a step from a kernel's form: `function@narrow:value,value`."""
        name, _, values = text.partition(":")
        function, _, narrow = name.partition("@")
        return cls(function, tuple(map(int, values.split(","))), narrow)


def form_of(steps: Sequence[FunctionStep]) -> str:
    """The steps as the `form` of a KernelSpec. The result of the last step is the kernel's."""
    return " ".join(map(str, steps))


def operand_names(count: int) -> tuple[str, ...]:
    """The names of `count` operands and of the result in a kernel's arguments."""
    return (*(f"x{n}" for n in range(count)), "y")


def kind_of_result(function: str, last: str) -> str:
    """The kind of a function's result. last: the kind of its last operand."""
    made = {**{f"to_{name}": kind for kind, name in SHORT.items()}, **QUANTIZED, **CONVERSIONS}.get(function, last)
    return "t" if function in LOGICAL else "f" if function in ("cast", "dequantize") else made
