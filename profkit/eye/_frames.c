/* Follows frames in memory that was read of another process, several times at once.
 *
 * It reads only what it is given. `_follow.py` does the same in Python, more slowly.
 */
#define _GNU_SOURCE
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <sys/uio.h>

#include "../_same_python.h"

#define MOST_DEPTH 128

/* As `_follow.py` packs it. Places of values are within a frame, and within a pass. */
typedef struct {
    int64_t passes, length, ahead, size, back, code, instruction, owner, first, second;
} Form;

typedef struct {
    uint64_t start, end, offset;
} Region;

static uint64_t number_at(const char *content)
{
    uint64_t number;
    memcpy(&number, content, sizeof number);
    return number;
}

/* Where a frame is in a pass; -1 if it was not read. */
static int64_t find(const Region *regions, Py_ssize_t count, uint64_t address, int64_t size)
{
    for (Py_ssize_t i = 0; i < count; i++)
        if (address >= regions[i].start && address < regions[i].end)
            return address + size <= regions[i].end
                       ? (int64_t)(regions[i].offset + address - regions[i].start)
                       : -1;
    return -1;
}

static int is_innermost_same(const char *one, const char *other, const Form *form)
{
    return number_at(one + form->back) == number_at(other + form->back) &&
           number_at(one + form->code) == number_at(other + form->code) &&
           (form->owner < 0 || one[form->owner] == other[form->owner]);
}

static int are_same(const char *content, const Form *form, const int64_t *places, int count)
{
    for (int64_t pass = 1; pass < form->passes; pass++) {
        const char *other = content + pass * form->length;
        if (memcmp(content + form->first, other + form->first, 8)) return 0;
        if (memcmp(content + form->second, other + form->second, 8)) return 0;
        if (count && !is_innermost_same(content + places[0], other + places[0], form)) return 0;
        for (int i = 1; i < count; i++)
            if (memcmp(content + places[i], other + places[i], form->size)) return 0;
    }
    return 1;
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
    unsigned long long address;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "y*y*y*K", &given, &packed, &listed, &address)) return NULL;
    const char *content = given.buf;
    const Region *regions = listed.buf;
    Py_ssize_t region_count = listed.len / (Py_ssize_t)sizeof *regions;
    int64_t places[MOST_DEPTH];
    int count = 0, is_known = packed.len == sizeof(Form);
    Form form = {0};
    PyObject *found = NULL;
    if (is_known) memcpy(&form, packed.buf, sizeof form);
    if (!is_known || form.passes * form.length > given.len || form.length < form.ahead) {
        PyErr_SetString(PyExc_ValueError, "not what was read");
    } else {
        while (address && count < MOST_DEPTH && is_known) {
            int64_t offset = find(regions, region_count, address, form.size);
            is_known = offset >= 0 && form.ahead + offset + form.size <= form.length;
            if (!is_known) break;
            places[count++] = form.ahead + offset;
            address = number_at(content + form.ahead + offset + form.back);
        }
        if (!is_known) found = Py_NewRef(Py_None);
        else if (!are_same(content, &form, places, count)) found = PyBool_FromLong(0);
        else found = name_frames(content, &form, places, count);
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
     "follow(content, form, regions, innermost): codes, instructions and owners of frames; None if "
     "one was not read, False if the passes differ."},
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
