"""The workflows: what they run exists here, in the shell that runs it, and what others could change is pinned."""

import re
import subprocess
from pathlib import Path

import first_light
import mlx.core as mx
import numpy as np
import pytest
import yaml

ROOT = Path(__file__).parents[1]
WORKFLOWS = {path.name: path for path in (ROOT / ".github" / "workflows").glob("*.yml")}


def jobs_of(name):
    return yaml.safe_load(WORKFLOWS[name].read_text())["jobs"]


def steps_of(name):
    jobs = jobs_of(name).items()
    return [(f"{job}, step {index}", step) for job, each in jobs for index, step in enumerate(each["steps"])]


@pytest.mark.parametrize("name", WORKFLOWS)
def test_actions_are_pinned_by_their_commits_and_name_their_versions(name):
    used = re.findall(r"uses: (.*)", WORKFLOWS[name].read_text())
    assert used
    for line in used:
        assert re.fullmatch(r"[a-z-]+/[a-z-]+@[0-9a-f]{40} # v[0-9]+\.[0-9]+\.[0-9]+", line), line
    assert len({line.partition("@")[0] for line in used}) == len(set(used)), "one version of each"


@pytest.mark.parametrize("name", WORKFLOWS)
def test_steps_are_shell_that_bash_can_read(name):
    for where, step in steps_of(name):
        if "run" in step:
            text = re.sub(r"\$\{\{.*?\}\}", "x", step["run"])
            done = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True)
            assert (done.returncode, done.stderr) == (0, ""), where
            assert "${{" not in step["run"], f"{where}: values come by the environment, in which nothing is code"


@pytest.mark.parametrize("name", WORKFLOWS)
def test_what_is_run_is_here(name):
    text = "\n".join(step.get("run", "") for _, step in steps_of(name))
    targets = re.findall(r"^(\.PHONY: .*|[a-z]+:.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for target in re.findall(r"\bmake ([a-z]+)", text):
        assert any(line.startswith(f"{target}:") for line in targets), target
    for path in re.findall(r"\b(?:scripts|tests)/\w+\.(?:py|sh)", text):
        assert (ROOT / path).is_file(), path


def test_no_answer_of_metal_waits_for_another():
    """So that a failed test of memory does not hide whether Metal computes."""
    jobs = {name: job for name, job in jobs_of("ci.yml").items() if name.startswith("metal-")}
    assert [name.rpartition("-")[2] for name in jobs] == ["computes", "golden", "layers", "tests"]
    assert all("needs" not in job and job["timeout-minutes"] <= 60 for job in jobs.values())
    *_, bench = jobs["metal-4-tests"]["steps"]
    assert "mlx_ltx_vae.bench" in bench["run"] and bench["if"] == "always()"


def test_only_publishing_may_ask_for_a_token():
    for name in WORKFLOWS:
        assert yaml.safe_load(WORKFLOWS[name].read_text())["permissions"] == {"contents": "read"}
        writers = [job for job, each in jobs_of(name).items() if "write" in str(each.get("permissions"))]
        assert writers == (["publish"] if name == "release.yml" else [])
    publish = jobs_of("release.yml")["publish"]
    assert (publish["needs"], publish["environment"]) == ("try", "pypi") and "tag" in publish["if"]
    assert not any("checkout" in step.get("uses", "") for step in publish["steps"]), "it publishes what was tried"


def test_a_release_is_built_with_the_address_of_its_repository(tmp_path):
    (step,) = (step for _, step in steps_of("release.yml") if "REPOSITORY" in step.get("env", {}))
    lines = step["run"].splitlines()[:2]
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    environment = {"REPOSITORY": "https://github.example/some-one/vae", "PATH": "/usr/bin:/bin"}
    subprocess.run(["bash", "-e", "-c", "\n".join(lines)], cwd=tmp_path, env=environment, check=True)
    assert 'repository = "https://github.example/some-one/vae"\n' in (tmp_path / "pyproject.toml").read_text()


def test_first_light_compares_every_formulation_on_a_metal_device(monkeypatch, capsys):
    monkeypatch.setattr(mx.metal, "is_available", lambda: False)
    assert first_light.main() == 1
    assert capsys.readouterr().err == "error: MLX was built without Metal, or finds no device\n"
    monkeypatch.setattr(mx.metal, "is_available", lambda: True)
    monkeypatch.setattr(mx, "default_device", lambda: mx.Device(mx.cpu))
    assert first_light.find_device_problem() == "MLX's default device is Device(cpu, 0)"
    monkeypatch.setattr(first_light, "find_device_problem", lambda: None)
    assert first_light.main(32, (8, 6)) == 0
    printed = capsys.readouterr().out
    errors = {(name, dtype): float(error) for name, dtype, error in re.findall(r"(\w+), (\w+) +error (\S+),", printed)}
    assert set(errors) == {(each.value, dtype) for each in first_light.Formulation for dtype in ("float32", "bfloat16")}
    assert all(error < (1e-5 if dtype == "float32" else 0.01) for (_, dtype), error in errors.items()), errors
    monkeypatch.setattr(first_light, "convolve", lambda frames, weight: np.ones((2, 8, 6, 32)))
    assert first_light.main(32, (8, 6)) == 1
    assert capsys.readouterr().err.startswith("error: wrong results: conv3d, float32; ")
