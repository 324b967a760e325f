// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// options.h - a program's options as one table. The table gives the parser, --help, the man page's
// list, the Markdown table of the docs and bash completion. A new option is one line of the table,
// which also makes its field, and the code that uses the field. The module sets fields and writes
// sentences. It neither ends the process nor writes to standard error. One thread.

#ifndef AULE_OPTIONS_H
#define AULE_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum option_kind {
    OPTION_FLAG,     // bool: becomes true. Takes no value
    OPTION_CONSTANT, // 4 or 8 bytes: becomes `least`. Takes no value
    OPTION_TEXT,     // const char *: the value itself, of at least `least` bytes
    OPTION_TEXTS,    // struct option_texts: the value itself, each time that the option is given
    OPTION_COUNT,    // 4 or 8 bytes: a whole number from `least` to `most`
    OPTION_BYTES,    // the same; K, M and G are powers of 1024
    OPTION_NUMBER,   // double: above `least`, and `most` at most
    OPTION_CHOICE,   // 4 or 8 bytes: `least` plus the place of the value in `words`
};

enum { OPTION_MAX_TEXTS = 64 };
struct option_texts {
    const char *texts[OPTION_MAX_TEXTS];
    uint32_t count;
};

// The members are in the order in which a line of a table has them; see OPTION_ENTRY().
struct option {
    const char *name;     // without dashes; NULL: the entry is the heading of a section
    const char *argument; // what --help calls the value; NULL: no value, or the words of a choice
    enum option_kind kind;
    size_t offset, size; // of the field
    uint64_t least, most;
    bool power_of_two;        // COUNT: only a power of two, or 0 if `least` is 0
    const char *word;         // COUNT, BYTES: a word that stands for word_value; NULL: none
    uint64_t word_value;      //
    const char *const *words; // CHOICE: ends with NULL; see OPTION_WORDS()
    const char *initial;      // the default, as on a command line; NULL: the field stays as it was
    const char *otherwise;    // the default in words, where `initial` cannot say it
    const char *help;         // a phrase without capital and full stop; NULL: the option is hidden
    const char *details;      // further sentences, for the man page; may be NULL
    const char *section;      // of a heading
    unsigned groups;          // of commands that take it; 0: all do
    void *own;                // of an option of one command: its field, in place of `offset`
};
// In help and details, `back quotes` enclose what is typed.

