from .video_types import VideoFromFile

__all__ = ["VideoFromFile"]
