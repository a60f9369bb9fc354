"""What `qrun check` does: models judged by the rules, and their recorded vectors replayed on a runtime.

May be imported by `report`, `cli` and `pytest_plugin`. Knows no format in which its findings are told.
"""
