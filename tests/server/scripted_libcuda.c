/* The part of libcuda.so.1 that peer access needs, for machines without a GPU: two devices, and a line in $SCRIPTED_CUDA_LOG
 * for every call that changes something. Build with -Wl,-soname,libcuda.so.1. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int peers[2][2], retained[2], stack[64], depth;
static int contexts[2];

static void say(const char *what, int one, int other)
{
	FILE *log = fopen(getenv("SCRIPTED_CUDA_LOG"), "a");

	fprintf(log, "%s %d %d\n", what, one, other);
	fclose(log);
}

static int device_of(void *context) { return (int *)context - contexts; }

int cuDeviceGetCount(int *count) { *count = 2; return 0; }
int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) { (void)device; *flags = 0; *active = 1; return 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { retained[device]++; *context = &contexts[device]; return 0; }
int cuDevicePrimaryCtxRelease_v2(int device) { retained[device]--; return 0; }
int cuCtxPushCurrent_v2(void *context) { stack[depth++] = device_of(context); return 0; }
int cuCtxPopCurrent_v2(void **context) { *context = &contexts[stack[--depth]]; return 0; }
int cuCtxSynchronize(void) { say("synchronize", stack[depth - 1], -1); return 0; }

int cuCtxEnablePeerAccess(void *peer, unsigned flags)
{
	int one = stack[depth - 1], other = device_of(peer);

	(void)flags;
	if (peers[one][other])
		return 704;
	peers[one][other] = 1;
	say("enable", one, other);
	return 0;
}

int cuCtxDisablePeerAccess(void *peer)
{
	int one = stack[depth - 1], other = device_of(peer);

	if (!peers[one][other])
		return 705;
	peers[one][other] = 0;
	say("disable", one, other);
	return 0;
}

/* For the tests. */
int scripted_peers(int one, int other) { return peers[one][other]; }
int scripted_retained(int device) { return retained[device]; }
void scripted_set(int one, int other) { peers[one][other] = 1; }
