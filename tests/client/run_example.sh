#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
#
# run_example.sh DAEMON EXAMPLE - runs an example against a daemon of its own; the example's exit code.

set -euo pipefail
folder=$(mktemp -d)
export AULE_SOCKET=$folder/socket
trap 'kill "$daemon" 2>/dev/null; wait "$daemon" 2>/dev/null; rm -rf "$folder"' EXIT

"$1" --socket "$AULE_SOCKET" --cache-folder none >"$folder/log" 2>&1 &
daemon=$!
for ((try = 0; try < 1200; try++)); do
    [ ! -S "$AULE_SOCKET" ] || break
    sleep 0.1
done
"$2" || { status=$?; cat "$folder/log"; exit "$status"; }
