"""The conformance suite, and how any runtime is judged by it.

`suite` reads the frozen cases, `run` gives them to one of the `runtimes`, in processes of its own (`worker` and its
`adapters`) or any program, `judge` gives each answer a verdict, `results` has the records of these verdicts.

May be imported by checking, report and cli. Knows no operators: what a case computes is data of the suite.
"""
