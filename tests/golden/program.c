/* A program with some of everything that a snapshot holds, which needs no file of the machine: it and its files lie in the
 * kernel's own /dev/shm, and it is static.
 *
 *     program [busy]
 *
 * It answers every byte in /dev/shm/golden/ask by a line in /dev/shm/golden/answer:
 *     digest of its memory, how far it has counted, how far its child has, what it got of its connection and its pipe
 * With `busy` it has a thread that counts, a child that counts in shared memory, bytes in a pipe and on a TCP connection. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define WORDS 65536
#define FOLDER "/dev/shm/golden/"

static unsigned held[WORDS];
static volatile unsigned long counted, *of_child;
static int ends[2] = {-1, -1}, in_pipe[2] = {-1, -1};

static int checked(int result)
{
	if (result < 0)
		_exit(2);
	return result;
}

static unsigned next(unsigned value)
{
	return value * 1664525u + 1013904223u;
}

static void *count(void *unused)
{
	(void)unused;
	for (;; counted++)
		usleep(1000);
	return NULL;
}

static void connect_to_itself(void)
{
	struct sockaddr_in name = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t size = sizeof(name);
	int listener = checked(socket(AF_INET, SOCK_STREAM, 0));

	checked(bind(listener, (struct sockaddr *)&name, size));
	checked(listen(listener, 1));
	checked(getsockname(listener, (struct sockaddr *)&name, &size));
	ends[0] = checked(socket(AF_INET, SOCK_STREAM, 0));
	checked(connect(ends[0], (struct sockaddr *)&name, size));
	ends[1] = checked(accept(listener, NULL, NULL));
	close(listener);
	checked(write(ends[0], "by TCP", 6));
	checked(pipe(in_pipe));
	checked(write(in_pipe[1], "by pipe", 7));
}

/* What waits in a descriptor; it is put back, so that the next answer tells it again. */
static void passed_on(int from, int back, char *text, int size)
{
	ssize_t length = from < 0 ? 0 : checked(read(from, text, size - 1));

	text[length] = 0;
	if (length)
		checked(write(back, text, length));
}

static void answer(int fd)
{
	char line[256], tcp[32], piped[32];
	unsigned digest = 0;

	for (int i = 0; i < WORDS; i++)
		digest = next(digest ^ held[i]);
	passed_on(ends[1], ends[0], tcp, sizeof(tcp));
	passed_on(in_pipe[0], in_pipe[1], piped, sizeof(piped));
	checked(write(fd, line, snprintf(line, sizeof(line), "%u %lu %lu %s %s\n", digest, counted, *of_child, tcp, piped)));
}

int main(int count_of_words, char **words)
{
	pthread_t thread;
	int ask, to, null = checked(open("/dev/null", O_RDWR));
	char byte;

	(void)words;
	for (int fd = 0; fd < 3; fd++)
		checked(dup2(null, fd));
	closefrom(3);
	for (int i = 1; i < WORDS; i++)
		held[i] = next(held[i - 1]);
	/* Half of it is zeros: pages that no snapshot stores. */
	memset(held + WORDS / 2, 0, sizeof(held) / 2);
	of_child = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	checked(mkfifo(FOLDER "ask", 0600));
	checked(mkfifo(FOLDER "answer.new", 0600));
	ask = checked(open(FOLDER "ask", O_RDWR));
	to = checked(open(FOLDER "answer.new", O_RDWR));
	if (count_of_words > 1) {
		connect_to_itself();
		if (!checked(fork()))
			for (;; ++*of_child)
				usleep(1000);
		checked(-pthread_create(&thread, NULL, count, NULL));
	}
	/* It is ready when this exists. */
	checked(rename(FOLDER "answer.new", FOLDER "answer"));
	while (read(ask, &byte, 1) == 1)
		answer(to);
}
