"""Codes of messages that are not rules, and the topics of ``qrun explain``."""

from __future__ import annotations

import re
from collections.abc import Iterable

from qrun.errors import NAMES, close_matches

_TEXTS = {
    "QR000": "The command line cannot be read: an unknown command or option, an option without its value, or a value that is not one of its choices. qrun COMMAND -h lists the options.",
    "QR001": "The model has an input that was not given. Give all of them with -i, or fill the missing ones with --random.",
    "QR002": "A name given with -i is not an input of the model. qrun inspect MODEL lists the inputs.",
    "QR003": "An array does not have the element type or the shape of its input, or a record was made of other inputs. qrun never converts arrays silently; the message shows what fits, such as a transposition from NHWC to NCHW.",
    "QR004": "A file cannot be opened, or a folder was given where a file is needed.",
    "QR005": "An option has an unusable value, or two options contradict each other.",
    "QR006": "A name or pattern matches no tensor and no node of the model. qrun inspect MODEL --nodes lists the tensors.",
    "QR007": "A file of inputs, a saved result or a record cannot be read: a .npy or .npz that is cut off or holds Python objects, a .pb that is not a TensorProto, an image that is damaged or in a format that qrun does not read, or JSON of another kind or version. Pickles are never loaded.",
    "QR008": "The result cannot be written to its destination.",
    "QR009": "[tool.qrun] in pyproject.toml has an unknown key or a value of the wrong kind; qrun explain config says what is allowed.",
    "QR010": "The run would use more memory than allowed: 80 % of what is free, or --max-memory. Make the batch smaller with --shape, or raise the limit.",
    "QR011": "The runtime chosen with --backend or --against failed while it ran the model. Its own message is shown.",
    "QR012": "A package is not installed: onnxruntime for --backend ort and --against ort, or Pillow for image files.",
    "QR013": "The runtime chosen with --backend or --against does not load the model. Its own message is shown.",
    "QR014": "--backend native needs llvmlite and a CPU that it has kernels for (x86-64 or AArch64). --backend reference gives the same results.",
    "QR015": "The runtime chosen with --backend or --against crashed while it loaded or ran the model. It runs in its own process, so qrun continues: qrun compare runs the nodes one by one and finds the one that crashes. The message shows the signal or the exit code, and the last line that the runtime printed.",
    "QR016": "The run takes longer than --max-time allows. The message names the node where it stopped, and in a Loop or Scan the turn. A run ends between nodes and between turns of a loop; qrun does not interrupt a node, but it interrupts another runtime. Raise the limit, or check whether the condition of the Loop ever becomes false.",
    "QR101": "The file is not an ONNX model: a Git LFS pointer, a web page, an empty or cut-off file, or another format. The message says which.",
    "QR102": "The graph contradicts itself: a tensor made twice or never, nodes that depend on each other in a circle.",
    "QR103": "A stored tensor contradicts itself: its data are longer or shorter than its type and shape say, are stored in two fields, or hold numbers outside the type; or the type does not exist.",
    "QR104": "The data of a tensor are kept in another file that is missing, too short, outside the model's folder, or changed while it is in use.",
    "QR105": "A node uses a domain that the model does not import. Every node's domain needs an opset_import entry.",
    "QR106": "The model imports an opset that qrun does not read, or one domain twice.",
    "QR107": "A model-local function cannot be inlined, for example because it calls itself.",
    "QR202": "An operator refuses its inputs for a reason without a code of its own.",
    "QR209": "An index points outside the axis that it selects from.",
    "QR210": "The computation of a node failed on these values or shapes.",
    "QR501": "An output differs from the one recorded in test_data_set_*/output_N.pb by more than the tolerance: --lsb steps for integers, atol + rtol * |recorded| for floats. Where the node that makes the output rounds (QuantizeLinear, QLinearConv, QLinearMatMul, QGemm, QLinearAdd, QLinearMul), the finding shows the exact value before rounding, and whether every differing element is within 1e-5 steps of a tie: then two runtimes chose differently, and --lsb 1 or --arith accepts it. Everything else is an error, of that node or of one before it.",
    "QR502": "A recorded input does not have the element type or shape that the graph declares, or an output has a different type or shape from the recorded one. The vectors belong to another model, or the model declares its outputs wrongly.",
    "QR503": "A test_data_set folder has no file for an input or output of the graph. Files are input_0.pb, input_1.pb ... and output_0.pb ..., in graph order or with the names of the graph's inputs and outputs in them.",
    "QR504": "A test_data_set folder has a file that belongs to no input or output of the graph, so nothing is compared with it.",
    "QR505": "A recorded vector was not replayed, so its outputs are unchecked: a node refuses the inputs, qrun or the runtime of --backend does not run the model, a memory or time limit is reached, or files cannot be read. The finding lists the vectors, and the reason with its code. Neither --select nor another code in --ignore removes this finding; --ignore QR505 does, and so accepts vectors that do not run.",
}
CODES = {code: (NAMES[code], text) for code, text in _TEXTS.items()}
"""Name and explanation by code."""

