#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
#
# docs.sh BUILD [CC [write]]: README.md, CONTRIBUTING.md, docs/ and the READMEs of schema/ and
# shaders/ tell the truth.
# - README's C block is main() of examples/02_prompt.c. Every other C block compiles with
#   the public header alone. tests/python/test_docs.py runs the Python blocks.
# - The commands of sh blocks exist. So do the options of aule's programs and scripts there.
# - Tables of options, and the man pages, name exactly the options of --help. A table between
#   "<!-- options of PROGRAM -->" and "<!-- end of options -->" is the program's own; `write` puts
#   it there.
# - The table of aule-ctl's commands is that of its --help. The list of the ring lane's commands is
#   that of schema/aule.fbs.
# - Functions, variables of the environment and files that a document names exist.
# - Links lead to files and headings. A named test is in the file that is named for it. Each feature
#   has a test.
# - The worker's tolerances are those that are tested.
# - README has at most 150 lines, and lines other than tables, links and code at most 100 columns.

set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
build=$(cd "${1:?}" && pwd)
cc=${2:-cc}
cd "$root"
documents=(README.md CONTRIBUTING.md docs/*.md {examples,schema,shaders,tools/worker}/README.md)
bad=0

complain()
{
    echo "$*"
    bad=1
}

# ---- code blocks ----

# blocks LANGUAGE FILE: the lines of its code blocks of this language.
blocks()
{
    awk -v language="$1" '
        /^```/ { inside = !inside && $0 == "```" language; fence = !fence; next }
        inside' "$2"
}

# Each code block has a language, so that none goes unchecked.
check_languages()
{
    local file
    for file in "${documents[@]}" NOTEBOOK.md shaders/NOTEBOOK.md; do
        awk -v file="$file" '
            /^```/ && !inside && $0 !~ /^```(c|python|sh|text)$/ {
                print file ":" FNR ": a code block is none of: c, python, sh, text"
                bad = 1
            }
            /^```/ { inside = !inside }
            END { exit bad }' "$file" || bad=1
    done
}

check_example()
{
    diff <(blocks c README.md) <(sed -n '/^int main(void)$/,$p' examples/02_prompt.c) ||
        complain "README.md: the C block (<) is not main() of examples/02_prompt.c (>)"
}

# Blocks of one file are one source.
check_c()
{
    local file
    for file in "${documents[@]:1}"; do
        blocks c "$file" | "$cc" -std=c11 -Wall -Wextra -Werror -fsyntax-only -Iclient/include \
            -include aule/aule.h -x c - ||
            complain "$file: its C blocks do not compile"
    done
}

# The program of this name: of the build, a script of the tree, or of the system.
program()
{
    case $1 in
        aule-daemon) echo "$build/daemon/aule-daemon" ;;
        aule-ctl | aule-worker | aule-bench) echo "$build/tools/${1#aule-}/$1" ;;
        build/release/*) echo "$build/${1#build/release/}" ;;
        tools/*) echo "$root/$1" ;;
        build/example) echo true ;; # what the line before compiles
        *) echo "$1" ;;
    esac
}

# check_command FILE WORD...: one simple command of an sh block.
check_command()
{
    local file=$1 path word help
    shift
    while [[ ${1:-} =~ ^[A-Z_]+= ]]; do
        shift
    done
    [ $# -gt 0 ] || return 0
    [ "$1" != pip ] || return 0 # of a virtual environment
    path=$(program "$1")
    command -v "$path" >/dev/null || { complain "$file: there is no command $1"; return 0; }
    [[ $1 == *aule-* || $1 == tools/* ]] || return 0
    help=$("$path" --help) || complain "$file: $1 has no help"
    for word in "${@:2}"; do
        [[ $word != --* ]] || options <<<"$help" | grep -qxF -- "$word" ||
            complain "$file: $1 has no option $word"
    done
}

# Words may be quoted; no command of a document needs more of a shell than this.
check_sh()
{
    local file line command words
    for file in "${documents[@]}"; do
        while read -r line; do
            while read -r command; do
                command=$(sed -E 's/"[^"]*"/text/g; s/\$\([^)]*\)/text/g
                    s/[<>] ?[^ ]+//g' <<<"$command")
                read -ra words <<<"$command"
                [ ${#words[@]} -eq 0 ] || check_command "$file" "${words[@]}"
            done < <(sed -E 's/ #.*//; s/ *(&&|&|\|) */\n/g' <<<"$line")
        done < <(blocks sh "$file")
    done
}

