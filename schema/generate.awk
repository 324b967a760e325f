# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
#
# generate.awk - reads aule.fbs and writes C. `-v part=...` says which header:
# structs  wire_structs.h: enums, and what aule.fbs calls structs; core uses them, too
# types    wire_types.h: the lists of commands and answers, their structs, wire_request, wire_reply
# fields   wire_fields.h: the fields of all structs as lists of macro calls
# Runs at build time, with any awk. wire.cc compares the result with flatc's of the same file.
#
# aule.fbs                      C
# ---------------------------   ----------------------------------------------------------------
# struct or table KvLayout      struct wire_kv_layout
# bool, int, ulong, float ...   bool, int32_t, uint64_t, float ...
# string                        const char *
# [int] [long] [ubyte]          struct wire_ints, wire_longs, wire_bytes
# [ubyte] (length: 16)          uint8_t field[16]
# [uint:16], in a struct        uint32_t field[16]
# [string]                      struct wire_names
# [Tensor], a struct            struct wire_tensor_list {data, count}
# a field of a struct's type    the struct; all 0 = absent
# a field of a table's type     the struct behind `bool has_<field>`
# union Command                 WIRE_COMMAND_MAP, WIRE_RULES_MAP, enum wire_command, a C union of its members
# (no_session), (since: 3)      enum wire_rule; WIRE_PROTOCOL_MINOR: the highest `since`
# enum RunFlag { Causal }       enum wire_run_flag { WIRE_RUN_CAUSAL }: the last word of the enum's name is left out

function fail(text)
{
    printf "%s: %s\n", FILENAME, text > "/dev/stderr"
    exit 1
}

# ---- words ----

# "KvLayout" to "kv_layout"
function snake(name,    i, c, out)
{
    for (i = 1; i <= length(name); i++) {
        c = substr(name, i, 1)
        out = out (c ~ /[A-Z]/ && i > 1 ? "_" : "") tolower(c)
    }
    return out
}

# "RunReply" to "run": the name of an answer. "RunFlag" to "run": the prefix of an enum's values.
function without_last_word(name)
{
    sub(/[A-Z][a-z0-9]*$/, "", name)
    return snake(name)
}

# ---- tokens: all of the file, each with the comment behind it ----

{
    line = $0
    comment = ""
    if (match(line, /\/\/.*/)) {
        comment = substr(line, RSTART)
        line = substr(line, 1, RSTART - 1)
    }
    first = num_tokens
    while (match(line, /[A-Za-z_][A-Za-z0-9_.]*|[0-9]+|"[^"]*"|[^ \t]/)) {
        token[++num_tokens] = substr(line, RSTART, RLENGTH)
        line = substr(line, RSTART + RLENGTH)
    }
    if (num_tokens > first)
        note[num_tokens] = comment
}

function take()
{
    if (at > num_tokens)
        fail("it ends too early")
    return token[at++]
}

function expect(wanted,    found)
{
    found = take()
    if (found != wanted)
        fail("\"" wanted "\" is expected behind \"" token[at - 3] " " token[at - 2] \
             "\", not \"" found "\"")
}

# ---- declarations ----

# "(required)", "(length: 16)", "(bit_flags)": attribute[name] is the value, 1 without one.
function take_attributes(    name)
{
    split("", attribute)
    if (token[at] != "(")
        return
    do {
        at++
        name = take()
        attribute[name] = 1
        if (token[at] == ":") {
            at++
            attribute[name] = take()
        }
    } while (token[at] == ",")
    expect(")")
}

function take_minor()
{
    if (attribute["since"] + 0 > minor)
        minor = attribute["since"] + 0
}

# "WIRE_NO_SESSION | WIRE_WHILE_STOPPING"; "0" for none.
function take_rules(    i, rules)
{
    for (i = 1; i <= num_rules; i++)
        if (rule[i] in attribute)
            rules = rules (rules ? " | " : "") "WIRE_" toupper(rule[i])
    return rules ? rules : "0"
}

