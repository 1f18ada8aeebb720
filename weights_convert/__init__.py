"""Other name of `mlx_ltx_vae.convert`, as `python -m weights_convert`."""
