#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
#
# test_quickstart.sh CASE BUILD_DIR: the quickstart with the programs of BUILD_DIR. `holds`: it ends well. `corrupt`: one shared
# block is corrupted on the way, and the check of the tokens and logits must see it, and nothing else fail. `broken`: the
# daemon does not start, and the quickstart says so. `interrupted`: it is told to end while the daemon serves.

set -uo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
export TMPDIR
TMPDIR=$(mktemp -d)
trap 'rm -rf "$TMPDIR"' EXIT

die()
{
    echo "test_quickstart: $*" >&2
    exit 1
}

# quickstart OPTION...: runs it with these options for the daemon; sets $output and $code.
quickstart()
{
    local options=("$@")
    [ "${AULE_TEST_VALIDATION:-}" != 1 ] || options+=(--validation)
    output=$(AULE_DAEMON_OPTIONS=${options[*]} "$root/tools/quickstart" --no-setup --build-dir "$build" 2>&1)
    code=$?
    echo "$output"
    [ -z "$(ls -A "$TMPDIR")" ] || die "the quickstart left something in its temporary folder: $(ls -A "$TMPDIR")"
}

holds()
{
    quickstart
    [ $code -eq 0 ] || die "exit code $code"
    grep -q '^OK: four workers' <<<"$output" || die "no word of success"
}

corrupt()
{
    quickstart --fault corrupt-prefix
    [ $code -eq 1 ] || die "a corrupt block was not noticed: exit code $code"
    local n
    for n in 2 3 4; do
        grep -Eq "^FAIL: worker $n's logits differ" <<<"$output" || die "worker $n's wrong logits were not noticed"
    done
    if grep '^FAIL:' <<<"$output" | grep -Ev "worker [1-4]'s (logits|token ids) differ|distinct ids"; then
        die "something else failed too"
    fi
}

broken()
{
    quickstart --device no-such-device
    [ $code -eq 1 ] || die "a daemon that does not start was not noticed: exit code $code"
    grep -q 'the daemon did not start' <<<"$output" || die "it was not said that the daemon did not start"
    grep -q 'no-such-device' <<<"$output" || die "the daemon's own words are missing"
}

interrupted()
{
    local quickstart i daemon=''
    "$root/tools/quickstart" --no-setup --build-dir "$build" >/dev/null 2>&1 &
    quickstart=$!
    for ((i = 0; i < 600 && ${#daemon} == 0; i++)); do
        sleep 0.1
        [ -z "$(find "$TMPDIR" -name sock)" ] || daemon=$(cat "/proc/$quickstart/task/$quickstart/children")
    done
    [ -n "$daemon" ] || die "no daemon came up"
    kill -TERM "$quickstart"
    wait "$quickstart"
    code=$?
    [ $code -eq 143 ] || die "exit code $code"
    for i in $daemon; do
        [ ! -e "/proc/$i" ] || die "process $i still runs: $(tr '\0' ' ' <"/proc/$i/cmdline")"
    done
    [ -z "$(ls -A "$TMPDIR")" ] || die "something is left in the temporary folder: $(ls -A "$TMPDIR")"
}

build=${2:?}
case ${1:-} in
    holds | corrupt | broken | interrupted) "$1" ;;
    *) die "unknown case '${1:-}'" ;;
esac
