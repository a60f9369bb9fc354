"""What ``qrun compare`` compares, by what A and B are, and which options go with them."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qrun.errors import CallError, absent


def kind_of(options: Mapping[str, Any]) -> str:
    """What A and B are. Raises CallError where they do not go together."""
    a, b = options["a"], options["b"]
    if options["others"][1:]:
        refuse(options, ("against", "arith", "emulate", "isolate", "record"))
        return "candidates"
    first, second = _suffix(a), _suffix(b) if b else ""
    files = first in (".npz", ".json")
    if b in ("", "-") or options["record"] == "":
        raise unfit("B and --record name files, - is for A only", "a path", "-" if b == "-" else "an empty name")
    if b is None:
        if files:
            raise unfit("a second file is missing", f"two {first} files", a, f"qrun compare {a} OTHER{first}")
        for name in ("against", "arith", "record"):
            if options["emulate"] and options[name]:
                got = f"--emulate {options['emulate']} --{name} {options[name]}"
                message = f"--emulate compares two sides of its own, without --{name}"
                raise unfit(message, "one of them", got, f"leave out --{name}")
        return "record" if options["record"] else "runtimes"
    if files or second in (".npz", ".json"):
        if first != second:
            raise unfit("these two cannot be compared", "two .npz files, or two .json files", f"{a} and {b}")
        refuse(options, ("against", "arith", "emulate", "isolate", "record", "inputs", "random", "shape"))
        return first[1:]
    if options["record"]:
        raise unfit("--record takes one model", "qrun compare MODEL --record DIR", f"{a} and {b}", "leave B out")
    if os.path.isdir(b):
        refuse(options, ("emulate", "isolate"))
        return "recorded"
    if not second and not os.path.exists(b):
        why, fix = absent(b)
        fixes = [fix or f"qrun compare {shlex.quote(a)} --record {shlex.quote(b)} makes a record"]
        raise CallError("QR004", f"cannot read {b!r} as a model, file or record: {why}", where=[b], fixes=fixes)
    refuse(options, ("against", "arith", "emulate", "isolate"))
    return "models"


def _suffix(path: str) -> str:
    return Path(path).suffix.lower()


def refuse(options: Mapping[str, Any], names: tuple[str, ...]) -> None:
    given = [f"--{name}" for name in names if options[name]]
    if given:
        raise unfit(
            f"{given[0]} does not fit these arguments",
            f"qrun compare A B without {', '.join(given)}",
            f"{options['a']} and {options['b']}",
            f"leave out {given[0]}, or B",
        )


def unfit(message: str, expected: str, got: str, fix: str = "qrun compare -h") -> CallError:
    return CallError("QR005", message, facts=[("expected", expected), ("got", got)], fixes=[fix])
