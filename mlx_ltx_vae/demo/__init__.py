"""A small VAE with the block structure of LTX-2.3, and latents of a clip that it was not trained on.

Both were made by `examples/train_demo_vae.py` from procedural clips. They demonstrate the commands; the VAE is not an
LTX model.
"""

from pathlib import Path

VAE = Path(__file__).parent / "vae.safetensors"
LATENTS = Path(__file__).parent / "latents.safetensors"
