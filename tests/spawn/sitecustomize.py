"""Imported by Python when it starts in a test: processes are started as on macOS."""

import multiprocessing

multiprocessing.set_start_method("spawn")
