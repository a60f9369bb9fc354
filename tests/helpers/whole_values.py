"""Models whose values are no numbers, or no tensors: texts, sequences, optional values and maps, also inside graphs."""

from __future__ import annotations

import onnx
import onnx.parser
from onnx import TensorProto, helper

from helpers.models import make_model

HEAD = '<ir_version: 10, opset_import: ["" : 21, "ai.onnx.ml" : 3]>\n'
LOOPED = """main (float[2,3] x, int64 n) => (seq(float[2,3]) s, float[K,3] y)
{
    none = SequenceEmpty()
    w = Abs(x)
    s = Loop(n, , none) <body = b (int64 i, bool c, seq(float[2,3]) v) => (bool o, seq(float[2,3]) u) {
        o = Identity(c)
        f = Cast<to = 1>(i)
        e = Add(w, f)
        u = SequenceInsert(v, e)
    }>
    s2 = SequenceInsert(s, w)
    y = ConcatFromSequence<axis = 0>(s2)
}"""
MAPPED = """main (float[N,3] x, seq(float[2]) t) => (seq(float[K]) y, int64 count, float[A,3] last)
{
    s = SplitToSequence<keepdims = 0>(x)
    pairs = SequenceConstruct(x, x)
    y = SequenceMap(t, x) <body = b (float[2] a, float[N,3] d) => (float[K] u) {
        r = ReduceSum(d)
        f = Flatten<axis = 0>(r)
        q = Squeeze(f)
        u = Mul(a, q)
    }>
    longer = SequenceErase(pairs)
    count = SequenceLength(s)
    minus = Constant<value_int = -1>()
    last = SequenceAt(longer, minus)
}"""
CHOSEN = """main (optional(float[2,3]) o, float[2,3] x) => (bool has, float[2,3] y)
{
    has = OptionalHasElement(o)
    y = If(has) <
        then_branch = a () => (float[2,3] ay) { g = OptionalGetElement(o)  ay = Mul(g, x) },
        else_branch = b () => (float[2,3] by) { by = Neg(x) }
    >
}"""
TEXTS = """main (float[2,3] x, bool c) => (string[2] chosen, string[2,W] words, int64[2] counts, int64[2] codes)
{
    places = ArgMax<axis = 1, keepdims = 0>(x)
    names = Constant<value_strings = ["a b", "c", "d e f"]>()
    first = Gather(names, places)
    chosen = If(c) <
        then_branch = a () => (string[2] t) {
            dot = Constant<value_strings = ["."]>()
            t = StringConcat(first, dot)
        },
        else_branch = b () => (string[2] e) { e = Identity(first) }
    >
    words, counts = StringSplit(chosen)
    codes = ai.onnx.ml.LabelEncoder<keys_strings = ["c", "c."], values_int64s = [5, 6]>(chosen)
}"""


def texts() -> dict[str, onnx.ModelProto]:
    """The models by name."""
    found = {"looped": LOOPED, "mapped": MAPPED, "chosen": CHOSEN, "texts": TEXTS}
    made = {name: onnx.parser.parse_model(HEAD + text) for name, text in found.items()}
    return {**made, "words": _words()}


def _words() -> onnx.ModelProto:
    """A map of words to numbers as one row, and scores of rows as maps from words."""
    number = helper.make_tensor_type_proto(TensorProto.FLOAT, [])
    mapped = helper.make_map_type_proto(TensorProto.STRING, number)
    nodes = [
        helper.make_node("DictVectorizer", ["m"], ["row"], domain="ai.onnx.ml", string_vocabulary=["a", "b", "c"]),
        helper.make_node("Add", ["row", "x"], ["sum"]),
        helper.make_node("ZipMap", ["sum"], ["z"], domain="ai.onnx.ml", classlabels_strings=["u", "v", "w"]),
    ]
    return make_model(
        nodes, {"m": mapped, "x": ["N", 3]}, {"row": [1, 3], "z": helper.make_sequence_type_proto(mapped)}, opset=17
    )
