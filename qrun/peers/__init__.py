"""Other runtimes on the same model and feeds: onnxruntime and onnx.reference."""

from qrun.peers._common import proto_of, runtime_label
from qrun.peers._loaded import Loaded, loading
from qrun.peers._nodes import Nodes
from qrun.peers._optimized import optimized_peer
from qrun.peers._ort import ORT_TYPES, encode_feeds, external_settings
from qrun.peers._peer import PEERS, Peer

__all__ = [
    "ORT_TYPES",
    "PEERS",
    "Loaded",
    "Nodes",
    "Peer",
    "encode_feeds",
    "external_settings",
    "loading",
    "optimized_peer",
    "proto_of",
    "runtime_label",
]
