"""kclab against the plain way of doing the same work: `python -m benchmarks`."""
