"""Explains why some bytes are not a model: which format they have instead, or where they are cut.

Wire format: protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

import re
from shlex import quote

from qrun.declare.frozen import changeable
from qrun.errors import ModelError
from qrun.memory import file_size


def not_a_model(data: bytes, label: str) -> ModelError:
    """The error for bytes that do not parse as ModelProto, or parse as an empty one."""
    if not data:
        return _error(label, "is empty", "0 bytes", "write or fetch the file again")
    if data.lstrip().startswith(b"version https://git-lfs"):
        fields = dict(line.split(" ", 1) for line in data.decode("ascii", "replace").splitlines() if " " in line)
        size = fields.get("size", "?")
        to = f"{file_size(int(size)) if size.isdigit() else size}, {fields.get('oid', '?').replace(':', ' ')[:19]}..."
        fix = f"git lfs pull --include {quote(label)}"
        return _error(label, "is a Git LFS pointer, not a model", f"a pointer to {to}", fix)
    known = _kind(data)
    if known is not None:
        kind, fix = known
        return _error(
            label,
            f"is {kind}, not a binary model" if kind == _AS_TEXT else f"is {kind}, not a model",
            kind,
            fix.replace("FILE", quote(label)),
        )
    cut = _walk(data)
    if cut.needed > len(data) and cut.plausible:
        fix = "fetch or export the file again"
        if len(data) % 2**20 == 0:
            fix = f"exactly {len(data) // 2**20} MiB, so a transfer limit probably cut it off; fetch it again"
        got = f"{cut.readable}; then cut at byte {len(data)}"
        return _error(label, "ends in the middle of a field", got, fix, f"{cut.needed} bytes by the last length field")
    got = f"{len(data)} bytes, starts with {data[:16]!r}"
    return _error(label, "is not an ONNX model", got, "check that the path names an .onnx file")


_AS_TEXT = "an ONNX model as text"
_ARRAY = "use it as an input: qrun MODEL -i FILE"
_EXPORT = "export the network to ONNX, for a PyTorch module with torch.onnx.export"
_TEXT = "onnx.save(onnx.load('FILE', format='{}'), 'model.onnx') in Python makes a model of it"
_TENSORFLOW = "python -m tf2onnx.convert --{} --output model.onnx"
_KINDS = (
    (0, b"\x93NUMPY", "a .npy array", _ARRAY),
    (0, b"\x1f\x8b", "gzip data", "unpack it first: gunzip"),
    (0, b"BZh", "bzip2 data", "unpack it first: bunzip2"),
    (0, b"\xfd7zXZ\0", "xz data", "unpack it first: unxz"),
    (0, b"\x28\xb5\x2f\xfd", "zstd data", "unpack it first: unzstd"),
    (0, b"7z\xbc\xaf\x27\x1c", "a 7z archive", "unpack it first: 7z x FILE"),
    (257, b"ustar", "a tar archive", "unpack it first: tar xf FILE"),
    (0, b"\x89HDF", "an HDF5 file, as Keras writes", "convert it with tf2onnx.convert.from_keras"),
    (4, b"TFL3", "a TensorFlow Lite model", _TENSORFLOW.format("tflite FILE")),
    (4, b"ORTM", "an ORT-format model", "use the .onnx file that it was made from; onnxruntime alone runs this format"),
    (0, b"GGUF", "a GGUF file of llama.cpp", "export the network that it was made from to ONNX"),
    (0, b"\x80\x02\x8a\n", "a PyTorch file", _EXPORT),
    (0, b"ftrt", "a TensorRT engine", "use the .onnx file that it was built from"),
    (0, b"ptrt", "a TensorRT engine", "use the .onnx file that it was built from"),
)
"""Formats by the bytes at one place: the name of the format, and a fix. FILE is replaced by the path."""


def _kind(data: bytes) -> tuple[str, str] | None:
    """The format of the file, and a fix; None if the format is unknown."""
    for index, magic, kind, fix in _KINDS:
        if data.startswith(magic, index):
            return kind, fix
    start = data[:400].lstrip()
    if data.startswith(b"PK\3\4"):
        return _archive(data)
    for beginning, form in _TEXTS:
        if beginning.match(start):
            return _AS_TEXT, _TEXT.format(form)
    if start.startswith(b"<"):
        if b"<net " in start:
            return "an OpenVINO model (IR)", "use the ONNX file that it was converted from, or export one"
        if start.startswith(b"<?xml"):
            return "an XML file", "name the .onnx file"
        if _NAME.match(start[1:]) or start.startswith(b"<!"):
            return "an HTML page", "download the file itself (the raw link), not its page"
    if data[8:9] == b"{" and int.from_bytes(data[:8], "little") <= len(data):
        return "a safetensors file of weights without a network", _EXPORT
    if start.startswith(b"{") and re.search(rb'"opset_?[iI]mport"', data):
        return _AS_TEXT, _TEXT.format("json")
    if start.startswith(b"{"):
        return "a JSON file", "name the .onnx file"
    return _tensorflow(data)


_TEXTS = (
    (re.compile(rb"ir_version\s*:"), "textproto"),
    (re.compile(rb"<\s*ir_version\s*:"), "onnxtxt"),
)
_NAME = re.compile(rb"[A-Za-z]")
_OPERATOR = re.compile(rb"[A-Z][A-Za-z0-9_]*")


def _archive(data: bytes) -> tuple[str, str]:
    """The kind of a zip archive, by the names of its entries, which its end repeats."""
    if b"/data.pkl" in data[:400] or b"/data.pkl" in data[-(1 << 16) :]:
        return "a PyTorch file", _EXPORT
    if b".npy" in data[:400]:
        return "an .npz archive of arrays", _ARRAY
    if b"config.json" in data[:400] and b"metadata.json" in data[:400]:
        return "a Keras model", "convert it with tf2onnx.convert.from_keras"
    return "a zip archive", "unpack it first: unzip FILE"


def _tensorflow(data: bytes) -> tuple[str, str] | None:
    """A SavedModel; or a GraphDef, whose first field is a node: a message with a name and an operator."""
    try:
        if data.startswith(b"\x08\x01\x12"):
            _, at = _varint(data, 3)
            if data[at : at + 1] == b"\n":
                return "a TensorFlow SavedModel", _TENSORFLOW.format(
                    "saved-model FOLDER"
                ) + ", with the folder that it is in"
        if data[:1] == b"\n":
            _, at = _varint(data, 1)
            if data[at : at + 1] == b"\n":
                size, at = _varint(data, at + 1)
                at += size
                if data[at : at + 1] == b"\x12":
                    size, at = _varint(data, at + 1)
                    if _OPERATOR.fullmatch(data[at : at + size]):
                        return "a frozen TensorFlow graph", _TENSORFLOW.format(
                            "graphdef FILE --inputs X:0 --outputs Y:0"
                        )
    except IndexError:
        pass
    return None


def _error(label: str, what: str, got: str, fix: str, expected: str = "an ONNX protobuf") -> ModelError:
    """The QR101 error of a file that is no ONNX model."""
    facts = [("expected", expected), ("got", got)]
    return ModelError("QR101", f"{label} {what}", where=[label], facts=facts, fixes=[fix])


@changeable
class _Cut:
    readable: str
    needed: int
    plausible: bool


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A protobuf varint and the position after it. Raises IndexError if it is cut off."""
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
