"""Codes of messages that are not rules, and the topics of ``qrun explain``."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable

from qrun.errors import NAMES, close_matches
from qrun.report.answer import EXITS

_TEXTS = {
    "QR000": "The command line cannot be read: an unknown command or option, an option without a value, or a value that the option does not accept. qrun COMMAND -h lists the options.",
    "QR001": "The model has an input that was not given. Give every input with -i, or add --random to fill the missing ones.",
    "QR002": "A name given with -i is not an input of the model. qrun inspect MODEL lists the inputs.",
    "QR003": "An array does not have the element type or the shape of its input, or a record or a dump was made with different inputs. qrun never converts arrays silently; the message shows what fits, such as a transposition from NHWC to NCHW.",
    "QR004": "A file cannot be opened, or a folder was given where a file is needed.",
    "QR005": "An option has an unusable value, or two options contradict each other.",
    "QR006": "A name or pattern matches no tensor and no node of the model. qrun inspect MODEL --nodes lists the tensors.",
    "QR007": "A file of inputs, a saved result or a record cannot be read: a .npy or .npz that is cut off or contains Python objects, a .pb that is not a TensorProto, an image that is damaged or in a format that qrun does not read, or JSON of a different kind or version. Pickles are never loaded.",
    "QR008": "A result file cannot be written.",
    "QR009": "[tool.qrun] in pyproject.toml has an unknown key or a value of the wrong kind. qrun explain config lists what is allowed.",
    "QR010": "The run would use more memory than allowed: --max-memory, or 80 % of the free memory. Reduce the batch with --shape, or raise the limit.",
    "QR011": "The runtime chosen with --backend or --against failed while it ran the model. qrun shows its message.",
    "QR012": "A package is not installed: onnxruntime for --backend ort and --against ort, or Pillow for image files.",
    "QR013": "The runtime chosen with --backend or --against refuses to load the model. qrun shows its message.",
    "QR014": "--backend native needs llvmlite, and an x86-64 or AArch64 CPU. --backend reference returns the same results.",
    "QR015": "The runtime chosen with --backend or --against crashed while it loaded or ran the model. It runs in a separate process, so qrun continues: qrun compare runs the nodes one by one and finds the one that crashes. The message shows the signal or exit code, and the last line that the runtime printed.",
    "QR016": "The run takes longer than --max-time allows. The message names the node where it stopped, and the iteration of a Loop or Scan. qrun stops between nodes and between iterations, not inside a node; it does interrupt another runtime. Raise the limit, or check whether the condition of the Loop ever becomes false.",
    "QR018": "A custom operator cannot be declared: the Python file of --ops fails or declares none, the file of --functions has no functions, qrun has an operator of that name, or the function's parameters are not inputs and attributes. The message shows the file and line. See qrun explain custom-operators.",
    "QR017": "The file of a target, for qrun check --target, is not as its JSON Schema says (qrun/schemas/target-1.0.json): an unknown key, a value of the wrong kind, or a name that the file does not define. The message shows the place in the file.",
    "QR101": "The file is not an ONNX model: a Git LFS pointer, a web page, an empty or cut-off file, or another format. The message says which.",
    "QR102": "The graph contradicts itself: two nodes produce one tensor, no node produces it, or nodes form a cycle.",
    "QR103": "A stored tensor contradicts itself. Its data does not have the size that its type and shape require, is stored in two fields, or contains numbers outside the type; or the type does not exist.",
    "QR104": "A tensor's data is in an external file, which is missing, too short, outside the model's folder, or changes while qrun uses it.",
    "QR105": "A node uses a domain that the model does not import. Every node's domain needs an opset_import entry.",
    "QR106": "The model imports an opset that qrun does not read, or one domain twice.",
    "QR107": "A model-local function cannot be inlined, for example because it calls itself.",
    "QR202": "An operator refuses its inputs for a reason that has no separate code.",
    "QR209": "An index points outside the axis that it selects from.",
    "QR210": "A node failed while it computed these values or shapes.",
    "QR501": "An output differs from the one recorded in test_data_set_*/output_N.pb by more than the tolerance: --lsb steps for integers, atol + rtol * |recorded| for floats. If the node that produces the output rounds (QuantizeLinear, QLinearConv, QLinearMatMul, QGemm, QLinearAdd, QLinearMul), the finding shows the exact value before rounding. It also says whether every differing element is within 1e-5 steps of a tie. If so, the two runtimes rounded differently, and --lsb 1 or --arith accepts it. Any other difference is an error in that node or an earlier one.",
    "QR502": "A recorded input does not have the element type or shape that the graph declares, or an output has a different type or shape from the recorded one. The vectors belong to a different model, or the model declares a wrong output.",
    "QR503": "A test_data_set folder has no file for an input or output of the graph. Files are input_0.pb, input_1.pb ... and output_0.pb ..., in graph order or with the names of the graph's inputs and outputs in them.",
    "QR504": "A test_data_set folder has a file that belongs to no input or output of the graph. qrun does not compare it.",
    "QR505": "A recorded vector was not replayed, so its outputs are unchecked. A node refuses the inputs, qrun or the --backend runtime cannot run the model, a memory or time limit is reached, or files cannot be read. The finding lists the vectors, and the reason with its code. Only --ignore QR505 suppresses this finding and accepts vectors that cannot be run. --select and other --ignore codes have no effect on it.",
}
CODES = {code: (NAMES[code], text) for code, text in _TEXTS.items()}
"""Name and explanation by code."""

GROUPS = {
    "QR0": "the command: inputs, options, limits",
    "QR1": "file and graph",
    "QR2": "operators and types",
    "QR3": "scales, zero points and bias",
    "QR4": "values at run time",
    "QR5": "recorded vectors",
    "QR6": "portability of QDQ groups",
}

TOPICS = {
    "custom-operators": """\
