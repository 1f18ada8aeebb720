"""The table of all families of networks. Each is a folder here and an entry in this table."""

from typing import Any

from .base import Family
from .video_vae.family import CONV_VAE

FAMILIES: tuple[Family[Any], ...] = (CONV_VAE,)
