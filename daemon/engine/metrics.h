// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// metrics.h - the engine's part of the table of core/metrics.h, which says what a row means. A new
// counter is a row here and the line that counts, device_count(device, ENGINE_METRIC_..., more), in
// any thread.

#ifndef AULE_ENGINE_METRICS_H
#define AULE_ENGINE_METRICS_H

#define ENGINE_METRIC_MAP(X)                                                                       \
    X(PIPELINES_COMPILED, COUNTER, "aule_compiled_pipelines_total", "pipelines",                   \
      "pipelines compiled, by the driver or out of the cache folder")                              \
    X(PIPELINES_APART, COUNTER, "aule_pipelines_compiled_apart_total", "pipelines",                \
      "pipelines that a process of its own compiled before, on a software device")                 \
    X(CASCADES, COUNTER, "aule_cascade_dispatches_total", "dispatches",                            \
      "dispatches that read keys once for several sequences")                                      \
    X(STAGED_BYTES, COUNTER, "aule_staged_bytes_total", "bytes",                                   \
      "bytes copied to or from arenas that the GPU cannot use in place")                           \
    X(HAULED_BYTES, COUNTER, "aule_hauled_bytes_total", "bytes",                                   \
      "bytes that tiers moved to or from the GPU beside the runs")

enum engine_metric {
#define X(id, kind, name, unit, help) ENGINE_METRIC_##id,
    ENGINE_METRIC_MAP(X)
#undef X
        NUM_ENGINE_METRICS
};

#endif
