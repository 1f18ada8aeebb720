"""Check MLX's results on Apple's GPU: a convolution of LTX-2.3's decoder in each formulation, its error and its time.

python scripts/first_light.py
"""

import json
import sys
import time

import mlx.core as mx
import numpy as np

from mlx_ltx_vae.networks.convolution.conv3d import Conv3d
from mlx_ltx_vae.networks.convolution.rules import Formulation

_CHANNELS = 512
_FRAMES, _HEIGHT, _WIDTH = 2, 64, 64  # enough for MLX's Winograd kernels
_LARGEST_ERROR = 0.1  # of the result's rms; Winograd in bfloat16 has 0.06 at most in an emulation
_ROUNDS = 5


def find_device_problem() -> str | None:
    """Why MLX does not compute on Apple's GPU here; None if it does."""
    if not mx.metal.is_available():
        return "MLX was built without Metal, or finds no device"
    is_gpu = mx.default_device() == mx.Device(mx.gpu)
    return None if is_gpu else f"MLX's default device is {mx.default_device()}"


def convolve(frames: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Return the same by NumPy: (T + 2, H, W, I) with (O, 3, 3, 3, I), zeros around each frame, to (T, H, W, O)."""
    padded = np.pad(frames, ((0, 0), (1, 1), (1, 1), (0, 0)))
    time_, height, width = len(frames) - 2, *frames.shape[1:3]
    taps = np.ndindex(3, 3, 3)
    return sum(padded[t : t + time_, y : y + height, x : x + width] @ weight[:, t, y, x].T for t, y, x in taps)


def measure(formulation: Formulation, dtype: mx.Dtype, channels: int, size: tuple[int, int]) -> tuple[float, float]:
    """Return the error of a formulation as a share of the result's rms, and the least seconds of some calls."""
    mx.random.seed(0)
    conv = Conv3d(channels, channels, rule=lambda *_, **__: formulation)
    conv.set_dtype(dtype)
    weight = np.array(conv.weight.astype(mx.float32))
    conv.prepare()
    frames = mx.random.normal((1, _FRAMES + 2, *size, channels)).astype(dtype)
    expected = convolve(np.array(frames[0].astype(mx.float32)), weight)
    seconds = []
    for _ in range(_ROUNDS):
        mx.eval(frames)
        start = time.perf_counter()
        result = conv(frames, (0, 1, 1))
        mx.eval(result)
        seconds.append(time.perf_counter() - start)
    difference = np.array(result[0].astype(mx.float32)) - expected
    return float(np.sqrt(np.square(difference).mean() / np.square(expected).mean())), min(seconds)


def main(channels: int = _CHANNELS, size: tuple[int, int] = (_HEIGHT, _WIDTH)) -> int:
    """Print the device and a line for each formulation; returns the exit code."""
    print(json.dumps({"mlx": mx.__version__, "device": str(mx.default_device()), **mx.device_info()}, indent=1))
    if problem := find_device_problem():
        print(f"error: {problem}", file=sys.stderr)
        return 1
    wrong = []
    for dtype in (mx.float32, mx.bfloat16):
        for formulation in Formulation:
            error, seconds = measure(formulation, dtype, channels, size)
            name = f"{formulation.value}, {str(dtype).rpartition('.')[2]}"
            print(f"{name:20} error {error:.2e}, {1e3 * seconds:8.2f} ms")
            wrong += [] if error < _LARGEST_ERROR else [name]
    if wrong:
        print(f"error: wrong results: {'; '.join(wrong)}", file=sys.stderr)
        return 1
    print("Metal computes.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