Operators that qrun does not have run from your own code:

  --ops my_ops.py         a Python file that declares operators; it is run
  --functions lib.onnx    a model's functions, used for operators that the model
                          does not define and qrun does not have; no code is run

my_ops.py:

  import numpy as np
  from qrun import op

  @op("Triple", domain="com.example")
  def triple(x, *, offset: float = 0.0):
      return (3 * x + np.float32(offset)).astype(x.dtype)

Parameters before the * are inputs (= None: optional, *xs: any number), those
after it attributes. The function gets numpy arrays that it must not change, and
returns one array or a tuple of arrays. Its nodes are run, timed ("numpy, yours"),
checked, compared, recorded and evaluated like others. A result whose type or
shape is not what the model states is an error; so is an exception, which is shown
with its line. --max-time stops a function that does not end.

Installed packages declare operators with an entry point of the group qrun.ops,
named after their domain. It is imported when a model has a node of the domain.
Nothing else is imported: [tool.qrun] cannot name files with code.""",
    "inputs": """\
-i, --inputs takes any of these. Repeat it for several inputs.

  x.npy                   the next input in graph order
  name=x.npy              this input; name may contain any character, even =
  x.npy[17]               one row of the leading axis; all.npz[17] works too
  all.npz                 keys are input names
  name=[[1,2,3]]          JSON, cast to the type of the input
  x.pb                    a TensorProto, the next input in graph order
  cat.png                 an image: .png, .jpg, .jpeg, .bmp or .webp (qrun explain
                          image)
  in.json                 inputs of polygraphy run --save-inputs; in.json[2] is
                          one of several iterations
  test_data_set_0/        a folder with input_0.pb, input_1.pb ...
  -                       stdin: .npy or .npz

Types must match the model's, and shapes must fit; nothing is converted silently. --cast converts element types: it
rounds floats to a smaller type. It refuses values out of range, and fractions for integer inputs. A dynamic size such as N
has the same value in all inputs. Without any -i, all inputs are random with --seed (default 0); if only some are given, the
others need --random, except those of a decoder (qrun explain decoder). --shape image:1x3x224x224 or --shape N=4 fixes dynamic sizes of random inputs. Other dynamic sizes are 1.

Random data: floats uniform in [-1,1), 8-bit and smaller integers over their full range, other integers 0 or 1.

Pickled arrays are never loaded.""",
    "image": """\
