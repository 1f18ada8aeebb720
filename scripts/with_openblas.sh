#!/bin/sh
# Run a command with OpenBLAS in place of the reference BLAS that MLX's CPU backend for Linux links.
#
#     sh scripts/with_openblas.sh [--install] COMMAND...
#
# --install: if OpenBLAS is missing, install it with apt-get where this runs as root. Without OpenBLAS it prints a hint
# and runs the command all the same. On macOS, and if LD_PRELOAD already names a BLAS, it only runs the command.
set -u

install=false
if [ "${1:-}" = --install ]; then
    install=true
    shift
fi

# The libraries to try, best first: Debian's and Ubuntu's in their own folders, then Fedora's (libopenblasp), openSUSE's
# (libopenblas_pthreads) and the generic name, which may be a build without threads.
candidates() {
    triplet=$(uname -m)-linux-gnu
    for build in pthread openmp; do
        file=/usr/lib/$triplet/openblas-$build/libopenblas.so.0
        [ ! -e "$file" ] || echo "$file"
    done
    for name in libopenblasp.so.0 libopenblas_pthreads.so.0 libopenblaso.so.0 libopenblas.so.0; do
        PATH=$PATH:/sbin:/usr/sbin ldconfig -p 2>/dev/null | sed -n "s|^[[:space:]]*$name (.*=> *||p"
    done
}

# The first library that can be preloaded. The dynamic linker prints an error for one of another architecture.
find_openblas() {
    candidates | while read -r file; do
        if [ -z "$(LD_PRELOAD=$file env 2>&1 >/dev/null)" ]; then
            echo "$file"
            break
        fi
    done
}

apt_install() {
    DEBIAN_FRONTEND=noninteractive timeout 120 \
        apt-get -qq -o Acquire::Retries=1 -o Acquire::http::Timeout=20 "$@" </dev/null >/dev/null 2>&1
}

case $(uname -s):${LD_PRELOAD:-} in
Linux:*blas* | Linux:*mkl*) ;;
Linux:*)
    library=$(find_openblas)
    if [ -z "$library" ] && $install && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        echo "Installing libopenblas0-pthread on this system with apt-get: with it MLX decodes the demo on two cores in" \
            "7 s instead of 69 (to leave it out: make demo INSTALL=)" >&2
        apt_install update
        apt_install install -y --no-install-recommends libopenblas0-pthread
        library=$(find_openblas)
    fi
    if [ -n "$library" ]; then
        export LD_PRELOAD="$library${LD_PRELOAD:+:$LD_PRELOAD}"
    else
        echo "hint: with OpenBLAS MLX decodes the demo on two cores in 7 s instead of 69: apt-get install libopenblas0-pthread (pip's mkl, preloaded, is as fast, but 700 MB)" >&2
    fi
    ;;
esac

exec "$@"