# ---- options ----

# The tables of one section.
section() { sed -n "/^## $2\$/,/^## /p" "$1" | grep '^|' || true; }
options() { grep -oE '(^|[^a-z-])--[a-z][a-z-]+' | grep -oE -- '--[a-z][a-z-]+' | sort -u; }

# The long options in the headings of a man page's paragraphs.
manual() { sed -n '/^\.TP$/{n;s/\\-/-/g;p}' "$1" | options; }

# The commands that may go by ring, as schema/aule.fbs has them.
# shellcheck disable=SC2016 # the back quotes are Markdown's
ring_commands()
{
    sed -nE 's/^table ([A-Za-z]+) \(.*by_ring.*/`\1`,/p' schema/aule.fbs | tr '\n' ' ' |
        sed 's/, $/./' | fold -s -w 98 | sed 's/ *$//'
}

# with_tables FILE: the file with each program's own table in its place.
with_tables()
{
    local line name=
    while IFS= read -r line; do
        [[ $line != '<!-- end of '* ]] || name=
        [ -n "$name" ] || printf '%s\n' "$line"
        if [ "$line" = '<!-- commands of the ring lane -->' ]; then
            name=ring
            printf '\n%s\n\n' "$(ring_commands)"
        elif [[ $line =~ ^'<!-- options of '(.*)' -->'$ ]]; then
            name=${BASH_REMATCH[1]}
            printf '\n%s\n\n' "$("$(program "$name")" --print-options markdown)"
        fi
    done <"$1"
}

# tables check|write: complains of tables that are not the programs', or writes them.
tables()
{
    local file new
    for file in docs/operating.md docs/measuring.md schema/README.md tools/worker/README.md; do
        new=$(with_tables "$file")
        if [ "$1" = write ]; then
            printf '%s\n' "$new" >"$file"
        elif [ "$new" != "$(cat "$file")" ]; then
            complain "$file: a table of options is not its program's, or a list not its source's;" \
                "tests/lint/docs.sh BUILD CC write puts it there"
        fi
    done
}

# same_options FILE SECTION PROGRAM MANUAL: the first column of the section's tables, the program's
# help and its man page name the same options. The build may make the man page.
same_options()
{
    local table help difference path page=$4
    [ -e "$page" ] || page=$build/$4
    path=$(program "$3")
    table=$(section "$1" "$2" | cut -d'|' -f2 | options)
    help=$("$path" --help | grep -oE '^  +--[a-z-]+' | options)
    [ -n "$help" ] || complain "$3 --help names no option"
    difference=$(diff <(echo "$table") <(echo "$help")) ||
        complain "$1: '$2' (<) and $3 --help (>) differ: $difference"
    difference=$(diff <(manual "$page") <(echo "$help")) ||
        complain "$4 (<) and $3 --help (>) differ: $difference"
}

# The commands of aule-ctl, with their arguments and in their order.
# shellcheck disable=SC2016 # the back quotes are Markdown's
same_commands()
{
    local table help difference
    table=$(section docs/operating.md "aule-ctl: looking inside" |
        sed -nE 's/^\| `aule-ctl ([^`]*)`.*/\1/p' | sed 's/\\|/|/g')
    help=$("$(program aule-ctl)" --help |
        sed -n '/^Commands:$/,/^$/p' | sed -nE 's/^  ([^ ].*)/\1/p' | sed 's/  .*//')
    [ -n "$help" ] || complain "aule-ctl --help names no command"
    difference=$(diff <(echo "$table") <(echo "$help")) ||
        complain "docs/operating.md (<) and aule-ctl --help (>) differ in commands: $difference"
}

# ---- names ----

# spans FILE: what stands between back quotes, outside of code blocks.
# shellcheck disable=SC2016
spans()
{
    awk '/^```/ { code = !code; next } !code' "$1" | tr '\n' ' ' | grep -oE '`[^`]+`' | tr -d '`'
}

check_names()
{
    local file name rooms=(base schema daemon client tools tests shaders examples cmake)
    for file in "${documents[@]}"; do
        while read -r name; do
            case $name in
                aule_*'()') grep -qF "${name%??}(" client/include/aule/*.h ||
                    complain "$file: no public header has a function $name" ;;
                AULE_*) grep -rqwF -- "${name%%=*}" "${rooms[@]}" CMakeLists.txt ||
                    complain "$file: nothing knows $name" ;;
                */*) [[ " ${rooms[*]} docs " != *" ${name%%/*} "* ]] ||
                    compgen -G "$name" >/dev/null || complain "$file: there is no $name" ;;
            esac
        done < <(spans "$file" | grep -E '^[A-Za-z_/.*()0-9-]+$' | sort -u)
    done
}

