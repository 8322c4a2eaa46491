/* gpuckpt-init: the two processes above every kernel, CRIU's action script, and the way into a kernel's namespaces.
 *
 *   gpuckpt-init launch  IDS EXIT_PATH TMPFS_BYTES SHM IO_URING UMASK LOG -- KERNEL...
 *   gpuckpt-init restore IDS EXIT_PATH TMPFS_BYTES SHM IO_URING KEEPER_PID - -- CRIU...
 *   gpuckpt-init keeper  UMASK CWD_FD -- KERNEL...           (internal: from the scratch tmpfs)
 *   gpuckpt-init enter   PID PROGRAM...                      (CRIU, in the namespaces of the init PID)
 *   gpuckpt-init bind    PID SOURCE TARGET                   (a bind mount there)
 *   notify                                                   (by name: CRIU's --action-script)
 *
 * IDS is "-" for a kernel in the caller's user namespace, for which the caller needs rights, or "UID:GID": then the kernel gets a
 * user namespace of its own, in which the caller has these ids and the kernel has no capability.
 *
 * The caller's side is engine/tree/launch.py. init is PID 1 of fresh PID and mount namespaces, is not part of a snapshot and
 * writes the keeper's wait status to EXIT_PATH. The keeper is the root of what CRIU freezes: a subreaper, so that
 * daemonised children stay inside the tree; it ends the way the kernel ends, so that init sees the kernel's wait status.
 * The keeper runs from a file on the scratch tmpfs, which travels with the snapshot: a snapshot does not depend on the
 * version of this package that is installed when it is resumed.
 *
 * Messages on standard output, one line each: "init PID" (the host pid, written by init's parent), "ready" (mounts exist), then
 * "started" (launch) or "criu STATUS" (restore; wait status), or "error STEP: TEXT". After "ready" it waits for the line
 * "go LAST_PID" on standard input, while the caller fills the scratch tmpfs; the first process it starts gets LAST_PID + 1. With
 * "go LAST_PID MONOTONIC BOOTTIME" (each as seconds, blank, nanoseconds) init sets its clocks to these readings, because CRIU
 * restores clocks only in its own user namespace.
 */
#define _GNU_SOURCE
#include "namespaces.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/magic.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SHM "/dev/shm"
#define SCRATCH SHM "/.gpuckpt"
#define KEEPER SCRATCH "/keeper"
#define NOTIFY SCRATCH "/notify"
#define HOLD SCRATCH "/hold.socket"
#define UNUSED_LANDLOCK SCRATCH "/landlock-unused"
#define NR_LANDLOCK_RESTRICT_SELF 446 /* older headers lack it */
#ifndef CLONE_NEWTIME
#define CLONE_NEWTIME 0x00000080
#endif

/* Give the kernel terminals (ptys) of its own, numbered from 0: a snapshot's numbers are free wherever it is resumed, also beside the
 * kernel that was saved. Where that is forbidden, the kernel uses the machine's. The group "tty" does not exist in every user namespace.
 * Opening /dev/ptmx uses the instance at /dev/pts, unless /dev/ptmx is itself a mount from another instance (fs/devpts/inode.c,
 * devpts_acquire). */
