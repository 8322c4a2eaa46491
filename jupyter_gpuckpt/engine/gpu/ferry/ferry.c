/* gpu-ferry.so: loaded into kernels, so that GPU memory can be handed to another process instead of being copied.
 *
 * For an allocation of 2 MB or more by cuMemAlloc (cudaMalloc, PyTorch, CuPy, Triton, Numba) this library uses cuMemCreate: such
 * memory has a file descriptor, and stays on the GPU as long as any process has that open. For a save the daemon closes the gate,
 * through which all calls of the driver go (ferry_gate.S), takes the descriptors and lets this library unmap the memory. The
 * driver's Checkpoint then finds hardly anything to copy. Afterwards the content is copied into new memory of this process, at the
 * same addresses: a process that maps imported memory cannot be checkpointed (driver 580).
 *
 * A thread of this library serves the daemon on a socket in the directory that FERRY_VARIABLE names. No connection is open when CRIU
 * dumps the process. Without the variable, without the driver, and in forked children this library has no effect. Children that execute
 * this process's program again, as multiprocessing does, load it, too (ferry_children.c); others do not.
 *
 * Functions of the driver and of libc are found by name, without versions, so that one file works with all versions.
 */
#define _GNU_SOURCE
#include "ferry.h"
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <link.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define FERRY_ENTRIES 4096 /* as ENTRIES in ferry_gate.S */
#define ENTRY_BYTES 16
#define MAX_PARTS 16000 /* init holds one descriptor each, and some others (MAX_HELD_DESCRIPTORS in init.c) */
#define OTHER_DESCRIPTORS 128 /* that init, or whoever takes descriptors from it, has open beside those of memory */
#define MAX_FILES 32
#define MAX_DESCRIPTORS (BATCH + MAX_FILES) /* in one message; Linux takes 253 */
#define COPIED_AT_ONCE (2UL << 30)
#define MAX_RANGES (1U << 20)
#define HIDDEN __attribute__((visibility("hidden")))

HIDDEN struct driver driver;

/* ---- what ferry_gate.S uses ---- */

typedef void *dlsym_function(void *, const char *);
extern unsigned char ferry_gate[], ferry_entries[], ferry_named_entries[]; /* in this order */
#define NAME(function) #function,
static const char *const names[] = {
#include "ferry_names.h"
};
#define NAMED (sizeof names / sizeof *names)
HIDDEN dlsym_function *ferry_real_dlsym;
HIDDEN void *ferry_functions[FERRY_ENTRIES];
HIDDEN volatile int ferry_closed;
HIDDEN volatile long ferry_inside;

/* ---- state ---- */

enum { MINE, HANDED }; /* mapped and owned by this process; unmapped, because another process has the memory */
/* A part of an allocation. The parts of one allocation have adjacent addresses and adjacent places in the table. */
typedef struct {
    address_t address;
    size_t bytes, whole_bytes; /* of the part; of the allocation in its first part, else 0 */
    uint64_t serial; /* of the allocation in handles for other processes (ferry_ipc.c), in its first part; 0: there is no handle */
    handle_t handle;
    context_t context;
    int device, state;
} part_t;

static part_t *parts; /* room for MAX_PARTS; pages are taken as they are used */
static uint32_t part_count;
static volatile uint64_t gpus_seen; /* on which the program has taken any memory, as bits */
static uint64_t last_serial;
HIDDEN pthread_mutex_t parts_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t entries_lock = PTHREAD_MUTEX_INITIALIZER, driver_lock = PTHREAD_MUTEX_INITIALIZER;
static uint32_t entry_count = NAMED;
static uintptr_t driver_begin, driver_end;
static char directory[sizeof((struct sockaddr_un *)0)->sun_path - 16];
static volatile int is_on; /* the driver was found, and a directory for the socket is named */
static volatile int thread_began, thread_listens;
static void *open_by_old_name;

static long futex(volatile int *word, int operation, int value) {
    return syscall(SYS_futex, word, operation | FUTEX_PRIVATE_FLAG, value, NULL, NULL, 0);
}

static void resolve(uint64_t number);

/* Wait until the gate is open. The thread is counted as inside at the call and on return. */
static void wait_at_gate(void) {
    while (ferry_closed) {
        __atomic_sub_fetch(&ferry_inside, 1, __ATOMIC_SEQ_CST);
        while (ferry_closed) futex(&ferry_closed, FUTEX_WAIT, 1);
        __atomic_add_fetch(&ferry_inside, 1, __ATOMIC_SEQ_CST);
    }
}

/* Wait until the gate is open, and find the function if it is not known yet. The thread is counted as inside at the call and on return. */
HIDDEN void ferry_prepare(uint64_t number) {
    int kept = errno;
    wait_at_gate();
    if (!ferry_functions[number]) resolve(number);
    errno = kept;
}

HIDDEN dlsym_function *ferry_find_dlsym(void) {
    if (!ferry_real_dlsym) ferry_real_dlsym = (dlsym_function *)dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
    return ferry_real_dlsym;
}

static void open_gate(void) {
    ferry_closed = 0;
    futex(&ferry_closed, FUTEX_WAKE, INT_MAX);
}

static void pause_shortly(void) {
    struct timespec time = {0, 50000};
    nanosleep(&time, NULL);
}

HIDDEN void wait_outside(void) {
    __atomic_sub_fetch(&ferry_inside, 1, __ATOMIC_SEQ_CST);
    pause_shortly();
    __atomic_add_fetch(&ferry_inside, 1, __ATOMIC_SEQ_CST);
    wait_at_gate();
}

static int64_t now_ms(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000LL + time.tv_nsec / 1000000;
}

/* Close the gate and wait until no thread is inside the driver. After the limit it is open again. */
static result_t close_gate(int limit_ms) {
    int64_t end = now_ms() + limit_ms;
    __atomic_store_n(&ferry_closed, 1, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(&ferry_inside, __ATOMIC_SEQ_CST)) {
        if (now_ms() > end) {
            open_gate();
            return -ETIMEDOUT;
        }
        pause_shortly();
    }
    return SUCCESS;
}

/* ---- allocation ---- */

static properties_t properties_of(int device) {
    static volatile int rdma[MAX_GPUS]; /* 0: not asked yet, 1: no, 2: yes */
    properties_t made = {.type = PINNED, .handle_types = AS_DESCRIPTOR, .location = {ON_DEVICE, device}};
    if (!rdma[device]) {
        int found = 0;
        driver.cuDeviceGetAttribute(&found, RDMA_SUPPORTED, device);
        rdma[device] = found ? 2 : 1;
    }
    made.flags.rdma = rdma[device] == 2;
    return made;
}

