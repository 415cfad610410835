// A power cut for one process, without root and without a virtual machine.
//
// Loaded with LD_PRELOAD, this shim watches every change the process makes to files below one
// folder, and remembers how to take back each one until it is durable:
//
//   data      a write or truncation is durable after fsync or fdatasync of that file
//   names     a created, renamed or removed file or folder is durable after fsync of the folder
//             that holds the name
//
// sync_file_range makes nothing durable: it writes neither metadata nor the device's cache.
//
// At the cut, everything that is not durable is taken back, newest first, and the process ends at
// once with status 99. What is left is the worst a file system may leave, not what ext4 leaves each
// time. With LOSTWRITE_KEEP some of it survives, as some of a page cache does.
//
// Environment:
//   LOSTWRITE_DIR    the folder; absolute, without links in it
//   LOSTWRITE_TRASH  a folder on the same file system, outside LOSTWRITE_DIR: removed files wait
//                    here for their removal to become durable
//   LOSTWRITE_AT     cut just before the N-th watched call, counted from the start
//   LOSTWRITE_KEEP   each write that is not durable survives with this percentage; of the changes
//                    of names, which a journal keeps in order, the oldest part survives
//   LOSTWRITE_SEED   for the two choices above
//   LOSTWRITE_DISK   a file that says what is wrong with the disk; looked at before each watched call:
//                      N          every sync takes so many milliseconds; 0, or no file: nothing is wrong
//                      hang       no watched call comes back until the file says something else
//                      eio write  every write fails
//                      eio sync   every sync fails, and makes nothing durable
//                    The first call that hangs or fails makes a file of that name with `.struck` after it
//   LOSTWRITE_IGNORE syncs of files whose path ends like this do nothing: the same run as if the
//                    program had forgotten them
//
// From inside, the process may start the count itself: opening any path whose last part is
// `lostwrite.arm.N` fails, and the cut comes just before the N-th watched call from there. From
// outside, SIGUSR2 cuts at once.
//
// Not watched: mmap, copy_file_range, fallocate, io_uring, links made by the program itself.
//
// Build: cc -O2 -shared -fPIC -o lostwrite.so lostwrite.c -ldl -lpthread

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { PATH_BYTES = 4096, CUT_STATUS = 99 };

// ---- what can be taken back -----------------------------------------------------------------

enum kind { DATA, CREATED, RENAMED, REMOVED };

// One change that is not durable yet. `device` and `inode` name what has to be synced for it: the
// file itself for DATA, the folder that holds the name for the others.
struct change {
    struct change *older;
    enum kind kind;
    dev_t device;
    ino_t inode;
    // DATA: our own handle on the file, what stood there, and how long the file was.
    int fd;
    off_t at, old_size;
    char *old;
    size_t old_len;
    // Names: what to move where. `saved` holds what the change made disappear, or is empty.
    char path[PATH_BYTES], from[PATH_BYTES], saved[PATH_BYTES];
};

static struct change *newest;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const char *dir, *trash, *ignored, *disk;
static long calls_left = -1; // watched calls until the cut; negative: none is planned
static unsigned keep, seed = 1;
static unsigned long trash_count;
static int cut_pipe[2] = {-1, -1};

static ssize_t (*real_pwrite)(int, const void *, size_t, off_t);
static ssize_t (*real_write)(int, const void *, size_t);
static ssize_t (*real_writev)(int, const struct iovec *, int);
static int (*real_ftruncate)(int, off_t);
static int (*real_fsync)(int);
static int (*real_fdatasync)(int);
static int (*real_open)(const char *, int, ...);
static int (*real_openat)(int, const char *, int, ...);
static int (*real_rename)(const char *, const char *);
static int (*real_unlink)(const char *);
static int (*real_unlinkat)(int, const char *, int);
static int (*real_mkdir)(const char *, mode_t);
static int (*real_rmdir)(const char *);

// ---- paths ------------------------------------------------------------------------------------

