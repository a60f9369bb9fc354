"""Decoders: models that predict the next token. Recognizes their inputs and outputs, and makes the feeds of a run.

The names are those of a genai_config.json beside the model, or else those that Hugging Face's exporters write:
input_ids [batch,seq], attention_mask [batch,total] of ones, position_ids [batch,seq], use_cache_branch [1]; keys and
values of earlier tokens as past_key_values.0.key, past.0.key, past_key_0 or past_0, with present.0.key, present_key_0
or present_0 among the outputs; logits [batch,seq,vocabulary].
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping

import numpy as np

from qrun.declare.frozen import frozen
from qrun.errors import CallError, QrunError, some
from qrun.io.feeds import COUNTED, EMPTY, FULL
from qrun.ir import Array, Model, TensorType
from qrun.ir.genai import GENAI, GenaiConfig, read_config

_TOKENS, _MASK, _POSITIONS, _BRANCH = "input_ids", "attention_mask", "position_ids", "use_cache_branch"
_LOGITS = "logits"
_CACHE = re.compile(
    r"(?P<side>past|present)(?:_key_values)?[._](?:(?P<before>key|value)[._])?(?P<layer>\d{1,6})(?:[._](?P<after>key|value))?"
)
_KINDS = ("key", "value", "")
"""The parts of a layer's cache; "" where one tensor has both."""


@frozen
class Past:
    """A cache of keys, values or both, of one layer. name, present: the input, and the output that it gets next.
    shape: before the first token; dtype: of the elements."""

    name: str
    present: str
    dtype: np.dtype
    shape: tuple[int, ...]

    @property
    def batch(self) -> int:
        """The batch axis: the second one where one tensor has keys and values."""
        return len(self.shape) - 4

    @property
    def axis(self) -> int:
        """The axis of the tokens."""
        return self.shape.index(0)


@frozen
class Decoder:
    """The inputs and outputs of a model that predicts tokens.

    tokens: the input of tokens. mask, positions, branch: the inputs of these roles, None if the model has none.
    logits: the output. pasts: the caches. words: the size of the vocabulary, context: the most tokens; None: unknown.
    stated: does a genai_config.json say that this is a decoder?
    """

    tokens: TensorType
    mask: TensorType | None
    positions: TensorType | None
    branch: TensorType | None
    logits: str
    pasts: tuple[Past, ...]
    words: int | None
    context: int | None
    stated: bool

    @property
    def sure(self) -> bool:
        """Whether it is a decoder and no encoder, whose inputs and outputs can be the same."""
        return bool(self.pasts) or self.stated

    @property
    def length(self) -> int | None:
        """The number of tokens of every run; None if it is free."""
        size = (self.tokens.shape or (None, None))[1]
        return size if isinstance(size, int) else None

    @property
    def outputs(self) -> list[str]:
        """The outputs that matter: the logits, and the caches for the next run."""
        return [self.logits, *(past.present for past in self.pasts)]

    def empty(self, batch: int = 1) -> dict[str, Array]:
        """The caches before the first token."""
        return {past.name: np.repeat(np.zeros(past.shape, past.dtype), batch, past.batch) for past in self.pasts}

    def carried(self, outputs: Mapping[str, Array]) -> dict[str, Array]:
        """The caches for the next run, from the outputs of this one."""
        return {past.name: outputs[past.present] for past in self.pasts}

    def feeds(self, tokens: Array, before: int = 0) -> dict[str, Array]:
        """The inputs of a run except for caches. tokens: integers [batch,seq]; before: the number of cached tokens."""
        batch, end = len(tokens), before + tokens.shape[1]
        made = {
            _MASK: np.ones((batch, end), np.int64),
            _POSITIONS: np.tile(np.arange(before, end), (batch, 1)),
            _BRANCH: np.array([before > 0]),
        }
        roles = {_MASK: self.mask, _POSITIONS: self.positions, _BRANCH: self.branch}
        used = [(value, made[role]) for role, value in roles.items() if value is not None]
        return {value.name: array.astype(value.dtype) for value, array in [(self.tokens, tokens), *used]}


