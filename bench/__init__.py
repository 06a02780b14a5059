"""Measurements: `python -m bench [name…] [--json]`. Each `bench_<name>.py` has a `main()` that prints its numbers."""
