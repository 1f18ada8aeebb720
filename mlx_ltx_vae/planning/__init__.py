"""Plans how to run a clip through a network before anything is computed. Pure arithmetic, no MLX."""
