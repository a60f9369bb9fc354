"""The errors that users see: what is wrong, where, expected and got, and what to type next."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

NAMES = {
    "QR000": "usage",
    "QR001": "missing-input",
    "QR002": "unknown-input",
    "QR003": "input-mismatch",
    "QR004": "no-such-file",
    "QR005": "bad-option",
    "QR006": "unknown-tensor",
    "QR007": "input-file",
    "QR008": "cannot-write",
    "QR009": "config",
    "QR010": "memory-limit",
    "QR011": "backend-failed",
    "QR012": "backend-missing",
    "QR013": "backend-refused",
    "QR014": "native-unavailable",
    "QR015": "backend-crashed",
    "QR016": "time-limit",
    "QR017": "target-file",
    "QR018": "custom-operator",
    "QR101": "not-a-model",
    "QR102": "invalid-graph",
    "QR103": "bad-tensor",
    "QR104": "external-data",
    "QR105": "unknown-domain",
    "QR106": "opset",
    "QR107": "function",
    "QR201": "unsupported-op",
    "QR202": "node-refused",
    "QR203": "type-not-allowed",
    "QR204": "bad-attribute",
    "QR205": "input-count",
    "QR206": "kernel-too-large",
    "QR207": "group-mismatch",
    "QR208": "shape-mismatch",
    "QR209": "index-range",
    "QR210": "node-failed",
    "QR214": "kernel-shape",
    "QR215": "pads-and-auto-pad",
    "QR216": "window-attribute",
    "QR301": "scale-shape",
    "QR302": "zero-point-shape",
    "QR303": "zero-point-type",
    "QR305": "bias-shape",
    "QR501": "output-differs",
    "QR502": "vector-form",
    "QR503": "missing-file",
    "QR504": "extra-file",
    "QR505": "not-replayed",
}
"""The name of each code that no rule has, or that errors share with a rule (then the rule's own name)."""


class QrunError(Exception):
    """Base of all errors qrun raises on purpose.

    code, name:  stable identifier and readable name, e.g. ``QR003`` and ``input-mismatch``, the code's in NAMES.
    message:     one sentence with the user's own words in it.
    where:       places from outer to inner: file, node, tensor.
    facts:       (label, value) pairs, at most about four.
    why:         the rule, in one sentence, where it helps.
    fixes:       what to type, at most two; ``qrun explain CODE`` if nothing closer is known.
    calls:       the same for a program that uses qrun; ``str`` shows them in place of `fixes`;
                 () if `fixes` fit a program too.
    """

    exit_code: ClassVar[int] = 70

    def __init__(
        self,
        code: str,
        message: str,
        *,
        name: str = "",
        where: Sequence[str] = (),
        facts: Sequence[tuple[str, str]] = (),
        why: str = "",
        fixes: Sequence[str] = (),
        calls: Sequence[str] = (),
    ) -> None:
        super().__init__(message)
        self.code = code
        self.name = name or NAMES.get(code, code)
        self.message = message
        self.where = tuple(where)
        self.facts = tuple(facts)
        self.why = why
        self.fixes = tuple(fixes) or (f"qrun explain {code}",)
        self.calls = tuple(calls)

    def __reduce__(self) -> tuple[Any, ...]:
        """Keeps all attributes when the error is pickled to another process."""
        return _restore, (type(self), self.message, self.__dict__.copy())

    def __str__(self) -> str:
        lines = [f"{self.code} {self.name}: {self.message}"]
        if self.where:
            lines.append("  --> " + "  ".join(self.where))
        width = max((len(label) for label, _ in self.facts), default=0)
        lines += [f"   |  {label:<{width}} {value}" for label, value in self.facts]
        if self.why:
            lines.append(f"   =  why: {self.why}")
        lines += [f"   =  fix: {fix}" for fix in self.calls or self.fixes]
        return "\n".join(lines)


def _restore(kind: type[QrunError], message: str, state: dict[str, Any]) -> QrunError:
    error = kind.__new__(kind, message)
    error.__dict__.update(state)
    return error


class CallError(QrunError):
    """The call is wrong: no such file, a missing input, a wrong type or shape (exit code 2)."""

    exit_code = 2


class ModelError(QrunError):
    """The model cannot be read: not ONNX, cut off, contradictory, external data missing (exit code 3)."""

    exit_code = 3


class UnsupportedError(QrunError):
    """The model is fine, but qrun cannot run it: operator, opset or type (exit code 4)."""

    exit_code = 4


class RunError(QrunError):
    """The run failed: a node refused its values, or a limit of memory or time was reached (exit code 5)."""

    exit_code = 5


class LimitError(RunError):
    """A run reached a limit that the caller has set."""


class MemoryLimitError(LimitError):
    """A tensor would exceed the memory limit."""


def out_of_memory_error(error: BaseException) -> MemoryLimitError:
    """The error for a machine, or a limit of the process, without memory left. error: the exception that said so."""
    return MemoryLimitError(
        "QR010",
        "the machine has no memory left for this run",
        facts=[("got", f"{type(error).__name__}: {error}"[:300])],
        fixes=["--shape with smaller sizes, or --max-memory SIZE to stop earlier"],
    )


class TimeLimitError(LimitError):
    """The run takes longer than allowed."""

    def in_turn(self, number: int) -> None:
        """Adds the iteration, counted from 1, that a graph inside a node had reached; the innermost one first."""
        turns = dict(self.facts).get("turn", "")
        others = [fact for fact in self.facts if fact[0] != "turn"]
        self.facts = (
            ("turn", f"{turns}, in iteration {number} of the one around it" if turns else f"{number}"),
            *others,
        )


class OperatorError(RunError):
    """A kernel refuses its inputs or attributes.

    param: name of the operator's input or attribute, as in the specification; the session adds node and tensor names.
    """

    def __init__(
        self,
        message: str,
        *,
        param: str = "",
        expected: str = "",
        got: str = "",
        why: str = "",
        fix: str = "",
        code: str = "QR202",
    ) -> None:
        facts = [(label, value) for label, value in (("expected", expected), ("got", got)) if value]
        super().__init__(code, message, facts=facts, why=why, fixes=[fix] if fix else [])
        self.param = param


def some(names: Sequence[str], most: int = 4) -> str:
    """The first `most` of these names, and the number of the others."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def percent(share: float, digits: int = 1) -> str:
    """``24.1 %`` of a share from 0 to 1."""
    return f"{share * 100:.{digits}f} %"


def absent(path: str) -> tuple[str, str]:
    """Why a path cannot be read, "" if something is there; and what to do, "" if simply nothing has that name."""
    try:
        os.stat(path)
    except (OSError, ValueError) as error:
        fix = "" if isinstance(error, (FileNotFoundError, NotADirectoryError)) else "check the path"
        fix = f"it is a link to {os.readlink(path)}: check its target" if os.path.islink(path) else fix
        return getattr(error, "strerror", None) or str(error), fix
    return "", ""


def choose(what: str, value: str, allowed: Sequence[str]) -> None:
    """Raises CallError if the value is not one of those allowed."""
    if value not in allowed:
        near = suggest(value, allowed)
        fixes = [f"did you mean {near!r}?"] if near else []
        facts = [("expected", ", ".join(allowed))]
        raise CallError("QR005", f"{what} {value!r} does not exist", facts=facts, fixes=fixes)


FULL_NAMES = {"onnxruntime": "ort", "onnx.reference": "onnx-ref", "onnx": "onnx-ref"}
"""Common names of the runtimes for which qrun has short names."""


def suggest(value: str, allowed: Iterable[str]) -> str:
    """The allowed value that was probably meant; "" if none is similar."""
    known = list(allowed)
    full = FULL_NAMES.get(value.lower(), "")
    return full if full in known else next(iter(close_matches(value, known)), "")


def close_matches(word: str, known: Iterable[str], count: int = 1, cutoff: float = 0.6) -> list[str]:
    """The known words that are like a word, the best first."""
    from difflib import get_close_matches

    return get_close_matches(word, list(known), count, cutoff)
