"""Reads latent files (safetensors, also ComfyUI's .latent, .npy and .npz), checks latents, and writes safetensors.

Facts about the files of other programs:

- ComfyUI's `.latent` is safetensors with the tensor `latent_tensor`, for LTX normalized, and an empty tensor
  `latent_format_version_0`. ComfyUI's loader multiplies files without that mark by 1/0.18215, the scale of Stable
  Diffusion latents. LTX is newer than the mark: a file without it was written by another program, and is never
  rescaled here.
- diffusers' LTX-Video pipelines return normalized latents, packed or not. Its LTX-2 pipelines return unnormalized
  ones, `latents * std + mean` (their `scaling_factor` is 1 for every LTX release).
- Data sets of the LTX trainers store `num_frames`, `height` and `width` of the latent grid.
- An MLX port's two-stage pipeline stores its result twice, as `stage_2_video_latent` and `final_video_latent`.
"""

from .audio import AudioLatentsFile, find_audio_latents, is_audio_alone, load_audio_latents, open_audio_latents
from .keyframes import load_keyframes
from .layouts import LAYOUTS, Layout
from .metadata import LatentSpace
from .video import KNOWN_NAMES, LatentsFile, LatentsInfo, load_latents, open_latents
from .writer import LatentsWriter, check_latents_name, is_for_comfyui, save_latents

__all__ = ["KNOWN_NAMES", "LAYOUTS", "AudioLatentsFile", "LatentSpace", "LatentsFile", "LatentsInfo", "LatentsWriter"]
__all__ += ["Layout"]
__all__ += ["check_latents_name", "find_audio_latents", "is_audio_alone", "is_for_comfyui", "load_audio_latents"]
__all__ += ["load_keyframes", "load_latents", "open_audio_latents", "open_latents", "save_latents"]