--image states how image files become inputs. [tool.qrun.image] in pyproject.toml sets it for every command. If a key is
repeated, the last one counts. qrun guesses nothing: without a required key it stops with an error, and the report lists what
was done. Pillow reads the files: pip install pillow.

  --image size=224 color=rgb scale=1/255 mean=0.485,0.456,0.406 std=0.229,0.224,0.225
  --image shorter=256 crop=224 color=rgb scale=1/255

  color=rgb               or bgr, gray, rgba: the order of the channels. Required
                          unless the input has 1 or 4 channels
  layout=nchw             or nhwc, chw, hwc, hw: the order of the axes. Required
                          only if several fit the input
  size=640x480            width and height, or one number for both: the whole
                          image is resized to it
  shorter=256             in place of size: the length of the shorter side. The
                          image keeps its proportions
  crop=224                the part in the middle, after the resize. One of these
                          three is required if the image does not have the size
                          of the input
  resize=bilinear         or nearest, box, hamming, bicubic, lanczos: Pillow's
                          filters; they smooth when shrinking
  scale=1/255             required for float inputs: 1/255 gives pixels from 0 to
                          1, scale=1 from 0 to 255
  mean=0.5 std=0.5        one number, or one for each channel: a value is
                          (pixel * scale - mean) / std. Default: 0 and 1
  exif=apply              or ignore: the camera's orientation. Required if
                          the image is not upright

uint8 inputs take raw pixels; for int8 inputs, add mean=128. qrun refuses images with transparent pixels or 16 bits per
channel, and ignores colour profiles.""",
    "decoder": """\
A decoder predicts the next token. qrun eval --tokens runs it over sequences of tokens, and qrun run fills what you leave out
beside the tokens. qrun recognizes these names, as Hugging Face's exporters write them, by name and shape:

  input_ids                    int64 or int32 [batch,seq]; or the only such input
  attention_mask               [batch,total]: 1 for each token so far
  position_ids                 [batch,seq]: 0, 1, 2 ...
  use_cache_branch             [1]: whether the caches have tokens
  past_key_values.0.key        [batch,heads,past,size], and .value; or past.0.key,
                               past_key_0, past_0; the batch and past are free
  present.0.key                the output that the cache gets next; or
                               present_key_values.0.key, present_key_0, present_0
  logits                       float [batch,seq,vocabulary]; or the only other output

For other names, write a genai_config.json beside the model, as onnxruntime-genai does:

  {"model": {"decoder": {"filename": "model.onnx",
    "inputs": {"input_ids": "tokens", "past_key_names": "k_%d", "past_value_names": "v_%d"},
    "outputs": {"logits": "scores", "present_key_names": "k_out_%d", "present_value_names": "v_out_%d"}}}}

%d is the number of the layer. A folder with such a file is a model: qrun run folder/. A model with caches gets empty ones
first, then what it returned, --step tokens at a time; one without gets whole sequences.""",
    "exit-codes": "\n".join(
        textwrap.fill(text, 78, initial_indent=f"{code:>5}  ", subsequent_indent=" " * 7)
        for code, text in EXITS.items()
    ),
    "config": """\
Set defaults for options in [tool.qrun] of pyproject.toml. qrun reads the nearest one, from the current folder upwards:

  [tool.qrun]
  max-memory = "8GiB"

  [tool.qrun.run]
  fail-on = "warning"

  [tool.qrun.check.per-file]
  "legacy/*.onnx" = { ignore = ["QR304"], lsb = 1 }

  [tool.qrun.image]
  size = 224
  color = "rgb"
  scale = "1/255"
  mean = [0.485, 0.456, 0.406]
  std = [0.229, 0.224, 0.225]

[tool.qrun.image] takes the keys of --image (qrun explain image). A key given with --image overrides the value in the file. All other keys are names of options. Keys directly in [tool.qrun] apply to every command that has the option. In per-file, select,
ignore, lsb, rtol and atol apply to models whose path from the current folder matches the pattern (* matches slashes too). Only the first
matching pattern applies; its ignore list is added to the others. An unknown key is an error. Options that name files to read or write (inputs, output, trace, data) cannot be set here.

Order: command line, environment (QRUN_MAX_MEMORY), file, default. qrun prints on stderr which settings come from the file.
--config FILE reads another file, --config none reads none.""",
    "environment": """\