/* Give a GPU and its peers access to memory on that GPU. `must_all`: fail if any of them gets no access. Otherwise a peer may get none:
 * after a resume on other GPUs it may be unable to reach the memory, which must be given back nevertheless. */
HIDDEN result_t share(address_t address, size_t bytes, const access_t *access, uint32_t count, int must_all) {
    result_t error = driver.cuMemSetAccess(address, bytes, access, count);
    if (!error || must_all || count == 1) return error;
    error = driver.cuMemSetAccess(address, bytes, access, 1);
    for (uint32_t at = 1; at < count && !error; at++) driver.cuMemSetAccess(address, bytes, &access[at], 1);
    return error;
}

/* Create memory and map it at a reserved address, where its GPU and that GPU's peers have access: see `share`. An error leaves nothing
 * behind. */
static result_t create_at(address_t address, size_t bytes, int device, handle_t *handle, int must_all) {
    properties_t properties = properties_of(device);
    access_t access[MAX_GPUS];
    uint32_t count = access_to(device, access);
    result_t error = driver.cuMemCreate(handle, bytes, &properties, 0);
    if (error) return error;
    if ((error = driver.cuMemMap(address, bytes, 0, *handle, 0))) {
        driver.cuMemRelease(*handle);
        return error;
    }
    if ((error = share(address, bytes, access, count, must_all))) {
        driver.cuMemUnmap(address, bytes);
        driver.cuMemRelease(*handle);
    }
    return error;
}

extern int __register_atfork(void (*)(void), void (*)(void), void (*)(void), void *);
static result_t unmap(const part_t *part) {
    result_t error = driver.cuMemUnmap(part->address, part->bytes);
    return error ? error : driver.cuMemRelease(part->handle);
}

static void *obey(void *);