// An entry's kind, and its field's place and size. Does not compile if the field does not fit the
// kind.
#define OPTION_FIELD(KIND, type, member)                                                           \
    KIND, offsetof(type, member),                                                                  \
        sizeof((type *)0)->member + OPTION_CHECK(KIND##_FITS(((type *)0)->member))
// Adds 0. Does not compile if `fits` is false.
#define OPTION_CHECK(fits)                                                                         \
    (0 * sizeof(struct {                                                                           \
         _Static_assert((fits), "the field's type does not fit the kind of the option");           \
         char unused;                                                                              \
     }))
#define OPTION_FLAG_FITS(field)     _Generic((field), bool : 1, default : 0)
#define OPTION_TEXT_FITS(field)     _Generic((field), const char * : 1, default : 0)
#define OPTION_TEXTS_FITS(field)    _Generic((field), struct option_texts : 1, default : 0)
#define OPTION_NUMBER_FITS(field)   _Generic((field), double : 1, default : 0)
#define OPTION_COUNT_FITS(field)    OPTION_WHOLE_FITS(field)
#define OPTION_BYTES_FITS(field)    OPTION_WHOLE_FITS(field)
#define OPTION_CONSTANT_FITS(field) OPTION_WHOLE_FITS(field)
#define OPTION_CHOICE_FITS(field)   OPTION_WHOLE_FITS(field)
// Also an enum, which is an int or an unsigned.
#define OPTION_WHOLE_FITS(field)                                                                   \
    _Generic((field), int : 1, unsigned : 1, long : 1, unsigned long : 1, long long : 1,           \
             unsigned long long : 1, default : 0)

// A program writes its table as a macro, so that one line makes an option's field and its entry.
// Here is a table of one section and one option:
//
//     #define PROGRAM_OPTIONS(SECTION, OPTION) SECTION("Numbers")
//         OPTION(uint32_t, count, "count", "N", OPTION_COUNT, 1, 9, .help = "how many")
//     struct settings { PROGRAM_OPTIONS(OPTION_NO_MEMBER, OPTION_MEMBER) };
//     #define ENTRY(...) OPTION_ENTRY(struct settings, __VA_ARGS__)
//     static const struct option entries[] = {PROGRAM_OPTIONS(OPTION_HEADING, ENTRY)};
//
// A line is the field's type and name, then the members of its struct option without `offset` and
// `size`.
#define OPTION_MEMBER(type, field, ...) type field;
#define OPTION_NO_MEMBER(...)
#define OPTION_HEADING(text) {.section = (text)},
#define OPTION_ENTRY(settings, type, field, name, argument, kind, ...)                             \
    {name, argument, OPTION_FIELD(kind, settings, field), __VA_ARGS__},
// An option of one command. The command's file has it, and its field, a static variable.
#define OPTION_OWN(field, name, argument, kind, ...)                                               \
    {                                                                                              \
        name, argument, kind, 0, sizeof(field) + OPTION_CHECK(kind##_FITS(field)), __VA_ARGS__,    \
            .own = &(field)                                                                        \
    }
// The words of a choice that nothing else reads.
#define OPTION_WORDS(...)                                                                          \
    .words = (const char *const[])                                                                 \
    {                                                                                              \
        __VA_ARGS__, NULL                                                                          \
    }

// Begins the struct that describes a command of the program.
struct options_command {
    const char *name;
    const char *argument; // usage's word for what follows it: "ID", "NAME..."; NULL: nothing does
    const char *help;     // NULL: the command is hidden
    unsigned groups;      // it takes the program's options that have one of these bits
    const struct option *options; // of OPTION_OWN(), then a NULL name; NULL: it has none. Their
                                  // names differ from those of all other options of the program
};

struct options_program {
    const char *name;     // "aule-ctl"
    const char *usage;    // what follows "usage: "
    const char *about;    // sentences below it
    const char *epilogue; // sentences at the end of --help
    const struct option *options;
    size_t num_options; // --help, --version and those of commands come on top; at most OPTIONS_MOST
                        // with headings
    const struct options_command *const *commands; // ends with NULL; NULL: the program has none
};

enum options_result {
    OPTIONS_RUN,  // go on
    OPTIONS_DONE, // --help or the like was answered on standard output
    OPTIONS_BAD,  // the sentence says why
};
enum { OPTIONS_MOST = 128 };       // of a program, each heading included
enum { OPTIONS_ERROR_SIZE = 512 }; // of a sentence; what is longer is cut

struct options_line {
    bool given[OPTIONS_MOST];              // [i]: the command line had options_at(i)
    const struct options_command *command; // NULL: the program has none
    char **operands; // [num_operands] the words that are no options, without the command
    int num_operands;
    char error[OPTIONS_ERROR_SIZE];
};

// Sets the fields of `settings` that have a default, then those that the command line names. A
// shortened name is refused, because the next version may have another option that begins with it.
// "--" ends the options. Strings point into argv, whose words change places. Also answers --help,
// -h, --version and --print-options FORMAT, which the build uses.
enum options_result options_read(const struct options_program *program, int argc, char **argv,
                                 void *settings, struct options_line *line);

// The defaults, then one option by its name. A flag takes "yes" and "no", or NULL for yes. False:
// `error` says why.
bool options_set_defaults(const struct options_program *program, void *settings,
                          char error[OPTIONS_ERROR_SIZE]);
bool options_set(const struct options_program *program, const char *name, const char *value,
                 void *settings, char error[OPTIONS_ERROR_SIZE]);

bool options_given(const struct options_program *program, const struct options_line *line,
                   const char *name);

// options_print.c. Each option that has a field, as a line "name=value": what `settings` holds. "#"
// stands before the lines of options that the command line did not name. An option that may be
// given several times has a line each time. A password in a URL is left out, and a control
// character becomes "?".
void options_print_values(const struct options_program *program, const struct options_line *line,
                          const void *settings, FILE *out);
// --help of the program, or of one of its commands that is not hidden.
void options_print_help(const struct options_program *program,
                        const struct options_command *command, FILE *out);
// "man", "markdown" or "bash"; false: FORMAT is none of them.
bool options_print(const struct options_program *program, const char *format, FILE *out);

// ---- for options_print.c ----

size_t options_count(const struct options_program *program); // with --help and --version
const struct option *options_at(const struct options_program *program,
                                size_t index); // in the order of --help
const struct options_command *options_command_at(const struct options_program *program,
                                                 size_t index); // NULL: the end
bool options_takes_value(const struct option *option);
bool options_taken(const struct option *option,
                   const struct options_command *command); // NULL takes all
// What --help shows behind the name: "N", "US|auto", "on|off"; "" for no value. Returns `to`.
const char *options_value(const struct option *option, char *to, size_t size);
// The option's field.
void *options_field(const struct option *option, void *settings);
// Joins words: "a, b and c" if `between` is ", " and `last` is " and ". Returns `to`.
char *options_join(char *to, size_t size, const char *const *words, const char *between,
                   const char *last);

#endif
