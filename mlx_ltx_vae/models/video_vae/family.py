"""The conv VAE of LTX-Video, LTX-2, LTX-2.3 and LTX-2.5."""

from ..base import Family, Network, Statistics
from .block_types import KERNEL
from .config import VAEConfig
from .configuration import choose_config, configure
from .decoder import ConvDecoder
from .description import describe
from .encoder import ConvEncoder
from .names import find
from .network_specs import network_spec


def _make(config: VAEConfig, network: str, statistics: Statistics | None) -> Network:
    assert statistics is not None  # has_statistics
    return ConvEncoder(config, statistics) if network == "encoder" else ConvDecoder(config, statistics)


CONV_VAE = Family(
    name="video_vae",
    kernels=(KERNEL,),
    has_statistics=True,
    config_type=VAEConfig,
    find=find,
    choose_config=choose_config,
    configure=configure,
    spec=network_spec,
    make=_make,
    describe=describe,
)
