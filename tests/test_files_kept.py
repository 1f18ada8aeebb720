"""Files of users are never lost: what is replaced and what is not, in one rule, and what a finished output lands on."""

import errno
import fcntl
import json
import os
import re
import shutil
import stat
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from PIL import Image

from checkpoint_files import convert_checkpoint, open_checkpoint
from latent_files import LatentsWriter
from many_files import VAE, failed, run
from mlx_ltx_vae import VideoVAE, VideoWriter, WriterError, decode, demo, encode, load_latents, preview, save_latents
from mlx_ltx_vae.commands.options import OVERWRITE_RULE
from mlx_ltx_vae.commands.parsers import decode_parser, encode_parser, preview_parser
from mlx_ltx_vae.files import PartFile, numbered_names
from mlx_ltx_vae.pipeline import output as pipeline_output
from mlx_ltx_vae.pipeline import prepare_encode
from mlx_ltx_vae.video import sink_table
from mlx_ltx_vae.video.audio import write_wav
from mlx_ltx_vae.video.pictures import write_png
from test_full_disk import fill, small_disk  # noqa: F401
from video_files import SIZE, OutputOptions, check_output, noise, open_sink, read

REPLACED = ["out.mp4", "out.gif", "out.npy", "out.wav", "out.safetensors", "out.png", "sheet.png"]
REFUSED = ["stills/", "stills/%05d.tif"]
FRAME = noise(1)
PRECIOUS = b"precious"


def write(name: str, overwrite: bool | None = None, before=lambda: None, **options: object) -> str:
    """Write one frame, or audio, or latents, and call `before` when all is written but the name. Returns the name."""
    path, rule = Path(name), {} if overwrite is None else {"overwrite": overwrite}
    if path.suffix == ".wav":
        return str(write_wav(path, chunks(before), sample_rate=24000, **rule)[1] or path)
    if path.suffix == ".safetensors":
        with LatentsWriter(path, **rule) as writer:
            writer.write(mx.ones((1, 8, 1, 2, 2)))
            before()
            return str(writer.complete() or path)
    options = OutputOptions(overwrite=overwrite, contact_sheet=path.name == "sheet.png", **options)
    given = {"size": SIZE, "fps": 24, "options": options, "num_frames": 1}
    check_output(name, **given)
    with open_sink(name, **given) as sink:
        sink.write(FRAME)
        sink._queue.finish()
        before()
    return sink.name


def chunks(before):
    yield np.zeros((2, 4800), np.float32)
    before()


def target_of(name: str) -> Path:
    """The file that one frame is written to."""
    return Path(name, "00000.png") if name.endswith("/") else Path(name.replace("%05d", "00000"))


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "stills").mkdir()
    return tmp_path


@pytest.mark.parametrize("overwrite", [None, True, False])
@pytest.mark.parametrize("name", [*REPLACED, *REFUSED])
def test_one_rule_says_what_is_replaced(here, name, overwrite):
    target = target_of(name)
    target.write_bytes(PRECIOUS)
    if overwrite or (overwrite is None and name in REPLACED):
        assert write(name, overwrite) == name
        assert target.read_bytes() != PRECIOUS
    else:
        with pytest.raises(WriterError, match=r"already exists; .*pass overwrite=True to replace"):
            write(name, overwrite)
        assert target.read_bytes() == PRECIOUS


