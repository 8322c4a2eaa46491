/* criu-preload: preloaded into CRIU.
 *
 * In `criu dump` it answers some of CRIU's questions about a task differently from Linux.
 *
 * Pages. A skeleton dump needs no page, but CRIU still pins every page in pipes (0.1 s and 500 descriptors per GB) and then
 * drops it. The areas in the file that GPUCKPT_HIDDEN names (written when all tasks stand still) look empty to its
 * PAGEMAP_SCAN (Documentation/admin-guide/mm/pagemap.rst); their pages are entered into its pagemap images afterwards. The other
 * side is hidden_pages.py. The request is defined here, because many distributions have older headers.
 *
 * Seccomp filters. A task has at least the filters that init has, and inherits them again at a restore. CRIU would save them
 * and add them once more each time. A task with exactly GPUCKPT_FILTERS filters has none in the /proc/PID/status that CRIU
 * reads. The other side is host/seccomp.py.
 *
 * Large copies. CRIU copies a table with room for 16 bytes for each page of private memory, and reserved addresses count as well: with
 * CUDA and 24 GB on the GPU the copy takes 0.15 s. It has filled only the beginning, so pages that were never written are not copied.
 *
 * Mapped files whose name is gone. Opening /proc/PID/map_files needs a capability in the initial user namespace. If Linux refuses,
 * CRIU gets the path that GPUCKPT_GONE lists for the file. The other side is deleted_files.py.
 *
 * In `criu restore` it makes the keeper adopt orphans from the beginning. CRIU forks a process whose session is not its parent's
 * from a helper. When the helper ends, CRIU expects the tree's root to get the process (`prepare_pstree_ids`), but it makes the keeper
 * a subreaper only later. Without this library init would get a daemonised child, which would stay stopped and be missing in the next
 * snapshot. The library also lets CRIU continue in a user namespace without uid 0, which CRIU would become.
 */
#include <stdarg.h>
#include <sys/syscall.h>

#include "preload.h"

#define SET_CHILD_SUBREAPER 36 /* prctl */
#define INIT 1
#define EPERM_ -1
#define EINVAL_ -22
#define PAGEMAP_SCAN_ 0xc0606610UL
#define GUARD (1UL << 8)
#define MAX_AREAS 65536
#define MAX_WAYS 4096
#define MAX_KEPT 1024
#define CONTENT (1UL << 63) /* in the pid of a way */
#define SCRATCH "/dev/shm/.gpuckpt/"
#define PAGE 4096UL
#define BATCH 512UL
#define LARGE_COPY (8UL << 20)
#define IS_THERE (3UL << 62) /* of an entry of pagemap: the page is in memory, or swapped out */

struct region { unsigned long start, end, categories; };
struct scan {
    unsigned long size, flags, start, end, walk_end, vec, vec_len, max_pages;
    unsigned long category_inverted, category_mask, category_anyof_mask, return_mask;
};
struct area { unsigned long pid, start, end; }; /* sorted by pid and start */
struct way { unsigned long pid, start, end; char path[232]; };

static struct area areas[MAX_AREAS];
static long count = -1;
static struct way ways[MAX_WAYS];
static long way_count = -1;

static unsigned long number(const char *text) {
    unsigned long value = 0;
    for (; *text >= '0' && *text <= '9'; text++) value = value * 10 + (unsigned long)(*text - '0');
    return value;
}

/* Read the lists once they exist: CRIU also scans itself, before the action script has let it begin. */
static void load(void) {
    const char *path = variable("GPUCKPT_HIDDEN=");
    if (!path) return;
    long got = read_file(path, areas, sizeof areas);
    if (got >= 0) count = got / (long)sizeof(struct area);
}

static void descriptor_path(int fd, char path[40]) {
    static const char head[] = "/proc/self/fd/";
    char digits[12];
    int n = 0, at = 0;
    for (; head[at]; at++) path[at] = head[at];
    for (int rest = fd; rest || !n; rest /= 10) digits[n++] = (char)('0' + rest % 10);
    while (n) path[at++] = digits[--n];
    path[at] = 0;
}

