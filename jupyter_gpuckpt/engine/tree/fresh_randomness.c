/* Part of the library that is preloaded into kernels: random numbers of OpenSSL are new in every copy of a kernel.
 *
 * OpenSSL keeps the state of its random number generator in the process. Two kernels that are resumed from one snapshot, or one that
 * is resumed twice, would draw the same numbers and make the same keys. OpenSSL seeds its generators anew when getpid() differs from
 * the number that it got before (openssl_get_fork_id), but a kernel has the same number in every copy. So OpenSSL, wherever it is
 * linked into, gets another number after each resume: the process's own, changed by a number that the daemon writes into a file on
 * scratch before any task runs (fresh_randomness.py). Every other caller gets the process's own.
 *
 * Who calls is known by the return address. A library contains OpenSSL if the name of the source of its generator is in it, which
 * OpenSSL's error messages need. In a program that is Python itself and contains OpenSSL as well, the calls of one from the calls of
 * the other are known by where the agent's thread was when it asked Python for the pid and when it drew random numbers.
 */
#include <emmintrin.h>
#include <stddef.h>

#include "direct_call.h"

#define FILE_ON_SCRATCH "/dev/shm/.gpuckpt/copy"
#define MAX_KNOWN 256
#define MAX_CALLS 32
#define MAX_PARTS 16
#define ID 64

enum { NR_READ = 0, NR_OPEN = 2, NR_CLOSE = 3, NR_MMAP = 9, NR_GETPID = 39, NR_GETTID = 186 };
enum { O_CLOEXEC_ = 02000000, PROT_READ_ = 1, MAP_SHARED_ = 1, PAGE = 4096 };
/* What a file contains: `BOTH` is OpenSSL and Python. */
enum content { NEITHER, OPENSSL, BOTH };
/* What the agent's thread does: the argument of gpuckpt_draw. */
enum activity { ELSE, DRAWS, ASKS_PYTHON };

struct known { unsigned long start, end; enum content content; };
struct caller { unsigned long address; int is_openssl; };

static const unsigned *copy;
static struct known known[MAX_KNOWN];
static unsigned known_count;
static struct caller callers[MAX_CALLS];
static unsigned caller_count;
static long agent;
static enum activity activity;

static int begins(const char *data, const char *wanted) {
    while (*wanted && *data == *wanted) data++, wanted++;
    return !*wanted;
}

static int contains(const char *data, const char *end, const char *wanted) {
    unsigned long size = 0;
    while (wanted[size]) size++;
    __m128i first = _mm_set1_epi8(wanted[0]), second = _mm_set1_epi8(wanted[1]);
    for (; data + 16 + size <= end; data += 16) {
        __m128i is_first = _mm_cmpeq_epi8(_mm_loadu_si128((const __m128i *)data), first);
        __m128i is_second = _mm_cmpeq_epi8(_mm_loadu_si128((const __m128i *)(data + 1)), second);
        int found = _mm_movemask_epi8(_mm_and_si128(is_first, is_second));
        for (; found; found &= found - 1)
            if (begins(data + __builtin_ctz(found), wanted)) return 1;
    }
    for (; data + size <= end; data++)
        if (begins(data, wanted)) return 1;
    return 0;
}

/* The areas of one file that follow each other in the table of areas. */
struct file {
    char id[ID]; /* device and inode */
    struct { unsigned long start, end; int is_readable; } parts[MAX_PARTS];
    int count;
};

/* A larger file is a library for computing; reading one takes seconds. Programs that contain OpenSSL, like node, have 150 MB. */
enum { MAX_LIBRARY = 256 << 20 };

static int has(const struct file *file, const char *wanted) {
    for (int i = 0; i < file->count; i++) {
        const char *data = (const char *)file->parts[i].start, *end = (const char *)file->parts[i].end;
        if (file->parts[i].is_readable && contains(data, end, wanted)) return 1;
    }
    return 0;
}

static enum content content_of(const struct file *file) {
    unsigned long size = 0;
    for (int i = 0; i < file->count; i++) size += file->parts[i].end - file->parts[i].start;
    if (size > MAX_LIBRARY || !(has(file, "rands/drbg") || has(file, "rand/drbg_lib"))) return NEITHER;
    return has(file, "Py_InitializeEx") ? BOTH : OPENSSL;
}

static void learn(const struct file *file, unsigned long address) {
    enum content content = content_of(file);
    for (int i = 0; i < file->count; i++) {
        if (address < file->parts[i].start || file->parts[i].end <= address) continue;
        unsigned at = __atomic_fetch_add(&known_count, 1, __ATOMIC_RELAXED);
        if (at >= MAX_KNOWN) return;
        known[at].start = file->parts[i].start;
        known[at].content = content;
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
    if ((is_found || (file.count && is_in(&file, address))) && !is_anonymous(&file)) learn(&file, address);
}

static enum content content_at(unsigned long address) {
    for (int tries = 0; tries < 2; tries++) {
        unsigned count = __atomic_load_n(&known_count, __ATOMIC_ACQUIRE);
        for (unsigned i = 0; i < count && i < MAX_KNOWN; i++) {
            unsigned long end = __atomic_load_n(&known[i].end, __ATOMIC_ACQUIRE);
            if (known[i].start <= address && address < end) return known[i].content;
        }
        if (tries || count >= MAX_KNOWN) break;
        look_up(address);
    }
    return NEITHER;
}

static const struct caller *caller_at(unsigned long address) {
    unsigned count = __atomic_load_n(&caller_count, __ATOMIC_ACQUIRE);
    for (unsigned i = 0; i < count; i++)
        if (callers[i].address == address) return &callers[i];
    return NULL;
}

/* The first activity in which an address calls decides: while it draws, the agent's thread may also run code of the user's that asks
 * Python, e.g. a signal handler. */
static int is_drawing_at(unsigned long address) {
    const struct caller *found = caller_at(address);
    if (found) return found->is_openssl;
    if (caller_count < MAX_CALLS) {
        callers[caller_count] = (struct caller){address, activity == DRAWS};
        __atomic_store_n(&caller_count, caller_count + 1, __ATOMIC_RELEASE);
    }
    return activity == DRAWS;
}

static int is_openssl(unsigned long address) {
    enum content content = content_at(address);
    if (content != BOTH) return content == OPENSSL;
    const struct caller *found = caller_at(address);
    return found && found->is_openssl;
}

int getpid(void) {
    unsigned long address = (unsigned long)__builtin_return_address(0);
    long pid = call(NR_GETPID, 0, 0, 0, 0, 0);
    unsigned number = copy ? *(volatile const unsigned *)copy & 0x7fffffff : 0;
    if (agent && agent == call(NR_GETTID, 0, 0, 0, 0, 0)) return (int)(is_drawing_at(address) ? pid ^ number : pid);
    return (int)(number && is_openssl(address) ? pid ^ number : pid);
}

/* Tell what this thread does from now on; only one of the agent's threads does anything at a time. While it draws, whatever calls but
 * Python gets the changed number. */
void gpuckpt_draw(int does) {
    activity = (enum activity)does;
    agent = does == ELSE ? 0 : call(NR_GETTID, 0, 0, 0, 0, 0);
}

__attribute__((constructor)) static void begin(void) {
    long fd = call(NR_OPEN, (long)FILE_ON_SCRATCH, O_CLOEXEC_, 0, 0, 0);
    if (fd < 0) return;
    long found = call(NR_MMAP, 0, PAGE, PROT_READ_, MAP_SHARED_, fd);
    if (found > 0) copy = (const unsigned *)found;
    call(NR_CLOSE, fd, 0, 0, 0, 0);
}
