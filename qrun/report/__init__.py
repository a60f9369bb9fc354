"""Renders results for people and for programs: screens, JSON, CSV, Markdown, HTML, JUnit, SARIF and annotations.

May be imported by `cli` and `pytest_plugin`. It reads the results of `running`, `comparing` and `checking` and computes
none of them; it knows no command line and no runtime.
"""