/* Read the target of a descriptor from /proc; return its length, 0 if it cannot be read. */
static long link_of(int fd, char *link, long room) {
    char path[40];
    descriptor_path(fd, path);
    long length = call(SYS_readlink, (long)path, (long)link, room - 1, 0);
    if (length <= 0) return 0;
    link[length] = 0;
    return length;
}

/* Return PID if the descriptor's file is "/proc/PID/pagemap"; 0 for any other file. */
static unsigned long pid_of(int fd) {
    char link[64];
    return link_of(fd, link, sizeof link) > 6 ? number(link + 6) : 0;
}

static long scan(int fd, struct scan *whole, unsigned long pid) {
    unsigned long at = whole->start, found = 0;
    while (at < whole->end && found < whole->vec_len) {
        unsigned long stop = whole->end, skip = 0;
        for (long i = 0; i < count; i++) {
            if (areas[i].pid != pid || areas[i].end <= at) continue;
            if (areas[i].start <= at) skip = areas[i].end;
            else if (areas[i].start < stop) stop = areas[i].start;
            break;
        }
        if (skip) {
            at = skip < whole->end ? skip : whole->end;
            continue;
        }
        struct scan part = *whole;
        part.start = at, part.end = stop, part.walk_end = 0;
        part.vec = whole->vec + found * sizeof(struct region), part.vec_len = whole->vec_len - found;
        long result = call(SYS_ioctl, fd, PAGEMAP_SCAN_, (long)&part, 0);
        if (result < 0) return result;
        found += (unsigned long)result;
        at = part.walk_end;
        if (at < stop) break; /* the result buffer is full */
    }
    whole->walk_end = at;
    return (long)found;
}

int ioctl(int fd, unsigned long request, ...) {
    va_list arguments;
    va_start(arguments, request);
    void *argument = va_arg(arguments, void *);
    va_end(arguments);
    long result;
    unsigned long pid;
    struct scan *whole = argument;
    int pages = request == PAGEMAP_SCAN_ && !((whole->category_mask & ~whole->category_inverted) & GUARD) &&
                !(whole->category_anyof_mask & GUARD) && whole->vec && !whole->max_pages;
    if (pages && count < 0) load();
    if (pages && count > 0 && (pid = pid_of(fd))) result = scan(fd, whole, pid);
    else result = call(SYS_ioctl, fd, (long)request, (long)argument, 0);
    return (int)returned(result);
}

/* Return where `text` begins in the first `length` bytes; 0 if it is not there. */
static char *find(char *data, long length, const char *text) {
    for (char *end = data + length; data < end; data++) {
        const char *wanted = text;
        char *at = data;
        while (*wanted && at < end && *at == *wanted) at++, wanted++;
        if (!*wanted) return data;
    }
    return 0;
}

static int is_status(int fd) {
    char link[64];
    long length = link_of(fd, link, sizeof link);
    return length > 13 && find(link, 6, "/proc/") && find(link + length - 7, 7, "/status");
}

/* Lines of a status file: "Seccomp:\t2", "Seccomp_filters:\t1". */
static void hide_filters(int fd, char *data, long length) {
    static const char mode[] = "\nSeccomp:\t2", filters[] = "\nSeccomp_filters:\t";
    const char *inherited = variable("GPUCKPT_FILTERS=");
    char *at = find(data, length, mode), *of = find(data, length, filters);
    if (!inherited || !at || !of || number(of + sizeof filters - 1) != number(inherited) || !is_status(fd)) return;
    at[sizeof mode - 2] = '0';
    for (char *digit = of + sizeof filters - 1; *digit >= '0' && *digit <= '9'; digit++) *digit = '0';
}

