/* Copies between GPU memory and files on a tmpfs, through page-locked buffers: while the GPU copies one buffer of a thread, the thread
 * writes the other one to a file, or reads it.
 *
 * Page-locking the files' own pages would take 0.18 s per GB. The buffers take up to 128 MB for the time of a copy; later the
 * driver's Checkpoint would have to save them. There are several files, because writes to one exclude each other, and whole stripes are
 * written, because Linux zeroes new pages that are mapped or written in part (24 GB into new pages: 0.5 s; mapped, 1.1 s).
 */
#define _GNU_SOURCE
#include "lane.h"
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define UNIT (4UL << 20) /* the bytes of a buffer and of a stripe: STRIPE_BYTES in stripes.py */
#define MAX_THREADS 16
#define STACK_BYTES (256UL << 10)

typedef struct {
    const run_t *runs;
    const uint64_t *begins; /* of each run, as a distance from the first */
    uint32_t count;
    uint64_t begin, end; /* of all runs in the bytes of the files */
    int to_files;
    files_t files;
    context_t context;
    char *buffers; /* two for each thread */
    unsigned threads;
    size_t next_unit;
    volatile result_t error;
} copy_t;
typedef struct { char *buffer; stream_t stream; uint64_t at; size_t bytes; } slot_t;

result_t move_file(int file, void *memory, size_t bytes, uint64_t offset, int to_file) {
    for (char *at = memory; bytes;) {
        ssize_t moved = to_file ? pwrite(file, at, bytes, offset) : pread(file, at, bytes, offset);
        if (moved < 0 && errno == EINTR) continue;
        if (moved <= 0) return moved ? -errno : -EIO;
        at += moved, offset += moved, bytes -= moved;
    }
    return SUCCESS;
}

/* Return the number of the run that has the byte at this distance. */
static uint32_t run_at(const copy_t *copy, uint64_t distance) {
    uint32_t low = 0, high = copy->count;
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        if (copy->begins[middle] <= distance) low = middle;
        else high = middle;
    }
    return low;
}

/* Let the GPU begin to copy the bytes of a slot. */
static result_t begin_unit(const copy_t *copy, const slot_t *slot) {
    uint64_t distance = slot->at - copy->begin;
    uint32_t number = run_at(copy, distance);
    for (size_t done = 0; done < slot->bytes; number++) {
        const run_t *run = &copy->runs[number];
        size_t skipped = distance + done - copy->begins[number], part = run->bytes - skipped;
        if (part > slot->bytes - done) part = slot->bytes - done;
        result_t error = copy->to_files ? driver.cuMemcpyDtoHAsync_v2(slot->buffer + done, run->address + skipped, part, slot->stream)
                                        : driver.cuMemcpyHtoDAsync_v2(run->address + skipped, slot->buffer + done, part, slot->stream);
        if (error) return error;
        done += part;
    }
    return SUCCESS;
}

/* Write the buffer of a slot to its file, or read it. A unit does not go beyond a stripe. */
static result_t move_unit(const copy_t *copy, const slot_t *slot) {
    uint64_t stripe = slot->at / UNIT, files = copy->files.count;
    return move_file(copy->files.descriptors[stripe % files], slot->buffer, slot->bytes, stripe / files * UNIT + slot->at % UNIT,
                     copy->to_files);
}

/* Wait until a slot's buffer is free again. */
static result_t finish_unit(const copy_t *copy, slot_t *slot) {
    if (!slot->bytes) return SUCCESS;
    result_t error = driver.cuStreamSynchronize(slot->stream);
    if (!error && copy->to_files && !copy->error) error = move_unit(copy, slot);
    slot->bytes = 0;
    return error;
}

/* Copy units until none is left. */
static result_t copy_units(copy_t *copy, slot_t *slots) {
    for (int turn = 0; !copy->error; turn = !turn) {
        slot_t *slot = &slots[turn];
        result_t error = finish_unit(copy, slot);
        if (error) return error;
        uint64_t stripe = copy->begin / UNIT + __atomic_fetch_add(&copy->next_unit, 1, __ATOMIC_RELAXED);
        uint64_t at = stripe * UNIT, end = at + UNIT;
        if (at >= copy->end) break;
        slot->at = at < copy->begin ? copy->begin : at;
        slot->bytes = (end < copy->end ? end : copy->end) - slot->at;
        if (!copy->to_files && (error = move_unit(copy, slot))) slot->bytes = 0;
        if (error || (error = begin_unit(copy, slot))) return error;
    }
    return SUCCESS;
}