static void begin_thread(void) {
    if (__atomic_exchange_n(&thread_began, 1, __ATOMIC_SEQ_CST)) return;
    sigset_t all, before;
    pthread_t thread;
    pthread_attr_t attributes;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    if (pthread_create(&thread, &attributes, obey, NULL)) is_on = 0;
    pthread_attr_destroy(&attributes);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

HIDDEN int is_listening(void) {
    begin_thread();
    while (is_on && !thread_listens) pause_shortly();
    return is_on;
}

static void unmap_parts(const part_t *from, uint32_t count) {
    for (uint32_t at = 0; at < count; at++) unmap(&from[at]);
}

static uint32_t parts_of(size_t whole) { return (whole + MAX_PART_BYTES - 1) / MAX_PART_BYTES; }

/* Return how many parts there may be: in a save each is a descriptor in init, which has the hard limit of this process. */
static uint32_t most_parts(void) {
    struct rlimit files;
    uint64_t most = MAX_PARTS;
    if (!syscall(SYS_getrlimit, RLIMIT_NOFILE, &files) && files.rlim_max < most + OTHER_DESCRIPTORS)
        most = files.rlim_max > OTHER_DESCRIPTORS ? files.rlim_max - OTHER_DESCRIPTORS : 0;
    return most;
}

/* Create the parts of an allocation at the end of the table, which is locked. An error leaves nothing behind. */
static result_t add_parts(address_t address, size_t whole, int device, context_t context) {
    part_t *added = parts + part_count;
    uint32_t count = 0;
    if (part_count + parts_of(whole) > most_parts()) return -ENOSPC;
    for (size_t at = 0; at < whole; at += MAX_PART_BYTES, count++) {
        part_t made = {.address = address + at, .whole_bytes = at ? 0 : whole, .context = context, .device = device, .state = MINE};
        made.bytes = whole - at < MAX_PART_BYTES ? whole - at : MAX_PART_BYTES;
        result_t error = create_at(made.address, made.bytes, device, &made.handle, 1);
        if (error) {
            unmap_parts(added, count);
            return error;
        }
        added[count] = made;
    }
    part_count += count;
    return SUCCESS;
}

HIDDEN int sees_several_gpus(void) {
    static volatile int count;
    int found = 0;
    if (!count && driver.cuDeviceGetCount(&found) == SUCCESS) count = found;
    return count > 1;
}

HIDDEN int uses_several_gpus(void) { return (gpus_seen & (gpus_seen - 1)) != 0; }

HIDDEN void note_gpu(int device) {
    if (device >= 0 && device < MAX_GPUS && !(gpus_seen >> device & 1)) __atomic_or_fetch(&gpus_seen, 1UL << device, __ATOMIC_SEQ_CST);
}

/* Return whether memory may be shared with other processes by cuIpcGetMemHandle, which does not work on memory from cuMemCreate. NCCL
 * does that on several GPUs if NCCL_CUMEM_ENABLE is 0: then the driver allocates all memory. Otherwise it allocates only NCCL's own memory
 * (`given_to`). */
static int may_share_by_handles(void) {
    static volatile int found; /* 0: not asked yet, 1: no, 2: yes */
    if (!found) {
        const char *set = getenv("NCCL_CUMEM_ENABLE");
        found = set && !strcmp(set, "0") && sees_several_gpus() ? 2 : 1;
    }
    return found == 2;
}

static result_t allocate(address_t *result, size_t bytes) {
    int device;
    context_t context;
    address_t address;
    size_t whole = (bytes + PIECE - 1) / PIECE * PIECE;
    if (driver.cuCtxGetDevice(&device) || device < 0 || device >= MAX_GPUS) return driver.cuMemAlloc_v2(result, bytes);
    note_gpu(device);
    if (is_on && uses_several_gpus()) begin_thread(); /* it switches peer access off for a save */
    /* A handle shows that memory is shared with other processes, which need not have this library. */
    if (!is_on || !result || bytes < PIECE || whole < bytes || last_serial || may_share_by_handles() || driver.cuCtxGetCurrent(&context) || driver.cuMemAddressReserve(&address, whole, 0, 0, 0))
        return driver.cuMemAlloc_v2(result, bytes);
    pthread_mutex_lock(&parts_lock);
    result_t error = add_parts(address, whole, device, context);
    pthread_mutex_unlock(&parts_lock);
    if (error) {
        driver.cuMemAddressFree(address, whole);
        return error == OUT_OF_MEMORY ? error : driver.cuMemAlloc_v2(result, bytes);
    }
    begin_thread();
    *result = address;
    return SUCCESS;
}

/* Return the place of the allocation that contains an address, or -1. */
static int64_t find(address_t address) {
    for (uint32_t at = part_count; at--;)
        if (parts[at].whole_bytes && address - parts[at].address < parts[at].whole_bytes) return at;
    return -1;
}

/* Take an allocation out of the table, which is locked, and free it. */
static void free_at(uint32_t first) {
    address_t address = parts[first].address;
    size_t whole = parts[first].whole_bytes;
    uint32_t end = first + parts_of(whole);
    unmap_parts(parts + first, end - first);
    memmove(parts + first, parts + end, (part_count - end) * sizeof *parts);
    part_count -= end - first;
    driver.cuMemAddressFree(address, whole);
}

/* Wait for all work of a context, which need not be the current one. */
HIDDEN result_t synchronize(context_t context) {
    context_t popped;
    result_t error = driver.cuCtxPushCurrent_v2(context);
    if (error) return error;
    error = driver.cuCtxSynchronize();
    driver.cuCtxPopCurrent_v2(&popped);
    return error;
}

static result_t release(address_t address) {
    context_t context = NULL;
    pthread_mutex_lock(&parts_lock);
    int64_t at = address ? find(address) : -1;
    int is_ours = at >= 0 && parts[at].address == address;
    if (is_ours) context = parts[at].context;
    pthread_mutex_unlock(&parts_lock);
    if (!is_ours) return driver.cuMemFree_v2(address);
    result_t error = synchronize(context); /* like cuMemFree, which waits for work that uses the memory */
    pthread_mutex_lock(&parts_lock);
    at = find(address);
    if (at >= 0 && parts[at].address == address) free_at(at);
    pthread_mutex_unlock(&parts_lock);
    return error;
}

HIDDEN int find_range(address_t address, address_t *begin, size_t *bytes, int *is_own) {
    pthread_mutex_lock(&parts_lock);
    int64_t at = find(address);
    *is_own = at >= 0;
    if (at >= 0 && begin) *begin = parts[at].address;
    if (at >= 0 && bytes) *bytes = parts[at].whole_bytes;
    int is_known = at >= 0 || find_import(address, begin, bytes) >= 0;
    pthread_mutex_unlock(&parts_lock);
    return is_known;
}

static result_t get_range(address_t *begin, size_t *bytes, address_t address) {
    int is_own;
    return find_range(address, begin, bytes, &is_own) ? SUCCESS : driver.cuMemGetAddressRange_v2(begin, bytes, address);
}

HIDDEN uint64_t serial_of(address_t address) {
    uint64_t serial = 0;
    pthread_mutex_lock(&parts_lock);
    int64_t at = is_on ? find(address) : -1;
    if (at >= 0 && parts_of(parts[at].whole_bytes) <= BATCH) {
        if (!parts[at].serial) parts[at].serial = ++last_serial;
        serial = parts[at].serial;
    }
    pthread_mutex_unlock(&parts_lock);
    return serial;
}

static result_t set_access(int from, int to, int flags);

/* Free the memory of a context that ends: for the driver our memory does not belong to the context. */
static void release_all_of(context_t context, int device) {
    pthread_mutex_lock(&parts_lock);
    for (uint32_t at = part_count; at--;)
        if (parts[at].whole_bytes && (context ? parts[at].context == context : parts[at].device == device)) free_at(at);
    close_all_of(context, device);
    remove_peers_of(context, device, set_access);
    pthread_mutex_unlock(&parts_lock);
}

static result_t device_of(context_t context, int *device) {
    context_t popped;
    result_t error = driver.cuCtxPushCurrent_v2(context);
    if (error) return error;
    error = driver.cuCtxGetDevice(device);
    driver.cuCtxPopCurrent_v2(&popped);
    return error;
}

static result_t destroy_context(context_t context) {
    int device;
    if (context && device_of(context, &device) == SUCCESS) {
        synchronize(context);
        release_all_of(context, device);
    }
    return driver.cuCtxDestroy_v2(context);
}

/* Find a context for each GPU that has parts. */
static contexts_t contexts_for(const part_t *from, uint32_t count) {
    contexts_t contexts = {0};
    for (uint32_t at = count; at--;) contexts.of[from[at].device] = from[at].context;
    return contexts;
}

static result_t reset_primary(int device) {
    pthread_mutex_lock(&parts_lock);
    contexts_t contexts = contexts_for(parts, part_count);
    pthread_mutex_unlock(&parts_lock);
    if (device >= 0 && device < MAX_GPUS && contexts.of[device]) synchronize(contexts.of[device]);
    release_all_of(NULL, device);
    return driver.cuDevicePrimaryCtxReset_v2(device);
}

/* ---- peer access ---- */

static result_t set_access(int from, int to, int flags) {
    access_t access = {{ON_DEVICE, from}, flags};
    result_t error = SUCCESS;
    for (uint32_t at = 0; at < part_count && (!error || !flags); at++)
        if (parts[at].device == to) error = driver.cuMemSetAccess(parts[at].address, parts[at].bytes, &access, 1);
    return error && flags ? error : set_import_access(from, to, flags);
}

/* Find the current context, and the devices of it and of its peer. */
static result_t sides(context_t peer, context_t *own, int *from, int *to) {
    result_t error = driver.cuCtxGetCurrent(own);
    if (!error) error = driver.cuCtxGetDevice(from);
    return error ? error : device_of(peer, to);
}

/* Switch peer access on. Return the driver's error, or that of giving access to the ferry's memory; after an error nothing has changed. */
static result_t enable_peer(context_t peer, unsigned flags) {
    context_t own;
    int from, to;
    if (is_on) begin_thread(); /* it switches peer access off for a save */
    pthread_mutex_lock(&parts_lock);
    result_t error = driver.cuCtxEnablePeerAccess(peer, flags);
    if (!error) {
        if (!(error = sides(peer, &own, &from, &to))) error = add_peer(own, peer, from, to, set_access);
        if (error) driver.cuCtxDisablePeerAccess(peer);
    }
    pthread_mutex_unlock(&parts_lock);
    return error;
}

static result_t disable_peer(context_t peer) {
    context_t own;
    int from, to;
    pthread_mutex_lock(&parts_lock);
    result_t error = driver.cuCtxDisablePeerAccess(peer);
    if (!error && !sides(peer, &own, &from, &to)) remove_peer(own, peer, from, to, set_access);
    pthread_mutex_unlock(&parts_lock);
    return error;
}

/* ---- copies of memory that is on another GPU ---- */

HIDDEN int find_place(address_t address, int *device, context_t *context) {
    pthread_mutex_lock(&parts_lock);
    int64_t at = find(address);
    *context = at < 0 ? NULL : parts[at].context;
    *device = at < 0 ? find_import(address, NULL, NULL) : parts[at].device;
    pthread_mutex_unlock(&parts_lock);
    return *device >= 0;
}

HIDDEN int reach_all_memory(void) {
    int from, found = 0;
    if (!uses_several_gpus() || driver.cuCtxGetDevice(&from)) return 0;
    pthread_mutex_lock(&parts_lock);
    contexts_t contexts = contexts_for(parts, part_count);
    for (int to = 0; to < MAX_GPUS; to++)
        found |= contexts.of[to] && to != from && !has_access(from, to) && !add_peer(NULL, NULL, from, to, set_access);
    pthread_mutex_unlock(&parts_lock);
    return found;
}

/* ---- the functions that the program gets in place of the driver's ---- */

static void *entry_of(void *function) {
    void *result = function; /* the function itself, if there is no room for another entry */
    pthread_mutex_lock(&entries_lock);
    uint32_t at = 0;
    while (at < entry_count && ferry_functions[at] != function) at++;
    if (at == entry_count && at < FERRY_ENTRIES) ferry_functions[entry_count++] = function;
    if (at < FERRY_ENTRIES) result = ferry_entries + (size_t)at * ENTRY_BYTES;
    pthread_mutex_unlock(&entries_lock);
    return result;
}

/* Return the address in the program to which the gate will return, for a function of ours that the gate has called; NULL if it has not.
 * `frame`: the function's own. */
static void *caller_of(void **frame) {
    unsigned char *gate_at = frame[1];
    void **gate_frame = frame[0];
    return gate_at >= ferry_gate && gate_at < ferry_entries ? gate_frame[2] : NULL;
}

static void *given_to(void *caller, void *function);

static result_t get_address_2(const char *name, void **function, int version, unsigned long long flags, int *status) {
    result_t error = driver.cuGetProcAddress_v2(name, function, version, flags, status);
    if (!error && function && *function) *function = given_to(caller_of(__builtin_frame_address(0)), *function);
    return error;
}

static result_t get_address(const char *name, void **function, int version, unsigned long long flags) {
    result_t error = driver.cuGetProcAddress(name, function, version, flags);
    if (!error && function && *function) *function = given_to(caller_of(__builtin_frame_address(0)), *function);
    return error;
}

/* Return the function that the program gets in place of a function of the driver. */
static void *replaced(void *function) {
    if (function == (void *)driver.cuGetProcAddress_v2) return (void *)get_address_2;
    if (function == (void *)driver.cuGetProcAddress) return (void *)get_address;
    if (function == (void *)driver.cuMemAlloc_v2) return (void *)allocate;
    if (function == (void *)driver.cuMemFree_v2) return (void *)release;
    if (function == (void *)driver.cuMemGetAddressRange_v2) return (void *)get_range;
    if (function == (void *)driver.cuIpcGetMemHandle) return (void *)get_handle;
    if (function == (void *)driver.cuIpcOpenMemHandle_v2 || (function && function == open_by_old_name)) return (void *)open_handle;
    if (function == (void *)driver.cuIpcCloseMemHandle) return (void *)close_handle;
    if (function == (void *)driver.cuMemImportFromShareableHandle) return (void *)import_handle;
    if (function == (void *)driver.cuMemRetainAllocationHandle) return (void *)retain_handle;
    if (function == (void *)driver.cuMemRelease) return (void *)release_handle;
    if (function == (void *)driver.cuMemMap) return (void *)map_handle;
    if (function == (void *)driver.cuMemUnmap) return (void *)unmap_range;
    if (function == (void *)driver.cuPointerGetAttribute) return (void *)get_attribute;
    if (function == (void *)driver.cuPointerGetAttributes) return (void *)get_attributes;
    if (function == (void *)driver.cuCtxDestroy_v2) return (void *)destroy_context;
    if (function == (void *)driver.cuDevicePrimaryCtxReset_v2) return (void *)reset_primary;
    if (function == (void *)driver.cuCtxEnablePeerAccess) return (void *)enable_peer;
    if (function == (void *)driver.cuCtxDisablePeerAccess) return (void *)disable_peer;
    return copy_in_place_of(function);
}

/* Return whether this is code of NCCL, which contains a CUDA runtime of its own: what it allocates by cudaMalloc, it shares with other
 * processes by cuIpcGetMemHandle. */
static int is_of_nccl(void *code) {
    Dl_info found;
    const char *name = code && dladdr(code, &found) && found.dli_fname ? strrchr(found.dli_fname, '/') : NULL;
    return name && !strncmp(name, "/libnccl", 8);
}

/* Return what a program gets in place of a function of the driver: an entry of the gate. */
static void *given_to(void *caller, void *function) {
    if ((uintptr_t)function < driver_begin || (uintptr_t)function >= driver_end) return function;
    if (function == (void *)driver.cuMemAlloc_v2 && is_of_nccl(caller)) return entry_of(function);
    return entry_of(replaced(function));
}

static int note_driver(struct dl_phdr_info *info, size_t size, void *unused) {
    (void)size, (void)unused;
    const char *name = info->dlpi_name ? strrchr(info->dlpi_name, '/') : NULL;
    if (!name || strncmp(name, "/libcuda.so", 11)) return 0;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        uintptr_t begin = info->dlpi_addr + part->p_vaddr;
        if (part->p_type != PT_LOAD || !(part->p_flags & PF_X)) continue;
        if (!driver_begin || begin < driver_begin) driver_begin = begin;
        if (begin + part->p_memsz > driver_end) driver_end = begin + part->p_memsz;
    }
    return 1;
}

