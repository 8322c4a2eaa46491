/* Copies between GPU memory and files on a tmpfs, through page-locked buffers: while the GPU copies one buffer of a thread, the thread
 * writes the other one to a file, or reads it.
 *
 * Several GPUs copy at the same time. Page-locking the files' own pages would take 0.18 s per GB. The buffers take up to 128 MB, or 256 MB
 * with several GPUs. They are freed after each copy, because the driver's Checkpoint would have to save them. There are several files,
 * because writes to one file exclude each other. Whole stripes are written, because Linux zeroes new pages that are mapped or written in
 * part (24 GB into new pages: 0.5 s; mapped, 1.1 s).
 */
#define _GNU_SOURCE
#include "ferry.h"
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define UNIT (4UL << 20) /* the bytes of a buffer and of a stripe: STRIPE_BYTES in stripes.py */
#define MAX_THREADS_PER_GPU 16
#define MAX_THREADS 32
#define STACK_BYTES (256UL << 10)

typedef struct {
    const run_t *runs;
    const uint64_t *begins; /* of each run, as a distance from the first */
    uint32_t count;
    uint64_t begin, end; /* of all runs in the bytes of the files */
    int to_files;
    files_t files;
    const contexts_t *contexts;
    unsigned gpus; /* that have any of the memory */
    char *buffers; /* two for each thread */
    unsigned threads;
    uint64_t next_unit;
    volatile result_t error;
} copy_t;
/* A buffer, the unit that is in it, a stream of each GPU that has been used, and which of them copy now. */
typedef struct { char *buffer; uint64_t at, busy; size_t bytes; stream_t streams[MAX_GPUS]; } slot_t;

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

/* Let a GPU begin to copy a part of a slot's buffer. */
static result_t begin_part(const copy_t *copy, slot_t *slot, size_t done, const run_t *run, size_t skipped, size_t bytes) {
    context_t popped;
    stream_t *stream = &slot->streams[run->device];
    result_t error = driver.cuCtxPushCurrent_v2(copy->contexts->of[run->device]);
    if (error) return error;
    if (!*stream) error = driver.cuStreamCreate(stream, NON_BLOCKING);
    if (!error) {
        error = copy->to_files ? driver.cuMemcpyDtoHAsync_v2(slot->buffer + done, run->address + skipped, bytes, *stream)
                               : driver.cuMemcpyHtoDAsync_v2(run->address + skipped, slot->buffer + done, bytes, *stream);
        slot->busy |= 1UL << run->device;
    }
    driver.cuCtxPopCurrent_v2(&popped);
    return error;
}

/* Let the GPUs begin to copy the bytes of a slot. */
static result_t begin_unit(const copy_t *copy, slot_t *slot) {
    uint64_t distance = slot->at - copy->begin;
    uint32_t number = run_at(copy, distance);
    for (size_t done = 0; done < slot->bytes; number++) {
        const run_t *run = &copy->runs[number];
        size_t skipped = distance + done - copy->begins[number], part = run->bytes - skipped;
        if (part > slot->bytes - done) part = slot->bytes - done;
        result_t error = begin_part(copy, slot, done, run, skipped, part);
        if (error) return error;
        done += part;
    }
    return SUCCESS;
}

/* Wait until no GPU copies to or from a slot's buffer. `ends`: no GPU will copy again, so the streams are destroyed. */
static result_t wait_for(const copy_t *copy, slot_t *slot, int ends) {
    result_t error = SUCCESS;
    context_t popped;
    for (int device = 0; device < MAX_GPUS; device++) {
        if (!slot->streams[device] || (!ends && !(slot->busy >> device & 1))) continue;
        result_t late = driver.cuCtxPushCurrent_v2(copy->contexts->of[device]);
        if (!late) {
            if (slot->busy >> device & 1) late = driver.cuStreamSynchronize(slot->streams[device]);
            if (ends) driver.cuStreamDestroy_v2(slot->streams[device]);
            driver.cuCtxPopCurrent_v2(&popped);
        }
        if (!error) error = late;
    }
    slot->busy = 0;
    return error;
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
    result_t error = wait_for(copy, slot, 0);
    if (!error && copy->to_files && !copy->error) error = move_unit(copy, slot);
    slot->bytes = 0;
    return error;
}

