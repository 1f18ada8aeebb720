"""How a convolution sees beyond the picture's edge: a word that configurations and layers share."""

import enum


class PaddingMode(enum.Enum):
    """What stands beyond the edge."""

    ZEROS = "zeros"
    REFLECT = "reflect"
    REPLICATE = "replicate"
    CIRCULAR = "circular"