function take_field(record,    i)
{
    i = ++num_fields[record]
    field[record, i] = take()
    expect(":")
    is_vector[record, i] = token[at] == "["
    if (is_vector[record, i])
        at++
    type[record, i] = take()
    if (is_vector[record, i] && token[at] == ":") {
        array_length[record, i] = token[at + 1]
        at += 2
    }
    if (is_vector[record, i])
        expect("]")
    take_attributes()
    is_required[record, i] = "required" in attribute
    fixed_length[record, i] = attribute["length"]
    take_minor()
    expect(";")
    about[record, i] = note[at - 1]
}

function take_record(kind,    name)
{
    name = take()
    kind_of[name] = kind
    num_fields[name] = 0
    take_attributes()
    rules_of[name] = take_rules()
    take_minor()
    since[name] = attribute["since"] + 0
    expect("{")
    while (token[at] != "}")
        take_field(name)
    at++
}

# "= 3" behind a value. flatc takes more than this, such as "= 0x3" and a member of a union with
# another name; what is not read here is refused.
function take_number(kind, name,    text)
{
    if (kind == "enum" && token[at] == "=") {
        at++
        text = take()
        if (text !~ /^[0-9]+$/)
            fail("\"" text "\" is no whole number (" name "." values[name, num_values[name]] ")")
        number_of[name, num_values[name]] = text
        about[name, num_values[name]] = note[at - 1]
    }
    if (token[at] != "," && token[at] != "}")
        fail("\",\" or \"}\" is expected behind \"" token[at - 1] "\" of " name \
             ", not \"" token[at] "\"")
}

# An enum's values or a union's members.
function take_list(kind,    name)
{
    name = take()
    kind_of[name] = kind
    if (kind == "enum") {
        enums[++num_enums] = name
        expect(":")
        take()
    }
    take_attributes()
    is_bits[name] = "bit_flags" in attribute
    expect("{")
    while (token[at] != "}") {
        values[name, ++num_values[name]] = take()
        about[name, num_values[name]] = note[at - 1]
        take_number(kind, name)
        if (token[at] == ",") {
            at++
            if (note[at - 1])
                about[name, num_values[name]] = note[at - 1]
        }
    }
    at++
}

function parse(    word)
{
    at = 1
    while (at <= num_tokens) {
        word = take()
        if (word == "struct" || word == "table")
            take_record(word)
        else if (word == "enum" || word == "union")
            take_list(word)
        else
            while (take() != ";")
                ;
    }
}

# ---- types in C ----

function c_vector(record, i,    t)
{
    t = type[record, i]
    if (fixed_length[record, i])
        return "uint8_t"
    if (t in vector_type)
        return vector_type[t]
    if (kind_of[t] == "struct")
        return "struct wire_" snake(t) "_list"
    fail("there is no vector of " t " in C (" record "." field[record, i] ")")
}

function c_type(record, i,    t)
{
    t = type[record, i]
    if (is_vector[record, i] && !array_length[record, i])
        return c_vector(record, i)
    if (array_length[record, i] && !(t in scalar_type))
        fail("an array has numbers (" record "." field[record, i] ")")
    if (t in scalar_type)
        return scalar_type[t]
    if (kind_of[t] == "struct" || kind_of[t] == "table")
        return "struct wire_" snake(t)
    fail("unknown type " t " (" record "." field[record, i] ")")
}

function is_table(record, i)
{
    return !is_vector[record, i] && kind_of[type[record, i]] == "table"
}

function is_union(record, i)
{
    return kind_of[type[record, i]] == "union"
}

# ---- what messages are made of: each record behind those that it contains ----

function visit(record,    i, t)
{
    if (record in seen)
        return
    seen[record] = 1
    for (i = 1; i <= num_fields[record]; i++) {
        t = type[record, i]
        if (is_union(record, i))
            visit_members(t)
        else if (t in kind_of)
            visit(t)
        if (is_vector[record, i] && kind_of[t] == "struct")
            listed[t] = 1
    }
    order[++num_records] = record
}

