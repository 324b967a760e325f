#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
#
# test_quickstart.sh CASE BUILD_DIR: the quickstart with the programs of BUILD_DIR. The cases:
# holds        it succeeds
# corrupt      a shared block is corrupt: the checks of tokens and logits fail, and no other check
# broken       the daemon does not start, and the quickstart says so
# interrupted  a signal ends the quickstart while the daemon serves
# refused      a wrong command line is refused in one sentence, before anything starts
# tiers        --tiers succeeds, and a signal ends it and all that it started

set -uo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
export TMPDIR
TMPDIR=$(mktemp -d)
mode='' # an option of the quickstart
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
    output=$(AULE_DAEMON_OPTIONS=${options[*]} \
        "$root/tools/quickstart" ${mode:+$mode} --no-setup --build-dir "$build" 2>&1)
    code=$?
    echo "$output"
    [ -z "$(ls -A "$TMPDIR")" ] ||
        die "the quickstart left something in its temporary folder: $(ls -A "$TMPDIR")"
}

tiers()
{
    command -v redis-server >/dev/null || { echo "there is no redis-server"; exit 77; }
    mode=--tiers
    AULE_SECOND_DAEMON_OPTIONS='--transfer-queue off' quickstart --device 0
    [ $code -eq 0 ] || die "exit code $code"
    grep -q '^OK: two daemons' <<<"$output" || die "it did not report success"
    [ "$(grep -c '^== Starting aule-daemon with --device 0 ' <<<"$output")" = 2 ] ||
        die "both daemons should get the options of all daemons"
    [ "$(grep -c '^== Starting aule-daemon .* --transfer-queue off$' <<<"$output")" = 1 ] ||
        die "one daemon should get the options of the second one"
    interrupts 'Starting a redis-server' 'Starting aule-daemon' 'A worker at the second daemon'
}

holds()
{
    quickstart
    [ $code -eq 0 ] || die "exit code $code"
    grep -q '^OK: four workers' <<<"$output" || die "it did not report success"
}

corrupt()
{
    AULE_DAEMON=$build/tests/aule-daemon-corrupt quickstart
    [ $code -eq 1 ] || die "a corrupt block was not noticed: exit code $code"
    local wrong
    wrong=$(grep -Ec "^FAIL: worker [1-4]'s logits differ" <<<"$output")
    [ "$wrong" -ge 3 ] || die "the wrong logits of only $wrong workers were noticed"
    if grep '^FAIL:' <<<"$output" |
        grep -Ev "worker [1-4]'s (logits|token ids) differ|distinct ids"; then
        die "something else failed too"
    fi
}

broken()
{
    quickstart --device no-such-device
    [ $code -eq 1 ] || die "a daemon that does not start was not noticed: exit code $code"
    grep -q 'the daemon did not start' <<<"$output" ||
        die "it did not say that the daemon did not start"
    grep -q 'no-such-device' <<<"$output" || die "the daemon's own words are missing"
}

# Ends the quickstart once it has said $1. All that it started has our TMPDIR in its environment.
interrupt_at()
{
    local quickstart i processes left
    : >"$log" # now: the shell that starts in the background may do it only after the first look
    "$root/tools/quickstart" ${mode:+$mode} --no-setup --build-dir "$build" >"$log" 2>&1 &
    quickstart=$!
    for ((i = 0; i < 3000; i++)); do
        ! grep -q "$1" "$log" || break
        sleep 0.1
    done
    grep -q "$1" "$log" || die "it never said '$1': $(cat "$log")"
    sleep 0.2
    kill -TERM "$quickstart"
    wait "$quickstart"
    code=$?
    [ $code -eq 143 ] || die "exit code $code when told to end at '$1'"
    processes=(/proc/[0-9]*/environ)
    left=$(grep -lza "^TMPDIR=$TMPDIR\$" "${processes[@]}" 2>/dev/null)
    [ -z "$left" ] || die "after '$1' still running:" \
        "$(for i in $left; do tr '\0' ' ' <"${i%environ}cmdline"; done)"
    [ -z "$(ls -A "$TMPDIR")" ] ||
        die "something is left in the temporary folder: $(ls -A "$TMPDIR")"
    # A redis-server overwrites its environment, but works in a folder there.
    ! readlink /proc/[0-9]*/cwd 2>/dev/null | grep "^$TMPDIR/" || die "a process is left"
}

# interrupts MOMENT...
interrupts()
{
    log=$(mktemp -p /tmp)
    trap 'rm -rf "$TMPDIR" "$log"' EXIT
    local moment
    for moment in "$@"; do
        interrupt_at "$moment"
    done
}

interrupted()
{
    interrupts 'Starting aule-daemon' 'Computing the reference' 'Four workers start'
}

# refuses CODE SENTENCE OPTION...
refuses()
{
    local said code want=$1 sentence=$2
    shift 2
    said=$("$root/tools/quickstart" "$@" 2>&1)
    code=$?
    if [ $code -ne "$want" ] || [ "$said" != "tools/quickstart: $sentence" ]; then
        die "quickstart $*: exit code $code: $said"
    fi
}

refused()
{
    local empty=$TMPDIR/empty sentence
    mkdir "$empty"
    refuses 2 "--build-dir needs a folder (--help says more)" --build-dir
    refuses 2 "--build-dir needs a folder (--help says more)" --build-dir ''
    refuses 2 "--build-dir '$TMPDIR/none' is no folder (--help says more)" \
        --build-dir "$TMPDIR/none"
    sentence="--build-dir '$empty' has no daemon/aule-daemon"
    refuses 2 "$sentence: build it there, or leave the option out (--help says more)" \
        --build-dir "$empty"
    refuses 2 "there is no option '--fast' (--help says more)" --fast
    if [ "$(id -u)" -ne 0 ]; then # root may do all
        chmod 000 "$empty"
        refuses 2 "--build-dir '$empty' cannot be entered (--help says more)" --build-dir "$empty"
        chmod 700 "$empty"
    fi
    TMPDIR=$empty/none refuses 1 "no folder can be made in '$empty/none' (\$TMPDIR)" \
        --no-setup --build-dir "$build"
}

build=${2:?}
case ${1:-} in
    holds | corrupt | broken | interrupted | refused | tiers) "$1" ;;
    *) die "unknown case '${1:-}'" ;;
esac
