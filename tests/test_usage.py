"""Wrong usage of every command, its help and its version: what a first contact with the command line shows."""

import argparse
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version

import pytest

from benchmarks.__main__ import main as benchmarks
from commands import COMMANDS, PARSERS, bench, convert, decode, encode, info, mlx_ltx_vae, preview
from mlx_ltx_vae.commands.cli import positive
from mlx_ltx_vae.commands.options import add_option, read_options
from mlx_ltx_vae.commands.other_tools import _WORDS
from mlx_ltx_vae.options import OutputOptions, option_field


def upscale(arguments):
    return mlx_ltx_vae(["upscale", *arguments])


MAINS = {
    "decode": decode,
    "preview": preview,
    "encode": encode,
    "upscale": upscale,
    "info": info,
    "convert": convert,
    "export": lambda arguments: mlx_ltx_vae(["export", *arguments]),
    "bench": bench,
    "run": lambda arguments: mlx_ltx_vae(["run", *arguments]),
}
NAMES = {main: name for name, main in MAINS.items()}

# None of these files exists: wrong usage is found before a file is looked for, which would be a failure (exit code 1)
DECODE = "clip.npy -m vae -o out.mp4"
ENCODE = "clip.mp4 -m vae -o out.safetensors"
CONVERT = "vae -o out"
PLAN = "--size 64x64 --frames 9"
AUDIO = "clip.npy -m vae --audio-model a"

