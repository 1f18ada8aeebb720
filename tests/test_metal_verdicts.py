"""What follows from measurements of a Mac, checked with made-up numbers; and what may be published of them."""

import copy
import getpass
import json
from pathlib import Path

import pytest

from benchmarks.__main__ import main
from benchmarks.metal import pages
from benchmarks.metal.pages import NOTHING_YET, PAGES, ROOT, read_measurements, with_section, write_pages
from benchmarks.metal.verdicts import clip_sums, make_verdicts
from mlx_ltx_vae.bench.decoding import Case
from mlx_ltx_vae.bench.metal_command import compare_with_plan, without_names
from mlx_ltx_vae.errors import LTXVAEError

FORMS = ("the package's rule", "conv3d", "joined", "rows", "joined, MLX's tile batch")


def conv_entries(*layers, **more):
    """Measured convolutions, from seconds of each layer in each of `FORMS`."""
    run = {"in_channels": 256, "out_channels": 512, "grid": [2, 64, 96], "is_normalized": True, "calls": 10}
    run |= {"rule": "joined", "input": 4.0, "output": 500.0} | more
    return [
        {
            "name": form,
            "runs": [{**run, "layer": f"layer {layer}", "seconds": each} for layer, each in enumerate(column)],
        }
        for form, column in zip(FORMS, zip(*layers, strict=True), strict=True)
    ]


def decode_run(name, seconds, *, footprint=3e9, **more):
    run = {**vars(Case()), "name": name, "seconds": seconds, "frames": 49, "first_frame_seconds": 1.0}
    run |= {
        "peak_bytes": 1.5e9,
        "total_peak_bytes": 2e9,
        "peak_footprint_bytes": footprint,
        "start_footprint_bytes": 1e8,
    }
    return run | {"planned_bytes": 2.1e9, "planned_total_bytes": 3e9} | more


def accuracy_run(name, psnr, largest):
    run = decode_run(name, 1.0, psnr=psnr, largest=largest)
    return {key: value for key, value in run.items() if key != "peak_footprint_bytes"}  # which is not sampled


def attention_run(size, seconds):
    return decode_run(f"blocks of {size}", seconds, size=size, is_ours=size == 4)


@pytest.fixture
def document():
    """Measurements of a Mac, all made up, that agree with the package's rules."""
    machine = {"processor": "Apple M9 Max", "memory_bytes": 64 * 2**30, "platform": "macOS-99.1", "mlx": "9.9"}
    case = {"weights": "checkpoint", "model": "/Users/someone/vae.safetensors", "width": 768, "height": 512}
    return {
        "schema": 2,
        "date": "2099-01-31",
        "machine": machine | {"backend": "metal", "device": "Device(gpu, 0)", "preload": ""},
        "case": case | {"frames": 49, "is_quick": False},
        "convolutions": conv_entries((0.8, 1.0, 0.8, 2.0, 0.9), (0.2, 0.4, 0.3, 0.2, 0.3)),
        "attention": [attention_run(size, seconds) for size, seconds in ((3, 2.5), (4, 2.0), (6, 1.95))],
        "decodes": [
            decode_run("as planned", 10.2),
            decode_run("chunk 4", 9.8),
            decode_run("0 steps ahead", 11.0, planned_bytes=None, planned_total_bytes=None),
            *(decode_run(f"cache {limit} GB", 10 + late, cache_limit=limit * 1e9) for limit, late in ((1, 4), (2, 0))),
            decode_run("as planned, again", 10.0),
        ],
        "accuracy": [
            decode_run("reference", 1.0),
            accuracy_run("exact", 47.5, 0.05),
            accuracy_run("bfloat16 given", 47.0, 0.05),
            accuracy_run("bfloat16 in Winograd", 44.0, 0.14),
        ],
        "errors": [],
    }


def verdict(document, question):
    (found,) = (each for each in make_verdicts(document) if each.question == question)
    return found.agrees, str(found)


def test_a_mac_that_agrees_changes_nothing(document):
    assert [str(each) for each in make_verdicts(document) if each.agrees is False] == []
    assert verdict(document, "joined frames") == (True, "joined frames: 21 % faster than mx.conv3d: keep")


@pytest.mark.parametrize(("several", "agrees"), [(0.8, True), (0.77, True), (0.6, False)])
def test_winograd_takes_a_frame_at_a_time_unless_that_is_slower(document, several, agrees):
    document["convolutions"] = conv_entries((0.8, 1.0, 0.8, 2.0, several))
    found, text = verdict(document, "Winograd a frame at a time")
    assert found is agrees
    assert ("33 % slower than as many as MLX takes: backend/device.py: leave" in text) is not agrees


