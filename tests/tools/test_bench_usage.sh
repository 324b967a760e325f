#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
#
# test_bench_usage.sh BENCH: if a command, a workload or another option excludes an option,
# aule-bench refuses with a sentence that names both and with exit code 2, before it measures
# anything.

set -uo pipefail
bench=${1:?}
bad=0

# refused SENTENCE ARGUMENT...
refused()
{
    local said code sentence=$1
    shift
    said=$("$bench" "$@" 2>&1 </dev/null)
    code=$?
    if [ $code != 2 ] || [ "$said" != "aule-bench: $sentence" ]; then
        echo "aule-bench $*: exit code $code: $said"
        bad=1
    fi
}

# value OPTION: something that the option takes, or nothing for a switch.
value()
{
    case $1 in
        via) echo ring ;;
        dtype | kv-dtype) echo f16 ;;
        device | variant | daemon | socket) echo x ;;
        clients | splits | head-dim | seconds | pool | part | in-flight) echo 1 ;;
    esac
}

[ "$("$bench" -h)" = "$("$bench" --help)" ] || { echo "-h is not --help"; bad=1; }
measuring=(via clients device variant dtype kv-dtype head-dim splits no-cascade seconds
    pool check json verbose daemon full)
[ "$("$bench" --help | grep -cE '^ +--')" = $((${#measuring[@]} + 2)) ] ||
    { echo "--help has other options than these and version and help"; bad=1; }
for option in "${measuring[@]}"; do
    read -ra words <<<"--$option $(value "$option")"
    refused "list takes no --$option; run does" list "${words[@]}"
done
for option in socket part in-flight append; do
    read -ra words <<<"--$option $(value "$option")"
    refused "run takes no --$option" run D5 "${words[@]}"
done

refused "--seconds does not go with --check: a check measures nothing" run D5 --seconds 1 --check
for option in no-cascade verbose; do
    refused "--$option goes with --via engine only, not with --via nng" run D5 --via nng "--$option"
done
refused "--clients 2 needs --via nng or ring: an engine serves one process" run D5 --clients 2
refused '--clients "0" is not a whole number from 1 to 4096' run D5 --clients 0
refused "--daemon does not go with --via engine, which starts no daemon" run D5 growth --daemon x
refused "--head-dim 100 is no multiple of 8 up to 512" run D5 --head-dim 100
refused '--head-dim "520" is not a whole number from 0 to 512' run D5 --head-dim 520
refused "study border takes no --head-dim: its cases determine that" run border --head-dim 64
refused '--dtype "f8" is none of f32, f16 and bf16' run D5 --dtype f8
refused '--kv-dtype "f8" is none of f32, f16, bf16, fp8_e4m3, fp8_e5m2 and int8' \
    run D5 --kv-dtype f8
refused "D5 has 8 sequences, too few for 9 clients" run D1 D5 --via ring --clients 9
refused "study border takes no --clients: its cases determine that" \
    run D1 border --clients 3 --check
refused "D6 has K and V in fp8_e4m3 and cannot take --kv-dtype bf16" run D5 D6 --kv-dtype bf16

for study in border clients growth cached isolation; do
    for option in via clients kv-dtype no-cascade; do
        read -ra words <<<"--$option $(value "$option")"
        [ "$option" != clients ] || words=(--clients 1)
        [ "$option" != via ] || words=(--via engine)
        refused "study $study takes no --$option: its cases determine that" \
            run D5 "$study" "${words[@]}"
    done
done
for study in border growth cached isolation; do
    for option in splits pool; do
        refused "study $study takes no --$option: its cases determine that" \
            run "$study" "--$option" 1
    done
done
refused "--full goes with the study isolation only, not with D5" run D5 --full
refused "study border takes no --full: its cases determine that" run border --full
refused "study growth takes no --dtype: its cases determine that" run growth --dtype f32

refused "--bogus is no option; see aule-bench --help" run D5 --bogus
refused "-x is no option; see aule-bench --help" run D5 -x
refused '--json takes no value, but got "1"' run D5 --json=1
refused "--seconds needs a value: S" run D5 --seconds
refused "--c is no option; write the whole name: --clients or --check" \
    run D5 --c
refused "name a command: list and run"
refused '"draw" is no command; there are list and run' draw
refused "list takes no 'D5'" list D5
refused "run needs names; aule-bench list has them" run
refused "there is no workload 'D99'; aule-bench list has them" run D99
range="N sequences (1 to 999999) of LENGTH tokens (1 to 99999999)"
refused "'decode:2' is not decode:NxLENGTH, $range" run decode:2
refused "'prefill:x9' is not prefill:NxLENGTH, $range" run prefill:x9
refused "'shared:2x33+1' is not shared:NxPREFIX+OWN, N sequences (1 to 999999) that share PREFIX \
tokens (a multiple of 32) and have OWN more (1 to 99999999)" run shared:2x33+1
refused "there is no workload 'd5'; did you mean 'D5'?" run d5
[ $bad = 0 ] && echo "each command takes its own options only, and says so"
exit $bad
