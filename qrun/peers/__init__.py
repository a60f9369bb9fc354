"""Other runtimes on the same model and feeds: onnxruntime and onnx.reference."""

from qrun.peers._common import runtime_label
from qrun.peers._nodes import Nodes
from qrun.peers._ort import ORT_TYPES
from qrun.peers._peer import PEERS, Peer

__all__ = ["ORT_TYPES", "PEERS", "Nodes", "Peer", "runtime_label"]
