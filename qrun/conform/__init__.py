"""The conformance suite, and how any runtime is judged by it.

`suite` reads the frozen cases, `runner` gives them to a runtime in processes of its own, `judge` tells what the answers
are worth, `results` are the records of that.

May be imported by checking, report and cli. Knows no operators: what a case computes is data of the suite.
"""