long read(int fd, void *data, unsigned long size) {
    long result = call(SYS_read, fd, (long)data, (long)size, 0);
    if (result > 0) hide_filters(fd, data, result);
    return returned(result);
}

/* In a user namespace of its own CRIU may have any uid, and uid 0 may not exist. Then Linux refuses calls that CRIU makes before it
 * restores anything. To ignore that is harmless: every task sets and compares its own credentials later, without functions of libc. */
static int harmless(long result) { return result == EPERM_ || result == EINVAL_ ? 0 : (int)returned(result); }

int setuid(unsigned id) { return harmless(call(SYS_setuid, (long)id, 0, 0, 0)); }
int setgid(unsigned id) { return harmless(call(SYS_setgid, (long)id, 0, 0, 0)); }
int setgroups(unsigned long size, const unsigned *list) { return harmless(call(SYS_setgroups, (long)size, (long)list, 0, 0)); }

static void load_ways(void) {
    const char *path = variable("GPUCKPT_GONE=");
    long got = path ? read_file(path, ways, sizeof ways) : 0;
    way_count = got > 0 ? got / (long)sizeof(struct way) : 0;
}

/* Open a file by its listed path. A substitute is unlinked at once, so that the images have a deleted file; it stays open for others. */
static long open_way(struct way *way, int flags) {
    static struct { const char *path; int fd; } kept[MAX_KEPT];
    char link[40];
    if (!find(way->path, sizeof SCRATCH, SCRATCH)) return call(SYS_open, (long)way->path, flags, 0, 0);
    for (int i = 0; i < MAX_KEPT; i++) {
        if (!kept[i].path) {
            long fd = call(SYS_open, (long)way->path, 02000002 /* O_CLOEXEC, O_RDWR */, 0, 0);
            if (fd < 0) return fd;
            call(SYS_unlink, (long)way->path, 0, 0, 0);
            kept[i].path = way->path, kept[i].fd = (int)fd;
        }
        const char *a = kept[i].path, *b = way->path;
        while (*a && *a == *b) a++, b++;
        if (*a != *b) continue;
        descriptor_path(kept[i].fd, link);
        return call(SYS_open, (long)link, flags, 0, 0);
    }
    return -24; /* EMFILE */
}

/* Open the file of "START-END" in /proc/PID/map_files by the listed path after a refusal; return the refusal if none is listed.
 * By the name "map_files/START-END" CRIU asks for the content of shared anonymous memory. */
static long open_mapped(int directory, const char *name, int flags, long refusal) {
    static const char folder[] = "map_files/";
    char link[64];
    int is_content = find((char *)name, sizeof folder - 1, folder) != 0;
    if (is_content) name += sizeof folder - 1;
    unsigned long start = hexadecimal(&name), end, pid;
    if (*name++ != '-') return refusal;
    end = hexadecimal(&name);
    long length = *name ? 0 : link_of(directory, link, sizeof link);
    if (length < 7 || !find(link, 6, "/proc/")) return refusal;
    if (!is_content && (length < 16 || !find(link + length - 10, 10, "/map_files"))) return refusal;
    pid = number(link + 6) | (is_content ? CONTENT : 0);
    if (way_count < 0) load_ways();
    for (long i = 0; i < way_count; i++)
        if (ways[i].pid == pid && ways[i].start == start && ways[i].end == end) return open_way(&ways[i], flags);
    return refusal;
}

int openat64(int directory, const char *name, int flags, ...) {
    va_list arguments;
    va_start(arguments, flags);
    unsigned mode = va_arg(arguments, unsigned);
    va_end(arguments);
    long result = call(SYS_openat, directory, (long)name, flags, mode);
    if (result == EPERM_) result = open_mapped(directory, name, flags, result);
    return (int)returned(result);
}

static void copy(char *to, const char *from, unsigned long size) {
    __asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(size) : : "memory");
}

