"""How a clip goes through a network, decided before anything is computed. Pure arithmetic, no MLX."""
