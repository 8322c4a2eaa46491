/* CUDA IPC for memory of the ferry: the driver's cuIpcGetMemHandle does not work on memory from cuMemCreate.
 *
 * A handle of ours names an allocation of a process: the process, its number of the allocation, and a nonce. Who opens it asks the ferry of
 * that process for descriptors, imports and maps them. So a handle stays valid when a save has given the memory back as new memory.
 * Other handles are the driver's. A process that has opened memory cannot be restored, so its saves are refused
 * (engine/gpu/gpu_refusals.py), as with the driver's handles.
 */
#define _GNU_SOURCE
#include "ferry.h"
#include <errno.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MAGIC "gpuckpt"
#define MAX_IMPORTS 4096
enum { PEERS_LAZILY = 1, LEGACY_IPC_CAPABLE = 10, RANGE_START = 11, RANGE_BYTES = 12 };

typedef struct { char magic[8]; uint64_t serial, owner; unsigned char nonce[NONCE_BYTES]; char unused[24]; } named_t;
_Static_assert(sizeof(named_t) == sizeof(ipc_handle_t), "a handle has 64 bytes");
/* Opened memory. `opened`: how often. `reached`: the GPUs with access that the program has opened it on, as bits. Of memory that the driver has
 * opened only the address and the context are known. */
typedef struct {
    named_t name;
    address_t address;
    size_t bytes;
    context_t context;
    int device;
    uint32_t opened;
    uint64_t reached;
} import_t;

static import_t imports[MAX_IMPORTS];
static uint32_t import_count;
static unsigned char own_nonce[NONCE_BYTES];
static int has_nonce;

uint32_t count_imports(void) { return import_count; }
int first_import_of(void) {
    for (uint32_t at = 0; at < import_count; at++)
        if (imports[at].name.owner) return imports[at].name.owner;
    return 0;
}
int is_own_nonce(const unsigned char *nonce) { return has_nonce && !memcmp(nonce, own_nonce, NONCE_BYTES); }

void forget_imports(void) {
    import_count = 0;
    has_nonce = 0; /* handles name the parent */
}

/* Copy the nonce of this process, which is chosen at the first call. */
static int get_nonce(unsigned char *nonce) {
    pthread_mutex_lock(&parts_lock);
    if (!has_nonce) has_nonce = syscall(SYS_getrandom, own_nonce, NONCE_BYTES, 0) == NONCE_BYTES;
    if (has_nonce) memcpy(nonce, own_nonce, NONCE_BYTES);
    pthread_mutex_unlock(&parts_lock);
    return has_nonce;
}

result_t get_handle(ipc_handle_t *handle, address_t address) {
    named_t name = {.magic = MAGIC, .owner = getpid()};
    if (!handle || !(name.serial = serial_of(address)) || !get_nonce(name.nonce)) return driver.cuIpcGetMemHandle(handle, address);
    memcpy(handle, &name, sizeof name);
    return SUCCESS;
}

static size_t part_bytes(const import_t *import, size_t at) {
    return import->bytes - at < MAX_PART_BYTES ? import->bytes - at : MAX_PART_BYTES;
}

static void unmap_import(const import_t *import, size_t mapped) {
    if (!import->bytes) return; /* the driver's */
    for (size_t at = 0; at < mapped; at += MAX_PART_BYTES) driver.cuMemUnmap(import->address + at, part_bytes(import, at));
    driver.cuMemAddressFree(import->address, import->bytes);
}

/* Give the current GPU access to opened memory. */
static result_t reach(import_t *import, int device) {
    access_t access = {{ON_DEVICE, device}, READ_WRITE};
    result_t error = SUCCESS;
    if (import->reached >> device & 1) return error;
    for (size_t at = 0; at < import->bytes && !error; at += MAX_PART_BYTES)
        error = driver.cuMemSetAccess(import->address + at, part_bytes(import, at), &access, 1);
    if (!error) import->reached |= 1UL << device;
    return error;
}

