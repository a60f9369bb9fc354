"""DeformConv: a convolution whose samples lie where another tensor says."""

from __future__ import annotations

import itertools
import math

import numpy as np

from qrun.ops._conv import ConvGeometry, check_bias, conv_macs, conv_window
from qrun.ops._float import narrow, widen
from qrun.ops._op import Array, Context, misfit, op, refuse
from qrun.ops._window import SlidingWindow


@op("DeformConv", since=19, cost=conv_macs)
def deform_conv(
    X: Array,
    W: Array,
    offset: Array,
    B: Array | None = None,
    mask: Array | None = None,
    *,
    dilations: tuple[int, ...] = (),
    group: int = 1,
    kernel_shape: tuple[int, ...] = (),
    offset_group: int = 1,
    pads: tuple[int, ...] = (),
    strides: tuple[int, ...] = (),
    ctx: Context,
) -> Array:
    """Conv of X [N,C,spatial...] and W [M,C/group,kernel...], whose samples lie at offsets from their places, times mask.

    offset [N,offset_group*K*r,out...]: for each group of channels and each of the K taps how far to go along the r spatial
    axes; mask [N,offset_group*K,out...], 1 if left out; B [M]. A sample between elements is that of straight lines
    between them; elements outside X are 0. In float64 and rounded once; the order of additions is not fixed.
    Raises OperatorError for shapes that do not fit, and offsets that are no numbers.
    """
    geometry = ConvGeometry(dilations=dilations, group=group, kernel_shape=kernel_shape, pads=pads, strides=strides)
    win = conv_window(X, W, geometry, ("X", "W"))
    check_bias(B, W.shape[0])
    taps, places, rank = math.prod(win.kernel), math.prod(win.out), X.ndim - 2
    if offset_group < 1 or X.shape[1] % offset_group:
        expected = f"a divisor of {X.shape[1]}"
        raise refuse("channels do not fit offset_group", "offset_group", expected, offset_group, code="QR207")
    for name, given, count in (("offset", offset, taps * rank), ("mask", mask, taps)):
        shape = (len(X), offset_group * count, *win.out)
        if given is not None and given.shape != shape:
            raise misfit(f"{name} does not fit", name, str(list(shape)), given)
    if not np.isfinite(widen(offset)).all():
        raise refuse("offset has a place that is no number", "offset", "finite numbers", "NaN or infinity")
    ctx.claim((len(X), W.shape[0], places), 8)
    ctx.claim((X.shape[1], taps, places), 40, "samples")
    made = np.empty((len(X), group, W.shape[0] // group, places))
    away = offset.reshape(len(X), offset_group, taps, rank, places)
    shares = None if mask is None else mask.reshape(len(X), offset_group, 1, taps, places)
    weights = widen(W).reshape(group, W.shape[0] // group, -1)
    with np.errstate(all="ignore"):
        for image in range(len(X)):
            samples = _samples(widen(X[image]), widen(away[image]), win)
            if shares is not None:
                samples = samples * widen(shares[image])
            made[image] = weights @ samples.reshape(group, -1, places)
        if B is not None:
            made += widen(B).reshape(group, -1, 1)
    return narrow(made.reshape(len(X), W.shape[0], *win.out), X.dtype)


def _samples(image: Array, away: Array, win: SlidingWindow) -> Array:
    """The samples [groups,C/groups,taps,places] of an image [C,spatial...]; away [groups,taps,r,places]."""
    size, groups = image.shape[1:], len(away)
    flat = image.reshape(groups, -1, math.prod(size))
    taps, outs = np.indices(win.kernel).reshape(len(size), -1, 1), np.indices(win.out).reshape(len(size), 1, -1)
    at = [
        taps[a] * win.dilations[a] + outs[a] * win.strides[a] - win.begin[a] + away[:, :, a] for a in range(len(size))
    ]
    starts = [np.floor(place) for place in at]
    total = np.zeros((*flat.shape[:2], *away.shape[1:2], away.shape[3]))
    for corner in itertools.product((0, 1), repeat=len(size)) if flat.size else ():
        share, index = np.ones(at[0].shape), np.zeros(at[0].shape, np.int64)
        for place, start, further, n in zip(at, starts, corner, size, strict=True):
            here = start + further
            inside = (here >= 0) & (here < n)
            share *= np.where(inside, 1 - np.abs(place - here), 0)
            index = index * n + np.where(inside, here, 0).astype(np.int64)
        for g in range(groups):
            total[g] += np.where(share[g] != 0, flat[g][:, index[g]] * share[g], 0)
    return total
