/* A process as the CUDA driver leaves it, for machines without a GPU: it has devices open and mapped, maps libcuda.so.1, and its
 * thread "cuda-driver" does what the scripted driver (scripted_driver.py) tells it, with the calls that the real one makes.
 *
 *     scripted-cuda FOLDER DEVICES LENGTH [spawn|fork]...
 *
 * FOLDER holds libcuda.so.1; for every process with a context, by its pid as it sees it: PID.ask and PID.answer, which are FIFOs,
 * and PID.ticks, where its main thread, the user's code, counts, and writes how often all memory of the ferry was compared and between how
 * many pairs of contexts peer access is on. DEVICES: the beginning of two paths. LENGTH: bytes on the GPU.
 * If FOLDER holds libcupti.so.13 or xla_cuda_plugin.so it is mapped as well; device-of-another-library: the first device is open once more, for good;
 * thread-with-host-memory: a thread of the user's writes to memory that CPU and GPU share, without the driver.
 * With SCRIPTED_FERRY in its environment libcuda.so.1 is the driver of ferry/driver.c, and a thread of the user's launches kernels on
 * memory of the ferry without a pause. SCRIPTED_STILL: so many bytes of the ferry's memory, random ones, are only changed when the test
 * asks for it: it writes offset and length to FOLDER/change, which is removed when these bytes have been changed. All of it is
 * compared all the time. SCRIPTED_GPUS=2: the pieces of the ferry's memory are on two GPUs in turn, and each is changed and compared by its own.
 * SCRIPTED_PEERS: the GPUs have peer access, and it is done by both in turn.
 * For each `spawn` there is a child with a context of its own, for each `fork` one that was forked from this process. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define DEVICES 2
#define PAGE 4096

static const char *folder, *devices, *libraries[] = {"libcupti.so.13", "xla_cuda_plugin.so"};
static size_t length;
static int fds[DEVICES], ask, answer;
static void *mapped[DEVICES];
static unsigned char *staging, value;
/* Memory that CPU and GPU share; what was in it when it was unmapped. */
static volatile unsigned long *host;
static unsigned long kept;

static void *checked(void *address)
{
	if (address == MAP_FAILED)
		exit(3);
	return address;
}

static void acquire(void)
{
	char path[PAGE];

	for (int i = 0; i < DEVICES; i++) {
		snprintf(path, sizeof(path), "%s%d", devices, i);
		if ((fds[i] = open(path, O_RDWR)) < 0)
			exit(2);
		mapped[i] = checked(mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fds[i], 0));
	}
}

/* The ferry's part: the driver's functions as a program gets them, and memory in three pieces. */
typedef unsigned long long address;
static long (*counted)(int), (*peers)(void);
static int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, address *, void *);
static const size_t pieces[] = {5 << 20, 16 << 20, 2 << 20};
static volatile unsigned long rounds;
static address at[3], still;
static int (*make_current)(address), gpus = 1, are_peers;
static const address contexts[] = {1, 2};
static size_t still_bytes;

static address launched(address memory, size_t bytes, address value)
{
	address parameters[] = {memory, bytes, value};

	if (launch((void *)1, 1, 2, 3, 4, 5, 6, 7, (void *)8, parameters, (void *)9))
		abort();
	return parameters[2];
}

/* Let the following launches be of a GPU that has access to a piece; `turn` chooses one of several. */
static void choose(int piece, unsigned turn)
{
	if (gpus > 1 && make_current(contexts[(piece + (are_peers ? turn : 0)) % gpus]))
		abort();
}

/* Compare the memory that nobody changes; change it if the test asks for it. */
static void look_at_still(void)
{
	static address expected;
	address found = launched(still, still_bytes, 256);
	char path[PAGE];
	size_t offset, bytes;
	FILE *file;

	if (expected && found != expected) {
		fprintf(stderr, "the memory that nobody changes has changed\n");
		abort();
	}
	expected = found;
	snprintf(path, sizeof(path), "%s/change", folder);
	if (!(file = fopen(path, "r")))
		return;
	if (fscanf(file, "%zu %zu", &offset, &bytes) == 2) {
		launched(still + offset, bytes, 1);
		expected = launched(still, still_bytes, 256);
		unlink(path);
	}
	fclose(file);
}

