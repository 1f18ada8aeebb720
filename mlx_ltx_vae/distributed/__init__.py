"""Several processes that compute one video: row bands, and what they exchange over `mx.distributed`."""
