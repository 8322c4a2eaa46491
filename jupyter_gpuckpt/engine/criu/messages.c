/* Part of the library that is preloaded into CRIU: unread messages of sockets.
 *
 * In a dump CRIU peeks at them, and refuses every control message (man 3 cmsg) except descriptors. Linux adds the others, for instance
 * times, addresses and credentials, when a message is read, because an option of the socket asks for them. CRIU saves the option, so
 * that they are there again after a restore, and here they are left out.
 */
#include <sys/socket.h>

#include "preload.h"

#define DESCRIPTORS 1 /* SCM_RIGHTS */
#define PIDFD 4       /* SCM_PIDFD */

static unsigned long aligned(unsigned long size) { return (size + sizeof(long) - 1) & ~(sizeof(long) - 1); }

static void keep_descriptors(struct msghdr *message) {
    char *data = message->msg_control;
    unsigned long length = message->msg_controllen, kept = 0;
    for (unsigned long at = 0; at + sizeof(struct cmsghdr) <= length;) {
        struct cmsghdr *one = (struct cmsghdr *)(data + at);
        unsigned long size = one->cmsg_len, step = aligned(size);
        if (size < sizeof *one || size > length - at) break;
        if (step > length - at) step = length - at;
        int is_of_socket = one->cmsg_level == SOL_SOCKET;
        if (is_of_socket && one->cmsg_type == DESCRIPTORS) {
            for (unsigned long i = 0; i < step; i++) data[kept + i] = data[at + i];
            kept += step;
        } else if (is_of_socket && one->cmsg_type == PIDFD) call(SYS_close, *(int *)(one + 1), 0, 0, 0);
        at += step;
    }
    message->msg_controllen = kept;
}

long recvmsg(int fd, struct msghdr *message, int flags) {
    long result = call(SYS_recvmsg, fd, (long)message, flags, 0);
    if (result >= 0 && flags & MSG_PEEK && message->msg_control && is_dump()) keep_descriptors(message);
    return returned(result);
}
