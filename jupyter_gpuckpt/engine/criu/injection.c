/* criu-injection: part of the library preloaded into CRIU. In `criu dump` it lets tasks execute CRIU's code without breakpoints.
 *
 * CRIU makes a task execute a system call, or code of CRIU's own, and a breakpoint tells it that the task is done. Then a
 * SIGTRAP is pending for the task. If CRIU is killed before it has consumed the signal, Linux delivers it, and the
 * program ends. Stops at the entry to and the exit from a system call leave no signal behind, and the delivery of a SIGSTOP
 * does not harm a task that stands still anyway. So:
 *
 * - a single call is traced to its exit (PTRACE_SYSCALL), before the breakpoint behind it,
 * - CRIU's code ends with a SIGSTOP to itself instead of a breakpoint: its last instructions are replaced,
 * - a hardware breakpoint is not set; the task is traced from call to call instead, as CRIU does on machines without them.
 *
 * We report to CRIU the stop that it waits for. It injects into one task at a time and waits for each, so one record is enough.
 * Code that differs from CRIU's source (compel/src/lib/infect.c, compel/arch/x86/plugins/std/parasite-head.S) is left alone.
 */
#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/user.h>

#include "preload.h"

#define SYSCALL_STOP (SIGTRAP | 0x80) /* with PTRACE_O_TRACESYSGOOD, which CRIU sets */
#define TRAP_STATUS (SIGTRAP << 8 | 0x7f)
#define BREAKPOINT_CODE 0x80 /* si_code of a breakpoint: SI_KERNEL */
#define FIRST_DEBUG_REGISTER offsetof(struct user, u_debugreg[0])
#define CONTROL_REGISTER offsetof(struct user, u_debugreg[7])
#define CALL_BYTES 5
#define PAGE 4096UL

/* syscall; int3 */
static const unsigned char single_call[] = {0x0f, 0x05, 0xcc};
/* The code after `call parasite_service` in CRIU's code: rt_sigreturn with the stack pointer that the function returns, or a
 * breakpoint if it returns none: cmp $0,%rax; jle 1f; mov %rax,%rsp; mov $15,%rax; syscall; 1: int3 */
static const unsigned char original_end[] = {
    0x48, 0x83, 0xf8, 0x00, 0x7e, 0x0c, 0x48, 0x89, 0xc4, 0x48, 0xc7, 0xc0, 0x0f, 0x00, 0x00, 0x00, 0x0f, 0x05, 0xcc,
};
/* Its replacement: the system call that we have put into registers that functions preserve, with the function's result in %rsp:
 * mov %rax,%rsp; mov %ebx,%eax; mov %r12d,%edi; mov %r13d,%esi; syscall; int3; nop ... */
static const unsigned char other_end[] = {
    0x48, 0x89, 0xc4, 0x89, 0xd8, 0x44, 0x89, 0xe7, 0x44, 0x89, 0xee, 0x0f, 0x05, 0xcc, 0x90, 0x90, 0x90, 0x90, 0x90,
};

enum mode { SINGLE_CALL, CRIU_CODE };

static struct {
    int pid; /* the task that executes injected code; 0: none */
    enum mode mode;
    int in_call;
} injected;
static int leader;       /* the task that CRIU made execute single calls: the first of its process */
static unsigned long ready_code; /* where CRIU's code with the other end begins in the leader's process */
static int told;         /* the task for which a breakpoint was reported to CRIU */
static int breakpointed; /* the task for which CRIU requested a hardware breakpoint */

static long trace(long request, long pid, long address, const void *data) {
    return call(SYS_ptrace, request, pid, address, (long)data);
}

/* Read a task's memory in words; return whether all of it could be read. */
static int peek(int pid, unsigned long address, unsigned char *bytes, unsigned long length) {
    for (unsigned long at = 0; at < length; at += sizeof(long)) {
        long word;
        if (trace(PTRACE_PEEKDATA, pid, (long)(address + at), &word) < 0) return 0;
        for (unsigned long i = 0; i < sizeof word && at + i < length; i++) bytes[at + i] = ((unsigned char *)&word)[i];
    }
    return 1;
}

static int equal(const unsigned char *a, const unsigned char *b, unsigned long length) {
    while (length && *a == *b) a++, b++, length--;
    return !length;
}

static void copy(unsigned char *to, const unsigned char *from, unsigned long length) {
    while (length--) *to++ = *from++;
}

/* Write the replacement into CRIU's code wherever CRIU itself has it mapped: the tasks share that memory but cannot write to it.
 * `offset` is where the code begins in its page. A line of the file: "7f26de68c000-7f26de6a0000 rw-s ... /memfd:CRIUMFD (deleted)". */
static void replace_ends(unsigned long offset) {
    static char maps[1 << 16];
    long length = read_file("/proc/self/maps", maps, sizeof maps - 1);
    if (length < 0) return;
    maps[length] = 0;
    for (const char *at = maps; *at; at++) {
        unsigned long start = hexadecimal(&at), end = 0;
        if (*at == '-') at++, end = hexadecimal(&at);
        int is_ours = at[0] == ' ' && at[1] == 'r' && at[2] == 'w' && at[4] == 's';
        unsigned char *code = (unsigned char *)(start + offset);
        if (is_ours && start + offset + CALL_BYTES + sizeof original_end <= end && code[0] == 0xe8 &&
            equal(code + CALL_BYTES, original_end, sizeof original_end))
            copy(code + CALL_BYTES, other_end, sizeof other_end);
        while (*at && *at != '\n') at++;
        if (!*at) return;
    }
}

