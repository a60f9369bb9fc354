"""Error-free sums and products of float64 vectors, for results that are rounded once to float32. The rounding errors
are computed as in

Knuth, The Art of Computer Programming, volume 2, 4.2.2 (sums)
Dekker, A floating-point technique for extending the available precision, Numerische Mathematik 18, 1971 (products)
Boldo and Melquiond, Emulation of FMA and correctly rounded sums: proved algorithms using rounding to odd,
    IEEE Transactions on Computers 57, 2008 (rounding to odd)
"""

from __future__ import annotations

import math

from qrun.native.emit.values import ZERO, Value

_SPLITTER = 2.0**27 + 1
"""The factor that splits the upper 26 bits off a float64 of 53 bits (Dekker, after Veltkamp)."""
_MIDDLE = 1 << 28
"""Units in the last place of a float64 in half a unit of a float32."""
SUM_REACH = 2.0**-51
"""More than twice the relative error of a product and a sum in float64."""
_LEAST, _GREATEST = 2 << 23, (1 << 31) - 1
"""The bits of the float32 2**-125, below which numbers may have fewer bits; and the greatest integer of 32 bits."""


def differ(low: Value, high: Value) -> Value:
    """Whether two float32 differ in their bits: an i1 in each lane."""
    return low.bitcast("i32").test("ne", high.bitcast("i32"))


def word_order(lanes: int) -> list[int]:
    """The order of float64 lanes in which one instruction takes words out of two vectors of 256 bits."""
    eight = (0, 1, 4, 5, 2, 3, 6, 7)
    return [first + n for first in range(0, lanes, 8) for n in eight] if lanes >= len(eight) else [*range(lanes)]


def low_words(x: Value) -> Value:
    """The lower halves of float64 lanes as i32, in the order of `word_order`."""
    return x.bitcast(f"<{2 * x.lanes} x i32>").shuffle(2 * lane for lane in word_order(x.lanes))


def beside_a_middle(x: Value, places: int) -> Value:
    """Whether a float64 is near the middle between two normal float32: an i1 in each lane, in the order of
    `word_order`.

    places: a power of two: how many units in the last place count as near, on one side; on the other, one less.
    """
    return ((low_words(x) + (_MIDDLE + places)) & (2 * _MIDDLE - 2 * places)).test("eq", ZERO)


def scaled_sum(n: Value, factor: Value, added: Value) -> tuple[Value, Value]:
    """n * factor + added as float32, for n of at most 33 bits and a factor of at most 48. Also an i1 in each lane, in
    the order of `word_order`: whether the result may differ from the real value rounded once, because float64 rounded
    first."""
    order = word_order(n.lanes)
    if not n.w.fused:
        product = n * factor
        total, reach = product + added, (abs(product) + abs(added)) * SUM_REACH
        made = (total - reach).single()
        return made, differ(made, (total + reach).single()).shuffle(order)
    total = n.fma(factor, added)
    made = total.single()
    # Without its sign, 0 maps to the greatest integer, and the least number to the least integer.
    small = ((made.bitcast("i32") << 1) + _GREATEST).test("slt", 2 * _LEAST - _GREATEST)
    return made, beside_a_middle(total, 1) | small.shuffle(order)


def round_once(n: Value, factor: Value, rest: Value, bias: Value) -> Value:
    """The bits of n * (factor + rest) + bias rounded once to float32, where that is finite.

    The sum is top + low plus a negligible rest. It is rounded to odd: if low is not 0 and the last bit of top is not
    set, top moves one step towards low. Then the last of 53 bits tells whether the sum is inexact, and rounding to 24
    bits gives the same as rounding the exact sum.
    """
    product = n * factor
    total = product + bias
    error = product_error(n, factor, product) + n * rest
    _, lost = two_sum(product, bias, total)
    middle, least = two_sum(lost, error)
    top, low = two_sum(total, middle)
    top = middle.test("oeq", ZERO).select(total, top)
    low = low.test("une", ZERO).select(low, least)
    moved = round_to_odd(top, low)
    return abs(total).test("olt", math.inf).select(moved, total).single().bitcast("i32")


def fma_once(a: Value, b: Value, c: Value) -> Value:
    """a * b + c of float32, rounded once on every instruction set. Without a fused multiply-add, the sum is rounded to
    odd in float64 first."""
    if a.w.fused:
        return a.intrinsic("fma", b, c)
    product, addend = a.double() * b.double(), c.double()
    total, lost = two_sum(product, addend)
    return abs(total).test("olt", math.inf).select(round_to_odd(total, lost), total).float32()


def round_to_odd(top: Value, low: Value) -> Value:
    """top + low rounded to odd: 53 bits, the last of which is set if the sum is inexact. low is at most half of top's
    last bit. Rounding the result to 24 bits gives the same as rounding the exact sum."""
    whole = top.bitcast("i64")
    odd = (whole & 1).test("ne", ZERO)
    inward = low.test("ogt", ZERO) ^ top.test("ogt", ZERO)
    step = inward.select(whole.like(-1), whole.like(1))
    stays = odd | low.test("oeq", ZERO)
    return (whole + stays.select(ZERO, step)).bitcast("double")


def two_sum(a: Value, b: Value, total: Value | None = None) -> tuple[Value, Value]:
    """fl(a + b), and its exact rounding error (Knuth). total: fl(a + b), if it is known."""
    total = a + b if total is None else total
    t = total - a
    back = a - (total - t)
    return total, back + (b - t)


def product_error(a: Value, b: Value, product: Value) -> Value:
    """a * b - fl(a * b), exactly: by one fused operation, or by the products of halves (Dekker). product: fl(a * b)."""
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
