#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
#
# test_install.sh BUILD CC VERSION [FLAG...]: installs the build into a prefix. Then it compiles
# README's example twice, with pkg-config alone and in a CMake project that uses aule, and runs both
# with the installed daemon. FLAGs (of a sanitizer) are for compiler and linker.

set -euo pipefail
build=$1 cc=$2 version=$3
flags=("${@:4}")
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
work=$(mktemp -d /tmp/aule-install-XXXXXX)
prefix=$work/prefix
daemon=

finish()
{
    [ -z "$daemon" ] || kill -KILL "$daemon" 2>/dev/null || true
    rm -rf "$work"
}
trap finish EXIT

fail()
{
    echo "test_install: $*" >&2
    [ ! -f "$work/log" ] || tail -n 40 "$work/log" >&2
    exit 1
}

# check_units TREE PREFIX: both units below TREE start the daemon of PREFIX.
check_units()
{
    local unit
    for unit in "$1$2"/lib/systemd/{system,user}/aule@.service; do
        grep -qxF "ExecStart=\"$2/bin/aule-daemon\" --device %I" "$unit" ||
            fail "$unit: $(grep ^ExecStart "$unit")"
        [ -x "$1$2/bin/aule-daemon" ] || fail "$unit starts a program that does not exist"
    done
}
DESTDIR=$work/stage cmake --install "$build" --prefix "/opt/of ours" >"$work/install.log" ||
    fail "staged: $(cat "$work/install.log")"
check_units "$work/stage" "/opt/of ours"
cmake --install "$build" --prefix "$prefix" >"$work/install.log" ||
    fail "cmake --install: $(cat "$work/install.log")"
check_units "" "$prefix"

library=$(find "$prefix" -name 'libaule-client.so')
[ -n "$library" ] || fail "no libaule-client.so below $prefix"
libdir=$(dirname "$library")

# The library: its name, the libraries that it needs, the symbols that it exports.
soname=libaule-client.so.${version%.*}
readelf -d "$library" | grep -F SONAME | grep -qF "[$soname]" ||
    fail "the library's SONAME is not $soname"
[ "$(readlink -f "$libdir/$soname")" = "$(readlink -f "$library")" ] ||
    fail "$soname is not the library"
[ "$(readlink -f "$library")" = "$(readlink -f "$libdir")/libaule-client.so.$version" ] ||
    fail "no libaule-client.so.$version"
if readelf -d "$library" | grep -E 'NEEDED.*(stdc\+\+|flatbuffers|vulkan|nng|mbed)'; then
    fail "the library needs more than libc"
fi
strangers=$(nm -D --defined-only "$library" | awk '$2 != "A" { sub(/@.*/, "", $3); print $3 }' |
    grep -v '^aule_' || true)
[ -z "$strangers" ] || fail "the library exports $strangers"

