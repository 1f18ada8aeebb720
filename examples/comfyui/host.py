"""Access of the nodes to ComfyUI, from its own thread only: models, memory, progress and files."""

import json
import logging
import os
import sys
import uuid
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import comfy.model_management as model_management
import comfy.utils
import folder_paths
import mlx.core as mx
from comfy.cli_args import LatentPreviewMethod, args
from comfy_api.latest import io, ui
from PIL import Image

from mlx_ltx_vae import CheckpointError, demo, integrations
from server import PromptServer

from .networks import FileState, LoadedVAE, Networks, Source, VAEFile, file_state
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


#: The inputs of nodes that are arguments of the package.
INPUTS = {
    "fps=": "fps",
    "memory_budget": "memory_budget",
    "fit=Fit.RESIZE": "resize: fit",
    "fit=Fit.CROP": "resize: crop",
    "carry=": "carry",
    "blend=": "blend",
}


def name_option(argument: str, flag: str) -> str:
    """Return the name of an option in a message: a node's input, or else the flag of the command."""
    return INPUTS.get(argument) or (f"`{flag}` of the command" if flag else "")


def in_words_of_nodes(work: Callable[..., Any], job: Job, *arguments: Any) -> Any:
    with integrations.telling_warnings(job.say), integrations.speaking_of_options(name_option):
        return work(job, *arguments)


def run(work: Callable[..., Any], *arguments: Any, node_id: str | None) -> Any:
    """Call `work(job, *arguments)` on the MLX thread. Shows its reports, and ends it if ComfyUI is interrupted."""
    job, bar = Job(partial(in_words_of_nodes, work), *arguments), None
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
    """Show the newest report of a job, and in a node all lines that it has said."""
    if (lines := job.new_lines()) and node_id is not None:
        for line in lines:
            logging.info(line)
        tell("\n".join(job.lines), node_id)
    report = None
    while not job.reports.empty():
        report = job.reports.get()
    if report is None:
        return bar
    bar = bar or comfy.utils.ProgressBar(report.total, node_id=node_id)
    has_picture = report.picture is not None and shows_pictures()
    preview = ("JPEG", Image.fromarray(report.picture), PREVIEW_SIZE) if has_picture else None
    bar.update_absolute(report.done, report.total, preview)
    return bar


def tell(text: str, node_id: str | None) -> None:
    """Show a text in a node. It replaces the one before."""
    if node_id is not None:
        PromptServer.instance.send_progress_text(text, node_id)


def shows_pictures() -> bool:
    """Tell whether the user wants pictures: "none" counts only if it was given, since it is also ComfyUI's default."""
    return args.preview_method is not LatentPreviewMethod.NoPreviews or not any(
        word.startswith("--preview-method") for word in sys.argv
    )


def files_in(*folders: str) -> list[str]:
    """Return the files of some of ComfyUI's folders for models, as `folder/name`."""
    files = [f"{folder}/{name}" for folder in folders for name in folder_paths.get_filename_list(folder)]
    return [file for file in files if file.endswith(FILE_ENDINGS)]


def full_path(choice: str) -> str:
    """Return the path of one of `files_in` or `DEMO_MODELS`. It may be a text from another node."""
    if choice in DEMO_MODELS:
        return str(DEMO_MODELS[choice])
    folder, _, name = choice.partition("/")
    if not name or folder not in folder_paths.folder_names_and_paths:
        raise CheckpointError(f"{choice[:80]!r} names no folder of models; write folder/name, as vae/x.safetensors.")
    return folder_paths.get_full_path_or_raise(folder, name)


def vae_source(name: str, choice: str, loaded: Any) -> Source:
    """Return the VAE of an input: the one that ComfyUI has loaded, if it is connected, or a file."""
    return VAEFile(full_path(choice)) if loaded is None else LoadedVAE(name, loaded)


def new_file(ending: str) -> str:
    """Return a new name in ComfyUI's folder for temporary files, which it removes when it ends."""
    folder = folder_paths.get_temp_directory()
    os.makedirs(folder, exist_ok=True)
    return os.path.join(folder, f"ltx_{uuid.uuid4().hex}{ending}")


def next_file(prefix: str, ending: str, size: tuple[int, int]) -> str:
    """Return the next name in ComfyUI's folder of outputs, by its own rules."""
    output = folder_paths.get_output_directory()
    folder, name, counter, *_ = folder_paths.get_save_image_path(prefix, output, *size)
    return os.path.join(folder, f"{name}_{counter:05}_{ending}")


def saved(path: str) -> ui.SavedResult:
    """Describe a file of `next_file` to the page."""
    folder = os.path.relpath(os.path.dirname(path), folder_paths.get_output_directory())
    return ui.SavedResult(os.path.basename(path), "" if folder == "." else folder, io.FolderType.output)


def metadata(hidden: Any) -> dict[str, str]:
    """Return the prompt and the workflow, as ComfyUI's own nodes write them."""
    if args.disable_metadata:
        return {}
    entries = {"prompt": hidden.prompt, **(hidden.extra_pnginfo or {})}
    return {key: json.dumps(value, default=str) for key, value in entries.items() if value is not None}


class FileNode(io.ComfyNode):
    """A node with files as `vae`, `audio_vae` or `decoder`. ComfyUI runs it again if one was replaced."""

    @classmethod
    def fingerprint_inputs(cls, **inputs: Any) -> list[FileState]:
        models = [inputs[name] for name in ("vae", "audio_vae", "decoder") if name in inputs]
        # A node that takes lists gets one for each input.
        choices = [choice for model in models for choice in (model if isinstance(model, (list, tuple)) else [model])]
        if None in choices:  # it comes from another node, and may be any file
            choices += files_in("vae", "checkpoints", "vae_approx")
        return [file_state(full_path(choice)) for choice in choices if choice not in (None, AUTO, NO_AUDIO)]


#: Choices of `audio_vae`.
AUTO, NO_AUDIO = "auto", "no audio"


def vae_input() -> io.Combo.Input:
    tooltip = "A VAE, or a whole model; only its VAE is read. Kept in memory for the next run."
    return io.Combo.Input("vae", options=[*files_in("vae", "checkpoints"), "demo VAE"], tooltip=tooltip)


def loaded_input(name: str) -> io.Vae.Input:
    tooltip = "A VAE from a loader of ComfyUI. It replaces the file, which is not read."
    return io.Vae.Input(name, optional=True, tooltip=tooltip)


def budget_input() -> io.String.Input:
    tooltip = "Peak memory, such as 8GB or 50% (of what is available). auto: 50%, or what is needed at least."
    return io.String.Input("memory_budget", default="auto", tooltip=tooltip)


def budget(text: str) -> str | None:
    return None if text.strip().lower() in ("", "auto") else text


def fps_input(tooltip: str) -> io.Float.Input:
    return io.Float.Input("fps", default=24.0, min=0.01, max=1000.0, step=0.001, tooltip=tooltip)
