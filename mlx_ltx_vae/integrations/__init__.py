"""Drop-ins for MLX apps: functions with the names, arguments and results of the apps' own, put in their place.

`mlx_ltx_vae run -- PROGRAM` runs an app with them, and `install()` puts them into the apps of this process, those that
are imported already and those that will be:

```python
from mlx_ltx_vae import integrations

integrations.install()
```

By hand, in an app that the table of `apps` does not have:

```python
from mlx_ltx_vae.integrations import decode_tiled, decode_whole

LTX2VideoDecoder.decode_tiled = decode_tiled  # the app's class, and all its callers
LTX2VideoDecoder.__call__ = decode_whole
```
"""

from .dropins import (
    decode_and_stream,
    decode_streaming,
    decode_tiled,
    decode_whole,
    encode_whole,
    tiled_decode,
)
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
    "tiled_decode",
    "vae_of",
]
