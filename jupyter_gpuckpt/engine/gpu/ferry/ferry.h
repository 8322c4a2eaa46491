/* What the parts of the ferry library share: the driver's interface, as in cuda.h, and copies and digests of GPU memory. */
#ifndef FERRY_H
#define FERRY_H
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#define PIECE (2UL << 20) /* the granularity of cuMemCreate; smaller allocations share such pieces in the driver */
#define MAX_PART_BYTES (1UL << 30) /* giving back needs room for two more parts */
#define BATCH 200 /* descriptors of memory in one message */
#define MAX_GPUS 64 /* that a process sees: one bit of a uint64_t each; the driver allocates the memory of GPUs beyond them */

typedef int result_t; /* CUresult; errors of our own are negative errno values */
typedef uint64_t address_t, handle_t;
typedef void *context_t, *stream_t, *module_t, *function_t;
typedef struct { int type, id; } location_t;
typedef struct {
    int type, handle_types;
    location_t location;
    void *windows;
    struct { unsigned char compression, rdma; unsigned short usage; unsigned char reserved[4]; } flags;
} properties_t;
typedef struct { location_t location; int flags; } access_t;
typedef struct { char bytes[64]; } ipc_handle_t;
enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, INVALID_CONTEXT = 201, SYSTEM_FAILED = 304, INVALID_HANDLE = 400, TOO_MANY_PEERS = 711 };
enum { PINNED = 1, ON_DEVICE = 1, AS_DESCRIPTOR = 1, NO_ACCESS = 0, READ_WRITE = 3, NON_BLOCKING = 1, FOR_ALL_CONTEXTS = 1, RDMA_SUPPORTED = 116, RELAXED = 2 };

#define DRIVER(X)                                                                                                              \
    X(cuMemAlloc_v2, (address_t *, size_t))                                                                                    \
    X(cuMemFree_v2, (address_t))                                                                                               \
    X(cuMemGetAddressRange_v2, (address_t *, size_t *, address_t))                                                             \
    X(cuCtxGetDevice, (int *))                                                                                                 \
    X(cuCtxGetCurrent, (context_t *))                                                                                          \
    X(cuCtxPushCurrent_v2, (context_t))                                                                                        \
    X(cuCtxPopCurrent_v2, (context_t *))                                                                                       \
    X(cuCtxSynchronize, (void))                                                                                                \
    X(cuCtxDestroy_v2, (context_t))                                                                                            \
    X(cuCtxEnablePeerAccess, (context_t, unsigned))                                                                            \
    X(cuCtxDisablePeerAccess, (context_t))                                                                                     \
    X(cuDevicePrimaryCtxReset_v2, (int))                                                                                       \
    X(cuDeviceGetAttribute, (int *, int, int))                                                                                 \
    X(cuPointerGetAttribute, (void *, int, address_t))                                                                         \
    X(cuPointerGetAttributes, (unsigned, int *, void **, address_t))                                                           \
    X(cuDeviceGetCount, (int *))                                                                                               \
    X(cuDeviceGetUuid, (void *, int))                                                                                          \
    X(cuMemAddressReserve, (address_t *, size_t, size_t, address_t, unsigned long long))                                       \
    X(cuMemAddressFree, (address_t, size_t))                                                                                   \
    X(cuMemCreate, (handle_t *, size_t, const properties_t *, unsigned long long))                                             \
    X(cuMemRelease, (handle_t))                                                                                                \
    X(cuMemMap, (address_t, size_t, size_t, handle_t, unsigned long long))                                                     \
    X(cuMemUnmap, (address_t, size_t))                                                                                         \
    X(cuMemSetAccess, (address_t, size_t, const access_t *, size_t))                                                           \
    X(cuMemExportToShareableHandle, (void *, handle_t, int, unsigned long long))                                               \
    X(cuMemImportFromShareableHandle, (handle_t *, void *, int))                                                               \
    X(cuMemRetainAllocationHandle, (handle_t *, void *))                                                                       \
    X(cuMemGetAllocationPropertiesFromHandle, (properties_t *, handle_t))                                                      \
    X(cuIpcGetMemHandle, (ipc_handle_t *, address_t))                                                                          \
    X(cuIpcOpenMemHandle_v2, (address_t *, ipc_handle_t, unsigned))                                                            \
    X(cuIpcCloseMemHandle, (address_t))                                                                                        \
    X(cuMemcpyDtoDAsync_v2, (address_t, address_t, size_t, stream_t))                                                          \
    X(cuMemcpyDtoHAsync_v2, (void *, address_t, size_t, stream_t))                                                             \
    X(cuMemcpyHtoDAsync_v2, (address_t, const void *, size_t, stream_t))                                                       \
    X(cuMemsetD8Async, (address_t, unsigned char, size_t, stream_t))                                                           \
    X(cuMemHostRegister_v2, (void *, size_t, unsigned))                                                                        \
    X(cuMemHostUnregister, (void *))                                                                                           \
    X(cuStreamCreate, (stream_t *, unsigned))                                                                                  \
    X(cuStreamSynchronize, (stream_t))                                                                                         \
    X(cuStreamDestroy_v2, (stream_t))                                                                                          \
    X(cuThreadExchangeStreamCaptureMode, (int *))                                                                              \
    X(cuModuleLoadData, (module_t *, const void *))                                                                            \
    X(cuModuleGetFunction, (function_t *, module_t, const char *))                                                             \
    X(cuModuleUnload, (module_t))                                                                                              \
    X(cuLaunchKernel, (function_t, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, stream_t, void **, void **)) \
    X(cuGetProcAddress_v2, (const char *, void **, int, unsigned long long, int *))                                            \
    X(cuGetProcAddress, (const char *, void **, int, unsigned long long))

