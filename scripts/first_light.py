"""Whether MLX computes on Apple's GPU here: one product against NumPy, and what the device says of itself.

python scripts/first_light.py
"""

import json
import sys

import mlx.core as mx
import numpy as np

_SIZE = 512


def find_problem() -> str | None:
    """Why this is not a GPU that computes; None if it is."""
    if not mx.metal.is_available():
        return "MLX was built without Metal, or finds no device"
    if mx.default_device() != mx.Device(mx.gpu):
        return f"MLX's default device is {mx.default_device()}"
    one, other = np.random.default_rng(0).standard_normal((2, _SIZE, _SIZE), np.float32)
    difference = np.abs(np.array(mx.array(one) @ mx.array(other)) - one.astype(np.float64) @ other).max()
    # TF32, which M5 uses by default, rounds to 10 bits: 0.1 here at most. float32 has 1e-4.
    return None if difference < 0.2 else f"a product of {_SIZE}x{_SIZE} matrices differs by {difference:g}"


def main() -> int:
    """Print both; returns the exit code."""
    print(json.dumps({"mlx": mx.__version__, "device": str(mx.default_device()), **mx.device_info()}, indent=1))
    problem = find_problem()
    print(f"error: {problem}" if problem else "Metal computes.", file=sys.stderr if problem else sys.stdout)
    return 1 if problem else 0


if __name__ == "__main__":
    sys.exit(main())
