/* Preloaded, it blocks calls on what is in the folder STUCK_DISK for as long as the file
   STUCK_WHILE exists: a disk that does not answer. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void wait_for(const char *path)
{
    const char *disk = getenv("STUCK_DISK"), *is_stuck = getenv("STUCK_WHILE");
    if (disk && is_stuck && !strncmp(path, disk, strlen(disk)))
        while (!access(is_stuck, F_OK))
            usleep(100000);
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define WITH_PATH(type, name, declared, given) \
    type name declared { wait_for(path); return REAL(name) given; }
#define WITH_MODE(name) \
    int name(const char *path, int flags, ...) \
    { \
        va_list rest; \
        va_start(rest, flags); \
        mode_t mode = flags & O_CREAT ? va_arg(rest, mode_t) : 0; \
        va_end(rest); \
        wait_for(path); \
        return REAL(name)(path, flags, mode); \
    }

WITH_MODE(open)
WITH_MODE(open64)
WITH_PATH(int, mkdir, (const char *path, mode_t mode), (path, mode))
WITH_PATH(int, unlink, (const char *path), (path))
WITH_PATH(int, rename, (const char *path, const char *new), (path, new))
WITH_PATH(int, stat64, (const char *path, struct stat64 *found), (path, found))
WITH_PATH(int, lstat64, (const char *path, struct stat64 *found), (path, found))
WITH_PATH(int, stat, (const char *path, struct stat *found), (path, found))
WITH_PATH(int, lstat, (const char *path, struct stat *found), (path, found))

ssize_t write(int file, const void *data, size_t size)
{
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    path[length < 0 ? 0 : length] = 0;
    wait_for(path);
    return REAL(write)(file, data, size);
}