@pytest.mark.parametrize(("seconds", "agrees"), [(10.0, True), (7.0, False)])
def test_a_decode_with_the_tile_batch_of_mlx_tells_whether_ours_is_right(document, seconds, agrees):
    document["decodes"].append(decode_run("MLX's tile batch", seconds))
    found, text = verdict(document, "decode with MLX's tile batch")
    assert found is agrees
    assert ("leave MLX_CONV_WINOGRAD_TILE_BATCH unset" in text) is not agrees


def test_joined_frames_must_gain_five_percent(document):
    document["convolutions"] = conv_entries((0.97, 1.0, 0.97, 2.0, 0.97))
    agrees, text = verdict(document, "joined frames")
    assert not agrees and text.endswith("3 % faster than mx.conv3d: rules.py: take CONV3D in place of JOINED")


@pytest.mark.parametrize(
    ("rule", "joined", "rows", "change"),
    [
        (0.8, 0.8, 2.0, None),
        (0.84, 0.8, 2.0, None),  # by less than noise
        (1.2, 1.2, 2.0, "conv3d for layer 1 (17 % faster than joined)"),
        (0.8, 0.8, 0.6, "rows for layer 1 (25 % faster than joined)"),
    ],
)
def test_the_rule_is_held_against_the_times_of_each_convolution(document, rule, joined, rows, change):
    document["convolutions"] = conv_entries((0.8, 1.0, 0.8, 2.0, 0.9), (rule, 1.0, joined, rows, 0.1))
    found, text = verdict(document, "the rule")
    assert found is (change is None)
    assert text.startswith(f"the rule: fits {2 if found else 1} of 2 convolutions")
    assert found or text.endswith(f": rules.py: {change}")


def test_sums_are_of_all_convolutions_and_of_the_best_formulations(document):
    sums = clip_sums(document)
    assert sums == pytest.approx(
        {
            "the package's rule": 1.0,
            "conv3d": 1.4,
            "joined": 1.1,
            "rows": 2.2,
            "joined, MLX's tile batch": 1.2,
            "the best of each layer": 1.0,
        }
    )
    assert clip_sums(document | {"convolutions": []}) == {}


@pytest.mark.parametrize(("seconds", "agrees"), [(3.0, True), (1.95, True), (1.5, False)])
def test_the_blocks_of_the_attention_are_kept_unless_others_are_faster(document, seconds, agrees):
    document["attention"][-1] = attention_run(6, seconds)
    found, text = verdict(document, "blocks of attention")
    assert found is agrees
    assert "4 queries along each axis take 2.00 s" in text
    assert ("6 are 25 % faster" in text) is ("blocks of 6" in text) is not agrees
    document["machine"]["backend"] = "cuda"
    assert verdict(document, "blocks of attention")[0] is None  # the rule for Macs is not judged there


def test_decodes_are_compared_with_the_faster_run_as_planned(document):
    assert verdict(document, "decode with chunk 4") == (
        True,
        "decode with chunk 4: 2 % faster than as planned, 1.00 of its peak: keep",
    )
    document["decodes"][1]["seconds"] = 9.0
    agrees, text = verdict(document, "decode with chunk 4")
    assert not agrees and text.endswith("planning/clip.py: chunks of 4 latent frames")


def test_the_smallest_cache_limit_without_loss_is_found(document):
    assert verdict(document, "cache limits")[0] is True
    document["decodes"].append(decode_run("cache 4 GB", 7.0, cache_limit=4e9))
    agrees, text = verdict(document, "cache limits")
    assert not agrees and "4 GB is enough" in text and "COMFORTABLE_CACHE_BYTES = 4_000_000_000" in text


def test_peak_and_footprint_are_held_against_the_plan(document):
    assert verdict(document, "MLX's peak")[0] is verdict(document, "the footprint")[0] is True
    document["decodes"][0] |= {"total_peak_bytes": 2.2e9, "peak_footprint_bytes": 3.5e9}
    assert verdict(document, "MLX's peak")[0] is verdict(document, "the footprint")[0] is False