function visit_members(name,    i)
{
    for (i = 1; i <= num_values[name]; i++)
        visit(values[name, i])
}

# ---- wire_structs.h and wire_types.h ----

# A value without a number is one more than the one before it. Of bits the number is the place.
function print_enum(name,    i, number)
{
    printf "enum wire_%s {\n", snake(name)
    for (i = 1; i <= num_values[name]; i++) {
        number = (name, i) in number_of ? number_of[name, i] : i == 1 ? 0 : number + 1
        print_line("WIRE_" toupper(without_last_word(name) "_" snake(values[name, i])) \
                   (is_bits[name] ? " = 1u << " number : " = " number) ",", about[name, i])
    }
    print "};\n"
}

function print_line(text, comment)
{
    printf "    %s%s\n", text, comment ? "   " comment : ""
}

# "[16]" behind the name of a field that is an array in C.
function dimension(record, i,    length_of)
{
    length_of = fixed_length[record, i] array_length[record, i]
    return length_of ? "[" length_of "]" : ""
}

function print_field(record, i,    name)
{
    name = field[record, i]
    if (is_union(record, i))
        return print_union(type[record, i], name)
    if (is_table(record, i))
        print_line("bool has_" name ";")
    print_line(c_type(record, i) (c_type(record, i) ~ /\*$/ ? "" : " ") name dimension(record, i) ";", about[record, i])
}

# The enum's value, then a C union of the members; `none` stands for those without fields.
function print_union(name, member,    i, t)
{
    print_line("enum wire_" snake(name) " " member ";")
    print "    union {"
    for (i = 1; i <= num_values[name]; i++) {
        t = values[name, i]
        if (num_fields[t])
            printf "        struct wire_%s %s;\n", snake(t), member_name(t)
    }
    print "        struct wire_nothing none;\n    };"
}

function print_record(record,    i)
{
    if (num_fields[record] == 0)
        return
    printf "struct wire_%s {\n", snake(record)
    for (i = 1; i <= num_fields[record]; i++)
        print_field(record, i)
    if (record == "Reply")
        print_line("void *owned[" most_lists() "];", "// arrays that decoding allocated")
    print "};"
    if (record in listed)
        printf "struct wire_%s_list { const struct wire_%s *data; uint32_t count; };\n",
            snake(record), snake(record)
    print ""
}

function member_name(t)
{
    return t ~ /Reply$/ ? without_last_word(t) : snake(t)
}

# X(NAME, member of the C union, FlatBuffers table)
function print_map(name,    i, t)
{
    printf "#define WIRE_%s_MAP(X)", toupper(snake(name))
    for (i = 1; i <= num_values[name]; i++) {
        t = values[name, i]
        printf " \\\n    X(%s, %s, %s)", toupper(member_name(t)),
            num_fields[t] ? member_name(t) : "none", t
    }
    printf "\n\nenum wire_%s {\n    WIRE_%s_NONE,\n", snake(name), toupper(snake(name))
    for (i = 1; i <= num_values[name]; i++)
        printf "    WIRE_%s_%s,\n", toupper(snake(name)), toupper(member_name(values[name, i]))
    printf "    WIRE_%s_COUNT\n};\n\n", toupper(snake(name))
}

# X(NAME, function name, enum wire_rule, the minor that brought it) of each command
function print_rules(    i, t)
{
    print "enum wire_rule {"
    for (i = 1; i <= num_rules; i++)
        printf "    WIRE_%s = 1 << %d,\n", toupper(rule[i]), i - 1
    printf "};\n#define WIRE_RULES_MAP(X)"
    for (i = 1; i <= num_values["Command"]; i++) {
        t = values["Command", i]
        printf " \\\n    X(%s, %s, %s, %d)", toupper(snake(t)), snake(t), rules_of[t],
            since[t]
    }
    printf "\n#define WIRE_PROTOCOL_MINOR %du\n\n", minor
}

