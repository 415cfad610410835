// The clocks of one process run at another rate, without root.
//
// Loaded with LD_PRELOAD, this shim maps CLOCK_MONOTONIC and CLOCK_BOOTTIME to
//
//   anchor + (true - anchor) · rate
//
// and everything that Holdfast and tokio wait by back to true time: epoll's timeouts, and timers of timerfd. So a wait is
// as long as the process believes, neither longer nor shorter. The wall clock and CLOCK_MONOTONIC_RAW are untouched.
// What is not mapped: absolute waits of threads (futex), which nothing that is tested waits by.
//
// Environment:
//   CLOCK_RATE_PPM        how fast, in parts of a million of true time: 1050000 is a twentieth too fast
//   CLOCK_RATE_ANCHOR_NS  when it was right, nanoseconds of CLOCK_BOOTTIME
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <time.h>

#define SECOND 1000000000LL
#define MILLION 1000000

static long long ppm = MILLION, anchor;
static int (*real_gettime)(clockid_t, struct timespec *);
static int (*real_settime)(int, int, const struct itimerspec *, struct itimerspec *);
static int (*real_wait)(int, struct epoll_event *, int, int);

__attribute__((constructor)) static void init(void) {
    real_gettime = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    real_settime = (int (*)(int, int, const struct itimerspec *, struct itimerspec *))dlsym(RTLD_NEXT, "timerfd_settime");
    real_wait = (int (*)(int, struct epoll_event *, int, int))dlsym(RTLD_NEXT, "epoll_wait");
    const char *rate = getenv("CLOCK_RATE_PPM"), *from = getenv("CLOCK_RATE_ANCHOR_NS");
    if (rate && from) {
        ppm = atoll(rate);
        anchor = atoll(from);
    }
}

static long long scaled(long long length, long long by, long long of) { return (long long)((__int128)length * by / of); }

static struct timespec timespec_of(long long ns) {
    // What lies before the origin is as good as at it; all zeros would disarm a timer.
    if (ns < 1) ns = 1;
    return (struct timespec){.tv_sec = ns / SECOND, .tv_nsec = ns % SECOND};
}

static long long ns_of(struct timespec time) { return time.tv_sec * SECOND + time.tv_nsec; }

int clock_gettime(clockid_t id, struct timespec *now) {
    int result = real_gettime(id, now);
    if (result == 0 && (id == CLOCK_MONOTONIC || id == CLOCK_MONOTONIC_COARSE || id == CLOCK_BOOTTIME))
        *now = timespec_of(anchor + scaled(ns_of(*now) - anchor, ppm, MILLION));
    return result;
}

// A process makes timers of CLOCK_BOOTTIME only.
int timerfd_settime(int timer, int flags, const struct itimerspec *wanted, struct itimerspec *before) {
    struct itimerspec mapped = *wanted;
    long long ns = ns_of(wanted->it_value);
    if (ns != 0) {
        long long from = flags & TFD_TIMER_ABSTIME ? anchor : 0;
        mapped.it_value = timespec_of(from + scaled(ns - from, MILLION, ppm));
    }
    return real_settime(timer, flags, &mapped, before);
}

int epoll_wait(int epoll, struct epoll_event *events, int most, int timeout_ms) {
    // Up: a caller that is woken early would only wait again.
    if (timeout_ms > 0) timeout_ms = (int)scaled(timeout_ms, MILLION, ppm) + 1;
    return real_wait(epoll, events, most, timeout_ms);
}
