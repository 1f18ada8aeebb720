"""What a shell completes, as bash does it with the script."""

import subprocess
import sys

import pytest


@pytest.fixture(scope="module")
def script():
    command = [sys.executable, "-m", "mlx_ltx_vae", "--completion", "bash"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        (("enc",), ["encode"]),
        (("decode", "--mo"), ["--model", "--mode"]),
        (("decode", "--mode", "s"), ["single"]),
        (("encode", "--dtype", ""), ["float32", "bfloat16", "float16"]),
        (("bench", "--mode", "e"), ["exact", "encode"]),
        (("decode", "--codec", "prores4"), ["prores4444"]),
        (("--comp",), ["--completion"]),
    ],
)
def test_bash_completes_commands_options_and_choices(script, words, completed):
    given = " ".join(f"'{word}'" for word in ("mlx_ltx_vae", *words))
    ask = f"COMP_WORDS=({given}); COMP_CWORD={len(words)}; _shtab_mlx_ltx_vae; echo ${{COMPREPLY[@]}}"
    done = subprocess.run(["bash", "-c", f"{script}\n{ask}"], capture_output=True, text=True, check=True)
    assert done.stdout.split() == completed


@pytest.mark.parametrize("command", ["decode", "preview", "encode", "upscale", "info", "convert", "export", "bench"])
def test_the_model_is_completed_as_a_file(script, command):
    assert f"_shtab_mlx_ltx_vae_{command}__m_COMPGEN=_shtab_compgen_files" in script


def test_another_shell_is_wrong_usage():
    done = subprocess.run(
        [sys.executable, "-m", "mlx_ltx_vae", "--completion", "powershell"], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: --completion is for bash, zsh, tcsh, fish, not powershell\n")


def test_fish_gets_a_script_for_every_option():
    command = [sys.executable, "-m", "mlx_ltx_vae", "--completion", "fish"]
    script = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "complete -c mlx_ltx_vae" in script
    for name in ("memory-budget", "skip-existing", "save-latents"):
        assert f"-l {name}" in script
