"""Folders below `base_path`, which a test sets."""

import os

base_path = ""
folder_names_and_paths = dict.fromkeys(("checkpoints", "vae", "vae_approx"))


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


def get_output_directory():
    return os.path.join(base_path, "output")


def get_save_image_path(filename_prefix, output_dir, image_width=0, image_height=0):
    """With the rules of the real one, but for the time."""
    filename_prefix = filename_prefix.replace("%width%", str(image_width)).replace("%height%", str(image_height))
    subfolder, filename = os.path.split(os.path.normpath(filename_prefix))
    folder = os.path.join(output_dir, subfolder)
    if os.path.commonpath([os.path.realpath(output_dir), os.path.realpath(folder)]) != os.path.realpath(output_dir):
        raise Exception("Saving image outside the output folder is not allowed.")
    os.makedirs(folder, exist_ok=True)
    ends = [name[len(filename) + 1 :] for name in os.listdir(folder) if name.startswith(f"{filename}_")]
    numbers = [int(end.split(".")[0].split("_")[0]) for end in ends if end[:1].isdigit()]
    return folder, filename, max(numbers, default=0) + 1, subfolder, filename_prefix
