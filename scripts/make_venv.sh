#!/bin/sh
# Make .venv, or bring it up to date, with this package installed editable, its tools, and one of MLX's backends.
#
#     [PYTHON=python3.12] sh scripts/make_venv.sh [cpu|cuda12|cuda13]
set -eu

backend=${1:-}
export PIP_DISABLE_PIP_VERSION_CHECK=1

# Says why a Python cannot be used; nothing if it can.
why_not() {
    "$1" - 2>/dev/null <<'PY' || echo "does not run"
import platform, sys
if sys.version_info < (3, 10):
    print("is %d.%d" % sys.version_info[:2])
elif sys.platform == "darwin" and platform.machine() != "arm64":
    print("runs as %s, and MLX needs arm64" % platform.machine())
else:
    try:
        import ensurepip, venv
    except ImportError:
        print("has no ensurepip (Debian, Ubuntu: apt-get install python%d.%d-venv)" % sys.version_info[:2])
PY
}

find_python() {
    reasons=
    for candidate in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11 python3.10 python}; do
        reason=$(why_not "$candidate")
        if [ -z "$reason" ]; then
            echo "$candidate"
            return
        fi
        # Of the names tried, those that do not exist (or are a version manager's empty shims) are not worth a word.
        [ "$reason" = "does not run" ] && [ -z "${PYTHON:-}" ] || reasons="${reasons:+$reasons; }$candidate $reason"
    done
    echo "error: no Python to make .venv with, 3.10 or newer and with venv (${reasons:-none found}); name one: make PYTHON=/path/to/python3.12" >&2
    return 1
}

# A usable environment is kept, unless it holds another backend: each brings its own libmlx.so to the same place.
reusable() {
    .venv/bin/python -c "import pip, sys; sys.exit(sys.version_info < (3, 10))" 2>/dev/null || return 1
    for stamp in .venv/.ready*; do
        [ ! -e "$stamp" ] || [ "$stamp" = ".venv/.ready${backend:+-$backend}" ] || return 1
    done
}

if ! reusable; then
    python=$(find_python)
    echo "Making .venv with $("$python" --version)" >&2
    "$python" -m venv --clear .venv
fi

extras=dev${backend:+,$backend}
echo "Installing mlx_ltx_vae[$extras] into .venv" >&2
.venv/bin/python -m pip install --quiet "pip>=21.3" # the first that installs a pyproject.toml editable
.venv/bin/python -m pip install --quiet --editable ".[$extras]"
