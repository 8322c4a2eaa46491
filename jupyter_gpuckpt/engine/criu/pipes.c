/* criu-pipes: part of the library preloaded into CRIU. An ordinary user's pipes may be too many to have their size.
 *
 * Linux counts the buffers of all pipes of a user (/proc/sys/fs/pipe-user-pages-soft, 64 MB). Beyond that a new pipe has room for
 * one or two pages and cannot be made larger. CRIU gives up then, though what it has to copy fits as a rule: most pipes of a
 * program are empty.
 *
 * In `criu dump` a pipe is copied into one of CRIU's own that was to be as large. It is used as it is, and the copy fails where
 * it would not be complete. In `criu restore` a pipe may be smaller than it was: a writer waits earlier for its reader.
 * CRIU's pipes for pages are left alone: it asks about their reading ends, and goes on with the size that they have.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>

#include "preload.h"

#define SET_SIZE 1031 /* F_SETPIPE_SZ */

static int small = -1; /* the writing end of the pipe that could not be made larger, last of all */

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