static void find_driver(void) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    if (!library) return;
#define FIND(name, arguments) driver.name = (result_t(*) arguments)ferry_real_dlsym(library, #name);
#define IS_THERE(name, arguments) &&driver.name
    DRIVER(FIND)
    open_by_old_name = ferry_real_dlsym(library, "cuIpcOpenMemHandle"); /* with the same arguments */
    find_copies(library, ferry_real_dlsym);
    if (1 DRIVER(IS_THERE) && dl_iterate_phdr(note_driver, NULL) && driver_begin) is_on = 1;
}

static void look_for_driver(void) {
    pthread_mutex_lock(&driver_lock);
    if (!driver_begin && directory[0]) find_driver();
    pthread_mutex_unlock(&driver_lock);
}

static int is_named_entry(void *address) {
    return (unsigned char *)address >= ferry_named_entries && (unsigned char *)address < ferry_named_entries + NAMED * ENTRY_BYTES;
}

HIDDEN void *ferry_dlsym(void *handle, const char *name) {
    void *found = ferry_find_dlsym()(handle, name);
    if (!found) return found;
    look_for_driver();
    /* Our own names are found even if there is no driver. */
    if (is_named_entry(found) && !dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD)) return NULL;
    return is_on ? given_to(__builtin_return_address(0), found) : found;
}

static result_t absent(void) { return NOT_INITIALIZED; }

