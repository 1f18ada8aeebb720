"""What the package never does with a user's files: see docs/reliability.md, Security."""

import ast
import json
import os
import pickle
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import mlx_ltx_vae
from conftest import link_kernels
from mlx_ltx_vae import LTXVAEError, VideoReader, demo, load_latents, save_latents
from mlx_ltx_vae.checkpoint import open_checkpoint
from mlx_ltx_vae.errors import ReaderError, WriterError
from mlx_ltx_vae.video.audio import find_audio
from video_files import noise, run_ffmpeg, write

PACKAGE = Path(mlx_ltx_vae.__file__).parent

# Runs commands, one a line of JSON, and records what Python's audit events say that they do.
_WATCHED = """
import json, os, socket, sys
events = []
NAMES = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.symlink", "os.link", "os.truncate", "os.chmod",
         "os.system", "os.exec", "os.posix_spawn", "subprocess.Popen", "socket.connect", "socket.getaddrinfo",
         "socket.bind", "pickle.find_class", "webbrowser.open")

def watch(event, arguments):
    if event in NAMES:
        shown = [each.decode() if isinstance(each, bytes) else each for each in arguments]
        events.append([event, [each if isinstance(each, (str, int, type(None))) else repr(each) for each in shown]])

from mlx_ltx_vae import convert, decode, encode, info
commands = {"convert": convert, "decode": decode, "encode": encode, "info": info}
sys.addaudithook(watch)
codes = [commands[name].main(arguments) for name, *arguments in json.loads(sys.argv[1])]
recorded = list(events)
print(json.dumps({"codes": codes, "events": recorded}), file=sys.__stdout__)
"""


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    """The audit events of every command, and the folders where it ran."""
    root = tmp_path_factory.mktemp("watched")
    folders = {name: root / name for name in ("target", "temporary", "home", "working")}
    for folder in folders.values():
        folder.mkdir()
    write(folders["target"] / "clip.mkv", noise(9, (64, 64)))
    link_kernels(folders["temporary"])
    target, vae = str(folders["target"]), str(demo.VAE)
    save_latents(f"{target}/latents.safetensors", load_latents(demo.LATENTS)[0][:, :, :2, :3, :4])
    commands = [
        ["decode", f"{target}/latents.safetensors", "-m", vae, "-o", f"{target}/clip.mp4", "--order", "rows", "-q"],
        ["decode", f"{target}/latents.safetensors", "-m", vae, "-o", f"{target}/stills/", "-q"],
        ["encode", f"{target}/clip.mkv", "--demo", "-o", f"{target}/clip.safetensors", "-q"],
        ["info", f"{target}/clip.safetensors", "--json"],
        ["convert", vae, "-o", f"{target}/converted"],
    ]
    surroundings = {"TMPDIR": str(folders["temporary"]), "HOME": str(folders["home"])}
    done = subprocess.run(
        [sys.executable, "-B", "-c", _WATCHED, json.dumps(commands)],
        cwd=folders["working"],
        env=os.environ | surroundings | {"PYTHONPATH": str(PACKAGE.parent)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["codes"] == [0] * len(commands), done.stderr
    return folders, result["events"]


@pytest.mark.slow
def test_commands_write_to_the_folder_of_the_output_and_to_tmpdir_only(watched):
    folders, events = watched
    allowed = tuple(str(folders[name]) for name in ("target", "temporary"))
    written = [arguments[0] for event, arguments in events if event == "open" and _writes(arguments)]
    changes = [(event, arguments) for event, arguments in events if event in _CHANGES]
    # Names relative to an open folder are those in a temporary folder that is removed.
    changed = [path for event, arguments in changes if arguments[-1] == -1 for path in arguments[: _CHANGES[event]]]
    assert written
    outside = {path for path in (*written, *changed) if isinstance(path, str) and not path.startswith(allowed)}
    assert outside <= {os.devnull}
    assert not any(folders["home"].iterdir())
    assert not any(folders["working"].iterdir())
    left = {path.name for path in folders["temporary"].iterdir()}
    assert left <= {"mlx"}  # the kernels that MLX compiles for the CPU


_CHANGES = {"os.rename": 2, "os.remove": 1, "os.mkdir": 1, "os.rmdir": 1, "os.chmod": 1}


def _writes(arguments):
    _, mode, flags = arguments
    return bool(
        (mode or "r")[0] in "wax" or "+" in (mode or "") or (flags or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
    )


def test_commands_without_a_hub_id_use_no_network(watched):
    _, events = watched
    assert not [event for event, _ in events if event.startswith("socket.")]


def test_commands_start_ffmpeg_and_nothing_else_and_no_shell(watched):
    _, events = watched
    # From Python 3.14 on, subprocess starts some programs by posix_spawn.
    started = [arguments for event, arguments in events if event in ("subprocess.Popen", "os.posix_spawn")]
    assert started
    assert {Path(arguments[0]).name.partition("-")[0] for arguments in started} == {"ffmpeg"}
    assert all(arguments[1].startswith("[") for arguments in started)  # a list of arguments is not split by a shell
    assert not [event for event, _ in events if event in ("os.system", "os.exec", "webbrowser.open")]


def test_commands_unpickle_nothing(watched):
    _, events = watched
    assert "pickle.find_class" not in [event for event, _ in events]


class Bomb:
    """Makes a file when it is unpickled."""

    def __init__(self, evidence):
        self.evidence = evidence

    def __reduce__(self):
        return Path.touch, (self.evidence,)


@pytest.mark.parametrize("name", ["clip.pt", "clip.pkl", "clip.ckpt", "clip.bin", "clip.safetensors", "clip.npy"])
@pytest.mark.parametrize("read", [load_latents, open_checkpoint])
def test_pickles_are_refused_unread_whatever_their_name(tmp_path, name, read):
    (tmp_path / name).write_bytes(pickle.dumps(Bomb(tmp_path / "evidence")))
    with pytest.raises(LTXVAEError, match="pickle"):
        read(tmp_path / name)
    assert not (tmp_path / "evidence").exists()


_FORBIDDEN = {"eval", "exec", "compile", "__import__", "breakpoint"}
_FORBIDDEN_MODULES = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "yaml"}
_FORBIDDEN_MODULES |= {"socket", "urllib", "http"}

#: The second writes what argparse does, and the last two write single lines, since standard error is the app's.
_PRINTERS = {"commands/terminal.py", "commands/cli.py", "commands/run_command.py", "integrations/settings.py"}


@cache
def package_nodes():
    """The nodes of the package's source that call or import, each with its module."""
    paths = {path.relative_to(PACKAGE).as_posix(): path for path in sorted(PACKAGE.rglob("*.py"))}
    found = ((module, node) for module, path in paths.items() for node in ast.walk(ast.parse(path.read_text())))
    return [each for each in found if isinstance(each[1], (ast.Call, ast.Import, ast.ImportFrom))]


def calls():
    """Each call in the package: its module, what is called, and the call."""
    return [(module, ast.unparse(node.func), node) for module, node in package_nodes() if isinstance(node, ast.Call)]


def test_few_modules_print():
    """They escape what a terminal obeys."""
    prints = {"print", "Bar.write", "tqdm.write", "sys.stdout.write", "sys.stderr.write", "traceback.print_exc"}
    assert {module for module, function, _ in calls() if function in prints} <= _PRINTERS


def test_no_module_evaluates_text_unpickles_opens_sockets_or_uses_a_shell():
    for module, function, node in calls():
        allowed = {"compile", "exec"} if module == "commands/run_command.py" else set()  # the program that `run` is for
        assert function not in _FORBIDDEN - allowed, (module, ast.unparse(node))
        given = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
        assert given.get("shell", "False") == given.get("allow_pickle", "False") == "False", (module, ast.unparse(node))
    for module, node in package_nodes():
        if isinstance(node, ast.Call):
            continue
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
        if isinstance(node, ast.Import) or node.level == 0:
            names = [name for name in names if name != "urllib.parse"]  # which opens nothing
            assert not {name.partition(".")[0] for name in names} & _FORBIDDEN_MODULES, module


PLAYLISTS = {
    "list.m3u8": "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nclip.ts\n#EXT-X-ENDLIST\n",
    "url.m3u8": "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nhttp://127.0.0.1:9/clip.ts\n#EXT-X-ENDLIST\n",
    "list.ffconcat": "ffconcat version 1.0\nfile clip.ts\n",
    "list.mp4": "ffconcat version 1.0\nfile clip.ts\n",
    "stream.sdp": "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=video 5004 RTP/AVP 96\n"
    "a=rtpmap:96 H264/90000\n",
    "script.avs": 'DirectShowSource("clip.ts")\n',
}


@pytest.fixture
def clip(tmp_path):
    run_ffmpeg("-f", "lavfi", "-i", "testsrc=size=64x64:duration=0.4", "-f", "lavfi", "-i", "sine=duration=0.4",
               tmp_path / "clip.ts")  # fmt: skip
    return tmp_path / "clip.ts"


def test_the_clip_that_playlists_name_is_read_itself(clip):
    with VideoReader(clip) as video:
        assert sum(frames.shape[0] for frames in video) == 10
    assert find_audio(clip, WriterError)[0].sample_rate == 44100


@pytest.mark.quick(3)
@pytest.mark.parametrize("name", PLAYLISTS)
def test_playlists_and_scripts_are_not_followed(clip, name):
    playlist = clip.with_name(name)
    playlist.write_text(PLAYLISTS[name])
    with pytest.raises(ReaderError, match=r"is a playlist|no video|is text"):
        VideoReader(playlist)
    with pytest.raises(WriterError, match=r"is a playlist|no audio"):
        find_audio(playlist, WriterError)


def test_a_dash_manifest_is_not_followed(clip):
    manifest = clip.with_name("stream.mpd")
    run_ffmpeg("-i", clip, "-an", "-c:v", "libx264", "-f", "dash", manifest)
    with pytest.raises(ReaderError, match="is a playlist"):
        VideoReader(manifest)


def test_tensors_in_numpy_files_of_objects_are_refused(tmp_path):
    np.save(tmp_path / "clip.npy", np.array([Bomb(tmp_path / "evidence")], dtype=object), allow_pickle=True)
    with pytest.raises(LTXVAEError):
        load_latents(tmp_path / "clip.npy")
    assert not (tmp_path / "evidence").exists()
