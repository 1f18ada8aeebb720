"""Contact sheets: which frames are on them and where, and what is written beside which output."""

import json
import tracemalloc
from pathlib import Path

import imageio.v3 as iio
import mlx.core as mx
import numpy as np
import pytest
from PIL import Image

from commands import decode, preview
from many_files import VAE, failed, names, run
from mlx_ltx_vae import VideoVAE, VideoWriter, WriterError, demo, load_latents, save_latents
from video_files import OutputOptions, numbered, numbers, open_sink, output_files, read, read_metadata, run_ffmpeg

SHEET = OutputOptions(contact_sheet=True)
# Of a sheet, in pixels: the longer side of a picture, the height of its label, and what separates it from others.
LONG_SIDE, LABEL_HEIGHT, GAP = 384, 20, 8
RGB = ["-m", str(demo.LATENT_RGB)]


def write(path, frames, **options):
    size = frames.shape[2], frames.shape[1]
    given = OutputOptions(contact_sheet=True, **options)
    with open_sink(path, size=size, fps=24, options=given, num_frames=len(frames)) as out:
        for start in range(0, len(frames), 7):
            out.write(frames[start : start + 7])


def pictures(path, size, count):
    """The pictures of a sheet of so many, without their labels, in order."""
    sheet = iio.imread(path)
    columns = next(number for number in range(1, 5) if number**2 >= count)
    rows = -(-count // columns)
    width, height = (side * LONG_SIDE // max(size) for side in size)
    assert sheet.shape == (
        rows * (height + LABEL_HEIGHT) + GAP, columns * (width + GAP) + GAP, 3,
    )  # fmt: skip
    tops = [GAP + row * (height + LABEL_HEIGHT) for row in range(rows)]
    lefts = [GAP + column * (width + GAP) for column in range(columns)]
    cells = [sheet[top : top + height, left : left + width] for top in tops for left in lefts]
    background = sheet[0, 0]
    assert all((cell == background).all() for cell in cells[count:])
    for index, (top, left) in enumerate((top, left) for top in tops for left in lefts):  # a label, or nothing
        label = sheet[top + height : top + height + LABEL_HEIGHT, left : left + width]
        assert (label != background).any() == (index < count)
    return np.stack(cells[:count])


@pytest.mark.parametrize(
    ("num_frames", "shown"),
    [
        (1, [0]), (2, [0, 1]), (10, range(10)), (16, range(16)), (17, [*range(15), 16]),
        (46, range(0, 46, 3)), (33, [0, 2, 4, 6, 8, 10, 12, 14, 17, 19, 21, 23, 25, 27, 29, 32]),
    ],
)  # fmt: skip
def test_pictures_are_evenly_spaced_and_in_order(tmp_path, num_frames, shown):
    size = (96, 64) if num_frames > 10 else (64, 96)
    write(tmp_path / "sheet.png", numbered(num_frames, size))
    assert numbers(pictures(tmp_path / "sheet.png", size, len(shown))) == list(shown)


def test_a_picture_is_the_frame_in_another_size(tmp_path):
    gradient = np.broadcast_to(np.arange(0, 192, 1, np.uint8)[None, :, None], (128, 192, 3))
    frames = np.stack([gradient, gradient[:, ::-1]])
    write(tmp_path / "sheet.png", frames)
    first, second = pictures(tmp_path / "sheet.png", (192, 128), 2).astype(int)
    assert np.abs(first[::2, ::2] - gradient).max() <= 1
    assert np.abs(second[::2, ::2] - gradient[:, ::-1]).max() <= 2


def test_sixteen_bits_become_eight(tmp_path):
    frames = numbered(3, (64, 64))
    write(tmp_path / "eight.png", frames)
    write(tmp_path / "sixteen.png", frames.astype(np.uint16) * 257 - 100, bit_depth=10)
    assert np.array_equal(iio.imread(tmp_path / "eight.png"), iio.imread(tmp_path / "sixteen.png"))


def test_labels_are_the_times_of_the_frames(tmp_path):
    """A label depends on nothing but the time: equal times have equal labels, others have others."""

    def labels(name, fps, num_frames):
        """The labels, of at most two columns."""
        with open_sink(tmp_path / name, size=(96, 64), fps=fps, options=SHEET, num_frames=num_frames) as out:
            out.write(numbered(num_frames))
        sheet = iio.imread(tmp_path / name)
        places = (divmod(index, 2) for index in range(num_frames))
        corners = ((GAP + row * (256 + LABEL_HEIGHT) + 256, GAP + column * (LONG_SIDE + GAP)) for row, column in places)
        return [sheet[top : top + LABEL_HEIGHT, left : left + LONG_SIDE].tobytes() for top, left in corners]

    slow, fast = labels("slow.png", 12, 2), labels("fast.png", 24, 3)
    assert slow[0] == fast[0]  # 0.00 s
    assert slow[1] != fast[1]  # 0.08 s and 0.04 s
    assert slow[1] == fast[2]  # frame 2 of 24 per second is frame 1 of 12


def test_no_more_than_the_sheet_is_held(tmp_path):
    frames = numbered(8, (512, 32))  # 0.4 MB
    peaks = []
    for repeats in (4, 40):
        tracemalloc.start()
        out = open_sink(tmp_path / "a.png", size=(512, 32), fps=24, options=SHEET, num_frames=8 * repeats)
        with out:
            for _ in range(repeats):
                out.write(frames.copy())
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        (tmp_path / "a.png").unlink()
    assert peaks[1] < 1.1 * peaks[0]


def test_a_sheet_appears_when_it_is_whole(tmp_path):
    path = tmp_path / "sheet.png"
    with pytest.raises(KeyboardInterrupt), open_sink(path, size=(96, 64), fps=24, options=SHEET, num_frames=3) as out:
        out.write(numbered(3))
        raise KeyboardInterrupt
    assert names(tmp_path) == []
    with (
        pytest.raises(WriterError, match=r"sheet\.png: got 2 frames, not 3"),
        open_sink(path, size=(96, 64), fps=24, options=SHEET, num_frames=3) as out,
    ):
        out.write(numbered(2))
    assert names(tmp_path) == []
    write(path, numbered(3), metadata={"workflow": "{}"})
    assert read_metadata(path) == {"workflow": "{}"}
    with pytest.raises(WriterError, match="a contact sheet needs the number of frames"):
        open_sink(path, size=(96, 64), fps=24, options=SHEET)


@pytest.mark.parametrize(
    ("output", "sheet"),
    [
        ("clip.mp4", "clip.png"), ("a.b/c.d.mkv", "a.b/c.d.png"), ("clip.npy", "clip.png"), ("clip.png", "clip.png"),
        ("frames/", "frames.png"), ("a/b.c/", "a/b.c.png"), ("a/frames/%05d.png", "a/frames.png"),
        ("a/shot_%d.png", "a.png"), ("{name}.mp4", "{name}.png"), ("x/{name}/", "x/{name}.png"),
    ],
)  # fmt: skip
def test_a_sheet_has_the_name_of_its_output(output, sheet):
    assert list(output_files(output, SHEET)) == list(dict.fromkeys([sheet, output]))
    assert list(output_files(output, OutputOptions())) == [output]


@pytest.mark.parametrize("output", ["-", "./", "../", "%05d.png", "/"])
def test_outputs_without_a_name_have_no_sheet(output):
    with pytest.raises(WriterError, match="has no name for a contact sheet; name a file, or a folder for stills"):
        output_files(output, SHEET)


@pytest.fixture
def clips(tmp_path, monkeypatch):
    """A folder with latents of 17 frames of 64x64, and with a batch of two."""
    monkeypatch.chdir(tmp_path)
    latents, _ = load_latents(demo.LATENTS)
    save_latents("one.safetensors", latents[:, :, :3, :2, :2], fps=24)
    save_latents("pair.safetensors", mx.concatenate([latents[:, :, :1, 2:4, :2], latents[:, :, 1:2, :2, :2]]), fps=24)


def written():
    return [name for name in names(".") if not name.endswith(".safetensors")]


def test_decode_writes_a_sheet_beside_a_lossless_video(clips, capsys):
    assert run(decode, "one.safetensors", *VAE, "-o", "clip.mkv", "--codec", "ffv1", "--contact-sheet", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["output"], report["contact_sheet"], report["frames"]) == ("clip.mkv", "clip.png", 17)
    assert written() == ["clip.mkv", "clip.png"]
    frames = read(Path("clip.mkv"))
    sheet = pictures("clip.png", (64, 64), 16)
    for picture, frame in zip(sheet, [*frames[:15], frames[16]], strict=True):
        middles = picture.reshape(64, 6, 64, 6, 3).mean((1, 3))  # enlarged to 384 pixels
        assert np.abs(middles - frame).mean() < 3


def test_a_sheet_alone_and_its_line(clips, capsys):
    assert run(decode, "one.safetensors", *VAE, "-o", "sheet.png", "--contact-sheet") == 0
    assert capsys.readouterr().out.startswith("sheet.png: 17 frames of 64x64")
    assert run(decode, "one.safetensors", *VAE, "-o", "clip.npy", "--contact-sheet") == 0
    assert capsys.readouterr().out.endswith("; contact sheet clip.png\n")
    assert written() == ["clip.npy", "clip.png", "sheet.png"]
    assert Path("sheet.png").read_bytes() == Path("clip.png").read_bytes()


def test_a_batch_and_stills_have_sheets_and_metadata_goes_into_both(clips):
    entry = ["--metadata", "comment=take 3"]
    assert run(decode, "pair.safetensors", *VAE, "-o", "a/clip.mkv", "--contact-sheet", "-q", *entry) == 1  # no folder
    assert run(decode, "pair.safetensors", *VAE, "-o", "clip.mkv", "--contact-sheet", "-q", *entry) == 0
    assert written() == ["clip-0.mkv", "clip-0.png", "clip-1.mkv", "clip-1.png"]
    assert read_metadata(Path("clip-1.png")) == {"comment": "take 3"}
    assert read_metadata(Path("clip-1.mkv"))["COMMENT"] == "take 3"
    assert run(decode, "one.safetensors", *VAE, "-o", "frames/", "--stills", "--contact-sheet", "-q") == 0
    assert len(names("frames")) == 17
    assert pictures("frames.png", (64, 64), 16).shape[0] == 16


@pytest.mark.parametrize(
    ("main", "arguments", "option"),
    [
        *((decode, [*VAE, "--contact-sheet", "-o", "clip.png"], each) for each in ("-q", "-n")),
        *((decode, [*VAE, "--contact-sheet", "-o", name], "-q") for name in ("clip.npy", "clip/%05d.png")),
        (decode, [*VAE, "--contact-sheet", "-o", "clip.mp4"], "-q"),
        (preview, [*RGB, "-o", "clip.png"], "-q"),
    ],
)
def test_no_picture_is_replaced_by_a_sheet(clips, capsys, loads, main, arguments, option):
    Path("clip.png").write_bytes(b"precious")
    command = ["one.safetensors", *arguments, option]
    if option == "-n":
        assert run(main, *command) == 0
    else:
        assert "clip.png: already exists" in failed(capsys, *command, main=main)
    assert Path("clip.png").read_bytes() == b"precious"
    assert not loads


def test_existing_sheets_are_skipped_with_their_videos(clips):
    clip = ["one.safetensors", *VAE, "-o", "clip.npy", "--contact-sheet"]
    assert run(decode, *clip, "-q") == 0
    sheet = Path("clip.png").read_bytes()
    Path("clip.npy").write_bytes(b"old")
    assert run(decode, *clip, "--skip-existing", "-q") == 0
    assert Path("clip.npy").read_bytes() == b"old"
    Path("clip.png").unlink()
    assert run(decode, *clip, "-n", "-q") == 0
    assert Path("clip.png").read_bytes() == sheet
    assert Path("clip.npy").read_bytes() == b"old"


def test_a_folder_of_the_name_is_refused(clips, capsys):
    Path("clip.png").mkdir()
    line = failed(capsys, "one.safetensors", *VAE, "-o", "clip.npy", "--contact-sheet")
    assert line == "error: clip.png: cannot be written (it is a folder)."
    stills = ["--stills", "--contact-sheet", "--frames", ":2"]
    assert run(decode, "one.safetensors", *VAE, "-o", "clip.png/", *stills, "-q") == 0
    assert written() == ["clip.png.png", "clip.png/00000.png", "clip.png/00001.png"]


def test_a_video_that_fails_leaves_no_sheet(clips, monkeypatch, capsys):
    def fail(sink):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(VideoWriter, "_finish", fail)
    assert "No space left" in failed(capsys, "one.safetensors", *VAE, "-o", "clip.mp4", "--contact-sheet")


def test_many_inputs_have_sheets_and_two_of_one_name_are_refused(clips, capsys):
    assert run(decode, "one.safetensors", "pair.safetensors", *VAE, "-o", "out/", "--contact-sheet", "-q") == 0
    stems = ("one", "pair-0", "pair-1")
    assert names("out") == [f"{stem}.{ending}" for stem in stems for ending in ("mp4", "png")]
    Path("clips.csv").write_text("path,output\none.safetensors,a.npy\npair.safetensors,a.gif\n")
    table = ["clips.csv", *VAE, "-o", "new/", "-q"]
    save_latents("pair.safetensors", mx.zeros((1, 64, 1, 2, 2)) + 0.1)
    line = failed(capsys, *table, "--contact-sheet")
    assert "one.safetensors and pair.safetensors would both be written to new/a.png" in line
    assert run(decode, *table) == 0


def test_a_name_without_a_flag_is_one_frame(clips, capsys, loads):
    several = "sheet.png: is one picture, and there are more frames; name a folder (sheet/) or a pattern (%05d.png)"
    assert several in failed(capsys, "one.safetensors", *VAE, "-o", "sheet.png")
    assert several in failed(capsys, "one.safetensors", *VAE, "-o", "sheet.png", "--frames", "5:7", "--dry-run")
    assert not loads
    latents, _ = load_latents("one.safetensors")
    vae = VideoVAE.from_pretrained(demo.VAE, encoder=False)
    with pytest.raises(WriterError) as caught:
        vae.decode_to_file(latents, "sheet.png")
    assert several in str(caught.value)
    assert written() == []


@pytest.mark.parametrize("depth", [8, 10])
def test_one_frame_is_one_picture(clips, capsys, depth):
    size = ["one.safetensors", *VAE, "--bit-depth", depth]
    assert run(decode, *size, "-o", "all/", "--stills", "-q") == 0
    assert run(decode, *size, "-o", "frame.png", "--frames", "5:6", "--metadata", "comment=take 3", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["output"], report["frames"]) == ("frame.png", 1)
    with Image.open("frame.png") as image:
        assert (image.size, image.text) == ((64, 64), {"comment": "take 3"})
    raw = ["-f", "rawvideo", "-pix_fmt", "rgb48le" if depth == 10 else "rgb24", "-"]
    assert run_ffmpeg("-i", "frame.png", *raw) == run_ffmpeg("-i", "all/00005.png", *raw)
    before = Path("frame.png").read_bytes()
    assert "frame.png: already exists" in failed(capsys, *size, "-o", "frame.png", "--frames", "6:7")
    assert run(decode, *size, "-o", "frame.png", "--frames", "6:7", "--skip-existing", "-q") == 0
    assert Path("frame.png").read_bytes() == before


def test_clips_of_one_frame_are_pictures_also_many_and_in_python(clips):
    latents = load_latents("one.safetensors")[0][:, :, :1]
    save_latents("pair.safetensors", mx.concatenate([latents, latents]), fps=24)
    save_latents("one.safetensors", latents, fps=24)
    assert run(decode, "one.safetensors", "pair.safetensors", *VAE, "-o", "out/{name}.png", "-q") == 0
    assert names("out") == ["one.png", "pair-0.png", "pair-1.png"]
    vae = VideoVAE.from_pretrained(demo.VAE, encoder=False)
    vae.decode_to_file(latents, "frame.png")
    assert Path("frame.png").read_bytes() == Path("out/one.png").read_bytes() == Path("out/pair-1.png").read_bytes()
    assert np.array_equal(iio.imread("frame.png"), vae.decode_uint8(latents)[0])
    with pytest.raises(WriterError, match="frame.png: already exists"):
        vae.decode_to_file(latents, "frame.png", overwrite=False)


def test_a_second_frame_of_a_picture_is_an_error_and_leaves_nothing(tmp_path):
    for parts in ([2], [1, 1]):
        with (
            pytest.raises(WriterError, match="is one picture, and there are more frames"),
            open_sink(tmp_path / "a.png", size=(96, 64), fps=24) as out,
        ):
            for count in parts:
                out.write(numbered(count))
    assert names(tmp_path) == []
