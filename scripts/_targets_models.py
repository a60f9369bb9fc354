"""Random quantized models, of one to about ten operators, in the forms of files: QDQ, QOperator and dynamic.

Every fact that a target's rules speak of varies. Made with numpy and onnx only: what is true of a model, its runtimes
say. A seed always makes the same model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import onnx
from _targets_graph import Graph, Shape, Value

SIZES = (1, 1, 1, 1, 2, 2, 3, 4, 6, 9)
"""Numbers of operators, each as likely."""


def random_model(seed: int) -> onnx.ModelProto:
    """A valid model. Draws again, with the next of the seed's numbers, what ONNX does not allow."""
    for attempt in range(100):
        g = Graph(1000 * seed + attempt)
        form = FORMS[int(g.rng.choice(len(FORMS), p=[0.82, 0.1, 0.08]))]
        form(g)
        model = g.model(f"random_{seed}")
        if model.graph.output and _valid(model):
            return model
    raise RuntimeError(f"seed {seed}: 100 draws made no valid model")


def _valid(model: onnx.ModelProto) -> bool:
    try:
        onnx.checker.check_model(model)
        onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError):
        return False
    return True


def qdq(g: Graph) -> None:
    """Float operators between DequantizeLinear and QuantizeLinear."""
    for _ in range(int(g.pick(SIZES))):
        g.pick(STEPS)(g)


