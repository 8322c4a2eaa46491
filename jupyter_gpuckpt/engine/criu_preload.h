/* What the parts of the library preloaded into CRIU share: it is linked without libc. */
extern char **environ;
int *__errno_location(void);

static inline long call(long number, long a, long b, long c, long d) {
    long result;
    register long r10 __asm__("r10") = d;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10) : "rcx", "r11", "memory");
    return result;
}

/* The result of a system call as libc has it: -1 and errno for an error. */
static inline long returned(long result) {
    if (result >= 0) return result;
    *__errno_location() = (int)-result;
    return -1;
}

/* The value of an environment variable; `name` ends with "=". */
static inline const char *variable(const char *name) {
    for (char **entry = environ; entry && *entry; entry++) {
        const char *text = *entry, *wanted = name;
        while (*wanted && *text == *wanted) text++, wanted++;
        if (!*wanted) return text;
    }
    return 0;
}
