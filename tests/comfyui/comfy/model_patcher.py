class ModelPatcher:
    """Only what holds wrappers."""

    def __init__(self, model, load_device, offload_device, size=0, weight_inplace_update=False):
        self.model, self.load_device, self.offload_device = model, load_device, offload_device
        self.wrappers = {}

    def clone(self, disable_dynamic=False, model_override=None, force_deepcopy=False):
        clone = ModelPatcher(self.model, self.load_device, self.offload_device)
        clone.wrappers = {kind: {key: list(each) for key, each in keys.items()} for kind, keys in self.wrappers.items()}
        return clone

    def add_wrapper_with_key(self, wrapper_type, key, wrapper):
        self.wrappers.setdefault(wrapper_type, {}).setdefault(key, []).append(wrapper)