/* Every byte of the memory is the number of launches. It pauses for three times as long as they took: without a pause it would take a whole
 * processor from what is tested. A quarter of all operations begin in the middle of a launch. */
#define LONGEST_PAUSE 20000 /* microseconds: launches wait while the memory is away */
static void *use_ferry(void *unused)
{
	(void)unused;
	for (unsigned char count = 1;; count++, rounds++) {
		struct timespec begun, ended;
		long took;

		clock_gettime(CLOCK_MONOTONIC, &begun);
		choose(1, count);
		if (still)
			look_at_still();
		for (int i = 0; i < 3; i++) {
			address parameters[] = {at[i], pieces[i], 1};

			choose(i, count);

			if (launch((void *)1, 1, 2, 3, 4, 5, 6, 7, (void *)8, parameters, (void *)9))
				abort();
			/* The lowest and the highest byte. Only a kernel may read them: the memory may be away now. */
			parameters[2] = 0;
			if (launch((void *)1, 1, 2, 3, 4, 5, 6, 7, (void *)8, parameters, (void *)9) ||
			    parameters[2] != (count | (address)count << 8)) {
				fprintf(stderr, "piece %d has %llx after %d launches\n", i, parameters[2], count);
				abort();
			}
		}
		clock_gettime(CLOCK_MONOTONIC, &ended);
		took = (ended.tv_sec - begun.tv_sec) * 1000000 + (ended.tv_nsec - begun.tv_nsec) / 1000;
		usleep(3 * took < LONGEST_PAUSE ? 3 * took : LONGEST_PAUSE);
	}
}

static void open_ferry(const char *path)
{
	int (*get)(const char *, void *, int, unsigned long long, int *), status;
	int (*allocate)(address *, size_t), (*start)(unsigned);
	void *library = dlopen(path, RTLD_NOW);
	pthread_t user;

	if (!library || !(counted = dlsym(library, "driver_count")) || !(peers = dlsym(library, "driver_peers")) || !(get = dlsym(library, "cuGetProcAddress_v2")))
		exit(10);
	if (get("cuInit", &start, 12000, 0, &status) || get("cuMemAlloc", &allocate, 12000, 0, &status) ||
	    get("cuLaunchKernel", &launch, 12000, 0, &status) || start(0))
		exit(11);
	if (getenv("SCRIPTED_GPUS")) {
		int (*enable)(address, unsigned);

		gpus = 2;
		are_peers = getenv("SCRIPTED_PEERS") != NULL;
		if (get("cuCtxSetCurrent", &make_current, 12000, 0, &status) ||
		    get("cuCtxEnablePeerAccess", &enable, 12000, 0, &status))
			exit(11);
		for (int i = 0; are_peers && i < 2; i++)
			if (make_current(contexts[i]) || enable(contexts[!i], 0))
				exit(14);
	}
	for (int i = 0; i < 3; i++) {
		if (gpus > 1 && make_current(contexts[i % gpus]))
			exit(14);
		if (allocate(&at[i], pieces[i]))
			exit(12);
	}
	if (getenv("SCRIPTED_STILL")) {
		still_bytes = strtoul(getenv("SCRIPTED_STILL"), NULL, 10);
		if (gpus > 1 && make_current(contexts[1]))
			exit(14);
		if (allocate(&still, still_bytes))
			exit(12);
		for (address i = 0, random = 1; i < still_bytes; i += 8) { /* xorshift: a byte of libc's random() takes ten times as long */
			random ^= random << 13;
			random ^= random >> 7;
			random ^= random << 17;
			*(address *)(still + i) = random;
		}
	}
	if (counted(3) || pthread_create(&user, NULL, use_ferry, NULL))
		exit(13);
}

