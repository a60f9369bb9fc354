"""Two sides of one comparison: runtimes, models, saved files and records, tensor by tensor."""
