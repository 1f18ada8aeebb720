"""`python -m mlx_ltx_vae.convert` and `python -m weights_convert`."""

import json
import os
import re

from mlx_ltx_vae.convert import main
from test_convert import names_in, run_cli


def test_the_command_converts_and_verifies(golden, tmp_path):
    source, folder = golden("ltx2_3").checkpoint, tmp_path / "vae"
    done = run_cli(source, "-o", folder, "--only", "decoder")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"{folder}: decoder (LTX-2.3), 86 tensors in float32" in done.stdout
    assert "Verified: 86 of 86 tensors equal bit for bit; decode identical\n" in done.stdout
    assert re.search(r" in float32, [0-9.]+ MB, in ", done.stdout)
    assert re.search(r"\nPeak MLX memory: [0-9.]+ MB\n$", done.stdout)
    again = run_cli("--verify", source, folder, "--only", "decoder")
    assert again.returncode == 0
    assert again.stdout.splitlines()[0] == done.stdout.splitlines()[1]
    refused = run_cli("--verify", source, folder)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert re.fullmatch(r"error: .*vae: it lacks the tensor .*\n", refused.stderr)


def test_json_is_one_object_and_nothing_else(golden, tmp_path, capfd):
    source, folder = str(golden("conv_16x16x4").checkpoint), str(tmp_path / "vae")
    assert main([source, "-o", folder, "--dtype", "bfloat16", "--json"]) == 0
    made = json.loads(capfd.readouterr().out)
    assert made["source"] == "conv_16x16x4.safetensors"
    assert made["output"] == folder
    assert made["networks"] == ["encoder", "decoder"]
    assert made["written"]["dtypes"] == ["bfloat16", "float32"]
    assert made["written"]["bytes"] < os.path.getsize(source) / 1.9
    assert made["verification"]["decode"]["psnr"] > 40
    assert made["peak_memory_bytes"] > 0
    assert main(["--verify", source, folder, "--json"]) == 0
    captured = capfd.readouterr()
    assert captured.err == ""
    verified = json.loads(captured.out)
    assert len(verified["load_seconds"]) == 2
    assert verified["cast"] == made["verification"]["cast"] == verified["tensors"] - 2


def test_quiet_prints_nothing(golden, tmp_path, capfd):
    assert main([str(golden("conv_16x16x4").checkpoint), "-o", str(tmp_path / "vae"), "-q"]) == 0
    assert capfd.readouterr() == ("", "")


def test_errors_are_one_line_and_debug_shows_the_traceback(tmp_path, capsys):
    arguments = [str(tmp_path / "nothing.safetensors"), "-o", str(tmp_path / "vae")]
    assert main(arguments) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert re.fullmatch(r"error: .*nothing\.safetensors: there is no such file or folder; check the path\.", lines[0])
    assert main([*arguments, "--debug"]) == 1
    assert "Traceback" in capsys.readouterr().err
    assert names_in(tmp_path) == []
