"""Failures while reading: a one-line error, no process and no temporary files left behind."""

import os
import shutil
from pathlib import Path

import imageio.v3 as iio
import numpy as np
import pytest

from mlx_ltx_vae import Fit, ReaderError, VideoReader, demo
from video_files import children, noise, numbered, read, refusal, run_ffmpeg, save_images, write


def test_error_for_a_size_that_does_not_fit_lists_the_options(tmp_path: Path) -> None:
    path = write(tmp_path / "clip.mkv", numbered(1, (100, 49)), codec="ffv1")
    text = refusal(path)
    assert text.startswith(f"{path}: is 100x49, and both sides must be multiples of 32; ")
    for option in ("96x64 (fit=Fit.RESIZE)", "96x32 (fit=Fit.CROP)", "(size=)"):
        assert option in text
    assert "not 128x64" in refusal(path, size=(128, 64))
    assert "100x50; both sides must be multiples of 32" in refusal(path, size=(100, 50), fit=Fit.RESIZE)
    small = write(tmp_path / "small.mkv", numbered(1, (100, 20)), codec="ffv1")
    assert "100x20 cannot be cropped to multiples of 32; resize it to 96x32" in refusal(small, fit=Fit.CROP)
    assert "CROP" not in refusal(small)


@pytest.mark.quick(3)
@pytest.mark.parametrize(("ending", "codec"), [(".mp4", "h264"), (".mkv", "h264"), (".mkv", "ffv1"), (".gif", None)])
@pytest.mark.parametrize("is_cut", [True, False])
def test_damaged_video_is_an_error(tmp_path: Path, ending: str, codec: str, is_cut: bool) -> None:
    path = tmp_path / f"clip{ending}"
    write(path, noise(60), **({} if codec is None else {"codec": codec}))
    whole = bytearray(path.read_bytes())
    middle = len(whole) * 6 // 10
    if is_cut:
        del whole[middle:]
    else:
        whole[middle : middle + 3000] = b"\xde\xad\xbe\xef\x01\x02" * 500
    path.write_bytes(whole)
    with VideoReader(path) as video:
        count = 0
        with pytest.raises(ReaderError, match="clip.*damaged or truncated; ffmpeg says: "):
            for frames in video:
                count += len(frames)
        assert list(video) == [], "it is closed"
    if ending == ".mp4":  # in other formats ffmpeg only logs the error
        assert count < 50, "frames after the damage are not read"


def test_inputs_that_are_not_videos_are_refused(tmp_path: Path) -> None:
    text = tmp_path / "note.txt"
    text.write_text("some words\n" * 200)
    fake = tmp_path / "fake.mp4"
    shutil.copy(text, fake)
    audio, song = tmp_path / "audio.wav", tmp_path / "song.m4a"
    run_ffmpeg("-f", "lavfi", "-i", "sine=d=1", audio)
    cover = tmp_path / "cover.png"
    iio.imwrite(cover, noise(1)[0])
    run_ffmpeg("-i", audio, "-i", cover, "-map", 0, "-map", 1, "-c:v", "copy", "-disposition:v", "attached_pic", song)
    empty, pictures = tmp_path / "empty", tmp_path / "kinds"
    empty.mkdir()
    save_images(pictures, ["1.png", "2.jpg"])
    save_images(tmp_path, ["n1.png", "n3.png"])
    np.savez(tmp_path / "clip.npz", latents=np.zeros((1, 128, 1, 1, 1), np.float32))
    shutil.copy(demo.LATENTS, tmp_path / "clip.mp4")  # whatever it is called
    os.mkfifo(tmp_path / "pipe.npy")
    for path, words in [
        (demo.LATENTS, "contains arrays, and no video; name the file of latents to encode them, or use decode"),
        (tmp_path / "clip.npz", "contains arrays"),
        (tmp_path / "clip.mp4", "contains arrays"),
        (tmp_path / "missing.mp4", "there is no such file or folder"),
        (tmp_path / "pipe.npy", "is a named pipe, and a video is a file"),
        (text, "is text, not a video"),
        (fake, "contains no video that ffmpeg can read"),
        (audio, "contains no video stream"),
        (song, "contains no video stream"),
        (empty, "contains no images (.png, .jpg"),
        (pictures, "images of several kinds (jpg, png)"),
        (tmp_path / "m%d.png", "no image matches this pattern"),
        (tmp_path / "n%d_%d.png", "one number"),
        (tmp_path / "n%s.png", "one number"),
    ]:
        assert refusal(path).startswith(f"{path}: ")
        assert words in refusal(path)
    assert refusal(tmp_path / "n%d.png") == f"{tmp_path}/n2.png: is missing between n1.png and n3.png."


