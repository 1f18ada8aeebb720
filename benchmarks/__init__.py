"""Measurements that developers run from a checkout: `python -m benchmarks --help`. Not part of the wheel."""
