"""Options that people know from other tools: ltx-2-mlx, mlx-video, scripts with diffusers, ComfyUI, ffmpeg, yt-dlp."""

from collections.abc import Collection

#: Options of this package (the first that a command has is used) or a sentence, and their names in other tools, without
#: dashes.
_WORDS = {
    "--output": "out output-path output-file output-dir output-folder output-directory save-path save-to destination",
    "--model": "vae vae-path vae-model checkpoint checkpoint-path ckpt ckpt-path model-path model-id model-name "
    "model-repo weights weights-path pretrained-model-name-or-path",
    "--fps": "r frame-rate framerate rate video-fps",
    "--dtype": "precision torch-dtype mixed-precision vae-dtype compute-dtype",
    "--dtype float16": "fp16 half float16 fp16-vae force-fp16",
    "--dtype bfloat16": "bf16 bfloat16 bf16-vae",
    "--dtype float32": "fp32 float32 fp32-vae force-fp32 full-precision",
    "--memory-budget": "memory max-memory memory-limit mem mem-limit ram max-ram vram max-vram budget limit-memory",
    "--frames :N | --num-frames": "frames num-frames n-frames nframes max-frames vframes frames:v frame-count "
    "video-length length",
    "--frames A:B": "ss start start-time start-frame first-frame seek to end end-time end-frame last-frame trim",
    "--frames 0:2s": "t duration seconds first-seconds",
    "--crf": "quality q:v qp cq qscale",
    "--codec": "c:v vcodec video-codec c encoder",
    "--audio-codec": "c:a acodec",
    "--encoder-preset": "speed x264-preset preset-speed",
    "--tile SIZE:OVERLAP": "tile-size tile-width tile-height tile-overlap overlap tile-sample-min-size "
    "tile-sample-min-height tile-sample-min-width spatial-tile-size spatial-overlap",
    "--tile-frames SIZE:OVERLAP": "temporal-size temporal-overlap temporal-tile-size tile-sample-min-num-frames",
    "--preset NAME | --tile SIZE:OVERLAP": "tiling vae-tiling enable-tiling enable-vae-tiling use-tiling tiled",
    "--mode exact": "no-tiling disable-tiling",
    "--chunk": "chunk-size frames-per-chunk",
    "--steps": "num-steps num-inference-steps inference-steps denoising-steps",
    "--timestep": "decode-timestep",
    "--noise-scale": "decode-noise-scale",
    "--unnormalized": "unnormalize denormalize denormalized normalize normalize-latents",
    "--audio-model": "audio-vae audio-vae-path audio-checkpoint vocoder",
    "--audio": "audio-path audio-file audio-input soundtrack wav",
    "--quiet": "silent no-progress no-report",
    "--overwrite": "force overwrite-output",
    "--skip-existing": "no-overwrite no-clobber resume continue skip",
    "name the inputs without an option": "i input inputs input-file input-path latents latent latents-path "
    "latents-file latent-path video video-path samples source file",
    "a list of inputs is @FILE, without an option": "a batch-file list list-file file-list input-list",
    "encode takes --size WxH; a decoded video has the size of its latents": "s width height resolution video-size "
    "image-size frame-size",
    "info NAME --size WxH --frames N plans a decode without a file": "generation",
    "the ending of the output's name chooses the format": "format output-format ext extension container",
    "-o folder/ --stills writes numbered PNG pictures": "save-frames png image-sequence save-images",
    "memory does not grow with the clip anyway; --memory-budget 8GB is a limit": "low-ram lowram low-vram lowvram "
    "low-memory lowmem novram medvram save-memory cpu-offload enable-model-cpu-offload enable-sequential-cpu-offload",
    "MLX computes on its default device, which on a Mac is the GPU": "device cpu gpu cuda mps metal use-cpu use-gpu "
    "device-map",
    "no option leaves the audio out; ffmpeg -i clip.mp4 -c copy -an silent.mp4 removes it": "no-audio an no-sound mute "
    "without-audio skip-audio",
    "reports are complete without an option; -q leaves them out, and --debug shows the traceback of an error": "v "
    "verbose verbosity loglevel log-level",
    "frames are written while the next ones are decoded; -o - --live is an mp4 that plays meanwhile": "stream "
    "streaming",
    "a folder of a repository is written owner/name:folder": "subfolder vae-subfolder",
    "the quality is constant, not the bit rate; see --crf of decode": "b:v bitrate video-bitrate",
    "prompts are for the app that makes the latents": "p prompt negative-prompt guidance-scale cfg cfg-scale lora "
    "lora-path",
}  # fmt: skip


def find_other(option: str, option_names: Collection[str]) -> str | None:
    """Return a hint about an option of another tool, or `None`. `option_names` are the options of the command."""
    word = option.lstrip("-").replace("_", "-").lower()
    for targets, words in _WORDS.items():
        if word in words.split():
            if not targets.startswith("--"):
                return targets
            candidates = (target for target in targets.split(" | ") if target.split()[0] in option_names)
            target = next(candidates, None)
            return target and f"did you mean {target}?"
    return None
