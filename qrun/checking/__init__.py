"""`qrun check`: applies the conformance rules to models, and replays their recorded test vectors on a runtime.

May be imported by `report`, `cli` and `pytest_plugin`. Knows no output format.
"""
