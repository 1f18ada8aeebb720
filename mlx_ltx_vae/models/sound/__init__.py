"""The audio VAE and its vocoder."""
