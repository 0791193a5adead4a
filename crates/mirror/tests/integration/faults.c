// Makes system calls that read folders fail, as on a broken disk or in a process that has no file descriptors left.
// Loaded before the C library.
//
// access("/baton-faults/ERRNO/AFTER/STICKY", 0) arms it. The next AFTER calls succeed. Then one call fails with ERRNO,
// or, if STICKY is not 0, all further calls do. ERRNO 0 disarms it.
// access("/baton-border/ERRNO", 0): from now on, moving or linking a file into or out of a folder "mounted" fails with
// ERRNO; 0 ends that.
// access("/baton-plain/ERRNO", 0): from now on, setting a file's time or permissions fails with ERRNO; 0 ends that.
// If BATON_TEST_NO_OPENAT2 is set, the system seems to lack openat2.
// If BATON_TEST_EXTRA_BLOCK is set, each file seems to have one more block, as on ZFS.
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static int error, after, sticky, border, plain;

static int fails(void) {
    if (error == 0 || after-- > 0) return 0;
    errno = error;
    if (!sticky) error = 0;
    return 1;
}

static int extra_block(void) { return getenv("BATON_TEST_EXTRA_BLOCK") != NULL; }

int access(const char *path, int mode) {
    if (sscanf(path, "/baton-faults/%d/%d/%d", &error, &after, &sticky) == 3) return 0;
    if (sscanf(path, "/baton-border/%d", &border) == 1) return 0;
    if (sscanf(path, "/baton-plain/%d", &plain) == 1) return 0;
    int (*real)(const char *, int) = dlsym(RTLD_NEXT, "access");
    return real(path, mode);
}

int openat(int folder, const char *path, int flags, ...) {
    va_list rest;
    va_start(rest, flags);
    unsigned mode = va_arg(rest, unsigned);
    va_end(rest);
    int (*real)(int, const char *, int, ...) = dlsym(RTLD_NEXT, "openat");
    return fails() ? -1 : real(folder, path, flags, mode);
}

long syscall(long number, ...) {
    long rest[6];
    va_list list;
    va_start(list, number);
    for (int index = 0; index < 6; index++) rest[index] = va_arg(list, long);
    va_end(list);
    if (number == SYS_openat2) {
        if (getenv("BATON_TEST_NO_OPENAT2")) {
            errno = ENOSYS;
            return -1;
        }
        if (fails()) return -1;
    }
    long (*real)(long, ...) = dlsym(RTLD_NEXT, "syscall");
    return real(number, rest[0], rest[1], rest[2], rest[3], rest[4], rest[5]);
}

struct dirent *readdir(DIR *folder) {
    struct dirent *(*real)(DIR *) = dlsym(RTLD_NEXT, "readdir");
    return fails() ? NULL : real(folder);
}

int statx(int folder, const char *path, int flags, unsigned mask, struct statx *found) {
    int (*real)(int, const char *, int, unsigned, struct statx *) = dlsym(RTLD_NEXT, "statx");
    if (fails() || real(folder, path, flags, mask, found) != 0) return -1;
    found->stx_blocks += extra_block();
    return 0;
}

int fstatat(int folder, const char *path, struct stat *found, int flags) {
    int (*real)(int, const char *, struct stat *, int) = dlsym(RTLD_NEXT, "fstatat");
    if (fails() || real(folder, path, found, flags) != 0) return -1;
    found->st_blocks += extra_block();
    return 0;
}

int fstat(int file, struct stat *found) {
    int (*real)(int, struct stat *) = dlsym(RTLD_NEXT, "fstat");
    if (fails() || real(file, found) != 0) return -1;
    found->st_blocks += extra_block();
    return 0;
}

ssize_t readlinkat(int folder, const char *path, char *target, size_t size) {
    ssize_t (*real)(int, const char *, char *, size_t) = dlsym(RTLD_NEXT, "readlinkat");
    return fails() ? -1 : real(folder, path, target, size);
}

static int is_mounted(int folder) {
    char name[32], path[4096] = "";
    snprintf(name, sizeof name, "/proc/self/fd/%d", folder);
    return readlink(name, path, sizeof path - 1) > 0 && strstr(path, "/mounted");
}

static int stops(int from, int to) {
    if (border == 0 || is_mounted(from) == is_mounted(to)) return 0;
    errno = border;
    return 1;
}

int renameat(int from, const char *old, int to, const char *new) {
    int (*real)(int, const char *, int, const char *) = dlsym(RTLD_NEXT, "renameat");
    return stops(from, to) ? -1 : real(from, old, to, new);
}

int linkat(int from, const char *old, int to, const char *new, int flags) {
    int (*real)(int, const char *, int, const char *, int) = dlsym(RTLD_NEXT, "linkat");
    return stops(from, to) ? -1 : real(from, old, to, new, flags);
}

static int refuses(void) {
    if (plain) errno = plain;
    return plain;
}

int futimens(int file, const struct timespec times[2]) {
    int (*real)(int, const struct timespec *) = dlsym(RTLD_NEXT, "futimens");
    return refuses() ? -1 : real(file, times);
}

int fchmod(int file, mode_t mode) {
    int (*real)(int, mode_t) = dlsym(RTLD_NEXT, "fchmod");
    return refuses() ? -1 : real(file, mode);
}

int chmod(const char *path, mode_t mode) {
    int (*real)(const char *, mode_t) = dlsym(RTLD_NEXT, "chmod");
    return refuses() ? -1 : real(path, mode);
}
