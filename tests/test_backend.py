"""What is asked of MLX and of the process: counts of values, the BLAS, and buffers of the CPU backend."""

import os
import sys
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from mlx_ltx_vae import VideoVAE
from mlx_ltx_vae.backend import mlx_utils
from mlx_ltx_vae.backend.device import (
    _glibc,
    freed_memory_kept,
    give_back_cache,
    is_cpu,
    is_reference_blas,
    run_settings,
)


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


# --- large buffers of the CPU backend, during and after a run ---------------------------------------------------------

on_glibc = pytest.mark.skipif(
    sys.platform != "linux" or not is_cpu() or _glibc() is None, reason="for MLX's CPU backend with glibc"
)
SIZE = 100_000_000  # bytes; malloc always maps buffers of more than 32 MB by themselves


def resident():
    """Bytes of memory in use."""
    return os.sysconf("SC_PAGE_SIZE") * int(Path("/proc/self/statm").read_text().split()[1])


def take_and_free():
    mx.eval(mx.ones(SIZE // 4))
    mx.synchronize()


@on_glibc
def test_freed_memory_is_kept_while_a_run_computes_and_returned_after_it():
    give_back_cache()  # holes that earlier tests left, which a part of what is taken would fill
    before = resident()
    with run_settings():
        with freed_memory_kept():
            with freed_memory_kept():
                take_and_free()
            assert resident() > before + 0.9 * SIZE, "the outer block goes on"
        assert resident() > before + 0.9 * SIZE, "for the next step"
    assert resident() < before + 0.1 * SIZE
    take_and_free()
    assert resident() < before + 0.1 * SIZE, "as before any run"


@on_glibc
def test_what_an_app_frees_while_a_stream_waits_is_returned(golden):
    vae = VideoVAE.from_pretrained(golden("ltx2_3").checkpoint, encoder=False)
    latents = mx.random.normal((1, vae.config.latent_channels, 12, 2, 2))
    with vae.stream(latents, vae.plan(latents.shape, mode="exact", chunk=1)) as stream:
        next(stream)
        before = resident()
        take_and_free()
        assert resident() < before + 0.1 * SIZE
        next(stream)
        take_and_free()
        assert resident() < before + 0.1 * SIZE + 20_000_000
