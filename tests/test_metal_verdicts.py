"""What follows from measurements of a Mac, checked with made-up numbers; and what may be published of them."""

import copy
import getpass
import json
from pathlib import Path

import pytest

from benchmarks.__main__ import main
from benchmarks.metal import pages
from benchmarks.metal.pages import NOTHING_YET, PAGES, ROOT, read_measurements, with_section, without_names, write_pages
from benchmarks.metal.sums import clip_sums, wanted_form, winograd_ratios
from benchmarks.metal.verdicts import make_verdicts
from mlx_ltx_vae.errors import LTXVAEError

FORMS = ("conv3d", "joined", "joined, tile batch 1", "joined, no Winograd", "rows")


def conv_entry(bfloat16, float16, *, rule=("rows", "joined"), calls=10, operands="float16", winograd=5.0, largest=5.0):
    """A measured convolution, from milliseconds of each of `FORMS`; None for a form that failed."""
    runs = []
    for dtype, milliseconds in (("bfloat16", bfloat16), ("float16", float16)):
        for form, each in zip(FORMS, milliseconds, strict=True):
            run = {"dtype": dtype, "form": form, "error": "out of memory"}
            if each is not None:
                by_winograd = dtype == "bfloat16" and form in ("joined", "joined, tile batch 1", "conv3d")
                run = {"dtype": dtype, "form": form, "seconds": each / 1e3}
                run |= {"rms": 0.01 * (winograd if by_winograd else 1), "scratch_bytes": 2e6}
                run |= {"largest": 0.1 * (largest if by_winograd else 1), "planned_scratch_bytes": 3e6}
            runs.append(run)
    kind = {"in_channels": 256, "out_channels": 512, "height": 64, "width": 96, "frames": 2, "calls": calls}
    rules = dict(zip(("bfloat16", "float16"), rule, strict=True))
    return {**kind, "is_normalized": True, "runs": runs, "rule": rules, "operands": operands}


def decode_run(name, seconds, *, footprint=3e9, **more):
    run = {"name": name, "seconds": seconds, "frames": 49, "first_frame_seconds": 1.0, "total_peak_bytes": 2e9}
    run |= {"planned_bytes": 2.1e9, "planned_total_bytes": 3e9, "peak_footprint_bytes": footprint}
    return run | {"start_footprint_bytes": 1e8, "cache_limit": None} | more


def accuracy_run(name, psnr, largest):
    return {"name": name, "psnr": psnr, "largest": largest}


def attention_run(size, milliseconds):
    run = {"grid": [49, 128, 8], "size": size, "is_ours": size == 4, "seconds": milliseconds / 1e3}
    return run | {"scratch_bytes": 1e8}


@pytest.fixture
def document():
    """Measurements of a Mac, all made up, that agree with the package's rules."""
    machine = {"processor": "Apple M9 Max", "memory_bytes": 64 * 2**30, "platform": "macOS-99.1", "mlx": "9.9"}
    case = {"weights": "checkpoint", "model": "/Users/someone/vae.safetensors", "width": 768, "height": 512}
    return {
        "schema": 1,
        "date": "2099-01-31",
        "machine": machine | {"backend": "metal", "device": "Device(gpu, 0)", "preload": ""},
        "case": case | {"frames": 49, "is_quick": False},
        "convolutions": [conv_entry((10, 8, 8, 20, 12), (10, 8, 8, 20, 12))],
        "elementwise": [
            {"shape": [2, 64, 96, 256], "operation": name, "is_ours": ours, "seconds": seconds, "gb_per_second": 100.0}
            for name, ours, seconds in (("norm", True, 1e-3), ("norm in plain operations", False, 2e-3))
        ],
        "attention": [attention_run(size, milliseconds) for size, milliseconds in ((3, 25), (4, 20), (6, 19.5))],
        "decodes": [
            decode_run("as planned", 10.2),
            decode_run("chunk 4", 9.8),
            decode_run("0 steps ahead", 11.0),
            *(decode_run(f"cache {limit} GB", 10 + late, cache_limit=limit * 1e9) for limit, late in ((1, 4), (2, 0))),
            decode_run("as planned, again", 10.0),
        ],
        "accuracy": [accuracy_run("exact", 47.5, 0.05), accuracy_run("bfloat16 given", 47.0, 0.05)],
        "ranges": [
            {"layer": "conv_in", "channels": [128, 1024], "is_normalized": False, "input": 4.0, "output": 500.0}
        ],
        "errors": [],
    }


def verdict(document, question):
    (found,) = (each for each in make_verdicts(document) if each.question == question)
    return found.agrees, str(found)


def test_a_mac_that_agrees_changes_nothing(document):
    assert [str(each) for each in make_verdicts(document) if each.agrees is False] == []
    assert verdict(document, "joined frames, float16") == (
        True,
        "joined frames, float16: 20 % faster than mx.conv3d: keep",
    )


