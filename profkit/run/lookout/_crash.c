/* Lets the eye read the stack of a thread that crashes, before the process ends.
 *
 * The handler of a signal writes the signal and the thread into a file, and waits a moment for the
 * eye, which replaces that file. It reads nothing of the interpreter, and calls nothing of Python.
 *
 * Python's own fault handler is not used: as Python ends, it takes away handlers that another runtime
 * set after it.
 */
#define _GNU_SOURCE
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "../../_same_python.h"

#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define PAUSES 100
#define PAUSE_NS 10000000L

static const int CRASHES[] = {SIGSEGV, SIGFPE, SIGABRT, SIGBUS, SIGILL};
#define CRASH_COUNT (sizeof CRASHES / sizeof *CRASHES)

static char path[PATH_MAX];
static struct sigaction before[CRASH_COUNT];
static atomic_int catcher; /* the process whose crashes are written; a forked one is another */

static void ask_the_eye(int number)
{
    const uint64_t said[] = {(uint64_t)number, (uint64_t)pthread_self()};
    const struct timespec pause = {0, PAUSE_NS};
    struct stat now;
    int file = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (file < 0) return;
    if (write(file, said, sizeof said) == sizeof said)
        for (int turn = 0; turn < PAUSES && !fstat(file, &now) && now.st_nlink; turn++)
            nanosleep(&pause, NULL);
    close(file);
}

/* Afterwards, have the signal do what it would have done without us. */
static void at_crash(int number)
{
    size_t known = 0;
    while (CRASHES[known] != number) known++;
    if (getpid() == atomic_load(&catcher)) ask_the_eye(number);
    sigaction(number, &before[known], NULL);
    raise(number);
}

static int is_ours(int number, struct sigaction *now)
{
    return !sigaction(number, NULL, now) && now->sa_handler == at_crash;
}

/* A handler that somebody set after ours stays. It may call ours, which then writes nothing. */
static void release_crashes(void)
{
    struct sigaction now;
    atomic_store(&catcher, 0);
    for (size_t known = 0; known < CRASH_COUNT; known++)
        if (is_ours(CRASHES[known], &now)) sigaction(CRASHES[known], &before[known], NULL);
}

static PyObject *catch(PyObject *self, PyObject *argument)
{
    struct sigaction now, ours = {.sa_handler = at_crash, .sa_flags = SA_NODEFER | SA_ONSTACK};
    const char *given = PyBytes_AsString(argument);
    if (!given) return NULL;
    if (strlen(given) >= sizeof path) Py_RETURN_NONE;
    strcpy(path, given);
    for (size_t known = 0; known < CRASH_COUNT; known++) {
        if (is_ours(CRASHES[known], &now)) continue;
        before[known] = now;
        sigaction(CRASHES[known], &ours, NULL);
    }
    atomic_store(&catcher, getpid());
    Py_RETURN_NONE;
}

static PyObject *release(PyObject *self, PyObject *ignored)
{
    release_crashes();
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"catch", catch, METH_O, "At a signal that ends the process, have the eye read its stack."},
    {"release", release, METH_NOARGS, "Take our handlers of signals away, and only ours."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_crash", "Has the stack of a crash read.", -1, methods,
    NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__crash(void)
{
    if (is_other_python()) return NULL;
    pthread_atfork(NULL, NULL, release_crashes); /* the crash of a child is not one of the rank */
    return PyModule_Create(&module);
}
