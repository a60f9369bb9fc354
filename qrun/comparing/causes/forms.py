"""The same nodes in another form: fused to integer operators, or as written."""

from __future__ import annotations

from collections.abc import Iterator

from qrun.comparing.causes._cause import Hypothesis, cause
from qrun.comparing.causes._suspect import Suspect


@cause(
    "fused-requantization",
    rank=45,
    source="onnxruntime, graph optimizations: QDQ selectors and transformers; qrun.passes.fuse_qdq",
)
def fused_requantization(s: Suspect) -> Iterator[Hypothesis]:
    """DequantizeLinear-operator-QuantizeLinear groups run as one integer operator that rounds once, or the reverse.

    To confirm: qrun compare MODEL -i X --against fused shows the same difference without another runtime.

    To do: Decide which of the two the target computes: qrun run --fuse gives what integer operators give, --no-fuse
    the graph as written. Each group may differ by a step of its result, which later ones can make more of: --lsb 1 with
    --isolate allows for that; without --isolate it does where nothing adds up.
    """
    for made, text in s.formed("fused-requantization"):
        yield Hypothesis(made, text)
