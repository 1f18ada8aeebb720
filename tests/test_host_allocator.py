"""Large buffers of the CPU backend during and after a run."""

import os
import sys
from pathlib import Path

import mlx.core as mx
import pytest

from mlx_ltx_vae import VideoVAE
from mlx_ltx_vae.backend.device import _glibc, freed_memory_kept, give_back_cache, is_cpu, run_settings

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or not is_cpu() or _glibc() is None, reason="for MLX's CPU backend with glibc"
)

SIZE = 100_000_000  # bytes; malloc always maps buffers of more than 32 MB by themselves


def resident():
    """Bytes of memory in use."""
    return os.sysconf("SC_PAGE_SIZE") * int(Path("/proc/self/statm").read_text().split()[1])


def take_and_free():
    mx.eval(mx.ones(SIZE // 4))
    mx.synchronize()


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
