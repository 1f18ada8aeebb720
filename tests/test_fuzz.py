"""Damaged files end in one clean error each. `python tests/fuzz.py` says what that is, and tries as many as wanted."""

import warnings

import pytest

from fuzz import TARGETS, fuzz, write_files, write_vae
from fuzz_corpus import samples
from mlx_ltx_vae import LTXVAEError, VideoVAE
from mlx_ltx_vae.commands import items, jobs, terminal
from mlx_ltx_vae.errors import describe_error

_GROUPS, _IN_GROUP = 3, 50


@pytest.fixture
def folder(tmp_path):
    write_vae(tmp_path)
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    return damaged


def assert_clean(seeds, folder):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        findings = [finding for seed in seeds if (finding := fuzz(seed, folder))]
    assert not findings, "\n".join(map(str, findings))


@pytest.mark.quick(1)
@pytest.mark.parametrize("group", range(_GROUPS))
def test_damaged_files_end_in_a_clean_error(folder, group):
    assert_clean(range(group * _IN_GROUP, (group + 1) * _IN_GROUP), folder)


@pytest.mark.slow
def test_700_damaged_files_end_in_a_clean_error(folder):
    assert_clean(range(700), folder)


@pytest.mark.parametrize(
    ("modules", "name", "fault"),
    [([terminal], "printable", "printed control characters"), ([items, jobs], "check_outputs", "wrote outside")],
)
def test_the_fuzzer_finds_what_it_looks_for(folder, monkeypatch, modules, name, fault):
    """Without the function that prevents it."""
    for module in modules:
        monkeypatch.setattr(module, name, lambda value, *_: value)
    runs = [index for index, sample in enumerate(samples()) if sample.kind == "run"]
    seeds = (start + index for start in range(0, 2000, len(samples())) for index in runs)
    found = (finding.kind for seed in seeds if (finding := fuzz(seed, folder)))
    assert next(kind for kind in found if fault in kind)


@pytest.mark.parametrize(
    ("error", "shown"), [(OSError(13, "Permission denied", "a.npy"), None), (KeyError("a"), "'a'")]
)
def test_the_fuzzer_finds_errors_that_are_not_explained(folder, monkeypatch, error, shown):
    def fail(*_, **__):
        raise error

    path = folder / "clips.txt"
    path.write_text("a.npy\n")
    monkeypatch.setattr(VideoVAE, "from_pretrained", fail)
    if shown is None:
        TARGETS["run"]["dry run"](path)
        assert describe_error(error) == "a.npy: cannot be read or written (Permission denied)."
    else:
        with pytest.raises(AssertionError, match=r"printed the name of a class: .*internal error"):
            TARGETS["run"]["dry run"](path)


@pytest.mark.quick(8)
@pytest.mark.parametrize("sample", samples(), ids=lambda sample: sample.name)
def test_the_samples_themselves_are_read_and_pickles_refused(folder, sample):
    write_files(folder, sample.files)
    for target in TARGETS[sample.kind].values():
        try:
            target(folder / sample.named)
        except LTXVAEError as error:
            # A configuration is also given to weights of another one.
            assert sample.name in ("objects.npy", "clip.pt", "old.pt") or sample.kind == "configuration", error