@pytest.mark.parametrize(("single", "agrees"), [(8, True), (8.3, True), (10.4, False)])
def test_winograd_takes_a_frame_at_a_time_unless_that_is_slower(document, single, agrees):
    document["convolutions"] = [conv_entry((10, 8, 8, 20, 12), (14, 8, single, 20, 12))]
    found, text = verdict(document, "Winograd a frame at a time, float16")
    assert found is agrees
    assert (": keep" in text) is agrees
    assert ("30 % slower than as many as MLX takes: backend/device.py: leave" in text) is not agrees


@pytest.mark.parametrize(("seconds", "agrees"), [(10.0, True), (7.0, False)])
def test_a_decode_with_the_tile_batch_of_mlx_tells_whether_ours_is_right(document, seconds, agrees):
    document["decodes"].append(decode_run("MLX's tile batch", seconds))
    found, text = verdict(document, "decode with MLX's tile batch")
    assert found is agrees
    assert ("leave MLX_CONV_WINOGRAD_TILE_BATCH unset" in text) is not agrees


def test_the_rule_is_summed_and_judged_as_the_package_runs_it():
    entry = conv_entry((10, 8, 8, 20, 12), (10, 8, 13, 20, 12))  # a frame at a time takes longer
    assert clip_sums([entry])["float16", "the package's rule"] == pytest.approx(0.13)
    assert wanted_form(entry, "float16", avoids_winograd=False) == "conv3d"


def test_joined_frames_must_gain_five_percent(document):
    document["convolutions"] = [conv_entry((10, 9.7, 9.7, 20, 12), (10, 9.7, 9.7, 20, 12))]
    agrees, text = verdict(document, "joined frames, float16")
    assert not agrees and text.endswith("3 % faster than mx.conv3d: rules.py: take CONV3D in place of JOINED")


@pytest.mark.parametrize(
    ("float16", "wanted", "agrees"),
    [
        ((10, 8, 8, 20, 12), "joined", True),
        ((10, 9.6, 9.6, 20, 12), "conv3d", True),  # which is faster by less than noise
        ((10, 11, 11, 20, 12), "conv3d", False),
        ((10, 8, 8, 20, 7), "rows", False),
        ((10, 8, 8, 20, 7.9), "rows", True),
        ((10, None, None, 20, 12), "conv3d", None),
        ((10, 8, 8, 20, None), "joined", True),
    ],
)
def test_the_rule_is_held_against_the_times_of_each_convolution(document, float16, wanted, agrees):
    entry = conv_entry((10, 8, 8, 20, 12), float16)
    assert wanted_form(entry, "float16", avoids_winograd=False) == wanted
    document["convolutions"] = [entry]
    if agrees is None:
        assert "the rule" not in [each.question for each in make_verdicts(document)]
    else:
        found, text = verdict(document, "the rule")
        assert found is agrees
        assert (f"rules.py: {wanted} for 256->512 96x64 x2 in float16" in text) == (not agrees)


def test_inaccurate_winograd_is_no_choice_in_bfloat16(document):
    times = (6, 5, 5, 20, 12)
    entry = conv_entry(times, times, operands="bfloat16")
    document["convolutions"] = [entry]
    assert verdict(document, "the rule")[0] is True  # rows, although joined frames are faster
    document["convolutions"] = [conv_entry(times, times, operands="bfloat16", winograd=1.1, largest=1.5)]
    assert verdict(document, "the rule")[0] is False


@pytest.mark.parametrize(
    ("rms", "largest", "agrees"), [(5, 5, True), (1.25, 1, True), (1, 2.1, True), (1.15, 1.9, False)]
)
def test_winograd_in_bfloat16_is_inaccurate_beyond_either_limit(document, rms, largest, agrees):
    times = (10, 8, 8, 20, 12)
    document["convolutions"] = [conv_entry(times, times, winograd=rms, largest=largest)]
    assert winograd_ratios(document["convolutions"]) == pytest.approx((rms, largest))
    found, text = verdict(document, "bfloat16 in Winograd")
    assert found is agrees
    assert ("precision.py: keep operands in bfloat16" in text) == (not agrees)


def test_sums_count_calls_and_need_every_convolution():
    entries = [
        conv_entry((10, 8, 8, 20, 12), (5, 4, 4, 10, 6), calls=10),
        conv_entry((1, 2, 2, 3, None), (1, 2, 2, 3, 4), calls=100, rule=("conv3d", "rows"), operands="bfloat16"),
    ]
    sums = clip_sums(entries)
    assert sums["bfloat16", "conv3d"] == pytest.approx(0.1 + 0.1)
    assert ("bfloat16", "rows") not in sums
    assert sums["bfloat16", "the best of each layer"] == pytest.approx(0.08 + 0.1)
    assert sums["bfloat16", "the package's rule"] == pytest.approx(0.12 + 0.1)
    assert sums["float16", "the package's rule"] == pytest.approx(0.04 + 0.4)
    assert sums["bfloat16 network", "the package's rule"] == pytest.approx(0.04 + 0.1)