# Command, arguments, and words of the error: the option, and what is wrong.
WRONG = [
    (decode, "-m vae -o out.mp4", "LATENTS is missing"),
    (decode, "clip.npy -o out.mp4", "-m VAE is missing"),
    (decode, "clip.npy --demo", "--demo comes with latents and a VAE; leave out LATENTS"),
    (decode, f"{DECODE} more.npy", "clip.npy: there is no such file"),
    (decode, "clip.npy -m vae -o a-{i}.mp4", "a-{i}.mp4: {i} stands for nothing; write {name}, or %05d to number"),
    (encode, "clip.mp4 -m vae -o {}.safetensors", "{}.safetensors: {} stands for nothing; write {name}"),
    (decode, "clip.npy out.mp4 -m vae", "out.mp4: there is no such file; if it is the output, add -o before it"),
    (encode, "clip.mp4 out.safetensors -m vae", "out.safetensors: there is no such file; if it is the output, add -o"),
    (decode, "picks.txt -m vae", "picks.txt: is no input; if it is a list of inputs, write @picks.txt"),
    (decode, "clip.npy out.mp4", "out.mp4: there is no such file; if it is the output, add -o before it"),
    (preview, "clips/ out.html", "out.html: there is no such file; if it is the output, add -o before it"),
    (preview, "clips/ out.html -m rgb", "out.html: there is no such file; if it is the output, add -o before it"),
    (decode, "@clips.txt -m vae -o out.mp4", "out.mp4: is one output for several inputs"),
    (decode, f"{DECODE} --carry 25", "--carry and --blend are for a film of windows; add --join"),
    (decode, f"{DECODE} --join --blend -1", "'-1' is not a whole number of at least 0"),
    (decode, f"{DECODE} --join --carry 17 --blend 18", "--blend 18 is more than the --carry of 17 frames"),
    (decode, f"{DECODE} --join --keyframes k.npz", "--keyframes goes with one window"),
    (decode, f"{DECODE} --join --audio-latents a.npz", "--audio-latents goes with one window"),
    (decode, "clip.npy --join --blend 8 --audio-model a -o x.wav", "a .wav file is the audio alone; leave out --blend"),
    (preview, "a.npy b.npy -m rgb -o out/ --blend 3", "--carry and --blend are for a film of windows; add --join"),
    (encode, f"{ENCODE} --carry 9", "--carry is for --windows; add it"),
    (encode, f"{ENCODE} --windows 25", "--windows makes several files; name a folder for them: -o out.safetensors/"),
    (encode, "a.mp4 b.mp4 -m vae -o out/ --windows 25", "--windows goes with one video; encode each on its own"),
    (decode, "'' -m vae -o out.mp4", "LATENTS is empty; name a file"),
    (encode, "a.mp4 '' -m vae -o out/", "VIDEO is empty; name a file"),
    (info, "''", "FILE is empty; name a file"),
    (convert, "'' -o out", "SOURCE is empty; name a file"),
    (decode, "clip.npy - -m vae -o out/", "- is standard input or output, which takes one input"),
    (decode, "clip.npy more.npy -m vae -o -", "- is standard input or output, which takes one input"),
    (decode, "a.npy b.npy -m vae -o out/ --audio voice.wav", "--audio goes with one input"),
    (decode, "a.npy b.npy -m vae -o out/ --keyframes k.npz", "--keyframes goes with one input; decode each on its own"),
    (decode, f"{AUDIO} -o out.wav --keyframes k.npz", "a .wav file is the audio alone; leave out --keyframes"),
    (preview, "clip.npy -m rgb -o out.png --keyframes k.npz", "unrecognized arguments: --keyframes"),
    (decode, "a.npy b.npy -m vae -o out/ --crf 99", "out/{name}.mp4: a crf of 99 is not between 0 and 51"),
    (decode, "a.npy b.npy -m vae -o out/{name}.avi", "out/{name}.avi: its ending is not supported"),
    (decode, "a.npy b.npy --demo -o out/", "--demo comes with latents and a VAE; leave out LATENTS"),
    (decode, f"{DECODE} -n -y", "-y/--overwrite: not allowed with argument -n/--skip-existing"),
    (decode, f"{DECODE} --stills", "--stills makes numbered pictures; name a folder for them: out/"),
    (decode, f"{DECODE} --bogus", "unrecognized arguments: --bogus"),
    (decode, f"{DECODE} --memory_budget 8GB", "(did you mean --memory-budget?)"),
    (decode, f"{DECODE} --no-overwrite", "--skip-existing"),
    (decode, f"{DECODE} --mode tield", "(did you mean tiled?)"),
    (decode, f"{DECODE} --codec libx264", "(did you mean h264?)"),
    (decode, f"{DECODE} --codec libsvtav1", "(did you mean av1?)"),
    (decode, f"{DECODE} --codec prores_ks", "(did you mean prores?)"),
    (decode, f"{DECODE} --dtype bf16", "(did you mean bfloat16?)"),
    (decode, f"{DECODE} --preset slow", "(did you mean --encoder-preset slow?)"),
    (decode, f"{DECODE} --codec h265x", "the codec 'h265x' is not supported (did you mean h265?); use one of h264"),
    (decode, f"{DECODE} --memory 8GB", "unrecognized arguments: --memory"),  # no abbreviations
    (decode, f"{DECODE} --chunk", "--chunk: expected one argument"),
    (decode, "clip.npy -m vae -o - --json", "--json and -o - both write to standard output"),
    (decode, f"{DECODE} --fps abc", "--fps: 'abc' is not a frame rate; write frames per second as 24"),
    (decode, f"{DECODE} --frames 0", "--frames: '0' is not a whole number of at least 1"),
    (decode, f"{DECODE} --frames 5:5", "--frames: 5:5 has no frame; the second number is one more than the last"),
    (decode, f"{DECODE} --frames -5", "--frames: '-5' is not a range of frames; write A:B, such as -5: for the last 5"),
    (decode, f"{DECODE} --frames -3:-5", "--frames: -3:-5 has no frame"),
    (decode, f"{DECODE} --first-seconds 2", "--first-seconds 2 (did you mean --frames 0:2s?)"),
    (decode, f"{DECODE} --frames 5: --audio a.wav", "--audio begins with the first frame; leave out --audio, or begin"),
    (decode, f"{DECODE} --frames 0s", "--frames: 0s has no frame; the second time is the end of the last frame"),
    (decode, f"{DECODE} --frames 2s:1.5s", "--frames: 2s:1.5s has no frame"),
    (decode, f"{DECODE} --frames a:2s", "--frames: 'a:2s' is not a range of frames; write A:B, such as 24:48, or"),
    (decode, f"{DECODE} --grid 1x2", "--grid: '1x2' is not a latent grid; write F'xH'xW', such as 16x22x40"),
    (decode, f"{DECODE} --mode single --chunk 1", "--chunk and --order go with --mode exact"),
    (decode, f"{DECODE} --mode tiled --order rows", "--order goes with --mode exact"),
    (decode, f"{DECODE} --mode exact --tile 512:64", "tiles go with --mode tiled, not exact"),
    (decode, f"{DECODE} --mode single --preset auto", "tiles go with --mode tiled, not single"),
    (decode, f"{DECODE} --tile 512:64 --preset default", "--preset cannot be combined with --tile"),
    (decode, f"{DECODE} --chunk 0", "--chunk: '0' is not a whole number of at least 1"),
    (decode, f"{DECODE} --tile big", "--tile: 'big' is not a tile size"),
    (decode, f"{DECODE} --tile 0:0", "--tile: a tile size must be positive"),
    (decode, f"{DECODE} --fps 0", "--fps: a frame rate must be above 0"),
    (decode, f"{DECODE} --tile 512:512", "--tile: the overlap of tiles of 512 pixels must be from 0 to 511"),
    (decode, f"{DECODE} --tile-frames 64:64", "--tile-frames: the overlap of tiles of 64 frames"),
    (decode, f"{DECODE} --memory-budget 8", "--memory-budget: a memory budget needs a unit, such as 8GB, 500MB or 50%"),
    (decode, f"{DECODE} --memory-budget -8GB", "--memory-budget: expected one argument"),
    (decode, f"{DECODE} --timestep 7", "--timestep: '7' is not a number from 0 to 1"),
    (decode, f"{DECODE} --timestep nan", "--timestep: 'nan' is not a number from 0 to 1"),
    (decode, f"{DECODE} --seed x", "--seed: a seed is a whole number from 0 to 4294967295, not 'x'"),
    (decode, f"{DECODE} --seed {2**32}", "--seed: a seed is a whole number from 0 to 4294967295, not 4294967296"),
    (decode, f"{DECODE} --codec foo", "out.mp4: the codec 'foo' is not supported; use one of h264, hevc"),
    (decode, f"{DECODE} --codec prores", "prores is not supported in .mp4; use .mov or .mkv"),
    (decode, f"{DECODE} --crf 99", "a crf of 99 is not between 0 and 51"),
    (decode, f"{DECODE} --crf good", "--crf: invalid int value: 'good'"),
    (decode, f"{DECODE} --convention difusers", "--convention: invalid choice: 'difusers'"),
    (decode, f"{DECODE} --bit-depth 9", "--bit-depth: invalid choice: "),
    (decode, "clip.npy -m vae -o out.avi", "out.avi: its ending is not supported; use .mp4"),
    (decode, "clip.npy -m vae --audio-model a -o out.mp3", "- for raw frames, or .wav for the audio alone"),
    (
        decode,
        "clip.npy -m vae -o out",
        "out: is no folder and has no ending; write out/ for files named after the inputs",
    ),
    (decode, "clip.npy -m vae -o a_%d_%d.png", "such as %05d.png"),
    (decode, "clip.npy -m vae -o a.mp4 --metadata comment", "is not KEY=VALUE"),
    (decode, f"{DECODE} --shortest", "--shortest ends the audio with the video; add --audio, or"),
    (decode, "clip.npy -m vae -o a.mov --codec prores --encoder-preset fast", "prores_ks has no presets"),
    (decode, "clip.npy -m vae -o out.gif --fps 60", "a GIF plays at most 50 frames per second"),
    (decode, "clip.npy -m vae -o out.npy --codec h264", "out.npy: takes no codec"),
    (decode, "clip.npy -m vae -o out.gif --audio voice.wav", "out.gif: takes no audio"),
    (decode, "clip.npy -m vae -o - --contact-sheet", "standard output: has no name for a contact sheet; name a file"),
    (decode, "clip.npy -m vae -o %05d.png --contact-sheet", "%05d.png: has no name for a contact sheet"),
    (decode, "clip.npy -m vae -o sheet.png --contact-sheet --codec h264", "sheet.png: takes no codec"),
    (decode, f"{AUDIO} --audio b.wav -o a.mp4", "--audio is the audio of the video; leave out --audio-model"),
    (decode, f"{AUDIO} -o a.npy", "a.npy: takes no audio"),
    (decode, f"{AUDIO} --audio-codec pcm -o a.mp4", "pcm audio is not supported in .mp4; use aac"),
    (decode, "a.npy b.npy -m vae --audio-latents b.npy -o out/", "--audio-latents goes with one input"),
    (decode, f"{AUDIO} b.npy -o out/{{name}}.wav", "a .wav file is the audio of one input"),
    (decode, f"{AUDIO} -o a.wav --frames :5", "a .wav file is the audio alone; leave out --frames"),
    (decode, f"{AUDIO} -o a.WAV --live", "a .wav file is the audio alone; leave out --live"),
    (decode, "clip.npy -o a.wav", "--audio-model AUDIO is missing"),
    (decode, "clip.npy -m vae -o a.wav --audio b.wav", "a .wav file is the audio alone; leave out --audio"),
    (upscale, "clip.npy --vae vae", "-m UPSAMPLER is missing: give one of ltx-2.3-upscaler-x2, "),
    (upscale, "clip.npy -m up", "--vae VAE is missing, the VAE of the latents: give one of ltx-2.3, "),
    (upscale, "clip.npy -m up --vae vae -o out.mp4", "out.mp4: latents are written as safetensors"),
    (upscale, "a.npy b.npy -m up --vae vae -o x.safetensors", "a.npy: there is no such file"),
    (preview, "-m rgb -o out.png", "LATENTS is missing"),
    (preview, "clip.npy -o out.png", "-m MODEL is missing: give taeltx-2.3, or a tiny decoder of github.com/"),
    (preview, "clip.npy -o out.png", "or a projection that examples/fit_latent_rgb.py fits to your VAE; --demo"),
    (preview, "clip.npy --demo", "--demo comes with latents and a VAE; leave out LATENTS"),
    (preview, "a.npy b.npy -m rgb -o out.png", "a.npy: there is no such file"),
    (preview, "@clips.txt b.npy -m rgb -o out.png", "b.npy: there is no such file"),
    (preview, "@clips.txt -m rgb -o out.png", "out.png: is one output for several inputs; name a folder (out/) or"),
    (preview, "clip.npy -m rgb -o out.png --crf 18", "unrecognized arguments: --crf"),
    (encode, "-o out.safetensors --demo", "VIDEO"),
    (encode, "my clip.mp4 --demo -o out.safetensors", "my: there is no such file"),
    (encode, "@a.txt --demo -o out.safetensors", "out.safetensors: is one output for several inputs"),
    (encode, "a.mp4 b.mp4 --demo -o out/{name}.pt", "out/{name}.pt: latents are written as safetensors"),
    (encode, "clip.mp4 -o out.safetensors", "-m VAE is missing"),
    (encode, f"{ENCODE} --demo", "--demo comes with a VAE; leave out -m"),
    (encode, "clip.mp4 -m vae -o out.npy", "out.npy: latents are written as safetensors"),
    (encode, f"{ENCODE} --size 10x", "--size: '10x' is not a width and a height such as 768x512"),
    (encode, f"{ENCODE} --size -64x64", "--size: expected one argument"),
    (encode, f"{ENCODE} --crop --resize", "--resize: not allowed with argument --crop"),
    (encode, f"{ENCODE} --hdr logc3", "--hdr: invalid choice: 'logc3'"),
    (encode, f"{ENCODE} --hdr acescg --matrix bt709", "--matrix is for videos, and --hdr for EXR images; choose one"),
    (info, "", "FILE"),
    (info, "ltx-2.3 --frames 9", "a plan without a file needs --size WxH and --frames N, of the video"),
    (info, "ltx-2.3 --size 64x64", "a plan without a file needs --size WxH and --frames N, of the video"),
    (info, "ltx-2.3 --order rows", "a plan without a file needs --size WxH and --frames N; leave out --order"),
    (info, f"ltx-2.3 {PLAN} -m vae", "--size and --frames plan a decode without a file; leave out -m"),
    (info, f"ltx2.3 {PLAN}", "(did you mean ltx-2.3?)"),
    (info, f"ltx-2.3 {PLAN} --mode single --order rows", "go with --mode exact; a single pass has one chunk"),
    (info, "ltx-2.3 --size 64x64 --frames 8", "8 frames of 64x64 do not fit the latent"),
    (info, "clip.npy --grid 3x4", "--grid: '3x4' is not a latent grid; write F'xH'xW', such as 16x22x40"),
    (convert, "", "SOURCE is missing"),
    (convert, "vae", "-o FOLDER is missing"),
    *(
        (convert, f"vae -o out{ending}", f"out{ending}: is the name of a file, and the output is a folder; leave out")
        for ending in (".safetensors", ".SAFETENSORS", ".json", ".gguf", ".npz", ".pt")
    ),
    (convert, f"{CONVERT} --dtype float8", "--dtype: invalid choice: 'float8'"),
    (convert, "--verify a", "--verify: expected 2 arguments"),
    (convert, "--verify a b -o out", "--verify A B writes nothing; leave out SOURCE, -o"),
    (convert, "vae --verify a b", "--verify A B writes nothing; leave out SOURCE, -o"),
    (bench, "--mode single --order rows", "--order belongs to the exact mode; add --mode exact"),
    (bench, "--mode fast", "--mode: invalid choice: 'fast'"),
    (bench, "--size 64", "--size: '64' is not a width and a height"),
    (bench, "--repeat 0", "--repeat: '0' is not a whole number"),
    (bench, "--generation sora", "no published VAE is named 'sora'"),
    (mlx_ltx_vae, "decoed clip.npy", "there is no command 'decoed' (did you mean decode?); choose one of decode"),
    (mlx_ltx_vae, "--bogus", "unrecognized arguments: --bogus"),
    (benchmarks, "", "MEASUREMENT"),
    (benchmarks, "roofline --plot x.png", "unrecognized arguments: --plot"),
]