static void make_terminals(void) {
    struct stat file;
    struct statfs system;
    if (mount("devpts", "/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, "ptmxmode=0666,mode=620,gid=5") &&
        mount("devpts", "/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, "ptmxmode=0666,mode=620"))
        return;
    if (lstat("/dev/ptmx", &file) || S_ISLNK(file.st_mode) || statfs("/dev/ptmx", &system)) return;
    if (system.f_type == DEVPTS_SUPER_MAGIC && mount("/dev/pts/ptmx", "/dev/ptmx", NULL, MS_BIND, NULL))
        umount2("/dev/pts", MNT_DETACH); /* both, or none */
}

/* Make a mount namespace with a private /proc, private terminals, the scratch tmpfs and, below it, a tmpfs with huge pages for GPU
 * memory. The mount point of scratch must exist for every user, so it is a directory in /dev/shm. Scratch itself has no huge pages:
 * each of CRIU's many small images would take 2 MB. The mounts are slaves: none of them reaches the host. */
static void make_mounts(const char *bytes, const char *shm) {
    char options[128], path[32];
    if (unshare(CLONE_NEWNS)) fail("mount namespace");
    if (mount(NULL, "/", NULL, MS_SLAVE | MS_REC, NULL)) fail("private mounts");
    if (mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL)) fail("mount /proc");
    make_terminals();
    if (!strcmp(shm, "private")) {
        snprintf(options, sizeof options, "mode=1777,size=%s", bytes);
        if (mount("gpuckpt-shm", SHM, "tmpfs", MS_NOSUID | MS_NODEV, options)) fail("mount " SHM);
    }
    /* In a shared /dev/shm the directory may be anybody's, but what is mounted on it is ours. */
    if (mkdir(SCRATCH, 0755) && errno != EEXIST) fail("mkdir " SCRATCH);
    int place = open(SCRATCH, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (place < 0) fail("open " SCRATCH);
    snprintf(path, sizeof path, "/proc/self/fd/%d", place);
    snprintf(options, sizeof options, "mode=0755,size=%s", bytes);
    if (mount("gpuckpt", path, "tmpfs", MS_NOSUID | MS_NODEV, options)) fail("mount " SCRATCH);
    close(place);
    if (mkdir(SCRATCH "/gpu", 0700) || mkdir(SCRATCH "/images", 0700) || mkdir(SCRATCH "/ferry", 0700)) fail("mkdir in " SCRATCH);
    snprintf(options, sizeof options, "mode=0700,size=%s,huge=always", bytes);
    if (mount("gpuckpt-gpu", SCRATCH "/gpu", "tmpfs", MS_NOSUID | MS_NODEV, options)) {
        snprintf(options, sizeof options, "mode=0700,size=%s", bytes);
        if (mount("gpuckpt-gpu", SCRATCH "/gpu", "tmpfs", MS_NOSUID | MS_NODEV, options)) fail("mount " SCRATCH "/gpu");
    }
}

/* The descriptor by which Linux asks before each landlock_restrict_self below init, -1 if it does not. */
static int landlock_questions = -1;

/* Set the seccomp filter that all processes below init inherit, including CRIU and the tasks that it restores. CRIU's dump does not see it
 * (engine/criu/preload.c). It has two rules.
 *
 * CRIU cannot save io_uring. Unless that is allowed, programs do not find the system call, and fall back to epoll.
 *
 * CRIU does not save Landlock sandboxes, and Linux does not show them. UNUSED_LANDLOCK exists until a process enters one; only then a save
 * has to ask every thread (engine/tree/landlock.py). Where Linux has a listener for another filter already, it does not ask init, and
 * the file never exists. */
static void set_filter(int io_uring) {
    struct sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, __NR_io_uring_setup, 0, 4), /* setup, enter, register are neighbors */
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, NR_LANDLOCK_RESTRICT_SELF, 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, __NR_io_uring_register, 2, 0),
        BPF_STMT(BPF_RET | BPF_K, io_uring ? SECCOMP_RET_ALLOW : SECCOMP_RET_ERRNO | ENOSYS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {sizeof rules / sizeof *rules, rules};
    landlock_questions = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &filter);
    if (landlock_questions >= 0) {
        int unused = open(UNUSED_LANDLOCK, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
        if (unused >= 0) close(unused);
        return;
    }
    rules[5].k = SECCOMP_RET_ALLOW;
    if (!io_uring && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter)) fail("seccomp filter");
}

/* Let a process enter its sandbox, and remember that one did. */
static void answer_landlock(void) {
    union { struct seccomp_notif question; char room[256]; } asked = {0}; /* later versions of Linux may tell more */
    struct seccomp_notif_resp answer = {.flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE};
    if (ioctl(landlock_questions, SECCOMP_IOCTL_NOTIF_RECV, &asked)) return; /* it has ended, or was interrupted and asks again */
    unlink(UNUSED_LANDLOCK);
    answer.id = asked.question.id;
    ioctl(landlock_questions, SECCOMP_IOCTL_NOTIF_SEND, &answer);
}

static void set_last_pid(const char *text) {
    char last[16];
    snprintf(last, sizeof last, "%d", atoi(text));
    write_file("/proc/sys/kernel/ns_last_pid", last);
}

/* Write a clock's line of timens_offsets: its new reading minus the current one. */
static void offset_of(int clock, long seconds, long nanoseconds, char *text, size_t size) {
    struct timespec now;
    clock_gettime(clock, &now);
    seconds -= now.tv_sec, nanoseconds -= now.tv_nsec;
    if (nanoseconds < 0) seconds--, nanoseconds += 1000000000;
    snprintf(text, size, "%d %ld %ld\n", clock, seconds, nanoseconds);
}

/* Make a time namespace for processes that are forked from now on. */
static void set_clocks(const char *line) {
    long m, mn, b, bn;
    char text[64];
    if (sscanf(line, "%*s %*d %ld %ld %ld %ld", &m, &mn, &b, &bn) != 4) return;
    if (unshare(CLONE_NEWTIME)) fail("time namespace");
    offset_of(CLOCK_MONOTONIC, m, mn, text, sizeof text);
    write_file("/proc/self/timens_offsets", text);
    offset_of(CLOCK_BOOTTIME, b, bn, text, sizeof text);
    write_file("/proc/self/timens_offsets", text);
}

static void copy_self(int self, const char *path) {
    struct stat st;
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0755);
    off_t at = 0;
    if (fd < 0 || fstat(self, &st)) fail("copy keeper");
    while (at < st.st_size)
        if (sendfile(fd, self, &at, st.st_size - at) <= 0) fail("copy keeper");
    fchmod(fd, 0755);
    close(fd);
}

