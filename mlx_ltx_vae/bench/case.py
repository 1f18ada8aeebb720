"""The video, the weights and the mode that a run measures."""

from dataclasses import dataclass

from ..models.video_vae.generations import GENERATIONS
from ..tiling import SpatialTilingConfig, TilingConfig, preset
from ..tiling.config import parse_tile

#: What a generation is called on the command line, and its name in `GENERATIONS`.
GENERATION_NAMES = {name.split()[-1].lower(): name for name in GENERATIONS}


@dataclass(frozen=True)
class Case:
    """Plain values, which JSON can represent.

    Attributes:
        model: a checkpoint, or None for random weights.
        latents: a latent file, which then determines the size and length; None for noise.
        generation: of random weights, a key of `GENERATION_NAMES`.
        base_width: base channels of random weights; the published models have 128.
        dtype: what to compute in; None for the checkpoint's own, or float32 for random weights.
        mode: of a decode; of an encode "stream" or "tiled"; of another program its name.
        tiles: a preset's name, or SIZE:OVERLAP in pixels.
        memory_budget: bytes, or a size such as "8GB".
    """

    model: str | None = None
    latents: str | None = None
    generation: str = "ltx-2.3"
    base_width: int = 32
    dtype: str | None = None
    width: int = 256
    height: int = 256
    frames: int = 57
    mode: str = "exact"
    order: str = "auto"
    chunk: int | None = None
    tiles: str = "default"
    tile_batch_size: int = 1
    memory_budget: str | int | None = None

    def make_tiling(self) -> TilingConfig | None:
        """The tiles that `tiles` names; None in other modes than "tiled". A preset may depend on the video's size.

        Raises:
            TilingError: for a name that is neither a preset nor SIZE:OVERLAP.
        """
        if self.mode != "tiled":
            return None
        if self.tiles[:1].isdigit():
            return TilingConfig(SpatialTilingConfig(*parse_tile(self.tiles)))
        return preset(self.tiles, self.height, self.width, self.frames) or TilingConfig()