# Command, an option of another tool, and all that is said of it.
OTHERS = [
    (decode, "--latents a.npy", "name the inputs without an option"),
    (encode, "--input a.mp4", "name the inputs without an option"),
    (decode, "-i a.npy", "name the inputs without an option"),
    (decode, "--batch-file a.txt", "a list of inputs is @FILE, without an option"),
    (encode, "--list a.txt", "a list of inputs is @FILE, without an option"),
    (decode, "--tile-size 512", "did you mean --tile SIZE:OVERLAP?"),
    (decode, "--vae-tiling", "did you mean --preset NAME?"),
    (encode, "--tiling", "did you mean --tile SIZE:OVERLAP?"),
    (decode, "--quality 18", "did you mean --crf?"),
    (preview, "--quality 18", None),
    (preview, "--crf 18", "an option of decode"),
    (encode, "--mode tiled", "an option of decode, info and bench"),
    (decode, "--no-audio", "no option leaves the audio out; ffmpeg -i clip.mp4 -c copy -an silent.mp4 removes it"),
    (
        decode,
        "-v",
        "reports are complete without an option; -q leaves them out, and --debug shows the traceback of an error",
    ),
    (decode, "--frame-rate 24", "did you mean --fps?"),
    (encode, "--frame_rate 24", "did you mean --fps?"),
    (decode, "--precision bf16", "did you mean --dtype?"),
    (convert, "--torch_dtype float16", "did you mean --dtype?"),
    (decode, "--fp16", "did you mean --dtype float16?"),
    (decode, "--max-memory 8GB", "did you mean --memory-budget?"),
    (decode, "--low-ram", "memory does not grow with the clip anyway; --memory-budget 8GB is a limit"),
    (encode, "--device gpu", "MLX computes on its default device, which on a Mac is the GPU"),
    (decode, "--width 768", "encode takes --size WxH; a decoded video has the size of its latents"),
    (encode, "--num-frames 9", "did you mean --frames :N?"),
    (bench, "--frames 9", "did you mean --num-frames?"),
    (decode, "--generation ltx-2.3", "info NAME --size WxH --frames N plans a decode without a file"),
    (decode, "-c:v libx264", "did you mean --codec?"),
    (decode, "-pix_fmt yuv420p", "did you mean --pix-fmt?"),
    (decode, "--hdr-input pq", None),
    (decode, "--no-shortest", None),
    (decode, "--grain 4", None),
    (decode, "--output-path a.mp4", "did you mean --output?"),
    (decode, "--force", "did you mean --overwrite?"),
    (info, "--vae vae", "did you mean --model?"),
    (mlx_ltx_vae, "--verison", "did you mean --version?"),
]


