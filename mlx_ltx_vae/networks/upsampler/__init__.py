"""Latent upsamplers of LTX, which make latents with more rows and columns, or more frames."""
