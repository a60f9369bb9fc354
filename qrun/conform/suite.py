"""Reads and writes the frozen cases: an archive in the package, from which single cases are read. Also writes a case as
files in the layout of onnx.backend.test."""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from qrun.declare import grouped
from qrun.declare.frozen import frozen
from qrun.errors import CallError, close_matches
from qrun.ir import Array
from qrun.ir.tensorfile import tensor_bytes
from qrun.ir.types import DTYPES, NUMBERS
from qrun.ops._quantize import is_integer, limits

VERSION = "1.1"
ARCHIVE = Path(__file__).parent / f"suite-{VERSION}.zip"
INDEX = "suite.json"
PROFILES = {
    "core": "the text of the ONNX specification, for the operators of ai.onnx",
    "edge": "ends of ranges, infinities, NaN, zero sizes, extreme scales, and what must be refused",
    "contrib": "the operators of com.microsoft",
    "narrow": "types of 4, 2 and 6 bits, and float8",
    "graph": "a few nodes that an optimizer may rewrite",
    "lenient": "forms that the text excludes, though some runtimes take them: to refuse one is right",
}
FORCED, IMPLIED, DECISION = "forced", "implied", "decision"
"""What an answer rests on: the quoted sentences alone; the operator's formula or function body with them; or qrun's
decision, because the text is silent or open."""
ANSWER, EITHER, REFUSAL = "answer", "either", "refusal"
"""What a runtime shall do: answer; answer or refuse, because the text excludes the form; or refuse."""
MUSTPASS = "mustpass"
"""The word of --select for the cases that no one can argue with."""


def near_tie(dtype: Any) -> float:
    """The distance from a tie, in steps, within which a sound float32 arithmetic may round to the other code.

    Four roundings to float32 move a quotient of n levels by up to 4 * 2^-24 * n.
    """
    kind = np.dtype(dtype)
    low, high = limits(kind) if is_integer(kind) else (1, 2 ** (8 * kind.itemsize))
    return float(4.0 * 2.0**-24 * (high - low + 1))


@frozen
class CaseHead:
    """Identifies a case and its subject.

    id:     such as ``qlinearconv-10/per-channel/3d-tie-odd-zero``: operator and version, family, case.
    op:     the operator that is judged, with its domain and version; in a graph, those of the first operator.
    rule:   key of the rule that decides the case, such as ``QLinearConv-10 G1``; see `Suite.rule`.
    basis:  that rule's basis: ``forced``, ``implied`` or ``decision``.
    expects: ``answer``, ``either`` or ``refusal``.
    """

    id: str
    op: str
    domain: str
    version: int
    profile: str
    rule: str
    basis: str
    expects: str


@frozen
class CaseInfo(CaseHead):
    """A case's entry in the list of cases.

    mustpass: is the case one of the 400 that no one can argue with? block, start, length: its place in the archive.
    """

    mustpass: bool
    block: str
    start: int
    length: int


@frozen
class Quote:
    """A sentence of a specification, word by word. source: ``QLinearMatMul-10``, ``com.microsoft.QGemm-1``."""

    source: str
    text: str


@frozen
class Law:
    """The law of a case.

    title:   what is due, in a sentence. section: the number of the section of numerics.md that tells more.
    quotes:  the sentences that decide; for a decision, those that leave it open.
    note:    how the answer follows from them; for a decision, why this answer was chosen.
    """

    basis: str
    section: str
    title: str
    quotes: tuple[Quote, ...]
    note: str = ""


@frozen
class Alternative:
    """Another known answer to a case.

    cause, text: why runtimes give it. open: does the specification leave it open? runtimes: those that give it.
    """

    cause: str
    text: str
    open: bool
    runtimes: tuple[str, ...]
    outputs: Mapping[str, Array]


@frozen
class Case:
    """A case with its data.

    inputs, expected: arrays by name, in the order of the graph.
    exact:   for each rounded output, the real numbers before rounding, in steps of the output, without the zero point;
             float64.
    margin:  the distance of each of these from the nearest tie at which the result changes, in the same steps; float32.
    within:  the difference allowed for sums of floats, because the specification does not fix their precision.
    """

    info: CaseInfo
    model: bytes
    inputs: Mapping[str, Array]
    expected: Mapping[str, Array]
    exact: Mapping[str, Array]
    margin: Mapping[str, Array]
    within: float
    alternatives: tuple[Alternative, ...]


