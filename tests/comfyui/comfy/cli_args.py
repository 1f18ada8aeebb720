from types import SimpleNamespace

args = SimpleNamespace(disable_metadata=False)
