#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
#
# run.sh BUILD stage|MODULE [OPTION...]: makes the Python package in BUILD/python, or runs a module
# of tests with that package in build/venv. Options are pytest's.
# Exit code: 0 passed, 1 failed, 77 the virtual environment is missing or not whole, or each test was
# skipped.

set -uo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
build=$(cd "${1:?the build folder}" && pwd)
module=${2:?stage, or a file of tests}
shift 2
venv=${AULE_TEST_VENV:-$root/build/venv}

if [ ! -x "$venv/bin/python" ]; then
    echo "skipped: there is no ${venv#"$root/"}; tools/python-env makes it, and needs a package index"
    exit 77
fi
if ! why=$("$venv/bin/python" -c 'import cffi, numpy, pytest, hypothesis' 2>&1); then
    echo "skipped: ${venv#"$root/"} is not whole (${why##*$'\n'}); tools/python-env mends it"
    exit 77
fi
if [ "$module" = stage ]; then
    exec "$venv/bin/python" "$root/client/python/packaging/aule_packaging.py" stage \
        "$build/python" "$build/client/libaule-client.so"
fi
export PYTHONPATH=$build/python PYTHONDONTWRITEBYTECODE=1
export HYPOTHESIS_STORAGE_DIRECTORY=$build/python/hypothesis
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} # torch's: the tests share the cores
unset AULE_SOCKET
cd "$root/tests/python" || exit 1
marks='not gpu'
[ -z "${AULE_TEST_GPU:-}" ] || marks=gpu
said=$(mktemp)
trap 'rm -f "$said"' EXIT
"$venv/bin/python" -m pytest -q -p no:cacheprovider --hypothesis-seed "${AULE_TEST_SEED:-0}" \
    -m "$marks" -rs "$module" "$@" | tee "$said"
code=${PIPESTATUS[0]}
# Without a test that runs, pytest ends with 5, or with 0 and only skipped tests.
if [ "$code" = 5 ] || { [ "$code" = 0 ] && ! grep -qE '[0-9]+ passed' "$said"; }; then
    exit 77
fi
exit "$code"
