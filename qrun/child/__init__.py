"""Other runtimes, and onnx's own inference, in a process of their own: what crashes ends that process, not qrun.

`process` is qrun's side, `serve` the other one, with the messages between them. One child serves all requests of a
process, one after the other; after a crash the next request starts another.

May be imported by everything above. Knows nothing of qrun but its errors, so that a child starts fast.
"""

from qrun.child.process import Child, Crash, Failed, RemoteObject, Slow, alone, running, start

__all__ = ["Child", "Crash", "Failed", "RemoteObject", "Slow", "alone", "running", "start"]