#define MEMBER(name, arguments) result_t(*name) arguments;
struct driver { DRIVER(MEMBER) };
extern struct driver driver;

/* A range of memory of a GPU. */
typedef struct { address_t address; size_t bytes; int device; } run_t;

/* A context of each GPU, by device; in it all memory of the ferry on that GPU can be copied. NULL: no memory is there. */
typedef struct { context_t of[MAX_GPUS]; } contexts_t;

/* Files that together hold a sequence of bytes, in stripes: as stripes.py. */
typedef struct { const int *descriptors; uint32_t count; } files_t;

/* The most threads of a copy, by the daemon's order; 0: as many as there are processors. Only the daemon's thread uses it. */
extern uint32_t max_copy_threads;
/* Copy runs to files, or back; several GPUs at the same time. The runs are stored one after the other, from the offset on. */
result_t copy_runs(const run_t *runs, uint32_t count, const contexts_t *contexts, files_t files, uint64_t offset, int to_files);

/* Write the digests of all 64 KB of these runs to a file, from the offset. The key is at the file's begin. */
result_t digest_runs(const run_t *runs, uint32_t count, const contexts_t *contexts, int file, uint64_t offset);

/* Read or write all bytes; return an error if the file has fewer. */
result_t move_file(int file, void *memory, size_t bytes, uint64_t offset, int to_file);

/* Programs switch peer access on by contexts, but for memory from cuMemCreate it is by GPUs (ferry_peers.c). Callers hold the lock of the
 * parts. `set_access` gives one GPU access to all memory of another, or takes it away. */
typedef result_t set_access_t(int from, int to, int flags);

/* Record that one context has access to another's memory; the first record of a pair of GPUs gives access. An error changes nothing. */
result_t add_peer(context_t from, context_t to, int from_device, int to_device, set_access_t *set_access);

/* Return whether a GPU has access to the memory of another one. */
int has_access(int from, int to);

/* Remove such a record; the removal of the last one of a pair of GPUs takes the access away. */
void remove_peer(context_t from, context_t to, int from_device, int to_device, set_access_t *set_access);

/* Remove the records of a context that ends; NULL: those of all contexts of a device. */
void remove_peers_of(context_t context, int device, set_access_t *set_access);

/* List the access to be set on new memory of a GPU, for that GPU and its peers; return the number of entries. */
uint32_t access_to(int device, access_t access[MAX_GPUS]);

void forget_peers(void);

/* Switch the driver's peer access off between all contexts, and on again where it was switched off; no work may run on the GPUs. An error
 * of the first leaves all on. The second returns between how many it could not be switched on. */
