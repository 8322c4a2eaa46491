/* The functions that the parts of the library preloaded into CRIU share: it is linked without libc. */
#include <sys/syscall.h>

extern char **environ;
int *__errno_location(void);

static inline long call(long number, long a, long b, long c, long d) {
    long result;
    register long r10 __asm__("r10") = d;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10) : "rcx", "r11", "memory");
    return result;
}

/* Convert the result of a system call to libc's form: -1 and errno for an error. */
static inline long returned(long result) {
    if (result >= 0) return result;
    *__errno_location() = (int)-result;
    return -1;
}

/* Return the value of an environment variable; `name` ends with "=". */
static inline const char *variable(const char *name) {
    for (char **entry = environ; entry && *entry; entry++) {
        const char *text = *entry, *wanted = name;
        while (*wanted && *text == *wanted) text++, wanted++;
        if (!*wanted) return text;
    }
    return 0;
}

/* Return whether this is `criu dump`: only then the caller says how many seccomp filters a task inherits. */
static inline int is_dump(void) {
    static int known = -1;
    if (known < 0) known = variable("GPUCKPT_FILTERS=") != 0;
    return known;
}

/* Read as much of a file into `data` as fits; return the number of bytes, or the negative error. */
static inline long read_file(const char *path, void *data, unsigned long size) {
    unsigned long got = 0;
    long part, fd = call(SYS_open, (long)path, 02000000 /* O_CLOEXEC */, 0, 0);
    if (fd < 0) return fd;
    while (got < size && (part = call(SYS_read, fd, (long)data + (long)got, (long)(size - got), 0)) > 0) got += (unsigned long)part;
    call(SYS_close, fd, 0, 0, 0);
    return (long)got;
}

/* Return the hexadecimal number at the beginning of the text, and advance the text behind it. */
static inline unsigned long hexadecimal(const char **text) {
    unsigned long value = 0;
    for (;; (*text)++) {
        char digit = **text;
        if (digit >= '0' && digit <= '9') value = value << 4 | (unsigned long)(digit - '0');
        else if (digit >= 'a' && digit <= 'f') value = value << 4 | (unsigned long)(digit - 'a' + 10);
        else return value;
    }
}
