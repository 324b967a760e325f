#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
#
# readme.sh BUILD: README.md tells the truth. Its C example is tests/readme_example.c, and its tables name exactly the options
# that the programs' --help names.

set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=${1:?}
bad=0

complain()
{
    echo "README.md: $*"
    bad=1
}

# The lines between ```c and the ``` after it.
# shellcheck disable=SC2016 # the back quotes are Markdown's
code() { sed -n '/^```c$/,/^```$/p' "$root/README.md" | sed '1d;$d'; }

# The long options in the tables of one section.
section() { sed -n "/^## $1\$/,/^## /p" "$root/README.md" | grep '^|' || true; }
options() { grep -oE '(^|[^a-z-])--[a-z][a-z-]+' | grep -oE -- '--[a-z][a-z-]+' | sort -u; }

# same_options SECTION PROGRAM: what the first column of the section's tables and the program's help name.
same_options()
{
    local readme help difference
    readme=$(section "$1" | cut -d'|' -f2 | options)
    help=$("$2" --help | grep -oE '^  +--[a-z-]+' | options)
    [ -n "$help" ] || complain "$2 --help names no option"
    difference=$(diff <(echo "$readme") <(echo "$help")) || complain "'$1' (<) and $2 --help (>) differ: $difference"
}

diff <(code) "$root/tests/readme_example.c" || complain "the C example is not tests/readme_example.c"
same_options "The daemon" "$build/daemon/aule-daemon"
same_options "Looking inside" "$build/tools/ctl/aule-ctl"
[ $bad -ne 0 ] || echo "README.md agrees with the example and with --help"
exit $bad