Environment variables that qrun reads. QRUN_CACHE_DIR, QRUN_CACHE_SIZE and QRUN_ISA apply to qrun.Session too.

  QRUN_MAX_MEMORY    same as --max-memory: the most memory that a run may use,
                     such as 8GiB
  QRUN_CONFIG        same as --config: a file instead of pyproject.toml, or
                     none
  QRUN_CACHE_DIR     the folder of compiled kernels and prepared models,
                     instead of the one in the user's cache folder
  QRUN_CACHE_SIZE    the size limit of that folder, such as 2GB; 512 MiB if not
                     set. The least recently used files are removed first
  QRUN_ISA           a lower instruction set for native kernels: amx,
                     avx512vnni, avxvnni, avx512bw, avx2, generic; neon-i8mm,
                     neon-dotprod, neon
  NO_COLOR           no colour on any screen; --color overrides it
  FORCE_COLOR        colour in a pipe too; --color overrides it
  COLUMNS            the width of the screen, and of tables in a pipe
  SOURCE_DATE_EPOCH  the date that the page of qrun report shows, so that the
                     same results produce the same page

An option overrides its variable, and the variable overrides [tool.qrun] (qrun explain config). qrun cache shows and clears
that folder.""",
    "completion": """\
The Tab key completes commands, options and the topics of qrun explain. Add one of these lines to the file that your shell
reads when it starts:

  bash   eval "$(qrun completion bash)"
  zsh    eval "$(qrun completion zsh)"
  fish   qrun completion fish | source""",
    "json": """\
--json (or --format json) prints one JSON document on stdout, even if the command fails.

  schema       qrun/COMMAND/MAJOR.MINOR; a new minor version only adds keys
  qrun         the version of qrun
  command      the command line
  verdict      the answer as a sentence: that of the screen
  exit         code: the exit code of the process, and its meaning
  next         what to type next, as the screen suggests it: commands; of an
               error, its fixes
  exit_code    the exit code again
  error        code, name, message, where, facts, why, fixes; only on failure

If qrun crashes, the error code is internal; after Ctrl-C it is interrupted. Ignore keys that you do not know. Numbers that JSON cannot represent are the strings "nan", "inf" and "-inf". The document does not contain large tensors: save them with -o.""",
    "roof": """\
The roof column of qrun profile shows how close a node comes to the limit of this machine, and which limit:

  compute   the peak rate of multiply-adds (8-bit integers, or float32 for float
            nodes)
  memory    the bandwidth of the smallest cache that holds the node's data, or
            of main memory

The roof of a node is the longer of two times: the time for its multiply-adds at the peak rate, and the time to move its
inputs, weights and outputs once at that bandwidth. 50 % compute means that the node takes twice as long as its multiply-adds
would at the peak rate. A node without multiply-adds is limited by memory only. For a node that reads parts of a table, such as
Gather, only those parts count. This is the roofline model (Williams, Waterman, Patterson, Communications of the ACM
52(4), 2009).

qrun measures the peak rate and the bandwidths on this machine, for each number of threads, and keeps them in its cache;
--no-cache measures them again. A node above 100 % shows that the machine was busier, or its clock lower, during that
measurement. qrun then measures again and keeps the faster figures. Compare shares from different days only if the line below
the table shows the same peak and bandwidths.""",
    "numerics": """\
All quantized operators follow these rules. qrun explain OPERATOR prints the formula of one, and what --arith changes.

  rounding    the exact quotient is rounded to the nearest integer, ties to
              even; then the zero point is added; then the sum saturates
  overflow    quotients outside the range of the type, and infinities, become
              its smallest or largest code
  NaN         becomes the smallest code (QR401); in float8 it stays NaN, in
              float6 and float4 it becomes the largest number
  scales      that are zero, negative, infinite or NaN follow IEEE 754: 1 / 0 is
              infinite, 0 / 0 is NaN (QR306, QR405)
  sums        of integers are exact, and wrap to int32 at the end (QR403)
  padding     represents the real number 0: its code is x_zero_point
  parameters  of a whole tensor have the shape [] or [1]; both return a result
              of the same shape
  nothing     a sum of no elements is 0, a mean of no elements is NaN""",
    "causes": """\
qrun compare recomputes the first differing node in each way that it knows. It names a cause if the result matches every bit
of the other side's tensor. There are three exceptions.

Some causes need no computation: crashed, refused, missing-output, empty-sum and random-numbers.

For float-steps and unquantized-activations, and for float-order of sums other than MatMul, Gemm and Conv, qrun does not know
the runtime's steps or their order. Every element must then be within the rounding-error bound. unknown-order compares a
MatMul, Gemm or Conv with that bound.

For runtime-arithmetic and empty-sequence, qrun knows what the runtime computes, but not every bit. Recomputing must then bring
every element within the tolerance, and the evidence says so.

