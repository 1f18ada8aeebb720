"""The thread of examples/comfyui that runs MLX: jobs before, while and after it is closed."""

import importlib.util
import subprocess
import sys
import threading
from pathlib import Path

import mlx.core as mx
import pytest

from mlx_ltx_vae import DecodeCancelled

PACK = Path(__file__).parents[1] / "examples" / "comfyui"
STAND_IN = Path(__file__).parent / "comfyui"


@pytest.fixture(scope="module")
def worker():
    spec = importlib.util.spec_from_file_location("comfyui_worker", PACK / "worker.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def thread(worker):
    thread = worker.MLXThread()
    yield thread
    thread.close()


def test_a_thread_that_had_no_job_is_closed_and_closing_again_does_nothing(thread):
    thread.close()
    thread.close()
    assert not thread._thread.is_alive()


def test_jobs_of_many_threads_run_on_one(worker, thread):
    jobs = [worker.Job(lambda job: (threading.get_ident(), mx.ones(2).sum().item())) for _ in range(20)]
    threads = [threading.Thread(target=thread.submit, args=(job,)) for job in jobs]
    for each in threads:
        each.start()
    assert all(job.wait(30) for job in jobs)
    assert {job.result() for job in jobs} == {(thread._thread.ident, 2.0)}


def test_a_job_after_the_end_does_not_run_and_the_thread_that_waits_for_it_does_not_go_on(worker, thread):
    thread.close()
    calls = []
    job = worker.Job(lambda job: calls.append(1))
    thread.submit(job)
    assert not job.wait(0.05) and not calls


def test_closing_ends_the_running_job_and_those_behind_it(worker, thread):
    is_running, calls = threading.Event(), []

    def work(job):
        is_running.set()
        while True:
            job.check()

    jobs = [worker.Job(work), worker.Job(lambda job: calls.append(1))]
    for job in jobs:
        thread.submit(job)
    assert is_running.wait(30)
    thread.close()
    assert not thread._thread.is_alive() and not calls
    assert not any(job.wait(0) for job in jobs)
    for job in jobs:
        with pytest.raises(DecodeCancelled):
            job.result()


PROGRAM = """
import importlib.util, sys, threading, time

pack, stand_in, base, until = sys.argv[1:]
sys.path.insert(0, stand_in)
import folder_paths, torch, numpy as np
from comfy import utils
folder_paths.base_path = base
spec = importlib.util.spec_from_file_location("ltx_mlx", pack)
module = sys.modules["ltx_mlx"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
from ltx_mlx.nodes import LTXDecodeFrames

class Node(LTXDecodeFrames):
    class hidden:
        unique_id = "1"

def worker():
    try:
        for repeat in (1, 1, 1000):
            latents = np.random.default_rng(0).normal(size=(1, 8, 3 * repeat, 2, 3)).astype(np.float32)
            Node.execute({"samples": torch.Tensor(latents)}, "vae/small.safetensors", "auto")
            print("decoded", flush=True)
    finally:
        print("the node goes on", flush=True)

threading.Thread(target=worker, daemon=True).start()
while sum(update[1] > 0 for update in utils.updates) < int(until):
    time.sleep(0.01)
raise KeyboardInterrupt
"""


@pytest.mark.quick(1)
@pytest.mark.parametrize("until", [1, 10])
def test_ctrl_c_ends_the_program_cleanly_and_the_thread_of_the_node_does_not_go_on(golden, tmp_path, until):
    """That it goes on, in torch, while Python ends, is what aborts the real program."""
    vae = tmp_path / "models" / "vae" / "small.safetensors"
    vae.parent.mkdir(parents=True)
    vae.symlink_to(golden("ltx2_3").checkpoint)
    command = [sys.executable, "-c", PROGRAM, PACK / "__init__.py", STAND_IN, tmp_path, str(until)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 130 or done.returncode == -2, done.stderr
    assert set(done.stdout.splitlines()) <= {"decoded"}
    assert done.stderr.rstrip().endswith("KeyboardInterrupt"), done.stderr


PRESSED_AGAIN = """
import importlib.util, os, signal, sys, threading, time
import mlx.core as mx

spec = importlib.util.spec_from_file_location("worker", sys.argv[1])
worker = importlib.util.module_from_spec(spec)
spec.loader.exec_module(worker)
signal.signal(signal.SIGINT, signal.default_int_handler)
is_running = threading.Event()

def work(job):
    mx.eval(mx.ones(3) + 1)
    is_running.set()
    try:
        while True:
            job.check()
    finally:  # a step of a decode that takes its time
        for _ in range(5):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.05)

worker.MLXThread().submit(worker.Job(work))
assert is_running.wait(60)
"""


def test_ctrl_c_that_is_pressed_again_while_the_thread_ends_does_not_abort_the_program():
    command = [sys.executable, "-c", PRESSED_AGAIN, PACK / "worker.py"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
