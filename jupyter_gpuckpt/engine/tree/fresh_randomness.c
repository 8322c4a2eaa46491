/* Part of the library that is preloaded into kernels: random numbers of OpenSSL are new in every copy of a kernel.
 *
 * OpenSSL keeps the state of its random number generator in the process. Two kernels that are resumed from one snapshot, or one that
 * is resumed twice, would draw the same numbers and make the same keys. OpenSSL seeds its generators anew when getpid() differs from
 * the number that it got before (openssl_get_fork_id), but a kernel has the same number in every copy. So OpenSSL, wherever it is
 * linked into, gets another number after each resume: the process's own, changed by a number that the daemon writes into a file on
 * scratch before any task runs (fresh_randomness.py). Every other caller gets the process's own.
 *
 * Who calls is known by the return address. A library contains OpenSSL if the name of the source of its generator is in it, which
 * OpenSSL's error messages need. A program that is Python itself and contains OpenSSL as well cannot be told apart by that; there the
 * agent draws while it has the number changed for its own thread.
 */
#include <stddef.h>

#include "direct_call.h"

#define FILE_ON_SCRATCH "/dev/shm/.gpuckpt/copy"
#define MAX_KNOWN 256
#define MAX_PARTS 16
#define ID 64

enum { NR_READ = 0, NR_OPEN = 2, NR_CLOSE = 3, NR_MMAP = 9, NR_GETPID = 39, NR_GETTID = 186 };
enum { O_CLOEXEC_ = 02000000, PROT_READ_ = 1, MAP_SHARED_ = 1, PAGE = 4096 };

struct known { unsigned long start, end; int has_openssl; };

static const unsigned *copy;
static struct known known[MAX_KNOWN];
static unsigned known_count;
static long drawing;

static int contains(const char *data, unsigned long length, const char *wanted) {
    unsigned long size = 0;
    while (wanted[size]) size++;
    for (const char *end = data + length - (length < size ? length : size); data < end; data++) {
        if (*data != *wanted) continue;
        unsigned long at = 1;
        while (at < size && data[at] == wanted[at]) at++;
        if (at == size) return 1;
    }
    return 0;
}

/* The areas of one file that follow each other in the table of areas. */
struct file {
    char id[ID]; /* device and inode */
    struct { unsigned long start, end; int is_readable; } parts[MAX_PARTS];
    int count;
};

/* Larger files are libraries for computing; reading one takes seconds. */
enum { MAX_LIBRARY = 64 << 20 };

static int has_openssl(const struct file *file) {
    unsigned long size = 0;
    for (int i = 0; i < file->count; i++) size += file->parts[i].end - file->parts[i].start;
    if (size > MAX_LIBRARY) return 0;
    int found = 0, is_python = 0;
    for (int i = 0; i < file->count; i++) {
        if (!file->parts[i].is_readable) continue;
        const char *data = (const char *)file->parts[i].start;
        unsigned long length = file->parts[i].end - file->parts[i].start;
        found |= contains(data, length, "rands/drbg") || contains(data, length, "rand/drbg_lib");
        is_python |= contains(data, length, "Py_InitializeEx");
    }
    return found && !is_python;
}

static void learn(const struct file *file) {
    int answer = has_openssl(file);
    for (int i = 0; i < file->count; i++) {
        unsigned at = __atomic_fetch_add(&known_count, 1, __ATOMIC_RELAXED);
        if (at >= MAX_KNOWN) return;
        known[at].start = file->parts[i].start;
        known[at].has_openssl = answer;
        __atomic_store_n(&known[at].end, file->parts[i].end, __ATOMIC_RELEASE);
    }
}

static unsigned long hexadecimal(const char **text) {
    unsigned long value = 0;
    for (;; (*text)++) {
        char digit = **text;
        if (digit >= '0' && digit <= '9') value = value << 4 | (unsigned long)(digit - '0');
        else if (digit >= 'a' && digit <= 'f') value = value << 4 | (unsigned long)(digit - 'a' + 10);
        else return value;
    }
}

