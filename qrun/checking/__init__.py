"""`qrun check`: applies the conformance rules to models, and replays their recorded test vectors on a runtime.

`report`, `cli` and `pytest_plugin` may import this package. It knows no output format.
"""
