#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
#
# test_tools_usage.sh: each script of tools/ refuses a wrong command line with one sentence and exit
# code 2, before it installs, builds or starts anything.

set -uo pipefail
tools=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../tools" && pwd)
bad=0

# refused SENTENCE TOOL ARGUMENT...
refused()
{
    local said code sentence=$1 tool=$2
    shift 2
    said=$("$tools/$tool" "$@" 2>&1 </dev/null)
    code=$?
    if [ $code != 2 ] || [ "$said" != "tools/$tool: $sentence (--help says more)" ]; then
        echo "tools/$tool $*: exit code $code: $said"
        bad=1
    fi
}

for tool in test setup shader-compiler quickstart python-env wheel; do
    refused "there is no option '--foo'" $tool --foo
done
refused "--jobs needs a value" test --jobs
refused "--jobs 'few' is not a number from 1" test --jobs few
refused "--preset 'fast' is none of: release asan tsan" test --preset fast
refused "'--foo' is neither make nor run" coop-root --foo
refused "make has no option '--foo'" coop-root make --foo
refused "run needs a command" coop-root run
refused "it needs FOLDER, SUITE and an ARGUMENT" apt-aside folder
for tool in test setup shader-compiler quickstart coop-root apt-aside python-env wheel; do
    "$tools/$tool" --help | grep -q "^usage: tools/$tool" ||
        { echo "tools/$tool --help has no usage"; bad=1; }
done
[ $bad = 0 ] && echo "each script of tools/ refuses what it does not take"
exit $bad
