/* Faults of the disk and steps of the clock for a process that runs with LD_PRELOAD.

   The file named by L2H_PRELOAD is mapped as `struct control`; preload.py writes to it while the process runs, and a
   forked process shares it. Only writes to regular files are counted: a pipe or a socket never fails. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum { NEVER, DIE, TEAR, FAIL, TEAR_FAIL, SHORT }; /* in the order of preload.py */

static struct control {
  int64_t wall, boot;   /* nanoseconds by which CLOCK_REALTIME and CLOCK_BOOTTIME differ from the true ones */
  int64_t frozen;       /* not 0: both clocks stand at these values */
  int64_t boot_number;  /* not 0: what stands in /proc/sys/kernel/random/boot_id */
  int64_t calls, at;    /* calls that change a file, and the one of them with which the fault begins */
  int64_t how, error;   /* what happens then, and the errno of a failure */
  int64_t lasting;      /* how many calls fail */
  int64_t sleeps;       /* calls of usleep, by which SQLite waits for a lock */
} nothing, *control = &nothing;

__attribute__((constructor)) static void map_control(void) {
  const char *path = getenv("L2H_PRELOAD");
  int file = path == NULL ? -1 : (int)syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC);
  if (file < 0) return;
  void *mapped = mmap(NULL, sizeof(struct control), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (mapped != MAP_FAILED) control = mapped;
  close(file);
}

/* ---- clocks ---- */

int clock_gettime(clockid_t id, struct timespec *now) {
  int failed = (int)syscall(SYS_clock_gettime, id, now);
  int wall = id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE;
  if (failed || !(wall || id == CLOCK_BOOTTIME)) return failed;
  int64_t ns = (wall ? control->wall : control->boot);
  if (!control->frozen) ns += now->tv_sec * 1000000000LL + now->tv_nsec;
  now->tv_sec = ns / 1000000000LL;
  now->tv_nsec = ns % 1000000000LL;
  return 0;
}

int gettimeofday(struct timeval *now, void *zone) {
  struct timespec precise;
  (void)zone;
  clock_gettime(CLOCK_REALTIME, &precise);
  now->tv_sec = precise.tv_sec;
  now->tv_usec = precise.tv_nsec / 1000;
  return 0;
}

time_t time(time_t *out) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (out != NULL) *out = now.tv_sec;
  return now.tv_sec;
}

int usleep(useconds_t microseconds) {
  struct timespec span = {microseconds / 1000000, microseconds % 1000000 * 1000};
  __atomic_fetch_add(&control->sleeps, 1, __ATOMIC_SEQ_CST);
  return nanosleep(&span, NULL);
}

static int open_as(const char *path, int flags, mode_t mode) {
  if (control->boot_number != 0 && strcmp(path, "/proc/sys/kernel/random/boot_id") == 0) {
    char text[64];
    int length = snprintf(text, sizeof text, "boot-%lld\n", (long long)control->boot_number);
    int file = memfd_create("boot_id", MFD_CLOEXEC);
    if (file >= 0 && syscall(SYS_pwrite64, file, text, length, 0) == length) return file;
  }
  return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

#define OPEN(name)                                    \
  int name(const char *path, int flags, ...) {        \
    va_list more;                                     \
    va_start(more, flags);                            \
    mode_t mode = va_arg(more, mode_t);               \
    va_end(more);                                     \
    return open_as(path, flags, mode);                \
  }
OPEN(open)
OPEN(open64)

/* ---- files ---- */

/* What is to happen to this call: NEVER unless its turn has come. */
static int64_t fault(int file) {
  struct stat status;
  if (control->how == NEVER || fstat(file, &status) || !S_ISREG(status.st_mode)) return NEVER;
  int64_t call = __atomic_add_fetch(&control->calls, 1, __ATOMIC_SEQ_CST);
  if (call < control->at || call >= control->at + control->lasting) return NEVER;
  if (control->how == DIE) _exit(137);
  return control->how;
}

static ssize_t faulty_write(int file, const void *data, size_t size, off_t where) {
  int64_t how = fault(file);
  if (how == FAIL) { errno = (int)control->error; return -1; }
  size_t part = how == NEVER || size < 2 ? size : size / 2;
  ssize_t written = where < 0 ? syscall(SYS_write, file, data, part) : syscall(SYS_pwrite64, file, data, part, where);
  if (how == TEAR) _exit(137);
  if (how == TEAR_FAIL) { errno = (int)control->error; return -1; }
  return written;
}

/* A call without data: it happens as a whole or not at all. */
static int faulty(int file, int number, long argument) {
  int64_t how = fault(file);
  if (how == TEAR) _exit(137);
  if (how == FAIL || how == TEAR_FAIL) { errno = (int)control->error; return -1; }
  return (int)syscall(number, file, argument);
}

ssize_t write(int file, const void *data, size_t size) { return faulty_write(file, data, size, -1); }
ssize_t pwrite(int file, const void *data, size_t size, off_t where) { return faulty_write(file, data, size, where); }
ssize_t pwrite64(int file, const void *data, size_t size, off_t where) { return faulty_write(file, data, size, where); }
int fsync(int file) { return faulty(file, SYS_fsync, 0); }
int fdatasync(int file) { return faulty(file, SYS_fdatasync, 0); }
int ftruncate(int file, off_t size) { return faulty(file, SYS_ftruncate, size); }
int ftruncate64(int file, off_t size) { return faulty(file, SYS_ftruncate, size); }
