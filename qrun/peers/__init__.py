"""Runs a model in other runtimes, onnxruntime and onnx.reference, in child processes.

May be imported by `comparing` and everything above it; nothing below it knows that other runtimes exist. Knows no
rules, and uses qrun's own results only to map other profiles onto the file's nodes.
"""

from qrun.peers._loaded import Limits, Loaded, loading_limit, proto_of, runtime_label
from qrun.peers._peer import ORT_TYPES, PEERS, Nodes, Peer, encode_feeds, external_settings, optimized_peer

__all__ = [
    "ORT_TYPES",
    "PEERS",
    "Limits",
    "Loaded",
    "Nodes",
    "Peer",
    "encode_feeds",
    "external_settings",
    "loading_limit",
    "optimized_peer",
    "proto_of",
    "runtime_label",
]
