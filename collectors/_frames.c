/* Reads the stacks of other threads while none of them can go on, and times collections of garbage.
 *
 * A frame that is asked for becomes an object. In Python 3.11 that may begin a collection of
 * garbage, whose callbacks are Python code: another thread takes the interpreter there, leaves the
 * frame that is about to become an object, and the process ends with a SIGSEGV. Here no collection
 * begins, and no Python code runs between the first frame and the last. For readers of stacks in
 * other libraries, the function that times collections is no Python code either.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <time.h>

#include <frameobject.h> /* in Python 3.10, `Python.h` does not declare all of it */

#include "../profkit/_same_python.h"

static PyObject *current_frames; /* `sys._current_frames` */

/* Append where each frame is, innermost first. */
static int walk(PyObject *found, PyFrameObject *frame, Py_ssize_t most, PyObject *below)
{
    Py_INCREF(frame);
    while (frame && PyList_GET_SIZE(found) < most) {
        PyObject *code = (PyObject *)PyFrame_GetCode(frame);
        if (code == below) {
            Py_DECREF(code);
            break;
        }
        int line = PyFrame_GetLineNumber(frame);
        PyObject *place = Py_BuildValue("(Oi)", code, line < 0 ? 0 : line);
        int failed = !place || PyList_Append(found, place) < 0;
        Py_XDECREF(place);
        Py_DECREF(code);
        PyFrameObject *back = failed ? NULL : PyFrame_GetBack(frame);
        Py_DECREF(frame);
        frame = back;
        if (failed) return -1;
    }
    Py_XDECREF(frame);
    return 0;
}

static PyObject *read_stack(unsigned long thread, Py_ssize_t most, PyObject *below)
{
    PyObject *frames = PyObject_CallNoArgs(current_frames), *found = frames ? PyList_New(0) : NULL;
    PyObject *key = found ? PyLong_FromUnsignedLong(thread) : NULL;
    PyObject *frame = key ? PyDict_GetItemWithError(frames, key) : NULL;
    int failed = !key || (!frame && PyErr_Occurred());
    if (frame) failed = walk(found, (PyFrameObject *)frame, most, below) < 0;
    Py_XDECREF(key);
    Py_XDECREF(frames);
    if (failed) Py_CLEAR(found);
    return found;
}

static PyObject *read_all(void)
{
    PyObject *frames = PyObject_CallNoArgs(current_frames), *found = frames ? PyDict_New() : NULL;
    PyObject *thread, *frame;
    Py_ssize_t place = 0;
    int failed = !found;
    while (!failed && PyDict_Next(frames, &place, &thread, &frame)) {
        PyObject *own = PyList_New(0);
        failed = !own || walk(own, (PyFrameObject *)frame, PY_SSIZE_T_MAX, NULL) < 0 ||
                 PyDict_SetItem(found, thread, own) < 0;
        Py_XDECREF(own);
    }
    Py_XDECREF(frames);
    if (failed) Py_CLEAR(found);
    return found;
}

static PyObject *stack_of(PyObject *module, PyObject *arguments)
{
    (void)module;
    unsigned long thread;
    Py_ssize_t most;
    PyObject *below;
    if (!PyArg_ParseTuple(arguments, "knO", &thread, &most, &below)) return NULL;
    int collects = PyGC_Disable();
    PyObject *found = read_stack(thread, most, below);
    if (collects) PyGC_Enable();
    return found;
}

static PyObject *stacks(PyObject *module, PyObject *nothing)
{
    (void)module;
    (void)nothing;
    int collects = PyGC_Disable();
    PyObject *found = read_all();
    if (collects) PyGC_Enable();
    return found;
}

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
    {"stack_of", stack_of, METH_VARARGS, "Return codes and lines of a thread, innermost first."},
    {"stacks", stacks, METH_NOARGS, "Return codes and lines of all threads, innermost first."},
    {"note_collection", (PyCFunction)(void (*)(void))note_collection, METH_FASTCALL,
     "note_collection(phase, info): time collections, as one of `gc.callbacks`."},
    {"pauses", pauses, METH_NOARGS,
     "pauses() -> (pause_ns, count, longest_ns) of collections; the longest one since this call."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_frames", "Reads the stacks of other threads.", -1, methods,
    NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__frames(void)
{
    if (is_other_python()) return NULL;
    PyObject *sys = PyImport_ImportModule("sys");
    current_frames = sys ? PyObject_GetAttrString(sys, "_current_frames") : NULL;
    Py_XDECREF(sys);
    return current_frames ? PyModule_Create(&definition) : NULL;
}
