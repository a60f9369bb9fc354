"""A model on the reference or the native backend: Session, plans, programs, times, and what this machine can do.

The line through it: `session` asks `plan` for steps, `execution` runs them one by one (`steps`, `dispatch`) or as one
native program (`programs`), `profiling` does so many times. May be imported by `peers` and everything above it. Names
no operator; knows no file but the model and what its own cache keeps, no rule and no other runtime.
"""
