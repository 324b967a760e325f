// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// stopwatch.c - see stopwatch.h.

#include "stopwatch.h"

#include "tools/bench/measure.h"

enum {
    ROUNDS = 11,
    ROUNDS_SOFTWARE = 3
}; // a software device is slow, and has no clocks to warm up

enum status stopwatch_init(struct stopwatch *stopwatch, struct device *device, struct error *error)
{
    enum status status = transfer_init(&stopwatch->transfer, device, error);
    VkQueryPoolCreateInfo queries = {.sType = VK_STRUCTURE_TYPE_QUERY_POOL_CREATE_INFO,
                                     .queryType = VK_QUERY_TYPE_TIMESTAMP,
                                     .queryCount = 2};
    if (status != STATUS_OK)
        return status;
    VK_TRY(vkCreateQueryPool(device->handle, &queries, NULL, &stopwatch->queries));
fail:
    return status;
}

void stopwatch_finish(struct stopwatch *stopwatch)
{
    if (!stopwatch->transfer.device)
        return;
    vkDestroyQueryPool(stopwatch->transfer.device->handle, stopwatch->queries, NULL);
    transfer_finish(&stopwatch->transfer);
    *stopwatch = (struct stopwatch){0};
}

static double round_ns(struct stopwatch *stopwatch,
                       void (*record)(void *context, VkCommandBuffer commands), void *context,
                       struct error *error)
{
    struct device *device = stopwatch->transfer.device;
    uint64_t ticks[2] = {0};
    if (transfer_begin(&stopwatch->transfer, error) != STATUS_OK)
        return 0;
    VkCommandBuffer commands = stopwatch->transfer.commands;
    vkCmdResetQueryPool(commands, stopwatch->queries, 0, 2);
    vkCmdWriteTimestamp(commands, VK_PIPELINE_STAGE_ALL_COMMANDS_BIT, stopwatch->queries, 0);
    record(context, commands);
    vkCmdWriteTimestamp(commands, VK_PIPELINE_STAGE_ALL_COMMANDS_BIT, stopwatch->queries, 1);
    if (transfer_end(&stopwatch->transfer, error) != STATUS_OK)
        return 0;
    vkGetQueryPoolResults(device->handle, stopwatch->queries, 0, 2, sizeof ticks, ticks,
                          sizeof *ticks, VK_QUERY_RESULT_64_BIT | VK_QUERY_RESULT_WAIT_BIT);
    double ns = (double)(ticks[1] - ticks[0]) * device->adapter.timestamp_ns;
    if (!(ns > 0))
        error_set(error, STATUS_UNSUPPORTED, "%s has no clock", device->adapter.info.name);
    return ns;
}

double stopwatch_ns(struct stopwatch *stopwatch,
                    void (*record)(void *context, VkCommandBuffer commands), void *context,
                    struct error *error)
{
    double times[ROUNDS];
    int rounds = stopwatch->transfer.device->adapter.info.software ? ROUNDS_SOFTWARE : ROUNDS;
    for (int i = 0; i < rounds; i++) {
        times[i] = round_ns(stopwatch, record, context, error);
        if (!(times[i] > 0))
            return 0;
    }
    return quantile(times, (uint32_t)rounds, 0.5);
}
