"""Functions of float64 vectors in IR: exponentials, the hyperbolic tangent, and sums without error.

Exponentials and the like have relative errors below 2**-49. What rounding loses is found as in

Knuth, The Art of Computer Programming, volume 2, 4.2.2 (sums)
Dekker, A floating-point technique for extending the available precision, Numerische Mathematik 18, 1971 (products)
Boldo and Melquiond, Emulation of FMA and correctly rounded sums: proved algorithms using rounding to odd,
    IEEE Transactions on Computers 57, 2008 (what to do with it)
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from qrun.native.emit import tabled
from qrun.native.emit.flow import Flow
from qrun.native.emit.spec import INTERRUPTED
from qrun.native.emit.values import MAGIC64, ZERO, Operand, Value

_SPLITTER = 2.0**27 + 1
"""Times a float64 of 53 bits, it splits off the upper 26 (Dekker, after Veltkamp)."""
_EXPONENT = 0x7FF0000000000000
"""The bits of a float64 that are its exponent."""
_MIDDLE = 1 << 28
"""Last places of a float64 in half of one of float32."""
SUM_REACH = 2.0**-51
"""More than twice the relative error of a product and a sum in float64."""
_LEAST, _GREATEST = 2 << 23, (1 << 31) - 1
"""The bits of a float32, 2**-125, below which others may have fewer bits; and the greatest integer of 32 bits."""
_LOG2E = 1.4426950408889634
_LN2 = (0.6931471803691238, 1.9082149292705877e-10)
"""Its first 32 bits, of which up to 2**20 times are exact, and the rest."""
_LONG = 16
"""Terms of a polynomial beyond which it is worth while to do its halves side by side."""
_FARTHEST = 700.0
"""exp(-700) is less than any float32 number, so it does not count beside one."""
_EXPONENTIAL = tuple(1 / math.factorial(n) for n in range(2, 14))
"""(exp(r) - 1 - r) / r**2 in powers of r, for |r| <= log(2) / 2: the Taylor series."""
_FINE_TERMS = 5
"""How many of these terms suffice for |r| <= log(2) / 32."""


def rounds_apart(low: Value, high: Value) -> Value:
    """Whether the ends of an interval of float64 round to different float32: an i1 in each lane."""
    return differ(low.single(), high.single())


def differ(low: Value, high: Value) -> Value:
    """Whether two float32 differ in their bits: an i1 in each lane."""
    return low.bitcast("i32").test("ne", high.bitcast("i32"))


def word_order(lanes: int) -> list[int]:
    """Lanes of float64 in the order in which one instruction takes words out of two vectors of 256 bits."""
    eight = (0, 1, 4, 5, 2, 3, 6, 7)
    return [first + n for first in range(0, lanes, 8) for n in eight] if lanes >= len(eight) else [*range(lanes)]


def low_words(x: Value) -> Value:
    """The lower halves of float64 lanes as i32, in that order."""
    return x.bitcast(f"<{2 * x.lanes} x i32>").shuffled(2 * lane for lane in word_order(x.lanes))


def beside_a_middle(x: Value, places: int) -> Value:
    """Whether the middle between two normal float32 is at most so many last places of float64 away: i1 of each lane,
    in the order of `word_order`.

    places: a power of two; on one side as many, on the other one less.
    """
    return ((low_words(x) + (_MIDDLE + places)) & (2 * _MIDDLE - 2 * places)).test("eq", ZERO)


def scaled_sum(n: Value, factor: Value, added: Value) -> tuple[Value, Value]:
    """n * factor + added as float32, for n of at most 33 bits and a factor of at most 48; and i1 of each lane, in the
    order of `word_order`: where that may differ from the real value rounded once, because float64 was rounded before.
    """
    order = word_order(n.lanes)
    if not n.w.fused:
        product = n * factor
        total, reach = product + added, (abs(product) + abs(added)) * SUM_REACH
        made = (total - reach).single()
        return made, differ(made, (total + reach).single()).shuffled(order)
    total = n.fma(factor, added)
    made = total.single()
    # Without its sign, 0 becomes the greatest integer, and the least number the least one.
    small = ((made.bitcast("i32") << 1) + _GREATEST).test("slt", 2 * _LEAST - _GREATEST)
    return made, beside_a_middle(total, 1) | small.shuffled(order)


def rounded_once(n: Value, factor: Value, rest: Value, bias: Value) -> Value:
    """The bits of n * (factor + rest) + bias rounded once to float32, where that is finite.

    The sum is top + low, and what is too little to matter. It is rounded to odd: if low is not 0 and the last bit of
    top is not set, top moves one step towards low. So that of 53 bits the last says whether something was lost, and
    rounding to 24 bits is that of the exact sum.
    """
    product = n * factor
    total = product + bias
    error = product_error(n, factor, product) + n * rest
    _, lost = two_sum(product, bias, total)
    middle, least = two_sum(lost, error)
    top, low = two_sum(total, middle)
    top = middle.test("oeq", ZERO).select(total, top)
    low = low.test("une", ZERO).select(low, least)
    moved = rounded_to_odd(top, low)
    return abs(total).test("olt", math.inf).select(moved, total).single().bitcast("i32")


def fma_once(a: Value, b: Value, c: Value) -> Value:
    """a * b + c of float32, rounded once on every instruction set: where none rounds so, in float64, to odd."""
    if a.w.fused:
        return a.intrinsic("fma", b, c)
    product, addend = a.double() * b.double(), c.double()
    total, lost = two_sum(product, addend)
    return abs(total).test("olt", math.inf).select(rounded_to_odd(total, lost), total).float32()


def rounded_to_odd(top: Value, low: Value) -> Value:
    """top + low as a number of 53 bits whose last one is set if it is not exact; low is at most half of top's last bit.

    Rounded to 24 bits that gives what the exact sum gives.
    """
    whole = top.bitcast("i64")
    odd = (whole & 1).test("ne", ZERO)
    inward = low.test("ogt", ZERO) ^ top.test("ogt", ZERO)
    step = inward.select(whole.like(-1), whole.like(1))
    stays = odd | low.test("oeq", ZERO)
    return (whole + stays.select(ZERO, step)).bitcast("double")


def two_sum(a: Value, b: Value, total: Value | None = None) -> tuple[Value, Value]:
    """fl(a + b), and what that rounding lost, exactly (Knuth)."""
    total = a + b if total is None else total
    t = total - a
    back = a - (total - t)
    return total, back + (b - t)


def divided(high: Value, low: Value, by: Value, by_low: Value | None = None) -> tuple[Value, Value]:
    """(high + low) / (by + by_low) as such a pair, to about 2**-100 of it: a quotient, and that of what it leaves."""
    quotient = high / by
    product = quotient * by
    rest = high - product - product_error(quotient, by, product) + low
    rest = rest if by_low is None else rest - quotient * by_low
    return two_sum(quotient, rest / by)


def product_error(a: Value, b: Value, product: Value) -> Value:
    """a * b - fl(a * b), exactly: by one fused operation, or by the products of halves (Dekker)."""
    if a.w.fused:
        return a.fma(b, -product)
    (a1, a2), (b1, b2) = _halves(a), _halves(b)
    error = a1 * b1 - product
    for x, y in ((a1, b2), (a2, b1), (a2, b2)):
        error = error + x * y
    return error


def _halves(a: Value) -> tuple[Value, Value]:
    """a as the sum of two numbers of at most 26 bits, whose products are exact."""
    c = a * _SPLITTER
    high = c - (c - a)
    return high, a - high


def series(coefficients: Sequence[float], x: Value) -> Value:
    """A polynomial, the constant term first. Halves of a long one do not wait for each other."""
    if len(coefficients) > _LONG:
        return side_by_side(coefficients, x, x * x)
    made = x.like(coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        made = made.fma(x, coefficient)
    return made


def side_by_side(coefficients: Sequence[float], x: Value, square: Value) -> Value:
    """A polynomial as that of its even terms and that of its odd ones, in `square`, that of x: neither waits for the
    other, so that its result is there sooner."""
    even, odd = (series(coefficients[first::2], square) for first in (0, 1))
    return odd.fma(x, even)


def _powers(x: Value, steps: int = 1) -> tuple[Value, Value]:
    """2**n and p with exp(x) = 2**n * (1 + p), p small, for x between -700 and 700; n is a multiple of 1 / steps."""
    raised = x.fma(_LOG2E * steps, MAGIC64)
    count = raised - MAGIC64
    rest = count.fma(-_LN2[0] / steps, x)
    rest = count.fma(-_LN2[1] / steps, rest)
    square = rest * rest
    small = square.fma(series(_EXPONENTIAL[: _FINE_TERMS if steps > 1 else None], rest), rest)
    return tabled.power(raised, steps), small


def _quick_powers(x: Value) -> tuple[Value, Value]:
    """The same in less time; 2**n is then rounded, so that its difference from 1 has a greater relative error."""
    return _powers(x, tabled.SIZE if x.w.permutes else 1)


def _within(x: Value) -> Value:
    """x, or what is nearest to it from -700 to 700; NaN stays NaN."""
    low = x.test("olt", -_FARTHEST).select(-_FARTHEST, x)
    return low.test("ogt", _FARTHEST).select(_FARTHEST, low)


def at_most(x: Value, limit: float) -> Value:
    """The lesser of x and the limit; NaN stays NaN."""
    return x.test("ogt", limit).select(limit, x)


def exp(x: Value) -> Value:
    """exp(x) for x from -700 to 700; 0 below that, exp(700) above it; NaN stays NaN."""
    power, small = _quick_powers(_within(x))
    made = power.fma(small, power)
    made = x.test("olt", -_FARTHEST).select(0.0, made)
    return x.test("uno", x).select(x, made)


def decay(x: Value) -> Value:
    """exp(x) for x from -700 to 0, exp(-700) below that; NaN stays NaN."""
    power, small = _quick_powers(x.test("olt", -_FARTHEST).select(-_FARTHEST, x))
    return power.fma(small, power)


def expm1(x: Value) -> Value:
    """exp(x) - 1 for x from -700 to 700, and that of these ends beyond them; 0 of -0."""
    power, small = _powers(_within(x))
    return power.fma(small, power - 1.0)


def sigmoid(x: Value) -> Value:
    """e / (1 + e) for negative x, else 1 / (1 + e), e = exp(-|x|)."""
    e = exp(-0.0 - abs(x))
    return x.test("oge", 0.0).select(1.0, e) / (1.0 + e)


_ROOM = 128
"""Rows in the list: 2 KiB. With all else that is on the stack it is less than a page."""


def finer(value: Value, sizes: Value) -> Value:
    """Whether elements, float64, keep a sum of all from being exact in any order: i1, lane by lane.
    sizes: that of all magnitudes.

    With 2**e the power of two up to that and g = 2**(e - 50), every sum of some of them is a multiple of g, and at most
    2**52 g, if all elements are multiples of g. Adding 1.5 * 2**(e + 2) rounds to multiples of g.
    """
    magic = (sizes.bitcast("i64") & _EXPONENT).bitcast("double") * 6.0
    return (value + magic - magic).test("une", value)


class RecheckEmitter:
    """Rows of `x` elements, each with a result of `y`; recheck: the address of what makes them.
    Made in the entry block.

    shared: another one whose list is empty whenever this one's is not.
    """

    def __init__(
        self, w: Flow, recheck: Value, x: Value | int, y: Value | int, shared: RecheckEmitter | None = None
    ) -> None:
        self.w, self.recheck, self.sizes = w, recheck, f"i64 {x}, i64 {y}"
        self.zero = w.value("i64", 0)
        self.memory: tuple[Value, Value, Value] = shared.memory if shared else self._own()
        self.rows, self.count, self.failed = self.memory

    def _own(self) -> tuple[Value, Value, Value]:
        """Take memory for the list, for its length, which is 0, and for why its rows were not made, or 0."""
        rows = self.w.let("ptr", f"alloca [{_ROOM} x [2 x i64]], align 16")
        count, failed = (self.w.let("ptr", "alloca i64, align 8") for _ in range(2))
        count.store(self.zero, 8)
        return rows, count, failed

    def add(self, x: Value, y: Value) -> None:
        """Add a row to the list, and make all listed rows once it is full."""
        w, count = self.w, self.count.load("i64", 8)
        row = self.rows + count * 16
        row.store(x, 8)
        (row + 8).store(y, 8)
        self.count.store(count + 1, 8)
        with w.when(count.test("eq", _ROOM - 1)):
            self._recheck(w.value("i64", _ROOM))

    def end(self, least: Operand = 1) -> None:
        """Make the listed rows at the end of a tile, if there are at least so many."""
        count = self.count.load("i64", 8)
        with self.w.when(count.test("uge", least)):
            self._recheck(count)

    def _recheck(self, count: Value) -> None:
        w = self.w
        self.failed.store(w.value("i64", INTERRUPTED), 8)
        w.do(f"call i64 {self.recheck}(ptr {self.rows}, ptr {self.failed}, i64 {count}, {self.sizes})")
        self.count.store(self.zero, 8)
        failed = self.failed.load("i64", 8)
        with w.when(failed.test("ne", 0)):
            w.undecided(failed)