/* Map a part, of which there is a descriptor, and let its GPU and that GPU's peers reach it. */
static result_t map_part(import_t *import, size_t at, int descriptor) {
    properties_t properties = {0};
    access_t access[MAX_GPUS];
    handle_t handle;
    result_t error = driver.cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)descriptor, AS_DESCRIPTOR);
    if (error) return error;
    if (!(error = driver.cuMemGetAllocationPropertiesFromHandle(&properties, handle)) && (properties.location.id < 0 || properties.location.id >= MAX_GPUS))
        error = SYSTEM_FAILED;
    if (!error && !(error = driver.cuMemMap(import->address + at, part_bytes(import, at), 0, handle, 0))) {
        import->device = properties.location.id;
        error = share(import->address + at, part_bytes(import, at), access, access_to(import->device, access), 0);
        if (error) driver.cuMemUnmap(import->address + at, part_bytes(import, at));
    }
    driver.cuMemRelease(handle); /* the mapping keeps the memory */
    return error;
}

/* Map all parts. An error leaves nothing behind. */
static result_t map_import(import_t *import, const int *descriptors, int device) {
    size_t at = 0;
    result_t error = driver.cuMemAddressReserve(&import->address, import->bytes, 0, 0, 0);
    if (error) return error;
    for (; at < import->bytes && !error; at += MAX_PART_BYTES)
        if ((error = map_part(import, at, descriptors[at / MAX_PART_BYTES]))) break;
    if (!error) {
        import->reached = 1UL << import->device;
        error = reach(import, device);
    }
    if (error) unmap_import(import, at);
    return error;
}

static import_t *find_named(const named_t *name) {
    for (uint32_t at = 0; at < import_count; at++)
        if (!memcmp(&imports[at].name, name, sizeof *name)) return &imports[at];
    return NULL;
}

/* Open memory once more, or for the first time if there are descriptors. Return -ENOENT if there must be some. */
static result_t open_import(address_t *result, const named_t *name, const int *descriptors, size_t bytes, context_t context, int device) {
    pthread_mutex_lock(&parts_lock);
    import_t *found = find_named(name);
    result_t error = found ? reach(found, device) : descriptors ? SUCCESS : -ENOENT;
    if (!found && !error) {
        import_t made = {.name = *name, .bytes = bytes, .context = context};
        error = import_count == MAX_IMPORTS ? OUT_OF_MEMORY : map_import(&made, descriptors, device);
        if (!error) imports[import_count] = made, found = &imports[import_count++];
    }
    if (!error) found->opened++, *result = found->address, note_gpu(found->device);
    pthread_mutex_unlock(&parts_lock);
    return error;
}

/* Receive the descriptors of all parts; return how many, or a negative error. */
static int receive_parts(const named_t *name, int descriptors[BATCH], uint64_t *bytes) {
    int count;
    while ((count = ask_for_descriptors(name->owner, name->serial, name->nonce, descriptors, bytes)) == -EAGAIN)
        wait_outside(); /* a save is under way there, and the daemon will want to close this gate, too */
    return count;
}

static import_t *at_address(address_t address) {
    for (uint32_t at = 0; at < import_count; at++)
        if (imports[at].address == address) return &imports[at];
    return NULL;
}

/* Let the driver open a handle of its own, and note it. */
static result_t open_drivers(address_t *result, ipc_handle_t handle, unsigned flags) {
    context_t context = NULL;
    if (!is_listening()) return driver.cuIpcOpenMemHandle_v2(result, handle, flags); /* the daemon looks at what is mapped */
    pthread_mutex_lock(&parts_lock);
    result_t error = import_count == MAX_IMPORTS ? OUT_OF_MEMORY : driver.cuIpcOpenMemHandle_v2(result, handle, flags);
    if (!error) {
        import_t *found = at_address(*result);
        driver.cuCtxGetCurrent(&context);
        if (!found) imports[import_count] = (import_t){.address = *result, .context = context, .device = -1}, found = &imports[import_count++];
        found->opened++;
    }
    pthread_mutex_unlock(&parts_lock);
    return error;
}

