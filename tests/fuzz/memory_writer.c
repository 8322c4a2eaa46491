/* A program that changes its memory in every way that Linux knows, at random, for test_written_pages.py.

   Arguments: a seed; a folder for files on a file system that allows O_DIRECT. It prints the address of its slots, and a line for every
   so many operations. Operations on memory that is not there or may not be written end by SIGSEGV or SIGBUS, and the next one follows. */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <linux/io_uring.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096UL
#define SLOT (2UL << 20)
#define SLOTS 24
#define STABLE 512 /* pages of the memory that threads write all the time */
#define PINNED 64  /* pages of the memory that io_uring has pinned */
#define REPORT 40  /* operations for each line */
#define WRITERS 2

#define MADV_FREE_ 8
#define MADV_COLD_ 20
#define MADV_PAGEOUT_ 21
#define MADV_POPULATE_READ_ 22
#define MADV_POPULATE_WRITE_ 23
#define MADV_COLLAPSE_ 25
#define MADV_GUARD_INSTALL_ 102
#define MADV_GUARD_REMOVE_ 103

static uint64_t state;
static char *const slots = (char *)0x100000000000;
static char *stable, *pinned;
static sigjmp_buf after_fault;
static volatile sig_atomic_t in_operation;
static int random_file, direct_file, data_file, memory_file, pair[2], ring = -1, ring_pipe[2];
static pid_t children[8];
static unsigned child_count;

static uint64_t next(void) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static uint64_t below(uint64_t limit) { return next() % limit; }

static void fault(int number) {
    if (in_operation)
        siglongjmp(after_fault, 1);
    signal(number, SIG_DFL);
}

/* A random range of pages in the slots: mostly short, sometimes a whole slot or several. */
static char *range(size_t *length) {
    uint64_t slot = below(SLOTS);
    char *start = slots + slot * SLOT;
    if (below(6) == 0) {
        *length = SLOT * (1 + below(SLOTS - slot < 3 ? SLOTS - slot : 3));
        return start;
    }
    uint64_t first = below(SLOT / PAGE), most = SLOT / PAGE - first;
    *length = PAGE * (1 + below(most < 64 ? most : 64));
    return start + first * PAGE;
}

static void fill(char *at, size_t length) {
    for (uint64_t *word = (uint64_t *)at; (char *)word < at + length; word += 64)
        *word = next();
}

static void store(void) {
    size_t length;
    char *at = range(&length);
    at += below(length / 8) * 8;
    *(volatile uint64_t *)at = next();
}

static void store_many(void) {
    size_t length;
    char *at = range(&length);
    fill(at, length);
}

static void touch(void) {
    size_t length;
    volatile char *at = range(&length);
    uint64_t sum = 0;
    for (size_t offset = 0; offset < length; offset += PAGE)
        sum += at[offset];
    (void)sum;
}

static void advise(void) {
    static const int kinds[] = {
        MADV_DONTNEED, MADV_DONTNEED, MADV_DONTNEED, MADV_FREE_, MADV_FREE_, MADV_PAGEOUT_, MADV_PAGEOUT_,
        MADV_COLD_, MADV_WILLNEED, MADV_HUGEPAGE, MADV_NOHUGEPAGE, MADV_COLLAPSE_, MADV_POPULATE_READ_,
        MADV_POPULATE_WRITE_, MADV_MERGEABLE, MADV_UNMERGEABLE, MADV_WIPEONFORK, MADV_KEEPONFORK, MADV_DONTFORK,
        MADV_DOFORK, MADV_GUARD_INSTALL_, MADV_GUARD_REMOVE_, MADV_GUARD_REMOVE_, MADV_REMOVE,
    };
    size_t length;
    char *at = range(&length);
    madvise(at, length, kinds[below(sizeof kinds / sizeof *kinds)]);
}

static void map_new(void) {
    size_t length;
    char *at = range(&length);
    int flags = MAP_FIXED | (below(4) ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED | MAP_ANONYMOUS), file = -1;
    uint64_t kind = below(8);
    if (kind < 2) {
        flags = MAP_FIXED | (kind ? MAP_SHARED : MAP_PRIVATE);
        file = below(2) ? data_file : memory_file;
    }
    if (below(3) == 0)
        flags |= MAP_NORESERVE;
    if (below(6) == 0)
        flags |= MAP_POPULATE;
    mmap(at, length, PROT_READ | PROT_WRITE, flags, file, 0);
}

