#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
#
# lint.sh format|shell|license|text|cases|tidy BUILD: checks that a reader should not have to do.
# `text` checks white space as .editorconfig has it; `cases`, that tests/on-gpu knows all cases of
# its programs; `tidy` runs .clang-tidy over the C files of BUILD.
# Exit code: 0 passed, 1 failed, 77 cannot check here.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

# The tree's own files, without build folders. NAME... are patterns of find.
files()
{
    local name=(-name "$1") pattern
    shift
    for pattern in "$@"; do
        name+=(-o -name "$pattern")
    done
    find . -path ./build -prune -o -path ./shared -prune -o -path './.?*' ! -path './.ci*' -prune \
        -o -type f \( "${name[@]}" \) -print | sort
}

scripts()
{
    grep -rlE --exclude-dir=build --exclude-dir=shared --exclude-dir=.git '^#!/bin/(ba)?sh' \
        tools tests .ci
}

# Another version of clang-format has another layout, which is not wrong.
check_format()
{
    local version list
    version=$(clang-format --version | grep -oE 'version [0-9]+' | head -n 1)
    if [ "$version" != "version 14" ]; then
        echo "skipped: the tree is laid out by clang-format 14; this one is $version"
        exit 77
    fi
    mapfile -t list < <(files '*.c' '*.h' '*.cc')
    [ ${#list[@]} -gt 0 ]
    if ! printf '%s\0' "${list[@]}" | xargs -0 -P 2 -n 40 clang-format --dry-run -Werror; then
        echo "clang-format would lay out the files above differently"
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
        files '*.c' '*.h' '*.cc' '*.comp' '*.glsl' '*.fbs' '*.cmake' 'CMakeLists.txt' \
            'packages.txt' 'requirements.txt' '*.map' '*.py' '*.toml' '*.[1-8].in' '*.service.in'
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

# Every text file has no tab, no white space at a line's end, no carriage return, and a newline at
# its end.
check_text()
{
    local list file bad=()
    mapfile -t list < <(find . -path ./build -prune -o -path ./shared -prune -o \
        -path './.git' -prune -o -path './.?*' -type d ! -path ./.ci -prune -o \
        -type f -size +0 -print | sort)
    [ ${#list[@]} -gt 0 ]
    for file in "${list[@]}"; do
        grep -qI . "$file" || continue # not text
        ! grep -HnP '\t|[ \r]$' "$file" && [ -z "$(tail -c 1 "$file")" ] || bad+=("$file")
    done
    if [ ${#bad[@]} -gt 0 ]; then
        echo "tabs, white space at a line's end, or no newline at the end of: ${bad[*]}"
        return 1
    fi
    echo "${#list[@]} files have no tabs and no white space at a line's end, and end with a newline"
}

# The cases of test_engine and test_attention, as their sources name them.
check_cases()
{
    local list name bad=()
    local -r files=(tests/engine/test_engine_*.c tests/attention/test_attention*.c)
    mapfile -t list < <(
        grep -hoP '(tcase_create\(|check_case\(suite, |suite_part\(suite, )"\K[^"]+' "${files[@]}"
        grep -hoP 'check_either\(.*\{"\K[^}]+(?="\})' "${files[@]}" | sed 's/", "/\n/'
    )
    [ ${#list[@]} -gt 0 ]
    for name in "${list[@]}"; do
        grep -qE "[( ]\"?$name([:\" )]|\$)" tests/on-gpu || bad+=("$name")
    done
    if [ ${#bad[@]} -gt 0 ]; then
        printf 'tests/on-gpu does not run the case "%s"\n' "${bad[@]}"
        return 1
    fi
    echo "tests/on-gpu runs all ${#list[@]} cases"
}

# The files of compile_commands.json in folders that ship. element.c and values.c are left out,
# because clang 14 has no _Float16 on x86. Another version of clang-tidy has other checks.
check_tidy()
{
    local version list
    version=$(clang-tidy --version | grep -oE 'version [0-9]+' | head -n 1)
    if [ "$version" != "version 14" ]; then
        echo "skipped: the tree is clean by clang-tidy 14; this one is $version"
        exit 77
    fi
    mapfile -t list < <(
        jq -r --arg root "$PWD/" '.[].file | select(startswith($root)) | ltrimstr($root)' \
            "$1/compile_commands.json" |
            grep -E '^(base|schema|daemon|client|examples|tools)/.*\.c$' |
            grep -vE '/(element|values)\.c$' | sort -u
    )
    [ ${#list[@]} -gt 0 ]
    printf '%s\0' "${list[@]}" | xargs -0 -P 2 -n 8 clang-tidy -p "$1" --quiet
    echo "${#list[@]} files pass clang-tidy"
}

case ${1:-} in
    format) check_format ;;
    shell) check_shell ;;
    license) check_license ;;
    text) check_text ;;
    cases) check_cases ;;
    tidy) check_tidy "${2:?the build folder}" ;;
    *) echo "usage: lint.sh format|shell|license|text|cases|tidy BUILD" >&2; exit 1 ;;
esac
