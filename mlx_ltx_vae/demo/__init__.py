"""A small VAE with the block structure of LTX-2.3, and latents it has never seen in training.

Made by `examples/train_demo_vae.py` from procedural clips. It shows that everything works; it is no LTX model.
"""

from pathlib import Path

VAE = Path(__file__).parent / "vae.safetensors"
LATENTS = Path(__file__).parent / "latents.safetensors"
