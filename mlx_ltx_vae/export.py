"""`python -m mlx_ltx_vae.export`: exports a decode as MLX functions."""

from .startup import entry_point

main = entry_point("export")

if __name__ == "__main__":
    raise SystemExit(main())