/* Find a function at its first call by a library that is linked with the driver. */
static void resolve(uint64_t number) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    void *found = library ? ferry_find_dlsym()(library, names[number]) : NULL;
    look_for_driver();
    if (found && is_on) found = replaced(found);
    ferry_functions[number] = found ? found : (void *)absent;
}

/* ---- the daemon's orders ---- */

enum { STATUS = 1, CLOSE, OPEN, LIST, EXPORT, UNMAP, GIVE_BACK, COPY_OUT, FILL, COPY_HANDED_OVER, DIGEST, DIGEST_HANDED_OVER, RESERVE, BYTES, DEVICES, THREADS, IMPORTS, SHARE, PEERS };
/* `more`: the limit of CLOSE in milliseconds; for other orders the number of descriptors that come with the order. */
typedef struct { uint32_t order, first, count, more; uint64_t offset; } request_t;
typedef struct { int32_t result; uint32_t count; uint64_t bytes; } reply_t;
typedef struct { uint64_t address, bytes, context; int32_t device, state; } listed_t;

static int send_all(int to, const void *data, size_t length) {
    for (const char *at = data; length;) {
        ssize_t sent = send(to, at, length, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent <= 0) return -1;
        at += sent, length -= sent;
    }
    return 0;
}

static int receive_all(int from, void *data, size_t length) {
    for (char *at = data; length;) {
        ssize_t got = recv(from, at, length, 0);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return -1;
        at += got, length -= got;
    }
    return 0;
}

typedef union { struct cmsghdr header; char room[CMSG_SPACE(MAX_DESCRIPTORS * sizeof(int))]; } descriptors_t;

/* Receive a message of this length and the descriptors that come with it; return how many there are, or -1 for fewer bytes. `is_complete`: Linux
 * leaves out descriptors for which the process has no room (RLIMIT_NOFILE). */
static int receive_message(int from, void *data, size_t length, int *descriptors, int *is_complete) {
    descriptors_t control;
    struct iovec part = {data, length};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control.room, .msg_controllen = sizeof control.room};
    ssize_t got;
    do got = recvmsg(from, &message, MSG_CMSG_CLOEXEC | MSG_WAITALL);
    while (got < 0 && errno == EINTR);
    int count = 0;
    if (got > 0)
        for (struct cmsghdr *at = CMSG_FIRSTHDR(&message); at; at = CMSG_NXTHDR(&message, at))
            if (at->cmsg_level == SOL_SOCKET && at->cmsg_type == SCM_RIGHTS) {
                count = (at->cmsg_len - CMSG_LEN(0)) / sizeof(int);
                memcpy(descriptors, CMSG_DATA(at), count * sizeof(int));
            }
    *is_complete = !(message.msg_flags & MSG_CTRUNC);
    if (got == (ssize_t)length) return count;
    while (count) close(descriptors[--count]);
    return -1;
}