@pytest.mark.parametrize(("milliseconds", "agrees"), [(30, True), (19.5, True), (15, False)])
def test_the_blocks_of_the_attention_are_kept_unless_others_are_faster(document, milliseconds, agrees):
    document["attention"][-1] = attention_run(6, milliseconds)
    found = next(each for each in make_verdicts(document) if each.question == "blocks of attention")
    assert found.agrees is agrees
    assert "4 queries along each axis take 20.0 ms" in found.answer
    assert ("6 are 25 % faster" in found.answer) is not agrees
    assert "blocks of 6" in str(found) or agrees
    document["machine"]["backend"] = "cuda"
    assert verdict(document, "blocks of attention")[0] is None  # the rule for Macs is not judged there
    del document["attention"]  # of a file of an earlier version
    assert not any(each.question == "blocks of attention" for each in make_verdicts(document))


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


def test_accuracy_is_held_against_operands_in_bfloat16(document):
    assert verdict(document, "the decode's accuracy")[0] is True
    document["accuracy"][0]["psnr"] = 45.0
    assert verdict(document, "the decode's accuracy")[0] is False
    document["accuracy"][0] |= {"psnr": 47.5, "largest": 0.11}
    assert verdict(document, "the decode's accuracy")[0] is False


def test_the_range_tells_whether_float16_is_safe_for_real_weights_only(document):
    assert verdict(document, "the largest number")[1].endswith("500 at conv_in: float16 throughout is safe")
    document["ranges"][0]["output"] = 7000.0
    assert "not safe (limit 6000)" in verdict(document, "the largest number")[1]
    document["case"]["weights"] = "random"
    assert "safe" not in verdict(document, "the largest number")[1]
    document["ranges"][0]["input"] = None
    assert verdict(document, "the largest number")[0] is False


def test_parts_that_failed_are_no_verdicts(document, tmp_path, capsys):
    failed = conv_entry((10, 8, 8, 20, 12), (10, 8, 8, 20, 12))
    document["convolutions"] = [conv_entry((None,) * 5, (None,) * 5), {**failed, "error": "stopped"}]
    del document["convolutions"][1]["runs"]
    document["decodes"] = [{"name": "as planned", "error": "stopped"}]
    document["accuracy"] = [{"name": "exact", "error": "stopped"}]
    document["elementwise"] = document["attention"] = document["ranges"] = []
    assert make_verdicts(document) == []
    path = tmp_path / "mac.json"
    path.write_text(json.dumps(document))
    assert main(["metal", str(path)]) == 0
    assert capsys.readouterr().out.count("failed") == 2 * 5 + 6 + 2


def test_a_file_of_a_mac_is_judged_printed_and_submitted(document, tmp_path, monkeypatch, capsys):
    path, folder = tmp_path / "mac.json", tmp_path / "docs" / "measurements"
    folder.mkdir(parents=True)
    path.write_text(json.dumps(document))
    for name in PAGES:
        (tmp_path / name).write_text("<!-- measurements --><!-- end of measurements -->")
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    assert main(["metal", str(path)]) == 0
    printed = capsys.readouterr().out
    for part in ("Apple M9 Max, 68.7 GB, macOS-99.1", "| conv3d ", "| 0.080 ", "- joined frames, float16: 20 % faster"):
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
    assert write_pages(tmp_path) == list(PAGES)
    readme, performance = ((tmp_path / name).read_text() for name in PAGES)
    assert "| Apple M9 Max | 64 GB  | macOS-99.1, MLX 9.9 | 2099-01-31 |" in readme and "| 10.00 " in readme
    assert "Apple M9 Max, 64 GB, macOS-99.1, MLX 9.9, 2099-01-31:\n\n- joined frames" in performance
    assert readme.endswith("\n\n<!-- end of measurements -->\nafter\n") and "old" not in readme


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"schema": 0}, "has the schema 0; this version reads 1"),
        ({"machine": {"backend": "cpu"}}, "was measured on cpu, not on Apple's GPU"),
        ({"case": {"is_quick": True, "width": 768, "height": 512}}, "is not a whole measurement of 768x512"),
        ({"case": {"is_quick": False, "width": 64, "height": 64}}, "is not a whole measurement of 768x512"),
        ({"machine": None}, "is not a file that bench --metal --json wrote"),
    ],
)
def test_other_files_among_the_measurements_are_named(document, tmp_path, change, complaint):
    (tmp_path / "x.json").write_text(json.dumps(document | change))
    with pytest.raises(LTXVAEError, match=f"x.json: {complaint}"):
        read_measurements(tmp_path)
