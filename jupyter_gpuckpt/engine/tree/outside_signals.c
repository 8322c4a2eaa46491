/* outside-signals.so: loaded into every kernel, so that a SIGTERM or SIGHUP from outside does not end it.
 *
 * Stopping a service, a container or a session sends these signals to all its processes at once (systemd: KillMode=control-group,
 * the default). The kernel would be gone before anybody could save it. "From outside" means from a process that cannot be
 * seen in the kernel's PID namespace; for it Linux sets si_pid = 0 (kernel/signal.c, send_signal_locked). Signals that the
 * user's own code sends to itself or to forked workers (multiprocessing's terminate()) work as ever. The daemon passes a
 * signal on by sigqueue, which is not SI_USER (engine/tree/outside_signals.py).
 *
 * The program must not notice: where our handler is set, sigaction() reports the default, and a request to set the default sets our
 * handler. Children that it starts lose the handler at execve and never see LD_PRELOAD, which we take out of the environment.
 * This library uses no libc, because it is loaded beside any libc.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stddef.h>

#include "direct_call.h"

#define SELF "/dev/shm/.gpuckpt/outside-signals.so"
#define VARIABLE "LD_PRELOAD="
#define RESTORER 0x04000000

enum { NR_RT_SIGACTION = 13, NR_GETPID = 39, NR_KILL = 62 };

/* The system's own layout, not libc's. */
struct action {
    void *handler;
    unsigned long flags;
    void (*restorer)(void);
    unsigned long mask;
};

typedef int sigaction_function(int, const struct sigaction *, struct sigaction *);

extern char **environ __attribute__((weak));
extern void *dlsym(void *, const char *) __attribute__((weak));

void outside_signals_return(void);
__asm__(".text\n.hidden outside_signals_return\noutside_signals_return: mov $15, %eax\n syscall\n");

static void handle(int number, siginfo_t *info, void *context) {
    (void)context;
    if ((info->si_code == SI_USER || info->si_code == SI_TKILL) && info->si_pid == 0) return;
    struct action standard = {0, RESTORER, outside_signals_return, 0};
    call(NR_RT_SIGACTION, number, (long)&standard, 0, sizeof standard.mask, 0);
    call(NR_KILL, call(NR_GETPID, 0, 0, 0, 0, 0), number, 0, 0, 0); /* delivered when this handler returns */
}

static int is_ours(int number) { return number == SIGTERM || number == SIGHUP; }

int sigaction(int number, const struct sigaction *wanted, struct sigaction *before) {
    static sigaction_function *libc;
    struct sigaction ours = {.sa_sigaction = handle, .sa_flags = SA_SIGINFO | SA_RESTART};
    if (!libc) libc = dlsym ? (sigaction_function *)dlsym(RTLD_NEXT, "sigaction") : NULL;
    if (!libc) return -1;
    if (wanted && is_ours(number) && wanted->sa_handler == SIG_DFL) wanted = &ours;
    int result = libc(number, wanted, before);
    if (!result && before && is_ours(number) && before->sa_sigaction == handle) {
        before->sa_handler = SIG_DFL;
        before->sa_flags = 0;
    }
    return result;
}

static size_t length_if_begins(const char *text, const char *head) {
    size_t at = 0;
    for (; head[at]; at++)
        if (text[at] != head[at]) return 0;
    return at;
}

/* This library is the first entry of LD_PRELOAD; the user's own entries stay. */
static void clean_environment(char **at) {
    for (; at && *at; at++) {
        size_t name = length_if_begins(*at, VARIABLE), self = name ? length_if_begins(*at + name, SELF) : 0;
        if (!self) continue;
        char *to = *at + name, *from = to + self;
        if (*from == ':') from++;
        if (*from) {
            while ((*to++ = *from++))
                ;
        } else {
            for (; *at; at++) at[0] = at[1];
        }
        return;
    }
}

__attribute__((constructor)) static void begin(void) {
    static const int numbers[] = {SIGTERM, SIGHUP};
    struct action ours = {(void *)handle, SA_SIGINFO | SA_RESTART | RESTORER, outside_signals_return, 0}, before;
    clean_environment(&environ ? environ : NULL);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        if (call(NR_RT_SIGACTION, numbers[i], 0, (long)&before, sizeof before.mask, 0) || before.handler) continue;
        call(NR_RT_SIGACTION, numbers[i], (long)&ours, 0, sizeof ours.mask, 0);
    }
}
