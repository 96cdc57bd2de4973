/* Writes the stacks of all threads if native code holds the interpreter for long.
 *
 * Python code calls `beat` again and again. If it cannot, then no Python code runs at all, and the
 * frames that are read here stay as they are. The thread counts its own turns, not the time: when a
 * process was stopped and goes on, Python code runs again before the count is full. Python's own
 * timer (`faulthandler.dump_traceback_later`) goes by the clock. After a stop it would read frames
 * that the job is changing, which ends the job with a SIGSEGV.
 */
#define _GNU_SOURCE
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define TURN_NS 100000000L
#define TURNS_PER_SECOND 10
#define STACK_BYTES (256 * 1024)

#if PY_VERSION_HEX < 0x030D0000
#define Py_IsFinalizing _Py_IsFinalizing
#endif

/* Nobody sends it, so nobody handles it. */
#ifdef SIGSTKFLT
#define SPARE_SIGNAL SIGSTKFLT
#else
#define SPARE_SIGNAL SIGURG
#endif

static const char HEAD[] = "Timeout (no Python code could run)!\n";

static void (*dump)(int); /* what Python's fault handler does at the spare signal */
static int file = -1;
static struct stat opened; /* a job that closes all descriptors uses their numbers again */
static long most_turns;
static atomic_long turns;
static atomic_long watch_number; /* the thread of an earlier watch ends */

static int is_still_open(void)
{
    struct stat now;
    return !fstat(file, &now) && now.st_dev == opened.st_dev && now.st_ino == opened.st_ino;
}

static void write_stacks(void)
{
    if (Py_IsFinalizing()) return; /* the interpreter takes its frames apart */
    if (!is_still_open()) return;
    if (write(file, HEAD, sizeof HEAD - 1) < 0) return;
    dump(SPARE_SIGNAL);
}

static void *count_turns(void *own_number)
{
    const struct timespec turn = {0, TURN_NS};
#ifdef __linux__
    pthread_setname_np(pthread_self(), "profkit-held"); /* as our other threads are called */
#endif
    while (atomic_load(&watch_number) == (long)(intptr_t)own_number) {
        nanosleep(&turn, NULL);
        if (atomic_fetch_add(&turns, 1) == most_turns) write_stacks();
    }
    return NULL;
}

/* A signal is for the job's own threads, whose calls it interrupts: here all are blocked. */
static int start_thread(void *number)
{
    sigset_t all, before;
    pthread_attr_t attributes;
    pthread_t thread;
    sigfillset(&all);
    if (pthread_attr_init(&attributes)) return -1;
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(&thread, &attributes, count_turns, number);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return failed;
}

/* Have Python's fault handler know the file, and find the function that writes all stacks into it.
 *
 * Only some versions of Python export that function. Each calls it at a signal that is registered.
 * Then the signal does again what it did before.
 */
static int find_dump(void)
{
    struct sigaction before, set;
    if (sigaction(SPARE_SIGNAL, NULL, &before) || before.sa_handler != SIG_DFL) return -1;
    PyObject *handler = PyImport_ImportModule("faulthandler");
    PyObject *done = handler ? PyObject_CallMethod(handler, "register", "iiOO", SPARE_SIGNAL, file,
                                                   Py_True, Py_False)
                             : NULL;
    Py_XDECREF(handler);
    Py_XDECREF(done);
    if (!done || sigaction(SPARE_SIGNAL, &before, &set)) return -1;
    /* A second time, only the file is another one. */
    if (set.sa_handler != SIG_DFL) dump = set.sa_handler;
    return dump ? 0 : -1;
}

static PyObject *watch(PyObject *self, PyObject *args)
{
    int descriptor;
    double seconds;
    if (!PyArg_ParseTuple(args, "id", &descriptor, &seconds)) return NULL;
    if (file >= 0 && is_still_open()) close(file);
    file = fcntl(descriptor, F_DUPFD_CLOEXEC, 0); /* kept: it may be written to after the last watch */
    if (file < 0 || fstat(file, &opened)) Py_RETURN_FALSE;
    if (find_dump()) {
        PyErr_Clear();
        Py_RETURN_FALSE;
    }
    most_turns = (long)(seconds * TURNS_PER_SECOND);
    atomic_store(&turns, 0);
    long number = atomic_fetch_add(&watch_number, 1) + 1;
    return PyBool_FromLong(start_thread((void *)(intptr_t)number) == 0);
}

static PyObject *beat(PyObject *self, PyObject *ignored)
{
    atomic_store(&turns, 0);
    Py_RETURN_NONE;
}

static PyObject *end(PyObject *self, PyObject *ignored)
{
    atomic_fetch_add(&watch_number, 1);
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"watch", watch, METH_VARARGS,
     "Write stacks into a descriptor after so many seconds without a beat; false if impossible."},
    {"beat", beat, METH_NOARGS, "Note that Python code can run."},
    {"end", end, METH_NOARGS, "Watch no longer."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_held", "Sees that native code holds the interpreter.", -1, methods,
    NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__held(void)
{
    return PyModule_Create(&module);
}
