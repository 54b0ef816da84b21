#!/usr/bin/env bash
# Builds, checks and tags a release. Without TAG=1 everything but the tag.
#
# Builds sdist and wheel (the wheel from the sdist), checks their metadata, installs the wheel with each extra in clean
# environments with the newest packages that it allows, uses it there, and follows README and tutorials from an empty
# folder. The version is `__version__` in spark_timely/__init__.py. Needs the package index and a JDK.

set -euo pipefail
# shellcheck source=scripts/env.sh
source "$(dirname "${BASH_SOURCE[0]}")/env.sh"
# shellcheck source=scripts/venv.sh
source "$(dirname "${BASH_SOURCE[0]}")/venv.sh"
cd "$ROOT"
find_java || fail "found no JDK" "run make setup"
# The environments that are tried start Spark's Python themselves.
unset PYSPARK_PYTHON PYSPARK_DRIVER_PYTHON

version="$("$PYTHON_VENV" -c 'import spark_timely; print(spark_timely.__version__)')"
tag="v$version"

# What stands against a tag, a line each.
obstacles() {
    [ -z "$(git status --porcelain)" ] || echo "changes that are not committed"
    ! git rev-parse -q --verify "refs/tags/$tag" >/dev/null || echo "tag $tag: set __version__ to a new one"
    grep -qF "## [$version] - " CHANGELOG.md || echo "no section [$version] in CHANGELOG.md: run make changelog"
    [ -z "$(find changelog.d -name '*.*.md')" ] || echo "news in changelog.d: run make changelog"
}
if [ "${TAG:-}" = 1 ] && [ -n "$(obstacles)" ]; then
    fail "could not tag $tag: found $(obstacles | paste -sd ';')"
fi

out="build/release"
dist="$out/dist"
rm -rf "$dist"
mkdir -p "$dist"
say "building $version"
tools="$out/tools"
[ -x "$tools/bin/twine" ] || {
    make_venv "$tools" "$PYTHON_VENV"
    mapfile -t wanted < <(wanted_of release)
    install_into "$tools" -c constraints.txt "${wanted[@]}"
}
nice "$tools/bin/python" -m build --outdir "$dist" . >"$out/build.log" 2>&1 || {
    tail -n 20 "$out/build.log" >&2
    fail "could not build the package" "see $out/build.log"
}
"$tools/bin/python" -m twine check --strict "$dist"/*
wheel="$ROOT/$(echo "$dist"/*.whl)"

# One extra after the other into one environment, so that none is used beside a package that only a later one brings.
try() { # what is tried, the extra, more arguments for pip
    local tried="$1" extra="$2"
    shift 2
    install_into "$venv" "spark-timely${extra:+[$extra]} @ file://$wheel" "$@"
    "$venv/bin/python" -m pip check --disable-pip-version-check
    (cd "$out" && nice "$ROOT/$venv/bin/python" "$ROOT/scripts/try_extra.py" "$tried")
}
venv="$out/venv"
make_venv "$venv" "$PYTHON_VENV"
try alone ""
nice "$PYTHON_VENV" scripts/follow.py --wheel "$wheel" --python "$venv/bin/python" README.md docs/tutorial/first-log.md docs/tutorial/flights.md
try spark spark
for extra in connect fast demo; do try "$extra" "$extra"; done
# Its JARs come from a Maven repository, which may have the pinned ones alone at hand.
try delta delta "$(grep -i '^delta.spark==' constraints.txt)"

say "$tag is built and checked: $dist"
if [ "${TAG:-}" = 1 ]; then
    git tag -a "$tag" -m "spark-timely $version"
    say "tagged $tag; push it with: git push origin $tag"
else
    obstacles | sed 's/^/release: not ready for a tag: /' >&2
    say "tag it with: make release TAG=1"
fi
