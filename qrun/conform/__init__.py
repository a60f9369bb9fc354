"""The conformance suite, and the judgement of any runtime by it.

`suite` reads the frozen cases. `run` passes them to one of the `runtimes`: a child process (`worker` and its
`adapters`) or any program. `judge` gives each answer a verdict, `results` has the records of the verdicts, and
`reproduce` writes a case as a script without qrun.

May be imported by checking, report and cli. Knows no operators: what a case computes is data of the suite.
"""
