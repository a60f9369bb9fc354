"""Defects of sums: short accumulators, lost tails, pairs that saturate, biases."""

from __future__ import annotations

import numpy as np

from defects.node import Defect, Node, Planted
from defects.products import Products, spoiled
from qrun.comparing.causes.pairs import saturated_pairs
from qrun.ir import Array

PRODUCTS = ["qlinearconv-10", "qlinearmatmul-", "convinteger-10", "matmulinteger-10"]
WHOLE = ["convinteger-10", "matmulinteger-10"]
LINEAR = ["qlinearconv-10", "qlinearmatmul-10", "qlinearmatmul-21"]


def first(depth: int) -> Defect:
    """Only so many products are added."""
    return spoiled(lambda left, right: left[..., :depth] @ right[..., :depth, :])


def without_tail(width: int) -> Defect:
    """Products beyond the last whole vector are lost; shorter sums are right."""

    def sums(left: Array, right: Array) -> Array:
        depth = left.shape[-1] // width * width or left.shape[-1]
        return left[..., :depth] @ right[..., :depth, :]

    return spoiled(sums)


def one_by_one(left: Array, right: Array, step: int, add: object) -> Array:
    """Sums of `step` products after one another, each addition by `add`."""
    total = np.zeros(np.broadcast_shapes(left.shape[:-2], right.shape[:-2]) + (left.shape[-2], right.shape[-1]))
    for k in range(0, left.shape[-1], step):
        total = add(total, left[..., k : k + step] @ right[..., k : k + step, :])  # type: ignore[operator]
    return total


float32_sums = spoiled(
    lambda left, right: one_by_one(
        left, right, 1, lambda a, b: (a.astype(np.float32) + b.astype(np.float32)).astype(np.float64)
    )
)
int16_sums = spoiled(lambda left, right: one_by_one(left, right, 1, lambda a, b: np.clip(a + b, -(2**15), 2**15 - 1)))
int24_sums = spoiled(lambda left, right: (left @ right + 2**23) % 2**24 - 2**23)
pairs_of_differences = spoiled(
    lambda left, right: one_by_one(left, right, 2, lambda a, b: a + np.clip(b, -(2**15), 2**15 - 1))
)


def pair_saturation(n: Node) -> Array | None:
    """Pairs of products of codes saturate in int16, as with vpmaddubsw."""
    try:
        p = Products(n)
    except AssertionError:
        return None
    a, b = p.raw[::-1] if p.is_conv else p.raw
    if (a.dtype, b.dtype) != (np.uint8, np.int8):
        return None
    left, right = p.raw
    lost = np.zeros(n.expected.shape, np.int64).reshape((p.left @ p.right).shape)
    for k in range(0, left.shape[-1] - 1, 2):
        pair = (
            left[..., k : k + 2].astype(np.int64)[..., :, :, None]
            * right[..., k : k + 2, :].astype(np.int64)[..., None, :, :]
        )
        total = pair.sum(-2)
        lost = lost + np.clip(total, -(2**15), 2**15 - 1) - total
    return p.answer(p.left @ p.right + lost) if lost.any() else None


def pair_saturation_of_matrices(n: Node) -> Array | None:
    a, b = n.inputs.get("A"), n.inputs.get("B")
    if a is None or b is None or a.ndim != 2 or b.ndim != 2 or (a.dtype, b.dtype) != (np.uint8, np.int8):
        return None
    lost, pairs = saturated_pairs(a, b)
    return (n.expected.astype(np.int64) + lost).astype(np.int32) if pairs else None


def of_bias(change: object) -> Defect:
    """The sums with a bias that is treated in another way: change(products, sums without bias)."""

    def defect(n: Node) -> Array | None:
        if n.node.op_type != "QLinearConv" or n.inputs.get("B") is None or n.exact is None:
            return None
        try:
            p = Products(n)
        except AssertionError:
            return None
        if p.answer(p.left @ p.right) is None:
            return None
        made: Array | None = change(p, p.shaped(p.left @ p.right))  # type: ignore[operator]
        return made

    return defect


def bias_saturates(p: Products, sums: Array) -> Array | None:
    return p.requantized(np.clip(sums + p.bias, -(2**31), 2**31 - 1))


