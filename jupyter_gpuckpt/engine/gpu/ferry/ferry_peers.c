/* Peer access for memory from cuMemCreate: cuCtxEnablePeerAccess does not reach it, so each peer gets access by cuMemSetAccess.
 *
 * Programs switch peer access on by contexts. What counts here is whether any context of one GPU has access to any context of another:
 * more access than the driver would give does no harm. A Restore may change the handles of contexts, but not the devices.
 *
 * The driver's own peer access is switched off for a save: with it the driver's Restore fails for good.
 */
#include "ferry.h"

#define MAX_PAIRS 4096
enum { ALREADY_ENABLED = 704, NOT_ENABLED = 705, CONTEXT_ENDED = 709 };

/* `are_primary`: both contexts were the primary ones of their devices. */
typedef struct { context_t from, to; int from_device, to_device, are_primary; } pair_t;

static pair_t pairs[MAX_PAIRS];
static uint32_t pair_count;
/* The pairs between which peer access is switched off for a save. */
static pair_t switched[MAX_PAIRS];
static uint32_t switched_count;

int has_access(int from, int to) {
    for (uint32_t i = 0; i < pair_count; i++)
        if (pairs[i].from_device == from && pairs[i].to_device == to) return 1;
    return 0;
}

result_t add_peer(context_t from, context_t to, int from_device, int to_device, set_access_t *set_access) {
    if (pair_count == MAX_PAIRS) return TOO_MANY_PEERS;
    if (from_device != to_device && !has_access(from_device, to_device)) {
        result_t error = set_access(from_device, to_device, READ_WRITE);
        if (error) {
            set_access(from_device, to_device, NO_ACCESS);
            return error;
        }
    }
    int are_primary = from && to && from == primary_of(from_device) && to == primary_of(to_device);
    pairs[pair_count++] = (pair_t){from, to, from_device, to_device, are_primary};
    return SUCCESS;
}

static void remove_at(uint32_t at, set_access_t *set_access) {
    pair_t pair = pairs[at];
    pairs[at] = pairs[--pair_count];
    if (pair.from_device != pair.to_device && !has_access(pair.from_device, pair.to_device))
        set_access(pair.from_device, pair.to_device, NO_ACCESS);
}

void remove_peer(context_t from, context_t to, int from_device, int to_device, set_access_t *set_access) {
    int64_t found = -1;
    for (uint32_t i = 0; i < pair_count; i++) {
        if (pairs[i].from_device != from_device || pairs[i].to_device != to_device) continue;
        if (found < 0 || (pairs[i].from == from && pairs[i].to == to)) found = i;
    }
    if (found >= 0) remove_at(found, set_access);
}

void remove_peers_of(context_t context, int device, set_access_t *set_access) {
    for (uint32_t at = pair_count; at--;) {
        const pair_t *pair = &pairs[at];
        if (context ? pair->from == context || pair->to == context : pair->from_device == device || pair->to_device == device)
            remove_at(at, set_access);
    }
}

uint32_t access_to(int device, access_t access[MAX_GPUS]) {
    uint32_t count = 1;
    access[0] = (access_t){{ON_DEVICE, device}, READ_WRITE};
    for (uint32_t i = 0; i < pair_count; i++) {
        int from = pairs[i].from_device, known = pairs[i].to_device != device;
        for (uint32_t j = 0; j < count && !known; j++) known = access[j].location.id == from;
        if (!known && count < MAX_GPUS) access[count++] = (access_t){{ON_DEVICE, from}, READ_WRITE};
    }
    return count;
}

void forget_peers(void) { pair_count = switched_count = 0; }

/* Switch peer access off between two contexts; nothing happens where it was off, or a context has ended. */
static result_t switch_off(const pair_t *pair) {
    context_t popped;
    if (driver.cuCtxPushCurrent_v2(pair->from)) return SUCCESS;
    result_t error = switched_count == MAX_PAIRS ? TOO_MANY_PEERS : driver.cuCtxDisablePeerAccess(pair->to);
    driver.cuCtxPopCurrent_v2(&popped);
    if (!error) switched[switched_count++] = *pair;
    return error == NOT_ENABLED || error == INVALID_CONTEXT || error == CONTEXT_ENDED ? SUCCESS : error;
}

static result_t switch_on(context_t from, context_t to) {
    context_t popped;
    result_t error = from && to ? driver.cuCtxPushCurrent_v2(from) : INVALID_CONTEXT;
    if (error) return error;
    error = driver.cuCtxEnablePeerAccess(to, 0);
    driver.cuCtxPopCurrent_v2(&popped);
    return error == ALREADY_ENABLED ? SUCCESS : error;
}

result_t switch_peers_off(void) {
    context_t primary[MAX_GPUS] = {0};
    int gpus = 0;
    result_t error = driver.cuDeviceGetCount(&gpus);
    if (gpus > MAX_GPUS) gpus = MAX_GPUS;
    for (uint32_t i = 0; i < pair_count && !error; i++)
        if (pairs[i].from && pairs[i].to && !pairs[i].are_primary) error = switch_off(&pairs[i]);
    /* Also what was switched on without our notice: a Restore with it fails for good. */
    for (int device = 0; device < gpus && gpus > 1; device++) primary[device] = primary_of(device);
    for (int from = 0; from < gpus && !error; from++)
        for (int to = 0; to < gpus && !error; to++)
            if (from != to && primary[from] && primary[to]) error = switch_off(&(pair_t){primary[from], primary[to], from, to, 1});
    if (error) switch_peers_on();
    return error;
}

uint32_t switch_peers_on(void) {
    uint32_t failed = 0;
    while (switched_count) {
        const pair_t *pair = &switched[--switched_count];
        /* Handles from before a Restore may be invalid; those of primary contexts can be asked for again. */
        int is_primary = pair->are_primary;
        if (switch_on(is_primary ? primary_of(pair->from_device) : pair->from, is_primary ? primary_of(pair->to_device) : pair->to)) failed++;
    }
    return failed;
}
