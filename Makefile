# All targets but clean first create .venv where it is missing or older than pyproject.toml.
# They need Python 3.10 or newer. To choose one: make clean, then make test PYTHON=python3.12
# On Linux, as root, demo and test install OpenBLAS with apt-get; to leave it out: make demo INSTALL=
# MLX's backend on Linux is one of cpu, cuda12, cuda13: make demo BACKEND=cuda13

ifeq ($(shell uname -s),Linux)
BACKEND ?= cpu
else
BACKEND =
endif

INSTALL ?= --install
# Processes that run tests at the same time.
WORKERS ?= 2

PY := .venv/bin/python
SUFFIX := $(if $(BACKEND),-$(BACKEND))
INSTALLED := .venv/.installed$(SUFFIX)
READY := .venv/.ready$(SUFFIX)
PYTEST := OPENBLAS_NUM_THREADS=1 sh scripts/with_openblas.sh $(INSTALL) $(PY) -m pytest

.PHONY: demo test golden layers lint docs clean

demo: $(INSTALLED)
	sh scripts/with_openblas.sh $(INSTALL) $(PY) -m mlx_ltx_vae.decode --demo -y -o demo.mp4

test: $(READY)
	$(PYTEST) -n $(WORKERS)

# What a new GPU should pass before anything else. EMULATE_METAL=1 in front emulates Metal's rounding on a CPU.
golden: $(READY)
	$(PYTEST) -m "golden and not full_width and not slow"

layers: $(READY)
	$(PYTEST) -m layers

lint: $(READY)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	.venv/bin/lint-imports
	.venv/bin/lint-imports scripts/import_circles.ini
	$(PY) -m mypy

# The reference of the Python API, from the docstrings: build/docs/index.html
docs: $(READY)
	.venv/bin/pdoc --docformat google --output-directory build/docs mlx_ltx_vae mlx_ltx_vae.planning.plan \
		mlx_ltx_vae.tiling mlx_ltx_vae.conversion mlx_ltx_vae.hdr mlx_ltx_vae.integrations

# The package alone, which takes half the time.
$(INSTALLED): pyproject.toml scripts/make_venv.sh
	PYTHON="$(PYTHON)" sh scripts/make_venv.sh "$(BACKEND)"
	touch $@

$(READY): pyproject.toml scripts/make_venv.sh
	PYTHON="$(PYTHON)" sh scripts/make_venv.sh "$(BACKEND)" dev
	touch $(INSTALLED) $@

clean:
	rm -rf .venv build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache .import_linter_cache .hypothesis
	rm -rf demo.mp4 demo_frames
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
