"""Folders below `base_path`, which a test sets."""

import os

base_path = ""


def get_temp_directory():
    return os.path.join(base_path, "temp")


def get_full_path_or_raise(folder_name, filename):
    path = os.path.join(base_path, "models", folder_name, filename)
    if not os.path.isfile(path):
        raise FileNotFoundError(f"Model in folder '{folder_name}' with filename '{filename}' not found.")
    return path


def get_filename_list(folder_name):
    top = os.path.join(base_path, "models", folder_name)
    files = [os.path.join(folder, name) for folder, _, names in os.walk(top) for name in names]
    return sorted(os.path.relpath(file, top) for file in files)