/* Readers see the whole status or no file, because the provisioner's poll() takes the file's existence as the kernel's end. */
static void write_exit(const char *path, int status) {
    char tmp[4096];
    snprintf(tmp, sizeof tmp, "%s.tmp", path);
    int fd = open(tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0) return;
    dprintf(fd, "%d\n", status);
    close(fd);
    rename(tmp, path);
}

static int keeper(char **v) {
    int mask = strtol(v[0], NULL, 8), cwd = atoi(v[1]), status;
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    for (int s = 1; s < 32; s++)
        if (s != SIGKILL && s != SIGSTOP && s != SIGCHLD) signal(s, SIG_IGN);
    setsid();
    pid_t kernel = fork(), p;
    if (kernel < 0) _exit(126);
    if (!kernel) {
        default_signals();
        setsid();
        umask(mask);
        if (fchdir(cwd)) dprintf(2, "gpuckpt: the working directory of the kernel cannot be entered: %s\n", strerror(errno));
        close(cwd);
        execvp(v[3], v + 3);
        dprintf(2, "gpuckpt: %s cannot be started: %s\n", v[3], strerror(errno));
        _exit(127);
    }
    close(cwd);
    for (;;) {
        p = waitpid(-1, &status, 0);
        if (p == kernel) end_like(status);
        if (p < 0 && errno != EINTR) _exit(125);
    }
}

/* Open the standard streams again: descriptors made outside belong to mounts that CRIU cannot see from inside ("Can't lookup mount").
 * O_APPEND is set because a restore checks the size of every file that is not O_WRONLY|O_APPEND. */
static void open_streams(const char *log) {
    int in = open("/dev/null", O_RDONLY), out = open(log, O_WRONLY | O_APPEND | O_CREAT, 0600);
    if (out < 0) out = open("/dev/null", O_WRONLY | O_APPEND);
    dup2(in, 0), dup2(out, 1), dup2(out, 2);
    if (in > 2) close(in);
    if (out > 2) close(out);
}

/* Descriptors of GPU memory that no process has mapped while the driver checkpoints its owner. init holds them, so that the memory
 * outlives the daemon. The key is the owner's pid in this namespace. The other side is engine/gpu/ferry/ferry.py. */
enum { KEEP = 'k', GIVE = 'g', FREE = 'f', DROP = 'd', MAX_HELD_DESCRIPTORS = 16384, BATCH = 200 };
typedef struct { int order; unsigned owner, first; } request_t;
static struct { unsigned owner; int descriptor; } held[MAX_HELD_DESCRIPTORS];
static unsigned held_count;

static void drop(unsigned owner) {
    unsigned left = 0;
    for (unsigned i = 0; i < held_count; i++)
        if (held[i].owner != owner) held[left++] = held[i];
        else if (held[i].descriptor >= 0) close(held[i].descriptor);
    held_count = left;
}

/* Close the first descriptors of an owner, to make room on the GPU; the numbers of the others stay. */
static void free_first(unsigned owner, unsigned number) {
    for (unsigned i = 0; i < held_count && number; i++)
        if (held[i].owner == owner) {
            if (held[i].descriptor >= 0) close(held[i].descriptor);
            held[i].descriptor = -1;
            number--;
        }
}

