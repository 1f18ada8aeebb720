"""`PreviewVAE`: tiny autoencoders, for previews while a model still denoises."""

import os
from typing import TYPE_CHECKING, Any, cast

import mlx.core as mx
import numpy as np

from .checkpoint import Checkpoint
from .errors import CheckpointError, warn
from .models.preview_vae.networks import PreviewDecoder
from .pipeline.decode import DecodeOptions, PushedDecode
from .vae import VideoVAE

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

    from .backend.mlx_utils import GivenDtype


class PreviewVAE(VideoVAE):
    """A tiny autoencoder (TAEHV) for LTX latents: a hundredth of the work of the VAE, and blurred.

    It has all that a `VideoVAE` has. Pixels are clamped to [-1, 1]. It is strictly causal: the first latent frame gives
    a frame, and each later one 8 frames, at once. For latents that come in order:

    ```python
    preview = PreviewVAE.from_pretrained("taeltx2_3.safetensors")
    for latents in model:  # (B, 128, n, H', W'), normalized
        show(preview.push(latents))  # (B, 3, 8n, H, W), 7 fewer for the first latents
    preview.flush()  # the next latents belong to another clip
    ```

    A model that denoises has an estimate of all latents after each step. Stills of it are one picture for each latent
    frame, and those with `small=True` take almost no time. As a film, it is shown until there is a better estimate:

    ```python
    def after_step(estimate):  # (B, 128, F', H', W')
        show_contact_sheet(preview.decode_stills(estimate, small=True))  # (B, 3, F', 4 * H', 4 * W')
        for frame in range(estimate.shape[2]):
            show(preview.push(estimate[:, :, frame : frame + 1]))
            if next_estimate_is_there():
                break
        preview.flush()
    ```

    One object pushes one clip at a time. `PreviewVAE(preview.config, None, preview.decoder)` is another one with the
    same weights, for a clip that is shown at the same time.
    """

    _pushed: PushedDecode | None = None

    @classmethod
    def from_pretrained(
        cls,
        source: str | os.PathLike | Checkpoint,
        *,
        dtype: "GivenDtype" = None,
        encoder: bool = True,
        decoder: bool = True,
    ) -> "Self":
        """Load a tiny autoencoder or a projection, as `VideoVAE.from_pretrained`. Warns for another VAE."""
        vae = super().from_pretrained(source, dtype=dtype, encoder=encoder, decoder=decoder)
        if decoder and not vae._makes_stills:
            name = source.name if isinstance(source, Checkpoint) else source
            what = f"is a whole VAE ({vae.config.generation}), whose previews take as long as decodes"
            warn(f"{name}: {what}; load a tiny autoencoder (taeltx2_3.safetensors) or a projection.")
        return vae

    @property
    def _makes_stills(self) -> bool:
        return isinstance(self._decoder, PreviewDecoder) or self._decoder.spec.scale.time == 1

    def push(self, latents: mx.array | np.ndarray) -> mx.array | None:
        """Decode the next latents (B, C, n, H', W') of the clip to the frames (B, 3, n', H, W) that they give.

        None if there are none yet, which happens with decoders that are not causal only. After an error, the next
        latents belong to another clip. Raises the errors of `stream`.
        """
        pushed, self._pushed = self._pushed, None
        if pushed is None:
            pushed = PushedDecode(self._decoder.spec, self.stream)
        frames = pushed.push(latents)
        self._pushed = pushed
        return frames

    def flush(self) -> mx.array | None:
        """End the clip that is pushed, wherever it is. Returns the frames that were held back: None if causal."""
        pushed, self._pushed = self._pushed, None
        return None if pushed is None else pushed.flush()

    def decode_stills(
        self, latents: mx.array | np.ndarray, *, small: bool = False, **options: "Unpack[DecodeOptions]"
    ) -> mx.array:
        """One picture (B, 3, F', H, W) for each latent frame, in an eighth of the time or less.

        Each stands for the last of the frames of its latent frame. `small` pictures have 4x4 pixels per latent cell. A
        projection makes no others than its own.
        """
        if not self._makes_stills:
            raise CheckpointError(
                f"this decoder ({self.config.generation}) makes no stills; load a tiny autoencoder: "
                "taeltx2_3.safetensors."
            )
        decoder = self._decoder
        stills = decoder.stills(small=small) if isinstance(decoder, PreviewDecoder) else decoder
        return cast(Any, VideoVAE(self.config, None, stills).decode(latents, **options))