static int checkpoint(void)
{
	int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE;

	/* Memory of the ferry must be gone, no kernel runs, and no GPU has access to another. */
	if (counted && (counted(1) || counted(2) || counted(4) || peers()))
		return -1;
	if (host) {
		kept = *host;
		checked(mmap((void *)host, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
		usleep(20000);
	}
	staging = checked(mmap(NULL, length, PROT_READ | PROT_WRITE, flags, -1, 0));
	memset(staging, ++value, length);
	for (int i = 0; i < DEVICES; i++) {
		munmap(mapped[i], PAGE);
		close(fds[i]);
	}
	return 0;
}

static int restore(void)
{
	for (size_t i = 0; i < length; i++)
		if (staging[i] != value)
			return -1;
	munmap(staging, length);
	acquire();
	if (host) {
		usleep(20000);
		checked(mmap((void *)host, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
		*host = kept;
	}
	return 0;
}

static void *drive(void *unused)
{
	char what;

	(void)unused;
	prctl(PR_SET_NAME, "cuda-driver");
	while (read(ask, &what, 1) == 1) {
		char told = 'k';

		if (what == 'c' ? checkpoint() : restore())
			told = '!';
		if (write(answer, &told, 1) != 1)
			exit(4);
	}
	return NULL;
}

/* What it writes stays: nothing that it counted while the memory was away is lost. Its pauses are much shorter than the time during which
 * the memory is away, and without them it would take a whole processor. */
static void *use_host(void *unused)
{
	unsigned long count = *host;

	(void)unused;
	for (;;) {
		if (*host != count)
			abort();
		*host = ++count;
		if (count % 100000 == 0)
			usleep(1000);
	}
	return NULL;
}

static int fifo(const char *name)
{
	char path[PAGE];
	int fd;

	snprintf(path, sizeof(path), "%s/%d.%s", folder, getpid(), name);
	if (mkfifo(path, 0600) || (fd = open(path, O_RDWR)) < 0)
		exit(5);
	return fd;
}

static unsigned long *counter(void)
{
	char path[PAGE], final[PAGE];
	void *ticks;
	int fd;

	snprintf(path, sizeof(path), "%s/%d.new", folder, getpid());
	snprintf(final, sizeof(final), "%s/%d.ticks", folder, getpid());
	if ((fd = open(path, O_RDWR | O_CREAT, 0600)) < 0 || ftruncate(fd, PAGE) || rename(path, final))
		exit(6);
	ticks = checked(mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
	close(fd);
	return ticks;
}

int main(int count, char **words)
{
	char path[PAGE];
	pthread_t driver, user;
	volatile unsigned long *ticks;
	int library;

	folder = words[1];
	devices = words[2];
	length = strtoul(words[3], NULL, 10);
	value = getpid();
	snprintf(path, sizeof(path), "%s/libcuda.so.1", folder);
	if ((library = open(path, O_RDONLY)) < 0)
		exit(7);
	checked(mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE, library, 0));
	close(library);
	for (size_t i = 0; i < sizeof(libraries) / sizeof(*libraries); i++) {
		snprintf(path, sizeof(path), "%s/%s", folder, libraries[i]);
		if ((library = open(path, O_RDONLY)) >= 0)
			checked(mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE, library, 0));
	}
	snprintf(path, sizeof(path), "%s/device-of-another-library", folder);
	if (!access(path, F_OK)) {
		snprintf(path, sizeof(path), "%s0", devices);
		if (open(path, O_RDWR) < 0)
			exit(9);
	}
	if (getenv("SCRIPTED_FERRY")) { /* not for the children */
		unsetenv("SCRIPTED_FERRY");
		snprintf(path, sizeof(path), "%s/libcuda.so.1", folder);
		open_ferry(path);
	}
	ask = fifo("ask");
	answer = fifo("answer");
	acquire();
	if (pthread_create(&driver, NULL, drive, NULL))
		exit(8);
	snprintf(path, sizeof(path), "%s/thread-with-host-memory", folder);
	if (!access(path, F_OK)) {
		host = checked(mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
		if (pthread_create(&user, NULL, use_host, NULL))
			exit(8);
	}
	for (int i = 4; i < count; i++)
		if (!fork()) {
			if (!strcmp(words[i], "spawn")) {
				/* As Python's subprocess: nothing is inherited. */
				closefrom(3);
				execl("/proc/self/exe", words[0], words[1], words[2], words[3], (char *)NULL);
			}
			for (;;)
				pause();
		}
	/* It is ready when this exists. */
	for (ticks = counter();; ++*ticks) {
		ticks[1] = rounds;
		ticks[2] = peers ? peers() : 0;
		usleep(1000);
	}
}