# Lists of strings and of structs, those of tables in the table too: decoding may allocate one array
# for each.
function num_lists(record,    i, n)
{
    for (i = 1; i <= num_fields[record]; i++) {
        if (is_vector[record, i])
            n += type[record, i] == "string" || kind_of[type[record, i]] == "struct"
        else if (is_table(record, i))
            n += num_lists(type[record, i])
    }
    return n + 0
}

function most_lists(    i, n, most)
{
    for (i = 1; i <= num_values["Answer"]; i++) {
        n = num_lists(values["Answer", i])
        most = n > most ? n : most
    }
    return most + num_lists("Reply")
}

# A command owns no memory, so neither its fields nor those of tables in it may need some.
function check_command(record,    i)
{
    for (i = 1; i <= num_fields[record]; i++) {
        if (is_vector[record, i] && type[record, i] == "string")
            fail("a command has no list of strings (" record "." field[record, i] \
                 "): nothing frees it")
        if (is_table(record, i))
            check_command(type[record, i])
    }
}

function check_commands(    i)
{
    check_command("Request")
    for (i = 1; i <= num_values["Command"]; i++)
        check_command(values["Command", i])
}

# A table that contains itself would be a struct of no size.
function check_nesting(record,    i, kind)
{
    if (record in opened)
        fail("a table contains itself (" record ")")
    opened[record] = 1
    for (i = 1; i <= num_fields[record]; i++) {
        kind = kind_of[type[record, i]]
        if (!is_vector[record, i] && (kind == "table" || kind == "struct"))
            check_nesting(type[record, i])
    }
    delete opened[record]
}

function print_all(kind,    i)
{
    for (i = 1; i <= num_records; i++)
        if (kind_of[order[i]] == kind)
            print_record(order[i])
}

function print_structs(    i)
{
    print "// Made from aule.fbs by generate.awk. What the fields mean stands there.\n"
    print "#ifndef AULE_SCHEMA_WIRE_STRUCTS_H\n#define AULE_SCHEMA_WIRE_STRUCTS_H\n"
    print "#include <stdbool.h>\n#include <stdint.h>\n"
    for (i = 1; i <= num_enums; i++)
        print_enum(enums[i])
    print_all("struct")
    print "#endif"
}

function print_types()
{
    print "// Made from aule.fbs by generate.awk. What the fields mean stands there. Include wire.h instead.\n"
    print_map("Command")
    print_rules()
    print_map("Answer")
    print "struct wire_nothing { uint8_t unused; };   // a command or an answer without fields\n"
    print_all("table")
}

# ---- wire_fields.h ----

# The kind of a field, and the struct or table that it is of.
function kind_and_type(record, i,    t)
{
    t = type[record, i]
    if (fixed_length[record, i])
        return "FIXED, NONE"
    if (array_length[record, i])
        return "ARRAY, NONE"
    if (kind_of[t])
        return (is_vector[record, i] ? "LIST" : toupper(kind_of[t])) ", " t
    return toupper(is_vector[record, i] ? (t == "ubyte" ? "bytes" : t "s") : t) ", NONE"
}

function print_call(macro, record, i)
{
    printf " \\\n    %s(%s, %s, %s)", macro, snake(record), field[record, i],
        kind_and_type(record, i)
}

# F(owner, field, kind, of) is for the first field of a struct, X for the others. So commas can
# stand between the arguments of a constructor.
function print_struct_fields(record,    i)
{
    printf "#define WIRE_%s_FIELDS(F, X)", toupper(snake(record))
    for (i = 1; i <= num_fields[record]; i++)
        print_call(i == 1 ? "F" : "X", record, i)
    print "\n"
}

function callback(record, i)
{
    if (is_union(record, i))
        return "U"
    return is_table(record, i) ? "T" : is_required[record, i] ? "R" : "X"
}