/* Carry out one request. The answer is the number of descriptors held for this owner, with the descriptors that were requested. */
static void hold(int peer) {
    union { struct cmsghdr header; char room[CMSG_SPACE(BATCH * sizeof(int))]; } control = {0};
    request_t request;
    struct iovec part = {&request, sizeof request};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control.room, .msg_controllen = sizeof control.room};
    int descriptors[BATCH], count = 0;
    if (recvmsg(peer, &message, MSG_CMSG_CLOEXEC | MSG_WAITALL) != sizeof request) return;
    struct cmsghdr *first = CMSG_FIRSTHDR(&message);
    if (first && first->cmsg_type == SCM_RIGHTS) {
        count = (first->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        memcpy(descriptors, CMSG_DATA(first), count * sizeof(int));
    }
    if (request.order == DROP) drop(request.owner);
    if (request.order == FREE) free_first(request.owner, request.first);
    for (int i = 0; i < count; i++)
        if (request.order == KEEP && held_count < MAX_HELD_DESCRIPTORS) {
            held[held_count].owner = request.owner;
            held[held_count++].descriptor = descriptors[i];
        } else close(descriptors[i]);
    unsigned number = 0;
    count = 0;
    for (unsigned i = 0; i < held_count; i++) {
        if (held[i].owner != request.owner) continue;
        if (request.order == GIVE && number >= request.first && count < BATCH && held[i].descriptor >= 0) descriptors[count++] = held[i].descriptor;
        number++;
    }
    part = (struct iovec){&number, sizeof number};
    message = (struct msghdr){.msg_iov = &part, .msg_iovlen = 1};
    if (count) {
        message.msg_control = control.room;
        message.msg_controllen = CMSG_SPACE(count * sizeof(int));
        control.header = (struct cmsghdr){.cmsg_len = CMSG_LEN(count * sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
        memcpy(CMSG_DATA(&control.header), descriptors, count * sizeof(int));
    }
    sendmsg(peer, &message, MSG_NOSIGNAL);
}

/* Listen for requests to hold descriptors. Without the socket saves of GPU memory are slower, because nothing is handed over. */
static int listen_for_descriptors(void) {
    struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = HOLD};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return -1;
    if (!bind(fd, (struct sockaddr *)&address, sizeof address) && !chmod(HOLD, 0600) && !listen(fd, 8)) return fd;
    close(fd);
    return -1;
}

/* Let this process hold as many descriptors as it may: init holds thousands for a kernel with much GPU memory, and CRIU needs more than
 * its tasks. The tree, which was started before init calls this, keeps its own limit. */
static void raise_limit_of_files(void) {
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files)) return;
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
}

/* Wait until the root of the tree has ended, and serve requests for descriptors and Linux's questions meanwhile; return its wait status. */
static int wait_for(pid_t root, int listening) {
    int status, children, peer;
    sigset_t child;
    raise_limit_of_files();
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    sigprocmask(SIG_BLOCK, &child, NULL);
    children = signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK);
    for (;;) {
        struct pollfd looked[] = {{.fd = children, .events = POLLIN}, {.fd = listening, .events = POLLIN}, {.fd = landlock_questions, .events = POLLIN}};
        struct signalfd_siginfo information;
        struct timeval limit = {10, 0}; /* a peer that sends nothing must not keep init from reaping */
        pid_t p;
        while ((p = waitpid(-1, &status, children < 0 ? 0 : WNOHANG)) > 0)
            if (p == root) return status;
        if (p < 0 && errno != EINTR) _exit(1);
        if (poll(looked, 3, -1) < 0 && errno != EINTR) _exit(1);
        if (looked[2].revents & POLLIN) answer_landlock();
        while (read(children, &information, sizeof information) > 0)
            ;
        while ((peer = accept4(listening, NULL, NULL, SOCK_CLOEXEC)) >= 0) {
            setsockopt(peer, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
            hold(peer);
            close(peer);
        }
    }
}

static void quiet_streams(void) {
    int null = open("/dev/null", O_RDWR);
    dup2(null, 0), dup2(null, 2);
    if (null > 2) close(null);
}