The cause is unknown if no computation reproduces the other side's bits. It is inherited if the node, given the other side's
inputs, returns the other side's bits: then an earlier node is the cause.

qrun explain CAUSE says how to confirm a cause, and what to do.""",
    "glossary": """\
These words appear on qrun's screens. qrun explain WORD prints one of them.""",
    "arithmetics": """\
An integer engine turns the exact sum of a node into a code: code = round(sum * M) + zero point, cut to the range of the
type. M is x_scale * w_scale / y_scale. Engines differ by one step because they make five choices differently:

  multiplier  how M is computed from the three scales, and in which type
  held        as a float, or as an integer of so many bits and a shift
  steps       one rounding, or several
  ties        where a sum halfway between two codes goes
  zero point  added after rounding, or before it

qrun probe reads these choices off a runtime's or a device's outputs. qrun compare names what all integer nodes of a model
show of them. These families are known:""",
    "dumps": """\
qrun compare MODEL DUMP --map auto compares qrun with the tensors that a device or another tool wrote:

  .npz, .npy         arrays of numpy, or a folder of .npy files
  .raw, .bin         bytes, as SNPE, QNN and Vitis AI write them; a .json file
                     may state {name, dtype, shape, scale, zero_point, file}
  tidl_trace*.y      traces of TI TIDL
  .json              polygraphy run --save-outputs
  .h                 C arrays, as in CMSIS-NN's test data
  .txt, .log         lines NAME: or NAME int8 [1,8,4,4]:, then numbers

qrun pairs each tensor with one of the model by its name, its shape, its layout (channels last, padded to 4, 8, 16 or 32)
and its values: codes as they are or shifted by 128, or dequantized floats within 0.01 steps of a code. A pair is proposed
only if nothing else is possible. The proposal is written as DUMP.names.json: edit it, and give it as --map.""",
    "conform": """\
qrun conform runs the cases of a frozen suite in a runtime and judges every answer:

  exact            all bits match, or the runtime refuses a forbidden model
  choice           the specification leaves the answer open, or the elements
                   that differ are one step off next to a tie
  ulp              floats differ by no more than the tolerance of ONNX's tests
  wrong            any other answer, with its cause
  unstable         results change from run to run
  accepts-invalid  a result for a model that the specification forbids
  refused          the runtime refuses a form that the specification allows
  crashed          the process ended before it answered, or its output cannot
                   be read
  hung             the process did not answer within --timeout seconds
  unsupported      the runtime has no such operator or element type

Each case names its rule, with the sentences of the specification. A rule is forced (the sentences alone determine the
answer), implied (the operator's formula determines it) or qrun's decision. If the runtime's answer differs from a
decision, the verdict is choice, never wrong. With -v, qrun shows the rule, the inputs and both answers.

qrun explain CAUSE explains each cause. These causes appear only in qrun conform: garbage, accepts-invalid, zero-range,
float-rounding and zero-sign.

--runtime 'cmd:PROGRAM {model} {inputs} {outputs}' starts a program for each case:

  {model}      the path of an .onnx file
  {inputs}     a folder with input_0.pb, input_1.pb, ... (TensorProto), in the
               order of the graph's inputs
  {outputs}    an empty folder; the program writes output_0.pb, output_1.pb, ...
               into it

The program exits with 0 if it ran the model, 2 if it refuses the model, and 3 if it has no such operator or type. Any other
exit code is a crash. qrun shows the last line of stderr as its message.

--runtime 'batch:PROGRAM' starts the program once. For each case it reads a line of JSON from stdin, with the keys id,
model, inputs and outputs (paths as above), and writes a line of JSON to stdout: {} if it ran the model,
{"refused": "reason"} or {"unsupported": "reason"} if not. The answer may repeat the id; without it, qrun cannot tell a
late second answer from the answer to the next case. Lines that are not JSON objects are ignored.

If several cases all fail with the same message, qrun stops with exit code 2: the program probably does not start.""",
}


def nearest(word: str, names: Iterable[str], count: int) -> list[str]:
    """Up to `count` names or codes that the user may have meant; none for a code or group that does not exist.

    Codes with nearly the same digits have unrelated meanings.
    """
    if re.fullmatch(r"QR\d{0,3}", word, re.IGNORECASE):
        return []
    known = {name.lower(): name for name in names}
    return [known[near] for near in close_matches(word.lower(), known, count, 0.6)]
