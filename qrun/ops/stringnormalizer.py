"""StringNormalizer."""

from __future__ import annotations

import numpy as np

from qrun.ir import Array
from qrun.ops._context import Context, refuse
from qrun.ops._op import op


@op("StringNormalizer", since=10)
def string_normalizer(
    X: Array,
    *,
    case_change_action: str = "NONE",
    is_case_sensitive: int = 0,
    locale: str | None = None,
    stopwords: tuple[str, ...] | None = None,
    ctx: Context,
) -> Array:
    """Strings [C] or [1,C] without stopwords, in upper or lower case (UPPER, LOWER, NONE); one "" where none is left.

    Unless is_case_sensitive, stopwords of any case go. Cases are those of Unicode, whatever the locale.
    Raises OperatorError for other shapes and actions. Source: ONNX operators, StringNormalizer-10.
    """
    if case_change_action not in ("NONE", "UPPER", "LOWER"):
        raise refuse(f"case_change_action is {case_change_action}", "case_change_action", "NONE, UPPER, LOWER",
                     case_change_action, code="QR204")  # fmt: skip
    if X.ndim not in (1, 2) or (X.ndim == 2 and X.shape[0] != 1):
        raise refuse("X is no line of strings", "X", "[C] or [1,C]", X, code="QR208")
    ctx.claim(X.shape, 8)
    words = set(stopwords or ())
    if not is_case_sensitive:
        words = {word.lower() for word in words}
    kept = [t for t in X.reshape(-1).tolist() if (t if is_case_sensitive else t.lower()) not in words] or [""]
    made = np.empty(len(kept), object)
    if case_change_action == "UPPER":
        kept = [text.upper() for text in kept]
    elif case_change_action == "LOWER":
        kept = [text.lower() for text in kept]
    made[:] = kept
    return made if X.ndim == 1 else made.reshape(1, -1)
