#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
#
# schema_generate.sh AWK GENERATE: what generate.awk makes of small schemas, and what it refuses.
# schema/wire.cc compares the result for aule.fbs with flatc's; here stand the cases that aule.fbs
# does not have yet.
set -euo pipefail
awk=$1 generate=$2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
bad=0

complain()
{
    echo "$*"
    bad=1
}

# schema DECLARATIONS COMMAND-FIELDS ANSWER-FIELDS: a whole schema with one command and one answer.
schema()
{
    cat <<FBS
struct Tensor { memory:uint; }
$1
table Ask { $2 }
table AskReply { $3 }
union Command { Ask }
union Answer { AskReply }
table Request { command:Command; }
table Reply { message:string; answer:Answer; }
FBS
}

# makes PART LINE DECLARATIONS COMMAND-FIELDS ANSWER-FIELDS: the part has this line.
makes()
{
    part=$1 line=$2
    shift 2
    schema "$@" >"$folder/in.fbs"
    "$awk" -v part="$part" -f "$generate" "$folder/in.fbs" >"$folder/out.h" ||
        complain "refused: $*"
    grep -qF -- "$line" "$folder/out.h" ||
        complain "\"$line\" is not in $part of: $* $(cat "$folder/out.h")"
}

# refuses WORDS DECLARATIONS COMMAND-FIELDS ANSWER-FIELDS: the build stops with these words.
refuses()
{
    words=$1
    shift
    schema "$@" >"$folder/in.fbs"
    if "$awk" -v part=types -f "$generate" "$folder/in.fbs" >"$folder/out.h" 2>"$folder/error"; then
        complain "not refused: $*"
    fi
    grep -qF -- "$words" "$folder/error" ||
        complain "\"$words\" is not said of: $* $(cat "$folder/error")"
}

# Room for each list that decoding may allocate.
makes types 'void *owned[1];' '' '' 'names:[string];'
makes types 'void *owned[2];' '' '' 'names:[string]; tensors:[Tensor]; numbers:[int];'
in='table In { names:[string]; tensors:[Tensor]; }'
makes types 'void *owned[3];' "$in" '' 'more:[string]; in:In;'
deep='table Deep { names:[string]; } table In { deep:Deep; }'
makes types 'void *owned[2];' "$deep" '' 'in:In; names:[string];'
makes fields 'X(Tensor, tensor)' 'table In { tensors:[Tensor]; }' 'in:In;' 'x:uint;'
refuses 'a command has no list of strings (Ask.names)' '' 'names:[string];' ''
refuses 'a command has no list of strings (In.names)' 'table In { names:[string]; }' 'in:In;' ''
refuses 'a table contains itself (In)' 'table In { in:In; }' 'in:In;' ''

# The highest `since` is the minor version.
makes types '#define WIRE_PROTOCOL_MINOR 0u' '' 'x:uint;' ''
makes types '#define WIRE_PROTOCOL_MINOR 3u' 'table In (since: 2) { x:uint; }' 'in:In (since: 3);' ''
makes types '#define WIRE_PROTOCOL_MINOR 2u' 'table In (since: 2) { x:uint; }' 'in:In;' ''

# Values of enums.
makes structs 'WIRE_RUN_B = 3,' 'enum RunKind : uint { A, B = 3, C }' '' ''
makes structs 'WIRE_RUN_C = 4,' 'enum RunKind : uint { A, B = 3, C }' '' ''
makes structs 'WIRE_RUN_B = 1u << 4,' 'enum RunFlag : uint (bit_flags) { A, B = 4 }' '' ''
makes fields 'X(RunKind, B, WIRE_RUN_B)' 'enum RunKind : uint { A, B = 3, C }' '' ''
refuses 'is expected behind "0" of RunKind' 'enum RunKind : uint { A = 0x3 }' '' ''
refuses '"-" is no whole number (RunKind.A)' 'enum RunKind : int { A = -1 }' '' ''
refuses 'is expected behind "Other"' 'union Either { Other:Ask }' '' ''

[ $bad -ne 0 ] || echo 'generate.awk makes and refuses what it should'
exit $bad
