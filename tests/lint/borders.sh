#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
#
# borders.sh: compares the includes of all C files with the table of rooms below. It also checks
# that headers do not include each other in a circle, that a folder has at most 30 .c files, that an
# include names its room, and that all files have one order of includes. In the folders of `ordered`
# no files use each other in a circle. The headers of core and engine for others, and those of the
# server, name their thread ("Thread: "). Exit code: 0 passed, 1 failed.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
folders=(base schema shaders daemon client examples tools tests)
ordered=(client/src)
bad=0

# Each line is a room and the rooms that it may include; it may also include what these may include.
# A file is in the room with the longest name that its path begins with. tests/ is not here: a test
# may include every room.
rooms()
{
    cat <<'TABLE'
base/
schema/                    base/
shaders/
daemon/engine/metrics.h
daemon/engine/engine.h     schema/ daemon/engine/metrics.h
daemon/engine/file         schema/
daemon/engine/vulkan/      daemon/engine/engine.h
daemon/engine/kernels/     daemon/engine/vulkan/ daemon/engine/file shaders/
daemon/engine/state/       daemon/engine/kernels/
daemon/engine/memory/      daemon/engine/state/
daemon/engine/plan/        daemon/engine/memory/
daemon/engine/flow/        daemon/engine/plan/
daemon/engine/measuring.h  daemon/engine/vulkan/
daemon/engine/             daemon/engine/flow/ daemon/engine/measuring.h
daemon/core/metrics.h      daemon/engine/metrics.h
daemon/tier/               schema/
daemon/core/waits.h        schema/
daemon/core/core.h         daemon/core/metrics.h daemon/core/waits.h daemon/engine/engine.h daemon/tier/
daemon/core/turns/         daemon/core/core.h
daemon/core/pool/          daemon/core/turns/
daemon/core/steps/         daemon/core/pool/
daemon/core/runs/          daemon/core/steps/
daemon/core/errands/tiers.h daemon/core/core.h
daemon/core/errands/hauls.h daemon/core/runs/
daemon/core/               daemon/core/errands/tiers.h daemon/core/errands/hauls.h
daemon/core/errands/       daemon/core/
daemon/core/audit/audit.h  daemon/core/core.h
daemon/core/audit/         daemon/core/ daemon/core/audit/audit.h
daemon/server/             daemon/core/core.h
daemon/server/handlers/    daemon/server/
daemon/                    daemon/server/
client/include/
client/                    client/include/ schema/
examples/                  client/include/
tools/complaint/           base/
tools/                     tools/complaint/ client/include/
tools/bench/               tools/ daemon/engine/measuring.h daemon/core/audit/audit.h
TABLE
}

# Prints "FILE LINE KIND TEXT". KIND is q for "TEXT" and s for <TEXT>. It is b for the end of a
# block of includes: a blank line or a directive. It is i for #if and the like, after which the
# order starts again.
includes()
{
    # shellcheck disable=SC2016 # they are awk's
    find "${folders[@]}" -name '*.[ch]' -print0 | sort -z | xargs -0 awk '
        /^#include "/ { split($0, part, "\""); print FILENAME, FNR, "q", part[2]; next }
        /^#include </ { split($0, part, /[<>]/); print FILENAME, FNR, "s", part[2]; next }
        /^#(if|el|endif)/ { print FILENAME, FNR, "i", "-"; next }
        /^$/ || /^#/ { print FILENAME, FNR, "b", "-" }'
}

