/* criu-pages: preloaded into `criu dump`; hides pages that we list ourselves from CRIU's look at a task's memory.
 *
 * A skeleton dump needs no page, but CRIU still pins every one in pipes (0.1 s and 500 descriptors per GB) before it forgets
 * them. The areas in the file that GPUCKPT_HIDDEN names (written when all tasks stand still) look empty to its PAGEMAP_SCAN
 * (Documentation/admin-guide/mm/pagemap.rst); their pages are put into its pagemap images afterwards. The other side of this
 * is hidden_pages.py. Without libc's headers for the request: they are younger than many distributions.
 */
#include <stdarg.h>
#include <sys/syscall.h>

#define PAGEMAP_SCAN_ 0xc0606610UL
#define GUARD (1UL << 8)
#define MAX_AREAS 65536

struct region { unsigned long start, end, categories; };
struct scan {
    unsigned long size, flags, start, end, walk_end, vec, vec_len, max_pages;
    unsigned long category_inverted, category_mask, category_anyof_mask, return_mask;
};
struct area { unsigned long pid, start, end; }; /* sorted by pid and start */

extern char **environ;
int *__errno_location(void);

static struct area areas[MAX_AREAS];
static long count = -1;

static long call(long number, long a, long b, long c, long d) {
    long result;
    register long r10 __asm__("r10") = d;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10) : "rcx", "r11", "memory");
    return result;
}

/* Read when the file is there: CRIU also scans itself, before it asks whether it may begin. */
static void load(void) {
    static const char name[] = "GPUCKPT_HIDDEN=";
    for (char **variable = environ; variable && *variable; variable++) {
        const char *text = *variable;
        unsigned i = 0;
        while (i < sizeof name - 1 && text[i] == name[i]) i++;
        if (i < sizeof name - 1) continue;
        long fd = call(SYS_open, (long)(text + i), 02000000 /* O_CLOEXEC */, 0, 0), got = 0, part;
        if (fd < 0) return;
        while (got < (long)sizeof areas && (part = call(SYS_read, fd, (long)areas + got, sizeof areas - got, 0)) > 0) got += part;
        call(SYS_close, fd, 0, 0, 0);
        count = got / (long)sizeof(struct area);
        return;
    }
}

/* The pid in "/proc/PID/pagemap", which the descriptor stands for; 0 if it is something else. */
static unsigned long pid_of(int fd) {
    char path[40] = "/proc/self/fd/", link[64] = "", digits[12];
    unsigned long pid = 0;
    int n = 0, at = 14;
    for (int rest = fd; rest || !n; rest /= 10) digits[n++] = (char)('0' + rest % 10);
    while (n) path[at++] = digits[--n];
    path[at] = 0;
    if (call(SYS_readlink, (long)path, (long)link, sizeof link - 1, 0) <= 6) return 0;
    for (const char *c = link + 6; *c >= '0' && *c <= '9'; c++) pid = pid * 10 + (unsigned long)(*c - '0');
    return pid;
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
        if (at < stop) break; /* no room for more */
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
    if (result < 0) {
        *__errno_location() = (int)-result;
        return -1;
    }
    return (int)result;
}
