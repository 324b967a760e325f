#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
#
# readme.sh BUILD: README.md tells the truth. Its C example is tests/readme_example.c, its tables (and the programs' man pages) name
# exactly the options that the programs' --help names, its links lead to files, the tests that it names are in the files that it names
# for them, each feature has one, and the worker's tolerances are those that are tested.

set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=${1:?}
bad=0

complain()
{
    echo "$*"
    bad=1
}

# The lines between ```c and the ``` after it.
# shellcheck disable=SC2016 # the back quotes are Markdown's
code() { sed -n '/^```c$/,/^```$/p' "$root/README.md" | sed '1d;$d'; }

# The long options in the tables of one section.
section() { sed -n "/^## $1\$/,/^## /p" "$root/README.md" | grep '^|' || true; }
options() { grep -oE '(^|[^a-z-])--[a-z][a-z-]+' | grep -oE -- '--[a-z][a-z-]+' | sort -u; }

# The long options in the headings of a man page's paragraphs.
manual() { sed -n '/^\.TP$/{n;s/\\-/-/g;p}' "$1" | options; }

# same_options SECTION PROGRAM MANUAL: what the first column of the section's tables, the program's help and its man page name.
same_options()
{
    local readme help difference
    readme=$(section "$1" | cut -d'|' -f2 | options)
    help=$("$2" --help | grep -oE '^  +--[a-z-]+' | options)
    [ -n "$help" ] || complain "$2 --help names no option"
    difference=$(diff <(echo "$readme") <(echo "$help")) || complain "README.md: '$1' (<) and $2 --help (>) differ: $difference"
    difference=$(diff <(manual "$root/$3") <(echo "$help")) || complain "$3 (<) and $2 --help (>) differ: $difference"
}

# shellcheck disable=SC2016
# `TEST`](FILE) of one line or more, as "TEST FILE".
named_tests() { grep -oE '`[a-z0-9_]+`\]\(tests/[a-z_]+\.c\)' | sed -E 's/`(.*)`\]\((.*)\)/\1 \2/'; }

check_links()
{
    local file name
    while read -r file; do
        [ -e "$root/$file" ] || complain "README.md links to $file, which is not there"
    done < <(grep -oE '\]\([^)#:]+\)' "$root/README.md" | sed -E 's/^..(.*).$/\1/')
    while read -r name file; do
        grep -qsF "START_TEST($name)" "$root/$file" || complain "$file has no test $name"
    done < <(named_tests <"$root/README.md")
}

# Rows that begin with "| feature" or "|---" are no features.
check_features()
{
    local row count=0
    while read -r row; do
        count=$((count + 1))
        [ -n "$(named_tests <<<"$row")" ] || complain "README.md: no test holds the feature:${row:1:40}..."
    done < <(sed -n '/^| feature /,/^$/p' "$root/README.md" | sed '1,2d;$d')
    [ $count -gt 20 ] || complain "README.md: the table of features has $count rows"
}

check_tolerances()
{
    local readme tested
    # shellcheck disable=SC2016
    readme=$(section "The worker" | grep -E '^\| `[a-z0-9]+` \| [0-9]e' | tr -d '`| ')
    tested=$(grep -E '^    \{AULE_[A-Z0-9]+, [0-9]e' "$root/tests/test_worker.c" | sed 's/AULE_//' | tr -d '{}, ')
    [ -n "$readme" ] || complain "README.md: the worker's tolerances are not to be found"
    [ "$readme" = "${tested,,}" ] || complain "README.md: the worker's tolerances are not those of tests/test_worker.c: $readme, ${tested,,}"
}

diff <(code) "$root/tests/readme_example.c" || complain "README.md: the C example is not tests/readme_example.c"
same_options "The daemon" "$build/daemon/aule-daemon" daemon/aule-daemon.8
same_options "Looking inside" "$build/tools/ctl/aule-ctl" tools/ctl/aule-ctl.1
same_options "The worker" "$build/tools/worker/aule-worker" tools/worker/aule-worker.1
same_options "Measuring" "$build/tools/bench/aule-bench" tools/bench/aule-bench.1
check_links
check_features
check_tolerances
[ $bad -ne 0 ] || echo "README.md agrees with the example, with --help and with the tests that it names; the man pages with --help"
exit $bad