static int send_with(int to, reply_t reply, const int *descriptors) {
    descriptors_t control = {0};
    struct iovec part = {&reply, sizeof reply};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (reply.count) {
        message.msg_control = control.room;
        message.msg_controllen = CMSG_SPACE(reply.count * sizeof(int));
        control.header = (struct cmsghdr){CMSG_LEN(reply.count * sizeof(int)), SOL_SOCKET, SCM_RIGHTS};
        memcpy(CMSG_DATA(&control.header), descriptors, reply.count * sizeof(int));
    }
    ssize_t sent;
    do sent = sendmsg(to, &message, MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
    return sent == sizeof reply ? 0 : -1;
}

/* Receive a request and the descriptors that come with it; return how many there are, or -1. Without room for all of them the request is
 * refused, and what follows it is not read. */
static int receive_with(int from, request_t *request, int *descriptors) {
    int is_complete, count = receive_message(from, request, sizeof *request, descriptors, &is_complete);
    if (count < 0 || (is_complete && (request->order == CLOSE || request->more == (uint32_t)count))) return count;
    while (count) close(descriptors[--count]);
    send_all(from, &(reply_t){.result = -EMFILE}, sizeof(reply_t));
    return -1;
}

/* Return an error of the driver, or -EMFILE if the process can open no more descriptors, as the likely cause. `open`: any open one. */
static result_t cause_of(result_t error, int open) {
    int spare = dup(open);
    if (spare >= 0) close(spare);
    return spare < 0 && errno == EMFILE ? -EMFILE : error;
}

static int send_descriptors(int to, uint32_t first, uint32_t count) {
    int descriptors[BATCH];
    reply_t reply = {0};
    if (count > BATCH) count = BATCH;
    for (; reply.count < count && first + reply.count < part_count; reply.count++) {
        const part_t *at = &parts[first + reply.count];
        if (at->state != MINE) reply.result = -EINVAL;
        else if ((reply.result = driver.cuMemExportToShareableHandle(&descriptors[reply.count], at->handle, AS_DESCRIPTOR, 0)))
            reply.result = cause_of(reply.result, to);
        if (reply.result) break;
        reply.bytes += at->bytes;
    }
    if (reply.result == -EMFILE && reply.count) reply.result = SUCCESS; /* the others can be asked for next */
    int failed = send_with(to, reply, descriptors);
    while (reply.count) close(descriptors[--reply.count]);
    return failed;
}

/* Send the descriptors of an allocation to a process that opens a handle of it (ferry_ipc.c); a nonce follows the request. */
static int send_shared(int to, const request_t *request) {
    unsigned char nonce[NONCE_BYTES];
    int descriptors[BATCH];
    reply_t reply = {.result = -ENOENT};
    if (receive_all(to, nonce, sizeof nonce)) return -1;
    pthread_mutex_lock(&parts_lock);
    if (ferry_closed) reply.result = -EAGAIN; /* the memory may be away */
    else if (is_own_nonce(nonce))
        for (uint32_t at = 0; at < part_count; at++) {
            if (!parts[at].serial || parts[at].serial != request->offset) continue;
            reply.result = SUCCESS, reply.bytes = parts[at].whole_bytes;
            for (uint32_t end = at + parts_of(reply.bytes); at < end && !reply.result; at++)
                if ((reply.result = driver.cuMemExportToShareableHandle(&descriptors[reply.count], parts[at].handle, AS_DESCRIPTOR, 0)))
                    reply.result = cause_of(reply.result, to);
                else reply.count++;
            break;
        }
    pthread_mutex_unlock(&parts_lock);
    uint32_t count = reply.count;
    if (reply.result) reply.count = 0;
    int failed = send_with(to, reply, descriptors);
    while (count) close(descriptors[--count]);
    return failed;
}

/* Send memory of this size on a GPU that nobody uses: while its descriptor is open, other programs cannot take that room. */
static int send_room(int to, uint32_t device, uint64_t bytes) {
    context_t popped;
    handle_t handle;
    int descriptor;
    reply_t reply = {.result = part_count && device < MAX_GPUS ? SUCCESS : -EINVAL};
    if (!reply.result && !(reply.result = driver.cuCtxPushCurrent_v2(parts[0].context))) {
        properties_t properties = properties_of(device);
        if (!(reply.result = driver.cuMemCreate(&handle, (bytes + PIECE - 1) / PIECE * PIECE, &properties, 0))) {
            reply.result = driver.cuMemExportToShareableHandle(&descriptor, handle, AS_DESCRIPTOR, 0);
            driver.cuMemRelease(handle);
        }
        driver.cuCtxPopCurrent_v2(&popped);
    }
    if (reply.result) return send_all(to, &reply, sizeof reply);
    reply.count = 1;
    int failed = send_with(to, reply, &descriptor);
    close(descriptor);
    return failed;
}

static reply_t unmap_all(void) {
    reply_t reply = {0};
    for (uint32_t at = 0; at < part_count; at++) {
        if (parts[at].state != MINE) continue;
        if ((reply.result = unmap(&parts[at]))) break;
        parts[at].state = HANDED;
        reply.count++;
        reply.bytes += parts[at].bytes;
    }
    return reply;
}

/* Import memory and map it at an address of its own. An error leaves nothing behind. */
static result_t import(int descriptor, const part_t *part, address_t *spare, handle_t *handle) {
    access_t access = {{ON_DEVICE, part->device}, READ_WRITE};
    result_t error = driver.cuMemImportFromShareableHandle(handle, (void *)(intptr_t)descriptor, AS_DESCRIPTOR);
    if (error) return error;
    if (!(error = driver.cuMemAddressReserve(spare, part->bytes, 0, 0, 0))) {
        if (!(error = driver.cuMemMap(*spare, part->bytes, 0, *handle, 0))) {
            if (!(error = driver.cuMemSetAccess(*spare, part->bytes, &access, 1))) return SUCCESS;
            driver.cuMemUnmap(*spare, part->bytes);
        }
        driver.cuMemAddressFree(*spare, part->bytes);
    }
    driver.cuMemRelease(*handle);
    return error;
}

static void drop_import(address_t spare, size_t bytes, handle_t handle) {
    driver.cuMemUnmap(spare, bytes);
    driver.cuMemRelease(handle);
    driver.cuMemAddressFree(spare, bytes);
}

/* Create new memory for a part, and start a copy of imported memory into it on the GPU. An error leaves nothing behind. */
static result_t begin_copy(part_t *part, context_t context, stream_t *stream, int descriptor, address_t *spare, handle_t *handle) {
    context_t popped;
    result_t error = driver.cuCtxPushCurrent_v2(context);
    if (error) return error;
    if (*stream || !(error = driver.cuStreamCreate(stream, NON_BLOCKING))) {
        if (!(error = import(descriptor, part, spare, handle))) {
            if (!(error = create_at(part->address, part->bytes, part->device, &part->handle, 0)) &&
                (error = driver.cuMemcpyDtoDAsync_v2(part->address, *spare, part->bytes, *stream)))
                unmap(part);
            if (error) drop_import(*spare, part->bytes, *handle);
        }
    }
    driver.cuCtxPopCurrent_v2(&popped);
    return error;
}

/* Call a function for each existing stream, in the stream's context; return the first error. */
static result_t with_streams(result_t (*call)(stream_t), const contexts_t *contexts, const stream_t *streams) {
    result_t error = SUCCESS;
    context_t popped;
    for (int device = 0; device < MAX_GPUS; device++) {
        if (!streams[device]) continue;
        result_t pushed = driver.cuCtxPushCurrent_v2(contexts->of[device]), late = pushed ? pushed : call(streams[device]);
        if (!pushed) driver.cuCtxPopCurrent_v2(&popped);
        if (!error) error = late;
    }
    return error;
}

/* Copy the memory of these descriptors into new memory of this process, at the old addresses, on several GPUs at the same time. After an
 * error the rest stays handed over. */
static reply_t give_back(uint32_t first, const int *descriptors, uint32_t count) {
    reply_t reply = {0};
    address_t spare[BATCH];
    handle_t imported[BATCH];
    stream_t streams[MAX_GPUS] = {0};
    contexts_t contexts = contexts_for(parts, part_count);
    for (uint32_t begin = 0; begin < count && !reply.result;) {
        uint32_t end = begin;
        size_t pending = 0;
        for (; end < count && pending < COPIED_AT_ONCE; end++) {
            part_t *at = &parts[first + end];
            reply.result = begin_copy(at, contexts.of[at->device], &streams[at->device], descriptors[end], &spare[end], &imported[end]);
            if (reply.result) break;
            pending += at->bytes;
        }
        result_t error = with_streams(driver.cuStreamSynchronize, &contexts, streams);
        for (; begin < end; begin++) {
            part_t *at = &parts[first + begin];
            drop_import(spare[begin], at->bytes, imported[begin]);
            if (error) {
                unmap(at);
                continue;
            }
            at->state = MINE;
            reply.count++;
            reply.bytes += at->bytes;
        }
        if (!reply.result) reply.result = error;
    }
    with_streams(driver.cuStreamDestroy_v2, &contexts, streams);
    return reply;
}

/* A range of a part, as the daemon names it: the number of the part, and the place in it. */
typedef struct { uint32_t part, unused; uint64_t offset, bytes; } range_t;

static void *pages(size_t bytes) {
    void *found = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return found == MAP_FAILED ? NULL : found;
}

/* Receive the ranges that follow a request; the caller unmaps them. Return NULL if there is no sense in receiving more. */
static range_t *receive_ranges(int from, uint32_t count) {
    range_t *ranges = count && count <= MAX_RANGES ? pages(count * sizeof *ranges) : NULL;
    if (!ranges || !receive_all(from, ranges, count * sizeof *ranges)) return ranges;
    munmap(ranges, count * sizeof *ranges);
    return NULL;
}

/* Copy ranges of these parts to files, one after the other from the offset; without ranges, write the digests of the whole parts to the
 * first file. */
static result_t read_parts(const part_t *from, uint32_t part_number, const range_t *ranges, uint32_t range_count, files_t files,
                           uint64_t offset) {
    uint32_t count = ranges ? range_count : part_number;
    run_t *runs = pages(count * sizeof *runs);
    contexts_t contexts = contexts_for(from, part_number);
    result_t error = runs ? SUCCESS : -ENOMEM;
    for (uint32_t i = 0; i < count && !error; i++) {
        range_t range = ranges ? ranges[i] : (range_t){.part = i, .bytes = i < part_number ? from[i].bytes : 0};
        if (range.part >= part_number || !range.bytes || range.offset > from[range.part].bytes ||
            range.bytes > from[range.part].bytes - range.offset)
            error = -EINVAL;
        else runs[i] = (run_t){from[range.part].address + range.offset, range.bytes, from[range.part].device};
    }
    if (!error)
        error = ranges ? copy_runs(runs, count, &contexts, files, offset, 1)
                       : digest_runs(runs, count, &contexts, files.descriptors[0], offset);
    if (runs) munmap(runs, count * sizeof *runs);
    return error;
}

/* Import handed-over parts, let them be read, and let go of them. The program has copies of them, runs meanwhile and may change the
 * table, so the daemon sends the entries that it has listed. */
static result_t read_handed_over(const listed_t *listed, const int *descriptors, uint32_t count, const range_t *ranges, uint32_t range_count,
                                 files_t files, uint64_t offset) {
    part_t imported[BATCH];
    context_t popped;
    uint32_t done = 0;
    result_t error = SUCCESS;
    for (; done < count; done++) {
        part_t *at = &imported[done];
        *at = (part_t){.bytes = listed[done].bytes, .device = listed[done].device, .context = (context_t)(uintptr_t)listed[done].context};
        error = at->device < 0 || at->device >= MAX_GPUS ? -EINVAL : driver.cuCtxPushCurrent_v2(at->context);
        if (error) break;
        error = import(descriptors[done], at, &at->address, &at->handle);
        driver.cuCtxPopCurrent_v2(&popped);
        if (error) break;
    }
    if (!error) error = read_parts(imported, count, ranges, range_count, files, offset);
    while (done--) drop_import(imported[done].address, imported[done].bytes, imported[done].handle);
    return error;
}

/* Carry out an order that reads handed-over parts: what follows it are their entries, and ranges for a copy. The descriptors are those
 * of the files, then those of the parts; request->first is the number of files. Return -1 if the connection must be closed. */
static int answer_handed_over(int to, const request_t *request, const int *descriptors, uint32_t received) {
    listed_t listed[BATCH];
    files_t files = {descriptors, request->first};
    uint32_t count = received - files.count;
    range_t *ranges = NULL;
    if (!files.count || received <= files.count || count > BATCH || receive_all(to, listed, count * sizeof *listed)) return -1;
    if (request->order == COPY_HANDED_OVER && !(ranges = receive_ranges(to, request->count))) return -1;
    reply_t reply = {.result = read_handed_over(listed, descriptors + files.count, count, ranges, request->count, files, request->offset)};
    if (ranges) munmap(ranges, request->count * sizeof *ranges);
    return send_all(to, &reply, sizeof reply);
}

/* Give handed-over parts new memory with the content of files, one after the other from the offset. After an error all of them are
 * still handed over. */
static reply_t fill(const request_t *request, files_t files) {
    reply_t reply = {0};
    part_t *from = parts + request->first;
    run_t *runs = pages(request->count * sizeof *runs);
    contexts_t contexts = contexts_for(from, request->count);
    context_t popped;
    uint32_t created = 0;
    if (!runs) return (reply_t){.result = -ENOMEM};
    for (; created < request->count; created++) {
        part_t *at = from + created;
        if ((reply.result = driver.cuCtxPushCurrent_v2(contexts.of[at->device]))) break;
        reply.result = create_at(at->address, at->bytes, at->device, &at->handle, 0);
        driver.cuCtxPopCurrent_v2(&popped);
        if (reply.result) break;
        runs[created] = (run_t){at->address, at->bytes, at->device};
        reply.bytes += at->bytes;
    }
    if (!reply.result) reply.result = copy_runs(runs, created, &contexts, files, request->offset, 0);
    if (reply.result) unmap_parts(from, created);
    else
        while (reply.count < created) from[reply.count++].state = MINE;
    munmap(runs, request->count * sizeof *runs);
    return reply;
}

/* Return whether these parts exist and all are in this state. */
static int are(int state, uint32_t first, uint32_t count) {
    if (!count || first > part_count || count > part_count - first) return 0;
    for (uint32_t at = first; at < first + count; at++)
        if (parts[at].state != state) return 0;
    return 1;
}

static int send_list(int to) {
    reply_t reply = {.count = part_count};
    for (uint32_t at = 0; at < part_count; at++) reply.bytes += parts[at].bytes;
    if (send_all(to, &reply, sizeof reply)) return -1;
    for (uint32_t at = 0; at < reply.count; at++) {
        const part_t *one = &parts[at];
        listed_t listed = {one->address, one->bytes, (uintptr_t)one->context, one->device, one->state};
        if (send_all(to, &listed, sizeof listed)) return -1;
    }
    return 0;
}

/* Send the UUID of each GPU that the process sees. */
static int send_devices(int to) {
    unsigned char uuids[MAX_GPUS][16] = {0};
    int count = 0;
    reply_t reply = {.result = driver.cuDeviceGetCount(&count)};
    if (count > MAX_GPUS) count = MAX_GPUS;
    for (int device = 0; device < count && !reply.result; device++) reply.result = driver.cuDeviceGetUuid(uuids[device], device);
    if (!reply.result) reply.count = count;
    return send_all(to, &reply, sizeof reply) || send_all(to, uuids, reply.count * sizeof *uuids) ? -1 : 0;
}

static int answer(int to, const request_t *request, const int *descriptors, uint32_t received) {
    reply_t reply = {0};
    files_t files = {descriptors, received};
    uint32_t handed = 0;
    range_t *ranges = NULL;
    if (request->order == CLOSE) {
        if (!ferry_closed) reply.result = close_gate(request->more);
        return send_all(to, &reply, sizeof reply);
    }
    if (request->order == COPY_HANDED_OVER || request->order == DIGEST_HANDED_OVER)
        return answer_handed_over(to, request, descriptors, received);
    if (request->order == DEVICES) return send_devices(to);
    if (request->order == SHARE) return send_shared(to, request);
    if (request->order == COPY_OUT && !(ranges = receive_ranges(to, request->count))) return -1;
    /* The orders below read or change the table, which nobody else changes while the gate is closed. */
    pthread_mutex_lock(&parts_lock);
    for (uint32_t at = 0; at < part_count; at++) handed += parts[at].state == HANDED;
    switch (request->order) {
    case STATUS:
        reply.result = ferry_closed;
        reply.count = handed;
        reply.bytes = syscall(SYS_gettid);
        break;
    case THREADS:
        max_copy_threads = request->count;
        break;
    case BYTES:
        for (uint32_t at = 0; at < part_count; at++) reply.bytes += parts[at].bytes;
        break;
    case IMPORTS:
        reply.count = count_imports() + count_mapped_imports();
        reply.bytes = first_import_of();
        break;
    case PEERS:
        if (ferry_closed) reply.result = switch_peers_off();
        else reply.result = -EPERM;
        break;
    case OPEN:
        if (handed) reply.result = -EBUSY;
        else {
            reply.count = switch_peers_on();
            open_gate();
        }
        break;
    case LIST:
        pthread_mutex_unlock(&parts_lock);
        return ferry_closed ? send_list(to) : send_all(to, &(reply_t){.result = -EPERM}, sizeof reply);
    case EXPORT:
        pthread_mutex_unlock(&parts_lock);
        return ferry_closed ? send_descriptors(to, request->first, request->count)
                           : send_all(to, &(reply_t){.result = -EPERM}, sizeof reply);
    case RESERVE:
        pthread_mutex_unlock(&parts_lock);
        return ferry_closed ? send_room(to, request->first, request->offset) : send_all(to, &(reply_t){.result = -EPERM}, sizeof reply);
    case UNMAP:
        if (ferry_closed) reply = unmap_all();
        else reply.result = -EPERM;
        break;
    case GIVE_BACK:
        if (ferry_closed && received <= BATCH && are(HANDED, request->first, received)) reply = give_back(request->first, descriptors, received);
        else reply.result = -EINVAL;
        break;
    case COPY_OUT:
    case DIGEST:
        if (ferry_closed && received && are(MINE, 0, part_count))
            reply.result = read_parts(parts, part_count, ranges, request->count, files, request->offset);
        else reply.result = -EINVAL;
        break;
    case FILL:
        if (ferry_closed && received && are(HANDED, request->first, request->count)) reply = fill(request, files);
        else reply.result = -EINVAL;
        break;
    default:
        reply.result = -ENOSYS;
    }
    pthread_mutex_unlock(&parts_lock);
    if (ranges) munmap(ranges, request->count * sizeof *ranges);
    return send_all(to, &reply, sizeof reply);
}

/* Return the address of the socket of a process. */
static struct sockaddr_un socket_of(int process) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char digits[16], *at = digits + sizeof digits;
    *--at = 0;
    for (int rest = process; rest > 0; rest /= 10) *--at = '0' + rest % 10;
    strcpy(address.sun_path, directory);
    strcat(address.sun_path, "/");
    strcat(address.sun_path, at);
    return address;
}

