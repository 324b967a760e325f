#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
#
# Two network namespaces stand for two machines: a daemon in each, and a redis-server in the first
# one. What a worker has computed on the first machine, a worker on the second one does not compute.
# When the cable is pulled, the second machine computes. Needs root.
#     test_tier_networks.sh AULE_DAEMON AULE_CTL AULE_WORKER PROMPT
set -euo pipefail
daemon=$1 ctl=$2 worker=$3 prompt=$4
first=aule-$$-first second=aule-$$-second
readonly block=32 address=192.0.2.1 port=6379 # in the namespaces alone
folder=$(mktemp -d)
pids=()

finish()
{
    local code=$?
    trap - EXIT
    [ ${#pids[@]} -eq 0 ] || kill "${pids[@]}" 2>/dev/null || true
    wait || true
    ip netns delete "$second" 2>/dev/null || true
    ip netns delete "$first" 2>/dev/null || true
    rm -rf "$folder"
    exit $code
}
trap finish EXIT
trap 'exit 143' INT TERM

skip() { echo "$*"; exit 77; }
die()
{
    echo "$*"
    tail -n 20 "$folder"/*.log
    exit 1
}

command -v ip >/dev/null || skip "there is no ip (iproute2)"
command -v redis-server >/dev/null || skip "there is no redis-server"
ip netns add "$first" 2>"$folder/why" ||
    skip "no network namespace can be made: $(cat "$folder/why")"
ip netns add "$second"
ip -n "$first" link add v0 type veth peer name v0 netns "$second" 2>"$folder/why" ||
    skip "no veth can be made: $(cat "$folder/why")"
ip -n "$first" address add $address/30 dev v0
ip -n "$second" address add 192.0.2.2/30 dev v0
ip -n "$first" link set lo up # a server reaches its own address by this
ip -n "$first" link set v0 up
ip -n "$second" link set v0 up

ip netns exec "$first" redis-server --bind $address --port $port --protected-mode no --save "" \
    --maxmemory 256mb --maxmemory-policy allkeys-lru --dir "$folder" >"$folder/redis.log" 2>&1 &
pids+=($!)

start_daemon() # NAMESPACE NAME
{
    local i
    ip netns exec "$1" "$daemon" --socket "$folder/$2" --cache-folder none \
        --tier redis://$address:$port --tier-deadline 60000 >"$folder/$2.log" 2>&1 &
    pids+=($!)
    for ((i = 0; i < 1200; i++)); do
        grep -q "ready: aule-daemon" "$folder/$2.log" && return 0
        if ! kill -0 "${pids[-1]}" 2>/dev/null; then
            grep -qi "no.*device" "$folder/$2.log" && skip "there is no device"
            break
        fi
        sleep 0.1
    done
    die "the $2 daemon did not start"
}

run_worker() # NAMESPACE NAME ENDING
{
    ip netns exec "$1" "$worker" --socket "$folder/$2" --prompt "$prompt" --append "$3" \
        --tokens 8 --block-size $block --cache-name networks --json \
        >"$folder/$2.json" 2>"$folder/$2.err.log" ||
        die "the worker at the $2 daemon failed"
}

field() # NAME KEY: of the worker's report
{
    tr -d '\n' <"$folder/$1.json" | sed -E "s/.*\"$2\":[[:space:]]*(\[[^]]*\]|[0-9]+).*/\1/"
}

stored()
{
    "$ctl" metrics --socket "$folder/one" |
        sed -n 's/^aule_tier_stored_blocks_total{tier="redis"} *\([0-9]*\).*/\1/p'
}

start_daemon "$first" one
start_daemon "$second" two
ending=" to the first machine."
blocks=$((($(wc -c <"$prompt") + ${#ending}) / block))
run_worker "$first" one "$ending"
[ "$(field one hit_blocks)" = 0 ] || die "the first worker found $(field one hit_blocks) blocks"
for ((i = 0; i < 600 && $(stored) < blocks; i++)); do sleep 0.1; done
run_worker "$second" two "$ending"
[ "$(field two hit_blocks)" = $blocks ] ||
    die "the second machine found $(field two hit_blocks) blocks of $blocks"
[ "$(field one token_ids)" = "$(field two token_ids)" ] || die "the tokens differ"
echo "the second machine found all $blocks blocks of the first one"

ip -n "$second" link set v0 down
ending=", and the cable was pulled."
run_worker "$first" one "$ending"
run_worker "$second" two "$ending"
[ "$(field one token_ids)" = "$(field two token_ids)" ] || die "the tokens differ without a cable"
echo "without a cable the second machine computed the same tokens"