/* Prepare a task for the code that it is about to execute; return the ptrace request that restarts it. */
static long begin(int pid) {
    struct user_regs_struct registers;
    unsigned char code[CALL_BYTES + sizeof original_end], *end = code + CALL_BYTES;
    if (breakpointed == pid) {
        breakpointed = 0;
        return PTRACE_SYSCALL;
    }
    if (trace(PTRACE_GETREGS, pid, 0, &registers) < 0) return PTRACE_CONT;
    if (registers.rip != ready_code || pid == leader) {
        if (!peek(pid, registers.rip, code, sizeof code)) return PTRACE_CONT;
        if (equal(code, single_call, sizeof single_call)) {
            leader = injected.pid = pid;
            injected.mode = SINGLE_CALL;
            injected.in_call = 0;
            ready_code = 0;
            return PTRACE_SYSCALL;
        }
        if (code[0] != 0xe8) return PTRACE_CONT;
        if (equal(end, original_end, sizeof original_end)) {
            replace_ends(registers.rip & (PAGE - 1));
            if (!peek(pid, registers.rip, code, sizeof code)) return PTRACE_CONT;
        }
        if (!equal(end, other_end, sizeof other_end)) return PTRACE_CONT;
        ready_code = registers.rip;
    }
    /* The leader goes on serving CRIU. Nobody waits for the end of its code, so it returns to the program then. */
    registers.rbx = pid == leader ? SYS_rt_sigreturn : SYS_tkill;
    registers.r12 = (unsigned long)pid;
    registers.r13 = SIGSTOP;
    if (trace(PTRACE_SETREGS, pid, 0, &registers) < 0) return PTRACE_CONT;
    if (pid != leader) {
        injected.pid = pid;
        injected.mode = CRIU_CODE;
    }
    return PTRACE_CONT;
}

/* Return whether a task has finished the injected code, by its wait status: 1 yes, 0 not yet, -1 another stop. */
static int is_done(int pid, int status) {
    struct user_regs_struct registers;
    if ((status & 0xff) != 0x7f) return -1;
    if (injected.mode == SINGLE_CALL) return status >> 8 == SYSCALL_STOP ? injected.in_call++ : -1;
    if (status >> 8 != SIGSTOP || trace(PTRACE_GETREGS, pid, 0, &registers) < 0) return -1;
    registers.rax = registers.rsp;
    return trace(PTRACE_SETREGS, pid, 0, &registers) < 0 ? -1 : 1;
}

/* Let a task run until it has finished the injected code; return the result for CRIU's wait4. */
static long follow(int pid, int *status, int options, void *usage) {
    int done;
    while ((done = is_done(pid, *status)) == 0) {
        long result;
        if (trace(PTRACE_SYSCALL, pid, 0, 0) < 0) break;
        while ((result = call(SYS_wait4, pid, (long)status, options, (long)usage)) == -EINTR)
            ;
        if (result != pid) {
            injected.pid = 0;
            return result;
        }
    }
    injected.pid = 0;
    if (done == 1) {
        *status = TRAP_STATUS;
        told = pid;
    }
    return pid;
}

long ptrace(enum __ptrace_request wanted, ...) {
    va_list arguments;
    va_start(arguments, wanted);
    int pid = va_arg(arguments, int);
    unsigned long address = (unsigned long)va_arg(arguments, void *);
    void *data = va_arg(arguments, void *);
    va_end(arguments);
    long request = wanted, word = 0, result;
    if (request >= PTRACE_PEEKTEXT && request <= PTRACE_PEEKUSER) { /* libc returns the word, Linux writes it to memory */
        result = trace(request, pid, (long)address, &word);
        if (result >= 0) {
            *__errno_location() = 0;
            return word;
        }
    } else if (is_dump() && request == PTRACE_GETSIGINFO && told == pid) {
        *(siginfo_t *)data = (siginfo_t){.si_signo = SIGTRAP, .si_code = BREAKPOINT_CODE};
        return 0;
    } else if (is_dump() && request == PTRACE_POKEUSER && address >= FIRST_DEBUG_REGISTER && address <= CONTROL_REGISTER) {
        if (address == CONTROL_REGISTER) breakpointed = data ? pid : 0;
        return 0;
    } else {
        if (is_dump() && request == PTRACE_CONT && !data) request = begin(pid);
        if (told == pid && (request == PTRACE_CONT || request == PTRACE_SYSCALL || request == PTRACE_DETACH)) told = 0;
        result = trace(request, pid, (long)address, data);
    }
    return returned(result);
}

int wait4(int pid, int *status, int options, void *usage) {
    long result = call(SYS_wait4, pid, (long)status, options, (long)usage);
    if (result > 0 && result == injected.pid && status) result = follow((int)result, status, options, usage);
    return (int)returned(result);
}