/* Take the number of the next stripe; return 0 if none is left. Neighbors are mostly on the same GPU, so the stripes are taken in turn
 * from as many sections as there are GPUs. */
static int take_stripe(copy_t *copy, uint64_t *stripe) {
    uint64_t first = copy->begin / UNIT, stripes = (copy->end + UNIT - 1) / UNIT - first, length = (stripes + copy->gpus - 1) / copy->gpus;
    for (;;) {
        uint64_t turn = __atomic_fetch_add(&copy->next_unit, 1, __ATOMIC_RELAXED);
        if (turn >= length * copy->gpus) return 0;
        uint64_t number = turn % copy->gpus * length + turn / copy->gpus;
        if (number < stripes) return *stripe = first + number, 1;
    }
}

/* Copy units until none is left. */
static result_t copy_units(copy_t *copy, slot_t *slots) {
    for (int turn = 0; !copy->error; turn = !turn) {
        slot_t *slot = &slots[turn];
        result_t error = finish_unit(copy, slot);
        if (error) return error;
        uint64_t stripe;
        if (!take_stripe(copy, &stripe)) break;
        uint64_t at = stripe * UNIT, end = at + UNIT;
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
    result_t error = driver.cuCtxPushCurrent_v2(copy->contexts->of[copy->runs->device]);
    if (!error) {
        int mode = RELAXED; /* a thread of the program may capture a graph meanwhile, and must not be disturbed */
        driver.cuThreadExchangeStreamCaptureMode(&mode);
        error = copy_units(copy, slots);
        if (error) copy->error = error; /* finish_unit only waits then */
        for (int i = 0; i < 2; i++) {
            result_t late = finish_unit(copy, &slots[i]);
            if (!error) error = late;
            late = wait_for(copy, &slots[i], 1);
            if (!error) error = late;
        }
        driver.cuCtxPopCurrent_v2(&popped);
    }
    if (error) copy->error = error;
    return NULL;
}

uint32_t max_copy_threads;

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
    if (threads > MAX_THREADS_PER_GPU * copy->gpus) threads = MAX_THREADS_PER_GPU * copy->gpus;
    if (threads > MAX_THREADS) threads = MAX_THREADS;
    if (max_copy_threads && threads > max_copy_threads) threads = max_copy_threads;
    if (threads > units) threads = units;
    size_t bytes = 2 * threads * UNIT;
    copy->buffers = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (copy->buffers == MAP_FAILED) return -errno;
    madvise(copy->buffers, bytes, MADV_HUGEPAGE);
    madvise(copy->buffers, bytes, MADV_DONTFORK);
    context_t popped;
    result_t error = driver.cuCtxPushCurrent_v2(copy->contexts->of[copy->runs->device]);
    if (!error) {
        if (!(error = driver.cuMemHostRegister_v2(copy->buffers, bytes, FOR_ALL_CONTEXTS))) {
            copy_in_threads(copy, threads);
            error = copy->error;
            driver.cuMemHostUnregister(copy->buffers);
        }
        driver.cuCtxPopCurrent_v2(&popped);
    }
    munmap(copy->buffers, bytes);
    return error;
}

result_t copy_runs(const run_t *runs, uint32_t count, const contexts_t *contexts, files_t files, uint64_t offset, int to_files) {
    copy_t copy = {.runs = runs, .count = count, .contexts = contexts, .begin = offset, .end = offset, .files = files, .to_files = to_files};
    if (!files.count) return -EINVAL;
    if (!count) return SUCCESS;
    size_t table_bytes = count * sizeof *copy.begins;
    uint64_t *begins = mmap(NULL, table_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), used = 0;
    if (begins == MAP_FAILED) return -errno;
    for (uint32_t i = 0; i < count; i++) {
        begins[i] = copy.end - copy.begin;
        copy.end += runs[i].bytes;
        used |= 1UL << runs[i].device;
    }
    for (; used; used &= used - 1) copy.gpus++;
    copy.begins = begins;
    result_t error = copy_all(&copy);
    munmap(begins, table_bytes);
    return error;
}
