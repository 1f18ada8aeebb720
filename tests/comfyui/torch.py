"""What the nodes use of torch, on numpy. Not compared with a checkout."""

import numpy as np

uint16, bfloat16 = "uint16", "bfloat16"


class Tensor:
    """Of bfloat16, the array has the bits."""

    def __init__(self, array, dtype=None):
        self.array = np.asarray(array)
        self.shape, self.ndim = self.array.shape, self.array.ndim
        self.dtype = dtype or str(self.array.dtype)

    def __getitem__(self, key):
        return Tensor(self.array[key])

    def reshape(self, shape):
        return Tensor(self.array.reshape(shape))

    def detach(self):
        return self

    def cpu(self):
        return self

    def float(self):
        return Tensor(self.array.astype(np.float32))

    def double(self):
        return Tensor(self.array.astype(np.float64))

    def view(self, dtype):
        assert (self.dtype, dtype) == (bfloat16, uint16)
        return Tensor(self.array)

    def numpy(self):
        assert self.dtype != bfloat16  # as in torch
        return self.array


def from_numpy(array):
    assert isinstance(array, np.ndarray) and array.flags.writeable  # torch warns of others
    return Tensor(array)