/* Add a line of the table to the file's areas: "START-END PERMS OFFSET DEVICE INODE PATH". Return whether it belongs to that file. */
static int add(struct file *file, const char *line, int is_first) {
    unsigned long start = hexadecimal(&line), end;
    if (*line++ != '-') return 0;
    end = hexadecimal(&line);
    int is_readable = *++line == 'r', at = 0;
    for (int words = 0; words < 2; words++) {
        while (*line && *line != ' ') line++;
        while (*line == ' ') line++;
    }
    if (is_first) {
        file->count = 0;
        for (int spaces = 0; *line && at < ID - 1 && (spaces += *line == ' ') < 2; line++) file->id[at++] = *line;
        file->id[at] = 0;
    } else {
        for (; file->id[at]; at++)
            if (line[at] != file->id[at]) return 0;
        if (line[at] != ' ' && line[at] != '\n') return 0;
    }
    if (file->count < MAX_PARTS) {
        file->parts[file->count].start = start;
        file->parts[file->count].end = end;
        file->parts[file->count++].is_readable = is_readable;
    }
    return 1;
}

static int is_in(const struct file *file, unsigned long address) {
    for (int i = 0; i < file->count; i++)
        if (file->parts[i].start <= address && address < file->parts[i].end) return 1;
    return 0;
}

/* Code that was made at run time; other code may come to its place at any time. */
static int is_anonymous(const struct file *file) {
    static const char none[] = "00:00 0";
    int at = 0;
    while (none[at] && file->id[at] == none[at]) at++;
    return !none[at] && !file->id[at];
}

/* Look up the file whose code contains the address, and remember what it is. */
static void look_up(unsigned long address) {
    char buffer[4096], line[256];
    struct file file;
    int length = 0, is_found = 0;
    file.count = 0;
    long got, fd = call(NR_OPEN, (long)"/proc/self/maps", O_CLOEXEC_, 0, 0, 0);
    if (fd < 0) return;
    while (!is_found && (got = call(NR_READ, fd, (long)buffer, sizeof buffer, 0, 0)) > 0) {
        for (long i = 0; i < got && !is_found; i++) {
            if (length < (int)sizeof line - 1) line[length++] = buffer[i];
            if (buffer[i] != '\n') continue;
            line[length] = 0;
            length = 0;
            if (file.count && add(&file, line, 0)) continue;
            is_found = file.count && is_in(&file, address);
            if (!is_found) add(&file, line, 1);
        }
    }
    call(NR_CLOSE, fd, 0, 0, 0, 0);
    if ((is_found || (file.count && is_in(&file, address))) && !is_anonymous(&file)) learn(&file);
}

static int is_openssl(unsigned long address) {
    for (int tries = 0; tries < 2; tries++) {
        unsigned count = __atomic_load_n(&known_count, __ATOMIC_ACQUIRE);
        for (unsigned i = 0; i < count && i < MAX_KNOWN; i++)
            if (known[i].start <= address && address < __atomic_load_n(&known[i].end, __ATOMIC_ACQUIRE)) return known[i].has_openssl;
        if (tries || count >= MAX_KNOWN) break;
        look_up(address);
    }
    return 0;
}

int getpid(void) {
    long pid = call(NR_GETPID, 0, 0, 0, 0, 0);
    unsigned number = copy ? *(volatile const unsigned *)copy & 0x7fffffff : 0;
    if (!number) return (int)pid;
    if (drawing && drawing == call(NR_GETTID, 0, 0, 0, 0, 0)) return (int)(pid ^ number);
    return is_openssl((unsigned long)__builtin_return_address(0)) ? (int)(pid ^ number) : (int)pid;
}

/* Let this thread get the changed number, whatever calls, until it ends that. The agent holds Python's lock, so it is one thread. */
void gpuckpt_draw(int begins) { drawing = begins ? call(NR_GETTID, 0, 0, 0, 0, 0) : 0; }

__attribute__((constructor)) static void begin(void) {
    long fd = call(NR_OPEN, (long)FILE_ON_SCRATCH, O_CLOEXEC_, 0, 0, 0);
    if (fd < 0) return;
    long found = call(NR_MMAP, 0, PAGE, PROT_READ_, MAP_SHARED_, fd);
    if (found > 0) copy = (const unsigned *)found;
    call(NR_CLOSE, fd, 0, 0, 0, 0);
}