# ---- links, tests, features ----

# The name that a heading has in a link.
anchors()
{
    grep -E '^##* ' "$1" | sed -E 's/^#+ //' | tr '[:upper:]' '[:lower:]' |
        sed -E 's/[^a-z0-9 _-]//g; s/ /-/g'
}

# `TEST`](FILE) of one line or more, as "TEST FILE", the file counted from the root.
# shellcheck disable=SC2016 # the back quotes are Markdown's
named_tests()
{
    grep -oE '`[a-z0-9_]+`\]\((\.\./)*tests/[a-z_/]+\.c\)' |
        sed -E 's/`(.*)`\]\((\.\.\/)*(.*)\)/\1 \3/'
}

# check_link FILE TARGET
check_link()
{
    local target=${2%%#*} anchor=''
    [[ $2 != *'#'* ]] || anchor=${2#*#}
    target=$(dirname "$1")/${target:-$(basename "$1")}
    [ -e "$target" ] || { complain "$1 links to $2, which is not there"; return 0; }
    [ -z "$anchor" ] || anchors "$target" | grep -qxF -- "$anchor" ||
        complain "$1 links to $2, which is no heading there"
}

check_links()
{
    local file link name
    for file in "${documents[@]}" NOTEBOOK.md shaders/NOTEBOOK.md; do
        while read -r link; do
            check_link "$file" "$link"
        done < <(awk '/^```/ { code = !code; next } !code' "$file" |
            grep -oE '\]\([^): ]+\)' | sed -E 's/^..(.*).$/\1/')
    done
    while read -r name file; do
        grep -qsF "START_TEST($name)" "$file" || complain "$file has no test $name"
    done < <(cat "${documents[@]}" | named_tests)
    for file in docs/*.md; do
        grep -qF "]($file" README.md || complain "README.md does not lead to $file"
    done
}

check_features()
{
    local row count=0
    while read -r row; do
        count=$((count + 1))
        [ -n "$(named_tests <<<"$row")" ] ||
            complain "docs/features.md: no test holds the feature:${row:1:40}..."
    done < <(sed -n '/^| feature /,/^$/p' docs/features.md | sed '1,2d;$d')
    [ $count -gt 20 ] || complain "docs/features.md: the table of features has $count rows"
}

check_tolerances()
{
    local table tested
    # shellcheck disable=SC2016
    table=$(section tools/worker/README.md "Tolerances" |
        grep -E '^\| `[a-z0-9]+` \| [0-9]e' | tr -d '`| ')
    tested=$(grep -E '^    \{AULE_[A-Z0-9]+, [0-9]e' tests/tools/test_worker.c |
        sed 's/AULE_//' | tr -d '{}, ')
    [ -n "$table" ] || complain "tools/worker/README.md: the worker's tolerances are not to be found"
    [ "$table" = "${tested,,}" ] ||
        complain "tools/worker/README.md: the worker's tolerances are not those of" \
            "tests/tools/test_worker.c: $table, ${tested,,}"
}

# ---- form ----

check_form()
{
    local file lines
    lines=$(wc -l <README.md)
    [ "$lines" -le 150 ] || complain "README.md has $lines lines, more than 150"
    for file in "${documents[@]}"; do
        awk -v file="$file" '
            /^```/ { code = !code; next }
            !code && length > 100 && !/^\|/ {
                print file ":" FNR ": more than 100 columns"
                bad = 1
            }
            END { exit bad }' "$file" || bad=1
    done
}

tables "${3:-check}"
check_languages
check_example
check_c
check_sh
same_options docs/operating.md "Options of aule-daemon" aule-daemon daemon/aule-daemon.8
same_options docs/operating.md "aule-ctl: looking inside" aule-ctl tools/ctl/aule-ctl.1
same_options tools/worker/README.md "Options" aule-worker tools/worker/aule-worker.1
same_options docs/measuring.md "Options" aule-bench tools/bench/aule-bench.1
same_commands
check_names
check_links
check_features
check_tolerances
check_form
[ $bad -ne 0 ] ||
    echo "${#documents[@]} documents agree with example, programs, tests and man pages"
exit $bad
