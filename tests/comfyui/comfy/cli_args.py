import enum
from types import SimpleNamespace


class LatentPreviewMethod(enum.Enum):
    NoPreviews = "none"
    Auto = "auto"


args = SimpleNamespace(disable_metadata=False, preview_method=LatentPreviewMethod.NoPreviews)
