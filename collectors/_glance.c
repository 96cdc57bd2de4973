/* Reads the stack of another thread while that thread runs.
 *
 * A thread that holds the interpreter can only be read when it releases it. Busy Python does that
 * after 5 ms, and on a line that says little about the time before. Here, frames are read without
 * the interpreter. With it, while nothing is freed, a code object is only used if it is one: freed
 * memory has no references, or an allocator's words for their count and the type.
 */
#include "_memory.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <time.h>

/* A release that fixes bugs may move what is read and written here, which is no interface. */
#define COMPILED_FOR PY_VERSION " "
#include "../profkit/_same_python.h"

#define MOST_TRIES 20
#define LONGEST_WAIT_NS 1000000000
#define LONGEST_LET_NS 500000

/* The threads that wait for the interpreter here, and if the main thread was asked to let one in. */
static atomic_int waiting, asked;

static int64_t read_clock(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

/* Used with the interpreter only. */
static Py_ssize_t count_instructions(const PyCodeObject *code)
{
#if PY_VERSION_HEX < 0x030B0000
    return PyBytes_GET_SIZE(code->co_code) / (Py_ssize_t)sizeof(_Py_CODEUNIT);
#else
    return Py_SIZE(code);
#endif
}

/* The same, again if the thread has returned from an inner frame meanwhile. */
static int read_frames(int memory, const PyThreadState *thread, Seen *seen, int most)
{
    int count = -1;
    for (int tries = 0; count < 0 && tries < MOST_TRIES; tries++)
        count = follow(memory, thread, seen, most);
    return count;
}

/* Add where a frame is. One that has not begun is left out, as Python does. */
static int add(int memory, PyObject *found, const Seen *seen)
{
    if (!is_code(memory, seen->code)) return -1;
    if (seen->at < -1 || seen->at >= count_instructions(seen->code)) return -1;
#if PY_VERSION_HEX >= 0x030B0000
    if (!seen->is_generators && seen->at < seen->code->_co_firsttraceable) return 0;
#endif
    int line = PyCode_Addr2Line(seen->code, (int)(seen->at * (Py_ssize_t)sizeof(_Py_CODEUNIT)));
    PyObject *place = Py_BuildValue("(Oi)", seen->code, line < 0 ? 0 : line);
    int failed = !place || PyList_Append(found, place) < 0;
    Py_XDECREF(place);
    return failed ? -1 : 0;
}

static PyThreadState *find_thread(unsigned long number)
{
    PyThreadState *thread = PyInterpreterState_ThreadHead(PyInterpreterState_Get());
    while (thread && thread->thread_id != number) thread = PyThreadState_Next(thread);
    return thread;
}

/* Where the frames are, as a list; NULL if none is known, or with an exception.
 *
 * Code that runs once, as a module's, may be gone by now. Then the list begins with its caller.
 */
static PyObject *name_frames(int memory, const Seen *seen, int count, const PyObject *below)
{
    PyObject *found = PyList_New(0);
    for (int place = 0; found && place < count; place++) {
        if ((PyObject *)seen[place].code == below) return found;
        if (add(memory, found, &seen[place]) == 0) continue;
        if (PyErr_Occurred() || PyList_SetSlice(found, 0, PY_SSIZE_T_MAX, NULL) < 0)
            Py_CLEAR(found);
    }
    if (found && count && !PyList_GET_SIZE(found)) Py_CLEAR(found);
    return found;
}

/* In the main thread, between two instructions: let go of the interpreter until a waiting thread
 * has it. A thread that lets go of it often, but shortly, keeps it from all others for seconds:
 * it has it again before they wake up, and they ask it to wait for them only after 5 ms without
 * such a chance.
 */
static int let_in(void *unused)
{
    (void)unused;
    atomic_store(&asked, 0);
    if (!atomic_load(&waiting)) return 0;
    Py_BEGIN_ALLOW_THREADS
    int64_t until = read_clock() + LONGEST_LET_NS;
    while (atomic_load(&waiting) && read_clock() < until) sched_yield();
    Py_END_ALLOW_THREADS
    return 0;
}

/* Ask to be let in, once: if the main thread does nothing for long, its list would become full. */
static void ask(PyInterpreterState *interpreter)
{
    if (Py_IsFinalizing()) return; /* the list's lock may be gone */
    if (!atomic_exchange(&asked, 1) && Py_AddPendingCall(let_in, NULL) < 0) {
        atomic_store(&asked, 0);
        return;
    }
#if PY_VERSION_HEX < 0x030D0000
    /* Asked by another thread, the main thread would only look when it takes the interpreter. */
    _Py_atomic_store_relaxed(&interpreter->ceval.eval_breaker, 1);
#else
    (void)interpreter;
#endif
}

/* No thread waits in a new process. */
static void forget(void)
{
    atomic_store(&waiting, 0);
    atomic_store(&asked, 0);
}

static PyObject *look(PyObject *module, PyObject *arguments)
{
    unsigned long number;
    long long due;
    PyObject *below;
    Seen seen[MOST_DEPTH];
    (void)module;
    if (!PyArg_ParseTuple(arguments, "kLO", &number, &due, &below)) return NULL;
    const PyThreadState *thread = find_thread(number);
    if (!thread) Py_RETURN_NONE;
    PyInterpreterState *interpreter = PyInterpreterState_Get();
    int count, memory;
    int64_t at;
    Py_BEGIN_ALLOW_THREADS
    int64_t latest = read_clock() + LONGEST_WAIT_NS;
    if (due > latest) due = latest;
    struct timespec until = {due / 1000000000, due % 1000000000};
    if (due > 0) clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
    memory = open("/proc/self/mem", O_RDONLY | O_CLOEXEC); /* shortly: a fork would inherit it */
    at = read_clock();
    count = read_frames(memory, thread, seen, MOST_DEPTH);
    atomic_fetch_add(&waiting, 1);
    ask(interpreter);
    Py_END_ALLOW_THREADS
    atomic_fetch_sub(&waiting, 1);
    int64_t waited = read_clock() - at;
    PyObject *found = count < 0 ? NULL : name_frames(memory, seen, count, below);
    if (memory >= 0) close(memory);
    if (found) return Py_BuildValue("(NLL)", found, (long long)at, (long long)waited);
    if (PyErr_Occurred()) return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"look", look, METH_VARARGS,
     "look(thread, due_ns, below): wait until then, and return codes and lines of a thread, "
     "innermost first, when they were read, and how long the caller then waited to go on; None if "
     "they cannot be read. Frames outside the one of the code `below` are dropped."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_glance", "Reads the stack of a thread that runs.", -1, methods,
    NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__glance(void)
{
    if (is_other_python()) return NULL;
    pthread_atfork(NULL, NULL, forget);
    return PyModule_Create(&definition);
}
