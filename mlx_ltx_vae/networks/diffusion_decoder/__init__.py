"""LTX-2.5's VAE with the diffusion decoder: neighborhood attention instead of convolutions."""
