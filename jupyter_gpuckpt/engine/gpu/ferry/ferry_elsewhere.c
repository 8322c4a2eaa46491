/* Copies of memory that is on another GPU than that of the current context, or on two GPUs.
 *
 * Memory from cuMemAlloc belongs to a context, which the driver finds by the address. Memory from cuMemCreate belongs to none, so the
 * driver (580) treats it differently in two ways. A copy fails with CUDA_ERROR_INVALID_VALUE if the current GPU has no access to the
 * memory. And a synchronous copy between two GPUs does not wait for earlier work of the other GPU, nor does later work of that GPU wait
 * for the copy. So copies between GPUs are made by cuMemcpyPeer, which names the contexts. Others are repeated with access to all memory.
 * Memory of a pool belongs to no context either; a copy between it and memory of the ferry names the primary context of the pool's GPU.
 */
#include "ferry.h"

enum { OF_CONTEXT = 1, OF_TYPE = 2, OF_MANAGED = 8, OF_DEVICE = 9, DEVICE_MEMORY = 2, LAST_GIVEN_STREAM = 2 };

#define SYNC_COPY (address_t to, address_t from, size_t bytes)
#define ASYNC_COPY (address_t to, address_t from, size_t bytes, stream_t stream)
#define FILL (address_t to, unsigned value, size_t count)
#define ASYNC_FILL (address_t to, unsigned value, size_t count, stream_t stream)
#define FILL_2D (address_t to, size_t pitch, unsigned value, size_t width, size_t height)
#define ASYNC_FILL_2D (address_t to, size_t pitch, unsigned value, size_t width, size_t height, stream_t stream)
/* Apply X to both variants of a function, for the legacy and the per-thread default stream. */
#define BOTH(X, name, more, ...) X(name, __VA_ARGS__) X(name##more, __VA_ARGS__)
#define RETRIED(X)                                                                                     \
    BOTH(X, cuMemcpyHtoD_v2, _ptds, SYNC_COPY, (to, from, bytes))                                      \
    BOTH(X, cuMemcpyDtoH_v2, _ptds, SYNC_COPY, (to, from, bytes))                                      \
    BOTH(X, cuMemcpyHtoDAsync_v2, _ptsz, ASYNC_COPY, (to, from, bytes, stream))                        \
    BOTH(X, cuMemcpyDtoHAsync_v2, _ptsz, ASYNC_COPY, (to, from, bytes, stream))                        \
    BOTH(X, cuMemsetD8_v2, _ptds, FILL, (to, value, count))                                            \
    BOTH(X, cuMemsetD16_v2, _ptds, FILL, (to, value, count))                                           \
    BOTH(X, cuMemsetD32_v2, _ptds, FILL, (to, value, count))                                           \
    BOTH(X, cuMemsetD8Async, _ptsz, ASYNC_FILL, (to, value, count, stream))                            \
    BOTH(X, cuMemsetD16Async, _ptsz, ASYNC_FILL, (to, value, count, stream))                           \
    BOTH(X, cuMemsetD32Async, _ptsz, ASYNC_FILL, (to, value, count, stream))                           \
    BOTH(X, cuMemsetD2D8_v2, _ptds, FILL_2D, (to, pitch, value, width, height))                        \
    BOTH(X, cuMemsetD2D16_v2, _ptds, FILL_2D, (to, pitch, value, width, height))                       \
    BOTH(X, cuMemsetD2D32_v2, _ptds, FILL_2D, (to, pitch, value, width, height))                       \
    BOTH(X, cuMemsetD2D8Async, _ptsz, ASYNC_FILL_2D, (to, pitch, value, width, height, stream))        \
    BOTH(X, cuMemsetD2D16Async, _ptsz, ASYNC_FILL_2D, (to, pitch, value, width, height, stream))       \
    BOTH(X, cuMemsetD2D32Async, _ptsz, ASYNC_FILL_2D, (to, pitch, value, width, height, stream))       \
    BOTH(X, cuMemcpy2DAsync_v2, _ptsz, (const void *what, stream_t stream), (what, stream))            \
    BOTH(X, cuMemcpy3DAsync_v2, _ptsz, (const void *what, stream_t stream), (what, stream))
/* Synchronous copies of rows or layers; the last argument selects the description of the copy. */
#define WAITED_FOR(X)                                                           \
    BOTH(X, cuMemcpy2D_v2, _ptds, (const void *what), (what), rows)             \
    BOTH(X, cuMemcpy2DUnaligned_v2, _ptds, (const void *what), (what), rows)    \
    BOTH(X, cuMemcpy3D_v2, _ptds, (const void *what), (what), layers)
