"""``--classes``: the names of a model's classes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from qrun.io.arrays import bad_file, no_such_file

_LIST = "a .json list of names, a tokenizer's vocab.json or tokenizer.json, or one name per line"
_MOST = 1 << 24
"""The most tokens of a vocabulary."""


def read_classes(path: str) -> tuple[str, ...]:
    """Read the class names in the order of the model's scores: a JSON list, the vocabulary of a tokenizer (vocab.json,
    tokenizer.json), or a text file with one name per line; empty lines at its end do not count. Raises CallError."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise bad_file(path, str(error), _LIST) from None
    except (OSError, ValueError) as error:
        raise no_such_file(path, error) from None
    if not path.lower().endswith(".json"):
        names = [line.strip() for line in text.rstrip().splitlines()]
    else:
        try:
            found = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise bad_file(path, str(error), _LIST) from None
        found = _vocabulary(found) if isinstance(found, dict) else found
        if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
            raise bad_file(path, "other JSON", "a list of names", fix="json.dump(list_of_names, file)")
        names = found
    if not names:
        raise bad_file(path, "no names", _LIST)
    return tuple(names)


def _vocabulary(found: dict[str, Any]) -> list[str] | None:
    """The tokens of a tokenizer in the order of their numbers; "" for a number without one. None if it is none."""
    model = found.get("model")
    known = model.get("vocab") if isinstance(model, dict) else found
    if isinstance(known, list):  # pairs of a token and its score
        known = {pair[0]: at for at, pair in enumerate(known) if isinstance(pair, list) and pair}
    if not isinstance(known, dict):
        return None
    more = found.get("added_tokens")
    added = [each for each in more if isinstance(each, dict)] if isinstance(more, list) else []
    pairs = [*known.items(), *((each.get("content"), each.get("id")) for each in added)]
    if not all(isinstance(name, str) and type(at) is int and 0 <= at < _MOST for name, at in pairs):
        return None
    names = [""] * (max((at for _, at in pairs), default=-1) + 1)
    for name, at in pairs:
        names[at] = name
    return names
