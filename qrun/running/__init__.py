"""Runs models on the reference or the native backend: Session, plans, programs, times, and the limits of this machine.

A run goes through these modules: `session` asks `plan` for steps, `execution` runs them one by one (`steps`,
`dispatch`) or as one native program (`programs`), `profiling` repeats runs. May be imported by `peers` and everything
above it. Names no operator; knows no file but the model and its own cache, no rule and no other runtime.
"""
