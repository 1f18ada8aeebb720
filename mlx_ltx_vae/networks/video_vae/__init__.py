"""Convolutional video VAE of LTX-Video 0.9.x, LTX-2, 2.3 and 2.5."""