class Suite:
    """The cases of one archive. changes: what is new since the suite before; see scripts/_conformance_changes.py.

    Raises CallError if the archive cannot be read.
    """

    def __init__(self, path: Path = ARCHIVE) -> None:
        self.path = path
        try:
            self._archive = zipfile.ZipFile(path)
            index = json.loads(self._archive.read(INDEX))
        except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
            raise CallError("QR004", f"cannot read the suite {path}: {error}", where=[str(path)]) from None
        self.version = str(index["version"])
        self._rows: Sequence[Sequence[Any]] = index["cases"]
        self._rules: Mapping[str, Any] = index["rules"]
        self.changes: Mapping[str, Any] = index.get("changes", {})
        self._block: tuple[str, bytes] = ("", b"")

    @cached_property
    def sha256(self) -> str:
        """The SHA-256 of the archive."""
        return hashlib.sha256(self.path.read_bytes()).hexdigest()

    @cached_property
    def cases(self) -> tuple[CaseInfo, ...]:
        """All cases, in the archive's order."""
        return tuple(CaseInfo(*row) for row in self._rows)

    def rule(self, info: CaseHead) -> Law:
        """The rule that decides a case."""
        basis, section, title, quotes, note = self._rules[info.rule]
        return Law(basis, section, title, tuple(Quote(*quote) for quote in quotes), note)

    def select(self, words: Iterable[str]) -> list[CaseInfo]:
        """The cases that match words: ids, beginnings of ids, operators or profiles; see `FITS`.

        Words of one kind are alternatives: two operators mean either, an operator and a profile mean both.
        Raises CallError for a word that matches nothing, and if no case is left.
        """
        given = dict.fromkeys(part.strip() for words_ in words for part in words_.split(",") if part.strip())
        kinds = grouped(self._match(word) for word in given)
        chosen = [info for info in self.cases if all(any(info.id in ids for ids in kind) for kind in kinds.values())]
        if not chosen:
            named = frozenset().union(*kinds.get("operator", ()))
            profiles = dict.fromkeys(info.profile for info in self.cases if info.id in named)
            raise _no_case(
                ",".join(given),
                f"cases that match one word of each kind: {', '.join(kinds)}",
                f"the operators named have cases in {', '.join(profiles)}" if profiles else LIST,
            )
        return chosen

    def _match(self, word: str) -> tuple[str, frozenset[str]]:
        """The kind of a word of --select (profile, operator or id), and the ids of its cases. Raises CallError."""
        for kind, fits in FITS:
            ids = frozenset(info.id for info in self.cases if fits(info, word))
            if ids:
                return kind, ids
        known = [*PROFILES, MUSTPASS, *sorted({info.op for info in self.cases}), *(info.id for info in self.cases)]
        near = close_matches(word, known, 1, 0.5)
        raise _no_case(
            word,
            "a profile, an operator, or the prefix of a case id",
            f"--select {near[0]}" if near else LIST,
        )

    def load(self, info: CaseInfo) -> Case:
        """Read the data of a case."""
        if self._block[0] != info.block:
            self._block = info.block, self._archive.read(info.block)
        return unpack_case(info, self._block[1][info.start : info.start + info.length])


FITS: Sequence[tuple[str, Callable[[CaseInfo, str], bool]]] = (
    ("profile", lambda info, word: info.profile == word or (word == MUSTPASS and info.mustpass)),
    (
        "operator",
        lambda info, word: word.lower() in (info.op.lower(), f"{info.domain or 'ai.onnx'}::{info.op}".lower()),
    ),
    ("id", lambda info, word: info.id == word),
    ("id", lambda info, word: info.id.startswith(f"{word}/")),
    ("id", lambda info, word: info.id.startswith(word)),
)
"""What a word of --select may be, and whether a case matches it; the first that matches any case counts."""
LIST = "qrun conform --list shows all cases"


def _no_case(words: str, expected: str, fix: str) -> CallError:
    """The QR005 error of a --select that leaves no case."""
    return CallError("QR005", f"--select {words} matches no case", facts=[("expected", expected)], fixes=[fix])


