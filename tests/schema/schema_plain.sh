#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
#
# schema_plain.sh CC CXX ARCHIVE INCLUDE GENERATED SOURCE [FLAGS]: libaule_schema.a links with a C
# compiler alone and needs libc only. In a C++ program it leaves operator new alone. FLAGS: the
# sanitizers that the archive was built with; their runtime may be needed, too.
set -eu
cc=$1 cxx=$2 archive=$3 include=$4 generated=$5 source=$6 flags=${7:-}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# shellcheck disable=SC2086  # flags are words
"$cc" -std=gnu17 $flags -I"$include" -I"$generated" "$source" "$archive" -o "$folder/as_c"
"$folder/as_c"
wanted=$(objdump -p "$folder/as_c" | awk '$1 == "NEEDED" { print $2 }')
for library in $wanted; do
    case $library in
    libc.so.*) ;;
    libasan.so.* | libubsan.so.* | libtsan.so.* | libm.so.*)
        [ -n "$flags" ] || { echo "a C link needs $library"; exit 1; } ;;
    *) echo "a C link needs $library" && exit 1 ;;
    esac
done
if [ -z "$flags" ] && ldd "$folder/as_c" | grep -q 'libstdc++'; then
    echo "ldd shows libstdc++" && exit 1
fi
if nm -g --defined-only "$archive" | grep -E ' (_Zn[wa]|_Zd[la]|__cxa_)'; then
    echo "the archive exports operator new, delete or a part of the C++ runtime"
    exit 1
fi

# shellcheck disable=SC2086
"$cxx" -std=gnu++17 $flags -I"$include" -I"$generated" -x c++ "$source" -x none "$archive" \
    -o "$folder/as_cxx"
"$folder/as_cxx"
