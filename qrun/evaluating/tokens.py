"""Sequences of tokens for language models: the rows of a file, or windows of a long text."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from qrun.errors import CallError
from qrun.evaluating.samples import Sample, spec_identity
from qrun.io.arrays import bad_file
from qrun.io.decoder import Decoder
from qrun.io.rows import RowArray, RowFile, row_files
from qrun.ir import Array, Model
from qrun.ir.types import describe
from qrun.memory import Budget

CONTEXT = 512
"""The most tokens of a window, if neither the call nor the model says how many."""
TOKENS = "tokens"
"""The name under which a sample has its tokens, int64 [1,length]."""
_SCANNED = 1 << 20
_EXPECTED = "whole numbers: one axis of tokens, or two axes, whose rows are sequences"


def sequence_of(sample: Sample) -> Array:
    """The tokens of a sample, int64 [1,length]."""
    assert isinstance(sample.feed, Mapping)
    return sample.feed[TOKENS]


class TokenWindows:
    """The sequences of a file or array of token numbers, as a `DataSet`.

    given: integers [tokens], which are cut into windows of `context` tokens (the last one may be shorter, and is left
    out if it has a single token or if the model takes only full ones), or [sequences, length].
    context: None: as many as a model without caches takes in every run, or as its genai_config.json states, at most
    CONTEXT. tokens: the number of tokens in all sequences.

    Raises CallError if there are no sequences of two tokens or more, if tokens are outside a vocabulary, or if a
    sequence does not fit a model.
    """

    folders: tuple[str, ...] = ()

    def __init__(
        self,
        given: str | Array,
        models: Sequence[Model],
        decoders: Sequence[Decoder],
        context: int | None,
        budget: Budget,
    ) -> None:
        self._file = _open(given, budget)
        self.source = self._file.source
        _check_form(self._file)
        self._rows = len(self._file.shape) == 2
        if self._rows and context is not None:
            raise CallError(
                "QR005",
                "--context is for a text of one axis",
                where=[self.source],
                facts=[("got", f"rows of {self._file.shape[1]} tokens")],
                fixes=["omit --context", "np.save(path, tokens.reshape(-1)) writes one text"],
            )
        self._window = self._file.shape[1] if self._rows else context or min(map(_most, decoders))
        self._count, self.tokens = self._sequences(decoders)
        for model, decoder in zip(models, decoders, strict=True):
            self._check_length(model, decoder)
        digest = hashlib.sha256(f"{self._window} {self._file.shape}".encode())
        digest.update(
            spec_identity(given).encode("utf-8", "surrogateescape") if isinstance(given, str) else given.tobytes()
        )
        self.identity = digest.hexdigest()
        _check_words(self._file, models, decoders)

    def __len__(self) -> int:
        return self._count

    def read(self, place: int) -> Sample:
        """The sequence at this place."""
        start, stop = place * self._window, min((place + 1) * self._window, len(self._file))
        name = f"{self.source}[{place}]" if self._rows else f"{self.source}[{start}:{stop}]"
        try:
            found = self._file.read(place, place + 1) if self._rows else self._file.read(start, stop)[None]
        except CallError as error:
            return Sample(name, error)
        return Sample(name, {TOKENS: found.astype(np.int64)})

    def _sequences(self, decoders: Sequence[Decoder]) -> tuple[int, int]:
        """The number of sequences, and of their tokens."""
        if self._rows:
            return len(self._file), self._file.shape[0] * self._file.shape[1]
        whole, rest = divmod(len(self._file), self._window)
        fits = rest > 1 and all(decoder.length is None or rest % decoder.length == 0 for decoder in decoders)
        if not whole and not fits:
            got = f"{len(self._file)} tokens"
            raise bad_file(self.source, got, f"{self._window} tokens or more, as each run takes")
        return whole + fits, whole * self._window + rest * fits

    def _check_length(self, model: Model, decoder: Decoder) -> None:
        """Refuse sequences that the model cannot take."""
        size, length = self._window, decoder.length
        expected = ""
        if length is not None and (size % length if decoder.pasts else size != length):
            expected = f"{'a multiple of ' if decoder.pasts else ''}{length} tokens, as {model.label} takes in a run"
        elif decoder.context is not None and min(size, self._file.shape[-1]) > decoder.context:
            expected = f"at most {decoder.context} tokens, the context of {model.label}"
        if expected:
            fit = length or decoder.context
            fix = f"cut the rows to {fit} tokens" if self._rows else f"--context {fit}"
            facts = [("expected", expected), ("got", f"{size} tokens")]
            raise CallError(
                "QR003", "the sequences do not fit the model", where=[self.source], facts=facts, fixes=[fix]
            )


def _open(given: str | Array, budget: Budget) -> RowFile:
    if not isinstance(given, str):
        if not given.ndim:
            raise bad_file("tokens", "one number", _EXPECTED)
        return RowArray(given, "tokens")
    found = row_files(Path(given), budget)
    if len(found) != 1:
        raise bad_file(given, f"{len(found)} arrays", "one array of tokens")
    return next(iter(found.values()))


def _check_form(file: RowFile) -> None:
    """Refuse arrays that are no sequences of whole numbers."""
    got = describe(np.empty(0, file.dtype)).partition(" ")[0] + f" [{','.join(map(str, file.shape))}]"
    if file.dtype.kind not in "iu":
        fix = (
            "np.save(path, tokens.astype(np.int64))"
            if file.dtype.kind in "fb"
            else "write the numbers of the tokens, as a tokenizer gives them"
        )
        raise bad_file(file.source, got, _EXPECTED, fix=fix)
    if len(file.shape) not in (1, 2):
        raise bad_file(file.source, got, _EXPECTED, fix="np.save(path, tokens.reshape(-1)) writes one text")
    if not len(file) or file.shape[-1] < 2:
        raise bad_file(file.source, got, "sequences of 2 tokens or more: the second is the first that is predicted")


def _most(decoder: Decoder) -> int:
    """The length of a window that suits the model."""
    if decoder.length is not None and not decoder.pasts:
        return decoder.length
    return max(min(CONTEXT, decoder.context or CONTEXT), 2)


def _check_words(file: RowFile, models: Sequence[Model], decoders: Sequence[Decoder]) -> None:
    """Refuse tokens outside the smallest vocabulary that is known."""
    sizes = [(decoder.words, model.label) for model, decoder in zip(models, decoders, strict=True) if decoder.words]
    words, label = min(sizes, default=(None, ""))
    width = file.shape[1] if len(file.shape) == 2 else 1
    step = max(_SCANNED // width, 1)
    for start in range(0, len(file), step):
        part = file.read(start, min(start + step, len(file)))
        wrong = np.flatnonzero((part < 0) | (part >= words) if words is not None else part < 0)
        if wrong.size:
            place = start * width + int(wrong[0])
            where = f"{place // width},{place % width}" if len(file.shape) == 2 else str(place)
            known = "0 or more" if words is None else f"0 to {words - 1}, the vocabulary of {label}"
            raise CallError(
                "QR003",
                f"a token of {file.source} is outside the vocabulary",
                where=[file.source],
                facts=[("expected", known), ("got", f"{part.reshape(-1)[wrong[0]]} at [{where}]")],
                fixes=["write the tokens with the tokenizer of the model"],
            )
