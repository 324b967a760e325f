# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
# shellcheck shell=sh
#
# await_daemon PID LOG: waits until the daemon's log says that it is ready. Exits with 77 if there is
# no device for it, and with 1 if it ends or takes two minutes.

await_daemon() {
    await_tries=0
    until grep -q "ready: aule-daemon" "$2"; do
        await_tries=$((await_tries + 1))
        if [ $await_tries -gt 1200 ] || ! kill -0 "$1" 2>/dev/null; then
            cat "$2"
            grep -qi "no.*device" "$2" && exit 77
            exit 1
        fi
        sleep 0.1
    done
}