static int is_below(const char *path)
{
    size_t n = dir ? strlen(dir) : 0;
    return n && !strncmp(path, dir, n) && (path[n] == '/' || path[n] == 0);
}

// The path of an open file; 0 if it is not in the watched folder.
static int watched_fd(int fd, char *path)
{
    char link[64];
    if (!dir) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, PATH_BYTES - 1);
    if (n <= 0) return 0;
    path[n] = 0;
    return is_below(path);
}

// The absolute form of a path relative to `at`; 0 if it is not in the watched folder.
static int watched_path(int at, const char *path, char *out)
{
    if (!dir || !path) return 0;
    char base[PATH_BYTES] = "";
    if (path[0] != '/') {
        if (at == AT_FDCWD) {
            if (!getcwd(base, sizeof base)) return 0;
        } else {
            char link[64];
            snprintf(link, sizeof link, "/proc/self/fd/%d", at);
            ssize_t n = readlink(link, base, sizeof base - 1);
            if (n <= 0) return 0;
            base[n] = 0;
        }
        strncat(base, "/", sizeof base - strlen(base) - 1);
    }
    return snprintf(out, PATH_BYTES, "%s%s", base, path) < PATH_BYTES && is_below(out);
}

static int stat_parent(const char *path, struct stat *st)
{
    char parent[PATH_BYTES];
    snprintf(parent, sizeof parent, "%s", path);
    char *slash = strrchr(parent, '/');
    if (!slash) return -1;
    *slash = 0;
    return stat(parent[0] ? parent : "/", st);
}

static void new_trash_name(char *out)
{
    snprintf(out, PATH_BYTES, "%s/%d-%lu", trash, (int)getpid(), trash_count++);
}

// ---- remembering; all with the lock held ------------------------------------------------------

static void push(struct change *change)
{
    change->older = newest;
    newest = change;
}

// Before `len` bytes at `at` are overwritten, or (len 0) the file is truncated to `at`.
static void remember_data(int fd, off_t at, size_t len)
{
    struct stat st;
    if (fstat(fd, &st) || !S_ISREG(st.st_mode)) return;
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    struct change *change = calloc(1, sizeof *change);
    change->kind = DATA;
    change->device = st.st_dev;
    change->inode = st.st_ino;
    change->fd = real_open(link, O_RDWR | O_CLOEXEC);
    if (change->fd < 0) { // no descriptor left: this change survives
        free(change);
        return;
    }
    change->at = at;
    change->old_size = st.st_size;
    size_t lost = at < st.st_size ? (size_t)(st.st_size - at) : 0;
    if (len && lost > len) lost = len;
    if (lost) {
        change->old = malloc(lost);
        ssize_t got = pread(change->fd, change->old, lost, at);
        change->old_len = got > 0 ? (size_t)got : 0;
    }
    push(change);
}

static struct change *name_change(enum kind kind, const char *path)
{
    struct stat parent;
    if (stat_parent(path, &parent)) return NULL;
    struct change *change = calloc(1, sizeof *change);
    change->kind = kind;
    change->device = parent.st_dev;
    change->inode = parent.st_ino;
    snprintf(change->path, PATH_BYTES, "%s", path);
    return change;
}

// Keeps a second name for a file that is about to lose its own.
static void save(struct change *change, const char *path)
{
    new_trash_name(change->saved);
    if (link(path, change->saved)) change->saved[0] = 0;
}

// A sync of this file or folder: nothing of it is taken back any more.
static void forget(int fd)
{
    struct stat st;
    if (fstat(fd, &st)) return;
    int folder = S_ISDIR(st.st_mode);
    for (struct change **at = &newest; *at;) {
        struct change *change = *at;
        if (change->device != st.st_dev || change->inode != st.st_ino
            || (change->kind != DATA) != folder) {
            at = &change->older;
            continue;
        }
        *at = change->older;
        if (change->kind == DATA) close(change->fd);
        if (change->saved[0]) real_unlink(change->saved);
        free(change->old);
        free(change);
    }
}

// ---- the cut ------------------------------------------------------------------------------------

