// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// wire.cc - converts the structs of wire.h to and from the tables of aule.fbs, with FlatBuffers. It
// has all C++ of the project, and knows nothing of sockets or sessions. generate.awk lists each
// table's fields in wire_fields.h; measuring, writing and reading are made from these lists.
// Written by hand are the conversion of each type, and the rules that a type cannot express.
// Compiled without exceptions and RTTI; the C++ runtime that FlatBuffers still needs is at the end.
// Any thread.

#include "wire.h"

#include "aule_generated.h"
#include "schema/wire_fields.h"

#include <array>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <type_traits>

static_assert(FLATBUFFERS_LITTLEENDIAN,
              "vectors are handed out in place, in the wire's byte order");

namespace
{

namespace fb = flatbuffers;
namespace w = aule::wire;

// ---- generate.awk and flatc must read aule.fbs alike ----
// Here names, order and numbers are compared; get() and unpack() compare types.

constexpr bool same_text(const char *a, const char *b)
{
    while (*a && *a == *b)
        a++, b++;
    return *a == *b;
}

template <size_t N>
constexpr bool same_names(const std::array<const char *, N> &names,
                          std::initializer_list<const char *> listed)
{
    bool same = listed.size() == N;
    for (size_t i = 0; same && i < N; i++)
        same = same_text(names[i], listed.begin()[i]);
    return same;
}

// clang-format off
#define NAME(owner, f, ...)       #f,
#define NAME_UNION(owner, f, ...) #f "_type", #f,
#define SAME_STRUCT(packed, plain, FIELDS)                                                         \
    static_assert(same_names(w::packed::Traits::field_names, {FIELDS(NAME, NAME)}), #packed);
#define SAME_TABLE(packed, plain, FIELDS)                                                          \
    static_assert(same_names(w::packed::Traits::field_names,                                       \
                             {FIELDS(NAME, NAME, NAME, NAME_UNION)}), #packed);
#define SAME_EMPTY(packed, plain, FIELDS)                                                          \
    static_assert(w::packed::Traits::fields_number == 0, #packed);
#define SAME_COMMAND(name, member, table)                                                          \
    static_assert(int(WIRE_COMMAND_##name) == int(w::CommandTraits<w::table>::enum_value), #table);
#define SAME_ANSWER(name, member, table)                                                           \
    static_assert(int(WIRE_ANSWER_##name) == int(w::AnswerTraits<w::table>::enum_value), #table);
#define SAME_COUNT(type, count)                                                                    \
    static_assert(sizeof(w::EnumValues##type()) / sizeof(w::type) == count, #type);
#define SAME_VALUE(type, value, plain) static_assert(int(plain) == int(w::type::value), #plain);
// clang-format on
WIRE_STRUCTS(SAME_STRUCT)
WIRE_TABLES(SAME_TABLE)
WIRE_EMPTY_TABLES(SAME_EMPTY)
WIRE_ENUMS(SAME_COUNT, SAME_VALUE)
WIRE_COMMAND_MAP(SAME_COMMAND)
WIRE_ANSWER_MAP(SAME_ANSWER)
static_assert(int(WIRE_COMMAND_COUNT) == int(w::Command::MAX) + 1,
              "union Command has more members than wire.h");
static_assert(int(WIRE_ANSWER_COUNT) == int(w::Answer::MAX) + 1,
              "union Answer has more members than wire.h");

template <class T> using scalar = typename std::enable_if<std::is_arithmetic<T>::value, T>::type;

// True: the layout is the same on the wire and in C, and each pattern of bits has a meaning. Then a
// vector can be handed out in place.
template <class T>
constexpr bool in_place = std::is_arithmetic<T>::value && !std::is_same<T, bool>::value;

// ---- packing and unpacking the fixed-size structs ----

template <class T> scalar<T> pack(T value)
{
    return value;
}

template <class T, size_t N> fb::span<const T, N> pack(const T (&array)[N])
{
    return fb::span<const T, N>(array);
}

template <class T, class From, class = scalar<T>> void unpack(T &to, From from)
{
    static_assert(std::is_same<T, From>::value, "generate.awk and flatc differ in a type");
    to = from;
}

template <class T, size_t N, class Array> void unpack(T (&to)[N], const Array *from)
{
    static_assert(std::is_same<const fb::Array<T, N> *, decltype(from)>::value,
                  "generate.awk and flatc differ in an array");
    for (size_t i = 0; i < N; i++)
        to[i] = from->Get(fb::uoffset_t(i));
}

// clang-format off
#define PACK_FIRST(owner, f, ...) pack(from.f)
#define PACK(owner, f, ...)       , pack(from.f)
#define UNPACK(owner, f, ...)     unpack(to.f, from.f());
#define IN_PLACE(owner, f, ...)   && in_place<decltype(wire_##owner::f)>
#define SIZE(owner, f, ...)       + sizeof(wire_##owner::f)
#define STRUCT(packed, plain, FIELDS)                                                              \
    w::packed pack(const wire_##plain &from)                                                       \
    {                                                                                              \
        return w::packed(FIELDS(PACK_FIRST, PACK));                                                \
    }                                                                                              \
    void unpack(wire_##plain &to, const w::packed &from)                                           \
    {                                                                                              \
        FIELDS(UNPACK, UNPACK)                                                                     \
    }                                                                                              \
    template <>                                                                                    \
    constexpr bool in_place<wire_##plain> =                                                        \
        sizeof(wire_##plain) == sizeof(w::packed) &&                                               \
        alignof(wire_##plain) == alignof(w::packed) &&                                             \
        sizeof(wire_##plain) == (0 FIELDS(SIZE, SIZE)) FIELDS(IN_PLACE, IN_PLACE);
// clang-format on
WIRE_STRUCTS(STRUCT)

// ---- measuring: an upper bound before a byte is written ----
// So there is one allocation, and it fails before anything has happened.

struct measure {
    uint64_t payload = 0;  // bytes of vectors and strings: no message can be smaller
    uint64_t overhead = 0; // the most bytes of their lengths, terminators, padding and offsets
    uint32_t missing = 0;  // elements of a vector that has a count but no data

    void vector(const void *data, uint64_t count, uint64_t size)
    {
        if (!data && count > 0)
            missing = uint32_t(count);
        payload += count * size;
        overhead += 32;
    }
    template <class T> void field(const T &) // a number or a struct, part of the table
    {
    }
    void field(const char *const &text)
    {
        vector("", text ? strlen(text) : 0, 1);
    }
    void field(const wire_ints &v)
    {
        vector(v.data, v.count, sizeof *v.data);
    }
    void field(const wire_longs &v)
    {
        vector(v.data, v.count, sizeof *v.data);
    }
    void field(const wire_bytes &v)
    {
        vector(v.data, v.count, sizeof *v.data);
    }
    void field(const wire_names &v)
    {
        vector(v.data, v.count, sizeof(fb::uoffset_t));
        for (uint32_t i = 0; v.data && i < v.count; i++)
            field(v.data[i]);
    }
    template <size_t N> void field(const uint8_t (&bytes)[N])
    {
        vector(bytes, N, 1);
    }
#define MEASURE_LIST(packed, plain)                                                                \
    void field(const wire_##plain##_list &v)                                                       \
    {                                                                                              \
        vector(v.data, v.count, sizeof(w::packed));                                                \
    }
    WIRE_LISTED(MEASURE_LIST)
};

// ---- writing ----

struct writer {
    fb::FlatBufferBuilder &builder;
    bool no_memory = false;
};

// Numbers and structs, which lie in the table.
template <class T> auto put(writer &, const T &from) -> decltype(pack(from))
{
    return pack(from);
}

fb::Offset<fb::String> put(writer &to, const char *text)
{
    return text ? to.builder.CreateString(text, strlen(text)) : 0;
}

fb::Offset<fb::Vector<int32_t>> put(writer &to, const wire_ints &v)
{
    return v.data ? to.builder.CreateVector(v.data, v.count) : 0;
}

fb::Offset<fb::Vector<int64_t>> put(writer &to, const wire_longs &v)
{
    return v.data ? to.builder.CreateVector(v.data, v.count) : 0;
}

fb::Offset<fb::Vector<uint8_t>> put(writer &to, const wire_bytes &v)
{
    return v.data ? to.builder.CreateVector(v.data, v.count) : 0;
}

template <size_t N> fb::Offset<fb::Vector<uint8_t>> put(writer &to, const uint8_t (&bytes)[N])
{
    return to.builder.CreateVector(bytes, N);
}

fb::Offset<fb::Vector<fb::Offset<fb::String>>> put(writer &to, const wire_names &names)
{
    // Strings first, then the vector of their offsets: FlatBuffers cannot nest while writing.
    auto *offsets = static_cast<fb::Offset<fb::String> *>(
        malloc((names.count + size_t(1)) * sizeof(fb::uoffset_t)));
    if (!offsets) {
        to.no_memory = true;
        return 0;
    }
    for (uint32_t i = 0; i < names.count; i++)
        offsets[i] = put(to, names.data[i] ? names.data[i] : "");
    auto vector = to.builder.CreateVector(offsets, names.count);
    free(offsets);
    return vector;
}

template <class Packed, class Plain>
fb::Offset<fb::Vector<const Packed *>> put_list(writer &to, const Plain *from, uint32_t count)
{
    Packed *array = nullptr;
    if (!from)
        return 0;
    auto vector = to.builder.CreateUninitializedVectorOfStructs<Packed>(count, &array);
    for (uint32_t i = 0; i < count; i++)
        array[i] = pack(from[i]);
    return vector;
}

// What a table's add_...() takes: a struct by address, or NULL if it is all 0; all else as it is.
template <class T> scalar<T> argument(const T &value)
{
    return value;
}

template <class T> fb::Offset<T> argument(const fb::Offset<T> &value)
{
    return value;
}

template <class Packed, class = typename Packed::Traits> const Packed *argument(const Packed &value)
{
    const Packed zero;
    return memcmp(&value, &zero, sizeof zero) != 0 ? &value : nullptr;
}

#define PUT_LIST(packed, plain)                                                                    \
    fb::Offset<fb::Vector<const w::packed *>> put(writer &to, const wire_##plain##_list &v)        \
    {                                                                                              \
        return put_list<w::packed>(to, v.data, v.count);                                           \
    }
WIRE_LISTED(PUT_LIST)

// ---- reading: behind a verified message; keeps the first thing that is wrong ----

struct reader {
    struct error *error;
    void **owned; // the next place in wire_reply.owned
    const char *field = "";
    enum status status = STATUS_OK;

    template <class... Values> void fail(enum status why, const char *format, Values... values)
    {
        if (status == STATUS_OK)
            status = error_set(error, why, format, field, values...);
    }
    void *allocate(size_t count, size_t size)
    {
        void *memory = calloc(count, size);
        if (!memory)
            fail(STATUS_NO_MEMORY, "no memory for %s: %zu entries of %zu bytes", count, size);
        return *owned++ = memory;
    }
};

template <class T, class From, class = scalar<T>> void get(reader &, T &to, From from)
{
    unpack(to, from);
}

// C reads up to the first NUL, so a string that holds another one would mean two things.
void get(reader &from, const char *&to, const fb::String *text)
{
    to = text ? text->c_str() : "";
    if (text && memchr(text->c_str(), '\0', text->size()))
        from.fail(STATUS_MALFORMED, "%s holds a NUL byte inside its %u bytes", text->size());
}

// The verifier checks where a vector's length lies, not where its elements lie. An empty vector
// counts as absent.
template <class T> bool has_elements(reader &from, const fb::Vector<T> *vector, size_t alignment)
{
    if (!vector || vector->size() == 0)
        return false;
    if (uintptr_t(vector->Data()) % alignment == 0)
        return true;
    from.fail(STATUS_MALFORMED, "the elements of %s do not lie at a multiple of %zu bytes",
              alignment);
    return false;
}

template <class Vector, class T>
void get_vector(reader &from, Vector &to, const fb::Vector<T> *vector)
{
    if (has_elements(from, vector, sizeof(T)))
        to = {vector->data(), vector->size()};
}

void get(reader &from, wire_ints &to, const fb::Vector<int32_t> *vector)
{
    get_vector(from, to, vector);
}

void get(reader &from, wire_longs &to, const fb::Vector<int64_t> *vector)
{
    get_vector(from, to, vector);
}

void get(reader &from, wire_bytes &to, const fb::Vector<uint8_t> *vector)
{
    get_vector(from, to, vector);
}

template <size_t N> void get(reader &from, uint8_t (&to)[N], const fb::Vector<uint8_t> *bytes)
{
    if (bytes && bytes->size() != N)
        from.fail(STATUS_MALFORMED, "%s has %u bytes, not %zu", bytes->size(), N);
    else if (bytes)
        memcpy(to, bytes->data(), N);
}

// The length is checked first: all entries may be one long string, and reading it for each entry
// would take too long.
void get_name(reader &from, const char *&to, const fb::String *text)
{
    if (text->size() > WIRE_MAX_NAME)
        from.fail(STATUS_MALFORMED, "an entry of %s has %u bytes; a name has at most %u",
                  text->size(), WIRE_MAX_NAME);
    else
        get(from, to, text);
}

void get(reader &from, wire_names &to, const fb::Vector<fb::Offset<fb::String>> *names)
{
    if (!names || names->size() == 0)
        return;
    auto *texts = static_cast<const char **>(from.allocate(names->size(), sizeof *to.data));
    for (fb::uoffset_t i = 0; texts && from.status == STATUS_OK && i < names->size(); i++)
        get_name(from, texts[i], names->Get(i));
    to = {texts, names->size()};
}

template <class Plain, class Packed>
const Plain *get_list(reader &from, const fb::Vector<const Packed *> *structs)
{
    if constexpr (in_place<Plain>)
        return reinterpret_cast<const Plain *>(structs->Data());
    auto *array = static_cast<Plain *>(from.allocate(structs->size(), sizeof(Plain)));
    for (fb::uoffset_t i = 0; array && i < structs->size(); i++)
        unpack(array[i], *structs->Get(i));
    return array;
}

// The verifier has checked that structs lie aligned inside their table.
template <class Plain, class Packed, class = typename Packed::Traits>
void get(reader &, Plain &to, const Packed *from)
{
    if (from)
        unpack(to, *from);
}

#define GET_LIST(packed, plain)                                                                    \
    void get(reader &from, wire_##plain##_list &to, const fb::Vector<const w::packed *> *structs)  \
    {                                                                                              \
        if (has_elements(from, structs, alignof(w::packed)))                                       \
            to = {get_list<wire_##plain>(from, structs), structs->size()};                         \
    }
WIRE_LISTED(GET_LIST)

#define OWNS_NOTHING(packed, plain)                                                                \
    static_assert(in_place<wire_##plain>,                                                          \
                  "a command has a list of " #packed ", which nothing would free");
WIRE_LISTED_BY_COMMANDS(OWNS_NOTHING)

// ---- one table each: measure, write, read ----

// The member of a request's or a reply's union that its type names. Defined behind the tables; see
// visit().
template <class Any> void measure_union(measure &m, const Any &from);
template <class Any> fb::Offset<void> put_union(writer &to, const Any &from);
template <class Any, class Type>
void get_union(reader &from, Any &to, Type &type, int number, const void *value);
template <class Enum> int number(const Enum &value);

// clang-format off
#define MEASURE_FIELD(owner, f, ...) m.field(from.f);
#define MEASURE_TABLE(owner, f, ...) if (from.has_##f) measure_table(m, from.f);
#define MEASURE_UNION(owner, f, ...) measure_union(m, from);
#define PUT_FIELD(owner, f, ...)     auto put_##f = put(to, from.f);
#define PUT_TABLE(owner, f, ...)                                                                   \
    auto put_##f = from.has_##f ? put_table(to, from.f, decltype(type->f())()) : 0;
#define PUT_UNION(owner, f, ...)     auto put_##f = put_union(to, from);
#define ADD_FIELD(owner, f, ...)     table.add_##f(argument(put_##f));
#define ADD_STRUCT(owner, f, ...)    table.add_##f(&put_##f);
#define ADD_UNION(owner, f, ...)                                                                   \
    table.add_##f##_type(decltype(type->f##_type())(number(from.f))), table.add_##f(put_##f);
#define GET_FIELD(owner, f, ...)     from.field = #f, get(from, to.f, table->f());
#define GET_TABLE(owner, f, ...)                                                                   \
    to.has_##f = table->f() != nullptr; if (to.has_##f) get_table(from, to.f, table->f());
#define GET_UNION(owner, f, ...)                                                                   \
    from.field = #f, get_union(from, to, to.f, int(table->f##_type()), table->f());
#define TABLE(packed, plain, FIELDS)                                                               \
    void measure_table(measure &m, const wire_##plain &from)                                       \
    {                                                                                              \
        FIELDS(MEASURE_FIELD, MEASURE_TABLE, MEASURE_FIELD, MEASURE_UNION)                         \
    }                                                                                              \
    fb::Offset<w::packed> put_table(writer &to, const wire_##plain &from,                          \
                                    [[maybe_unused]] const w::packed *type)                        \
    {                                                                                              \
        FIELDS(PUT_FIELD, PUT_TABLE, PUT_FIELD, PUT_UNION)                                         \
        w::packed##Builder table(to.builder);                                                      \
        FIELDS(ADD_FIELD, ADD_FIELD, ADD_STRUCT, ADD_UNION)                                        \
        return table.Finish();                                                                     \
    }                                                                                              \
    void get_table(reader &from, wire_##plain &to, const w::packed *table)                         \
    {                                                                                              \
        FIELDS(GET_FIELD, GET_TABLE, GET_FIELD, GET_UNION)                                         \
    }
// clang-format on
WIRE_TABLES(TABLE)

void measure_table(measure &, const wire_nothing &)
{
}

template <class Table> fb::Offset<Table> put_table(writer &to, const wire_nothing &, const Table *)
{
    return typename Table::Builder(to.builder).Finish();
}

template <class Table> void get_table(reader &, wire_nothing &, const Table *)
{
}

// ---- requests and replies: from a type to its table ----

// The caller's struct may hold a number that is not in the enum; C++ must not load it as the enum.
template <class Enum> int number(const Enum &value)
{
    int plain;
    static_assert(sizeof plain == sizeof value, "an enum of C is an int");
    memcpy(&plain, &value, sizeof plain);
    return plain;
}

// Calls act(member, null pointer to its table) for the member that the type names; false: it names
// none.
#define CASE_COMMAND(name, member, table)                                                          \
    case WIRE_COMMAND_##name:                                                                      \
        act(any.member, static_cast<const w::table *>(nullptr));                                   \
        return true;
#define CASE_ANSWER(name, member, table)                                                           \
    case WIRE_ANSWER_##name:                                                                       \
        act(any.member, static_cast<const w::table *>(nullptr));                                   \
        return true;
#define VISIT(Any, type, CASES)                                                                    \
    template <class Act> bool visit(Any &any, Act act)                                             \
    {                                                                                              \
        switch (number(any.type)) {                                                                \
            CASES                                                                                  \
        }                                                                                          \
        return false;                                                                              \
    }
VISIT(wire_request, command, WIRE_COMMAND_MAP(CASE_COMMAND))
VISIT(const wire_request, command, WIRE_COMMAND_MAP(CASE_COMMAND))
VISIT(wire_reply, answer, WIRE_ANSWER_MAP(CASE_ANSWER))
VISIT(const wire_reply, answer, WIRE_ANSWER_MAP(CASE_ANSWER))

enum status unknown_type(error *error, enum status status, const char *message, const char *member,
                         int type)
{
    if (type == 0)
        return error_set(error, status, "the %s has no %s", message, member);
    return error_set(error, status, "the %s has the unknown %s %d", message, member, type);
}

enum status unknown_type(error *error, enum status status, const wire_request &, int type)
{
    return unknown_type(error, status, "request", "command", type);
}

enum status unknown_type(error *error, enum status status, const wire_reply &, int type)
{
    return unknown_type(error, status, "reply", "answer", type);
}

constexpr int count_of(wire_command)
{
    return WIRE_COMMAND_COUNT;
}

constexpr int count_of(wire_answer)
{
    return WIRE_ANSWER_COUNT;
}

template <class Any> void measure_union(measure &m, const Any &from)
{
    visit(from, [&](auto &member, auto *) { measure_table(m, member); });
}

template <class Any> fb::Offset<void> put_union(writer &to, const Any &from)
{
    fb::Offset<void> offset = 0;
    visit(from, [&](auto &member, auto *type) { offset = put_table(to, member, type).Union(); });
    return offset;
}

template <class Any, class Type>
void get_union(reader &from, Any &to, Type &type, int number, const void *value)
{
    if (from.status)
        return;
    if (number <= 0 || number >= count_of(Type())) {
        from.status = unknown_type(from.error, STATUS_MALFORMED, to, number);
        return;
    }
    type = Type(number);
    if (!value)
        return from.fail(STATUS_MALFORMED, "the %s has a type (%d) but no value", number);
    visit(to, [&](auto &member, auto *table) {
        get_table(from, member, static_cast<decltype(table)>(value));
    });
}

// ---- rules that the verifier does not check ----
// They hold before writing (INVALID) and after reading (MALFORMED).

struct checker {
    struct error *error;
    enum status otherwise;

    enum status name(const char *field, const char *text)
    {
        size_t size = text ? strlen(text) : 0;
        if (size <= WIRE_MAX_NAME)
            return STATUS_OK;
        return error_set(error, otherwise, "%s has %zu bytes; a name has at most %u", field, size,
                         WIRE_MAX_NAME);
    }
    enum status names(const char *field, const wire_names &list)
    {
        enum status status = STATUS_OK;
        for (uint32_t i = 0; list.data && i < list.count && !status; i++)
            status = name(field, list.data[i]);
        return status;
    }
    enum status at_most(const char *field, uint32_t count, uint32_t limit)
    {
        if (count <= limit)
            return STATUS_OK;
        return error_set(error, otherwise, "%s has %u bytes; at most %u are allowed", field, count,
                         limit);
    }
    enum status equal(const char *field, uint32_t count, const char *other, uint32_t wanted)
    {
        if (count == wanted)
            return STATUS_OK;
        return error_set(error, otherwise, "%s has %u entries beside %u of %s", field, count,
                         wanted, other);
    }
};

template <class T> enum status check(checker &, const T &)
{
    return STATUS_OK;
}

enum status check(checker &c, const wire_hello &m)
{
    enum status status = c.name("client_name", m.client_name);
    return status ? status : c.name("tenant", m.tenant);
}

enum status check(checker &c, const wire_cache_open &m)
{
    enum status status = c.name("name", m.name);
    return status ? status : c.at_most("fingerprint", m.fingerprint.count, WIRE_MAX_FINGERPRINT);
}

enum status check(checker &c, const wire_prefix_lookup &m)
{
    return c.at_most("extra_key", m.extra_key.count, WIRE_MAX_EXTRA_KEY);
}

enum status check(checker &c, const wire_prefix_publish &m)
{
    return c.at_most("extra_key", m.extra_key.count, WIRE_MAX_EXTRA_KEY);
}

enum status check(checker &c, const wire_offer &m)
{
    enum status status = c.name("name", m.name);
    return status ? status : c.at_most("extra_key", m.extra_key.count, WIRE_MAX_EXTRA_KEY);
}

enum status check(checker &c, const wire_offer_take &m)
{
    return c.name("name", m.name);
}

enum status check(checker &c, const wire_offer_take_reply &m)
{
    return c.at_most("extra_key", m.extra_key.count, WIRE_MAX_EXTRA_KEY);
}

enum status check(checker &c, const wire_prefix_keep &m)
{
    return c.at_most("extra_key", m.extra_key.count, WIRE_MAX_EXTRA_KEY);
}

enum status check(checker &c, const wire_inspect_tenants_reply &m)
{
    return c.equal("names", m.names.count, "tenants", m.tenants.count);
}

enum status check(checker &c, const wire_inspect_sessions_reply &m)
{
    enum status status = c.equal("names", m.names.count, "sessions", m.sessions.count);
    if (!status)
        status = c.equal("tenants", m.tenants.count, "sessions", m.sessions.count);
    if (!status)
        status = c.names("names", m.names);
    return status ? status : c.names("tenants", m.tenants);
}

enum status check(checker &c, const wire_inspect_prefix_reply &m)
{
    enum status status = c.equal("tenants", m.tenants.count, "nodes", m.nodes.count);
    return status ? status : c.names("tenants", m.tenants);
}

enum status check(checker &c, const wire_inspect_caches_reply &m)
{
    enum status status = c.equal("names", m.names.count, "caches", m.caches.count);
    if (!status)
        status = c.equal("fingerprints", m.fingerprints.count, "caches", m.caches.count);
    if (!status)
        status = c.names("names", m.names);
    return status ? status : c.names("fingerprints", m.fingerprints);
}

enum status check(checker &c, const wire_metrics_reply &m)
{
    const uint32_t count = m.names.count;
    enum status status = c.equal("units", m.units.count, "names", count);
    if (!status)
        status = c.equal("helps", m.helps.count, "names", count);
    if (!status)
        status = c.equal("kinds", m.kinds.count, "names", count);
    if (!status)
        status = c.equal("values", m.values.count, "names", count);
    if (!status)
        status = c.names("names", m.names);
    if (!status)
        status = c.names("units", m.units);
    return status ? status : c.names("helps", m.helps);
}

enum status check(checker &c, const wire_inspect_device_reply &m)
{
    enum status status =
        c.equal("variant_needs", m.variant_needs.count, "variants", m.variants.count);
    if (!status)
        status = c.equal("variant_missing", m.variant_missing.count, "variants", m.variants.count);
    if (!status)
        status = c.names("variants", m.variants);
    if (!status)
        status = c.names("variant_needs", m.variant_needs);
    return status ? status : c.names("variant_missing", m.variant_missing);
}

template <class Any> enum status check_union(checker &c, const Any &in, int type)
{
    enum status status = STATUS_OK;
    if (visit(in, [&](auto &member, auto *) { status = check(c, member); }))
        return status;
    return unknown_type(c.error, c.otherwise, in, type);
}

enum status check_message(checker &c, const wire_request &in)
{
    return check_union(c, in, number(in.command));
}

enum status check_message(checker &c, const wire_reply &in)
{
    return check_union(c, in, number(in.answer));
}

// ---- encode ----

// Hands out the one block that encode() made. It is large enough: see struct measure.
class one_block final : public fb::Allocator
{
  public:
    one_block(uint8_t *memory, size_t size) : memory_(memory), size_(size)
    {
    }
    uint8_t *allocate(size_t size) override
    {
        if (size > size_ || taken_)
            abort(); // a defect of struct measure: tests fill every message to the brim
        taken_ = true;
        return memory_;
    }
    void deallocate(uint8_t *, size_t) override
    {
    }

  private:
    uint8_t *memory_;
    size_t size_;
    bool taken_ = false;
};

// Bytes of the root, one table, their vtables, and FlatBuffers' own list of fields at the block's
// other end.
enum { TABLES_AT_MOST = 4096 };

enum status too_large(struct error *error, const char *about, uint64_t size)
{
    return error_set(error, STATUS_LIMIT,
                     "the message has %s%llu bytes, %llu more than a message may have (%u)", about,
                     (unsigned long long)size, (unsigned long long)(size - WIRE_MAX_MESSAGE),
                     WIRE_MAX_MESSAGE);
}

template <class Root, class Any>
enum status build(const Any &in, uint8_t *memory, size_t size, wire_buffer *out, error *error)
{
    one_block allocator(memory, size);
    fb::FlatBufferBuilder builder(size, &allocator);
    writer to{builder};
    builder.Finish(put_table(to, in, static_cast<const Root *>(nullptr)), w::RequestIdentifier());
    if (to.no_memory)
        return error_set(error, STATUS_NO_MEMORY, "no memory to write a list of names");
    if (builder.GetSize() > WIRE_MAX_MESSAGE)
        return too_large(error, "", builder.GetSize());
    // FlatBuffers writes from the block's end, but free() needs its beginning.
    memmove(memory, builder.GetBufferPointer(), builder.GetSize());
    *out = {memory, builder.GetSize()};
    return STATUS_OK;
}

// Checks a message. *size: bytes that build() needs for it.
template <class Any> enum status check_size(const Any &in, size_t *size, error *error)
{
    checker c{error, STATUS_INVALID};
    enum status status = check_message(c, in);
    if (status)
        return status;
    measure m;
    measure_table(m, in);
    if (m.missing)
        return error_set(error, STATUS_INVALID, "a vector of %u elements has no data", m.missing);
    if (m.payload > WIRE_MAX_MESSAGE)
        return too_large(error, "at least ", m.payload);
    *size = (m.payload + m.overhead + TABLES_AT_MOST + 7) & ~size_t(7); // as FlatBuffers rounds it
    return STATUS_OK;
}

template <class Root, class Any> enum status encode(const Any &in, wire_buffer *out, error *error)
{
    size_t size = 0;
    *out = {};
    enum status status = check_size(in, &size, error);
    if (status)
        return status;
    auto *memory = static_cast<uint8_t *>(malloc(size));
    if (!memory)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a message of %zu bytes", size);
    status = build<Root>(in, memory, size, out, error);
    if (status)
        free(memory);
    return status;
}

// ---- decode ----

enum { DEPTH_AT_MOST = 8, NUM_TABLES_AT_MOST = 16 };

template <class Root> enum status verify(const void *data, size_t size, error *error)
{
    auto *bytes = static_cast<const uint8_t *>(data);
    const size_t least = sizeof(fb::uoffset_t) + fb::kFileIdentifierLength;
    if (uintptr_t(data) % 8 != 0)
        return error_set(error, STATUS_INVALID,
                         "the message lies at %p, not at a multiple of 8 bytes", data);
    if (size > WIRE_MAX_MESSAGE)
        return error_set(error, STATUS_MALFORMED,
                         "the message has %zu bytes; at most %u are allowed", size,
                         WIRE_MAX_MESSAGE);
    if (!data || size < least)
        return error_set(error, STATUS_MALFORMED,
                         "the message is truncated: it has %zu bytes, the least is %zu", size,
                         least);
    if (!fb::BufferHasIdentifier(data, w::RequestIdentifier()))
        return error_set(error, STATUS_MALFORMED,
                         "the message is not aule's: its identifier is %02x %02x %02x %02x",
                         bytes[4], bytes[5], bytes[6], bytes[7]);
    fb::Verifier verifier(bytes, size, DEPTH_AT_MOST, NUM_TABLES_AT_MOST);
    if (!verifier.VerifyBuffer<Root>(w::RequestIdentifier()))
        return error_set(
            error, STATUS_MALFORMED,
            "the message is corrupt or truncated: a part of it lies outside its %zu bytes", size);
    return STATUS_OK;
}

template <class Root, class Any>
enum status decode(const void *data, size_t size, Any &to, void **owned, error *error)
{
    enum status status = verify<Root>(data, size, error);
    if (status)
        return status;
    reader from{error, owned};
    get_table(from, to, fb::GetRoot<Root>(data));
    if (from.status)
        return from.status;
    checker c{error, STATUS_MALFORMED};
    return check_message(c, to);
}

// All bytes; `= {}` may leave those of a union's other members.
template <class Any> void clear(Any &any)
{
    memset(&any, 0, sizeof any);
}

} // namespace

// ---- the ring lane's entries ----

static_assert(sizeof(w::Submission) <= WIRE_SUBMISSION_SIZE &&
                  sizeof(w::Completion) <= WIRE_COMPLETION_SIZE && WIRE_SUBMISSION_SIZE % 64 == 0 &&
                  WIRE_COMPLETION_SIZE % 64 == 0,
              "an entry fills whole lines of its ring");
static_assert(sizeof(w::RunOptions) == 64, "a new option takes words of `reserved`");

void wire_put_submission(const wire_submission *from, void *entry)
{
    const w::Submission packed(
        from->sequence, from->command,
        from->command == WIRE_COMMAND_WAIT ? from->wait.timeout_ms : from->run.timeout_ms,
        from->run.waits, from->run.wait_ms, uint32_t(from->run.scales.count), from->wait.ticket,
        pack(from->run.entry), pack(from->run.layers), from->run.scales.offset,
        pack(from->run.options), pack(from->message), from->room);
    memset(entry, 0, WIRE_SUBMISSION_SIZE);
    memcpy(entry, &packed, sizeof packed);
}

void wire_get_submission(const void *entry, wire_submission *to)
{
    const auto *packed = static_cast<const w::Submission *>(entry);
    *to = {};
    to->sequence = packed->sequence();
    to->command = packed->command();
    to->wait.ticket = packed->ticket();
    to->wait.timeout_ms = packed->timeout_ms();
    unpack(to->run.entry, packed->run());
    to->run.timeout_ms = packed->timeout_ms();
    to->run.waits = packed->waits() != 0;
    to->run.wait_ms = packed->wait_ms();
    unpack(to->run.layers, packed->layers());
    to->run.scales = {packed->scales(), packed->num_scales()};
    unpack(to->run.options, packed->options());
    unpack(to->message, packed->message());
    to->room = packed->room();
}

void wire_put_completion(const wire_completion *from, void *entry)
{
    uint8_t text[sizeof from->text] = {};
    memcpy(text, from->text, strnlen(from->text, sizeof text - 1));
    const w::Completion packed(from->sequence, from->status, from->answer, from->run_status,
                               from->num_runs, from->num_sessions, from->gpu_ns, from->ticket,
                               fb::span<const uint8_t, sizeof text>(text));
    memset(entry, 0, WIRE_COMPLETION_SIZE);
    memcpy(entry, &packed, sizeof packed);
}

void wire_get_completion(const void *entry, wire_completion *to)
{
    const auto *packed = static_cast<const w::Completion *>(entry);
    *to = {};
    to->sequence = packed->sequence();
    to->status = packed->status();
    to->answer = packed->answer();
    to->run_status = packed->run_status();
    to->num_runs = packed->num_runs();
    to->num_sessions = packed->num_sessions();
    to->gpu_ns = packed->gpu_ns();
    to->ticket = packed->ticket();
    memcpy(to->text, packed->text()->Data(), sizeof to->text - 1);
}

bool wire_fits_completion(wire_answer answer)
{
    return answer == WIRE_ANSWER_EMPTY || answer == WIRE_ANSWER_RUN || answer == WIRE_ANSWER_WAIT;
}

uint64_t wire_reply_room(const wire_request *request)
{
    const uint64_t all_but_lists = 512;
    switch (request->command) {
    case WIRE_COMMAND_BATCH_ADVANCE:
    case WIRE_COMMAND_BATCH_CREATE:
    case WIRE_COMMAND_BATCH_DESTROY:
    case WIRE_COMMAND_BLOCKS_COPY:
    case WIRE_COMMAND_BLOCKS_RELEASE:
    case WIRE_COMMAND_CACHE_REPORT:
    case WIRE_COMMAND_CLAIM_RELEASE:
    case WIRE_COMMAND_MERGE:
    case WIRE_COMMAND_RUN:
    case WIRE_COMMAND_WAIT: return all_but_lists;
    case WIRE_COMMAND_BLOCKS_LEASE:
        return all_but_lists + request->blocks_lease.count * sizeof(int32_t);
    case WIRE_COMMAND_PREFIX_PUBLISH:
        return all_but_lists + request->prefix_publish.blocks.count * sizeof(int32_t);
    default: return 0;
    }
}

// ---- wire.h ----

unsigned wire_command_rules(int command)
{
    switch (command) {
#define X(name, member, rules, since)                                                              \
    case WIRE_COMMAND_##name: return rules;
        WIRE_RULES_MAP(X)
#undef X
    default: return 0;
    }
}

const char *wire_command_name(int command)
{
    switch (command) {
#define X(name, member, table)                                                                     \
    case WIRE_COMMAND_##name: return #name;
        WIRE_COMMAND_MAP(X)
#undef X
    default: return "UNKNOWN";
    }
}

void wire_buffer_finish(wire_buffer *buffer)
{
    if (!buffer)
        return;
    free(buffer->data);
    *buffer = {};
}

enum status wire_encode_request(const wire_request *request, wire_buffer *out, error *error)
{
    return encode<w::Request>(*request, out, error);
}

enum status wire_encode_reply(const wire_reply *reply, wire_buffer *out, error *error)
{
    return encode<w::Reply>(*reply, out, error);
}

enum status wire_encode_reply_in(const wire_reply *reply, void *memory, size_t room, size_t *size,
                                 error *error)
{
    wire_buffer built = {};
    size_t needed = 0;
    enum status status = check_size(*reply, &needed, error);
    if (status)
        return status;
    if (needed > room)
        return error_set(error, STATUS_LIMIT, "a reply that may take %zu bytes has room for %zu",
                         needed, room);
    status = build<w::Reply>(*reply, static_cast<uint8_t *>(memory), needed, &built, error);
    *size = built.size;
    return status;
}

enum status wire_decode_request(const void *data, size_t size, wire_request *out, error *error)
{
    clear(*out);
    enum status status = decode<w::Request>(data, size, *out, nullptr, error);
    if (status)
        clear(*out);
    return status;
}

enum status wire_decode_reply(const void *data, size_t size, wire_reply *out, error *error)
{
    clear(*out);
    enum status status = decode<w::Reply>(data, size, *out, out->owned, error);
    if (status)
        wire_reply_finish(out);
    return status;
}

void wire_reply_finish(wire_reply *reply)
{
    if (!reply)
        return;
    for (void *memory : reply->owned)
        free(memory);
    clear(*reply);
}

// ---- the C++ runtime, as far as FlatBuffers refers to it ----
// Never called, because encode() brings its own allocator. These functions let a plain C program
// link without libstdc++. CMakeLists.txt makes their names local to this object.

void *operator new(size_t size)
{
    void *memory = malloc(size ? size : 1);
    if (!memory)
        abort(); // must not return NULL, and without exceptions there is no other way to say so
    return memory;
}

void *operator new[](size_t size)
{
    return operator new(size);
}

void operator delete(void *memory) noexcept
{
    free(memory);
}

void operator delete[](void *memory) noexcept
{
    free(memory);
}

void operator delete(void *memory, size_t) noexcept
{
    free(memory);
}

void operator delete[](void *memory, size_t) noexcept
{
    free(memory);
}

extern "C" void __cxa_pure_virtual(void);
extern "C" void __cxa_pure_virtual(void)
{
    abort();
}
