"""`python -m weights_convert`, the other name of `python -m mlx_ltx_vae.convert`."""