HIDDEN int ask_for_descriptors(int owner, uint64_t serial, const unsigned char *nonce, int descriptors[BATCH], uint64_t *bytes) {
    struct sockaddr_un address = socket_of(owner);
    request_t request = {.order = SHARE, .offset = serial};
    int received[MAX_DESCRIPTORS], is_complete, count = -1, to = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    reply_t reply = {0};
    if (to < 0) return -errno;
    if (!connect(to, (struct sockaddr *)&address, sizeof address) && !send_all(to, &request, sizeof request) && !send_all(to, nonce, NONCE_BYTES))
        count = receive_message(to, &reply, sizeof reply, received, &is_complete);
    close(to);
    if (count < 0) return -ESRCH;
    if (!reply.result && is_complete && count <= BATCH && (uint32_t)count == reply.count && parts_of(reply.bytes) == reply.count) {
        memcpy(descriptors, received, count * sizeof *received);
        *bytes = reply.bytes;
        return count;
    }
    while (count) close(received[--count]);
    return reply.result < 0 ? reply.result : is_complete ? -ENOENT : -EMFILE;
}

static void *obey(void *unused) {
    (void)unused;
    struct sockaddr_un address = socket_of(getpid());
    int listening = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    unlink(address.sun_path);
    /* The file has no rights until connections are accepted: so the daemon knows when it may connect (engine/gpu/ferry/ferry.py). */
    pthread_setname_np(pthread_self(), "gpuckpt-ferry"); /* by it the daemon knows that the file is not of an earlier process */
    if (listening < 0 || fchmod(listening, 0) || bind(listening, (struct sockaddr *)&address, sizeof address) ||
        listen(listening, 8) || chmod(address.sun_path, 0600)) {
        is_on = 0;
        return NULL;
    }
    thread_listens = 1;
    for (;;) {
        int peer = accept4(listening, NULL, NULL, SOCK_CLOEXEC), descriptors[MAX_DESCRIPTORS], received;
        request_t request;
        if (peer < 0) {
            pause_shortly();
            continue;
        }
        max_copy_threads = 0; /* of a daemon that does not limit them; the last one may have done so, on another machine */
        while ((received = receive_with(peer, &request, descriptors)) >= 0) {
            int mode = RELAXED; /* a thread of the program may capture a graph meanwhile, and must not be disturbed */
            driver.cuThreadExchangeStreamCaptureMode(&mode);
            int failed = answer(peer, &request, descriptors, received);
            while (received) close(descriptors[--received]);
            if (failed) break;
        }
        close(peer);
    }
}

