/* Digests of GPU memory, computed on the GPU: by them a save knows what has not changed since the last snapshot.
 *
 * The digest of 64 KB is NH with four keys (Black, Halevi, Krawczyk, Krovetz, Rogaway: UMAC, 1999; the Toeplitz construction). For
 * two different contents it is the same for one of 2^128 keys at most. The key is random and the program does not know it, so its
 * data do not depend on the key. The other implementation, which checks this one, is in digests.py.
 */
#define _GNU_SOURCE
#include "ferry.h"
#include <errno.h>
#include <pthread.h>
#include <sys/mman.h>

#define DIGESTED_BYTES (64UL << 10)
#define DIGEST_BYTES 32UL
#define KEY_BYTES (DIGESTED_BYTES + 32) /* the four keys overlap: each begins 8 bytes after the one before */
#define BUFFER_BYTES (MAX_PART_BYTES / DIGESTED_BYTES * DIGEST_BYTES)
#define BLOCK_THREADS 256
#define WARP_THREADS 32
#define STACK_BYTES (8UL << 20) /* the driver compiles there; Linux gives pages as they are used */

/* One warp makes one digest: a thread reads 16 bytes, and the next 16 after those of the other threads. Two words of the memory, each
 * added to a word of the key, are multiplied; the products are added, first in a thread and then over the warp. */
#define FIRST(sum, key, next) "add.u32 %x, %m0, " key "; add.u32 %y, %m1, " next "; mad.wide.u32 " sum ", %x, %y, " sum ";\n"
#define SECOND(sum, key, next) "add.u32 %x, %m2, " key "; add.u32 %y, %m3, " next "; mad.wide.u32 " sum ", %x, %y, " sum ";\n"
#define ADD_OF(sum, distance)                                                                     \
    "mov.b64 {%x, %y}, " sum ";\n"                                                                \
    "shfl.sync.down.b32 %x, %x, " distance ", 31, -1; shfl.sync.down.b32 %y, %y, " distance ", 31, -1;\n" \
    "mov.b64 %other, {%x, %y}; add.u64 " sum ", " sum ", %other;\n"
