// The wall clock of one process is ahead of the machine's, or behind it, without root.
//
// Loaded with LD_PRELOAD, this shim adds WALL_CLOCK_AHEAD_S seconds, which may be negative, to CLOCK_REALTIME. All other
// clocks stay as they are, and waits with them: nothing of Holdfast waits by the wall clock.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>

static time_t ahead;
static int (*real_gettime)(clockid_t, struct timespec *);

__attribute__((constructor)) static void init(void) {
    real_gettime = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    const char *wanted = getenv("WALL_CLOCK_AHEAD_S");
    if (wanted) ahead = atoll(wanted);
}

int clock_gettime(clockid_t id, struct timespec *now) {
    int result = real_gettime(id, now);
    if (result == 0 && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) now->tv_sec += ahead;
    return result;
}
