"""A linear projection from latents to small pictures, for previews."""
