"""`python -m mlx_ltx_vae.bench.worker JOB`: run one job of `processes.run_fresh` and print its result as JSON."""

import importlib
import json
import sys
from contextlib import redirect_stdout

from .case import Case


def main() -> None:
    """Run the job that the first argument describes."""
    job = json.loads(sys.argv[1])
    measure = getattr(importlib.import_module(job["module"]), job["function"])
    with redirect_stdout(sys.stderr):  # other programs print what they like
        measured = measure(Case(**job["case"]), **job["options"])
    print(json.dumps(measured))


if __name__ == "__main__":
    main()
