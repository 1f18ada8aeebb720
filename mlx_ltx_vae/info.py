"""`python -m mlx_ltx_vae.info`: describes a checkpoint or a latent file."""

from .startup import entry_point

main = entry_point("info")

if __name__ == "__main__":
    raise SystemExit(main())