result_t switch_peers_off(void);
uint32_t switch_peers_on(void);

/* Copies of memory that is on another GPU than the current one (ferry_elsewhere.c): find the driver's functions, and return the function
 * that a program gets in place of one of them; of other functions that function itself. */
void find_copies(void *library, void *(*find)(void *, const char *));
void *copy_in_place_of(void *function);

/* Return the primary context of a GPU; NULL: none is active. */
context_t primary_of(int device);

/* CUDA IPC for memory of the ferry (ferry_ipc.c). What the program gets in place of the driver's functions: */
result_t get_handle(ipc_handle_t *handle, address_t address);
result_t open_handle(address_t *result, ipc_handle_t handle, unsigned flags);
result_t close_handle(address_t address);
result_t get_attribute(void *data, int attribute, address_t address);
result_t get_attributes(unsigned count, int *attributes, void **data, address_t address);
/* The memory of other processes that this one has opened; callers hold the lock of the parts. `first_import_of`: the process whose memory
 * was opened first; 0: that is not known. `find_import` returns the GPU of opened memory and its range, or -1. `close_all_of`: as `remove_peers_of`. */
uint32_t count_imports(void);
int first_import_of(void);
int find_import(address_t address, address_t *begin, size_t *bytes);
result_t set_import_access(int from, int to, int flags);
void close_all_of(context_t context, int device);
void forget_imports(void);
/* Memory that the program imports by itself (ferry_imports.c): what it gets in place of the driver's functions, and how often such memory is
 * mapped; callers of the last two hold the lock of the parts. */
result_t import_handle(handle_t *handle, void *from, int type);
result_t retain_handle(handle_t *handle, void *address);
result_t release_handle(handle_t handle);
result_t map_handle(address_t address, size_t bytes, size_t offset, handle_t handle, unsigned long long flags);
result_t unmap_range(address_t address, size_t bytes);
uint32_t count_mapped_imports(void);
void forget_mapped_imports(void);
/* Return whether a handle with this nonce is of this process. */
#define NONCE_BYTES 16
int is_own_nonce(const unsigned char *nonce);

/* The name of the variable with the folder of the sockets, and dlsym's handle of the libraries after this one (RTLD_NEXT). */
#define FERRY_VARIABLE "GPUCKPT_FERRY"
#define NEXT_LIBRARY ((void *)-1L)
/* Children that execute this process's program (ferry_children.c): find libc's functions; load the library of this path into them from now on,
 * with this value of its variable. */
void *(*ferry_find_dlsym(void))(void *, const char *);
void find_executing(void *(*find)(void *, const char *));
void load_into_children(const char *path, const char *value);

/* For ferry_ipc.c: the lock of the table of parts; the number of an allocation in handles, which it gets at the first call (0: the memory is not
 * the ferry's, or has more parts than a message takes); the range of one. `ask_for_descriptors` asks the ferry of another process for those of
 * shared memory; it returns how many there are, or a negative error: -EAGAIN while the gate there is closed, -ESRCH if the process has ended. */
extern pthread_mutex_t parts_lock;
uint64_t serial_of(address_t address);
int find_range(address_t address, address_t *begin, size_t *bytes, int *is_own);
result_t share(address_t address, size_t bytes, const access_t *access, uint32_t count, int must_all);
int ask_for_descriptors(int owner, uint64_t serial, const unsigned char *nonce, int descriptors[BATCH], uint64_t *bytes);
/* Return whether the daemon can ask this process; the thread for it begins if it has not. */
int is_listening(void);
/* Leave the gate for a moment and wait until it is open: what another process must do first may need this gate to be closed. */
void wait_outside(void);

/* What ferry.c knows of the memory: whether the process sees several GPUs, and has used several (`note_gpu`: it has memory there);
 * the GPU of memory of the ferry and its context, which opened memory has not (return 0: it is not the ferry's); and whether a call has given
 * the current GPU access to memory that it could not reach before. */
int sees_several_gpus(void);
int uses_several_gpus(void);
void note_gpu(int device);
int find_place(address_t address, int *device, context_t *context);
int reach_all_memory(void);
result_t synchronize(context_t context);
#endif
