"""Mixtures of experts, number by number: fractions, and decimals of 50 digits for exponentials;
each step is rounded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction as F
from typing import Any

import numpy as np

from oracle.attention import numbers, rounded, shares_of
from oracle.blocks import code, codes, weight
from oracle.chains import chained
from oracle.polynomials import gelu_by_tanh, swish

Values = list[F]


REAL: dict[str, Callable[[F], F]] = {
    "relu": lambda x: max(x, F(0)),
    "identity": lambda x: x,
    "silu": swish,
    "gelu": gelu_by_tanh,
}


def dequantized(
    packed: np.ndarray, scales: np.ndarray, zeros: np.ndarray | None, bits: int, block: int
) -> list[list[Values]]:
    """Of each expert the rows of its weights. block: 0 where a row has one scale."""
    made = []
    for e in range(len(packed)):
        rows = []
        for n in range(packed.shape[1]):
            row = []
            for k, given in enumerate(codes(packed[e, n], bits)):
                place = k // block if block else 0
                if zeros is None:
                    zero = 2 ** (bits - 1)
                else:
                    zero = code(zeros[e, n], place, bits) if block else code(zeros[e], n, bits)
                row.append(weight(given - zero, float(scales[e, n, place] if block else scales[e, n])))
            rows.append(row)
        made.append(rows)
    return made


def plain(weights: np.ndarray) -> list[list[Values]]:
    return [[numbers(row) for row in matrix] for matrix in weights]


def routes(probs: np.ndarray, given: np.ndarray | None, attributes: dict[str, Any], quantized: bool) -> list[Any]:
    """Of each token the pairs of expert and share."""
    r, made = rounded(probs.dtype), []
    for token, row in enumerate(probs):
        order = sorted(range(len(row)), key=lambda e: (float(row[e]), e), reverse=True)[: attributes.get("k", 1)]
        if given is not None:
            shares = [F(float(given[token, e])) for e in order]
        elif quantized:
            shares = shares_of([F(float(row[e])) for e in order], None, r)
        else:
            shares = [shares_of(numbers(row), None, r)[e] for e in order]
        if attributes.get("normalize_routing_weights") and (given is not None or not quantized):
            total = r(sum(shares, F(0)))
            shares = [r(share / total) for share in shares] if total else shares
        made.append(list(zip(order, shares, strict=True)))
    return made


def activation(first: Values, third: Values | None, attributes: dict[str, Any], r: Callable[[F], F]) -> Values:
    kind = attributes.get("activation_type", "relu")
    if kind != "swiglu":
        made = [r(REAL[kind](x)) for x in first]
        return made if third is None else [r(a * b) for a, b in zip(made, third, strict=True)]
    width, fusion = len(first) // 2, attributes.get("swiglu_fusion", 0)
    if fusion == 1:
        first, third = first[::2], first[1::2]
    elif fusion == 2:
        first, third = first[:width], first[width:]
    assert third is not None
    if (limit := attributes.get("swiglu_limit")) is not None:
        most = r(F(float(np.float32(limit))))
        first, third = [min(x, most) for x in first], [max(-most, min(x, most)) for x in third]
    alpha, beta = attributes.get("activation_alpha", 1.0), r(F(float(np.float32(attributes.get("activation_beta", 0)))))
    return [r(r(swish(g, alpha)) * r(x + beta)) for g, x in zip(first, third, strict=True)]


def q_moe(x, probs, *rest, **attributes):
    """QMoE of integer weights; the inputs in the operator's order."""
    given = [*rest, *[None] * (13 - len(rest))]
    bits, block = attributes.get("expert_weight_bits", 4), attributes.get("block_size", 0)
    weights = [
        None if codes is None else dequantized(codes, scales, zeros, bits, block)
        for codes, scales, zeros in zip(given[0:9:3], given[1:9:3], given[9:12], strict=True)
    ]
    routed = routes(probs, given[12], attributes, True)
    made = experts(x.reshape(-1, x.shape[-1]), routed, weights, given[2:9:3], attributes)
    return made.reshape(x.shape)


def experts(
    x: np.ndarray,
    routed: Sequence[Any],
    weights: Sequence[list[list[Values]] | None],
    biases: Sequence[np.ndarray | None],
    attributes: dict[str, Any],
) -> np.ndarray:
    """x [tokens,width]; weights of fc1, fc2, fc3, and biases."""
    r, made = rounded(x.dtype), np.zeros_like(x)

    def project(number: int, expert: int, row: Values) -> Values:
        matrices, bias = weights[number], biases[number]
        assert matrices is not None
        added = [None] * len(matrices[expert]) if bias is None else numbers(bias[expert])
        return [F(chained(row, line, x.dtype, bias=b)) for line, b in zip(matrices[expert], added, strict=True)]

    for token, pairs in enumerate(routed):
        parts = []
        for expert, _ in pairs:
            row = numbers(x[token])
            third = None if weights[2] is None else project(2, expert, row)
            inner = activation(project(0, expert, row), third, attributes, r)
            parts.append(project(1, expert, inner))
        shares = [share for _, share in pairs]
        made[token] = [chained(shares, [part[n] for part in parts], x.dtype) for n in range(x.shape[1])]
    return made