def find_decoder(model: Model) -> Decoder | None:
    """The model as a decoder; None if it is none."""
    try:
        return decoder_of(model)
    except QrunError:
        return None


def complete(model: Model, arrays: dict[str, Array], sources: dict[str, str]) -> None:
    """If the model is a decoder whose tokens are given, add the inputs that follow from them: empty caches, a full
    mask, and positions."""
    decoder = find_decoder(model)
    tokens = arrays.get(decoder.tokens.name) if decoder is not None else None
    if decoder is None or tokens is None or tokens.ndim != 2:
        return
    empty = decoder.empty(len(tokens))
    cached = [(past, arrays[past.name]) for past in decoder.pasts if past.name in arrays]
    before = {array.shape[past.axis] for past, array in cached if array.ndim == len(past.shape)}
    if cached and (len(cached) < len(empty) or len(before) != 1):
        return
    made = {**decoder.feeds(tokens, before.pop() if before else 0), **({} if cached else empty)}
    full = decoder.mask.name if decoder.mask is not None else ""
    for name in [value.name for value in model.inputs if value.name in made and value.name not in arrays]:
        arrays[name] = made[name]
        sources[name] = EMPTY if name in empty else FULL if name == full else COUNTED


def decoder_of(model: Model) -> Decoder:
    """The model as a decoder. Raises CallError, which names what is missing, if it is none; ModelError for a damaged
    genai_config.json beside it."""
    config = _config(model)
    named: Mapping[str, str] = config.inputs if config else {}
    inputs = {value.name: value for value in model.inputs}
    outputs = {value.name: value for value in model.outputs}
    tokens = _tokens(model, inputs, named.get(_TOKENS, _TOKENS))
    roles = {role: inputs.get(named.get(role, role)) for role in (_MASK, _POSITIONS, _BRANCH)}
    for role, rank in ((_MASK, 2), (_POSITIONS, 2), (_BRANCH, 1)):
        value = roles[role]
        if value is not None and len(value.shape or (0,) * rank) != rank:
            raise _no_decoder(model, f"input {value.name!r} has another form", f"{rank} axes", str(value))
    caches = dict(_caches(model, config, inputs, "past"))
    presents = dict(_caches(model, config, outputs, "present"))
    pasts = tuple(_past(model, inputs[name], key, presents) for key, name in sorted(caches.items()))
    known = {tokens.name, *caches.values(), *(value.name for value in roles.values() if value is not None)}
    for name in inputs:
        if name not in known:
            what = f"input {name!r} is none that qrun can fill"
            raise _no_decoder(
                model, what, f"{_TOKENS}, {_MASK}, {_POSITIONS}, past_key_values.N.key ...", str(inputs[name])
            )
    logits = _logits(model, outputs, config.outputs.get(_LOGITS, _LOGITS) if config else _LOGITS, presents)
    last = (logits.shape or (None,))[-1]
    words = last if isinstance(last, int) else config.words if config else None
    found = (tokens, roles[_MASK], roles[_POSITIONS], roles[_BRANCH], logits.name, pasts)
    return Decoder(*found, words, config.context if config else None, config is not None)


def _config(model: Model) -> GenaiConfig | None:
    """The genai_config.json beside the model, if it names this model."""
    if model.path is None or not os.path.isfile(model.path.parent / GENAI):
        return None
    config = read_config(model.path.parent)
    return config if config.file.resolve() == model.path.resolve() else None


def _tokens(model: Model, inputs: Mapping[str, TensorType], name: str) -> TensorType:
    """The input of tokens: that of this name, or else the only input of integers with two axes and no known name."""
    fitting = [value for value in inputs.values() if _is_tokens(value) and value.name not in (_MASK, _POSITIONS)]
    found = inputs.get(name) or (fitting[0] if len(fitting) == 1 else None)
    if found is None:
        got = some([f"{value.name} {value}" for value in inputs.values()]) or "no inputs"
        raise _no_decoder(model, "no input takes tokens", f"{name}, int64 or int32 [batch,seq]", got)
    if not _is_tokens(found) or not _is_one((found.shape or (1,))[0]):
        expected = "int64 or int32 [1,seq] or [batch,seq]"
        raise _no_decoder(model, f"input {found.name!r} takes no tokens", expected, str(found))
    return found