def conv(g: Graph) -> None:
    x = g.choose(int(g.pick([3, 4, 4, 4, 4, 4, 5])))
    rank, channels = len(x.shape) - 2, x.shape[1]
    groups = int(g.pick([1, 1, 1, 1, channels, 2]))
    groups = groups if channels % groups == 0 else 1
    many = channels if groups == channels else int(g.pick([4, 8]))
    kernel = int(g.pick([1, 3, 3])) if min(x.shape[2:]) > 2 else 1
    more: dict[str, object] = {"kernel_shape": [kernel] * rank} if g.chance(0.8) else {}
    stride = int(g.pick([1, 1, 1, 2]))
    dilation = 2 if g.chance(0.1) and kernel == 3 else 1
    pad = dilation * (kernel // 2)
    if stride > 1:
        more["strides"] = [stride] * rank
    if dilation > 1:
        more["dilations"] = [dilation] * rank
    if g.chance(0.15) and dilation == 1:
        more["auto_pad"] = "SAME_UPPER"
        size = [-(-n // stride) for n in x.shape[2:]]
    else:
        more["pads"] = [pad] * (2 * rank)
        size = [(n + 2 * pad - dilation * (kernel - 1) - 1) // stride + 1 for n in x.shape[2:]]
    if groups > 1:
        more["group"] = groups
    weights = g.weight((many, channels // groups, *[kernel] * rank), 0, x, many if g.chance(0.7) else 0)
    g.result(g.add("Conv", g.read(x), *weights, **more), (x.shape[0], many, *size))


def transposed_conv(g: Graph) -> None:
    x = g.choose(int(g.pick([3, 4, 4, 4])))
    rank, channels = len(x.shape) - 2, x.shape[1]
    groups = 2 if g.chance(0.15) and channels % 2 == 0 else 1
    kernel, stride = (int(v) for v in g.pick([(2, 2), (3, 1), (4, 2), (1, 1)]))
    more: dict[str, object] = {"kernel_shape": [kernel] * rank, "strides": [stride] * rank}
    more |= {"group": groups} if groups > 1 else {}
    many = 4 * groups
    weights = g.weight((channels, 4, *[kernel] * rank), 1, x, many if g.chance(0.6) else 0)
    size = [(n - 1) * stride + kernel for n in x.shape[2:]]
    g.result(g.add("ConvTranspose", g.read(x), *weights, **more), (x.shape[0], many, *size))


def gemm(g: Graph) -> None:
    x = g.choose(2)
    turned, columns = g.chance(0.5), 8
    shape = (columns, x.shape[1]) if turned else (x.shape[1], columns)
    weights = g.weight(shape, 0 if turned else 1, x, columns if g.chance(0.75) else 0)
    more: dict[str, object] = {"transB": 1} if turned else {}
    more |= {"alpha": 2.0} if g.oddly(0.3) else {}
    more |= {"beta": 0.5} if g.oddly(0.2) else {}
    g.result(g.add("Gemm", g.read(x), *weights, **more), (x.shape[0], columns))


def matmul(g: Graph) -> None:
    x = g.choose(int(g.pick([2, 2, 3, 4])))
    shape = (x.shape[-1], 8)
    if g.chance(0.1) and len(x.shape) > 2:
        shape = (*x.shape[:-2], *shape)
    made = g.add("MatMul", g.read(x), *g.weight(shape, len(shape) - 1, x))
    if g.chance(0.25):
        made = g.add("Add", made, g.store(g.rng.normal(size=8)))
    g.result(made, (*x.shape[:-1], 8))


def attention(g: Graph) -> None:
    """MatMul of two tensors that are made in the run; its Transpose between pairs of its own, or none."""
    x = g.choose(int(g.pick([2, 3, 4])))
    order = [*range(len(x.shape) - 2), len(x.shape) - 1, len(x.shape) - 2]
    shape = tuple(x.shape[k] for k in order)
    turned = Value(shape, real=g.add("Transpose", g.read(x), perm=order))
    if g.chance(0.7):
        g.quantize(turned, x if x.codes and g.chance(0.7) else None)
    g.result(g.add("MatMul", g.read(g.alike(x)), g.read(turned)), (*x.shape[:-1], shape[-1]))


def binary(g: Graph) -> None:
    x = g.choose()
    op_type = str(g.pick(["Add"] * 5 + ["Mul"] * 4 + ["Sub", "Div", "Max", "Min", "PRelu"]))
    which = g.pick(["alike", "alike", "alike", "constant", "scalar", "float"])
    if op_type == "PRelu":
        which = "constant"
    if which == "alike":
        names = [g.read(x), g.read(g.alike(x))]
    elif which == "float":
        names = [g.read(x), g.store(np.abs(g.rng.normal(size=(x.shape[1], *[1] * (len(x.shape) - 2)))) + 0.5)]
    else:
        shape = (x.shape[1], *[1] * (len(x.shape) - 2)) if which == "constant" else ()
        names = [g.read(x), stored(g, shape)]
    if g.chance(0.15) and op_type in ("Add", "Mul", "Sub"):
        names.reverse()
    g.result(g.add(op_type, *names), x.shape)


def stored(g: Graph, shape: Shape) -> str:
    """A stored, dequantized operand."""
    kind = g.kind if not g.oddly() else str(g.pick(["int8", "uint8"]))
    value = Value(shape, kind=kind, codes="")
    value.scale, value.zero = g.parameters(kind)
    codes = g.store(g.rng.integers(20, 100, shape).astype(g.arrays[value.zero].dtype))
    return g.add("DequantizeLinear", codes, value.scale, value.zero, domain=g.domain(kind))


def silu(g: Graph) -> None:
    x = g.choose()
    gate = g.quantize(Value(x.shape, real=g.add("Sigmoid", g.read(x))))
    g.result(g.add("Mul", g.read(x), g.read(gate)), x.shape)


CURVES = (
    "Relu",
    "Sigmoid",
    "Sigmoid",
    "Tanh",
    "LeakyRelu",
    "Softmax",
    "Softmax",
    "HardSwish",
    "HardSigmoid",
    "Elu",
    "Gelu",
)
OTHERS = (
    "Exp",
    "Abs",
    "Neg",
    "Sqrt",
    "Clip",
    "LogSoftmax",
    "Softplus",
    "Erf",
    "Floor",
    "Sin",
    "Mish",
    "Celu",
    "Identity",
)


def curve(g: Graph) -> None:
    x = g.choose()
    op_type = str(g.pick(CURVES if g.chance(0.8) else OTHERS))
    names = [g.store(0.0), g.store(4.0)] if op_type == "Clip" else []
    more: dict[str, object] = {}
    if op_type == "Softmax" and g.chance(0.5):
        more["axis"] = int(g.pick([-1, 1, len(x.shape) - 1]))
    g.result(g.add(op_type, g.read(x), *names, **more), x.shape, cut=False)


def pool(g: Graph) -> None:
    x = g.choose(int(g.pick([4, 4, 4, 3, 5])))
    rank = len(x.shape) - 2
    op_type = str(g.pick(["MaxPool"] * 3 + ["AveragePool"] * 3 + ["GlobalAveragePool"] * 2 + ["GlobalMaxPool"]))
    like = x if x.codes and g.chance(0.6 if op_type == "MaxPool" else 0.2) else None
    if op_type.startswith("Global"):
        g.result(g.add(op_type, g.read(x)), (*x.shape[:2], *[1] * rank), like)
        return
    more: dict[str, object] = {"kernel_shape": [2] * rank}
    size = [n - 1 for n in x.shape[2:]]
    if g.chance(0.5):
        more["strides"] = [2] * rank
        ceil = g.chance(0.25)
        more |= {"ceil_mode": 1} if ceil else {}
        size = [(n - 2 + ceil) // 2 + 1 for n in x.shape[2:]]
    elif g.chance(0.5):
        more["pads"] = [0] * rank + [1] * rank
        size = list(x.shape[2:])
        more |= {"count_include_pad": 1} if op_type == "AveragePool" and g.chance(0.4) else {}
    if min(x.shape[2:]) > 1:
        g.result(g.add(op_type, g.read(x), **more), (*x.shape[:2], *size), like, cut=False)


def reduce(g: Graph) -> None:
    x = g.choose(int(g.pick([3, 4, 4])))
    op_type = str(g.pick(["ReduceMean", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceSum"]))
    axes, keep = ([2, 3] if len(x.shape) == 4 and g.chance(0.6) else [len(x.shape) - 1]), int(g.chance(0.7))
    shape = tuple(1 if k in axes else n for k, n in enumerate(x.shape) if keep or k not in axes)
    as_input = g.opset >= (13 if op_type == "ReduceSum" else 18)
    names = [g.store(np.array(axes, np.int64))] if as_input else []
    more: dict[str, object] = {} if as_input else {"axes": axes}
    like = x if x.codes and op_type in ("ReduceMax", "ReduceMin") and g.chance(0.7) else None
    g.result(g.add(op_type, g.read(x), *names, keepdims=keep, **more), shape, like, cut=False)


def concat(g: Graph) -> None:
    x = g.choose(int(g.pick([2, 3, 4, 4])))
    parts = [x, *(g.alike(x) for _ in range(int(g.pick([1, 1, 2]))))]
    axis = int(g.rng.integers(1, len(x.shape)))
    shape = tuple(n * len(parts) if k == axis else n for k, n in enumerate(x.shape))
    like = x if x.codes and g.chance(0.3) else None
    g.result(g.add("Concat", *(g.read(part) for part in parts), axis=axis), shape, like, cut=g.chance(0.3))


def split(g: Graph) -> None:
    x = g.choose(int(g.pick([3, 4])))
    if x.shape[1] % 2:
        return
    more: dict[str, object] = {"num_outputs": 2} if g.opset >= 18 else {}
    made = g.add("Split", g.read(x), axis=1, outputs=2, **more)
    half = (x.shape[0], x.shape[1] // 2, *x.shape[2:])
    for k in range(2):
        g.result(f"{made}_{k}", half, x if x.codes and g.chance(0.8) else None, cut=False)


def move(g: Graph) -> None:
    x = g.choose()
    like = x if x.codes and g.chance(0.75) else None
    name, shape = _moved(g, g.read(x), x.shape)
    if g.chance(0.15):
        name, shape = _moved(g, name, shape)
    g.result(name, shape, like, cut=False)


def _moved(g: Graph, name: str, shape: Shape) -> tuple[str, Shape]:
    """A tensor behind an operator that moves or selects elements, and its shape."""
    which, last = str(g.pick(MOVES)), len(shape) - 1
    whole = lambda *numbers: g.store(np.array(numbers, np.int64))  # noqa: E731
    if which == "Reshape":
        made = (shape[0], int(np.prod(shape[1:]))) if g.chance(0.5) else (int(np.prod(shape[:-1])), shape[-1])
        return g.add(which, name, whole(*made)), made
    if which == "Flatten":
        return g.add(which, name), (shape[0], int(np.prod(shape[1:])))
    if which == "Transpose":
        order = [int(k) for k in g.rng.permutation(len(shape))]
        return g.add(which, name, perm=order), tuple(shape[k] for k in order)
    if which == "Unsqueeze":
        return g.add(which, name, whole(0)), (1, *shape)
    if which == "Squeeze" and shape[0] == 1 and len(shape) > 2:
        return g.add(which, name, whole(0)), shape[1:]
    if which == "Gather":
        return g.add(which, name, whole(0, 1, 0), axis=last), (*shape[:-1], 3)
    if which == "Tile":
        return g.add(which, name, whole(*[1] * last, 2)), (*shape[:-1], 2 * shape[-1])
    if which == "Expand":
        return g.add(which, name, whole(2, *shape[1:])), (2, *shape[1:]) if shape[0] == 1 else shape
    if which == "Pad":
        pads = whole(*[0] * len(shape), *[0] * last, 1)
        return g.add(which, name, pads, mode="edge" if g.chance(0.3) else "constant"), (*shape[:-1], shape[-1] + 1)
    if which == "DepthToSpace" and len(shape) == 4 and shape[1] % 4 == 0:
        made = (shape[0], shape[1] // 4, 2 * shape[2], 2 * shape[3])
        return g.add(which, name, blocksize=2, mode=str(g.pick(["DCR", "CRD"]))), made
    if which == "SpaceToDepth" and len(shape) == 4 and shape[2] % 2 == shape[3] % 2 == 0:
        return g.add(which, name, blocksize=2), (shape[0], shape[1] * 4, shape[2] // 2, shape[3] // 2)
    end = max(1, shape[-1] // 2)
    return g.add("Slice", name, whole(0), whole(end), whole(last)), (*shape[:-1], end)


MOVES = ("Reshape", "Reshape", "Flatten", "Transpose", "Transpose", "Unsqueeze", "Squeeze", "Gather", "Tile", "Expand", "Pad",
         "DepthToSpace", "SpaceToDepth", "Slice", "Slice")  # fmt: skip


def resize(g: Graph) -> None:
    x = g.choose(4)
    mode = str(g.pick(["nearest", "nearest", "linear", "cubic"]))
    where = str(g.pick(["asymmetric", "half_pixel", "align_corners", "pytorch_half_pixel"]))
    more: dict[str, object] = {"mode": mode, "coordinate_transformation_mode": where}
    if mode == "nearest":
        more["nearest_mode"] = str(g.pick(["floor", "round_prefer_floor", "ceil"]))
    factor = int(g.pick([2, 2, 1]))
    scales = g.store(np.array([1, 1, factor, factor], np.float32), "as is")
    shape = (*x.shape[:2], x.shape[2] * factor, x.shape[3] * factor)
    like = x if x.codes and g.chance(0.6) else None
    g.result(g.add("Resize", g.read(x), "", scales, **more), shape, like, cut=False)


def normalize(g: Graph) -> None:
    x = g.choose(int(g.pick([3, 4, 4])))
    op_type = str(g.pick(["LayerNormalization", "InstanceNormalization", "BatchNormalization"]))
    count = x.shape[-1] if op_type == "LayerNormalization" else x.shape[1]
    pair = [g.store(np.full(count, value)) if g.chance(0.5) else stored(g, (count,)) for value in (1.5, 0.25)]
    if op_type == "BatchNormalization":
        pair += [g.store(np.full(count, value)) for value in (0.1, 2.0)]
    g.result(g.add(op_type, g.read(x), *pair), x.shape)


def index(g: Graph) -> None:
    """ArgMax, whose result is no real tensor: an output."""
    x = g.choose()
    made = g.add("ArgMax", g.read(x), axis=1, keepdims=1)
    real = g.add("Cast", made, to=10 if g.half else 1)
    g.end(real, (x.shape[0], 1, *x.shape[2:]))


STEPS: tuple[Callable[[Graph], None], ...] = (
    *[conv] * 6, *[gemm] * 2, *[matmul] * 3, attention, *[binary] * 4, silu, *[curve] * 3, *[pool] * 3, reduce, concat, split,
    *[move] * 3, resize, transposed_conv, normalize, index,
)  # fmt: skip


def qoperator(g: Graph) -> None:
    """Operators on codes: QLinearConv and its kind between QuantizeLinear and DequantizeLinear."""
    g.kind = g.kind if g.kind in ("uint8", "int8") else "uint8"
    g.half, g.pairs, g.rows = False, False, False
    g.weights = g.weights if g.weights in ("uint8", "int8") else "int8"
    shape = g.shape(int(g.pick([2, 4, 4])))
    value = g.quantize(Value(shape, real=g.feed(shape)))
    for _ in range(int(g.pick([1, 1, 2, 3]))):
        value = g.pick([linear_product, linear_product, linear_product, linear_binary, linear_curve, on_codes])(
            g, value
        )
    g.values.append(value)


def _behind(g: Graph, name: str, shape: Shape, kind: str, scale: str, zero: str) -> Value:
    return Value(shape, codes=name, kind=kind, scale=scale, zero=zero)


def linear_product(g: Graph, x: Value) -> Value:
    """QLinearConv or QLinearMatMul; one whose result has another type if odd."""
    kind = "int8" if x.kind == "uint8" and g.oddly(0.3) else x.kind
    y = g.parameters(kind)
    if len(x.shape) == 4:
        shape = (8, x.shape[1], 3, 3)
        scales, middle = g.weight_scales(shape, 0, g.channels, 0, g.weights)
    else:
        shape = (x.shape[-1], 8)
        scales, middle = g.weight_scales(shape, 1, g.channels and g.chance(0.5), 0, g.weights)
    codes = g.rng.integers(max(-60, middle - 60) if g.weights == "int8" else max(0, middle - 60), middle + 60, shape)
    w_type = np.int8 if g.weights == "int8" else np.uint8
    weights = [g.store(codes.astype(w_type)), g.store(scales), g.store(np.full(scales.shape, middle, w_type))]
    if len(x.shape) == 4:
        bias = [g.store(g.rng.integers(-500, 500, 8).astype(np.int32))] if g.chance(0.6) else []
        made = g.add("QLinearConv", x.codes, x.scale, x.zero, *weights, *y, *bias, pads=[1] * 4)
        return _behind(g, made, (x.shape[0], 8, *x.shape[2:]), kind, *y)
    made = g.add("QLinearMatMul", x.codes, x.scale, x.zero, *weights, *y)
    return _behind(g, made, (*x.shape[:-1], 8), kind, *y)


def linear_binary(g: Graph, x: Value) -> Value:
    other, y = g.quantize(Value(x.shape, real=g.feed(x.shape)), kind=x.kind), g.parameters(x.kind)
    pair = [x.codes, x.scale, x.zero, other.codes, other.scale, other.zero]
    if g.chance(0.2):
        made = g.add("QLinearConcat", *y, *pair, domain="com.microsoft", axis=1)
        return _behind(g, made, (x.shape[0], 2 * x.shape[1], *x.shape[2:]), x.kind, *y)
    made = g.add(str(g.pick(["QLinearAdd", "QLinearMul"])), *pair, *y, domain="com.microsoft")
    return _behind(g, made, x.shape, x.kind, *y)


def linear_curve(g: Graph, x: Value) -> Value:
    y, more, shape = g.parameters(x.kind), dict[str, object](), x.shape
    among = ["QLinearSigmoid", "QLinearLeakyRelu", "QLinearSoftmax"]
    op_type = str(g.pick(among + ["QLinearGlobalAveragePool", "QLinearAveragePool"] * (len(shape) == 4)))
    if op_type == "QLinearSoftmax":
        more["opset"] = g.opset
    if op_type == "QLinearGlobalAveragePool":
        shape = (*shape[:2], 1, 1)
    if op_type == "QLinearAveragePool":
        more["kernel_shape"], shape = [2, 2], (*shape[:2], shape[2] - 1, shape[3] - 1)
        if min(shape) < 1:
            return x
    made = g.add(op_type, x.codes, x.scale, x.zero, *y, domain="com.microsoft", **more)
    return _behind(g, made, shape, x.kind, *y)


def on_codes(g: Graph, x: Value) -> Value:
    """An operator of floats and integers alike, on codes."""
    if len(x.shape) == 4 and g.chance(0.4) and min(x.shape[2:]) > 1:
        made = g.add("MaxPool", x.codes, kernel_shape=[2, 2])
        return _behind(g, made, (*x.shape[:2], x.shape[2] - 1, x.shape[3] - 1), x.kind, x.scale, x.zero)
    shape = (x.shape[0], int(np.prod(x.shape[1:])))
    made = g.add("Reshape", x.codes, g.store(np.array(shape, np.int64)))
    return _behind(g, made, shape, x.kind, x.scale, x.zero)


def dynamic(g: Graph) -> None:
    """Products of codes whose parameters are found in the run, and weights alone in few bits."""
    g.half, shape = False, g.shape(int(g.pick([2, 4])))
    x = g.feed(shape)
    if len(shape) == 2 and g.chance(0.3):
        g.weights = str(g.pick(["int8", "uint8", "int4", "uint4"]))
        made = g.add("MatMul", x, *g.weight((shape[1], 8), 1, Value(shape)))
        g.values.append(Value((shape[0], 8), real=made))
        return
    parts = g.add("DynamicQuantizeLinear", x, outputs=3)
    kind = np.int8 if g.chance(0.5) else np.uint8
    middle = 0 if kind is np.int8 else 128
    weights = (8, shape[1], 3, 3) if len(shape) == 4 else (shape[1], 8)
    codes = g.store(g.rng.integers(middle - 60, middle + 60, weights).astype(kind))
    zero = [g.store(np.array(middle, kind))] if middle or g.chance(0.7) else []
    op_type = "ConvInteger" if len(shape) == 4 else "MatMulInteger"
    more: dict[str, object] = {"pads": [1] * 4} if len(shape) == 4 else {}
    made = g.add(op_type, f"{parts}_0", codes, f"{parts}_2", *zero, **more)
    real = g.add("Mul", g.add("Cast", made, to=1), g.add("Mul", f"{parts}_1", g.store(np.float32(0.01))))
    g.values.append(Value((shape[0], 8, *shape[2:]) if len(shape) == 4 else (shape[0], 8), real=real))


FORMS: tuple[Callable[[Graph], None], ...] = (qdq, qoperator, dynamic)


def random_models(seeds: range) -> Iterator[tuple[str, onnx.ModelProto]]:
    """Yield models with their names."""
    for seed in seeds:
        yield f"seed {seed}", random_model(seed)