/* CUDA does not survive a fork: the child gets the driver's own answers, and no thread, unless this process has not used the ferry. */
static void forked(void) {
    is_on = is_on && !thread_began;
    thread_listens = 0;
    ferry_closed = 0;
    ferry_inside = 0;
    part_count = 0;
    gpus_seen = 0;
    last_serial = 0;
    forget_imports();
    forget_mapped_imports();
    forget_peers();
    /* Threads that owned them do not exist here. */
    parts_lock = entries_lock = driver_lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
}

/* Remove the variable and this library from the environment, so that programs that the kernel starts have no ferry. */
static void clean_environment(const char *path) {
    char *list = getenv("LD_PRELOAD"), *self = list ? strstr(list, path) : NULL;
    unsetenv(FERRY_VARIABLE);
    if (!self || (self != list && self[-1] != ':')) return;
    char *rest = self + strlen(path);
    if (*rest == ':') rest++;
    else if (*rest) return;
    else if (self != list) self--;
    memmove(self, rest, strlen(rest) + 1);
    if (!list[0]) unsetenv("LD_PRELOAD");
}

__attribute__((constructor)) static void begin(void) {
    const char *named = getenv(FERRY_VARIABLE);
    Dl_info self;
    ferry_find_dlsym();
    find_executing(ferry_real_dlsym);
    if (!named || !named[0] || strlen(named) >= sizeof directory) return;
    strcpy(directory, named);
    if (dladdr((void *)begin, &self) && self.dli_fname) {
        clean_environment(self.dli_fname);
        load_into_children(self.dli_fname, directory);
    }
    parts = mmap(NULL, MAX_PARTS * sizeof *parts, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (parts == MAP_FAILED || __register_atfork(NULL, NULL, forked, NULL)) directory[0] = 0;
}
