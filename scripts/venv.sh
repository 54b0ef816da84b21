# shellcheck shell=bash
# Sourced by the scripts that try this library in environments of their own, below build/.

say() { printf '%s: %s\n' "$(basename "$0" .sh)" "$*" >&2; }
fail() {
    say "$1"
    [ $# -lt 2 ] || say "hint: $2"
    exit 1
}

# Prints the path of a Python of a version such as 3.13: one in PATH, or one that pyenv keeps beside it.
python_of() {
    local name
    for name in "python$1" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$1".*/bin/python /usr/bin/python"$1" /usr/local/bin/python"$1"; do
        name="$(command -v "$name" 2>/dev/null)" || continue
        # What is in PATH may be a stand-in for a version that is not chosen.
        if [ "$("$name" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)" = "$1" ]; then
            printf '%s\n' "$name"
            return 0
        fi
    done
    return 1
}

# Makes the environment $1 with the Python $2, in the place of one that is there.
make_venv() {
    rm -rf "$1"
    "$2" -m venv "$1"
}

# Installs into the environment $1.
install_into() {
    local venv="$1"
    shift
    nice "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-input "$@" </dev/null >&2 ||
        fail "could not install $*" "is the package index reachable?"
}

# Prints what an extra asks for, one package a line, without the library itself.
wanted_of() {
    "$PYTHON_VENV" -c 'import sys, tomllib
for each in tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"][sys.argv[1]]: print(each)' "$1" | grep -v '^spark-timely'
}
