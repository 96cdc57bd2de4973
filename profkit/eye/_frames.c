/* Follows frames in memory that was read of another process, several times at once.
 *
 * It reads only what it is given. `following.py` does the same in Python, more slowly.
 */
#define _GNU_SOURCE
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <sys/uio.h>

#include "../_same_python.h"

#define MOST_DEPTH 128

/* As `_Window` packs it. Places of values are within a frame, and within a pass. */
typedef struct {
    int64_t passes, length, size, back, code, instruction, owner, pointer, entered;
} Form;

typedef struct {
    uint64_t start, end, offset;
} Region;

/* The pieces of memory of each pass. */
typedef struct {
    const Form *form;
    const Region *regions;
    Py_ssize_t count;
} Window;

static uint64_t number_at(const char *content)
{
    uint64_t number;
    memcpy(&number, content, sizeof number);
    return number;
}

/* Where an address is in a pass; -1 if so much of it was not read. */
static int64_t find(const Window *window, uint64_t address, int64_t size)
{
    for (Py_ssize_t i = 0; i < window->count; i++) {
        const Region *at = window->regions + i;
        int64_t offset = (int64_t)(at->offset + address - at->start);
        if (address >= at->start && address < at->end)
            return address + size <= at->end && offset + size <= window->form->length ? offset : -1;
    }
    return -1;
}

static int is_innermost_same(const char *one, const char *other, const Form *form)
{
    return number_at(one + form->back) == number_at(other + form->back) &&
           number_at(one + form->code) == number_at(other + form->code) &&
           (form->owner < 0 || one[form->owner] == other[form->owner]);
}

/* Where the frames of a pass are in it, innermost first; -1 if one of them was not read. */
static int walk(const char *pass, const Window *window, int64_t *places)
{
    const Form *form = window->form;
    uint64_t address = number_at(pass + form->pointer);
    int count = 0;
    if (form->entered >= 0) {
        int64_t offset = find(window, address + form->entered, 8);
        if (offset < 0) return -1;
        address = number_at(pass + offset);
    }
    while (address && count < MOST_DEPTH) {
        int64_t offset = find(window, address, form->size);
        if (offset < 0) return -1;
        places[count++] = offset;
        address = number_at(pass + offset + form->back);
    }
    return count;
}

/* The innermost frame that all passes share with those outside it; beyond the last if there is none. */
static int shared(const char *content, const Window *window, const int64_t *places, int count)
{
    const Form *form = window->form;
    int64_t others[MOST_DEPTH];
    int first = 0;
    for (int64_t pass = 1; pass < form->passes; pass++) {
        const char *other = content + pass * form->length;
        int i = count, j = walk(other, window, others), is_fixed = 1;
        if (j < 0) return -1;
        if (!count && j) return 1;
        while (i > first && j > 0 && is_fixed && places[i - 1] == others[j - 1] &&
               is_innermost_same(content + places[i - 1], other + others[j - 1], form)) {
            i--, j--;
            is_fixed = !memcmp(content + places[i], other + places[i], form->size);
        }
        first = i;
    }
    return first;
}

static PyObject *name_frames(const char *content, const Form *form, const int64_t *places, int count)
{
    PyObject *codes = PyTuple_New(count), *owners = PyTuple_New(count), *at = PyTuple_New(count);
    for (int i = 0; codes && owners && at && i < count; i++) {
        /* The innermost frame may have gone on: as it was in the last pass. */
        const char *frame = content + places[i] + (i ? 0 : (form->passes - 1) * form->length);
        int32_t number;
        memcpy(&number, frame + form->instruction, sizeof number);
        PyTuple_SET_ITEM(codes, i, PyLong_FromUnsignedLongLong(number_at(frame + form->code) & ~7ULL));
        PyTuple_SET_ITEM(owners, i, PyLong_FromLong(form->owner < 0 ? 0 : (unsigned char)frame[form->owner]));
        PyTuple_SET_ITEM(at, i, form->owner < 0 ? PyLong_FromLong(number)
                         : PyLong_FromUnsignedLongLong(number_at(frame + form->instruction)));
    }
    return codes && owners && at && !PyErr_Occurred() ? Py_BuildValue("(NNN)", codes, at, owners) : NULL;
}

static PyObject *follow(PyObject *module, PyObject *arguments)
{
    Py_buffer given, packed, listed;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "y*y*y*", &given, &packed, &listed)) return NULL;
    int64_t places[MOST_DEPTH];
    PyObject *found = NULL;
    Form form = {0};
    if (packed.len == sizeof form) memcpy(&form, packed.buf, sizeof form);
    Window window = {&form, listed.buf, listed.len / (Py_ssize_t)sizeof(Region)};
    if (!form.passes || form.passes * form.length > given.len) {
        PyErr_SetString(PyExc_ValueError, "not what was read");
    } else {
        int count = walk(given.buf, &window, places);
        int first = count < 0 ? -1 : shared(given.buf, &window, places, count);
        if (first < 0) found = Py_NewRef(Py_None);
        else if (first && (first >= count || count == MOST_DEPTH)) found = PyBool_FromLong(0);
        else found = name_frames(given.buf, &form, places + first, count - first);
    }
    PyBuffer_Release(&given);
    PyBuffer_Release(&packed);
    PyBuffer_Release(&listed);
    return found;
}

/* Read pieces of memory, whose sizes have this sum; None if one of them is not there. */
static PyObject *read_pieces(PyObject *module, PyObject *arguments)
{
    int pid;
    Py_buffer pieces;
    Py_ssize_t size;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "iy*n", &pid, &pieces, &size)) return NULL;
    PyObject *content = PyBytes_FromStringAndSize(NULL, size);
    if (content) {
        struct iovec own = {PyBytes_AS_STRING(content), size};
        unsigned long count = pieces.len / sizeof(struct iovec);
        if (process_vm_readv(pid, &own, 1, pieces.buf, count, 0) != size)
            Py_SETREF(content, Py_NewRef(Py_None));
    }
    PyBuffer_Release(&pieces);
    return content;
}

static PyMethodDef methods[] = {
    {"read", read_pieces, METH_VARARGS,
     "read(pid, pieces, size): the bytes of pieces of memory of a process; None if one is missing."},
    {"follow", follow, METH_VARARGS,
     "follow(content, form, regions): codes, instructions and owners of the frames that all "
     "passes share; None if one was not read, False if they share none."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_frames", "Follows frames of another process.", -1, methods,
    NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__frames(void)
{
    if (is_other_python()) return NULL;
    return PyModule_Create(&definition);
}
