"""What is asked of MLX and of the process: values that are counted in parts, and the BLAS that MLX computes with."""

import mlx.core as mx
import numpy as np
import pytest

from mlx_ltx_vae.backend import mlx_utils
from mlx_ltx_vae.backend.device import is_reference_blas


@pytest.mark.parametrize("shape", [(1, 3, 50, 2, 2), (61,), (2, 40, 1)])
def test_values_that_are_not_finite_are_counted_in_parts(monkeypatch, shape):
    monkeypatch.setattr(mlx_utils, "VALUES_AT_ONCE", 16)
    values = np.random.default_rng(0).standard_normal(shape, np.float32)
    values.reshape(-1)[[0, 17, 40, -1]] = [np.nan, np.inf, -np.inf, np.nan]
    assert mlx_utils.count_nonfinite(mx.array(values)) == 4
    assert mlx_utils.count_nonfinite(mx.array(np.nan_to_num(values))) == 0


@pytest.mark.parametrize(
    ("files", "is_slow"),
    [
        (["venv/mlx_cpu.libs/libblas-bd8a282c.so.3.10.0", "venv/mlx/lib/libmlx.so"], True),
        (["venv/mlx_cpu.libs/libblas-bd8a282c.so.3.10.0", "venv/numpy.libs/libscipy_openblas64_-ff651d7f.so"], True),
        (["venv/mlx_cpu.libs/libblas-bd8a282c.so.3.10.0", "/usr/lib/openblas-pthread/libopenblasp-r0.3.21.so"], False),
        (["venv/mlx_cpu.libs/libblas-bd8a282c.so.3.10.0", "venv/lib/libmkl_rt.so.2"], False),
        (["/usr/lib/openblas-pthread/libblas.so.3"], False),  # Debian's alternative, for an MLX from source
        (["/usr/lib/libblas/libblas.so.3.10"], True),
        (["venv/mlx/lib/libmlx.so"], False),
    ],
)
def test_the_reference_blas_is_known_by_the_files_of_the_process(files, is_slow):
    assert is_reference_blas(files) is is_slow
