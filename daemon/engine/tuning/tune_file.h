// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// tune_file.h - the file of measurements, one for each device and driver. It is JSON, so that
// people can read it. Checks the form of the file; whether a kernel still has such a candidate is
// the caller's to check. Any thread; no state.

#ifndef AULE_ENGINE_TUNE_FILE_H
#define AULE_ENGINE_TUNE_FILE_H

#include "base/uuid.h"
#include "tune.h"

struct tune_device {
    char uuid[UUID_TEXT_SIZE];
    char driver[256]; // name and version
};
struct tune_device tune_device_of(const struct engine_device *device);
// Malloc'd: "FOLDER/tuning-UUID-DRIVER.json". NULL without memory.
char *tune_file_path(const char *folder, const struct tune_device *device);

struct tune_list {
    struct tune_entry *entries; // [count]; owned
    uint32_t count;
    uint32_t num_damaged; // entries that were left out
    char damage[160];     // what is wrong with the first of these
};
// NOT_FOUND: there is no file. VERSION: an older aule wrote it. MALFORMED, which a newer aule's
// file is, too; MISMATCH (another device's) and others. `error` says why nothing of the file is of
// use.
enum status tune_file_read(const char *path, const struct tune_device *device,
                           struct tune_list *out, struct error *error);
void tune_list_finish(struct tune_list *list); // takes a zeroed one
// Writes the measured entries of `list`. If there are none, it removes the file.
enum status tune_file_write(const char *path, const struct tune_device *device,
                            const struct tune_list *list, struct error *error);

#endif
