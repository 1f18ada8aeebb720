# make demo, make test, make lint and make docs first create .venv where it is missing or older than pyproject.toml.
# They need Python 3.10 or newer. To choose one: make clean, then make test PYTHON=python3.12
# On Linux, as root, demo and test install OpenBLAS with apt-get; to leave it out: make demo INSTALL=
# MLX's backend on Linux is one of cpu, cuda12, cuda13: make demo BACKEND=cuda13

ifeq ($(shell uname -s),Linux)
BACKEND ?= cpu
else
BACKEND =
endif

INSTALL ?= --install

PY := .venv/bin/python
READY := .venv/.ready$(if $(BACKEND),-$(BACKEND))

.PHONY: demo test lint docs clean

demo: $(READY)
	sh scripts/with_openblas.sh $(INSTALL) $(PY) -m mlx_ltx_vae.decode --demo -o demo.mp4

test: $(READY)
	OPENBLAS_NUM_THREADS=1 sh scripts/with_openblas.sh $(INSTALL) $(PY) -m pytest -n 2

lint: $(READY)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	.venv/bin/lint-imports
	$(PY) -m mypy

# The reference of the Python API, from the docstrings: build/docs/index.html
docs: $(READY)
	.venv/bin/pdoc --docformat google --output-directory build/docs mlx_ltx_vae mlx_ltx_vae.planning.plan \
		mlx_ltx_vae.tiling mlx_ltx_vae.conversion mlx_ltx_vae.hdr mlx_ltx_vae.integrations

$(READY): pyproject.toml scripts/make_venv.sh
	PYTHON="$(PYTHON)" sh scripts/make_venv.sh $(BACKEND)
	touch $@

clean:
	rm -rf .venv build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache .import_linter_cache .hypothesis
	rm -rf demo.mp4 demo_frames
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
