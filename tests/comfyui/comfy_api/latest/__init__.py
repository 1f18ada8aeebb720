from abc import ABC, abstractmethod

from . import _io as io
from . import _ui as ui
from ._input_impl import VideoFromFile

__all__ = ["ComfyExtension", "InputImpl", "io", "ui"]


class ComfyExtension(ABC):
    @abstractmethod
    async def get_node_list(self):
        pass


class InputImpl:
    VideoFromFile = VideoFromFile