static void *work(void *argument) {
    copy_t *copy = argument;
    unsigned number = __atomic_fetch_add(&copy->threads, 1, __ATOMIC_SEQ_CST);
    slot_t slots[2] = {{.buffer = copy->buffers + 2 * number * UNIT}, {.buffer = copy->buffers + (2 * number + 1) * UNIT}};
    context_t popped;
    result_t error = driver.cuCtxPushCurrent_v2(copy->context);
    if (!error) {
        int mode = RELAXED; /* a thread of the program may capture a graph meanwhile, and must not be disturbed */
        driver.cuThreadExchangeStreamCaptureMode(&mode);
        error = driver.cuStreamCreate(&slots[0].stream, NON_BLOCKING);
        if (!error && (error = driver.cuStreamCreate(&slots[1].stream, NON_BLOCKING))) driver.cuStreamDestroy_v2(slots[0].stream);
        if (!error) {
            error = copy_units(copy, slots);
            if (error) copy->error = error; /* finish_unit only waits then */
            for (int i = 0; i < 2; i++) {
                result_t late = finish_unit(copy, &slots[i]);
                driver.cuStreamDestroy_v2(slots[i].stream);
                if (!error) error = late;
            }
        }
        driver.cuCtxPopCurrent_v2(&popped);
    }
    if (error) copy->error = error;
    return NULL;
}

static unsigned processors(void) {
    unsigned long mask[128];
    unsigned found = 0;
    long bytes = syscall(SYS_sched_getaffinity, 0, sizeof mask, mask);
    for (long i = 0; i < bytes / (long)sizeof *mask; i++)
        for (unsigned long rest = mask[i]; rest; rest &= rest - 1) found++;
    return found ? found : 1;
}

/* Copy in so many threads, of which the caller's is one. */
static void copy_in_threads(copy_t *copy, unsigned wanted) {
    pthread_t threads[MAX_THREADS];
    pthread_attr_t attributes;
    unsigned begun = 0;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    while (begun + 1 < wanted && !pthread_create(&threads[begun], &attributes, work, copy)) begun++;
    pthread_attr_destroy(&attributes);
    work(copy);
    while (begun) pthread_join(threads[--begun], NULL);
}

/* Copy through buffers that exist as long as this takes. */
static result_t copy_all(copy_t *copy) {
    size_t units = (copy->end - copy->begin + UNIT - 1) / UNIT;
    unsigned threads = processors();
    if (threads > MAX_THREADS) threads = MAX_THREADS;
    if (threads > units) threads = units;
    size_t bytes = 2 * threads * UNIT;
    copy->buffers = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (copy->buffers == MAP_FAILED) return -errno;
    madvise(copy->buffers, bytes, MADV_HUGEPAGE);
    madvise(copy->buffers, bytes, MADV_DONTFORK);
    result_t error = driver.cuMemHostRegister_v2(copy->buffers, bytes, 0);
    if (!error) {
        copy_in_threads(copy, threads);
        error = copy->error;
        driver.cuMemHostUnregister(copy->buffers);
    }
    munmap(copy->buffers, bytes);
    return error;
}

result_t copy_runs(const run_t *runs, uint32_t count, files_t files, uint64_t offset, int to_files) {
    copy_t copy = {.runs = runs, .count = count, .begin = offset, .end = offset, .files = files, .to_files = to_files};
    if (!files.count) return -EINVAL;
    result_t error = driver.cuCtxGetCurrent(&copy.context);
    if (error || !count) return error;
    size_t table_bytes = count * sizeof *copy.begins;
    uint64_t *begins = mmap(NULL, table_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (begins == MAP_FAILED) return -errno;
    for (uint32_t i = 0; i < count; i++) {
        begins[i] = copy.end - copy.begin;
        copy.end += runs[i].bytes;
    }
    copy.begins = begins;
    error = copy_all(&copy);
    munmap(begins, table_bytes);
    return error;
}