static void unmap(void) {
    size_t length;
    char *at = range(&length);
    munmap(at, length);
}

static void protect(void) {
    static const int kinds[] = {PROT_NONE, PROT_READ, PROT_READ | PROT_WRITE, PROT_READ | PROT_WRITE};
    size_t length;
    char *at = range(&length);
    mprotect(at, length, kinds[below(4)]);
}

/* Moves a range to another place, two ranges past each other, or makes one longer or shorter. */
static void remap(void) {
    size_t length;
    char *from = range(&length), *to = slots + below(SLOTS * SLOT / PAGE - length / PAGE) * PAGE;
    switch (below(6)) {
    case 0:
        mremap(from, length, length + PAGE * below(64), 0);
        return;
    case 1:
        mremap(from, length, PAGE * (1 + below(length / PAGE)), 0);
        return;
    case 2:
        mremap(from, length, length, MREMAP_MAYMOVE | MREMAP_DONTUNMAP | MREMAP_FIXED, to);
        return;
    case 3: { /* exchange two ranges by way of a third place */
        char *aside = mmap(NULL, length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (mremap(from, length, length, MREMAP_MAYMOVE | MREMAP_FIXED, aside) == MAP_FAILED)
            return;
        mremap(to, length, length, MREMAP_MAYMOVE | MREMAP_FIXED, from);
        mremap(aside, length, length, MREMAP_MAYMOVE | MREMAP_FIXED, to);
        return;
    }
    case 4: { /* away, changed there, and back to the same place */
        char *aside = mmap(NULL, length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (mremap(from, length, length, MREMAP_MAYMOVE | MREMAP_FIXED, aside) == MAP_FAILED)
            return;
        *(volatile uint64_t *)(aside + below(length / PAGE) * PAGE) = next();
        mremap(aside, length, length, MREMAP_MAYMOVE | MREMAP_FIXED, from);
        return;
    }
    default:
        mremap(from, length, length, MREMAP_MAYMOVE | MREMAP_FIXED, to);
    }
}

/* Lets Linux write: by reading from files, pipes and sockets, directly from a disk, through another process, and in other calls. */
static void call(void) {
    size_t length;
    char *at = range(&length), *other = at + below(length / PAGE) * PAGE;
    struct iovec one = {at, length < 16 * PAGE ? length : 16 * PAGE}, two = {other, 64};
    switch (below(11)) {
    case 0:
        (void)!read(random_file, at, one.iov_len);
        return;
    case 1:
        (void)!pread(direct_file, at, one.iov_len, PAGE * below(64));
        return;
    case 2:
        (void)!preadv(data_file, &one, 1, PAGE * below(64));
        return;
    case 3:
        (void)!process_vm_writev(getpid(), &(struct iovec){slots + below(SLOTS) * SLOT, 64}, 1, &two, 1, 0);
        return;
    case 4: { /* as a debugger does, also to memory that may not be written */
        int memory = open("/proc/self/mem", O_RDWR | O_CLOEXEC);
        uint64_t value = next();
        (void)!pwrite(memory, &value, sizeof value, (off_t)(uintptr_t)other);
        close(memory);
        return;
    }
    case 5:
        (void)!write(pair[0], &state, sizeof state);
        (void)!recv(pair[1], other, 64, MSG_DONTWAIT);
        return;
    case 6:
        (void)!getrandom(other, 256, 0);
        return;
    case 7:
        syscall(SYS_futex, other, FUTEX_WAKE_OP, 0, 0UL, other, FUTEX_OP(FUTEX_OP_ADD, 1, FUTEX_OP_CMP_EQ, 0));
        return;
    case 8:
        (void)!clock_gettime(CLOCK_MONOTONIC, (struct timespec *)other);
        syscall(SYS_clock_gettime, CLOCK_MONOTONIC, other);
        return;
    case 9: { /* the signal's frame is written to that memory */
        stack_t stack = {.ss_sp = at, .ss_size = 16 * PAGE}, none = {.ss_flags = SS_DISABLE};
        if (length < 16 * PAGE)
            return;
        fill(at, 16 * PAGE); /* or a fault, before there is a signal */
        sigaltstack(&stack, NULL);
        raise(SIGUSR1);
        sigaltstack(&none, NULL);
        return;
    }
    default:
        (void)!syscall(SYS_sched_getaffinity, 0, 128UL, other);
    }
}

static int share_memory(void *at) {
    *(volatile uint64_t *)at = (uint64_t)(uintptr_t)at * 0x9E3779B97F4A7C15 + (uint64_t)getppid();
    _exit(0);
}

/* Children that share pages until they are written, that write to this process's memory, or that have the same memory. */
static void make_child(void) {
    size_t length;
    char *at = range(&length);
    static char stack[4 * PAGE];
    switch (below(4)) {
    case 0: {
        *(volatile char *)at += 1; /* or a fault, here and not in the child */
        pid_t child = clone(share_memory, stack + sizeof stack, CLONE_VM | CLONE_VFORK | SIGCHLD, at);
        waitpid(child, NULL, 0);
        return;
    }
    case 1: {
        pid_t child = fork();
        if (child == 0) {
            uint64_t value = next();
            process_vm_writev(getppid(), &(struct iovec){&value, 8}, 1, &(struct iovec){at, 8}, 1, 0);
            _exit(0);
        }
        waitpid(child, NULL, 0);
        return;
    }
    default:
        if (child_count == sizeof children / sizeof *children || (child_count && below(2))) {
            pid_t child = children[--child_count];
            kill(child, SIGKILL);
            waitpid(child, NULL, 0);
            return;
        }
        children[child_count] = fork();
        if (children[child_count] == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            close(1);
            for (int i = 0; i < 50; i++) {
                in_operation = 1;
                if (sigsetjmp(after_fault, 1) == 0)
                    store_many();
            }
            for (;;)
                pause();
        }
        child_count++;
    }
}

static void use_heap(void) {
    static char *kept[64];
    unsigned number = below(64);
    free(kept[number]);
    size_t length = below(8) ? below(4 * PAGE) + 8 : below(256 * PAGE) + 8;
    kept[number] = malloc(length);
    memset(kept[number], (int)next(), length);
    if (below(8) == 0) {
        char *end = sbrk((intptr_t)((1 + below(16)) * PAGE));
        if (end != (void *)-1 && below(2))
            (void)!sbrk(-(intptr_t)PAGE);
    }
}

/* What threads write all the time, emptied and moved to the disk below them. */
static void disturb_stable(void) {
    static const int kinds[] = {MADV_DONTNEED, MADV_FREE_, MADV_PAGEOUT_, MADV_COLD_, MADV_COLLAPSE_};
    size_t first = below(STABLE), count = 1 + below(STABLE - first);
    madvise(stable + first * PAGE, count * PAGE, kinds[below(5)]);
}

static void *write_stable(void *seed) {
    uint64_t mine = (uint64_t)(uintptr_t)seed;
    for (;;) {
        mine = mine * 6364136223846793005 + 1442695040888963407;
        *(volatile uint64_t *)(stable + (mine >> 20) % (STABLE * PAGE / 8) * 8) = mine;
        if ((mine >> 40) % 64 == 0)
            usleep(100);
    }
    return NULL;
}

/* A ring with one registered, thus pinned buffer: Linux writes to it without asking the page tables. */
static void *submissions, *completions;
static struct io_uring_params parameters;

static void make_ring(void) {
    ring = (int)syscall(SYS_io_uring_setup, 8, &parameters);
    if (ring < 0)
        return;
    size_t length = parameters.sq_off.array + parameters.sq_entries * sizeof(unsigned);
    void *head = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring, IORING_OFF_SQ_RING);
    submissions = mmap(NULL, parameters.sq_entries * sizeof(struct io_uring_sqe), PROT_READ | PROT_WRITE,
                       MAP_SHARED | MAP_POPULATE, ring, IORING_OFF_SQES);
    completions = head;
    struct iovec buffer = {pinned, PINNED * PAGE};
    if (syscall(SYS_io_uring_register, ring, IORING_REGISTER_BUFFERS, &buffer, 1) < 0)
        ring = -1;
}

static void write_pinned(void) {
    if (ring < 0)
        return;
    char *head = completions;
    uint64_t data[64];
    for (int i = 0; i < 64; i++)
        data[i] = next();
    (void)!write(ring_pipe[1], data, sizeof data);
    unsigned *tail = (unsigned *)(head + parameters.sq_off.tail), mask = *(unsigned *)(head + parameters.sq_off.ring_mask);
    unsigned *array = (unsigned *)(head + parameters.sq_off.array);
    struct io_uring_sqe *entry = (struct io_uring_sqe *)submissions + (*tail & mask);
    *entry = (struct io_uring_sqe){
        .opcode = IORING_OP_READ_FIXED,
        .fd = ring_pipe[0],
        .addr = (uint64_t)(uintptr_t)(pinned + below(PINNED) * PAGE),
        .len = sizeof data,
        .off = (uint64_t)-1,
    };
    array[*tail & mask] = *tail & mask;
    __atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
    syscall(SYS_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0);
    /* The results are not looked at; the queue is emptied. */
    __atomic_store_n((unsigned *)(head + parameters.cq_off.head),
                     __atomic_load_n((unsigned *)(head + parameters.cq_off.tail), __ATOMIC_ACQUIRE), __ATOMIC_RELEASE);
}

static int file_of(const char *folder, const char *name, int flags) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    int made = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    static char page[PAGE];
    for (int i = 0; i < 1024; i++) {
        fill(page, PAGE);
        (void)!write(made, page, PAGE);
    }
    fsync(made);
    close(made);
    return open(path, O_RDWR | O_CLOEXEC | flags);
}

