"""Engines that read no ONNX; scripts/compare_engines.py runs them in a Python of their own, which also has numpy.

    python scripts/_foreign_engines.py ENGINE WAY JOBS.npz ANSWERS.npz

JOBS has for each branch of the probe its `weights` int8 [n, k] and sums int64 [n], its scales, zero points, and what it
has of bias, padded weights and Relu. ANSWERS gets the codes of each, and the engine's version.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Job = Mapping[str, Array]


def read_jobs(path: str) -> dict[str, Job]:
    """The jobs by the names of their branches."""
    jobs: dict[str, dict[str, Array]] = {}
    for key, array in np.load(path).items():
        name, _, field = key.rpartition("/")
        jobs.setdefault(name, {})[field] = array
    return dict(jobs)


def litert(jobs: Mapping[str, Job], way: str) -> tuple[dict[str, Array], str]:
    """LiteRT: one operator a branch. way: an operator and a set of kernels, as ``conv ref``."""
    operator, kernels = way.split()
    interpreter = importlib.import_module("ai_edge_litert.interpreter")
    built = importlib.import_module("_tflite").Model()
    for name, job in jobs.items():
        built.add(name, job, operator)
    resolver = {
        "ref": interpreter.OpResolverType.BUILTIN_REF,
        "opt": interpreter.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
        "xnnpack": interpreter.OpResolverType.AUTO,
    }[kernels]
    run = interpreter.Interpreter(model_content=built.content(), experimental_op_resolver_type=resolver, num_threads=1)
    run.allocate_tensors()
    for details in run.get_input_details():
        x = built.inputs[details["name"]]
        run.set_tensor(details["index"], x)
    run.invoke()
    made = {details["name"]: run.get_tensor(details["index"]) for details in run.get_output_details()}
    return made, importlib.metadata.version("ai-edge-litert")


def ncnn(jobs: Mapping[str, Job], way: str) -> tuple[dict[str, Array], str]:
    """ncnn. way: ``requantize``, its layer for sums; or ``conv``, its int8 convolution of codes with zero point 0."""
    net_of = _ncnn_requantize if way == "requantize" else _ncnn_convolution
    package = importlib.import_module("ncnn")
    made = {}
    with TemporaryDirectory() as folder:
        param, binary = str(Path(folder, "net.param")), str(Path(folder, "net.bin"))
        for name, job in jobs.items():
            text, data, x = net_of(job)
            Path(param).write_text(text)
            Path(binary).write_bytes(data)
            net = package.Net()
            net.opt.num_threads = 1
            net.load_param(param)
            net.load_model(binary)
            extractor = net.create_extractor()
            extractor.input("x", package.Mat(x))
            made[name] = np.array(extractor.extract("y")[1]).reshape(-1).astype(np.int8)
    return made, str(package.__version__)


def _ncnn_requantize(job: Job) -> tuple[str, bytes, Array]:
    x, w, y = (np.float32(1) / np.float32(job[part]) for part in ("sx", "sw", "sy"))
    data = np.array([np.float32(1) / (x * w), y], np.float32).tobytes()
    text = "7767517\n2 2\nInput x 0 1 x\nRequantize r 1 1 x y 0=1 1=1 2=0\n"
    return text, data, job["sums"].astype(np.int32)


def _ncnn_convolution(job: Job) -> tuple[str, bytes, Array]:
    """Quantize, then Convolution with int8_scale_term 101, which requantizes, and Relu by its activation."""
    one, (n, k) = np.float32(1), job["weights"].shape
    around = job.get("around")
    kernel = job["weights"] if around is None else np.stack([around] * 4 + [job["weights"]] + [around] * 4, axis=2)
    x, w, y = (one / np.float32(job[part]) for part in ("sx", "sw", "sy"))
    bias = job.get("bias")
    terms = f"0={n} 1={3 if around is not None else 1} 4={int(around is not None)} 5={int(bias is not None)} 6={kernel.size} 8=101 9={int('relu' in job)}"
    text = f"7767517\n3 3\nInput x 0 1 x\nQuantize q 1 1 x q 0=1\nConvolution c 1 1 q y {terms}\n"
    codes = np.ascontiguousarray(kernel).tobytes()
    parts = [x.tobytes(), np.uint32(0x000D4B38).tobytes(), codes + bytes(-len(codes) % 4)]
    if bias is not None:
        parts.append((bias.astype(np.float32) * (np.float32(job["sx"]) * np.float32(job["sw"]))).tobytes())
    parts += [np.full(n, w, np.float32).tobytes(), x.tobytes(), y.tobytes()]
    feed = job["x"].astype(np.float32) * np.float32(job["sx"])
    return text, b"".join(parts), feed.reshape(k, 1, 1)


def tvm(jobs: Mapping[str, Job], way: str) -> tuple[dict[str, Array], str]:
    """TVM's intrinsic q_multiply_shift, whose multiplier and shift are given."""
    package, te = importlib.import_module("tvm"), importlib.import_module("tvm.te")
    made = {}
    for name, job in jobs.items():
        sums, q, shift = job["sums"].astype(np.int32), int(job["q"]), int(job["shift"])
        a = te.placeholder(sums.shape, "int32", name="a")
        b = te.compute(sums.shape, _q_multiply_shift(package.tirx, a, q, 31 - shift), name="b")
        function = package.compile(te.create_prim_func([a, b]), target="llvm")
        out = package.runtime.tensor(np.zeros_like(sums))
        function(package.runtime.tensor(sums), out)
        made[name] = np.clip(out.numpy().astype(np.int64) + int(job["zero"]), -128, 127).astype(np.int8)
    return made, importlib.metadata.version("apache-tvm")