def content(folder: str) -> dict[str, bytes]:
    """All files below a folder, hidden ones too."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}


MOVED = [*REPLACED, *REFUSED, "new/", "out.mkv", "out.webp"]


@pytest.mark.parametrize("name", MOVED)
def test_an_output_follows_its_folder_which_is_renamed(here, name):
    """As the Finder does, or a program that synchronizes folders."""
    for folder in ("plain", "before"):
        Path(folder, "stills").mkdir(parents=True)
    write(f"plain/{name}")
    text = f"before/{name}: its folder was moved or renamed meanwhile, so the output is {here}/after/{name}."
    with pytest.warns(UserWarning) as caught:
        moved = write(f"before/{name}", before=lambda: Path("before").rename("after"))
    assert [str(warning.message) for warning in caught] == [text]
    assert moved == f"{here}/after/{name}"
    assert content("after") == content("plain") != {}
    assert not Path("before").exists()


@pytest.mark.parametrize("name", MOVED)
def test_an_output_that_fails_leaves_nothing_in_a_folder_that_was_renamed(here, name):
    def fail():
        Path("before").rename("after")
        raise ValueError("a decode that fails")

    Path("before", "stills").mkdir(parents=True)
    with pytest.raises(ValueError, match="that fails"):
        write(f"before/{name}", before=fail)
    assert content("after") == {}


@pytest.mark.parametrize("name", ["out.mp4", "out.npy", "stills/", "new/"])
def test_a_working_folder_that_is_renamed_is_no_matter(here, name):
    Path("before", "stills").mkdir(parents=True)
    os.chdir("before")
    assert write(name, before=lambda: (here / "before").rename(here / "after")) == name
    assert target_of(name).stat().st_size > 50
    assert len(content(here / "after")) == 1


@pytest.mark.parametrize("is_new", [False, True])
def test_stills_go_on_in_a_folder_that_is_renamed_between_two_and_while_one_is_written(here, monkeypatch, is_new):
    def write_still(path, frame, options):
        if path.name == "00002.png" and Path("after").exists():
            Path("after").rename("last")
        write_png(path, frame, options)
        if path.name == "00000.png":
            Path("before").rename("after")

    Path("before", "stills").mkdir(parents=True)
    monkeypatch.setattr(sink_table, "SINKS", (sink_table.stills_kind((".png",), write_still),))
    name = "new" if is_new else "stills"
    with (
        pytest.warns(UserWarning, match=f"so the output is {here}/last/{name}/\\."),
        open_sink(f"before/{name}/", size=SIZE, fps=24) as out,
    ):
        out.write(noise(4))
    assert sorted(content("last")) == [f"{name}/0000{index}.png" for index in range(4)]
    for index, frame in enumerate(noise(4)):
        with Image.open(f"last/{name}/0000{index}.png") as still:
            np.testing.assert_array_equal(np.asarray(still), frame)


def test_a_mac_tells_where_a_folder_has_gone(here, monkeypatch):
    plain, readlink = fcntl.fcntl, os.readlink

    def find(descriptor, command, *more):
        if command != 50:
            return plain(descriptor, command, *more)
        return os.fsencode(readlink(f"/proc/self/fd/{descriptor}")).ljust(1024, b"\0")

    monkeypatch.setattr(fcntl, "F_GETPATH", 50, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", find)
    monkeypatch.setattr(os, "readlink", lambda _: "")
    Path("before").mkdir()
    with pytest.warns(UserWarning, match="its folder was moved or renamed"):
        write("before/out.npy", before=lambda: Path("before").rename("after"))
    assert list(content("after")) == ["out.npy"]


@pytest.mark.parametrize("name", ["out.mp4", "out.npy", "out.safetensors", "out.png", "new/"])
def test_a_file_system_that_gives_open_files_other_numbers_loses_nothing(here, monkeypatch, name):
    monkeypatch.setattr(os.path, "samestat", lambda *_: False)
    assert write(name) == name
    assert target_of(name).stat().st_size > 50
    assert len(content(".")) == 1


@pytest.mark.parametrize("name", ["out.mp4", "out.npy", "out.wav", "out.safetensors", "out.png", "new/"])
def test_a_part_that_is_removed_is_one_error_that_says_so(here, name):
    text = r"cannot be written \(another program has moved, removed or replaced it meanwhile\)\.$"
    Path("folder").mkdir()
    with pytest.raises(WriterError, match=f"^folder/{re.escape(name)}: {text}"):
        write(f"folder/{name}", before=lambda: shutil.rmtree("folder"))
    assert not Path("folder").exists()


@pytest.mark.parametrize(
    ("main", "arguments", "files"),
    [
        (decode.main, ["clip.safetensors", "-o", "before/out.mp4"], ["out.mp4"]),
        (decode.main, ["clip.safetensors", "-o", "before/out.mp4", "--contact-sheet"], ["out.mp4", "out.png"]),
        (encode.main, ["%d.png", "-o", "before/out.safetensors"], ["out.safetensors"]),
        (encode.main, ["%d.png", "-o", "before/out/", "--windows", "17", "--carry", "9"], ["out/00001.safetensors"]),
    ],
)
def test_commands_say_where_an_output_is_whose_folder_was_renamed(clip, capsys, monkeypatch, main, arguments, files):
    def rename(write):
        def write_after(*values):
            if Path("before").exists():
                Path("before").rename("after")
            return write(*values)

        return write_after

    monkeypatch.setattr(pipeline_output, "write_chunk", rename(pipeline_output.write_chunk))
    monkeypatch.setattr(prepare_encode, "_write_all", rename(prepare_encode._write_all))
    for index in range(25):
        Image.fromarray(np.full((64, 64, 3), index, np.uint8)).save(f"{index}.png")
    Path("before").mkdir()
    assert run(main, *arguments, *VAE, "--json") == 0
    output = capsys.readouterr()
    assert json.loads(output.out)["output"] == arguments[2].replace("before", str(clip / "after"))
    assert "moved or renamed meanwhile" in output.err and ".part" not in output.err
    assert sorted(content("after"))[: len(files)] == files
    assert not Path("before").exists() and not list(Path("after").rglob(".*"))


def words(text: str) -> str:
    return " ".join(text.split())


def test_help_and_docs_state_the_rule_in_the_same_words():
    usage = words((Path(__file__).parents[1] / "docs" / "usage.md").read_text())
    assert OVERWRITE_RULE in usage
    for parser in (decode_parser(), preview_parser(), encode_parser()):
        assert OVERWRITE_RULE in words(parser.format_help())


@pytest.fixture
def clip(here):
    latents, info = load_latents(demo.LATENTS)
    corner = latents[:, :, :1, :2, :2]
    save_latents("clip.safetensors", corner / corner.std(axis=(2, 3, 4), keepdims=True), fps=info.fps)  # no warning
    return here


COMMANDS = [
    ["-o", "out.mp4"],
    ["-o", "out.npy"],
    ["-o", "out.png"],
    ["-o", "stills/", "--stills"],
    ["-o", "clip.mp4", "--contact-sheet"],
    ["-o", "clip.png", "--contact-sheet"],
]


@pytest.mark.parametrize("arguments", COMMANDS)
def test_files_are_replaced_by_commands_with_y_and_skipped_with_n(clip, capsys, arguments):
    target = Path("clip.png") if "--contact-sheet" in arguments else target_of(arguments[1])
    target.write_bytes(PRECIOUS)
    command = ["clip.safetensors", *VAE, *arguments]
    assert re.search(r"already exists; .*add -y to replace", failed(capsys, *command))
    assert run(decode.main, *command, "-n") == 0
    assert "-y" not in "".join(capsys.readouterr())
    assert target.read_bytes() == PRECIOUS
    assert run(decode.main, *command, "-y", "-q") == 0
    assert target.read_bytes() != PRECIOUS
    assert capsys.readouterr().err == ""


def test_no_original_is_replaced_by_what_was_made_of_it(clip, capsys):
    assert run(decode.main, "clip.safetensors", *VAE, "-o", "holiday.mkv", "--codec", "ffv1", "-q") == 0
    original = Path("holiday.mkv").read_bytes()
    for command in ((encode.main, "holiday.mkv"), (decode.main, "holiday.safetensors")):
        assert run(*command, *VAE, "-q") == 0
    assert "holiday.mkv: already exists" in failed(capsys, "holiday.safetensors", *VAE, "-o", "holiday.mkv")
    assert Path("holiday.mkv").read_bytes() == original
    assert "holiday.safetensors: already exists" in failed(
        capsys, "holiday.mkv", *VAE, "-o", "holiday.safetensors", main=encode.main
    )


def test_stills_replace_those_of_the_same_names_and_no_others(here):
    for name in ("00000.png", "00001.png", "00002.png", "x.png", "notes.txt"):
        Path("stills", name).write_bytes(PRECIOUS)
    with pytest.warns(UserWarning, match=r"^stills/: 00001.png to 00002.png \(2 stills\) stay from another clip\.$"):
        write("stills/", True)
    kept = [path.name for path in sorted(Path("stills").iterdir()) if path.read_bytes() == PRECIOUS]
    assert kept == ["00001.png", "00002.png", "notes.txt", "x.png"]
    assert len(list(Path("stills").iterdir())) == 5


@pytest.mark.parametrize(("main", "name"), [(decode.main, "demo"), (preview.main, "preview")])
def test_a_default_name_never_replaces_a_file(here, capsys, main, name):
    path = Path(f"{name}.mp4")
    path.write_bytes(PRECIOUS)
    assert run(main, "--demo", "--frames", ":1") == 0
    out, err = capsys.readouterr()
    assert f"warning: {name}.mp4: already exists, so the output is {name}-1.mp4; -y replaces it.\n" in err
    assert out.startswith(f"{name}-1.mp4: 1 frame of ")
    assert len(read(Path(f"{name}-1.mp4"))) == 1
    assert run(main, "--demo", "--frames", ":1", "-n", "-q") == 0
    assert path.read_bytes() == PRECIOUS
    assert run(main, "--demo", "--frames", ":1", "-y", "-q") == 0
    assert len(read(path)) == 1


@pytest.mark.parametrize("name", [*REPLACED, *REFUSED, "new/", "new/%05d.png"])
def test_a_name_that_is_taken_meanwhile_costs_no_finished_output(here, name):
    target = target_of(name)

    def take():
        target.parent.mkdir(exist_ok=True)
        target.write_bytes(PRECIOUS)

    said = f"^{re.escape(name)}: the name was taken meanwhile, so the output is "
    with pytest.warns(UserWarning, match=said) as warned:
        other = write(name, False, take)
    assert str(warned[0].message).endswith(f" {other}.")
    assert target.read_bytes() == PRECIOUS
    assert target_of(other).stat().st_size > 50
    expected = {"out": f"out-1{target.suffix}", "sheet": "sheet-1.png", "00000": target.name}[target.stem]
    assert target_of(other).name == expected
    assert not [each for each in here.rglob("*") if ".part" in each.name]


@pytest.mark.parametrize("name", ["out.mp4", "out.npy", "out.safetensors", "out.wav"])
def test_a_folder_of_the_name_costs_no_finished_output_either(here, name):
    with pytest.warns(UserWarning, match="the name was taken meanwhile"):
        assert write(name, True, lambda: Path(name).mkdir()) == name.replace("out", "out-1")
    assert Path(name).is_dir()


def test_commands_say_where_a_finished_output_is(clip, capsys, monkeypatch):
    """The name is taken while the output is moved. What is printed and returned is the other one."""
    complete = PartFile.complete

    def late(part):
        part.target.write_bytes(PRECIOUS)
        return complete(part)

    monkeypatch.setattr(PartFile, "complete", late)
    command = ["clip.safetensors", *VAE, "-o", "out.mp4", "--contact-sheet"]
    assert run(decode.main, *command) == 0
    out, err = capsys.readouterr()
    assert out.startswith("out-1.mp4: 1 frame") and out.endswith("; contact sheet out-1.png\n")
    assert err.count("the name was taken meanwhile") == 2
    assert run(decode.main, "clip.safetensors", *VAE, "-o", "b.mp4", "--json") == 0
    assert json.loads(capsys.readouterr().out)["output"] == "b-1.mp4"
    Path("list.txt").write_text("clip.safetensors\n")
    capsys.readouterr()
    assert run(decode.main, "@list.txt", *VAE, "-o", "many/") == 0
    assert " -> many/clip-1.mp4: 1 frame" in capsys.readouterr().out
    Image.new("RGB", (64, 64)).save("picture.bmp")
    assert run(encode.main, "picture.bmp", "--demo", "-o", "new.safetensors") == 0
    assert capsys.readouterr().out.startswith("new-1.safetensors: ")
    assert load_latents("new-1.safetensors")[0].shape == (1, 64, 1, 2, 2)
    vae = VideoVAE.from_pretrained(demo.VAE, encoder=False)
    with pytest.warns(UserWarning, match="taken meanwhile"):
        report = vae.decode_to_file(load_latents("clip.safetensors")[0], "python.mp4", overwrite=False)
    assert report.output == "python-1.mp4"


def test_a_conversion_whose_folder_is_taken_meanwhile_gets_the_next_one(here, golden):
    def take(names, _):
        Path("vae").mkdir(exist_ok=True)
        Path("vae", "file").write_bytes(PRECIOUS)
        return names

    checkpoint = open_checkpoint(golden("conv_16x16x4").checkpoint)
    with pytest.warns(UserWarning, match="the name was taken meanwhile"):
        conversion = convert_checkpoint(checkpoint, "vae", progress=take)
    assert conversion.output == str(here / "vae-1")
    assert sorted(os.listdir("vae-1")) == ["README.md", "config.json", "model.safetensors"]
    assert os.listdir("vae") == ["file"]


@pytest.mark.parametrize(
    ("name", "following"),
    [
        ("demo.mp4", ["demo-1.mp4", "demo-2.mp4"]),
        ("clip-9.mp4", ["clip-10.mp4", "clip-11.mp4"]),
        ("take_0099.mov", ["take_0100.mov", "take_0101.mov"]),
        ("LTX_00009_.mp4", ["LTX_00010_.mp4", "LTX_00011_.mp4"]),
        ("clip2024.mp4", ["clip2024-1.mp4", "clip2024-2.mp4"]),
    ],
)
def test_the_names_that_follow_one(name, following):
    assert [str(path) for path in islice(numbered_names(Path("a", name)), 2)] == [f"a/{each}" for each in following]


def test_a_folder_has_its_number_behind_its_dots():
    assert next(numbered_names(Path("v1.5"), is_folder=True)) == Path("v1.5-1")


@contextmanager
def umask(mask: int):
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("name", [*REPLACED, *REFUSED])
def test_a_replaced_file_keeps_its_mode_and_a_new_one_follows_the_umask(here, name):
    seen = []

    def look():
        seen.extend(mode(path) for path in here.glob(".out.*"))

    target = target_of(name)
    with umask(0o022):
        target.write_bytes(PRECIOUS)
        target.chmod(0o600)
        write(name, True, look)
        assert mode(target) == 0o600
        assert set(seen) <= {0o600}, "also while it is written"
    target.unlink()
    with umask(0o027):
        write(name, True)
    assert mode(target) == 0o640


def test_a_link_leads_to_a_file_that_keeps_its_mode(here):
    Path("disk").mkdir()
    Path("disk/real.mp4").write_bytes(PRECIOUS)
    Path("disk/real.mp4").chmod(0o604)
    Path("out.mp4").symlink_to("disk/real.mp4")
    write("out.mp4")
    assert Path("out.mp4").is_symlink() and mode(Path("disk/real.mp4")) == 0o604


@dataclass
class Disk:
    """What is asked of the system, in order: ("sync" | "drive", inode) and ("move", inode)."""

    calls: list[tuple[str, int]]

    def check_order(self, files: list[Path], folder: Path) -> None:
        moves = [index for index, (what, _) in enumerate(self.calls) if what == "move"]
        for file in files:
            assert "sync" in [what for what, inode in self.calls[: moves[0]] if inode == file.stat().st_ino], file
        assert ("sync", folder.stat().st_ino) in self.calls[moves[-1] :]


@pytest.fixture
def disk(monkeypatch):
    calls = []
    fsync, replace = os.fsync, os.replace

    def note_sync(descriptor):
        calls.append(("sync", os.fstat(descriptor).st_ino))
        fsync(descriptor)

    def note_move(source, target):
        calls.append(("move", os.stat(source).st_ino))
        replace(source, target)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(os, "replace", note_move)
    return Disk(calls)


@pytest.mark.parametrize("overwrite", [True, False])
@pytest.mark.parametrize("name", [*REPLACED, *REFUSED, "new/"])
def test_a_file_is_on_the_disk_before_it_takes_its_name_and_its_name_after(here, disk, name, overwrite):
    write(name, overwrite)
    target = target_of(name)
    disk.check_order([target], target.parent if name != "new/" else here)


def test_a_conversion_is_on_the_disk_before_it_takes_its_name(here, disk, golden):
    convert_checkpoint(open_checkpoint(golden("conv_16x16x4").checkpoint), "vae")
    disk.check_order([*Path("vae").iterdir(), Path("vae")], here)


def test_a_mac_flushes_the_drive_once_for_all_stills_and_once_for_their_names(here, disk, monkeypatch):
    full, plain = [], fcntl.fcntl

    def note(descriptor, command, *more):
        if command != 51:
            return plain(descriptor, command, *more)
        full.append(os.fstat(descriptor).st_ino)
        return 0

    monkeypatch.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", note)
    with open_sink("stills/", size=SIZE, fps=24) as out:
        out.write(noise(3))
    first, second, last = (Path("stills", f"0000{index}.png").stat().st_ino for index in range(3))
    assert full == [last, Path("stills").stat().st_ino]
    assert [inode for what, inode in disk.calls if what == "sync"] == [first, second]

    def refuse(*_):
        raise OSError(errno.ENOTSUP, "a network")

    monkeypatch.setattr(fcntl, "fcntl", refuse)
    disk.calls.clear()
    write("out.npy")
    disk.check_order([Path("out.npy")], here)


@pytest.mark.parametrize(
    ("name", "number"),
    [
        *((name, errno.EINVAL) for name in ("out.mp4", "out.npy", "out.safetensors", "out.wav", "out.png", "new/")),
        *(("out.npy", number) for number in (errno.ENOTSUP, errno.ENOSYS, errno.ENOSPC)),
        *((name, errno.EIO) for name in ("out.mp4", "out.npy", "out.safetensors", "out.wav", "out.png", "stills/")),
    ],
)
def test_file_systems_without_fsync_lose_nothing_and_failing_ones_neither(here, monkeypatch, name, number):
    def refuse(_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", refuse)
    if number in (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS):
        write(name)
        assert target_of(name).stat().st_size > 50
        return
    is_replaced = name in REPLACED
    if is_replaced:
        Path(name).write_bytes(PRECIOUS)
    text = rf"^{re.escape(name)}: cannot be written \({os.strerror(number)}\); the finished output is kept as (.*)\.$"
    with pytest.raises(WriterError, match=text) as refusal:
        write(name)
    kept = Path(re.match(text, str(refusal.value))[1])
    assert (kept / target_of(name).name if kept.is_dir() else kept).stat().st_size > 50
    files = [path for path in here.rglob("*") if path.is_file()]
    assert len(files) == 1 + is_replaced and (not is_replaced or Path(name).read_bytes() == PRECIOUS)


def test_a_folder_that_cannot_be_read_takes_a_file(here, monkeypatch):
    opened = os.open

    def refuse(path, flags, *more):
        if os.path.isdir(path):
            raise PermissionError(errno.EACCES, "Permission denied")
        return opened(path, flags, *more)

    monkeypatch.setattr(os, "open", refuse)
    write("out.npy")
    assert np.load("out.npy").shape == FRAME.shape


def empty_still(path, *_):
    path.touch()


def test_an_output_that_is_empty_is_an_error(here, monkeypatch):
    """A program reports success and has written nothing."""
    text = r"cannot be written \(what was written is empty; check the free disk space\)"
    Path("out.mp4").write_bytes(PRECIOUS)
    with pytest.raises(WriterError, match=f"^out.mp4: {text}"), VideoWriter("out.mp4", size=SIZE, fps=24) as out:
        out.write(FRAME)
        finish, (part,) = out._ffmpeg.finish, Path().glob(".out.*")
        monkeypatch.setattr(out._ffmpeg, "finish", lambda: (finish(), part.write_bytes(b""))[0])
    assert Path("out.mp4").read_bytes() == PRECIOUS
    monkeypatch.setattr(sink_table, "SINKS", (*sink_table.SINKS, sink_table.stills_kind((".none",), empty_still)))
    for name in ("one.none", "stills/%d.none", "new/%d.none"):
        with pytest.raises(WriterError, match=f"^{name}: {text}"):
            write(name)
    assert sorted(os.listdir()) == ["out.mp4", "stills"] and not os.listdir("stills")


@pytest.mark.parametrize("name", [*REPLACED, *REFUSED])
def test_a_full_disk_is_one_error_with_the_name_of_the_file(small_disk, monkeypatch, name):  # noqa: F811
    (small_disk / "stills").mkdir()
    fill(small_disk)
    with monkeypatch.context() as inside:
        inside.chdir(small_disk)
        with pytest.raises(WriterError, match=rf"^{re.escape(name)}: .*No space left on device"):
            write(name)
    assert sorted(os.listdir(small_disk)) == ["filler", "stills"]


@dataclass(frozen=True)
class MoreOptions(OutputOptions):
    grain: int = 3


def test_an_option_more_is_no_matter_of_videos(here):
    with open_sink("out.mp4", size=SIZE, fps=24, options=MoreOptions(crf=20)) as out:
        out.write(noise(2))
    assert len(read(Path("out.mp4"))) == 2
    with pytest.raises(WriterError, match=r"^out.npy: takes no crf; only \.mp4"):
        open_sink("out.npy", size=SIZE, fps=24, options=MoreOptions(crf=20))


def test_devices_and_pipes_without_an_ending_get_one_sentence_and_links_to_them_work(clip, capsys):
    os.mkfifo("pipe")
    for name in ("/dev/null", "pipe"):
        with pytest.raises(SystemExit) as ended:
            run(decode.main, "clip.safetensors", *VAE, "-o", name)
        assert ended.value.code == 2
        line, *_ = capsys.readouterr().err.splitlines()
        assert line.startswith(f"error: {name}: is a device or a named pipe, ") and f"use -o - > {name} for" in line
    for name in ("null.mp4", "null.npy", "null.png", "null.safetensors"):
        Path(name).symlink_to("/dev/null")
        for overwrite in (None, True, False):
            write(name, overwrite)
        assert Path(name).is_symlink()
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