def unpack_case(info: CaseInfo, data: bytes) -> Case:
    """Read a case from its part of a block: the head's length, the head as JSON, the model and the arrays' bytes."""
    size = int.from_bytes(data[:4], "little")
    head = json.loads(data[4 : 4 + size])
    offset = 4 + size + head["model"]
    model = data[4 + size : offset]

    def taken(rows: Iterable[Sequence[Any]]) -> dict[str, Array]:
        nonlocal offset
        found = {}
        for name, number, shape in rows:
            dtype = DTYPES[number]
            count = int(np.prod(shape, dtype=np.int64))
            found[name] = np.frombuffer(data, dtype, count, offset).reshape(shape)
            offset += count * dtype.itemsize
        return found

    inputs, expected, exact, margin = (taken(head[key]) for key in ("inputs", "expected", "exact", "margin"))
    others = tuple(
        Alternative(o["cause"], o["text"], o["open"], tuple(o["runtimes"]), taken(o["outputs"])) for o in head["others"]
    )
    return Case(info, model, inputs, expected, exact, margin, head["within"], others)


BLOCK = 48
"""The number of cases that are compressed together."""


def pack_case(case: Case) -> bytes:
    """Convert a case to the bytes that `qrun.conform.suite.unpack_case` reads."""
    arrays: list[Array] = []

    def rows(named: Mapping[str, Array]) -> list[list[Any]]:
        arrays.extend(named.values())
        return [[name, NUMBERS[a.dtype], list(a.shape)] for name, a in named.items()]

    head = {
        "model": len(case.model),
        "inputs": rows(case.inputs),
        "expected": rows(case.expected),
        "exact": rows(case.exact),
        "margin": rows(case.margin),
        "within": case.within,
        "others": [
            {"cause": o.cause, "text": o.text, "open": o.open, "runtimes": list(o.runtimes), "outputs": rows(o.outputs)}
            for o in case.alternatives
        ],
    }
    text = json.dumps(head, separators=(",", ":")).encode("ascii")
    return b"".join(
        [len(text).to_bytes(4, "little"), text, case.model, *(np.ascontiguousarray(a).tobytes() for a in arrays)]
    )


def write(path: Path, cases: Sequence[Case], rules: Mapping[str, Law], changes: Mapping[str, Any]) -> None:
    """Write the archive with the rules that its cases name; blocks follow the order of the cases.

    changes: see `Suite`.
    """
    rows, blocks = [], []
    for first in range(0, len(cases), BLOCK):
        name, body = f"cases/{first // BLOCK:03}.bin", b""
        for case in cases[first : first + BLOCK]:
            made = pack_case(case)
            rows.append(list(astuple(replace(case.info, block=name, start=len(body), length=len(made)))))
            body += made
        blocks.append((name, body))
    used = {case.info.rule for case in cases}
    index = {
        "format": "qrun/suite/1.1",
        "version": VERSION,
        "changes": changes,
        "rules": {key: astuple(rule) for key, rule in sorted(rules.items()) if key in used},
        "cases": rows,
    }
    text = json.dumps(index, separators=(",", ":"), ensure_ascii=True).encode("ascii")
    with zipfile.ZipFile(path, "w") as archive:
        for name, body in [(INDEX, text), *blocks]:
            info = zipfile.ZipInfo(name)
            info.external_attr = 0o644 << 16
            archive.writestr(info, body, zipfile.ZIP_DEFLATED, 9)


def case_files(case: Case) -> Iterator[tuple[str, bytes]]:
    """Paths and contents of ``model.onnx`` and of the tensors in ``test_data_set_0``, as onnx.backend.test has them."""
    yield "model.onnx", case.model
    for kind, arrays in (("input", case.inputs), ("output", case.expected)):
        for index, (name, array) in enumerate(arrays.items()):
            yield f"test_data_set_0/{kind}_{index}.pb", tensor_bytes(array, name)


def write_case(case: Case, folder: Path) -> None:
    """Write a case's files without the outputs, for a runtime that shall answer it."""
    (folder / "test_data_set_0").mkdir(parents=True, exist_ok=True)
    for path, data in case_files(replace(case, expected={})):
        (folder / path).write_bytes(data)