# T is for a table in the table, R for a struct that must be there, U for a union, X for all others.
function print_table_fields(record,    i)
{
    printf "#define WIRE_%s_FIELDS(X, T, R, U)", toupper(snake(record))
    for (i = 1; i <= num_fields[record]; i++)
        print_call(callback(record, i), record, i)
    print "\n"
}

# X(FlatBuffers name, plain name, its fields), each behind those that it contains
function print_records(name, kind, empty,    i, record)
{
    printf "#define WIRE_%s(X)", name
    for (i = 1; i <= num_records; i++) {
        record = order[i]
        if (kind_of[record] == kind && (num_fields[record] == 0) == empty)
            printf " \\\n    X(%s, %s, WIRE_%s_FIELDS)", record, snake(record),
                toupper(snake(record))
    }
    print "\n"
}

# X(FlatBuffers name, plain name) of the structs that there are vectors of
function print_listed(    i, record)
{
    printf "#define WIRE_LISTED(X)"
    for (i = 1; i <= num_records; i++) {
        record = order[i]
        if (record in listed)
            printf " \\\n    X(%s, %s)", record, snake(record)
    }
    print "\n"
}

function print_lists_of(record, done,    i, t)
{
    for (i = 1; i <= num_fields[record]; i++) {
        t = type[record, i]
        if (is_table(record, i))
            print_lists_of(t, done)
        if (is_vector[record, i] && kind_of[t] == "struct" && !(t in done)) {
            done[t] = 1
            printf " \\\n    X(%s, %s)", t, snake(t)
        }
    }
}

# X(FlatBuffers name, plain name) of those that a command, or a table in it, has a vector of
function print_listed_by_commands(    i, done)
{
    split("", done)
    printf "#define WIRE_LISTED_BY_COMMANDS(X)"
    for (i = 1; i <= num_values["Command"]; i++)
        print_lists_of(values["Command", i], done)
    print "\n"
}

# E(FlatBuffers enum, how many values) and X(FlatBuffers enum, its value, the value in C)
function print_enums(    i, k, name)
{
    printf "#define WIRE_ENUMS(E, X)"
    for (i = 1; i <= num_enums; i++) {
        name = enums[i]
        printf " \\\n    E(%s, %d)", name, num_values[name]
        for (k = 1; k <= num_values[name]; k++)
            printf " \\\n    X(%s, %s, WIRE_%s)", name, values[name, k],
                toupper(without_last_word(name) "_" snake(values[name, k]))
    }
    print "\n"
}

function print_fields(    i)
{
    print "// Made from aule.fbs by generate.awk: the fields of the structs of wire_types.h, for wire.cc"
    print "// and the tests.\n"
    for (i = 1; i <= num_records; i++) {
        if (kind_of[order[i]] == "struct")
            print_struct_fields(order[i])
        else if (num_fields[order[i]])
            print_table_fields(order[i])
    }
    print_records("STRUCTS", "struct", 0)
    print_records("TABLES", "table", 0)
    print_records("EMPTY_TABLES", "table", 1)
    print_listed()
    print_listed_by_commands()
    print_enums()
}

END {
    split("bool bool byte int8_t ubyte uint8_t short int16_t ushort uint16_t int int32_t " \
          "uint uint32_t long int64_t ulong uint64_t float float double double", pairs, " ")
    for (i = 1; i in pairs; i += 2)
        scalar_type[pairs[i]] = pairs[i + 1]
    scalar_type["string"] = "const char *"
    vector_type["int"] = "struct wire_ints"
    vector_type["long"] = "struct wire_longs"
    vector_type["ubyte"] = "struct wire_bytes"
    vector_type["string"] = "struct wire_names"
    num_rules = split("no_session before_mapped while_stopping by_ring by_control", rule, " ")
    parse()
    for (name in kind_of)
        check_nesting(name)
    check_commands()
    visit("Request")
    visit("Reply")
    if (part == "structs")
        print_structs()
    else if (part == "types")
        print_types()
    else
        print_fields()
}
