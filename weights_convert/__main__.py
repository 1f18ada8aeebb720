"""Command `python -m weights_convert`, which is `mlx_ltx_vae.convert`."""

from mlx_ltx_vae.convert import main

if __name__ == "__main__":
    raise SystemExit(main())