#define BETWEEN(X)                                \
    X(cuMemcpy, cuMemcpyPeer)                     \
    X(cuMemcpy_ptds, cuMemcpyPeer_ptds)           \
    X(cuMemcpyDtoD_v2, cuMemcpyPeer)              \
    X(cuMemcpyDtoD_v2_ptds, cuMemcpyPeer_ptds)
#define BETWEEN_ASYNC(X)                                    \
    X(cuMemcpyAsync, cuMemcpyPeerAsync)                     \
    X(cuMemcpyAsync_ptsz, cuMemcpyPeerAsync_ptsz)           \
    X(cuMemcpyDtoDAsync_v2, cuMemcpyPeerAsync)              \
    X(cuMemcpyDtoDAsync_v2_ptsz, cuMemcpyPeerAsync_ptsz)

/* Allocations from pools. */
#define POOLED(X)                                                                                                                  \
    BOTH(X, cuMemAllocAsync, _ptsz, (address_t *address, size_t bytes, stream_t stream), (address, bytes, stream))                 \
    BOTH(X, cuMemAllocFromPoolAsync, _ptsz, (address_t *address, size_t bytes, void *pool, stream_t stream), (address, bytes, pool, stream))

typedef result_t peer_copy(address_t, context_t, address_t, context_t, size_t);
typedef result_t async_peer_copy(address_t, context_t, address_t, context_t, size_t, stream_t);
#define POINTER(name, parameters, ...) result_t(*name) parameters;
#define POINTER_SYNC(name, peer) result_t(*name) SYNC_COPY;
#define POINTER_ASYNC(name, peer) result_t(*name) ASYNC_COPY;
/* The driver's functions; NULL: it has none of this name. */
static struct {
    RETRIED(POINTER) WAITED_FOR(POINTER) POOLED(POINTER) BETWEEN(POINTER_SYNC) BETWEEN_ASYNC(POINTER_ASYNC)
    peer_copy *cuMemcpyPeer, *cuMemcpyPeer_ptds;
    async_peer_copy *cuMemcpyPeerAsync, *cuMemcpyPeerAsync_ptsz;
    result_t (*cuDevicePrimaryCtxGetState)(int, unsigned *, int *);
    result_t (*cuDevicePrimaryCtxRetain)(context_t *, int);
    result_t (*cuDevicePrimaryCtxRelease_v2)(int);
} real;

/* Find the GPU that memory is on, and its context (NULL: it belongs to none); return 0 for memory that is not the GPU's. Memory of the
 * ferry is found without the driver, whose call takes longer than all else here. */
static int find_gpu(address_t address, int *device, context_t *context, int *is_of_ferry) {
    if (find_place(address, device, context)) return *is_of_ferry = 1;
    int attributes[] = {OF_TYPE, OF_MANAGED, OF_DEVICE, OF_CONTEXT}, type = 0;
    unsigned managed = 0;
    void *found[] = {&type, &managed, device, context};
    *device = -1, *context = NULL;
    return !driver.cuPointerGetAttributes(sizeof attributes / sizeof *attributes, attributes, found, address) && type == DEVICE_MEMORY && !managed;
}

context_t primary_of(int device) {
    unsigned flags;
    int is_active = 0;
    context_t found;
    if (!real.cuDevicePrimaryCtxGetState || !real.cuDevicePrimaryCtxRetain || !real.cuDevicePrimaryCtxRelease_v2) return NULL;
    if (real.cuDevicePrimaryCtxGetState(device, &flags, &is_active) || !is_active || real.cuDevicePrimaryCtxRetain(&found, device)) return NULL;
    real.cuDevicePrimaryCtxRelease_v2(device); /* the program keeps it */
    return found;
}

/* Return whether a copy is between two GPUs, and find a context of each. */
static int is_between(address_t to, address_t from, context_t *to_context, context_t *from_context) {
    int to_device, from_device, is_of_ferry = 0;
    if (!uses_several_gpus() || !find_gpu(to, &to_device, to_context, &is_of_ferry) ||
        !find_gpu(from, &from_device, from_context, &is_of_ferry) || to_device == from_device)
        return 0;
    /* Without memory of the ferry a copy is as the driver makes it. */
    if (!*to_context && is_of_ferry) *to_context = primary_of(to_device);
    if (!*from_context && is_of_ferry) *from_context = primary_of(from_device);
    return *to_context && *from_context;
}

/* Note on which GPU memory of a pool is. */
static void note_pool(address_t address) {
    int device, is_of_ferry;
    context_t context;
    if (sees_several_gpus() && !uses_several_gpus() && find_gpu(address, &device, &context, &is_of_ferry)) note_gpu(device);
}