def test_a_document_compares_itself_with_the_plan_of_each_mode(document):
    document["accuracy"].append(decode_run("single pass", 1.0, mode="single", planned_bytes=4e9))
    found = compare_with_plan(document)
    assert [(each["mode"], each["decodes"], each["planned_per_measured"]) for each in found["modes"]] == [
        ("exact by auto", 9, 1.05),
        ("single", 1, 2.0),
    ]
    assert found["modes"][0]["planned_per_measured_footprint"] == round(3 / 2.9, 3)
    assert found["agrees"] is True
    agreed = "This machine agrees with the plan: planned / measured memory is 1.05 exact by auto, 2.00 single."
    assert found["verdict"] == agreed
    document["accuracy"][-1]["total_peak_bytes"] = 4.4e9
    found = compare_with_plan(document)
    assert (found["agrees"], found["modes"][1]["planned_per_measured"]) == (False, 0.909)
    assert (
        "the decode 'single pass' (single) took 4.40 GB of MLX's memory, and 4.00 GB were planned" in found["verdict"]
    )
    document["accuracy"][-1] |= {"total_peak_bytes": 3.9e9, "peak_footprint_bytes": 4e9}
    assert (
        "the footprint of the decode 'single pass' (single) was 1.30 of the" in compare_with_plan(document)["verdict"]
    )
    document["machine"]["backend"] = "cpu"  # where the footprint is that of the whole process
    assert compare_with_plan(document)["agrees"] is True
    assert compare_with_plan(document | {"decodes": [], "accuracy": []})["agrees"] is None


@pytest.mark.parametrize(("psnr", "largest", "agrees"), [(47.5, 0.05, True), (45.0, 0.05, False), (47.5, 0.11, False)])
def test_accuracy_is_held_against_operands_in_bfloat16(document, psnr, largest, agrees):
    """An rms of 1.2 times, which are 1.6 dB, or twice the largest error."""
    document["accuracy"][1:] = [accuracy_run("exact", psnr, largest), document["accuracy"][2]]
    assert verdict(document, "the decode's accuracy")[0] is agrees
    document["accuracy"][1]["name"] = "bfloat16 in Winograd"
    found, text = verdict(document, "bfloat16 in Winograd")
    assert found is not agrees  # it is taken for inaccurate on a Mac
    assert text.endswith("allow Winograd for bfloat16") is agrees


def test_the_range_tells_whether_float16_is_safe_for_real_weights_only(document):
    assert verdict(document, "the largest number")[1].endswith("500 at layer 1: float16 throughout is safe")
    run = document["convolutions"][0]["runs"][0]
    run["output"] = 7000.0
    assert "not safe (limit 6000)" in verdict(document, "the largest number")[1]
    document["case"]["weights"] = "random"
    assert "safe" not in verdict(document, "the largest number")[1]
    run["input"] = None
    assert verdict(document, "the largest number")[0] is False


def test_parts_that_failed_are_no_verdicts(document, tmp_path, capsys):
    for part in ("convolutions", "decodes", "accuracy", "attention"):
        document[part] = [{**vars(Case()), "name": "as planned", "error": "stopped"}]
    assert make_verdicts(document) == []
    path = tmp_path / "mac.json"
    path.write_text(json.dumps(document))
    assert main(["metal", str(path)]) == 0
    assert capsys.readouterr().out.count("failed") == 3


def test_a_file_of_a_mac_is_judged_printed_and_submitted(document, tmp_path, monkeypatch, capsys):
    path, folder = tmp_path / "mac.json", tmp_path / "docs" / "measurements"
    folder.mkdir(parents=True)
    path.write_text(json.dumps(document))
    for name in PAGES:
        (tmp_path / name).write_text("<!-- measurements --><!-- end of measurements -->")
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    assert main(["metal", str(path)]) == 0
    printed = capsys.readouterr().out
    for part in ("Apple M9 Max, 68.7 GB, macOS-99.1", "| conv3d ", "| 1.400", "- joined frames: 21 % faster"):
        assert part in printed
    assert list(folder.iterdir()) == []
    assert main(["metal", str(path), "--submit"]) == 0
    (submitted,) = folder.iterdir()
    assert submitted.name == "apple-m9-max-2099-01-31.json"
    assert read_measurements(folder) == [without_names(document)]
    assert "| Apple M9 Max |" in (tmp_path / "README.md").read_text()


def test_a_submission_has_no_paths_and_no_names(document):
    home, user = Path.home(), getpass.getuser()
    error = f"{home}/x/vae.safetensors: cannot be read by {user} (~/y, /tmp/z); 3 GB/s"
    document["errors"] = [{"part": "ranges", "name": "ranges", "error": error}]
    document["machine"]["preload"] = "/usr/lib/libopenblas.so"
    before = copy.deepcopy(document)
    public = without_names(document)
    assert document == before
    assert "model" not in public["case"]
    assert public["errors"][0]["error"] == "(a path): cannot be read by (a name) ((a path), (a path)); 3 GB/s"
    assert public["machine"] == document["machine"] | {"preload": "(a path)"}


