"""Runs other runtimes, and onnx's own inference, in a child process: a crash there ends that process, not qrun.

`process` is qrun's side, `serve` the child's, with the messages between them. One child serves all requests of a
process, one after the other; after a crash the next request starts another.

May be imported by everything above. It knows nothing of qrun but its errors, so that a child starts fast.
"""

from qrun.child.process import Child, Crash, Failed, RemoteObject, Slow, alone, current_child, start

__all__ = ["Child", "Crash", "Failed", "RemoteObject", "Slow", "alone", "current_child", "start"]