/* The beginnings of CUDA_MEMCPY2D and CUDA_MEMCPY3D in cuda.h: the members that describe source and target. */
typedef struct {
    size_t x, y;
    int kind;
    const void *host;
    address_t device;
    void *array;
    size_t pitch;
} rows_t;
typedef struct {
    size_t x, y, z, level;
    int kind;
    const void *host;
    address_t device;
    void *array, *reserved;
    size_t pitch, height;
} layers_t;
typedef struct { rows_t from, to; } rows_copy_t;
typedef struct { layers_t from, to; } layers_copy_t;
enum { UNIFIED = 4 };

static int is_address(int kind) { return kind == DEVICE_MEMORY || kind == UNIFIED; }

static int is_between_rows(const rows_copy_t *copy, context_t *to, context_t *from) {
    return copy && is_address(copy->to.kind) && is_address(copy->from.kind) && is_between(copy->to.device, copy->from.device, to, from);
}

static int is_between_layers(const layers_copy_t *copy, context_t *to, context_t *from) {
    return copy && is_address(copy->to.kind) && is_address(copy->from.kind) && is_between(copy->to.device, copy->from.device, to, from);
}

#define NAME_OF(name) elsewhere_##name
#define DEFINE_RETRIED(name, parameters, arguments)                                              \
    static result_t NAME_OF(name) parameters {                                                   \
        result_t error = real.name arguments;                                                    \
        return error == INVALID_VALUE && reach_all_memory() ? real.name arguments : error;       \
    }
#define DEFINE_WAITED_FOR(name, parameters, arguments, dimensions)                               \
    static result_t NAME_OF(name) parameters {                                                   \
        context_t to, from;                                                                      \
        int both = is_between_##dimensions(what, &to, &from);                                    \
        if (both) synchronize(to), synchronize(from);                                            \
        result_t error = real.name arguments;                                                    \
        if (error == INVALID_VALUE && reach_all_memory()) error = real.name arguments;           \
        if (both) synchronize(to), synchronize(from);                                            \
        return error;                                                                            \
    }
#define DEFINE_BETWEEN(name, peer)                                                               \
    static result_t NAME_OF(name) SYNC_COPY {                                                    \
        context_t to_context, from_context;                                                      \
        if (real.peer && is_between(to, from, &to_context, &from_context))                       \
            return real.peer(to, to_context, from, from_context, bytes);                         \
        result_t error = real.name(to, from, bytes);                                             \
        return error == INVALID_VALUE && reach_all_memory() ? real.name(to, from, bytes) : error; \
    }
/* A stream that the program made orders the copy correctly; only a default stream belongs to one context, so it needs cuMemcpyPeerAsync. */
#define DEFINE_BETWEEN_ASYNC(name, peer)                                                         \
    static result_t NAME_OF(name) ASYNC_COPY {                                                   \
        context_t to_context, from_context;                                                      \
        result_t error = INVALID_VALUE;                                                          \
        int is_default = (uintptr_t)stream <= LAST_GIVEN_STREAM;                                 \
        if (!is_default || !uses_several_gpus()) error = real.name(to, from, bytes, stream);     \
        if (error != INVALID_VALUE) return error;                                                \
        if (real.peer && is_between(to, from, &to_context, &from_context))                       \
            return real.peer(to, to_context, from, from_context, bytes, stream);                 \
        error = real.name(to, from, bytes, stream);                                              \
        return error == INVALID_VALUE && reach_all_memory() ? real.name(to, from, bytes, stream) : error; \
    }
#define DEFINE_POOLED(name, parameters, arguments)       \
    static result_t NAME_OF(name) parameters {           \
        result_t error = real.name arguments;            \
        if (!error && address) note_pool(*address);      \
        return error;                                    \
    }
RETRIED(DEFINE_RETRIED)
WAITED_FOR(DEFINE_WAITED_FOR)
POOLED(DEFINE_POOLED)
BETWEEN(DEFINE_BETWEEN)
BETWEEN_ASYNC(DEFINE_BETWEEN_ASYNC)

void find_copies(void *library, void *(*find)(void *, const char *)) {
#define FIND(name, ...) *(void **)&real.name = find(library, #name);
    RETRIED(FIND) WAITED_FOR(FIND) POOLED(FIND) BETWEEN(FIND) BETWEEN_ASYNC(FIND)
    FIND(cuMemcpyPeer) FIND(cuMemcpyPeer_ptds) FIND(cuMemcpyPeerAsync) FIND(cuMemcpyPeerAsync_ptsz)
    FIND(cuDevicePrimaryCtxGetState) FIND(cuDevicePrimaryCtxRetain) FIND(cuDevicePrimaryCtxRelease_v2)
}

void *copy_in_place_of(void *function) {
#define REPLACE(name, ...) \
    if (function == (void *)real.name) return (void *)NAME_OF(name);
    RETRIED(REPLACE) WAITED_FOR(REPLACE) POOLED(REPLACE) BETWEEN(REPLACE) BETWEEN_ASYNC(REPLACE)
    return function;
}
