#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
#
# test_bench_isolation.sh BENCH: the study "isolation" checks the light session and each kind of
# heavy work, prints the promised keys, and is drawn. No time is checked.

set -euo pipefail
bench=${1:?}
work=$(mktemp -d "${TMPDIR:-/tmp}/aule-test-isolation.XXXXXX")
trap 'rm -rf "$work"' EXIT

die()
{
    echo "$*"
    exit 1
}

TMPDIR=$work "$bench" run isolation --check --json >"$work/checked"
jq -es 'length == 10 and all(.checked and .checked_rows > 0 and .worst_us == null and .size > 0)' \
    "$work/checked" >/dev/null || die "a case is missing or wrong: $(cat "$work/checked")"
[ -z "$(find "$work" -mindepth 1 -type d)" ] || die "folders are left: $(find "$work")"

# Lines as a measurement prints them: its times are made up.
jq -c '. + {median_us: 2000, p99_us: 9000, worst_us: 80000, alone_us: 1000, alone_p99_us: 3000,
    alone_worst_us: 5000}' "$work/checked" >"$work/results"
jq -es 'all(has("alone_us") and has("p99_over_alone") and has("acts") and has("act_us"))' \
    "$work/results" >/dev/null || die "a key is missing: $(cat "$work/results")"
"$(dirname "$0")/../../tools/bench/plot.py" "$work/results" >"$work/results.svg"
[ "$(grep -c 'p99 9 ms (alone 3), worst 80 ms' "$work/results.svg")" -eq 10 ] ||
    die "not all cases are drawn"
echo "ten kinds of load are checked and drawn"