static void take_back(struct change *change)
{
    char aside[PATH_BYTES];
    switch (change->kind) {
    case DATA:
        if (change->old_len) real_pwrite(change->fd, change->old, change->old_len, change->at);
        real_ftruncate(change->fd, change->old_size);
        break;
    case CREATED: // a folder goes with everything in it
        new_trash_name(aside);
        real_rename(change->path, aside);
        break;
    case RENAMED:
        real_rename(change->path, change->from);
        if (change->saved[0]) real_rename(change->saved, change->path);
        break;
    case REMOVED:
        if (change->saved[0]) real_rename(change->saved, change->path);
        else real_mkdir(change->path, 0700);
        break;
    }
}

// Never returns; the lock is held and stays so, so no other thread changes anything any more.
static void cut(void)
{
    unsigned long taken = 0, kept = 0, names = 0;
    for (struct change *c = newest; c; c = c->older) names += c->kind != DATA;
    unsigned long names_kept = keep && names ? (unsigned long)rand_r(&seed) % (names + 1) : 0;
    for (struct change *c = newest; c; c = c->older) {
        int survives = c->kind == DATA ? keep && (unsigned)rand_r(&seed) % 100 < keep
                                       : names-- <= names_kept;
        if (survives) {
            kept++;
        } else {
            take_back(c);
            taken++;
        }
    }
    char line[120];
    int n = snprintf(line, sizeof line, "lostwrite: cut, %lu changes taken back, %lu kept\n", taken,
                     kept);
    real_write(2, line, (size_t)n);
    _exit(CUT_STATUS);
}

static void count_call(void)
{
    if (calls_left > 0 && --calls_left == 0) cut();
}

// A signal may arrive while this very thread holds the lock: the handler only wakes a thread of
// ours.
static void on_signal(int signal)
{
    (void)signal;
    int saved = errno;
    real_write(cut_pipe[1], "!", 1);
    errno = saved;
}

static void *wait_for_signal(void *unused)
{
    char byte;
    (void)unused;
    while (read(cut_pipe[0], &byte, 1) != 1) {}
    pthread_mutex_lock(&lock);
    cut();
    return NULL;
}

static void *find(const char *name)
{
    void *found = dlsym(RTLD_NEXT, name);
    if (!found) abort();
    return found;
}

__attribute__((constructor)) static void start(void)
{
    real_pwrite = find("pwrite64");
    real_write = find("write");
    real_writev = find("writev");
    real_ftruncate = find("ftruncate64");
    real_fsync = find("fsync");
    real_fdatasync = find("fdatasync");
    real_open = find("open64");
    real_openat = find("openat64");
    real_rename = find("rename");
    real_unlink = find("unlink");
    real_unlinkat = find("unlinkat");
    real_mkdir = find("mkdir");
    real_rmdir = find("rmdir");
    dir = getenv("LOSTWRITE_DIR");
    trash = getenv("LOSTWRITE_TRASH");
    ignored = getenv("LOSTWRITE_IGNORE");
    disk = getenv("LOSTWRITE_DISK");
    if (getenv("LOSTWRITE_AT")) calls_left = atol(getenv("LOSTWRITE_AT"));
    if (getenv("LOSTWRITE_KEEP")) keep = (unsigned)atoi(getenv("LOSTWRITE_KEEP"));
    if (getenv("LOSTWRITE_SEED")) seed = (unsigned)atoi(getenv("LOSTWRITE_SEED"));
    pthread_t thread;
    if (dir && trash && !pipe2(cut_pipe, O_CLOEXEC)
        && !pthread_create(&thread, NULL, wait_for_signal, NULL)) {
        pthread_detach(thread);
        signal(SIGUSR2, on_signal);
    }
}

// ---- the calls ----------------------------------------------------------------------------------

enum call { NAME, WRITE, SYNC };

static void disk_says(char *text, size_t size)
{
    int fd = disk ? real_open(disk, O_RDONLY | O_CLOEXEC) : -1;
    ssize_t n = fd < 0 ? 0 : read(fd, text, size - 1);
    if (fd >= 0) close(fd);
    text[n > 0 ? n : 0] = 0;
}

