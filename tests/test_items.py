"""What arguments, lists and tables name, and what the outputs are called."""

from dataclasses import replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from mlx_ltx_vae.commands.items import Item, all_exist, check_inputs, find_pattern, mark_folders, name_items
from mlx_ltx_vae.commands.items import read_inputs as read
from mlx_ltx_vae.distributed import Ranks
from mlx_ltx_vae.errors import ItemsError

read_inputs = partial(read, of_videos=True)


def write(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    return str(path)


def refusal(function, *arguments) -> str:
    """The one-line error of a call that must fail."""
    with pytest.raises(ItemsError) as error:
        function(*arguments)
    text = str(error.value)
    assert "\n" not in text
    assert text.endswith(".")
    return text


def test_a_list_names_a_file_a_line_relative_to_its_folder(tmp_path):
    absolute = tmp_path / "elsewhere" / "c.npy"
    lines = f"\ufeffa.npy\n\n  # a comment\n  sub/b 1.npy  \r\n{absolute}\n../d.npy\n{tmp_path}/set/sub/a.npy\n"
    (tmp_path / "set").mkdir()
    found = read_inputs(["first.npy", "@" + write(tmp_path / "set" / "clips.txt", lines)])
    folder = str(tmp_path / "set")
    assert found == [
        Item("first.npy", "first"),
        Item(f"{folder}/a.npy", "a", folder=folder),
        Item(f"{folder}/sub/b 1.npy", "b 1", folder=folder),
        Item(str(absolute), "c", folder=folder),
        Item(f"{folder}/../d.npy", "d", folder=folder),
        Item(f"{folder}/sub/a.npy", "a", folder=folder),
    ]


def test_a_table_names_paths_outputs_and_sizes_and_other_columns_are_ignored(tmp_path):
    text = (
        "caption,Media_Path,width,height,num_frames,fps,output\r\n"
        '"a dog, which\nbarks",sub/a.mp4,768,512,121.0,23.976,x/a.safetensors\r\n'
        "plain,b.mp4,,,,,\r\n"
    )
    table = write(tmp_path / "clips.csv", "\ufeff" + text)
    first, second = read_inputs([table])
    folder = str(tmp_path)
    assert first == Item(f"{folder}/sub/a.mp4", "a", "x/a.safetensors", folder, (768, 512), 121, Fraction(24000, 1001))
    assert second == Item(f"{folder}/b.mp4", "b", folder=folder)
    assert read_inputs([f"@{table}"]) == [first, second]
    for given, found in zip([first, second], read_inputs([table], of_videos=False), strict=True):
        assert found == replace(given, size=None, max_frames=None, fps=None)


@pytest.mark.parametrize("column", ["path", "media_path", "video", "video_path", "file", "file_name"])
def test_the_path_has_the_column_names_of_data_sets(tmp_path, column):
    assert [given.name for given in read_inputs([write(tmp_path / "clips.csv", f"{column}\nsub/a.mp4\n")])] == ["a"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "clips.csv: has no column with paths; its first line must name one of path, media_path"),
        ("caption\na.mp4\n", "has no column with paths"),
        ("path,video\na.mp4,b.mp4\n", "has the columns path and video"),
        ("path\n", "clips.csv: names no file"),
        ("path,width\n,64\n", "clips.csv, line 2: has no path"),
        ("path,width\na.mp4,64\n", "line 2: states only one of width and height"),
        ("path,width,height\na.mp4,64,64\nb.mp4,wide,64\n", "line 3: the width 'wide' is not a whole number"),
        ("path,frames\na.mp4,0\n", "line 2: the frames '0' is not a whole number of at least 1"),
        ("path,frames\na.mp4,1.5\n", "line 2: the frames '1.5' is not a whole number"),
        ("path,fps\na.mp4,fast\n", "line 2: 'fast' is not a frame rate"),
        ("path,caption\na.mp4,a dog, barking\n", "line 2: has more values than there are columns; put quotes"),
        ("path\n-\n", "line 2: '-' is not the path of a file"),
        ("path,output\na.npy,-\n", "line 2: '-' is not the path of a file"),
        ("path,output\na.npy,a\0b.mp4\n", r"line 2: 'a\x00b.mp4' is not the path of a file"),
    ],
)
def test_a_wrong_table_is_an_error_that_names_the_line(tmp_path, text, words):
    assert words in refusal(read_inputs, [write(tmp_path / "clips.csv", text)])