@pytest.mark.parametrize(("command", "option", "remark"), OTHERS)
def test_an_option_of_another_tool_gets_what_stands_for_it_here_or_nothing(command, option, remark, capsys):
    with pytest.raises(SystemExit, match="2"):
        command([*([] if command in (bench, mlx_ltx_vae) else ["clip"]), *option.split()])
    error, _ = capsys.readouterr().err.splitlines()
    name = option.split()[0]  # from Python 3.15 on, the value is an input
    said = [f"error: unrecognized arguments: {words}" for words in (name, option)]
    assert error in [each + (f" ({remark})" if remark else "") for each in said]


def test_what_stands_for_options_of_other_tools_exists():
    known = {name for make in PARSERS.values() for action in make()._actions for name in action.option_strings}
    targets = [target.split()[0] for targets in _WORDS for target in targets.split(" | ") if target.startswith("--")]
    assert {target for target in targets if target.startswith("--")} <= known
    words = " ".join(_WORDS.values()).split()
    assert len(words) == len(set(words))


@pytest.mark.parametrize(
    ("command", "arguments", "words"),
    WRONG,
    ids=[f"{NAMES.get(command, command.__module__)}: {rest}" for command, rest, _ in WRONG],
)
def test_wrong_usage_exits_with_2_and_names_the_option_in_two_lines(
    command, arguments, words, capsys, monkeypatch, tmp_path
):
    monkeypatch.chdir(tmp_path)  # where no demo.mp4 is
    monkeypatch.setattr("sys.stdout", None)  # nothing is printed there
    with pytest.raises(SystemExit) as caught:
        command(shlex.split(arguments))
    monkeypatch.undo()
    error, hint = capsys.readouterr().err.splitlines()
    assert caught.value.code == 2
    assert error.startswith("error: ")
    assert words in error
    assert re.fullmatch(r'run "python -m (mlx_ltx_vae|benchmarks)[. a-z]* --help" for the options', hint)


