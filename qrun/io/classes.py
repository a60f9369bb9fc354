"""``--classes``: the names of a model's classes."""

from __future__ import annotations

import json
from pathlib import Path

from qrun.io.arrays import bad_file, no_such_file

_LIST = "a .json list of names, or one name per line"


def read_classes(path: str) -> tuple[str, ...]:
    """Read the class names in the order of the model's scores: a JSON list, or a text file with one name per line;
    empty lines at its end do not count. Raises CallError."""
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
            names = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise bad_file(path, str(error), _LIST) from None
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise bad_file(path, "other JSON", "a list of names", fix="json.dump(list_of_names, file)")
    if not names:
        raise bad_file(path, "no names", _LIST)
    return tuple(names)
