/* Memory of other processes that the program imports by itself, by descriptors (cuMemImportFromShareableHandle), as PyTorch does to share its
 * expandable segments. It is only counted: while any of it is mapped, a Restore of the process fails for good (driver 580), so saves are
 * refused. Imported memory that is not mapped, or no more, does no harm.
 */
#include "ferry.h"
#include <string.h>

#define MAX_HANDLES 16384
#define MAX_MAPPINGS 65536

typedef struct { handle_t handle; uint32_t references; } imported_t;
typedef struct { address_t address; size_t bytes; } mapping_t;

static imported_t handles[MAX_HANDLES];
static mapping_t mappings[MAX_MAPPINGS];
static uint32_t handle_count, mapping_count;
static int has_lost_count; /* there was no room in a table: some memory may be mapped for ever */

uint32_t count_mapped_imports(void) { return mapping_count + has_lost_count; }

void forget_mapped_imports(void) { handle_count = mapping_count = has_lost_count = 0; }

static imported_t *find_handle(handle_t handle) {
    for (uint32_t at = 0; at < handle_count; at++)
        if (handles[at].handle == handle) return &handles[at];
    return NULL;
}

static void add_handle(handle_t handle) {
    imported_t *found = find_handle(handle);
    if (found) found->references++;
    else if (handle_count == MAX_HANDLES) has_lost_count = 1;
    else handles[handle_count++] = (imported_t){handle, 1};
}

/* The functions that the program gets in place of the driver's. The driver uses the values of handles again, so each call and what is noted
 * of it are one step for other threads. */

result_t import_handle(handle_t *handle, void *from, int type) {
    pthread_mutex_lock(&parts_lock);
    result_t error = driver.cuMemImportFromShareableHandle(handle, from, type);
    if (!error) add_handle(*handle);
    pthread_mutex_unlock(&parts_lock);
    if (!error) is_listening(); /* the daemon asks this process */
    return error;
}

result_t retain_handle(handle_t *handle, void *address) {
    pthread_mutex_lock(&parts_lock);
    result_t error = driver.cuMemRetainAllocationHandle(handle, address);
    for (uint32_t at = 0; !error && at < mapping_count; at++)
        if ((address_t)(uintptr_t)address - mappings[at].address < mappings[at].bytes) {
            add_handle(*handle);
            break;
        }
    pthread_mutex_unlock(&parts_lock);
    return error;
}

result_t release_handle(handle_t handle) {
    pthread_mutex_lock(&parts_lock);
    result_t error = driver.cuMemRelease(handle);
    imported_t *found = error ? NULL : find_handle(handle);
    if (found && !--found->references) *found = handles[--handle_count];
    pthread_mutex_unlock(&parts_lock);
    return error;
}

result_t map_handle(address_t address, size_t bytes, size_t offset, handle_t handle, unsigned long long flags) {
    pthread_mutex_lock(&parts_lock);
    result_t error = driver.cuMemMap(address, bytes, offset, handle, flags);
    if (!error && find_handle(handle)) {
        if (mapping_count == MAX_MAPPINGS) has_lost_count = 1;
        else mappings[mapping_count++] = (mapping_t){address, bytes};
    }
    pthread_mutex_unlock(&parts_lock);
    return error;
}

result_t unmap_range(address_t address, size_t bytes) {
    pthread_mutex_lock(&parts_lock);
    result_t error = driver.cuMemUnmap(address, bytes);
    for (uint32_t at = mapping_count; !error && at--;)
        if (mappings[at].address - address < bytes) mappings[at] = mappings[--mapping_count];
    pthread_mutex_unlock(&parts_lock);
    return error;
}
