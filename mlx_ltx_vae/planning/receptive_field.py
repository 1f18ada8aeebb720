"""How far a decoder sees, and how long it has to wait for what it sees. Pure arithmetic, no MLX."""

from typing import NamedTuple

from ..models.video_vae.config import BlockKind, NetworkConfig, NormKind


class ReceptiveField(NamedTuple):
    """How far a decoded pixel sees beyond its own latent cell; None where it sees everything there is.

    Attributes:
        frames_before: latent frames before its own.
        frames_after: latent frames behind its own.
        cells: latent cells to each side of its own.
    """

    frames_before: float | None
    frames_after: float | None
    cells: float | None


def lookahead(decoder: NetworkConfig) -> int:
    """Latent frames that must be seen before the first frame is final: 1 for a causal decoder.

    Walks from the first frame back through the layers: a convolution that is not causal needs one frame more, and
    a doubling of time (whose first frame is dropped) half as many.
    """
    if decoder.causal:
        return 1
    frames = 2
    for block in reversed(decoder.blocks):
        if block.stride[0] == 2:
            frames = frames // 2 + 1
        frames += block.num_convolutions
    return frames + 1


def receptive_field(decoder: NetworkConfig) -> ReceptiveField:
    """How far a decoded pixel sees: every convolution adds one position, at the grid on which it stands.

    Exact: a latent frame changes the frames of its own and those up to `frames_after` latent frames earlier, up to
    `frames_before` later, and not one more; likewise a latent cell and pixels.
    """
    if decoder.norm is NormKind.GROUP:
        return ReceptiveField(None, None, None)
    frames = cells = 1.0  # conv_in
    time_scale = space_scale = 1
    for block in decoder.blocks:
        frames += block.num_convolutions / time_scale
        cells += block.num_convolutions / space_scale
        time_scale, space_scale = time_scale * block.stride[0], space_scale * block.stride[1]
    frames, cells = frames + 1 / time_scale, cells + 1 / space_scale  # conv_out
    sees_whole_frames = any(block.kind is BlockKind.ATTENTION for block in decoder.blocks)
    return ReceptiveField(
        frames_before=2 * frames if decoder.causal else frames,
        frames_after=0.0 if decoder.causal else frames,
        cells=None if sees_whole_frames else cells,
    )
