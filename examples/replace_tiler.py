"""Replace the tiler in an app that has its own decoder: one import, and nothing else changes.

    python examples/replace_tiler.py

`decoder_fn` is the app's decoder: normalized latents `(B, C, F', H', W')` to pixels `(B, 3, F, H, W)` in [-1, 1].
"""

from collections.abc import Callable

import mlx.core as mx

from mlx_ltx_vae import VideoVAE, demo, load_latents
from mlx_ltx_vae.tiling import TilingConfig, decode_with_tiling  # was: the tiler of the app


def decode(
    decoder_fn: Callable[..., mx.array], latents: mx.array, on_frames_ready: Callable[[mx.array, int], None]
) -> mx.array:
    """Decode in tiles, as the app does. Frames `(B, 3, n, H, W)` are handed over as they become final."""
    _, _, frames, rows, columns = latents.shape
    config = TilingConfig.auto(32 * rows, 32 * columns, 1 + 8 * (frames - 1))
    if config is None:  # small enough for a single pass
        video = decoder_fn(latents)
        on_frames_ready(video, 0)
        return video
    return decode_with_tiling(
        decoder_fn=decoder_fn,
        latents=latents,
        tiling_config=config,
        spatial_scale=32,
        temporal_scale=8,
        on_frames_ready=on_frames_ready,
    )


if __name__ == "__main__":
    vae = VideoVAE.from_pretrained(demo.VAE, encoder=False)  # stands for the app's decoder
    assert vae.decoder is not None, "it was loaded"
    clip, _ = load_latents(demo.LATENTS)
    pixels = decode(vae.decoder, clip, lambda frames, start: print(f"{start + frames.shape[2]} frames", flush=True))
    print(f"video {pixels.shape}")
