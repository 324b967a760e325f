#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
#
# lint.sh format|shell|license: what a reader should not have to check. Exit code: 0 fine, 1 not, 77 cannot tell here.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# The tree's own files, without build folders; NAME... are patterns of find.
files()
{
    local name=(-name "$1") pattern
    shift
    for pattern in "$@"; do
        name+=(-o -name "$pattern")
    done
    find . -path ./build -prune -o -path ./shared -prune -o -path './.?*' ! -path './.ci*' -prune -o -type f \( "${name[@]}" \) -print | sort
}

scripts() { grep -rlE --exclude-dir=build --exclude-dir=shared --exclude-dir=.git '^#!/bin/(ba)?sh' tools tests .ci; }

# Another clang-format would lay out differently without being wrong.
check_format()
{
    local version list file bad=()
    version=$(clang-format --version | grep -oE 'version [0-9]+' | head -n 1)
    if [ "$version" != "version 14" ]; then
        echo "skipped: the tree is laid out by clang-format 14; this one is $version"
        exit 77
    fi
    mapfile -t list < <(files '*.c' '*.h' '*.cc')
    [ ${#list[@]} -gt 0 ]
    for file in "${list[@]}"; do
        clang-format --dry-run -Werror "$file" || bad+=("$file")
    done
    if [ ${#bad[@]} -gt 0 ]; then
        echo "clang-format would lay out differently: ${bad[*]}"
        return 1
    fi
    echo "${#list[@]} files are as clang-format leaves them"
}

check_shell()
{
    local list
    mapfile -t list < <(scripts)
    [ ${#list[@]} -gt 0 ]
    shellcheck "${list[@]}"
    echo "${#list[@]} scripts pass shellcheck"
}

check_license()
{
    local list file bad=()
    mapfile -t list < <(
        files '*.c' '*.h' '*.cc' '*.comp' '*.glsl' '*.fbs' '*.cmake' 'CMakeLists.txt' 'packages.txt' '*.map' '*.[1-8]' '*.service'
        scripts
    )
    [ ${#list[@]} -gt 0 ]
    for file in "${list[@]}"; do
        if ! head -n 4 "$file" | grep -q 'SPDX-License-Identifier: Apache-2.0' ||
            ! head -n 4 "$file" | grep -q 'SPDX-FileCopyrightText: The aule authors'; then
            bad+=("$file")
        fi
    done
    if [ ${#bad[@]} -gt 0 ]; then
        echo "the two SPDX lines are not on top of: ${bad[*]}"
        return 1
    fi
    echo "${#list[@]} files have the two SPDX lines on top"
}

case ${1:-} in
    format) check_format ;;
    shell) check_shell ;;
    license) check_license ;;
    *) echo "usage: lint.sh format|shell|license" >&2; exit 1 ;;
esac
