"""The number types of weights and latents: their names here and in MLX."""

import mlx.core as mx
import numpy as np

#: What `dtype=` and `--dtype` accept.
DTYPES: dict[str, mx.Dtype] = {"float32": mx.float32, "bfloat16": mx.bfloat16, "float16": mx.float16}


def dtype_name(dtype: mx.Dtype | np.dtype) -> str:
    """`"bfloat16"` for `mlx.core.bfloat16`."""
    return str(dtype).rpartition(".")[2]