# Input: three lists with an empty line between: rooms, files, includes.
{ rooms; echo; find "${folders[@]}" -name '*.[ch]'; echo; includes; } | awk '
    function room_of(file,    room, best) {
        for (room in known)
            if (index(file, room) == 1 && length(room) > length(best))
                best = room
        return best
    }
    function folder_of(file) { sub(/[^\/]*$/, "", file); return file }
    # "" if the build makes the header.
    function resolve(file, name,    i, path) {
        if (name !~ /\// && (folder_of(file) name) in exists)
            return folder_of(file) name
        for (i = 1; i <= num_roots; i++)
            if ((roots[i] name) in exists)
                return roots[i] name
        return ""
    }
    function wrong(text) { print text; bad = 1 }
    # Depth first: a header that is met again while it is still open closes a circle.
    function visit(header,    i, list, count) {
        state[header] = 1
        count = split(next_of[header], list, " ")
        for (i = 1; i <= count; i++) {
            if (state[list[i]] == 1)
                wrong(header ": includes " list[i] ", which includes it in turn")
            else if (!state[list[i]])
                visit(list[i])
        }
        state[header] = 2
    }
    BEGIN { num_roots = split("./ daemon/ tests/ client/include/", roots, " "); roots[1] = "" }
    $0 == "" { part++; next }
    part == 0 { known[$1] = 1; for (i = 2; i <= NF; i++) direct[$1, $i] = 1; next }
    part == 1 { exists[$1] = 1; if ($1 ~ /\.c$/) in_folder[folder_of($1)]++; next }
    {
        file = $1; at = $1 ":" $2 ": "
        if (file != last) { last = file; seen = ""; block = 0; open = 0; first = 1; own = "" }
        if ($3 == "i") { seen = ""; project[file] = 0 }
        if ($3 == "b" || $3 == "i") { open = 0; next }
        if (!open) { block++; open = 1; kind = "" }
        if (kind && kind != $3)
            wrong(at "a blank line belongs between project headers and system headers")
        kind = $3
        if ($3 == "s") { seen = "s"; first = 0; next }
        target = resolve(file, $4)
        if (target == "" && $4 !~ /_(spv|ptx|structs|types|fields)\.h$/)
            wrong(at "there is no " $4 " in this folder, in the root, in daemon/ or in tests/")
        if (target == "")
            next
        if (folder_of(target) == folder_of(file) && $4 ~ /\//)
            wrong(at "a header of the same folder is included by its plain name")
        stem = file; sub(/\.[ch]$/, "", stem)
        if (target ~ /\.c$/)
            next
        is_own = file ~ /\.c$/ && target == stem ".h"
        if (is_own && !first)
            wrong(at "the own header comes first")
        if (seen == "s")
            wrong(at "a project header comes behind a system header")
        if (is_own)
            own = block
        else if (own == block)
            wrong(at "a blank line belongs behind the own header")
        else if (project[file] && project[file] != block)
            wrong(at "project headers are one block")
        if (!is_own)
            project[file] = block
        first = 0
        # sized.h is the second half of aule.h, and compiles alone.
        if (file ~ /\.h$/ && file != "client/include/aule/sized.h")
            next_of[file] = next_of[file] " " target
        from[++num_edges] = room_of(file)
        to[num_edges] = room_of(target)
        edge[num_edges] = at from[num_edges] " may not include " to[num_edges] " (" $4 ")"
    }
    END {
        # What a room may include, those that may include the room may, too.
        for (k in known)
            for (a in known)
                for (b in known)
                    if (((a, k) in direct) && ((k, b) in direct))
                        direct[a, b] = 1
        for (k in known)
            if ((k, k) in direct)
                wrong("the table of rooms: " k " may include itself by way of others")
        for (i = 1; i <= num_edges; i++)
            if (from[i] != to[i] && from[i] in known && !((from[i], to[i]) in direct))
                wrong(edge[i])
        for (file in exists)
            if (!state[file])
                visit(file)
        for (folder in in_folder)
            if (in_folder[folder] > 30)
                wrong(folder ": " in_folder[folder] " .c files, more than 30")
        if (!bad)
            print num_edges " includes stay inside their borders"
        exit bad
    }' || bad=1

# Reads all files of a folder. A file is a .c file together with its header. It uses another one if
# it includes that one's header, or names something that the .c file defines for others: so a
# declaration copied from a header does not hide a call. The code must be laid out by clang-format:
# definitions and the braces of their bodies begin at the first column.
circles()
{
    # shellcheck disable=SC2016 # they are awk's
    find "$1" -name '*.[ch]' -print0 | sort -z | xargs -0 awk '
    function file_of(name) { sub(/\.[ch]$/, "", name); return name }
    function uses(from, to, what) {
        if (from == to || (from, to) in why)
            return
        why[from, to] = what
        used[from] = used[from] " " to
    }
    # Depth first: a file that is met again while it is still open closes a circle.
    function visit(file, depth,    i, k, list, count, text) {
        open[file] = depth
        path[depth] = file
        count = split(used[file], list, " ")
        for (i = 1; i <= count; i++) {
            if (open[list[i]]) {
                path[depth + 1] = list[i]
                text = "a circle: " list[i]
                for (k = open[list[i]]; k <= depth; k++)
                    text = text " -> " path[k + 1] " (" why[path[k], path[k + 1]] ")"
                print text
                bad = 1
            } else if (!(list[i] in done)) {
                visit(list[i], depth + 1)
            }
        }
        open[file] = 0
        done[file] = 1
    }
    { gsub(/"([^"\\]|\\.)*"/, "&\001") }
    /^#include "/ {
        split($0, part, "\"")
        folder = FILENAME
        sub(/[^\/]*$/, "", folder)
        included[FILENAME] = included[FILENAME] " " (part[2] ~ /\// ? "" : folder) part[2]
        next
    }
    {
        sub(/\/\/.*/, "")
        gsub(/"[^\001]*\001/, "")
        if (FILENAME ~ /\.c$/ && /^[a-z]/ && !/^(static|typedef|(struct|enum|union)( [a-z0-9_]+)? \{)/) {
            name = $0
            sub(/[ \[]*(\(|\[|=|;).*/, "", name)
            sub(/.*[ *]/, "", name)
            if (/\(/)
                pending = name
            else
                defines[name] = file_of(FILENAME)
        }
        if (/^[^ ].*\)?;$/ || /^ .*\);$/ && !inside)
            pending = ""
        if (/^\{/) {
            inside = 1
            if (pending)
                defines[pending] = file_of(FILENAME)
            pending = ""
        }
        if (FILENAME ~ /\.c$/ || inside)
            text_of[FILENAME] = text_of[FILENAME] " " $0
        if (/^\}/)
            inside = 0
        known[file_of(FILENAME)] = 1
    }
    END {
        for (from in text_of) {
            count = split(text_of[from], words, /[^A-Za-z0-9_]+/)
            for (i = 1; i <= count; i++)
                if (words[i] in defines)
                    uses(file_of(from), defines[words[i]], words[i])
        }
        for (from in included) {
            count = split(included[from], headers, " ")
            for (i = 1; i <= count; i++)
                if (file_of(headers[i]) in known)
                    uses(file_of(from), file_of(headers[i]), headers[i])
        }
        for (file in known) {
            num_files++
            if (!(file in done))
                visit(file, 1)
        }
        for (name in defines)
            num_defined++
        if (!bad)
            print num_files " files with " num_defined " names for others are in no circle"
        exit bad
    }'
}
for folder in "${ordered[@]}"; do
    circles "$folder" || bad=1
done
if grep -L 'Thread:' daemon/core/core.h daemon/engine/engine.h daemon/server/*.h \
    daemon/server/*/*.h | grep .; then
    echo "the headers above do not say \"Thread: \""
    bad=1
fi
exit $bad
