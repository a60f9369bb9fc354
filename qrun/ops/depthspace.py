"""DepthToSpace and SpaceToDepth."""

from __future__ import annotations

from qrun.ir import Array
from qrun.ir.types import shape_text
from qrun.ops._context import Context, refuse
from qrun.ops._op import op


@op("DepthToSpace", since=1, form="moves")
def depth_to_space(input: Array, *, blocksize: int, mode: str = "DCR", ctx: Context) -> Array:
    """Channels to blocks of pixels: [N,C,H,W] to [N,C/b/b,H*b,W*b], b = blocksize.

    mode: how the input's channels are counted: DCR by row in the block, column in the block, output channel;
    CRD by output channel, row, column. Exact.
    Raises OperatorError for another mode or rank, and for channels that b * b does not divide.
    Source: ONNX operators, DepthToSpace-28.
    """
    return _to_space(input, blocksize, mode, ctx)


@op("SpaceToDepth", since=1, form="moves")
def space_to_depth(input: Array, *, blocksize: int, mode: str = "DCR", ctx: Context) -> Array:
    """Blocks of pixels to channels: [N,C,H,W] to [N,C*b*b,H/b,W/b], b = blocksize; the inverse of DepthToSpace.

    mode: how the output's channels are counted, as in DepthToSpace. Exact.
    Raises OperatorError for another mode or rank, and for H or W that b does not divide.
    Source: ONNX operators, SpaceToDepth-28.
    """
    return _to_depth(input, blocksize, mode, ctx)


def _to_space(x: Array, block: int, mode: str, ctx: Context) -> Array:
    _check(x, block, mode, ((1, "channels", block * block),))
    ctx.claim(x.shape, x.itemsize)
    n, c, h, w = x.shape
    rest = c // (block * block)
    if mode == "DCR":
        blocks = x.reshape(n, block, block, rest, h, w).transpose(0, 3, 4, 1, 5, 2)
    else:
        blocks = x.reshape(n, rest, block, block, h, w).transpose(0, 1, 4, 2, 5, 3)
    return blocks.reshape(n, rest, h * block, w * block)


def _to_depth(x: Array, block: int, mode: str, ctx: Context) -> Array:
    _check(x, block, mode, ((2, "rows", block), (3, "columns", block)))
    ctx.claim(x.shape, x.itemsize)
    n, c, h, w = x.shape
    blocks = x.reshape(n, c, h // block, block, w // block, block)
    order = (0, 3, 5, 1, 2, 4) if mode == "DCR" else (0, 1, 3, 5, 2, 4)
    return blocks.transpose(order).reshape(n, c * block * block, h // block, w // block)


def _check(x: Array, block: int, mode: str, divided: tuple[tuple[int, str, int], ...]) -> None:
    if mode not in ("DCR", "CRD"):
        raise refuse("the mode does not exist", "mode", "DCR, CRD", mode, code="QR204")
    if not 1 <= block < 2**31:
        raise refuse("blocksize is out of range", "blocksize", "1 to 2147483647", block, code="QR204")
    if x.ndim != 4:
        raise refuse("input is not [N,C,H,W]", "input", "rank 4", x, code="QR208")
    for axis, what, divisor in divided:
        if x.shape[axis] % divisor:
            raise refuse(
                f"{x.shape[axis]} {what} do not divide into blocks",
                "input",
                f"{what} in multiples of {divisor}, for blocksize {block}",
                shape_text(x.shape),
                code="QR208",
            )
