#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
#
# tools/leftovers finds processes and shared memory of its own run, and none of another run that
# uses the same path in another mount namespace. Needs root, which makes such a namespace.
#     test_leftovers.sh LEFTOVERS
set -euo pipefail
leftovers=$1
if [ "$(id -u)" != 0 ] || ! unshare -m true 2>/dev/null; then
    echo "only root can make a mount namespace"
    exit 77
fi
folder=$(mktemp -d)
segment=/dev/shm/aule-leftovers-$$-own
running=()
trap 'kill "${running[@]}" 2>/dev/null || true; rm -rf "$folder" "$segment"{,.longer}' EXIT
mkdir "$folder/own" "$folder/other"
for one in own other; do cp "$(command -v sleep)" "$folder/$one/program"; done
"$leftovers" --segments >"$folder/before"

# LINE: all that is found in the test's own folder and segments; a process' number comes first.
# Other tests of the same run make segments of their own.
expect() {
    local found
    found=$("$leftovers" "$folder/before" "$folder/own")
    found=$(grep -F -e "$folder/" -e "$segment" <<<"$found") || true
    [ "$found" = "$1" ] || { echo "found '$found' instead of '$1'"; exit 1; }
}
stop() {
    kill "${running[@]}"
    wait "${running[@]}" 2>/dev/null || true
    running=()
}
await() { # PROGRAM: of the last child
    until [ "$(readlink "/proc/${running[0]}/exe")" = "$1" ]; do kill -0 "${running[0]}"; sleep 0.01; done
}

expect ""
"$folder/own/program" 1000 &
running=($!)
await "$folder/own/program"
expect "${running[0]} $folder/own/program"
stop

# shellcheck disable=SC2016 # the inner shell expands it
unshare -m bash -c 'mount --bind "$0/other" "$0/own" && exec "$0/own/program" 1000' "$folder" &
running=($!)
await "$folder/own/program"
expect ""
stop

head -c 4096 /dev/zero >"$segment"
expect "$segment"
python3 -c 'import mmap, sys, time
segment = open(sys.argv[1], "r+b")
memory = mmap.mmap(segment.fileno(), 4096)
time.sleep(1000)' "$segment" &
running=($!)
until grep -qsF "$segment" "/proc/${running[0]}/maps"; do kill -0 "${running[0]}"; sleep 0.01; done
expect "" # another run's daemon has just made it
mv "$segment" "$segment.longer" # the process maps it by the longer path now
head -c 4096 /dev/zero >"$segment"
expect "$segment"
rm "$segment.longer"
stop
expect "$segment"

found=$("$leftovers" "$folder/none" "$folder/own" 2>&1) && { echo "it read no list"; exit 1; }
[ "$found" = "leftovers: cannot read $folder/none" ] || { echo "it said '$found'"; exit 1; }