static void ignore(int number) { (void)number; }

int main(int count, char **arguments) {
    static void (*const operations[])(void) = {
        store, store, store, store, store_many, store_many, touch, touch, advise, advise, advise, map_new, unmap, protect,
        remap, remap, call, call, call, make_child, use_heap, use_heap, disturb_stable, write_pinned,
    };
    if (count != 3)
        return 2;
    state = strtoull(arguments[1], NULL, 10) * 2654435761 + 88172645463325252;
    direct_file = file_of(arguments[2], "direct", O_DIRECT);
    if (direct_file < 0)
        direct_file = file_of(arguments[2], "direct", 0);
    data_file = file_of(arguments[2], "data", 0);
    memory_file = memfd_create("shared", MFD_CLOEXEC);
    (void)!ftruncate(memory_file, 3 * SLOT);
    random_file = open("/dev/urandom", O_RDONLY | O_CLOEXEC);
    (void)!socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
    (void)!pipe(ring_pipe);
    stable = mmap(NULL, STABLE * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    pinned = mmap(NULL, PINNED * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    mmap(slots, SLOTS * SLOT, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    madvise(slots + 4 * SLOT, 4 * SLOT, MADV_HUGEPAGE);
    fill(slots, SLOTS / 2 * SLOT);
    make_ring();
    struct sigaction action = {.sa_handler = fault, .sa_flags = SA_NODEFER}, other = {.sa_handler = ignore, .sa_flags = SA_ONSTACK};
    sigaction(SIGSEGV, &action, NULL);
    sigaction(SIGBUS, &action, NULL);
    sigaction(SIGUSR1, &other, NULL);
    for (uintptr_t number = 0; number < WRITERS; number++) {
        pthread_t thread;
        pthread_create(&thread, NULL, write_stable, (void *)(state + number));
    }
    printf("%p %p %d\n", (void *)slots, (void *)pinned, ring);
    fflush(stdout);
    for (unsigned long done = 1;; done++) {
        in_operation = 1;
        if (sigsetjmp(after_fault, 1) == 0)
            operations[below(sizeof operations / sizeof *operations)]();
        in_operation = 0;
        if (done % REPORT == 0) {
            /* Lost slots come back, so that there is something to change. */
            if (done % (REPORT * 16) == 0) {
                char *slot = slots + below(SLOTS) * SLOT;
                mmap(slot, SLOT, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
                fill(slot, SLOT);
            }
            printf("%lu\n", done);
            fflush(stdout);
        }
    }
}