def test_the_committed_pages_are_what_the_script_makes_of_the_measurements():
    documents = read_measurements(ROOT / "docs" / "measurements")
    for name, make in PAGES.items():
        page = (ROOT / name).read_text()
        assert with_section(page, make(documents)) == page, "run python -m benchmarks measurements"
        assert documents or NOTHING_YET in page


def test_pages_show_the_macs_that_were_submitted(document, tmp_path):
    for name in PAGES:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("before\n<!-- measurements -->\nold\n<!-- end of measurements -->\nafter\n")
    folder = tmp_path / "docs" / "measurements"
    folder.mkdir()
    assert write_pages(tmp_path) == list(PAGES) and write_pages(tmp_path) == []
    assert "before\n<!-- measurements -->\n\nNo Mac has been measured yet." in (tmp_path / "README.md").read_text()
    path = folder / "apple-m9-max-2099-01-31.json"
    path.write_text(json.dumps(without_names(document)))
    failed = document["convolutions"][:1] + [{**document["convolutions"][1], "error": "stopped"}]
    other = document | {"date": "2099-02-01", "convolutions": failed}
    (folder / "apple-m9-max-2099-02-01.json").write_text(json.dumps(without_names(other)))
    assert write_pages(tmp_path) == list(PAGES)
    readme, performance = ((tmp_path / name).read_text() for name in PAGES)
    assert "| Apple M9 Max | 64 GB  | macOS-99.1, MLX 9.9 | 2099-01-31 |" in readme and "| 10.00 " in readme
    assert "Apple M9 Max, 64 GB, macOS-99.1, MLX 9.9, 2099-01-31:\n\n- joined frames" in performance
    assert readme.endswith("\n\n<!-- end of measurements -->\nafter\n") and "old" not in readme


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"schema": 1}, "has the schema 1; this version reads 2"),
        ({"machine": {"backend": "cpu", "processor": "EPYC"}}, "was measured on cpu, not on Apple's GPU"),
        ({"case": {"is_quick": True, "width": 768, "height": 512}}, "is not a whole measurement of 768x512"),
        ({"case": {"is_quick": False, "width": 64, "height": 64}}, "is not a whole measurement of 768x512"),
        (
            {"machine": {"backend": "metal", "processor": "Apple Paravirtual device"}},
            "was measured on a virtual machine",
        ),
        ({"machine": None}, "is not a file that bench --metal --save wrote"),
    ],
)
def test_other_files_among_the_measurements_are_named(document, tmp_path, change, complaint):
    (tmp_path / "x.json").write_text(json.dumps(document | change))
    with pytest.raises(LTXVAEError, match=f"x.json: {complaint}"):
        read_measurements(tmp_path)


def test_submissions_are_checked_by_their_names_whatever_characters_these_have(document, tmp_path, capsys):
    """As the workflow does: git's names, each ended by NUL, as arguments."""
    folder = tmp_path / "a b" / "it's\nhere"
    folder.mkdir(parents=True)
    document["plan"] = compare_with_plan(document)
    good = folder / "apple-m9-max-2099-01-31.json"
    good.write_text(json.dumps(without_names(document)))
    page = folder / "README.md"
    page.touch()
    assert main(["check-measurements", "--", str(good), str(page)]) == 0
    assert capsys.readouterr().out == "1 measurement, as submitted\n"
    wrong = {
        "apple-m9-max-2099-01-30.json": (
            document,
            "has the name of another machine or day; expected apple-m9-max-2099-",
        ),
        good.name: (document, "has paths or names"),
        "--debug.json": (without_names(document), "has the name of another machine"),
        "x.json": ({**without_names(document), "decodes": [{}]}, "lacks what bench --metal --submit writes"),
        "virtual.json": ({**without_names(document), "is_virtual": True}, "was measured on a virtual machine"),
        "edited.json": (
            {**without_names(document), "decodes": [decode_run("as planned", 9.0)]},
            "is not edited by hand",
        ),
        "nan.json": (document | {"date": float("nan")}, "NaN is no JSON"),
        "run.sh": ({}, "is no measurement"),
    }
    for name, (content, complaint) in wrong.items():
        content = without_names(content) if "2099-01-30" in name else content
        (folder / name).write_text(json.dumps(content))
        assert main(["check-measurements", "--", str(folder / name)]) == 1, name
        assert complaint in capsys.readouterr().err
