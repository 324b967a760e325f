#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
#
# Runs inside tools/coop-root's Debian 13.
#
#   coop.sh build SOURCE BUILD    builds the programs of the other tests named coop
#   coop.sh device SOURCE BUILD   checks what the daemon says about a software device whose matrix
#                                 units have another size than aule's
#   coop.sh avx512 PROGRAM        runs PROGRAM if the CPU has AVX-512
#
# Exit code: 0 fine, 1 failed, 77 skipped; with avx512 that of PROGRAM.

set -euo pipefail
mode=$1
if [ "$mode" = avx512 ]; then
    grep -qw avx512f /proc/cpuinfo || { echo "skipped: this CPU has no AVX-512"; exit 77; }
    exec "$2"
fi
source=$2 build=$3
readonly targets=(aule-daemon aule-ctl test_attention test_coop test_engine test_kv)
daemon=''

fail()
{
    printf 'coop: %s\n' "$*" >&2
    exit 1
}

# Ends the daemon, however this script ends.
clean_up()
{
    [ -n "$daemon" ] || return 0
    kill -KILL "$daemon" 2>/dev/null || true
    wait "$daemon" 2>/dev/null || true
}
trap clean_up EXIT

build_all()
{
    cmake -S "$source" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo \
        -DAULE_NATIVE="${AULE_TEST_LONG:-0}" \
        -DAULE_GLSLANG= -DAULE_VULKAN_INCLUDE_DIR= >"$build.log" ||
        { cat "$build.log"; fail "cmake could not configure"; }
    grep -E 'shader compiler|left out' "$build.log"
    grep 'left out' "$build.log" | grep -vq 'AULE_NATIVE is off' &&
        fail "Debian 13's compiler and headers are new enough for everything"
    cmake --build "$build" --target "${targets[@]}" -- --quiet
}

# The daemon's answer as JSON.
device()
{
    local i
    "$build/daemon/aule-daemon" --socket /tmp/sock --cache-folder /tmp/kept 2>/tmp/log &
    daemon=$!
    for ((i = 0; i < 3000; i++)); do
        "$build/tools/ctl/aule-ctl" ping --socket /tmp/sock >/dev/null 2>&1 && break
        kill -0 $daemon 2>/dev/null || fail "the daemon did not start: $(cat /tmp/log)"
        sleep 0.1
    done
    "$build/tools/ctl/aule-ctl" device --socket /tmp/sock --json >/tmp/device
    "$build/tools/ctl/aule-ctl" device --socket /tmp/sock
    kill -TERM $daemon
    wait $daemon || fail "the daemon ended with exit code $?: $(cat /tmp/log)"
    daemon=''
}

# The daemon says what the variant "matrix" lacks, and that is nothing that the build lacks. The
# next best variant lacks nothing.
check_device()
{
    local why
    jq -e '.software' /tmp/device >/dev/null || fail "this is no software device"
    jq -e '[.variants[] | select(.used)] | length == 1' /tmp/device >/dev/null ||
        fail "not one variant is used"
    why=$(jq -r '.variants[] | select(.name == "matrix") |
                 if .used then "it is used" else .missing end' /tmp/device)
    case $why in
        '') fail "there is no variant named matrix" ;;
        *built*) fail "variant matrix: $why" ;;
        *) echo "variant matrix: $why" ;;
    esac
    jq -e '.variants[] | select(.name == "matrix_shared") | .used' /tmp/device >/dev/null ||
        fail "variant matrix_shared is not used, although any device with tensor cores will do"
}

mkdir -p "$(dirname "$build")"
case $mode in
    build) build_all ;;
    device) device; check_device ;;
    *) fail "'$mode' is none of build, device and avx512" ;;
esac