static void struck(void)
{
    char mark[PATH_BYTES];
    if (snprintf(mark, sizeof mark, "%s.struck", disk) >= PATH_BYTES) return;
    int fd = real_open(mark, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (fd >= 0) close(fd);
}

// What is wrong with the disk holds up the caller, and nobody else: called without the lock. -1 with
// errno if the call fails.
static int reach_disk(enum call call)
{
    char text[16];
    disk_says(text, sizeof text);
    if (!strncmp(text, "hang", 4)) {
        struck();
        while (!strncmp(text, "hang", 4)) {
            usleep(20000);
            disk_says(text, sizeof text);
        }
    }
    const char *fails = call == WRITE ? "eio write" : "eio sync";
    if (call != NAME && !strncmp(text, fails, strlen(fails))) {
        struck();
        errno = EIO;
        return -1;
    }
    if (call == SYNC && atoi(text) > 0) usleep((useconds_t)atoi(text) * 1000);
    return 0;
}

static void enter(void)
{
    pthread_mutex_lock(&lock);
    count_call();
}

static void leave(void)
{
    int saved = errno;
    pthread_mutex_unlock(&lock);
    errno = saved;
}

ssize_t pwrite64(int fd, const void *bytes, size_t len, off_t at)
{
    char path[PATH_BYTES];
    if (!watched_fd(fd, path)) return real_pwrite(fd, bytes, len, at);
    if (reach_disk(WRITE)) return -1;
    enter();
    if (len) remember_data(fd, at, len);
    ssize_t result = real_pwrite(fd, bytes, len, at);
    leave();
    return result;
}

ssize_t pwrite(int fd, const void *bytes, size_t len, off_t at)
{
    return pwrite64(fd, bytes, len, at);
}

static off_t write_position(int fd)
{
    return lseek(fd, 0, fcntl(fd, F_GETFL) & O_APPEND ? SEEK_END : SEEK_CUR);
}

ssize_t write(int fd, const void *bytes, size_t len)
{
    char path[PATH_BYTES];
    if (fd < 3 || !watched_fd(fd, path)) return real_write(fd, bytes, len);
    if (reach_disk(WRITE)) return -1;
    enter();
    if (len) remember_data(fd, write_position(fd), len);
    ssize_t result = real_write(fd, bytes, len);
    leave();
    return result;
}

ssize_t writev(int fd, const struct iovec *parts, int count)
{
    char path[PATH_BYTES];
    if (fd < 3 || !watched_fd(fd, path)) return real_writev(fd, parts, count);
    size_t len = 0;
    for (int i = 0; i < count; i++) len += parts[i].iov_len;
    if (reach_disk(WRITE)) return -1;
    enter();
    if (len) remember_data(fd, write_position(fd), len);
    ssize_t result = real_writev(fd, parts, count);
    leave();
    return result;
}

int ftruncate64(int fd, off_t size)
{
    char path[PATH_BYTES];
    if (!watched_fd(fd, path)) return real_ftruncate(fd, size);
    if (reach_disk(WRITE)) return -1;
    enter();
    remember_data(fd, size, 0);
    int result = real_ftruncate(fd, size);
    leave();
    return result;
}

int ftruncate(int fd, off_t size)
{
    return ftruncate64(fd, size);
}

static int is_ignored(const char *path)
{
    size_t n = strlen(path), m = ignored ? strlen(ignored) : 0;
    return m && n >= m && !strcmp(path + n - m, ignored);
}

static int sync_with(int (*real)(int), int fd)
{
    char path[PATH_BYTES];
    if (!watched_fd(fd, path)) return real(fd);
    if (reach_disk(SYNC)) return -1;
    enter();
    int result = 0;
    if (!is_ignored(path)) {
        // The real sync is left out: no power is cut, and the suites stay quick.
        forget(fd);
    }
    leave();
    return result;
}

int fsync(int fd)
{
    return sync_with(real_fsync, fd);
}

int fdatasync(int fd)
{
    return sync_with(real_fdatasync, fd);
}

static void arm(const char *path)
{
    const char *mark = strstr(path, "lostwrite.arm.");
    if (!mark || strchr(mark, '/')) return;
    pthread_mutex_lock(&lock);
    calls_left = atol(mark + strlen("lostwrite.arm."));
    pthread_mutex_unlock(&lock);
}

static int open_watched(int at, const char *name, int flags, mode_t mode)
{
    char path[PATH_BYTES];
    if (dir && name) arm(name);
    if (!watched_path(at, name, path) || !(flags & (O_CREAT | O_TRUNC)))
        return real_openat(at, name, flags, mode);
    reach_disk(NAME);
    enter();
    int existed = !access(path, F_OK);
    int fd = real_openat(at, name, flags & ~O_TRUNC, mode);
    if (fd >= 0 && !existed) {
        struct change *change = name_change(CREATED, path);
        if (change) push(change);
    }
    if (fd >= 0 && existed && flags & O_TRUNC) {
        remember_data(fd, 0, 0);
        real_ftruncate(fd, 0);
    }
    leave();
    return fd;
}

#define MODE_OF(flags, mode)                       \
    mode_t mode = 0;                               \
    if ((flags) & (O_CREAT | O_TMPFILE)) {         \
        va_list rest;                              \
        va_start(rest, flags);                     \
        mode = va_arg(rest, mode_t);               \
        va_end(rest);                              \
    }

int open(const char *path, int flags, ...)
{
    MODE_OF(flags, mode)
    return open_watched(AT_FDCWD, path, flags, mode);
}

int open64(const char *path, int flags, ...)
{
    MODE_OF(flags, mode)
    return open_watched(AT_FDCWD, path, flags, mode);
}

int openat(int at, const char *path, int flags, ...)
{
    MODE_OF(flags, mode)
    return open_watched(at, path, flags, mode);
}

int openat64(int at, const char *path, int flags, ...)
{
    MODE_OF(flags, mode)
    return open_watched(at, path, flags, mode);
}

int rename(const char *from, const char *to)
{
    char old[PATH_BYTES], new[PATH_BYTES];
    if (!watched_path(AT_FDCWD, from, old) || !watched_path(AT_FDCWD, to, new))
        return real_rename(from, to);
    reach_disk(NAME);
    enter();
    struct change *change = name_change(RENAMED, new);
    if (change) {
        snprintf(change->from, PATH_BYTES, "%s", old);
        if (!access(new, F_OK)) save(change, new);
    }
    int result = real_rename(from, to);
    if (!result && change) push(change);
    else free(change);
    leave();
    return result;
}

static int remove_watched(const char *path, int folder)
{
    reach_disk(NAME);
    enter();
    struct change *change = name_change(REMOVED, path);
    if (change && !folder) save(change, path);
    int result = folder ? real_rmdir(path) : real_unlink(path);
    if (!result && change) push(change);
    else free(change);
    leave();
    return result;
}

int unlink(const char *name)
{
    char path[PATH_BYTES];
    if (!watched_path(AT_FDCWD, name, path)) return real_unlink(name);
    return remove_watched(path, 0);
}

int unlinkat(int at, const char *name, int flags)
{
    char path[PATH_BYTES];
    if (!watched_path(at, name, path)) return real_unlinkat(at, name, flags);
    return remove_watched(path, flags & AT_REMOVEDIR);
}

int rmdir(const char *name)
{
    char path[PATH_BYTES];
    if (!watched_path(AT_FDCWD, name, path)) return real_rmdir(name);
    return remove_watched(path, 1);
}

int mkdir(const char *name, mode_t mode)
{
    char path[PATH_BYTES];
    if (!watched_path(AT_FDCWD, name, path)) return real_mkdir(name, mode);
    reach_disk(NAME);
    enter();
    int result = real_mkdir(name, mode);
    struct change *change = result ? NULL : name_change(CREATED, path);
    if (change) push(change);
    leave();
    return result;
}