def damage(image: Path, how: str) -> None:
    """Make an image unreadable."""
    if how == "broken link":
        image.unlink()
        image.symlink_to(image.parent / "nowhere.png")
    elif how == "jpeg":
        iio.imwrite(image, noise(1)[0], plugin="pillow", extension=".jpg")
    else:
        png = image.read_bytes()
        image.write_bytes({"empty": b"", "cut": png[: len(png) // 2], "text": b"not an image\n" * 20}[how])


@pytest.mark.parametrize(
    ("how", "position", "name"),
    [
        *((how, position, "{}.png") for how in ("empty", "cut", "text", "jpeg") for position in (0, 10)),
        *((how, 10, "a_%05d.png") for how in ("empty", "text")),
    ],
)
def test_unreadable_image_is_an_error_that_names_it(tmp_path: Path, how: str, position: int, name: str) -> None:
    is_pattern = "%" in name
    images = [name % number if is_pattern else name.format(number) for number in range(20)]
    save_images(tmp_path / "stills", images)
    damage(tmp_path / "stills" / images[position], how)
    text = refusal(tmp_path / "stills" / name if is_pattern else tmp_path / "stills")
    assert text.startswith(f"{tmp_path}/stills/{images[position]}: ")


def test_empty_image_and_broken_link_are_refused_before_anything_is_read(tmp_path: Path) -> None:
    save_images(tmp_path, ["1.png", "2.png", "3.png"])
    damage(tmp_path / "3.png", "empty")
    with pytest.raises(ReaderError, match=r"3\.png: is empty; remove it"):
        VideoReader(tmp_path)
    damage(tmp_path / "3.png", "broken link")
    with pytest.raises(ReaderError, match=r"3\.png: cannot be read \(No such file or directory\)"):
        VideoReader(tmp_path)


def test_image_that_disappears_while_others_are_read_is_an_error(tmp_path: Path) -> None:
    save_images(tmp_path, ["0.png"], (512, 512))
    for number in range(1, 200):  # ffmpeg reads more than 100 small files ahead
        shutil.copy(tmp_path / "0.png", tmp_path / f"{number}.png")
    with VideoReader(tmp_path) as video:
        next(video)
        (tmp_path / "195.png").unlink()
        with pytest.raises(ReaderError, match=r"195\.png: "):
            list(video)


def test_unreadable_image_after_the_last_requested_one_does_not_matter(tmp_path: Path) -> None:
    frames = save_images(tmp_path, [f"{number}.png" for number in range(12)])
    damage(tmp_path / "9.png", "empty")
    damage(tmp_path / "10.png", "text")
    np.testing.assert_array_equal(read(tmp_path, max_frames=9), frames[:9])


@pytest.mark.parametrize("fit", Fit)
def test_images_of_different_sizes_are_refused(tmp_path: Path, fit: Fit) -> None:
    for index, size in enumerate([(96, 64), (96, 64), (192, 128), (96, 64)]):
        iio.imwrite(tmp_path / f"{index}.png", noise(1, size)[0])
    assert refusal(tmp_path, fit=fit) == (f"{tmp_path}: its frames have different sizes; the first is 96x64.")


@pytest.mark.quick(2)
@pytest.mark.parametrize("leave", ["close", "error", "interrupt"])
def test_leaving_early_ends_ffmpeg_and_removes_the_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leave: str
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    save_images(tmp_path / "stills", [f"{number}.png" for number in range(60)], (512, 512))
    problem = {"close": None, "error": ValueError, "interrupt": KeyboardInterrupt}[leave]
    try:
        with VideoReader(tmp_path / "stills") as video:
            assert len(next(video)) == 8
            assert len(children()) == 1, "it waits until the next frames are read"
            assert len(list((tmp_path / "temporary").iterdir())) == 1
            if problem:
                raise problem
            video.close()
            assert list(video) == []
    except (ValueError, KeyboardInterrupt) as error:
        assert type(error) is problem
    assert children() == [], "not even as a zombie"
    assert list((tmp_path / "temporary").iterdir()) == []


def test_refused_images_leave_no_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    save_images(tmp_path / "stills", ["1.png"], (100, 70))
    with pytest.raises(ReaderError) as refusal:
        VideoReader(tmp_path / "stills")
    assert list((tmp_path / "temporary").iterdir()) == [], "while the traceback still holds the reader"
    assert "100x70" in str(refusal.value)


def test_interrupt_while_reading_ends_ffmpeg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> int:
        raise KeyboardInterrupt

    video = VideoReader(write(tmp_path / "clip.mp4", numbered(3)))
    monkeypatch.setattr(os, "readv", interrupted)
    with pytest.raises(KeyboardInterrupt):
        next(video)
    assert children() == []
