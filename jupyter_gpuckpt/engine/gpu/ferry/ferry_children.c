/* Loading of this library into processes that the program starts with its own interpreter, as multiprocessing does (spawn, forkserver).
 *
 * Only there: shells, compilers and other programs start as without the library. Only where the program that is executed is the file of the
 * process itself, the library and its variable are added to the environment. Python executes by execve, by execv if it passes its own
 * environment on, and by posix_spawn. This may run in a child that shares its parent's memory (vfork), so it changes no memory but the stack.
 */
#define _GNU_SOURCE
#include "ferry.h"
#include <alloca.h>
#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PRELOADED "LD_PRELOAD="
#define MAX_WORDS 16384 /* of an environment: larger ones are passed on as they are */
#define MAX_BYTES 65536 /* of the preloaded libraries' paths */
#define VISIBLE __attribute__((visibility("default")))

typedef char *const *words_t;
typedef int spawn_t(int *, const char *, const void *, const void *, words_t, words_t);

extern char **environ;
static int (*real_execve)(const char *, words_t, words_t);
static int (*real_execv)(const char *, words_t);
static spawn_t *real_posix_spawn, *real_posix_spawnp;
static const char *library;      /* NULL: the library is not loaded into children */
static char variable[128]; /* with its value */

void load_into_children(const char *path, const char *value) {
    const char name[] = FERRY_VARIABLE "=";
    if (sizeof name + strlen(value) > sizeof variable) return;
    strcpy(variable, name);
    strcat(variable, value);
    library = path;
}

void find_executing(void *(*find)(void *, const char *)) {
#define FIND(name) *(void **)&real_##name = find(NEXT_LIBRARY, #name);
    FIND(execve) FIND(execv) FIND(posix_spawn) FIND(posix_spawnp)
}

/* Find libc's functions if the constructor of another library executes a program before ours has run. */
static void be_ready(void) {
    if (!real_execve) find_executing(ferry_find_dlsym());
}

/* Return whether this path is the file of the program of this process, and the library can be loaded there. */
static int is_own_program(const char *path) {
    struct stat own, other;
    int kept = errno;
    int result = library && path && !syscall(SYS_stat, "/proc/self/exe", &own) && !syscall(SYS_stat, path, &other) &&
                 own.st_dev == other.st_dev && own.st_ino == other.st_ino && !syscall(SYS_access, library, R_OK);
    errno = kept;
    return result;
}

/* Return the word of an environment that begins so, or -1. */
static long find_word(words_t words, const char *begin) {
    for (long at = 0; words[at]; at++)
        if (!strncmp(words[at], begin, strlen(begin))) return at;
    return -1;
}

/* Return the bytes of the preloaded libraries' word with this library at its end; 0: the environment stays as it is. */
static size_t preload_bytes(words_t words) {
    long count = 0;
    while (words && words[count] && count <= MAX_WORDS) count++;
    if (!words || count > MAX_WORDS || find_word(words, FERRY_VARIABLE "=") >= 0) return 0;
    long at = find_word(words, PRELOADED);
    size_t bytes = (at < 0 ? strlen(PRELOADED) : strlen(words[at])) + 1 + strlen(library) + 1;
    return bytes > MAX_BYTES ? 0 : bytes;
}

static size_t count_words(words_t words) {
    size_t count = 0;
    while (words[count]) count++;
    return count;
}

/* Copy an environment, with the library and its variable added. */
static words_t add_library(words_t words, char **to, char *preload) {
    long at = find_word(words, PRELOADED);
    size_t count = count_words(words);
    memcpy(to, words, count * sizeof *to);
    strcpy(preload, at < 0 ? PRELOADED : words[at]);
    if (preload[strlen(PRELOADED)]) strcat(preload, ":");
    strcat(preload, library);
    to[at < 0 ? (long)count++ : at] = preload;
    to[count++] = variable;
    to[count] = NULL;
    return to;
}

/* The environment for a program; what is added is on the stack of the function that uses this. */
#define FOR_PROGRAM(path, words)                                                                       \
    ({                                                                                                 \
        size_t preload = is_own_program(path) ? preload_bytes(words) : 0;                              \
        preload ? add_library(words, alloca((count_words(words) + 3) * sizeof *words), alloca(preload)) : (words); \
    })

VISIBLE int execve(const char *path, char *const arguments[], char *const environment[]) {
    be_ready();
    return real_execve(path, arguments, FOR_PROGRAM(path, environment));
}

VISIBLE int execv(const char *path, char *const arguments[]) {
    be_ready();
    words_t words = environ, made = FOR_PROGRAM(path, words);
    return made == words ? real_execv(path, arguments) : real_execve(path, arguments, made);
}

VISIBLE int posix_spawn(int *process, const char *path, const void *actions, const void *attributes, words_t arguments, words_t words) {
    be_ready();
    return real_posix_spawn(process, path, actions, attributes, arguments, FOR_PROGRAM(path, words));
}

VISIBLE int posix_spawnp(int *process, const char *name, const void *actions, const void *attributes, words_t arguments, words_t words) {
    be_ready();
    /* A name without a slash is searched for, and is another program's for what is known here. */
    const char *path = name && strchr(name, '/') ? name : NULL;
    return real_posix_spawnp(process, name, actions, attributes, arguments, FOR_PROGRAM(path, words));
}
