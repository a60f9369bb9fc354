"""Damaged models: bytes flipped, cut, inserted, and fields set to hostile values; and models that are only unusual:
names of a million characters or a million times over, ranks to 64, nodes without inputs or outputs, axes without
elements (mutator_models.py). Deterministic for a seed.

``cd tests; python -m helpers.mutator ROUNDS [SEED]`` gives each to one of the commands in turn and reports what it
answered.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError, Message

from helpers import mutator_models
from helpers.graphs import empty, random_graph
from helpers.whole_heads import detector, pipeline
from helpers.whole_recurrent import tagger, translator, voice_activity
from helpers.whole_transformers import merged_decoder
from helpers.whole_values import texts

MODELS = Path(__file__).resolve().parents[2] / "models"
NUMBERS = [0, 1, -1, 2, 3, 7, 64, 255, 256, 65537, 2**31 - 1, 2**31, -(2**31), 2**40, 2**62, 2**63 - 1, -(2**63)]
COMMANDS = (
    ["run", "MODEL"],
    ["run", "MODEL", "--random", "-t", "*", "-o", "TENSORS"],
    ["run", "MODEL", "--random", "--backend", "reference", "--json"],
    ["run", "MODEL", "--random", "--trace", "TRACE", "-v"],
    ["check", "MODEL", "--json"],
    ["check", "MODEL"],
    ["check", "MODEL", "--format", "github", "-o", "sarif=SARIF", "-o", "junit=JUNIT", "-o", "markdown=NOTES"],
    ["inspect", "MODEL", "--nodes"],
    ["inspect", "MODEL", "-t", "*", "--json"],
    ["profile", "MODEL", "--random", "-n", "1", "--backend", "reference"],
    ["profile", "MODEL", "--random", "-n", "1", "--by", "op", "--json"],
    ["compare", "MODEL", "--random", "--against", "reference"],
    ["compare", "MODEL", "--random", "--against", "fused", "--json"],
    ["compare", "MODEL", "MODEL", "--random", "--format", "markdown"],
    ["compare", "MODEL", "--random", "--record", "RECORD"],
    ["report", "MODEL", "--random", "-n", "1", "--output", "PAGE"],
    ["report", "MODEL", "--random", "-n", "1", "--against", "reference", "--output", "PAGE"],
)
"""What a damaged model is given to; the words in capitals stand for paths."""
SLOW, SLOWER, LARGE = 10.0, 4.0, 4 << 30
"""CPU seconds that a command may take, and more for each MB of the model; bytes that the process may take in all."""
WRITTEN = {
    "RECORD": "record", "PAGE": "page.html", "TENSORS": "out.npz", "TRACE": "trace.json", "SARIF": "c.sarif",
    "JUNIT": "c.xml", "NOTES": "c.md",
}  # fmt: skip
FLOATS = [0.0, -0.0, 1e-45, 1e38, -1.0, float("inf"), float("nan"), 0.5, 1e9]


def seeds() -> list[bytes]:
    """The committed models below 200 kB, networks with axes without elements, and models with graphs inside, recurrent
    nodes, texts, sequences, optional values and maps."""
    committed = [p.read_bytes() for p in sorted(MODELS.rglob("*.onnx")) if p.stat().st_size < 200_000]
    empties = [random_graph(seed).SerializeToString() for seed in range(60) if empty(seed)]
    cases = [
        tagger("LSTM"),
        tagger("GRU"),
        voice_activity(),
        translator(),
        merged_decoder(),
        detector(False),
        pipeline(True),
    ]
    whole = [*(case.model for case in cases), *texts().values()]
    return committed + empties + 2 * [model.SerializeToString() for model in whole]


def flip(data: bytes, rng: random.Random) -> bytes:
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 5, 20))):
        out[rng.randrange(len(out))] = rng.randrange(256)
    return bytes(out)


def cut(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data))]


def splice(data: bytes, rng: random.Random) -> bytes:
    a, b, at = sorted(rng.randrange(len(data)) for _ in range(3))
    return data[:a] + data[at:] + data[a:b] if rng.random() < 0.5 else data[:b] + data[a:]


def _leaves(message: Message) -> Iterator[tuple[Message, object]]:
    for descriptor, value in message.ListFields():
        yield message, descriptor
        if descriptor.type == descriptor.TYPE_MESSAGE:
            for item in value if descriptor.is_repeated else [value]:
                yield from _leaves(item)


def fields(data: bytes, rng: random.Random) -> bytes:
    """Set one to four fields of the parsed model to another value, or swap, drop or repeat list items."""
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except DecodeError:
        return data
    for _ in range(rng.choice((1, 1, 2, 4))):
        leaves = list(_leaves(model))
        message, descriptor = rng.choice(leaves)
        _change(message, descriptor, rng)
    return model.SerializeToString()


def _change(message: Message, descriptor: object, rng: random.Random) -> None:
    name, kind = descriptor.name, descriptor.type
    if descriptor.is_repeated:
        items = getattr(message, name)
        at, other = rng.randrange(len(items)), rng.randrange(len(items))
        action = rng.randrange(4)
        if action == 0:
            del items[at]
        elif action == 1 and kind == descriptor.TYPE_MESSAGE:
            items.add().CopyFrom(items[at])
        elif action == 2 and kind == descriptor.TYPE_MESSAGE:
            copy = type(items[at])()
            copy.CopyFrom(items[at])
            items[at].CopyFrom(items[other])
            items[other].CopyFrom(copy)
        elif kind != descriptor.TYPE_MESSAGE:
            items[at] = _other(items[other], kind, descriptor, rng)
        return
    if kind == descriptor.TYPE_MESSAGE:
        if rng.random() < 0.3:
            message.ClearField(name)
        return
    try:
        setattr(message, name, _other(getattr(message, name), kind, descriptor, rng))
    except (ValueError, TypeError):
        message.ClearField(name)


def _other(value: object, kind: int, descriptor: object, rng: random.Random) -> object:
    if kind in (descriptor.TYPE_FLOAT, descriptor.TYPE_DOUBLE):
        return rng.choice(FLOATS)
    if kind == descriptor.TYPE_STRING:
        return rng.choice(
            ["", "x", "y", "ai.onnx", "com.microsoft", "Conv", "Reshape", "NOTSET", "\0", "[/a]", str(value) + "'"]
        )
    if kind == descriptor.TYPE_BYTES:
        raw = bytes(value)
        return rng.choice([b"", raw[: len(raw) // 2], raw + b"\xff", bytes(len(raw)), b"\xff" * len(raw)])
    if kind == descriptor.TYPE_ENUM:
        return rng.randrange(0, 30)
    number = rng.choice([*NUMBERS, int(value) + 1, int(value) - 1, rng.randrange(30)])
    return max(-(2**31), min(2**31 - 1, number)) if kind == descriptor.TYPE_INT32 else number


def mutants(rounds: int, seed: int) -> Iterator[tuple[int, bytes]]:
    """(number, bytes) of damaged models."""
    bases = seeds()
    for number in range(rounds):
        rng = random.Random(f"{seed}/{number}")
        change = rng.choice([flip, cut, splice, fields, fields, fields, fields, *[unusual] * 4])
        yield number, change(rng.choice(bases), rng)


def unusual(data: bytes, rng: random.Random) -> bytes:
    """One or two changes that leave a model, but for a third of them."""
    model = onnx.ModelProto.FromString(data)
    for _ in range(rng.choice((1, 1, 2))):
        rng.choice(mutator_models.CHANGES)(model, rng)
    made = model.SerializeToString()
    return fields(made, rng) if rng.random() < 0.3 else made


def command(number: int, model: Path) -> list[str]:
    """The words for the mutant of this number; what is written goes beside the model."""
    paths = {"MODEL": str(model), **{name: str(model.parent / file) for name, file in WRITTEN.items()}}
    words = [_placed(word, paths) for word in COMMANDS[number % len(COMMANDS)]]
    return words if words[0] == "inspect" else [*words, "--max-memory", "1GiB"]


def _placed(word: str, paths: Mapping[str, str]) -> str:
    form, equals, name = word.rpartition("=")
    return f"{form}{equals}{paths.get(name, name)}"


def answers(words: list[str]) -> tuple[int, ...]:
    """The exit codes that a damaged model may have."""
    return (0, 1, 2, 3, 4, 5) if words[0] in ("check", "compare") else (0, 2, 3, 4, 5)


def peak() -> int:
    """The most bytes that this process has had in memory; 0 where that is not known."""
    try:
        import resource
    except ImportError:
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def main() -> int:
    import contextlib
    import io

    from qrun.cli import main as qrun_main

    rounds, seed = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0
    codes: Counter[int] = Counter()
    slowest, bad, most = 0.0, 0, LARGE
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        path = Path(folder) / "m.onnx"
        for number, data in mutants(rounds, seed):
            path.write_bytes(data)
            out, err = io.StringIO(), io.StringIO()
            start = time.process_time()
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                try:
                    code = qrun_main(command(number, path))
                except (Exception, SystemExit) as error:
                    code = 70
                    print(f"Traceback: {type(error).__name__}: {error}"[:600], file=sys.stderr)
            spent = time.process_time() - start
            slowest, slow = max(slowest, spent), spent > SLOW + SLOWER * len(data) / 1e6
            codes[code] += 1
            grown = peak() > most
            if code not in answers(command(number, path)) or "Traceback" in err.getvalue() or slow or grown:
                bad += 1
                most = max(most, peak())
                keep = Path(tempfile.gettempdir()) / f"qrun-mutant-{seed}-{number}.onnx"
                keep.write_bytes(data)
                words = " ".join(COMMANDS[number % len(COMMANDS)])
                print(
                    f"mutant {seed}/{number}: {words}: exit {code} in {spent:.1f} s, peak {peak() >> 20} MiB, kept as {keep}\n"
                    f"{err.getvalue()[:600]}",
                    flush=True,
                )
    print(f"peak memory {peak() >> 20} MiB")
    print(
        f"{rounds} mutants, seed {seed}: exit codes {dict(sorted(codes.items()))}, slowest {slowest:.2f} s, {bad} bad"
    )
    return bad > 0


if __name__ == "__main__":
    sys.exit(main())
