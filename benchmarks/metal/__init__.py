"""What follows from files of `python -m mlx_ltx_vae.bench --metal --save`."""
