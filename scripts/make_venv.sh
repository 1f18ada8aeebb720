#!/bin/sh
# Create or update .venv: this package (editable), one of MLX's backends, and with "dev" the development tools.
#
#     [PYTHON=python3.12] sh scripts/make_venv.sh [cpu|cuda12|cuda13|""] [dev]
set -eu

backend=${1:-}
tools=${2:-}
export PIP_DISABLE_PIP_VERSION_CHECK=1

# Print why a Python cannot be used; print nothing if it can.
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
    for candidate in ${PYTHON:-python3 python3.15 python3.14 python3.13 python3.12 python3.11 python3.10 python}; do
        reason=$(why_not "$candidate")
        if [ -z "$reason" ]; then
            echo "$candidate"
            return
        fi
        # Default names that do not exist, or are empty shims of a version manager, are not reported.
        [ "$reason" = "does not run" ] && [ -z "${PYTHON:-}" ] || reasons="${reasons:+$reasons; }$candidate $reason"
    done
    echo "error: found no Python 3.10 or newer with venv (${reasons:-none found}); choose one: make PYTHON=/path/to/python3.12" >&2
    return 1
}

# Whether .venv can be kept. One with another backend cannot: all backends install libmlx.so to the same place.
reusable() {
    .venv/bin/python -c "import pip, sys; sys.exit(sys.version_info < (3, 10))" 2>/dev/null || return 1
    for stamp in .venv/.ready* .venv/.installed*; do
        case $stamp in
        *"*" | */.ready"${backend:+-$backend}" | */.installed"${backend:+-$backend}") ;; # none, or of this backend
        *) return 1 ;;
        esac
    done
}

if ! reusable; then
    python=$(find_python)
    echo "Creating .venv with $("$python" --version)" >&2
    "$python" -m venv --clear .venv
fi

extras=$tools${tools:+${backend:+,}}$backend
echo "Installing mlx_ltx_vae${extras:+[$extras]} and what it needs into .venv; pip is silent while it works" >&2
.venv/bin/python -m pip install --quiet "pip>=21.3" # the first version with editable installs from pyproject.toml
.venv/bin/python -m pip install --quiet --editable ".${extras:+[$extras]}"