static int init(int restore, char **v) {
    const char *ids = v[0], *exit_path = v[1], *log = v[6];
    char number[16], line[128];
    int status, self = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    pid_t root, p;
    setsid();
    make_mounts(v[2], v[3]);
    set_filter(!strcmp(v[4], "allowed"));
    if (!restore) {
        copy_self(self, KEEPER);
        if (unshare(CLONE_NEWTIME) && errno != EINVAL && errno != EPERM) fail("time namespace");
    }
    copy_self(self, NOTIFY);
    close(self);
    dprintf(1, "ready\n");
    ssize_t length = read(0, line, sizeof line - 1);
    if (length <= 0) _exit(1); /* EOF: the caller gave up or died */
    line[length] = 0;
    set_last_pid(line + strcspn(line, " "));
    if (!restore) {
        /* The directory is opened inside the namespace: a descriptor from outside would have the mount id of another namespace. */
        int cwd = open(".", O_PATH | O_DIRECTORY);
        if (cwd < 0) fail("working directory");
        root = fork();
        if (root < 0) fail("fork");
        if (!root) {
            snprintf(number, sizeof number, "%d", cwd);
            /* KERNEL... is the tail of our own argument vector: the keeper's arguments replace those before it. */
            v[3] = "gpuckpt-keeper", v[4] = "keeper", v[6] = number;
            open_streams(log);
            if (strcmp(ids, "-")) drop_capabilities();
            if (chdir("/")) _exit(126);
            if (cwd > 3) close_all(3, cwd - 1);
            close_all(cwd + 1, ~0U);
            execv(KEEPER, v + 3);
            _exit(126);
        }
        close(cwd);
    } else {
        int keeper_pid = atoi(v[5]);
        set_clocks(line);
        pid_t criu = fork();
        if (criu < 0) fail("fork");
        if (!criu) {
            /* Standard error is kept: the caller reads the messages of a CRIU that cannot start. */
            int null = open("/dev/null", O_RDWR);
            dup2(null, 0), dup2(null, 1);
            if (null > 2) close(null);
            if (strcmp(ids, "-")) keep_capabilities();
            raise_limit_of_files(); /* the tasks get their own limits back */
            execvp(v[8], v + 8);
            dprintf(2, "%s: %s\n", v[8], strerror(errno));
            _exit(127);
        }
        while ((p = waitpid(criu, &status, 0)) < 0 && errno == EINTR)
            ;
        if (status) {
            dprintf(1, "criu %d\n", status);
            while (read(0, line, sizeof line) > 0) /* stay until the caller has read CRIU's log, which is on our tmpfs */
                ;
            _exit(1);
        }
        /* Descriptors that CRIU passed on belong only to the restored processes. */
        if (landlock_questions > 3) close_all(3, landlock_questions - 1);
        close_all(landlock_questions >= 3 ? landlock_questions + 1 : 3, ~0U);
        root = keeper_pid; /* restored as a child of init: criu restore --restore-sibling */
    }
    /* The caller may connect at once. */
    int listening = listen_for_descriptors();
    dprintf(1, restore ? "criu 0\n" : "started\n");
    if (chdir("/")) _exit(1);
    close(1);
    quiet_streams();
    dup2(2, 1);
    write_exit(exit_path, wait_for(root, listening));
    _exit(0);
}

/* CRIU calls this at every stage. At pre-dump, the last moment before CRIU touches a task, the daemon stops all tasks. At
 * post-restore, when all memory is mapped and no task runs, the daemon fills the memory. Unless the daemon answers "1" (it may have
 * died), we fail and CRIU gives up. The other side is engine/criu/action_script.py. */
static int notify(void) {
    const char *action = getenv("CRTOOLS_SCRIPT_ACTION");
    struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = SCRATCH "/notify.socket"};
    char answer = 0;
    if (!action || (strcmp(action, "pre-dump") && strcmp(action, "post-restore"))) return 0;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address)) return 1;
    return read(fd, &answer, 1) == 1 && answer == '1' ? 0 : 1;
}

int main(int c, char **v) {
    const char *name = strrchr(v[0], '/') ? strrchr(v[0], '/') + 1 : v[0];
    if (!strcmp(name, "notify")) return notify();
    if (c > 5 && !strcmp(v[1], "keeper")) return keeper(v + 2);
    if (c > 3 && !strcmp(v[1], "enter")) return enter(v + 2);
    if (c == 5 && !strcmp(v[1], "bind")) return bind_mount(v + 2);
    int restore = c > 2 && !strcmp(v[1], "restore");
    if (c < 11 || (!restore && strcmp(v[1], "launch")) || strcmp(v[9], "--")) {
        dprintf(2, "gpuckpt-init is started by gpuckptd; it is of no use by itself.\n");
        return 2;
    }
    int told[2];
    char word;
    umask(022); /* for files that init makes; the kernel gets its own umask */
    if (pipe2(told, O_CLOEXEC)) fail("pipe");
    if (strcmp(v[2], "-")) own_user_namespace(v[2]);
    if (unshare(CLONE_NEWPID)) fail("PID namespace");
    pid_t child = fork();
    if (child < 0) fail("fork");
    if (!child) { /* the host pid is printed before all messages of init */
        close(told[1]);
        if (read(told[0], &word, 1) != 1) _exit(1);
        close(told[0]);
        return init(restore, v + 2);
    }
    dprintf(1, "init %d\n", child);
    return write(told[1], "", 1) == 1 ? 0 : 1;
}
