"""Configurations of VAEs: those that are published, and what a raw one means."""

from mlx_ltx_vae.networks.specs import PaddingMode
from mlx_ltx_vae.networks.video_vae.config import GENERATIONS, decoder_spec, encoder_spec, parse_vae_config
from mlx_ltx_vae.networks.video_vae.names import read_diffusers_config

__all__ = ["GENERATIONS", "PaddingMode", "decoder_spec", "encoder_spec", "parse_vae_config", "read_diffusers_config"]
