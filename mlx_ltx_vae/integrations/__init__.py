"""Drop-ins for MLX apps: functions with the names, arguments and results of the apps' functions that they replace.

`mlx_ltx_vae run -- PROGRAM` runs an app with them, and `install()` puts them into the apps of this process, both the
ones that are imported already and the ones that are imported later:

```python
from mlx_ltx_vae import integrations

integrations.install()
```

By hand, in an app that is not in the table of `apps`, if its network has the tensors of a checkpoint, by their names
there or those of an app in the table, with convolution weights in the layout of MLX or of torch:

```python
from mlx_ltx_vae.integrations import decode_tiled, decode_whole

LTX2VideoDecoder.decode_tiled = decode_tiled  # the app's class, and all its callers
LTX2VideoDecoder.__call__ = decode_whole
```

An app with a window of its own shows warnings there (`telling_warnings`), in which options have the names of its own
(`speaking_of_options`).
"""

from typing import TYPE_CHECKING

from ..errors import speaking_of_options, telling_warnings
from ..startup import lazy_names

if TYPE_CHECKING:
    from .dropins import decode_and_stream, decode_streaming, decode_tiled, decode_whole, encode_whole, tiled_decode
    from .hook import Installed, install
    from .networks import vae_of

__all__ = [
    "Installed",
    "decode_and_stream",
    "decode_streaming",
    "decode_tiled",
    "decode_whole",
    "encode_whole",
    "install",
    "speaking_of_options",
    "telling_warnings",
    "tiled_decode",
    "vae_of",
]

_DROPINS = ("decode_and_stream", "decode_streaming", "decode_tiled", "decode_whole", "encode_whole", "tiled_decode")
_MODULES = {".hook": ("Installed", "install"), ".networks": ("vae_of",), ".dropins": _DROPINS}

if not TYPE_CHECKING:  # a decoder is imported when an app decodes
    __getattr__ = lazy_names(__name__, {name: module for module, names in _MODULES.items() for name in names})
