"""`python -m mlx_ltx_vae.bench`: measures time and memory on this machine."""

from .startup import entry_point

main = entry_point("bench")

if __name__ == "__main__":
    raise SystemExit(main())
