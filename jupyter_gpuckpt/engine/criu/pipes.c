/* criu-pipes: part of the library preloaded into CRIU. It lets CRIU use pipes that cannot be made as large as it wants.
 *
 * Linux limits the buffers of all pipes of an ordinary user (/proc/sys/fs/pipe-user-pages-soft, 64 MB). Beyond the limit a new pipe
 * has room for one or two pages and cannot be made larger. CRIU gives up then, though its data usually fit: most pipes of a
 * program are empty.
 *
 * `criu dump` copies each pipe into a pipe of its own, which should be as large. We let it use a smaller one; the copy fails if it
 * would not be complete. After `criu restore` a pipe may be smaller than it was: a writer then waits earlier for its reader.
 * CRIU's pipes for pages are left alone: CRIU enlarges them by their reading ends, and goes on with the size that they have.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>

#include "preload.h"

#define SET_SIZE 1031 /* F_SETPIPE_SZ */

static int small = -1; /* the writing end of the latest pipe that could not be made larger */

static int is_writing_end(int fd) { return (call(SYS_fcntl, fd, F_GETFL, 0, 0) & O_ACCMODE) == O_WRONLY; }

int fcntl64(int fd, int command, ...) {
    va_list arguments;
    va_start(arguments, command);
    long argument = va_arg(arguments, long);
    va_end(arguments);
    long result = call(SYS_fcntl, fd, command, argument, 0);
    if (command == SET_SIZE && result == -EPERM && (!is_dump() || is_writing_end(fd))) {
        small = fd;
        return (int)argument;
    }
    return (int)returned(result);
}

int fcntl(int, int, ...) __attribute__((alias("fcntl64")));

long tee(int from, int to, unsigned long length, unsigned flags) {
    int there = 0;
    long result = call(SYS_tee, from, to, (long)length, flags);
    if (to == small && result > 0 && call(SYS_ioctl, from, FIONREAD, (long)&there, 0) == 0 && result < there) result = -EPERM;
    return returned(result);
}
