import threading

from .model_management import throw_exception_if_processing_interrupted

updates = []


class ProgressBar:
    def __init__(self, total, node_id=None):
        self.total, self.node_id = total, node_id

    def update_absolute(self, value, total=None, preview=None):
        """As with main.py's hook, which raises where ComfyUI is interrupted."""
        throw_exception_if_processing_interrupted()
        updates.append((self.node_id, value, total, preview, threading.current_thread().name))
