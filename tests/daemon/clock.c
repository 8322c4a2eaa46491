/* A time of day that a test sets: preloaded into a process, it shifts CLOCK_REALTIME and the times of files.
 *
 * The file $TEST_CLOCK holds a history: the number of its entries, then for each the real time from which on it holds and the shift,
 * all in nanoseconds as 64-bit integers. A new entry is a step of the clock. As on a machine whose clock is stepped, a file keeps the
 * time that the clock showed when the file was written, and absolute times for which threads wait are times of the shifted clock.
 *
 * The process's children do not have this clock unless they are forks: the library removes itself from the environment.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000LL
#define MOST_STEPS 100000

struct history {
    int64_t count;
    struct {
        int64_t from, shift;
    } steps[MOST_STEPS];
};

static const struct history *history;

#define REAL(name) ((__typeof__(name) *)dlsym(RTLD_NEXT, #name))

__attribute__((constructor)) static void begin(void)
{
    const char *path = getenv("TEST_CLOCK");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd >= 0) {
        void *mapped = mmap(NULL, sizeof(struct history), PROT_READ, MAP_SHARED, fd, 0);
        history = mapped == MAP_FAILED ? NULL : mapped;
        close(fd);
    }
    unsetenv("LD_PRELOAD");
}

static int64_t count(void)
{
    return history ? __atomic_load_n(&history->count, __ATOMIC_ACQUIRE) : 0;
}

/* Return the shift now. */
static int64_t shift(void)
{
    int64_t last = count() - 1;
    return last < 0 ? 0 : history->steps[last].shift;
}

/* Return the shift that held at a real time. */
static int64_t shift_at(int64_t real)
{
    for (int64_t each = count() - 1; each >= 0; each--)
        if (history->steps[each].from <= real)
            return history->steps[each].shift;
    return 0;
}

/* Return a real time at which the shifted clock showed `shown`: the latest, if there are several. */
static int64_t real_of(int64_t shown)
{
    int64_t end = INT64_MAX;
    for (int64_t each = count() - 1; each >= 0; each--) {
        int64_t real = shown - history->steps[each].shift;
        if (history->steps[each].from <= real && real < end)
            return real;
        end = history->steps[each].from;
    }
    return shown < end ? shown : shown - shift();
}

static int64_t nanoseconds(const struct timespec *time)
{
    return time->tv_sec * SECOND + time->tv_nsec;
}

static struct timespec timespec_of(int64_t time)
{
    int64_t rest = ((time % SECOND) + SECOND) % SECOND;
    return (struct timespec){.tv_sec = (time - rest) / SECOND, .tv_nsec = rest};
}

static int64_t now(void)
{
    struct timespec found;
    syscall(SYS_clock_gettime, CLOCK_REALTIME, &found);
    return nanoseconds(&found) + shift();
}

int clock_gettime(clockid_t clock, struct timespec *found)
{
    int result = syscall(SYS_clock_gettime, clock, found);
    if (!result && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        *found = timespec_of(nanoseconds(found) + shift());
    return result;
}

int gettimeofday(struct timeval *restrict found, void *restrict zone)
{
    (void)zone;
    struct timespec shown = timespec_of(now());
    *found = (struct timeval){.tv_sec = shown.tv_sec, .tv_usec = shown.tv_nsec / 1000};
    return 0;
}

time_t time(time_t *found)
{
    time_t shown = timespec_of(now()).tv_sec;
    if (found)
        *found = shown;
    return shown;
}

/* Waits until a time of the shifted clock. A step while they wait does not change their end. */

static struct timespec unshifted(const struct timespec *until)
{
    return timespec_of(nanoseconds(until) - shift());
}

int sem_timedwait(sem_t *restrict semaphore, const struct timespec *restrict until)
{
    struct timespec real = unshifted(until);
    return REAL(sem_timedwait)(semaphore, &real);
}

int pthread_mutex_timedlock(pthread_mutex_t *restrict mutex, const struct timespec *restrict until)
{
    struct timespec real = unshifted(until);
    return REAL(pthread_mutex_timedlock)(mutex, &real);
}

/* Times of files */

static void shift_file(struct timespec *time)
{
    int64_t real = nanoseconds(time);
    *time = timespec_of(real + shift_at(real));
}

static int shifted(int result, struct stat *found)
{
    if (!result) {
        shift_file(&found->st_atim);
        shift_file(&found->st_mtim);
        shift_file(&found->st_ctim);
    }
    return result;
}

int stat(const char *restrict path, struct stat *restrict found)
{
    return shifted(REAL(stat)(path, found), found);
}

int lstat(const char *restrict path, struct stat *restrict found)
{
    return shifted(REAL(lstat)(path, found), found);
}

int fstat(int fd, struct stat *found)
{
    return shifted(REAL(fstat)(fd, found), found);
}

int fstatat(int fd, const char *restrict path, struct stat *restrict found, int flags)
{
    return shifted(REAL(fstatat)(fd, path, found, flags), found);
}

int stat64(const char *restrict path, struct stat64 *restrict found)
{
    return shifted(REAL(stat64)(path, found), (struct stat *)found);
}

int lstat64(const char *restrict path, struct stat64 *restrict found)
{
    return shifted(REAL(lstat64)(path, found), (struct stat *)found);
}

int fstat64(int fd, struct stat64 *found)
{
    return shifted(REAL(fstat64)(fd, found), (struct stat *)found);
}

int fstatat64(int fd, const char *restrict path, struct stat64 *restrict found, int flags)
{
    return shifted(REAL(fstatat64)(fd, path, found, flags), (struct stat *)found);
}

static void shift_field(struct statx_timestamp *time)
{
    struct timespec shown = {.tv_sec = time->tv_sec, .tv_nsec = time->tv_nsec};
    shift_file(&shown);
    time->tv_sec = shown.tv_sec;
    time->tv_nsec = shown.tv_nsec;
}

int statx(int fd, const char *restrict path, int flags, unsigned mask, struct statx *restrict found)
{
    int result = REAL(statx)(fd, path, flags, mask, found);
    if (!result) {
        shift_field(&found->stx_atime);
        shift_field(&found->stx_btime);
        shift_field(&found->stx_ctime);
        shift_field(&found->stx_mtime);
    }
    return result;
}

/* Fill `real` with the times to be set; return NULL if that is the present time. */
static const struct timespec *real_times(const struct timespec given[2], struct timespec real[2])
{
    if (!given)
        return NULL;
    memcpy(real, given, 2 * sizeof *real);
    for (int each = 0; each < 2; each++)
        if (real[each].tv_nsec != UTIME_NOW && real[each].tv_nsec != UTIME_OMIT)
            real[each] = timespec_of(real_of(nanoseconds(&real[each])));
    return real;
}

int utimensat(int fd, const char *path, const struct timespec times[2], int flags)
{
    struct timespec real[2];
    return REAL(utimensat)(fd, path, real_times(times, real), flags);
}

int futimens(int fd, const struct timespec times[2])
{
    struct timespec real[2];
    return REAL(futimens)(fd, real_times(times, real));
}
