#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
#
# test_bench.sh BENCH: lines of JSON have the promised keys, also those of studies, and workloads
# can be drawn. No time is checked.

set -euo pipefail
bench=${1:?}
plot=$(dirname "$0")/../../tools/bench/plot.py
work=$(mktemp -d "${TMPDIR:-/tmp}/aule-test-bench.XXXXXX")
trap 'rm -rf "$work"' EXIT
keys='"workload", "device", "driver", "via", "dtype", "variant", "median_us", "p99_us", "gb_per_s",
    "tflops", "ceiling_ratio", "checked"'

die()
{
    echo "$*"
    exit 1
}

# has FILTER WHAT: jq's FILTER holds for all lines; WHAT says what is wrong if it does not.
has()
{
    jq -es "$1" "$work/results" >/dev/null || die "$2:" "$(cat "$work/results")"
}

"$bench" run decode:2x64 decode:2x128 decode:4x64 --seconds 0.05 --splits 2 \
    >"$work/results"
has 'length == 3' "three workloads are not three lines"
has "all([has($keys)] | all)" "a key is missing"
has 'all(.checked == true and .via == "engine" and .dtype == "f16/f16" and .splits == 2)' \
    "the results are not as asked"
has 'all(.median_us > 0 and .p99_us >= .median_us and .ceiling_ratio > 0 and .floor_us > 0)' "a number is missing"
"$plot" "$work/results" >"$work/results.svg"
[ "$(grep -cE '<text[^>]*>decode:[0-9x]+ f16/f16' "$work/results.svg")" -eq 3 ] ||
    die "three workloads have not three bars"
tail -n 1 "$work/results.svg" | grep -qx '</svg>' || die "the drawing is not complete"
"$bench" run decode:2x64 --head-dim 64 --check --json >"$work/checked"
jq -e '.checked == true and .head_dim == 64' "$work/checked" >/dev/null ||
    die "another head dim: $(cat "$work/checked")"
"$bench" run decode:2x64 --check --json >"$work/checked"
jq -e '.checked == true and .checked_rows == 64 and
    ([.median_us, .p99_us, .gb_per_s, .tflops, .ceiling_ratio] | all(. == null))' \
    "$work/checked" >/dev/null || die "a workload that was only checked: $(cat "$work/checked")"
head -n 1 "$work/results" | jq -c '. + {peer: "another", peer_us: 2.5}' | "$plot" - |
    grep -E '<text[^>]*>[^<]*; another 2.5 us' >/dev/null || die "a peer is not named beside its bar"
"$plot" - <"$work/results" | cmp - "$work/results.svg"

"$bench" run border growth --seconds 0.05 --json >"$work/results"
has "all([has($keys, \"case\")] | all)" "a key of a study is missing"
has 'map(select(.workload == "border")) | [.[].via] == ["engine", "ring", "nng"] and
    all(.checked and .checked_rows > 0) and
    (.[1:] | all(has("extra_us", "extra_p99_us", "ratio")))' "border lacks one of its three cases"
has 'map(select(.workload == "growth")) | length > 60 and
    all(.checked and .unit_ns > 0 and .aim_ns > 0) and
    ([.[] | select(.case == "first advance of a batch by table entries") | .size] ==
     [.[] | select(.case == "check of a batch by table entries") | .size])' \
    "growth lacks some sizes"
# gone WORDS ARGUMENT...: it cannot measure, says these words, and ends with exit code 3 (a wrong
# result has 1).
gone()
{
    local words=$1 said code=0
    shift
    said=$("$bench" "$@" 2>&1) || code=$?
    if [ "$code" != 3 ] || [[ $said != *"$words"* ]]; then
        die "aule-bench $*: exit code $code: $said"
    fi
}
gone "no device" run decode:1x16 --check --device nobody
gone "nobody" run decode:1x16 --check --variant nobody
gone "/nowhere/aule-daemon was not started: No such file or directory" \
    run decode:1x16 --check --via nng --daemon /nowhere/aule-daemon
gone "${TMPDIR:-/tmp} was not started: Permission denied" \
    run border --check --daemon "${TMPDIR:-/tmp}"
gone "the daemon ended before it answered" run decode:1x16 --check --via ring --daemon /bin/false

# cannot WORDS FILE: plot.py says these words, and draws nothing.
cannot()
{
    local said
    said=$("$plot" "$2" 2>&1 >"$work/none.svg") && die "plot.py $2: exit code 0"
    [[ $said == *"$1"* ]] || die "plot.py $2: $said"
    [ ! -s "$work/none.svg" ] || die "plot.py $2 draws nothing, but writes"
}
cannot "line 1 of $work/checked is no result: it was not measured" "$work/checked"
cannot "line 1 of $0 is no result" "$0"
jq -c 'select(.workload == "border")' "$work/results" >"$work/border"
cannot "studies have no bars: border" "$work/border"
echo "workloads and two studies say and draw what is promised"