# The library exports every function of the headers, with a version.
functions()
{
    grep -hoE "^$1 .*\baule_[a-z_]+\(" "${@:2}" | grep -oE 'aule_[a-z_]+\($' | tr -d '(' | sort -u
}
functions AULE_API "$prefix"/include/aule/*.h >"$work/declared"
nm -D --defined-only --with-symbol-versions "$library" |
    sed -n 's/.* T \(.*\)@@AULE_0\.2$/\1/p' | sort -u >"$work/exported"
diff "$work/declared" "$work/exported" || fail "headers and library differ"
diff <(functions AULE_INLINE "$prefix/include/aule/aule.h" | sed 's/$/_sized/' | sort) \
    <(functions AULE_API "$prefix/include/aule/sized.h") || fail "aule.h (<) and sized.h (>) differ"

# pkg-config alone.
export PKG_CONFIG_PATH=$libdir/pkgconfig
[ "$(pkg-config --modversion aule-client)" = "$version" ] ||
    fail "pkg-config says $(pkg-config --modversion aule-client)"
read -ra words <<<"$(pkg-config --cflags --libs aule-client)"
for word in "${words[@]}"; do
    case $word in
        -I*) [ "$(readlink -f "${word#-I}")" = "$(readlink -f "$prefix/include")" ] ||
            fail "pkg-config: $word" ;;
        -L*) [ "$(readlink -f "${word#-L}")" = "$(readlink -f "$libdir")" ] ||
            fail "pkg-config: $word" ;;
        -laule-client) ;;
        *) fail "pkg-config: $word" ;;
    esac
done
source=$here/../../examples/02_prompt.c
"$cc" -std=c11 -Wall -Wextra -Werror "${flags[@]}" "$source" "${words[@]}" -o "$work/example"
nm -D "$work/example" | grep -q ' U aule_run_sized@AULE_0.2$' ||
    fail "the example calls $(nm -D "$work/example" | grep aule_run)"

# A CMake project.
mkdir "$work/project"
cat >"$work/project/CMakeLists.txt" <<'END'
cmake_minimum_required(VERSION 3.25)
project(consumer LANGUAGES C)
find_package(aule 0.2 REQUIRED)
add_executable(consumer ${EXAMPLE})
target_link_libraries(consumer PRIVATE aule::client)
END
cmake -G Ninja -S "$work/project" -B "$work/project/build" -DCMAKE_PREFIX_PATH="$prefix" \
    -DCMAKE_C_COMPILER="$cc" -DCMAKE_C_FLAGS="${flags[*]}" -DEXAMPLE="$source" \
    >"$work/cmake.log" 2>&1 || fail "$(cat "$work/cmake.log")"
cmake --build "$work/project/build" >"$work/cmake.log" 2>&1 || fail "$(cat "$work/cmake.log")"

# The programs find the library relative to their own place, even after the prefix has moved.
mv "$prefix" "$work/moved"
libdir=$work/moved${libdir#"$prefix"} prefix=$work/moved
for program in "aule-ctl version" "aule-worker --version" "aule-daemon --version"; do
    read -ra words <<<"$program"
    said=$("$prefix/bin/${words[0]}" "${words[1]}") ||
        fail "${words[0]} does not start from the prefix"
    [[ $said =~ ^${words[0]}\ +$version($'\n'|$) ]] || fail "$program says: $said"
done

# Each program has a man page with its options and version, and a completion that bash accepts.
for page in aule-daemon.8 aule-ctl.1 aule-worker.1 aule-bench.1; do
    program=$prefix/bin/${page%.*}
    [ -x "$program" ] || continue
    manual=$(find "$prefix" -path "*/man${page#*.}/$page")
    [ -n "$manual" ] || fail "no man page $page below $prefix"
    diff <(sed -n '/^\.SH OPTIONS/,/^\.SH [^O]/{/^\.BI/{s/\\//g;p}}' "$manual" |
        grep -oE -- '--[a-z-]+' | sort) \
        <("$program" --help | grep -oE '^  --[a-z-]+' | tr -d ' ' | sort) ||
        fail "$page (<) and ${page%.*} --help (>) differ"
    grep -q "^\.TH .*\"aule $version\"" "$manual" || fail "$page is of another version"
    completion=$prefix/share/bash-completion/completions/${page%.*}
    # shellcheck disable=SC1090
    (set -eu; source "$completion"; complete -p "${page%.*}") >/dev/null ||
        fail "$completion is no completion"
done

# Starts the daemon and waits until it answers. The example finds the socket by the default rule.
mkdir -m 700 "$work/run"
export AULE_RUNTIME_DIR=$work/run
unset AULE_SOCKET
options=()
[ "${AULE_TEST_VALIDATION:-}" != 1 ] || options=(--validation)
"$prefix/bin/aule-daemon" --socket "$work/run/0.sock" --cache-folder none "${options[@]}" \
    >"$work/log" 2>&1 &
daemon=$!
ready=no
for ((second = 0; second < 300; second++)); do
    if "$prefix/bin/aule-ctl" ping >/dev/null 2>&1; then
        ready=yes
        break
    fi
    kill -0 "$daemon" 2>/dev/null || fail "the daemon ended"
    sleep 1
done
[ $ready = yes ] || fail "the daemon does not answer"

# These programs are not installed, so they need the path of the library.
example() { LD_LIBRARY_PATH=$libdir${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} "$@"; }
example "$work/example" >"$work/first" || fail "the example failed"
example "$work/project/build/consumer" >"$work/second" || fail "the CMake project's example failed"
grep -q '^0 of 64 tokens were in the cache' "$work/first" || fail "first run: $(cat "$work/first")"
grep -q '^64 of 64 tokens were in the cache' "$work/second" ||
    fail "second run: $(cat "$work/second")"
diff <(grep 'out begins' "$work/first") <(grep 'out begins' "$work/second") ||
    fail "the shared blocks give another output"

kill -TERM "$daemon"
code=0
wait "$daemon" || code=$?
daemon=
[ $code = 0 ] || fail "the daemon ended with $code"
[ ${#options[@]} = 0 ] || grep -q 'validation: 0 messages' "$work/log" ||
    fail "the validation layer reported something"
cat "$work/second"