def test_a_list_that_cannot_be_read_or_is_empty_is_an_error(tmp_path):
    assert "missing.txt: there is no such list" in refusal(read_inputs, [f"@{tmp_path}/missing.txt"])
    assert "missing.csv: there is no such list" in refusal(read_inputs, [f"{tmp_path}/missing.csv"])
    assert "this folder has no videos (.mp4, " in refusal(read_inputs, [f"@{tmp_path}"])
    assert "names no file" in refusal(read_inputs, ["@" + write(tmp_path / "empty.txt", "# nothing\n\n")])
    (tmp_path / "latin.txt").write_bytes(b"\xe4.npy\n")
    assert "cannot be read as a list in UTF-8" in refusal(read_inputs, [f"@{tmp_path}/latin.txt"])


def test_a_folder_takes_one_output_or_several(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    several = ["a.npy", "b.npy"]
    for name in several:
        (tmp_path / name).touch()
    assert find_pattern(several, "out/", ".mp4") == "out/{name}.mp4"
    assert find_pattern(several, str(tmp_path), ".mp4") == f"{tmp_path}/{{name}}.mp4"
    assert find_pattern(several, "out/{name}/", ".mp4") == "out/{name}/{name}.mp4"
    assert find_pattern(["@clips.txt"], "out/", ".mp4") == "out/{name}.mp4"
    assert find_pattern(["a.npy"], "out/", ".mp4") == "out/{name}.mp4"
    assert find_pattern(["a.npy"], "out/%05d.png", ".mp4") == "out/%05d.png"
    assert find_pattern(several, None, ".mp4") is None
    assert "out.mp4: is one output for several inputs" in refusal(find_pattern, several, "out.mp4", ".mp4")


def test_a_name_with_spaces_that_was_split_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my best clip.npy").touch()
    words = ["a.npy", "my", "best", "clip.npy"]
    expected = "my: there is no such file; write 'my best clip.npy', in quotes."
    for output in (None, "out.mp4"):
        assert refusal(check_inputs, words, output, ".mp4") == expected
    check_inputs(["my best clip.npy", "clip.npy"], None, ".mp4")


def test_a_folder_of_latents_alone_is_a_list_of_inputs_to_encode(tmp_path):
    for name in ("clip2.npy", "clip10.npy", "clip.npy", "notes.txt"):
        (tmp_path / name).touch()

    def sources():
        marked = mark_folders([str(tmp_path)], of_videos=True)
        return [Path(item.source).name for item in read_inputs(marked)]

    assert sources() == ["clip.npy", "clip2.npy", "clip10.npy"]
    (tmp_path / "clip.png").touch()
    assert sources() == [tmp_path.name]
    (tmp_path / "clip.mp4").touch()
    assert sources() == ["clip.mp4"]


def outputs(inputs, pattern):
    return [item.output for item in name_items(inputs, pattern, is_dry_run=False)]


def test_outputs_are_named_after_inputs_unless_the_table_names_them():
    given = [Item("x/a.npy", "a"), Item("set/sub/b.npy", "b", folder="set")]
    named = Item("set/c.npy", "c", output="d/e.mkv", folder="set")
    assert outputs(given, "out/{name}.mp4") == ["out/a.mp4", "out/b.mp4"]
    assert outputs([*given, named], "out/{name}/{name}.gif") == ["out/a/a.gif", "out/b/b.gif", "out/d/e.mkv"]
    assert outputs([named], None) == ["set/d/e.mkv"]
    assert outputs([Item("a.npy", "a")], "clip.mp4") == ["clip.mp4"]
    assert "x/a.npy: has no output; name a folder for it with -o" in refusal(outputs, [*given, named], None)


def test_two_inputs_with_one_output_are_an_error_that_names_both():
    same = [Item("x/a.npy", "a"), Item("b.npy", "b"), Item("y/a.npy", "a")]
    text = refusal(outputs, same, "out/{name}.mp4")
    assert text.startswith("x/a.npy and y/a.npy would both be written to out/a.mp4; ")
    assert "x/a.npy: is among the inputs twice; leave one out" in refusal(outputs, [same[0], same[0]], "out/{name}.mp4")
    assert "x/a.npy and b.npy" in refusal(outputs, [same[0], replace(same[1], output="./a.mp4")], "{name}.mp4")
    assert "a.npy and A.npy would both" in refusal(outputs, [Item("a.npy", "a"), Item("A.npy", "A")], "{name}.mp4")


@pytest.mark.parametrize(
    ("row", "pattern"),
    [
        ("a.npy,{here}/precious.mp4", "out/{name}.mp4"),
        ("a.npy,../precious.mp4", "out/{name}.mp4"),
        ("a.npy,sub/../../precious.mp4", "out/{name}.mp4"),
        ("a.npy,../out-of-here/precious.mp4", "out/{name}.mp4"),  # whose name begins like the folder's
        ("a.npy,link/precious.mp4", "out/{name}.mp4"),
        ("a.npy,link/%05d.png", "out/{name}/"),
        ("a.npy,link/", "out/{name}/"),
        ("a.npy,link.mp4", "out/{name}.mp4"),
        ("a.npy,../precious.mp4", "{name}.mp4"),
        ("a.npy,../precious.mp4", None),
    ],
)
def test_an_output_of_a_table_that_is_outside_the_folder_of_outputs_is_an_error(tmp_path, monkeypatch, row, pattern):
    working = tmp_path / "working"
    (working / "out").mkdir(parents=True)
    (working / "out-of-here").mkdir()
    (working / "out" / "link").symlink_to(tmp_path)
    (working / "out" / "link.mp4").symlink_to(tmp_path / "precious.mp4")
    monkeypatch.chdir(working)
    given = read_inputs([write(Path("clips.csv"), f"path,output\nfirst.npy,b.mp4\n{row.format(here=tmp_path)}\n")])
    text = refusal(outputs, given, pattern)
    assert text.startswith("clips.csv, line 3: its output ")
    assert f"is not inside the folder {'out' if pattern and 'out' in pattern else '.'}; " in text


def test_outputs_of_a_table_may_be_anywhere_inside_the_folder_of_outputs(tmp_path, monkeypatch):
    (tmp_path / "disk" / "deep").mkdir(parents=True)
    (tmp_path / "out").symlink_to(tmp_path / "disk")
    (tmp_path / "disk" / "link").symlink_to(tmp_path / "disk" / "deep")
    monkeypatch.chdir(tmp_path)
    named = [f"{tmp_path}/out/a.mp4", "link/b.mp4", "new/../c.mp4", "./"]
    rows = "".join(f"{index}.npy,{name}\n" for index, name in enumerate(named))
    given = read_inputs([write(Path("clips.csv"), f"path,output\n{rows}")])
    assert outputs(given, "out/{name}.mp4") == [named[0], "out/link/b.mp4", "out/new/../c.mp4", "out/./"]
    monkeypatch.chdir(tmp_path / "out")  # a link that an argument of the command names is the user's
    Path("a.mp4").symlink_to(tmp_path / "elsewhere.mp4")
    assert outputs([Item("a.npy", "a"), Item("b.npy", "b")], "{name}.mp4") == ["a.mp4", "b.mp4"]


def test_outputs_exist_if_all_files_are_there_and_folders_are_not_empty(tmp_path):
    (tmp_path / "stills").mkdir()
    (tmp_path / "a.mp4").touch()
    here = str(tmp_path)
    assert all_exist([f"{here}/a.mp4"])
    assert not all_exist([])
    assert not all_exist([f"{here}/a.mp4", f"{here}/b.mp4"])
    for name in ("stills/", "stills/%05d.png"):
        assert not all_exist([f"{here}/{name}"])
    (tmp_path / "stills" / "00000.png").touch()
    for name in ("stills/", "stills/%05d.png"):
        assert all_exist([f"{here}/{name}"])


def test_items_are_dealt_longest_first_to_the_rank_with_least_to_do():
    two = Ranks(SimpleNamespace(size=lambda: 2, rank=lambda: 1))
    assert two.deal([1, 3, 1, 2]) == [1, 0, 0, 1]
    assert two.deal([5, 1, 1, 1, 1]) == [0, 1, 1, 1, 1]
    assert two.deal([0, 0]) == [0, 0]
    assert Ranks().deal([1, 3]) == [0, 0]
