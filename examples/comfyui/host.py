"""Access of the nodes to ComfyUI, from its own thread only: models, memory, progress and files."""

import json
import logging
import os
import uuid
from collections.abc import Callable
from functools import wraps
from typing import Any

import comfy.model_management as model_management
import comfy.utils
import folder_paths
import mlx.core as mx
from comfy.cli_args import args
from comfy_api.latest import io, ui
from PIL import Image

from mlx_ltx_vae import demo
from mlx_ltx_vae.files import FileState, file_state
from server import PromptServer

from .networks import Networks
from .worker import EXIT_SECONDS, Job, MLXThread

CATEGORY = "model/latent/ltxv"
FILE_ENDINGS = (".safetensors", ".sft")
#: Choices of a model that come with the package.
DEMO_MODELS = {"demo VAE": demo.VAE, "demo preview": demo.LATENT_RGB}
POLL_SECONDS = 0.05
PREVIEW_SIZE = 512
CACHE_SHARE = 4  # of the memory, for networks that stay loaded: ComfyUI frees them when it needs more

mlx_thread = MLXThread()
networks = Networks(model_management.get_total_memory(model_management.get_torch_device()) // CACHE_SHARE)
free_memory = model_management.free_memory


@wraps(free_memory)
def free_networks_too(memory_required: float, device: Any, *more: Any, **options: Any) -> Any:
    """ComfyUI's `free_memory`, which "Unload models" and the loading of a model call. Ours are loaded again sooner."""
    if networks and memory_required > model_management.get_free_memory(device):
        networks.free()
        job = Job(lambda job: mx.clear_cache())
        mlx_thread.submit(job)
        job.wait(EXIT_SECONDS)
    return free_memory(memory_required, device, *more, **options)


model_management.free_memory = free_networks_too


def make_room(job: Job, num_bytes: int) -> None:
    """Let ComfyUI unload as many of its models as leave so much memory. Called by `work`, when all is checked."""
    mx.clear_cache()
    job.call(lambda: free_memory(num_bytes, model_management.get_torch_device()))


def run(work: Callable[..., Any], *arguments: Any, node_id: str | None) -> Any:
    """Call `work(job, *arguments)` on the MLX thread. Shows its reports, and ends it if ComfyUI is interrupted."""
    job, bar = Job(work, *arguments), None
    mlx_thread.submit(job)
    try:
        while not job.wait(POLL_SECONDS):
            model_management.throw_exception_if_processing_interrupted()
            job.answer()
            bar = show(job, bar, node_id)
        show(job, bar, node_id)
    finally:  # the exception of an interruption is a BaseException, and progress may raise it, too
        job.cancel()
        job.wait()
    return job.result()


def show(job: Job, bar: comfy.utils.ProgressBar | None, node_id: str | None) -> comfy.utils.ProgressBar | None:
    """Show the newest report of a job, and all texts."""
    report = None
    while not job.reports.empty():
        report = job.reports.get()
        if report.text is not None:
            logging.info(report.text)
            PromptServer.instance.send_progress_text(report.text, node_id)
    if report is None:
        return bar
    bar = bar or comfy.utils.ProgressBar(report.total, node_id=node_id)
    preview = None if report.picture is None else ("JPEG", Image.fromarray(report.picture), PREVIEW_SIZE)
    bar.update_absolute(report.done, report.total, preview)
    return bar


def files_in(*folders: str) -> list[str]:
    """The files of some of ComfyUI's folders for models, as `folder/name`."""
    files = [f"{folder}/{name}" for folder in folders for name in folder_paths.get_filename_list(folder)]
    return [file for file in files if file.endswith(FILE_ENDINGS)]


def full_path(choice: str) -> str:
    """The path of one of `files_in` or `DEMO_MODELS`."""
    if choice in DEMO_MODELS:
        return str(DEMO_MODELS[choice])
    return folder_paths.get_full_path_or_raise(*choice.split("/", 1))


def new_file(ending: str) -> str:
    """A new name in ComfyUI's folder for temporary files, which it removes when it ends."""
    folder = folder_paths.get_temp_directory()
    os.makedirs(folder, exist_ok=True)
    return os.path.join(folder, f"ltx_{uuid.uuid4().hex}{ending}")


def next_file(prefix: str, ending: str, size: tuple[int, int]) -> str:
    """The next name in ComfyUI's folder of outputs, by its own rules."""
    output = folder_paths.get_output_directory()
    folder, name, counter, *_ = folder_paths.get_save_image_path(prefix, output, *size)
    return os.path.join(folder, f"{name}_{counter:05}_{ending}")


def saved(path: str) -> ui.SavedResult:
    """A file of `next_file`, as the page shows it."""
    folder = os.path.relpath(os.path.dirname(path), folder_paths.get_output_directory())
    return ui.SavedResult(os.path.basename(path), "" if folder == "." else folder, io.FolderType.output)


def metadata(hidden: Any) -> dict[str, str]:
    """The prompt and the workflow, as ComfyUI's own nodes write them."""
    if args.disable_metadata:
        return {}
    entries = {"prompt": hidden.prompt, **(hidden.extra_pnginfo or {})}
    return {key: json.dumps(value) for key, value in entries.items() if value is not None}


class FileNode(io.ComfyNode):
    """A node with files as `vae`, `audio_vae` or `decoder`. ComfyUI runs it again if one was replaced."""

    @classmethod
    def fingerprint_inputs(cls, **inputs: Any) -> list[FileState]:
        choices = [inputs.get(name) for name in ("vae", "audio_vae", "decoder")]  # None if it comes from another node
        return [file_state(full_path(choice)) for choice in choices if choice not in (None, AUTO, NO_SOUND)]


#: Choices of `audio_vae`.
AUTO, NO_SOUND = "auto", "no sound"


def vae_input() -> io.Combo.Input:
    tooltip = "A VAE, or a whole model; only its VAE is read. Kept in memory for the next run."
    return io.Combo.Input("vae", options=[*files_in("vae", "checkpoints"), "demo VAE"], tooltip=tooltip)


def budget_input() -> io.String.Input:
    tooltip = "Peak memory, such as 8GB or 50% (of what is available). auto: 50%, or what is needed at least."
    return io.String.Input("memory_budget", default="auto", tooltip=tooltip)


def budget(text: str) -> str | None:
    return None if text.strip().lower() in ("", "auto") else text


def fps_input(tooltip: str) -> io.Float.Input:
    return io.Float.Input("fps", default=24.0, min=0.01, max=1000.0, step=0.001, tooltip=tooltip)
