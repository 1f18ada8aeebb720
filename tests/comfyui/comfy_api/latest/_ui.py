class SavedResult(dict):
    def __init__(self, filename, subfolder, type):
        super().__init__(filename=filename, subfolder=subfolder, type=type.value)


class SavedImages:
    def __init__(self, results, is_animated=False):
        self.results = results


class PreviewVideo:
    def __init__(self, values, **kwargs):
        self.values = values
