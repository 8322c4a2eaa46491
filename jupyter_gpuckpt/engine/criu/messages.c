/* Part of the library that is preloaded into CRIU: unread messages of sockets.
 *
 * In a dump CRIU peeks at them, and refuses every control message (man 3 cmsg) except descriptors. Linux adds the others, for instance
 * times, addresses and credentials, when a message is read, because an option of the socket asks for them. CRIU saves the option, so
 * that they are there again after a restore, and here they are left out.
 *
 * It takes an empty message for the end, and would leave out all that comes after it. So it gets the next one: Linux leaves out empty
 * messages that were peeked at. An error of the socket, which Linux tells once, is no error of CRIU's reading: it reads again.
 *
 * It looks for messages only where Linux reports unread bytes, but for datagrams that is the length of the first message (man 7
 * sock_diag, UNIX_DIAG_RQLEN; unix_inq_len in net/unix/af_unix.c). So a socket of datagrams never has none here.
 */
#define _GNU_SOURCE /* POLLRDHUP */
#include <asm/errno.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/sock_diag.h>
#include <linux/unix_diag.h>
#include <poll.h>
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

/* Of sockets whose messages have borders. At the end of such a connection nothing can be told from an empty message. */
static int is_empty_message(int fd) {
    int kind = SOCK_STREAM;
    socklen_t length = sizeof kind;
    getsockopt(fd, SOL_SOCKET, SO_TYPE, &kind, &length);
    struct pollfd end = {.fd = fd, .events = POLLRDHUP};
    return kind != SOCK_STREAM && call(SYS_poll, (long)&end, 1, 0, 0) == 0;
}

static int is_number(int fd, int option, int wanted) {
    int found = -1;
    socklen_t length = sizeof found;
    return getsockopt(fd, SOL_SOCKET, option, &found, &length) == 0 && found == wanted;
}

static void report_datagrams(char *data, long length) {
    for (struct nlmsghdr *one = (struct nlmsghdr *)data; NLMSG_OK(one, length); one = NLMSG_NEXT(one, length)) {
        struct unix_diag_msg *found = NLMSG_DATA(one);
        int left = one->nlmsg_len - NLMSG_LENGTH(sizeof *found);
        if (one->nlmsg_type != SOCK_DIAG_BY_FAMILY || left < 0 || found->udiag_family != AF_UNIX || found->udiag_type != SOCK_DGRAM)
            continue;
        struct rtattr *part = (struct rtattr *)((char *)found + NLMSG_ALIGN(sizeof *found));
        for (; RTA_OK(part, left); part = RTA_NEXT(part, left)) {
            struct unix_diag_rqlen *queue = RTA_DATA(part);
            if (part->rta_type == UNIX_DIAG_RQLEN && RTA_PAYLOAD(part) >= sizeof *queue && !queue->udiag_rqueue) queue->udiag_rqueue = 1;
        }
    }
}

long recvmsg(int fd, struct msghdr *message, int flags) {
    long result = call(SYS_recvmsg, fd, (long)message, flags, 0);
    if (result > 0 && !flags && is_dump() && is_number(fd, SO_DOMAIN, AF_NETLINK) && is_number(fd, SO_PROTOCOL, NETLINK_SOCK_DIAG))
        report_datagrams(message->msg_iov->iov_base, result);
    if (!(flags & MSG_PEEK) || !is_dump()) return returned(result);
    if (result == -ECONNRESET || (result == 0 && is_empty_message(fd))) return recvmsg(fd, message, flags);
    if (result >= 0 && message->msg_control) keep_descriptors(message);
    return returned(result);
}