def _q_multiply_shift(tirx: Any, a: Any, q: int, shift: int) -> Callable[[Any], Any]:
    """The element i of a, multiplied; TVM takes no function with defaults."""
    return lambda i: tirx.q_multiply_shift(
        a[i], tirx.const(q, "int32"), tirx.const(31, "int32"), tirx.const(shift, "int32")
    )


RESCALE = """func.func @main(%a: tensor<{n}xi32>) -> tensor<{n}xi8> {{
  %m = "tosa.const"() {{values = dense<{q}> : tensor<1xi32>}} : () -> tensor<1xi32>
  %s = "tosa.const"() {{values = dense<{shift}> : tensor<1xi8>}} : () -> tensor<1xi8>
  %zi = "tosa.const"() {{values = dense<0> : tensor<1xi32>}} : () -> tensor<1xi32>
  %zo = "tosa.const"() {{values = dense<{zero}> : tensor<1xi8>}} : () -> tensor<1xi8>
  %r = "tosa.rescale"(%a, %m, %s, %zi, %zo) {{scale32 = true, rounding_mode = #tosa.rounding_mode<{mode}>, per_channel = false,
    input_unsigned = false, output_unsigned = false}} : (tensor<{n}xi32>, tensor<1xi32>, tensor<1xi8>, tensor<1xi32>, tensor<1xi8>) -> tensor<{n}xi8>
  return %r : tensor<{n}xi8>
}}"""


def iree(jobs: Mapping[str, Job], way: str) -> tuple[dict[str, Array], str]:
    """IREE's tosa.rescale. way: ``SINGLE_ROUND`` or ``DOUBLE_ROUND``."""
    compiler, runtime = importlib.import_module("iree.compiler"), importlib.import_module("iree.runtime")
    made = {}
    for name, job in jobs.items():
        text = RESCALE.format(n=job["sums"].size, mode=way, **{key: int(job[key]) for key in ("q", "shift", "zero")})
        options = {"target_backends": ["llvm-cpu"], "extra_args": ["--iree-llvmcpu-target-cpu=host"]}
        module = runtime.load_vm_flatbuffer(
            compiler.compile_str(text, input_type="tosa", **options), driver="local-sync"
        )
        made[name] = np.asarray(module.main(job["sums"].astype(np.int32)).to_host())
    return made, importlib.metadata.version("iree-base-compiler")


ENGINES: Mapping[str, Callable[[Mapping[str, Job], str], tuple[dict[str, Array], str]]] = {
    "litert": litert,
    "ncnn": ncnn,
    "tvm": tvm,
    "iree": iree,
}


def main() -> None:
    engine, way, jobs, answers = sys.argv[1:]
    made, version = ENGINES[engine](read_jobs(jobs), way)
    np.savez(answers, **{"/version": np.array(version)}, **made)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
