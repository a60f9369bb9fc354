"""Where windows lie."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from qrun.comparing.causes._cause import Hypothesis, cause
from qrun.comparing.causes._suspect import Suspect

_SPEC = "ONNX operators, Conv and MaxPool: auto_pad; onnx shape inference clamps the padding at 0"


@cause("negative-padding", rank=22, source=_SPEC)
def negative_padding(s: Suspect) -> Iterator[Hypothesis]:
    """With SAME_* and strides longer than the kernel, the computed padding is below 0 and crops the input.

    To confirm: Set explicit pads (0) in place of auto_pad: the difference is gone.

    To do: Replace auto_pad by explicit pads.
    """
    x, auto_pad = (s.args[0] if s.args else None), s.node.attributes.get("auto_pad")
    w = s.arg("w")
    if x is None or x.ndim < 3 or auto_pad not in ("SAME_UPPER", "SAME_LOWER") or s.definition is None:
        return
    rank = x.ndim - 2
    kernel = s.node.attributes.get("kernel_shape") or (w.shape[2:] if w is not None else ())
    strides = s.node.attributes.get("strides") or (1,) * rank
    dilations = s.node.attributes.get("dilations") or (1,) * rank
    if not isinstance(kernel, tuple) or not isinstance(strides, tuple) or not isinstance(dilations, tuple):
        return
    cut = []
    for size, k, step, apart in zip(x.shape[2:], kernel, strides, dilations, strict=True):
        total = (-(-size // step) - 1) * step + (k - 1) * apart + 1 - size
        if total > 0:
            return
        half = -total // 2
        cut.append(half if auto_pad == "SAME_UPPER" else -total - half)
    if any(cut):
        cropped = np.ascontiguousarray(x[(slice(None), slice(None), *(slice(c, None) for c in cut))])
        made = s.evaluate(attributes={"auto_pad": "VALID"}, inputs={s.definition.inputs[0].name: cropped})
        if made is not None:
            yield Hypothesis(
                made, f"padding below 0 crops {cut[0] if len(cut) == 1 else cut} elements before the first"
            )
