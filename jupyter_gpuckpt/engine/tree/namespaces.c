/* Namespaces and capabilities: a kernel's own user namespace, and running programs in the namespaces of a kernel's init. */
#define _GNU_SOURCE
#include "namespaces.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/securebits.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

void fail(const char *step) {
    dprintf(1, "error %s: %s\n", step, strerror(errno));
    _exit(1);
}

void write_file(const char *path, const char *text) {
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0 || write(fd, text, strlen(text)) < 0) fail(path);
    close(fd);
}

/* Make a user namespace in which the caller has the ids `ids`. Its maker has every capability in it, and in namespaces made with it,
 * until the next exec. /proc/PID of a process that gained capabilities belongs to root, and the daemon could not read it. */
void own_user_namespace(const char *ids) {
    char map[64];
    unsigned uid = geteuid(), gid = getegid(), uid_inside, gid_inside;
    if (sscanf(ids, "%u:%u", &uid_inside, &gid_inside) != 2) errno = EINVAL, fail("ids");
    if (unshare(CLONE_NEWUSER)) fail("user namespace");
    snprintf(map, sizeof map, "%u %u 1", uid_inside, uid);
    write_file("/proc/self/uid_map", map);
    write_file("/proc/self/setgroups", "deny"); /* without this, mapping a group needs a capability */
    snprintf(map, sizeof map, "%u %u 1", gid_inside, gid);
    write_file("/proc/self/gid_map", map);
    if (prctl(PR_SET_DUMPABLE, 1)) fail("dumpable");
}

static int is_same_namespace(const char *ours, const char *theirs) {
    struct stat a, b;
    return !stat(ours, &a) && !stat(theirs, &b) && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

/* Join namespaces of the init `pid`, and its user namespace if it is another one. */
static void join(const char *pid, int kinds) {
    char path[64];
    int init = syscall(SYS_pidfd_open, atoi(pid), 0);
    if (init < 0) fail("init");
    snprintf(path, sizeof path, "/proc/%d/ns/user", atoi(pid));
    if (!is_same_namespace("/proc/self/ns/user", path)) kinds |= CLONE_NEWUSER;
    if (setns(init, kinds)) fail("namespaces");
    close(init);
}

/* Keep the permitted capabilities across an exec, also for a user that is not root. */
void keep_capabilities(void) {
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct sets[2];
    if (syscall(SYS_capget, &header, sets)) fail("capabilities");
    for (int i = 0; i < 2; i++) sets[i].inheritable = sets[i].permitted;
    if (syscall(SYS_capset, &header, sets)) fail("capabilities");
    for (int i = 0; i < 64; i++)
        if (sets[i / 32].permitted >> i % 32 & 1) prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, i, 0, 0);
}

/* Drop all capabilities: the kernel has none in its user namespace, as its user has none outside. An exec drops them for everybody but
 * uid 0. The bounding set stays: without it Linux does not start programs that have file capabilities. */
void drop_capabilities(void) {
    if (!geteuid() && prctl(PR_SET_SECUREBITS, SECBIT_NOROOT | SECBIT_NOROOT_LOCKED)) fail("securebits");
}

/* man 2 close_range; musl has no function for it. */
void close_all(unsigned first, unsigned last) {
    syscall(SYS_close_range, first, last, 0);
}

void default_signals(void) {
    sigset_t none;
    sigemptyset(&none);
    for (int s = 1; s < 32; s++) signal(s, SIG_DFL);
    sigprocmask(SIG_SETMASK, &none, NULL);
}

void end_like(int status) {
    if (WIFSIGNALED(status)) {
        struct rlimit no_core = {0, 0};
        setrlimit(RLIMIT_CORE, &no_core);
        default_signals();
        kill(getpid(), WTERMSIG(status));
        pause();
    }
    _exit(WEXITSTATUS(status));
}

/* Run a program in the namespaces of an init, with the limit of descriptors raised as far as allowed: CRIU needs a pipe per megabyte
 * of private memory that it sees, and raises its own limit only with CAP_SYS_RESOURCE. */
int enter(char **v) {
    struct rlimit files;
    int status;
    dup2(2, 1); /* errors go to standard error, as the program's do */
    if (!getrlimit(RLIMIT_NOFILE, &files)) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    join(v[0], CLONE_NEWPID | CLONE_NEWNS);
    keep_capabilities();
    pid_t program = fork();
    if (program < 0) fail("fork");
    if (!program) {
        execvp(v[1], v + 1);
        dprintf(2, "%s: %s\n", v[1], strerror(errno));
        _exit(127);
    }
    close_all(3, ~0U);
    while (waitpid(program, &status, 0) < 0 && errno == EINTR)
        ;
    end_like(status);
    return 1;
}

int bind_mount(char **v) {
    dup2(2, 1);
    join(v[0], CLONE_NEWNS);
    if (mount(v[1], v[2], NULL, MS_BIND | MS_REC, NULL)) fail("bind mount");
    return 0;
}