GROUPS = {
    "QR0": "the call: inputs, options, limits",
    "QR1": "file and graph",
    "QR2": "operators and types",
    "QR3": "scales, zero points and bias",
    "QR4": "values at run time",
    "QR5": "recorded vectors",
    "QR6": "portability of QDQ groups",
}

TOPICS = {
    "inputs": """\
-i, --inputs takes any of these, and can be repeated:

  x.npy                   the next input in graph order
  name=x.npy              this input; name may contain any character, even =
  x.npy[17]               one row of the leading axis; all.npz[17] works too
  all.npz                 keys are input names
  name=[[1,2,3]]          JSON, cast to the type of the input
  x.pb                    a TensorProto, the next input in graph order
  cat.png                 an image: .png, .jpg, .jpeg, .bmp or .webp (qrun explain
                          image)
  test_data_set_0/        a folder with input_0.pb, input_1.pb ...
  -                       stdin: .npy or .npz

Types must match the model's, and shapes must fit; nothing is converted silently. --cast converts element types: it
rounds floats to a smaller type, and refuses values out of range and, for integer inputs, fractions. A dynamic size such as N gets
one value for all inputs. Without any -i, all inputs are random with --seed (default 0); if only some are given, the
others need --random. --shape image:1x3x224x224 or --shape N=4 fixes dynamic sizes of random inputs; one that is not fixed is 1.

Random data: floats uniform in [-1,1), 8-bit and smaller integers over their full range, other integers 0 or 1.

Pickled arrays are never loaded.""",
    "image": """\
--image says how image files become inputs; [tool.qrun.image] in pyproject.toml says so for all calls. If a key is repeated,
the last one counts. Nothing is guessed: a missing key that is needed is an error, and the report says what was done. Pillow reads the
files: pip install pillow.

  --image size=224 color=rgb scale=1/255 mean=0.485,0.456,0.406 std=0.229,0.224,0.225

  color=rgb               or bgr, gray, rgba: the order of the channels. Needed
                          unless the input has 1 or 4 channels
  layout=nchw             or nhwc, chw, hwc, hw: the order of the axes. Needed
                          only if several fit the input
  size=640x480            width and height, or one number for both: the whole
                          image is resized to them, without cropping. Needed
                          if the image does not have the size of the input
  resize=bilinear         or nearest, box, hamming, bicubic, lanczos: Pillow's
                          filters, which smooth when they shrink
  scale=1/255             needed for float inputs: 1/255 gives pixels from 0 to
                          1, scale=1 from 0 to 255
  mean=0.5 std=0.5        one number, or one for each channel: a value is
                          (pixel * scale - mean) / std. Default: 0 and 1
  exif=apply              or ignore: the camera's orientation. Needed if it is
                          not upright

uint8 inputs take raw pixels; for int8 inputs, add mean=128. Transparent pixels and 16 bits per channel are errors. Colour
profiles are ignored.""",
    "exit-codes": """\
    0  done, and the answer is yes
    1  done, and the answer is no: a finding at or above --fail-on, a difference
    2  the call is wrong: unknown option, no such file, missing input
    3  the model cannot be read: not ONNX, cut off, external data missing;
       qrun check reports that as a finding and ends with 1
    4  the model is fine, but qrun cannot run it: operator, opset or type
    5  the run failed: a limit of memory or time, or a node refused its values
   70  a bug in qrun
  130  interrupted with Ctrl-C
  141  the reader of stdout closed the pipe""",
    "config": """\
Options can have defaults in [tool.qrun] of the nearest pyproject.toml, searching upwards from the current folder:

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

The keys of image are those of --image, which overrides them one by one (qrun explain image). The other keys are the names of options. Keys directly in [tool.qrun] apply to every command that has the option. In per-file, select,
ignore, lsb, rtol and atol apply to models whose path from the current folder matches the pattern (* matches slashes too). The first
match counts; its ignore adds to the others. An unknown key is an error. Options that name files to read or write (inputs, output, trace, data) cannot be set here.

Order: command line, environment (QRUN_MAX_MEMORY), file, default. stderr says what comes from the file.
--config FILE reads another file, --config none reads none.""",
    "environment": """\
Environment variables that qrun reads. The first five are its own; QRUN_CACHE_DIR, QRUN_CACHE_SIZE and QRUN_ISA apply to qrun.Session too.

  QRUN_MAX_MEMORY    same as --max-memory: the most memory that a run may use,
                     such as 8GiB
  QRUN_CONFIG        same as --config: a file in place of pyproject.toml, or
                     none
  QRUN_CACHE_DIR     the folder of compiled kernels and prepared models, in
                     place of the one in the user's cache folder
  QRUN_CACHE_SIZE    the size limit of that folder, such as 2GB; 512 MiB if not
                     set. The least recently used files are removed first
  QRUN_ISA           a lower instruction set for native kernels: amx,
                     avx512vnni, avxvnni, avx512bw, avx2, generic; neon-i8mm,
                     neon-dotprod, neon
  NO_COLOR           no colour on any screen; --color overrides it
  FORCE_COLOR        colour in a pipe too; --color overrides it
  COLUMNS            the width of the screen, and of tables in a pipe
  SOURCE_DATE_EPOCH  the date that the page of qrun report shows, so that the
                     same results give the same page

An option overrides its variable, and the variable overrides [tool.qrun] (qrun explain config). qrun cache shows and clears
what is kept.""",
    "completion": """\
The Tab key completes commands, options, and what qrun explain knows, after one of these lines in the file that the shell
reads when it starts:

  bash   eval "$(qrun completion bash)"
  zsh    eval "$(qrun completion zsh)"
  fish   qrun completion fish | source""",
    "json": """\
--json (or --format json) prints one JSON document on stdout, also when the command fails.

  schema       qrun/COMMAND/MAJOR.MINOR; a new minor version only adds keys
  qrun         the version of qrun
  command      the command line
  exit_code    the exit code of the process; see qrun explain exit-codes
  error        code, name, message, where, facts, why, fixes; only on failure

A crash of qrun has the error code internal, Ctrl-C the code interrupted. Ignore keys that you do not know. Numbers that JSON cannot hold are the strings "nan", "inf" and "-inf". Large tensors are not in the document: -o saves them.""",
    "roof": """\
The roof column of qrun profile shows how close a node comes to the limit of this machine, and which limit:

  compute   the peak of the instructions that multiply and add (8-bit integers,
            or float32 for float nodes)
  memory    the speed of the cache, or of the memory, that is large enough for
            what the node moves

The roof of a node is the larger of two times: its multiply-adds at the peak, and the bytes of its inputs, weights and
outputs, each once, at the speed of the smallest cache that they fit in. 50 % compute means that the node
takes twice as long as its multiply-adds would at the peak. A node without multiply-adds is limited by
memory only. For a node that reads parts of a table, such as Gather, only those parts count. This is the roofline model (Williams, Waterman, Patterson, Communications of the ACM
52(4), 2009).

Peak and speeds are measured on this machine for each number of threads, and kept beside the compiled kernels; --no-cache
measures them again. A node above 100 % shows that they were measured while the machine was busier or its clock lower: then
they are measured once more, and the faster ones count from then on. So compare shares from different days only if the line
below the table, with peak and speeds, is the same.""",
    "numerics": """\
Rules of all quantized operators. qrun explain OPERATOR prints the formula of one, and what --arith changes.

  rounding    a quotient, as a real number, goes to the nearest integer, ties
              to even; then the zero point is added; then the sum saturates
  overflow    quotients beyond the type, and infinities, give its smallest
              or largest code
  NaN         gives the smallest code (QR401); in float8 it stays NaN, in
              float6 and float4 it gives the largest number
  scales      that are zero, negative, infinite or NaN follow IEEE 754: 1 / 0 is
              infinite, 0 / 0 is NaN (QR306, QR405)
  sums        of integers are exact, and wrap to int32 at the end (QR403)
  padding     counts as the real number 0, which is the code x_zero_point
  parameters  of a whole tensor have the shape [] or [1]; both give a result
              of the same shape
  nothing     where there are no elements, the sum is 0 and the mean is NaN""",
    "causes": """\
qrun compare names a cause only if recomputing the node in that way reproduces every bit of the other side's tensor.
There are three exceptions. Some causes show without computing: crashed, refused, missing-output, empty-sum and
random-numbers. For float-steps and unquantized-activations, and for float-order of sums other than MatMul, Gemm and
Conv, qrun does not know the order and the float32 steps, so every element must lie within the bound on rounding errors
instead; unknown-order says how far a MatMul, Gemm or Conv is from that bound. Where qrun knows what a runtime computes, but not its bits
(runtime-arithmetic, empty-sequence), recomputing must bring every element within the tolerance; the evidence then says
so. The cause is unknown if no known computation reproduces the other side's bits. It is inherited if the node gives the other
side's bits when it reads the other side's values: an earlier node is the cause.

qrun explain CAUSE says how to confirm one, and what to do.""",
    "glossary": """\
Words that qrun's screens use. qrun explain WORD prints one of them.""",
    "conform": """\
qrun conform gives a runtime the cases of a frozen suite, and judges every answer:

  exact        every bit is the expected one; or a forbidden model is refused
  choice       the specification leaves it open: elements that differ are within
               6.1e-5 steps of a tie, or the answer is a known alternative
  wrong        anything else; with its cause, and whether recomputing proved it
  refused      the runtime refuses a form that the specification allows
  crashed      the process ended before it answered
  hung         the process did not answer within --timeout seconds
  unsupported  the runtime has no such operator or element type

qrun explain CAUSE explains each cause, also garbage (other bits from run to run), accepts-invalid (an answer for a forbidden
model) and zero-range (DynamicQuantizeLinear of zeros), which only qrun conform names.

--runtime 'cmd:PROGRAM {model} {inputs} {outputs}' starts a program for each case. {model} is an .onnx file; {inputs} a folder
with input_0.pb, input_1.pb, ..., a TensorProto each, in the order of the graph's inputs; {outputs} an empty folder, into which
the program writes output_0.pb, output_1.pb, ... Exit code 0: it ran. 2: it refuses the model. 3: it has no such operator or
type. Anything else is a crash. The last line on stderr is shown as its message. One message for all of several cases ends qrun
with 2: the program probably does not start.""",
}


def nearest(word: str, names: Iterable[str], count: int) -> list[str]:
    """Up to `count` names or codes that the user may have meant; none for a code or group that does not exist.

    Codes with nearly the same digits have unrelated meanings.
    """
    if re.fullmatch(r"QR\d{0,3}", word, re.IGNORECASE):
        return []
    known = {name.lower(): name for name in names}
    return [known[near] for near in close_matches(word.lower(), known, count, 0.6)]
