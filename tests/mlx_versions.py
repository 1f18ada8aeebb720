"""What tests need that the oldest supported MLX lacks."""

from importlib.metadata import version

import pytest

_MLX = tuple(int(part) for part in version("mlx").split(".")[:3])

#: Before, arrays of one thread can be evaluated in any other, and there is nothing to refuse.
streams_of_threads = pytest.mark.skipif(_MLX < (0, 32), reason="MLX before 0.32 has the same streams in all threads")

#: 0.32.0 aborts a process in which a thread has used MLX, and 0.32.3 does not.
threads_that_end = pytest.mark.skipif(_MLX < (0, 32, 3), reason="older MLX aborts where a thread has used it")
