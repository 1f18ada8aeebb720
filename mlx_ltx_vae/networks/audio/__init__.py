"""Audio VAE and its vocoder."""