def _is_tokens(value: TensorType) -> bool:
    return value.dtype in (np.int64, np.int32) and len(value.shape or (0, 0)) == 2


def _logits(
    model: Model, outputs: Mapping[str, TensorType], name: str, presents: Mapping[tuple[int, str], str]
) -> TensorType:
    """The output of logits: that of this name, or else the only other one that is no cache."""
    others = [value for value in outputs.values() if value.name not in presents.values()]
    found = outputs.get(name) or (others[0] if len(others) == 1 else None)
    fits = found is not None and found.kind == "tensor" and len(found.shape or (0, 0, 0)) == 3
    if found is None or not fits or found.dtype is None or found.dtype.kind in "iubOS":
        got = some([f"{value.name} {value}" for value in outputs.values()]) or "no outputs"
        raise _no_decoder(model, "no output holds logits", f"{name}, float [batch,seq,vocabulary]", got)
    return found


def _caches(
    model: Model, config: GenaiConfig | None, values: Mapping[str, TensorType], side: str
) -> Iterator[tuple[tuple[int, str], str]]:
    """Yield layer and part, and name, of each cache among inputs (``past``) or outputs (``present``)."""
    stated = (config.inputs if side == "past" else config.outputs) if config else {}
    patterns = {kind: stated.get(f"{side}_{kind}_names" if kind else f"{side}_names", "") for kind in _KINDS}
    for name in values:
        for kind, pattern in patterns.items():
            before, number, after = pattern.partition("%d")
            middle = name[len(before) : len(name) - len(after)]
            if number and name.startswith(before) and name.endswith(after) and middle.isascii() and middle.isdigit():
                yield (int(middle), kind), name
                break
        else:
            found = None if any(patterns.values()) else _CACHE.fullmatch(name)
            if found is not None and found["side"] == side:
                yield (int(found["layer"]), found["before"] or found["after"] or ""), name


def _past(model: Model, value: TensorType, key: tuple[int, str], presents: Mapping[tuple[int, str], str]) -> Past:
    """A cache with its output and its shape before the first token."""
    layer, kind = key
    if key not in presents:
        wanted = (
            f"an output for {kind or 'keys and values'} of layer {layer}: present.{layer}{'.' if kind else ''}{kind}"
        )
        got = some(list(presents.values())) or "no output of that kind"
        raise _no_decoder(model, f"input {value.name!r} is a cache without an output", wanted, got)
    shape = value.shape or ()
    batch = 0 if kind else 1
    free = [axis for axis, size in enumerate(shape) if not isinstance(size, int) and axis != batch]
    if value.dtype is None or len(shape) != batch + 4 or len(free) != 1 or not _is_one(shape[batch]):
        expected = "[batch,heads,tokens,size]" if kind else "[2,batch,heads,tokens,size]"
        expected += " with free tokens, and a batch that is free or 1"
        raise _no_decoder(model, f"input {value.name!r} is a cache of another form", expected, str(value))
    sizes = [1 if axis == batch else size if isinstance(size, int) else 0 for axis, size in enumerate(shape)]
    return Past(value.name, presents[key], value.dtype, tuple(sizes))


def _is_one(size: int | str | None) -> bool:
    """Can this size be 1?"""
    return size == 1 or not isinstance(size, int)


def _no_decoder(model: Model, what: str, expected: str, got: str) -> CallError:
    return CallError(
        "QR003",
        f"{model.label} is no decoder that qrun recognizes: {what}",
        name="no-decoder",
        where=[model.label],
        facts=[("expected", expected), ("got", got)],
        fixes=[f"give the model's names in a {GENAI} beside it (qrun explain decoder)"],
    )
