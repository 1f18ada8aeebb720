from types import SimpleNamespace

import numpy as np
import torch

from mlx_ltx_vae import VideoReader


class VideoFromFile:
    def __init__(self, file, *, start_time=0, duration=0):
        self.__file, self.__start_time, self.__duration = file, start_time, duration

    def get_stream_source(self):
        return self.__file

    def get_active_trim_window(self):
        return float(self.__start_time), float(self.__duration)

    def get_components(self):
        """Here only a trim of whole frames, at one frame per second."""
        with VideoReader(self.__file) as reader:
            frames = np.concatenate(list(reader))
        start, end = int(self.__start_time), int(self.__start_time + self.__duration) or None
        return SimpleNamespace(images=torch.from_numpy(frames[start:end].astype(np.float32) / 255))