result_t open_handle(address_t *result, ipc_handle_t handle, unsigned flags) {
    named_t name;
    int device, descriptors[BATCH];
    context_t context;
    uint64_t bytes;
    memcpy(&name, &handle, sizeof name);
    if (!result || memcmp(name.magic, MAGIC, sizeof name.magic)) return open_drivers(result, handle, flags);
    if (name.owner == (uint64_t)getpid() || driver.cuCtxGetCurrent(&context) || !context || driver.cuCtxGetDevice(&device)) return INVALID_CONTEXT;
    if (!(flags & PEERS_LAZILY)) return INVALID_VALUE; /* the driver knows no other way */
    if (!is_listening()) return SYSTEM_FAILED; /* the daemon could not refuse a save, which would lose the process */
    result_t error = open_import(result, &name, NULL, 0, context, device);
    if (error != -ENOENT) return error;
    int count = receive_parts(&name, descriptors, &bytes);
    if (count < 0) return count == -EMFILE ? SYSTEM_FAILED : count == -ESRCH ? INVALID_HANDLE : INVALID_VALUE; /* as the driver's (580) */
    error = open_import(result, &name, descriptors, bytes, context, device);
    while (count) close(descriptors[--count]);
    return error;
}

static void remove_import(import_t *import) {
    unmap_import(import, import->bytes);
    uint32_t at = import - imports;
    memmove(import, import + 1, (--import_count - at) * sizeof *import);
}

result_t close_handle(address_t address) {
    context_t context = NULL;
    result_t error = SUCCESS;
    pthread_mutex_lock(&parts_lock);
    import_t *found = at_address(address);
    int is_ours = found && found->bytes, is_last = found && found->opened == 1;
    if (is_ours) context = found->context;
    pthread_mutex_unlock(&parts_lock);
    if (!is_ours) error = driver.cuIpcCloseMemHandle(address);
    else if (is_last) synchronize(context); /* work may use the memory */
    pthread_mutex_lock(&parts_lock);
    if (!error && (found = at_address(address)) && !--found->opened) remove_import(found);
    pthread_mutex_unlock(&parts_lock);
    return error;
}

void close_all_of(context_t context, int device) {
    for (uint32_t at = import_count; at--;)
        if (context ? imports[at].context == context : imports[at].device == device) remove_import(&imports[at]);
}

int find_import(address_t address, address_t *begin, size_t *bytes) {
    for (uint32_t at = 0; at < import_count; at++) {
        if (address - imports[at].address >= imports[at].bytes) continue;
        if (begin) *begin = imports[at].address;
        if (bytes) *bytes = imports[at].bytes;
        return imports[at].device;
    }
    return -1;
}

result_t set_import_access(int from, int to, int flags) {
    access_t access = {{ON_DEVICE, from}, flags};
    result_t error = SUCCESS;
    for (uint32_t number = 0; number < import_count; number++) {
        const import_t *import = &imports[number];
        if (import->device != to || (!flags && import->reached >> from & 1)) continue;
        for (size_t at = 0; at < import->bytes && (!error || !flags); at += MAX_PART_BYTES)
            error = driver.cuMemSetAccess(import->address + at, part_bytes(import, at), &access, 1);
    }
    return error;
}

/* Correct an attribute of memory of the ferry, own or opened: the driver knows its parts only, and no handles of ours. */
static void correct(void *data, int attribute, address_t address) {
    address_t begin;
    size_t bytes;
    int is_own;
    if (attribute < LEGACY_IPC_CAPABLE || attribute > RANGE_BYTES || !data || !find_range(address, &begin, &bytes, &is_own)) return;
    if (attribute == LEGACY_IPC_CAPABLE) *(char *)data = is_own; /* the lowest byte: the driver has written a number of its size */
    else if (attribute == RANGE_START) *(address_t *)data = begin;
    else *(size_t *)data = bytes;
}

result_t get_attribute(void *data, int attribute, address_t address) {
    result_t error = driver.cuPointerGetAttribute(data, attribute, address);
    if (!error) correct(data, attribute, address);
    return error;
}

result_t get_attributes(unsigned count, int *attributes, void **data, address_t address) {
    result_t error = driver.cuPointerGetAttributes(count, attributes, data, address);
    for (unsigned i = 0; !error && attributes && data && i < count; i++) correct(data[i], attributes[i], address);
    return error;
}