static void clear(char *to, unsigned long size) {
    __asm__ volatile("rep stosb" : "+D"(to), "+c"(size) : "a"(0) : "memory");
}

/* Clear memory, but no page that is not there yet: such a page is zeros. */
static void clear_pages(char *to, unsigned long size) {
    unsigned char there[BATCH];
    unsigned long before = -(unsigned long)to & (PAGE - 1);
    if (before > size) before = size;
    clear(to, before);
    to += before, size -= before;
    while (size >= PAGE) {
        unsigned long pages = size / PAGE < BATCH ? size / PAGE : BATCH;
        int known = call(SYS_mincore, (long)to, (long)(pages * PAGE), (long)there, 0) == 0;
        for (unsigned long i = 0; i < pages; i++)
            if (!known || there[i] & 1) clear(to + i * PAGE, PAGE);
        to += pages * PAGE, size -= pages * PAGE;
    }
    clear(to, size);
}

/* Return whether one area of this process, without a file, contains this memory. Lines of maps: "START-END PERMS OFFSET DEV INODE". */
static int is_anonymous(const char *from, unsigned long size) {
    static char maps[1 << 16];
    long length = read_file("/proc/self/maps", maps, sizeof maps - 1);
    if (length <= 0) return 0;
    maps[length] = 0;
    for (const char *at = maps; *at; at++) {
        unsigned long start = hexadecimal(&at), end;
        if (*at++ != '-') return 0;
        end = hexadecimal(&at);
        if (start <= (unsigned long)from && (unsigned long)from + size <= end) {
            for (int words = 0; words < 4; words++) {
                while (*at && *at != ' ') at++;
                while (*at == ' ') at++;
            }
            return at[0] == '0' && (at[1] == ' ' || at[1] == '\n');
        }
        while (*at && *at != '\n') at++;
        if (!*at) return 0;
    }
    return 0;
}

/* Copy private anonymous memory. What was never written of it is zeros. */
static void copy_written(char *to, const char *from, unsigned long size, int pagemap) {
    unsigned long entries[BATCH], at = (unsigned long)from, end = at + size;
    char *target = to, *cleared = to; /* from there to `target` only zeros follow */
    while (at < end) {
        unsigned long first = at / PAGE, pages = (end - 1) / PAGE - first + 1;
        if (pages > BATCH) pages = BATCH;
        long got = call(SYS_pread64, pagemap, (long)entries, (long)(pages * sizeof *entries), (long)(first * sizeof *entries));
        for (unsigned long i = 0; i < pages; i++) {
            unsigned long stop = (first + i + 1) * PAGE < end ? (first + i + 1) * PAGE : end;
            if (got < (long)((i + 1) * sizeof *entries) || entries[i] & IS_THERE) {
                clear_pages(cleared, (unsigned long)(target - cleared));
                copy(target, (const char *)at, stop - at);
                cleared = target + (stop - at);
            }
            target += stop - at;
            at = stop;
        }
    }
    clear_pages(cleared, (unsigned long)(target - cleared));
}

void *memcpy(void *to, const void *from, unsigned long size) {
    int is_large = size >= LARGE_COPY && is_dump() && is_anonymous(from, size);
    long pagemap = is_large ? call(SYS_open, (long)"/proc/self/pagemap", 02000000 /* O_CLOEXEC */, 0, 0) : -1;
    if (pagemap < 0) copy(to, from, size);
    else {
        copy_written(to, from, size, (int)pagemap);
        call(SYS_close, pagemap, 0, 0, 0);
    }
    return to;
}

/* Only the keeper has init as its parent when it makes its session, and that is before it has children. */
int setsid(void) {
    long session = call(SYS_setsid, 0, 0, 0, 0);
    if (session < 0) return (int)returned(session);
    if (call(SYS_getppid, 0, 0, 0, 0) == INIT) call(SYS_prctl, SET_CHILD_SUBREAPER, 1, 0, 0);
    return (int)session;
}
