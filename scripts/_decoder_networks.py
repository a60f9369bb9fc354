"""One step of decoders with a cache of keys and values, as onnxruntime-genai writes them,
in float32 and with 4-bit weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

NAMES = ("decoder-float", "decoder-4bit")
LAYERS, WIDTH, INNER, HEADS, GROUPS, SIZE, WORDS = 4, 1024, 2816, 16, 4, 64, 4096
"""Of both; GROUPS: heads of keys and values."""
PAST, ROOM, BLOCK = 128, 256, 32
"""Places in the cache before the step; places that there are angles for; weights that share a scale."""
_MS = "com.microsoft"
_INT, _LONG, _FLOAT = TensorProto.INT32, TensorProto.INT64, TensorProto.FLOAT


def network(name: str, opset: int, rng: np.random.Generator) -> onnx.ModelProto:
    """The network of this name, with random weights."""
    return _Decoder(name.endswith("4bit"), rng).model(name, opset)


def feeds(index: int) -> dict[str, np.ndarray]:
    """One word, after PAST others."""
    rng = np.random.default_rng([7, index])
    past = (1, GROUPS, PAST, SIZE)
    made = {name: rng.standard_normal(past).astype(np.float32) for name in _caches("past")}
    return {"input_ids": rng.integers(0, WORDS, (1, 1)), "attention_mask": np.ones((1, PAST + 1), np.int64), **made}


def _caches(name: str) -> list[str]:
    return [f"{name}.{layer}.{part}" for layer in range(LAYERS) for part in ("key", "value")]


class _Decoder:
    def __init__(self, coded: bool, rng: np.random.Generator) -> None:
        self.coded, self.rng = coded, rng
        self.nodes: list[onnx.NodeProto] = []
        self.tensors: list[onnx.TensorProto] = []

    def add(self, op: str, *names: str, outputs: tuple[str, ...] = ("",), domain: str = "", **attributes: Any) -> str:
        """The name of the first output."""
        number = len(self.nodes)
        made = [outputs[0] or f"{op}_{number}", *outputs[1:]]
        self.nodes.append(helper.make_node(op, names, made, name=f"{op}_{number}", domain=domain, **attributes))
        return str(made[0])

    def store(self, array: np.ndarray) -> str:
        self.tensors.append(numpy_helper.from_array(array, f"c{len(self.tensors)}"))
        return str(self.tensors[-1].name)

    def linear(self, x: str, k: int, n: int) -> str:
        """A product with weights [k,n] that keeps the size of x."""
        if not self.coded:
            return self.add("MatMul", x, self.store((self.rng.standard_normal((k, n)) / k**0.5).astype(np.float32)))
        codes = self.rng.integers(0, 256, (n, k // BLOCK, BLOCK // 2)).astype(np.uint8)
        scales = (self.rng.uniform(0.1, 0.3, (n, k // BLOCK)) / k**0.5).astype(np.float32)
        sizes = {"K": k, "N": n, "bits": 4, "block_size": BLOCK, "accuracy_level": 0}
        return self.add("MatMulNBits", x, self.store(codes), self.store(scales), domain=_MS, **sizes)

    def scale(self) -> str:
        return self.store(self.rng.uniform(0.5, 1.5, WIDTH).astype(np.float32))

    def skip(self, x: str, added: str, total: str) -> str:
        """The normalized sum, which itself is called `total`."""
        outputs = ("", "", "", total)
        return self.add(
            "SkipSimplifiedLayerNormalization", x, added, self.scale(), outputs=outputs, domain=_MS, epsilon=1e-6
        )

    def model(self, name: str, opset: int) -> onnx.ModelProto:
        one = self.store(np.array([1], np.int64))
        counted = self.add("ReduceSum", "attention_mask", one, keepdims=0)
        ends = self.add("Cast", self.add("Sub", counted, one), to=_INT)
        length = self.add("Gather", self.add("Shape", "attention_mask"), self.store(np.array(1, np.int64)), axis=0)
        angles = np.outer(np.arange(ROOM), 10000.0 ** (-np.arange(0, SIZE, 2) / SIZE))
        tables = [self.store(turn(angles).astype(np.float32)) for turn in (np.cos, np.sin)]
        shared = (ends, self.add("Cast", length, to=_INT), *tables)
        x = self.add("Gather", self.store(self.rng.standard_normal((WORDS, WIDTH)).astype(np.float32)), "input_ids")
        y = self.add("SimplifiedLayerNormalization", x, self.scale(), axis=-1, epsilon=1e-6)
        for layer in range(LAYERS):
            y, x = self._layer(layer, y, x, shared)
        self.nodes[-1].output[3] = ""
        self.add("Identity", self.linear(y, WIDTH, WORDS), outputs=("logits",))
        graph = helper.make_graph(self.nodes, name, self._inputs(), self._outputs(), self.tensors)
        imports = [helper.make_opsetid("", opset), helper.make_opsetid(_MS, 1)]
        return helper.make_model(graph, opset_imports=imports, producer_name="qrun")

    def _layer(self, layer: int, y: str, x: str, shared: tuple[str, ...]) -> tuple[str, str]:
        """The next normalized and plain sums of these."""
        q, k, v = (self.linear(y, WIDTH, heads * SIZE) for heads in (HEADS, GROUPS, GROUPS))
        caches = [f"past.{layer}.{part}" for part in ("key", "value")]
        outputs = ("", *(f"present.{layer}.{part}" for part in ("key", "value")))
        heads = {"num_heads": HEADS, "kv_num_heads": GROUPS, "do_rotary": 1}
        mixed = self.add("GroupQueryAttention", q, k, v, *caches, *shared, outputs=outputs, domain=_MS, **heads)
        middle, last = f"middle.{layer}", f"sum.{layer}"
        y = self.skip(x, self.linear(mixed, HEADS * SIZE, WIDTH), middle)
        gate, up = (self.linear(y, WIDTH, INNER) for _ in range(2))
        inner = self.add("Mul", self.add("Mul", gate, self.add("Sigmoid", gate)), up)
        return self.skip(middle, self.linear(inner, INNER, WIDTH), last), last

    def _inputs(self) -> list[onnx.ValueInfoProto]:
        ids = helper.make_tensor_value_info("input_ids", _LONG, [1, "new"])
        mask = helper.make_tensor_value_info("attention_mask", _LONG, [1, "total"])
        pasts = [helper.make_tensor_value_info(n, _FLOAT, [1, GROUPS, "past", SIZE]) for n in _caches("past")]
        return [ids, mask, *pasts]

    def _outputs(self) -> list[onnx.ValueInfoProto]:
        logits = helper.make_tensor_value_info("logits", _FLOAT, [1, "new", WORDS])
        return [
            logits,
            *(helper.make_tensor_value_info(n, _FLOAT, [1, GROUPS, "total", SIZE]) for n in _caches("present")),
        ]