#define ADD_ALL(sum) ADD_OF(sum, "16") ADD_OF(sum, "8") ADD_OF(sum, "4") ADD_OF(sum, "2") ADD_OF(sum, "1")
static const char code[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .entry digest(.param .u64 memory, .param .u64 key, .param .u64 digests, .param .u32 count)\n"
    "{\n"
    ".reg .pred %p;\n"
    ".reg .b32 %thread, %ferry, %piece, %count, %i, %x, %y, %m<4>, %k<12>;\n"
    ".reg .b64 %memory, %key, %digests, %distance, %other, %s<4>;\n"
    "ld.param.u64 %memory, [memory]; ld.param.u64 %key, [key]; ld.param.u64 %digests, [digests]; ld.param.u32 %count, [count];\n"
    "cvta.to.global.u64 %memory, %memory; cvta.to.global.u64 %key, %key; cvta.to.global.u64 %digests, %digests;\n"
    "mov.u32 %x, %ctaid.x; mov.u32 %y, %ntid.x; mov.u32 %thread, %tid.x; mad.lo.u32 %thread, %x, %y, %thread;\n"
    "shr.u32 %piece, %thread, 5; and.b32 %ferry, %thread, 31;\n"
    "setp.ge.u32 %p, %piece, %count; @%p ret;\n"
    "mul.wide.u32 %distance, %piece, 65536; add.u64 %memory, %memory, %distance;\n"
    "mul.wide.u32 %distance, %piece, 32; add.u64 %digests, %digests, %distance;\n"
    "mul.wide.u32 %distance, %ferry, 16; add.u64 %memory, %memory, %distance; add.u64 %key, %key, %distance;\n"
    "mov.u64 %s0, 0; mov.u64 %s1, 0; mov.u64 %s2, 0; mov.u64 %s3, 0; mov.u32 %i, 0;\n"
    "NEXT:\n"
    "ld.global.v4.u32 {%m0, %m1, %m2, %m3}, [%memory];\n"
    "ld.global.v4.u32 {%k0, %k1, %k2, %k3}, [%key];\n"
    "ld.global.v4.u32 {%k4, %k5, %k6, %k7}, [%key+16];\n"
    "ld.global.v4.u32 {%k8, %k9, %k10, %k11}, [%key+32];\n"
    FIRST("%s0", "%k0", "%k1") SECOND("%s0", "%k2", "%k3")
    FIRST("%s1", "%k2", "%k3") SECOND("%s1", "%k4", "%k5")
    FIRST("%s2", "%k4", "%k5") SECOND("%s2", "%k6", "%k7")
    FIRST("%s3", "%k6", "%k7") SECOND("%s3", "%k8", "%k9")
    "add.u64 %memory, %memory, 512; add.u64 %key, %key, 512; add.u32 %i, %i, 1;\n"
    "setp.lt.u32 %p, %i, 128; @%p bra NEXT;\n"
    ADD_ALL("%s0") ADD_ALL("%s1") ADD_ALL("%s2") ADD_ALL("%s3")
    "setp.ne.u32 %p, %ferry, 0; @%p ret;\n"
    "st.global.v2.u64 [%digests], {%s0, %s1}; st.global.v2.u64 [%digests+16], {%s2, %s3};\n"
    "ret;\n"
    "}\n";

typedef struct { module_t module; function_t function; stream_t stream; address_t key, digests; char *buffer; } digester_t;

static result_t digest_run(const digester_t *digester, const run_t *run, int file, uint64_t offset) {
    address_t memory = run->address, key = digester->key, digests = digester->digests;
    uint32_t count = run->bytes / DIGESTED_BYTES, per_block = BLOCK_THREADS / WARP_THREADS;
    void *parameters[] = {&memory, &key, &digests, &count};
    size_t bytes = count * DIGEST_BYTES;
    /* Where nothing is computed the result is this, and not an earlier run's digests. */
    result_t error = driver.cuMemsetD8Async(digests, 0xff, bytes, digester->stream);
    if (!error)
        error = driver.cuLaunchKernel(digester->function, (count + per_block - 1) / per_block, 1, 1, BLOCK_THREADS, 1, 1, 0,
                                      digester->stream, parameters, NULL);
    if (!error) error = driver.cuMemcpyDtoHAsync_v2(digester->buffer, digests, bytes, digester->stream);
    result_t late = driver.cuStreamSynchronize(digester->stream);
    if (error || late) return error ? error : late;
    return move_file(file, digester->buffer, bytes, offset, 1);
}

/* The digests of one GPU's runs, which one thread lets be computed. */
typedef struct { const run_t *runs; uint32_t count; context_t context; int device, file; uint64_t offset; result_t error; pthread_t thread; } order_t;

static result_t digest_all(digester_t *digester, const order_t *order) {
    uint64_t offset = order->offset;
    result_t error = move_file(order->file, digester->buffer, KEY_BYTES, 0, 0);
    if (!error) error = driver.cuModuleGetFunction(&digester->function, digester->module, "digest");
    if (!error) error = driver.cuMemcpyHtoDAsync_v2(digester->key, digester->buffer, KEY_BYTES, digester->stream);
    result_t late = driver.cuStreamSynchronize(digester->stream);
    if (!error) error = late;
    for (uint32_t i = 0; i < order->count && !error; i++) {
        const run_t *run = &order->runs[i];
        if (!run->bytes || run->bytes > MAX_PART_BYTES || run->bytes % DIGESTED_BYTES) return -EINVAL;
        if (run->device == order->device) error = digest_run(digester, run, order->file, offset);
        offset += run->bytes / DIGESTED_BYTES * DIGEST_BYTES;
    }
    return error;
}

/* Nothing of it stays in the context, which is current: neither module nor memory. */
static result_t digest_here(const order_t *order) {
    digester_t digester = {0};
    digester.buffer = mmap(NULL, BUFFER_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (digester.buffer == MAP_FAILED) return -errno;
    result_t error = driver.cuModuleLoadData(&digester.module, code);
    if (!error) {
        if (!(error = driver.cuStreamCreate(&digester.stream, NON_BLOCKING))) {
            if (!(error = driver.cuMemAlloc_v2(&digester.key, KEY_BYTES))) {
                if (!(error = driver.cuMemAlloc_v2(&digester.digests, BUFFER_BYTES))) {
                    error = digest_all(&digester, order);
                    driver.cuMemFree_v2(digester.digests);
                }
                driver.cuMemFree_v2(digester.key);
            }
            driver.cuStreamDestroy_v2(digester.stream);
        }
        driver.cuModuleUnload(digester.module);
    }
    munmap(digester.buffer, BUFFER_BYTES);
    return error;
}

static void *carry_out(void *argument) {
    order_t *order = argument;
    context_t popped;
    int mode = RELAXED; /* a thread of the program may capture a graph meanwhile, and must not be disturbed */
    if ((order->error = driver.cuCtxPushCurrent_v2(order->context))) return NULL;
    driver.cuThreadExchangeStreamCaptureMode(&mode);
    order->error = digest_here(order);
    driver.cuCtxPopCurrent_v2(&popped);
    driver.cuThreadExchangeStreamCaptureMode(&mode);
    return NULL;
}

result_t digest_runs(const run_t *runs, uint32_t count, const contexts_t *contexts, int file, uint64_t offset) {
    order_t orders[MAX_GPUS];
    pthread_attr_t attributes;
    int gpus = 0, begun;
    result_t error = SUCCESS;
    for (int device = 0; device < MAX_GPUS; device++)
        if (contexts->of[device]) orders[gpus++] = (order_t){runs, count, contexts->of[device], device, file, offset, SUCCESS, 0};
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    for (begun = 0; begun + 1 < gpus; begun++)
        if (pthread_create(&orders[begun].thread, &attributes, carry_out, &orders[begun])) break;
    pthread_attr_destroy(&attributes);
    for (int i = begun; i < gpus; i++) carry_out(&orders[i]);
    while (begun) pthread_join(orders[--begun].thread, NULL);
    for (int i = 0; i < gpus && !error; i++) error = orders[i].error;
    return error;
}
