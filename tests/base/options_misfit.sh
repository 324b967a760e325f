#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
#
# options_misfit.sh CC ROOT: an option whose field has another type than its kind stores does not
# compile.
set -euo pipefail
cc=$1 root=$2
bad=0

# compile KIND FIELD: the compiler's sentences; its exit code.
compile()
{
    "$cc" -std=gnu17 -fsyntax-only -I"$root" -DKIND="OPTION_$1" -DFIELD="$2" \
        "$root/tests/base/options_misfit.c" 2>&1
}

# fits KIND FIELD...
fits()
{
    local kind=$1 field
    for field in "${@:2}"; do
        compile "$kind" "$field" || { echo "$kind refuses $field"; bad=1; }
    done
}

# misfits KIND FIELD...
misfits()
{
    local kind=$1 field said
    for field in "${@:2}"; do
        if said=$(compile "$kind" "$field"); then
            echo "$kind takes $field"
            bad=1
        elif [[ $said != *"does not fit the kind"* ]]; then
            echo "$kind, $field: $said"
            bad=1
        fi
    done
}

fits FLAG flag
fits TEXT text
fits NUMBER number
misfits FLAG word half text
misfits TEXT changeable words flag
misfits NUMBER narrow words
for kind in COUNT BYTES CONSTANT CHOICE; do
    fits $kind word words choice
    misfits $kind half flag narrow number text
done
[ $bad -ne 0 ] || echo 'each kind takes the types that it stores, and no other'
exit $bad
