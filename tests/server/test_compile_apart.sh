#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
#
# A daemon on a software device compiles in processes of its own, over a Mesa cache in its cache
# folder if the user has none. Where Mesa keeps nothing, the log says that it does not.
#     test_compile_apart.sh AULE_DAEMON AULE_CTL README_EXAMPLE LIBRARY_FOLDER
set -eu
# shellcheck source=/dev/null
. "$(dirname "$0")/../rigs/await_daemon.sh"
folder=$(mktemp -d)
daemon=
trap 'kill $daemon 2>/dev/null || true; rm -rf "$folder"' EXIT
chmod 700 "$folder"
start() { # CACHE_FOLDER [VARIABLE=VALUE]...
    cache=$1
    shift
    env -i PATH="$PATH" XDG_CACHE_HOME=/dev/null/none ${ASAN_OPTIONS:+ASAN_OPTIONS="$ASAN_OPTIONS"} "$@" "$program" \
        --socket "$folder/s" --cache-folder "$cache" 2>"$folder/log" &
    daemon=$!
    await_daemon $daemon "$folder/log"
    grep -q "runs on the CPU" "$folder/log" || {
        cat "$folder/log"
        echo "the device is no software device"
        exit 77
    }
}
stop() {
    kill $daemon
    wait $daemon || { cat "$folder/log"; exit 1; }
    daemon=
}
run() { # runs of new shapes
    AULE_SOCKET="$folder/s" LD_LIBRARY_PATH="$library" "$example" >"$folder/out" 2>&1 ||
        { cat "$folder/out"; exit 1; }
}
compiled_apart() {
    "$ctl" --socket "$folder/s" metrics | awk '/^aule_pipelines_compiled_apart_total/ {print $2}'
}
program=$1 ctl=$2 example=$3 library=$4

start "$folder/cache"
run
[ "$(compiled_apart)" -gt 0 ] || { echo "nothing was compiled apart"; cat "$folder/log"; exit 1; }
[ -n "$(find "$folder/cache/mesa" -type f -size +1k)" ] || { echo "Mesa keeps nothing"; exit 1; }
stop

# Others could put code into the folder "open", which the daemon would run.
mkdir "$folder/open"
chmod 777 "$folder/open"
for variable in NOTHING=1 XDG_CACHE_HOME="$folder/open" MESA_SHADER_CACHE_DISABLE=true; do
    cache=none
    [ "$variable" != MESA_SHADER_CACHE_DISABLE=true ] || cache=$folder/cache
    start "$cache" "$variable"
    grep -q "compiles new shapes among the runs" "$folder/log" ||
        { echo "$variable: the log does not say it"; cat "$folder/log"; exit 1; }
    run
    [ "$(compiled_apart)" = 0 ] || { echo "$variable: something was compiled apart"; exit 1; }
    stop
done
[ -z "$(find "$folder/open" -mindepth 1)" ] || { echo "Mesa uses a folder of others"; exit 1; }
echo "new shapes are compiled apart where Mesa keeps shaders"
