"""`python -m mlx_ltx_vae.run`: runs an app with its decoders replaced."""

from .startup import entry_point

main = entry_point("run")

if __name__ == "__main__":
    raise SystemExit(main())
