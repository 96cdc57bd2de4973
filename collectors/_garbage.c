/* Times collections of garbage.
 *
 * In Python 3.11, a collection may begin while a library asks for the frames of a running thread. If
 * its callbacks are Python code, another thread takes the interpreter there, leaves the frame that is
 * about to become an object, and the process ends with a SIGSEGV. This function is no Python code.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <time.h>

#include "../profkit/_same_python.h"

/* When the collection that runs began, or 0; and the length of all and of the longest one. */
static int64_t began_ns, pause_ns, longest_ns;
static long long count;

/* For `gc.callbacks`. Python calls it on the thread that waits. */
static PyObject *note_collection(PyObject *module, PyObject *const *arguments, Py_ssize_t given)
{
    (void)module;
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    int64_t now = (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
    if (given && PyUnicode_Check(arguments[0]) &&
        !PyUnicode_CompareWithASCIIString(arguments[0], "start")) {
        began_ns = now;
    } else if (began_ns) {
        int64_t pause = now - began_ns;
        pause_ns += pause;
        if (pause > longest_ns) longest_ns = pause;
        count++;
        began_ns = 0;
    }
    Py_RETURN_NONE;
}

static PyObject *pauses(PyObject *module, PyObject *nothing)
{
    (void)module;
    (void)nothing;
    int64_t longest = longest_ns;
    longest_ns = 0;
    return Py_BuildValue("(LLL)", (long long)pause_ns, count, (long long)longest);
}

static PyMethodDef methods[] = {
    {"note_collection", (PyCFunction)(void (*)(void))note_collection, METH_FASTCALL,
     "note_collection(phase, info): time collections, as one of `gc.callbacks`."},
    {"pauses", pauses, METH_NOARGS,
     "pauses() -> (pause_ns, count, longest_ns) of collections; the longest one since this call."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_garbage", "Times collections of garbage.", -1, methods,
    NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__garbage(void)
{
    if (is_other_python()) return NULL;
    return PyModule_Create(&definition);
}
