"""The audio VAE of LTX-2 and later: latents to mel spectrograms and back."""
