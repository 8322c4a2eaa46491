/* page-copy: puts a piece of a process's memory in place, in one call without Python's lock.
 *
 * A chunk often goes to several areas, and UFFDIO_COPY (man ioctl_userfaultfd) stops at pages that are there and at the end of
 * an area: what that means for the rest is decided here. Called by page_filler.py from many threads at once.
 */
#include <errno.h>
#include <sys/ioctl.h>

#define UFFDIO_COPY_ 0xc028aa03UL
#define PAGE 4096UL

typedef unsigned long long u64;

struct extent { u64 offset, address, length; }; /* sorted by offset, without gaps */
struct copy { u64 to, from, length, mode; long long copied; };

static int copy(int fd, u64 to, u64 from, u64 size, int patient) {
    u64 step = size;
    while (size) {
        struct copy call = {to, from, step, 0, 0};
        long long copied;
        if (ioctl(fd, UFFDIO_COPY_, &call) == 0) copied = (long long)step;
        else if (call.copied > 0) copied = call.copied;
        else if (errno == EEXIST) copied = PAGE; /* a fault brought this page in */
        else if (errno == EAGAIN && patient) continue;
        else if (errno == ENOENT && step > PAGE) { /* it spans two areas of the process: one call cannot serve both */
            step = (step / 2 + PAGE - 1) / PAGE * PAGE;
            continue;
        } else return errno;
        to += (u64)copied, from += (u64)copied, size -= (u64)copied;
        step = size;
    }
    return 0;
}

/* The `size` bytes at `from` go to `offset` of the sequence that the extents make; 0, or what the system said: EAGAIN, unless
 * `patient`, while the process's areas are being changed. */
int copy_pages(int fd, const struct extent *extents, long count, u64 offset, const void *from, u64 size, int patient) {
    long low = 0, high = count - 1;
    while (low < high) {
        long middle = (low + high + 1) / 2;
        if (extents[middle].offset <= offset) low = middle;
        else high = middle - 1;
    }
    for (u64 done = 0; done < size; low++) {
        if (low >= count) return ERANGE;
        u64 within = offset + done - extents[low].offset, part = extents[low].length - within;
        if (part > size - done) part = size - done;
        int failed = copy(fd, extents[low].address + within, (u64)from + done, part, patient);
        if (failed) return failed;
        done += part;
    }
    return 0;
}