def bias_after_rounding(p: Products, sums: Array) -> Array | None:
    ratio = p.multiplier()
    return None if ratio is None else p.node.coded(np.rint(sums * ratio) + np.rint(p.bias * ratio) + p.node.zero())


def bias_without_its_scale(p: Products, sums: Array) -> Array | None:
    ratio, scale = p.multiplier(), p.node.inputs["y_scale"]
    if ratio is None or scale is None:
        return None
    return p.node.coded(np.rint(sums * ratio + p.bias / scale.astype(np.float64)) + p.node.zero())


def bias_in_64_bits(p: Products, sums: Array) -> Array | None:
    return p.requantized(sums + p.bias)


def bias_of_16_bits(p: Products, sums: Array) -> Array | None:
    return p.requantized(p.wrapped(sums + np.clip(p.bias, -(2**15), 2**15 - 1)))


def bias_in_float32(p: Products, sums: Array) -> Array | None:
    ratio = p.multiplier()
    added = (np.float32(sums) + np.float32(p.bias)).astype(np.float64)
    return None if ratio is None else p.node.coded(np.rint(added * ratio) + p.node.zero())


def without_last_bias(n: Node) -> Array | None:
    bias = n.inputs.get("B")
    if bias is None or n.node.op_type != "QLinearConv" or not bias.size:
        return None
    return n.made(B=np.where(np.arange(bias.size) < bias.size - 1, bias, 0).astype(np.int32))


def sums_of_nothing_are_what_was_in_memory(n: Node) -> Array | None:
    a, b = n.inputs.get("A", n.inputs.get("a")), n.inputs.get("B", n.inputs.get("b"))
    if a is None or b is None or (a.size and b.size) or not n.expected.size:
        return None
    return np.full_like(n.expected, 93)


PLANTED = [
    Planted("pairs saturate in int16", pair_saturation_of_matrices, ["MatMulInteger"], "pair-saturation"),
    Planted("pairs saturate in int16 in QLinearConv", pair_saturation, ["qlinearconv-10"], "pair-saturation"),
    Planted("pairs saturate in int16 in QLinearMatMul", pair_saturation, ["qlinearmatmul-10"], "pair-saturation"),
    Planted("pairs of differences saturate in int16", pairs_of_differences, PRODUCTS, "narrow-accumulator"),
    Planted("int16 accumulators saturate", int16_sums, PRODUCTS, "narrow-accumulator"),
    Planted("24-bit accumulators wrap", int24_sums, PRODUCTS, "narrow-accumulator"),
    Planted("float32 accumulators", float32_sums, WHOLE, "narrow-accumulator"),
    Planted("float32 accumulators with a bias", of_bias(bias_in_float32), ["qlinearconv-10"], "wide-sum"),
    Planted("K beyond 256 is lost", first(256), PRODUCTS, "wrong-elements"),
    Planted("K beyond 512 is lost", first(512), PRODUCTS, "wrong-elements"),
    Planted("the tail of K after vectors of 8 is lost", without_tail(8), PRODUCTS, "wrong-elements"),
    Planted("the tail of K after vectors of 16 is lost", without_tail(16), PRODUCTS, "wrong-elements"),
    Planted("the tail of K after vectors of 32 is lost", without_tail(32), PRODUCTS, "wrong-elements"),
    Planted("the tail of K after vectors of 64 is lost", without_tail(64), PRODUCTS, "wrong-elements"),
    Planted("the sum with the bias saturates", of_bias(bias_saturates), ["qlinearconv-10"], "wide-sum"),
    Planted("the sum with the bias has 64 bits", of_bias(bias_in_64_bits), ["qlinearconv-10"], "wide-sum"),
    Planted("the bias is added after rounding", of_bias(bias_after_rounding), ["qlinearconv-10"], "wrong-parameter"),
    Planted("the bias is added without its scale", of_bias(bias_without_its_scale), ["qlinearconv-10"], "wrong-parameter"),
    Planted("the bias has 16 bits", of_bias(bias_of_16_bits), ["qlinearconv-10"], "wrong-parameter"),
    Planted("the last channel has no bias", without_last_bias, ["qlinearconv-10"], "wrong-parameter"),
    Planted("memory in place of empty sums", sums_of_nothing_are_what_was_in_memory, ["QLinearMatMul", "QGemm"], "empty-sum"),
]  # fmt: skip
