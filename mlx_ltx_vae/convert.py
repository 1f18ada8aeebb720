"""`python -m mlx_ltx_vae.convert`: converts a checkpoint to a folder that MLX loads faster."""

from .startup import entry_point

main = entry_point("convert")

if __name__ == "__main__":
    raise SystemExit(main())
