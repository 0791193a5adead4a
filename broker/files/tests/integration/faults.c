// Makes looking at folders fail, as a broken disk or a process without descriptors does. Loaded before the C library.
//
// access("/baton-faults/ERRNO/AFTER/STICKY", 0) arms it: after AFTER calls the next one fails, or all that follow do.
// ERRNO 0 disarms it.
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

static int error, after, sticky;

static int fails(void) {
    if (error == 0 || after-- > 0) return 0;
    errno = error;
    if (!sticky) error = 0;
    return 1;
}

int access(const char *path, int mode) {
    if (sscanf(path, "/baton-faults/%d/%d/%d", &error, &after, &sticky) == 3) return 0;
    int (*real)(const char *, int) = dlsym(RTLD_NEXT, "access");
    return real(path, mode);
}

DIR *opendir(const char *path) {
    DIR *(*real)(const char *) = dlsym(RTLD_NEXT, "opendir");
    return fails() ? NULL : real(path);
}

struct dirent64 *readdir64(DIR *folder) {
    struct dirent64 *(*real)(DIR *) = dlsym(RTLD_NEXT, "readdir64");
    return fails() ? NULL : real(folder);
}

int statx(int folder, const char *path, int flags, unsigned mask, struct statx *found) {
    int (*real)(int, const char *, int, unsigned, struct statx *) = dlsym(RTLD_NEXT, "statx");
    return fails() ? -1 : real(folder, path, flags, mask, found);
}

ssize_t readlink(const char *path, char *target, size_t size) {
    ssize_t (*real)(const char *, char *, size_t) = dlsym(RTLD_NEXT, "readlink");
    return fails() ? -1 : real(path, target, size);
}
