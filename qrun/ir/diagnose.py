"""Why some bytes are not a model: what they are instead, or where they end.

Wire format: protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

from qrun.declare.frozen import changeable
from qrun.errors import ModelError
from qrun.memory import file_size


def not_a_model(data: bytes, label: str) -> ModelError:
    """The error for bytes that do not parse as ModelProto, or parse as an empty one."""
    start = data[:400].lstrip()
    if not data:
        return _error(
            label, "is empty", [("expected", "an ONNX protobuf"), ("got", "0 bytes")], "write or fetch the file again"
        )
    if start.startswith(b"version https://git-lfs"):
        fields = dict(line.split(" ", 1) for line in data.decode("ascii", "replace").splitlines() if " " in line)
        size = fields.get("size", "?")
        to = f"{file_size(int(size)) if size.isdigit() else size}, {fields.get('oid', '?').replace(':', ' ')[:19]}..."
        return _error(
            label,
            "is a Git LFS pointer, not a model",
            [("expected", "an ONNX protobuf"), ("got", f"a pointer to {to}")],
            f"git lfs pull --include {label}",
        )
    if start[:1] == b"<" or start[:9].lower() == b"<!doctype":
        return _error(
            label,
            "is an HTML or XML page, not a model",
            [
                ("expected", "an ONNX protobuf"),
                ("got", f"a file that starts with {start[:40].decode('utf-8', 'replace')!r}"),
            ],
            "download the file itself (the raw link), not its page",
        )
    for magic, kind, fix in _KINDS:
        if data.startswith(magic):
            facts = [("expected", "an ONNX protobuf"), ("got", kind)]
            return _error(label, f"is {kind}, not a model", facts, fix)
    cut = _walk(data)
    if cut.needed > len(data) and cut.plausible:
        facts = [
            ("expected", f"{cut.needed} bytes by the last length field"),
            ("got", f"{cut.readable}; then cut at byte {len(data)}"),
        ]
        fix = "fetch or export the file again"
        if len(data) % 2**20 == 0:
            fix = f"exactly {len(data) // 2**20} MiB, so likely a size limit on the way; fetch it again"
        return _error(label, "ends in the middle of a field", facts, fix)
    facts = [("expected", "an ONNX protobuf"), ("got", f"{len(data)} bytes, starts with {data[:16]!r}")]
    return _error(label, "is not an ONNX model", facts, "check that the path names an .onnx file")


_KINDS = (
    (b"PK\x03\x04", "a zip archive", "unzip it first; inputs in an .npz go with a model: qrun MODEL --inputs x.npz"),
    (b"\x93NUMPY", "a .npy array", "inputs go with a model: qrun MODEL --inputs x.npy"),
    (b"\x1f\x8b", "gzip data", "gunzip it first"),
    (b"\x89HDF", "an HDF5 file", "export the network to ONNX"),
    (b"TFL3", "a TensorFlow Lite file", "export the network to ONNX"),
    (b"\x18\x00\x00\x00TFL3", "a TensorFlow Lite file", "export the network to ONNX"),
    (b"ORTM", "an ORT-format model", "use the .onnx file that it was made from"),
    (b"\x08\x00\x00\x00ORTM", "an ORT-format model", "use the .onnx file that it was made from"),
)


def _error(label: str, what: str, facts: list[tuple[str, str]], fix: str) -> ModelError:
    return ModelError("QR101", f"{label} {what}", where=[label], facts=facts, fixes=[fix])


@changeable
class _Cut:
    readable: str
    needed: int
    plausible: bool


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift < 70:
        byte = data[at]
        value |= (byte & 127) << shift
        at += 1
        shift += 7
        if byte < 128:
            return value, at
    raise IndexError


def _walk(data: bytes) -> _Cut:
    """Follow the fields of a ModelProto (7: graph, with 1: nodes) up to the first that passes the end."""
    at, ir, nodes, seen, end, inside = 0, 0, 0, 0, len(data), False
    try:
        while at < end:
            tag, after = _varint(data, at)
            field, wire = tag >> 3, tag & 7
            if field == 0 or wire not in (0, 1, 2, 5):
                return _Cut("", 0, False)
            if wire == 0:
                value, at = _varint(data, after)
                if field == 1 and not inside:
                    ir = value
            elif wire == 2:
                size, start = _varint(data, after)
                if field == 7 and not inside:
                    inside, at, end = True, start, start + size
                    if end <= len(data):
                        inside, at, end = False, end, len(data)
                    else:
                        needed = end
                        end = len(data)
                    continue
                nodes += inside and field == 1 and start + size <= len(data)
                at = start + size
            else:
                at = after + (8 if wire == 1 else 4)
            seen += 1
    except IndexError:
        at = max(at, len(data) + 1)
    total = needed if inside else at
    return _Cut(f"IR {ir}, {nodes} nodes", max(total, at), (ir > 0 or seen > 2) and total < 2**40)
