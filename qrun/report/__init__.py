"""Answers as people and programs read them: screens, JSON, CSV, Markdown, HTML, JUnit, SARIF and annotations.

May be imported by `cli` and `pytest_plugin`. Reads the results of `running`, `comparing` and `checking` and computes none of
them; knows no command line and no runtime.
"""