def test_the_module_weights_convert_reports_wrong_usage_its_version_and_its_help():
    def run(option):
        return subprocess.run([sys.executable, "-m", "weights_convert", option], capture_output=True, text=True)

    wrong, shown, helped = map(run, ("--no-such-option", "--version", "--help"))
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr.endswith('run "python -m mlx_ltx_vae convert --help" for the options\n')
    assert (shown.returncode, shown.stdout, shown.stderr) == (0, f"mlx_ltx_vae {version('mlx_ltx_vae')}\n", "")
    assert (helped.returncode, helped.stderr) == (0, "")
    assert helped.stdout.startswith("usage: python -m mlx_ltx_vae convert ")


@pytest.mark.parametrize("name", COMMANDS)
def test_help_fits_80_columns_describes_every_option_and_ends_with_examples(name, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as caught:
        MAINS[name](["--help"])
    lines = capsys.readouterr().out.splitlines()
    assert caught.value.code == 0
    assert max(map(len, lines)) <= 80
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        if re.match(r"  -", line):
            assert re.search(r" {2,}\S", line.strip()) or following.startswith(" " * 10), f"{line} has no description"
    shown = lines[lines.index("examples:") + 1 :]
    assert 2 <= len(shown) <= 3
    assert all(line.startswith(f"  python -m mlx_ltx_vae {name}") for line in shown)


@pytest.mark.parametrize("name", COMMANDS)
def test_examples_of_the_help_are_correct_usage(name, capsys, monkeypatch):
    """Each example gets as far as reading its files."""
    module = import_module(f"mlx_ltx_vae.commands.{'decode' if name == 'preview' else name}_command")
    ran = []
    function = "run_program" if name == "run" else "run_command"
    monkeypatch.setattr(module, function, lambda *given, **_: ran.append(given[-1]) or 0)
    with pytest.raises(SystemExit):
        MAINS[name](["--help"])
    text = capsys.readouterr().out
    examples = [shlex.split(line)[4:] for line in text[text.index("examples:") :].splitlines()[1:]]
    assert [MAINS[name](arguments) for arguments in examples] == [0] * len(examples)
    assert len(ran) == len(examples)


@pytest.fixture
def said(capsys):
    """`said("info", "--help")`: the exit code of the package's own command, its output and its errors."""

    def run(*arguments):
        try:
            code = mlx_ltx_vae(list(arguments))
        except SystemExit as ended:
            code = ended.code
        return code, *capsys.readouterr()

    return run


def test_the_package_lists_its_commands(said):
    code, listed, errors = said()
    assert (code, errors) == (0, "")
    for name, what in COMMANDS.items():
        (line,) = (line for line in listed.splitlines() if line.startswith(f"  python -m mlx_ltx_vae {name} "))
        assert line.endswith(what)
    assert said("version") == (0, f"mlx_ltx_vae {version('mlx_ltx_vae')}\n", "")
    assert said("help") == (0, listed, "")
    assert said("help", "info") == said("info", "--help")


def test_the_package_runs_its_commands(said, capsys):
    dispatched = said("info", "missing.npy")
    assert dispatched == (info(["missing.npy"]), *capsys.readouterr())
    assert dispatched[0] == 1 and dispatched[2] != ""
    assert said("bench", "--help")[1].startswith("usage: python -m mlx_ltx_vae bench")


def test_the_console_script_shows_its_own_name(monkeypatch, said):
    monkeypatch.setattr("sys.argv", ["/usr/bin/mlx_ltx_vae"])
    _, shown, _ = said("decode", "--help")
    assert shown.startswith("usage: mlx_ltx_vae decode LATENTS... -m VAE")
    assert "\n  mlx_ltx_vae decode --demo\n" in shown
    assert "python -m" not in shown
    assert said("decode", "--chunk", "0")[2].endswith('run "mlx_ltx_vae decode --help" for the options\n')


@dataclass(frozen=True)
class ToyOptions(OutputOptions):
    grain: int = option_field(3, "how much grain (default: 3)", metavar="N")


def test_a_field_is_an_option_of_the_commands(capsys):
    parser = argparse.ArgumentParser(prog="toy")
    add_option(parser, ToyOptions, "grain", positive)
    add_option(parser, ToyOptions, "fragmented")
    parser.add_argument("--frames")  # not the field of this name, which no option sets
    arguments = parser.parse_args(["--frames", "8"])
    assert read_options(ToyOptions, arguments, overwrite=True) == ToyOptions(overwrite=True)
    arguments = parser.parse_args(["--grain", "5", "--live"])
    assert read_options(ToyOptions, arguments) == ToyOptions(grain=5, fragmented=True)
    with pytest.raises(SystemExit):
        parser.parse_args(["--grain", "0"])
    assert "'0' is not a whole number of at least 1" in capsys.readouterr().err
    assert re.search(r"--grain N\s+how much grain \(default: 3\)", parser.format_help())


@pytest.mark.parametrize("name", ["decode", "preview", "encode"])
def test_help_groups_options_by_what_one_does_and_rare_ones_are_last(name, capsys):
    with pytest.raises(SystemExit):
        MAINS[name](["--help"])
    titles = re.findall(r"^([a-z ]+):$", capsys.readouterr().out, re.MULTILINE)
    common = ["input", "output", "picture", "audio", "memory", "report"]
    assert titles[: len(titles) - titles[::-1].index("report")] == [title for title in common if title in titles]
    assert titles[-2:] == ["several machines", "examples"]
