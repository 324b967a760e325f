// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// server.h - the daemon as one object: engine, core, listener and sessions. Thread: main, which
// becomes the dispatcher in server_run(). This is what main() may use; state.h has what is inside.

#ifndef AULE_SERVER_H
#define AULE_SERVER_H

#include "base/exit_code.h"
#include "params.h"
#include "schema/status.h"

struct server;

// Exit codes of the process.
enum server_exit { SERVER_EXIT_OK = EXIT_CODE_DONE, SERVER_EXIT_DEVICE_LOST = EXIT_CODE_GONE };

// INVALID: the value of an option is wrong, as far as the value alone tells.
enum status server_check(const struct server_params *params, struct error *error);
// Opens the device, takes the lock, removes what a killed daemon left, and listens. Before this,
// and before any thread starts, the caller must block SIGTERM, SIGINT, SIGHUP and SIGXCPU, which
// the server reads from a signalfd. *params and its strings must outlive the server. On failure
// *out is what was made so far, or NULL: call server_destroy() for it as well, and obey its result.
enum status server_create(const struct server_params *params, struct server **out,
                          struct error *error);
// Serves until a drain after SIGTERM or SIGINT has ended, or until the device is lost.
enum server_exit server_run(struct server *server);
// Removes socket, segments and lock; takes NULL and half-made servers. After a drain, a further
// SIGTERM or SIGINT ends the process at once. False: the GPU did not become idle in time, so no
// memory was freed; the caller must end the process with _exit().
bool server_destroy(struct server *server);

#endif
