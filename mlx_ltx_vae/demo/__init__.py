"""A small VAE with the block structure of LTX-2.3, and latents of a clip that it was not trained on.

`scripts/demo_training/train_demo_vae.py` made both from procedural clips. The VAE demonstrates the commands and is not
an LTX model.
`examples/fit_latent_rgb.py` fitted the projection of its latents to small pictures.
"""

from pathlib import Path

VAE = Path(__file__).parent / "vae.safetensors"
LATENTS = Path(__file__).parent / "latents.safetensors"
LATENT_RGB = Path(__file__).parent / "latent_rgb.safetensors"
