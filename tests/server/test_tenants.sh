#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
#
# Users of a --tenant group share prompts, each through its own session; another user is refused,
# and a member looks into nobody else's sessions. Needs root, which becomes other users.
#     test_tenants.sh AULE_DAEMON AULE_CTL README_EXAMPLE LIBRARY_FOLDER
set -eu
# shellcheck source=/dev/null
. "$(dirname "$0")/../rigs/await_daemon.sh"
[ "$(id -u)" = 0 ] || { echo "only root can become other users"; exit 77; }
command -v setpriv >/dev/null || { echo "there is no setpriv"; exit 77; }
folder=$(mktemp -d)
trap 'kill $daemon 2>/dev/null || true; rm -rf "$folder"' EXIT
daemon=
chmod 755 "$folder"
cp "$1" "$2" "$3" "$folder"
cp -a "$4"/libaule-client.so* "$folder"
export AULE_SOCKET="$folder/run/s" LD_LIBRARY_PATH="$folder" AULE_DAEMON_UID=64001
as() { # UID GID COMMAND...
    uid=$1 gid=$2
    shift 2
    setpriv --reuid "$uid" --regid "$gid" --clear-groups "$@"
}
mkdir -m 755 "$folder/run"
chown 64001:64001 "$folder/run"
setpriv --reuid 64001 --regid 64001 --clear-groups "$folder/aule-daemon" --socket "$AULE_SOCKET" --cache-folder none \
    --tenant team=uid:64002,gid:64003,blocks:100 2>"$folder/log" &
daemon=$!
await_daemon $daemon "$folder/log"
if command -v prlimit >/dev/null; then
    prlimit --nproc=20 setpriv --reuid 64007 --regid 64007 --clear-groups "$folder/aule-daemon" \
        --socket "$folder/other" --cache-folder none 2>"$folder/few" &&
        { echo "a daemon starts without threads"; exit 1; }
    grep -q "threads that the daemon and a driver may need.*RLIMIT_NPROC" "$folder/few" ||
        { cat "$folder/few"; exit 1; }
fi
expect() { # TEXT COMMAND...: the command prints the text
    text=$1
    shift
    "$@" >"$folder/out" 2>&1 || true
    grep -q "$text" "$folder/out" || { echo "no \"$text\" from: $*"; cat "$folder/out"; exit 1; }
}
expect "^0 of .* in the cache" as 64002 64002 "$folder/example_prompt"
expect "^[1-9][0-9]* of .* in the cache" as 64009 64003 "$folder/example_prompt"
expect "^0 of .* in the cache" as 64001 64001 "$folder/example_prompt"
expect "DENIED.*has uid 64010" as 64010 64010 "$folder/example_prompt"
expect "DENIED\|only uid 64001 and root may" as 64002 64002 "$folder/aule-ctl" tenants
expect " team " "$folder/aule-ctl" tenants
expect "most used.*most cached" "$folder/aule-ctl" tenants
grep -q 'opened, uid 64002, tenant "team"' "$folder/log" || { echo "the log names no tenant"; exit 1; }
# The sentence says all that helps.
expect '"hint":[^a-z]*null' as 64002 64002 "$folder/aule-ctl" tenants --json
expect "limit_blocks" "$folder/aule-ctl" limit team=blocks:1 --json
expect "QUOTA.*tenant \"team\"" as 64002 64002 "$folder/example_prompt"
