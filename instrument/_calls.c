/* Records the usual operations of process groups, as the classes in Python do that specify this
 * file: `GroupHooks`, `GroupCalls` and `CallLog`.
 *
 * An operation hands its work to other threads, which drives our code and data out of the caches,
 * and a frame of Python costs most where there is none yet: on a backend's thread. What is not
 * usual is left to the classes in Python, before anything was changed. Both share their
 * dictionaries, so that an operation that begins here may end there.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <structmember.h>
#include <time.h>

#include "../profkit/_same_python.h"

/* What came of an attempt: an exception is set, it is left to Python, or it is done. */
enum Made { FAILED = -1, LEFT, MADE };

/* The first fields of the tuples in Python that are read and made here. */
enum GroupField {
    NAME, SIZE, BACKEND, BLOCKS, MEMBERS, PEER, DIMENSION, HAS_FUTURES, GROUP_FIELDS
};
enum OperationField { OP, IN_OUTPUTS, IS_PART, HAS_FUTURE, IS_MESSAGE };

static const char *const GROUP[] = {"name",    "size", "backend",   "blocks",
                                    "members", "peer", "dimension", "has_futures"};
static const char *const OPERATION[] = {"op", "in_outputs", "is_part", "has_future", "is_message"};
static const char *const CALL_ROW[] = {
    "communicator", "sequence", "op",      "bytes", "dtype",  "group_size", "ready_ns",  "start_ns",
    "end_ns",       "backend",  "step",    "bucket", "dimension", "module", "microbatch"};
static const char *const SPAN_ROW[] = {
    "step",   "phase",           "name",          "depth", "thread", "start_ns",
    "end_ns", "device_start_ns", "device_end_ns", "bytes", "error"};
#define COUNT(array) ((Py_ssize_t)(sizeof(array) / sizeof *(array)))

#define NAMES(X)                                                                                   \
    X(__dict__) X(__doc__) X(__module__) X(__name__) X(add_done_callback) X(append) X(async_op)    \
    X(before) X(by_address) X(clock) X(coalesced) X(data_ptr) X(depth) X(device) X(drop_marks)     \
    X(dtype) X(dtypes) X(end) X(end_wait) X(follow) X(forget) X(get_future) X(group) X(handles)    \
    X(hold_collective) X(in_flight) X(input_tensors) X(inside) X(is_uniform) X(is_waited)          \
    X(keep_inner) X(keep_rows) X(last) X(log) X(mark) X(module) X(modules_seen) X(name)            \
    X(nbytes) X(nests) X(notes) X(op_id) X(open) X(open_regions) X(operations)                     \
    X(output_tensors) X(own) X(parts) X(recorder) X(recording) X(sent_ns)                 \
    X(sequences) X(silent) X(step_now) X(thread) X(type) X(value) X(version) X(watched)          \
    X(word) X(work)
#define DECLARE(name) PyObject *name;
static struct { NAMES(DECLARE) } names;
static PyObject *is_async_name, *has_own_end_name; /* arguments by their names, as tuples */
static PyObject *allreduce, *now_ns, *nothing, *no_root;
static PyTypeObject *sent_type, *done_type, *held_type, *wait_type, *calls_type;

/* ---- one operation ---- */

typedef struct {
    PyObject_HEAD
    PyObject *group, *op, *size, *dtype, *sequence, *step, *start_ns, *mark, *module, *microbatch;
    PyObject *together;
    long long address;
    char is_over, is_sync, ends_with_wait, is_waited, has_future;
} Sent;

static int is_sent(PyObject *object) { return Py_IS_TYPE(object, sent_type); }

static PyObject *group_field(const Sent *sent, enum GroupField field)
{
    return PyTuple_GET_ITEM(sent->group, field);
}

static int blocks(const Sent *sent) { return group_field(sent, BLOCKS) == Py_True; }

static PyObject *message_of(PyObject *object, void *unused)
{
    const Sent *sent = (Sent *)object;
    (void)unused;
    return PyTuple_Pack(2, sent->size, sent->dtype);
}

static PyObject *new_sent(PyTypeObject *type, PyObject *arguments, PyObject *keywords)
{
    PyObject *group, *op, *size, *dtype, *sequence, *step, *start, *mark;
    if (keywords && PyDict_GET_SIZE(keywords)) {
        PyErr_SetString(PyExc_TypeError, "Sent takes no names of arguments");
        return NULL;
    }
    if (!PyArg_ParseTuple(arguments, "O!O(OO)OOOO", &PyTuple_Type, &group, &op, &size, &dtype,
                          &sequence, &step, &start, &mark))
        return NULL;
    if (PyTuple_GET_SIZE(group) < GROUP_FIELDS) {
        PyErr_SetString(PyExc_TypeError, "a group has more fields");
        return NULL;
    }
    Sent *sent = (Sent *)type->tp_alloc(type, 0);
    if (!sent) return NULL;
    sent->group = Py_NewRef(group);
    sent->op = Py_NewRef(op);
    sent->size = Py_NewRef(size);
    sent->dtype = Py_NewRef(dtype);
    sent->sequence = Py_NewRef(sequence);
    sent->step = Py_NewRef(step);
    sent->start_ns = Py_NewRef(start);
    sent->mark = Py_NewRef(mark);
    sent->together = Py_NewRef(nothing);
    sent->has_future = 1;
    return (PyObject *)sent;
}

static void free_sent(PyObject *object)
{
    Sent *sent = (Sent *)object;
    PyTypeObject *type = Py_TYPE(object);
    Py_XDECREF(sent->group);
    Py_XDECREF(sent->op);
    Py_XDECREF(sent->size);
    Py_XDECREF(sent->dtype);
    Py_XDECREF(sent->sequence);
    Py_XDECREF(sent->step);
    Py_XDECREF(sent->start_ns);
    Py_XDECREF(sent->mark);
    Py_XDECREF(sent->module);
    Py_XDECREF(sent->microbatch);
    Py_XDECREF(sent->together);
    type->tp_free(object);
    Py_DECREF(type);
}

#define FIELD(name, kind, flags) {#name, kind, offsetof(Sent, name), flags, NULL}

static PyMemberDef sent_members[] = {
    FIELD(group, T_OBJECT, READONLY),
    FIELD(op, T_OBJECT, READONLY),
    FIELD(sequence, T_OBJECT, READONLY),
    FIELD(step, T_OBJECT, READONLY),
    FIELD(start_ns, T_OBJECT, READONLY),
    FIELD(mark, T_OBJECT, READONLY),
    FIELD(module, T_OBJECT, 0),
    FIELD(microbatch, T_OBJECT, 0),
    FIELD(together, T_OBJECT, 0),
    FIELD(address, T_LONGLONG, 0),
    FIELD(is_over, T_BOOL, 0),
    FIELD(is_sync, T_BOOL, 0),
    FIELD(ends_with_wait, T_BOOL, 0),
    FIELD(is_waited, T_BOOL, 0),
    FIELD(has_future, T_BOOL, 0),
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef sent_parts[] = {
    {"message", message_of, NULL, "Its bytes and the type of its elements.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

/* No collector of garbage: what an operation refers to cannot refer to it. */
static PyType_Slot sent_slots[] = {
    {Py_tp_doc, "A collective that a process has entered."},
    {Py_tp_new, new_sent},
    {Py_tp_dealloc, free_sent},
    {Py_tp_members, sent_members},
    {Py_tp_getset, sent_parts},
    {0, NULL},
};

static PyType_Spec sent_spec = {"profkit.instrument._calls.Sent", sizeof(Sent), 0,
                                Py_TPFLAGS_DEFAULT, sent_slots};

/* ---- all operations of a job ---- */

#define CALLS(X)                                                                                   \
    X(calls) X(log) X(recorder) X(append) X(sequences) X(handles) X(in_flight) X(dtypes) X(silent) \
    X(remember_last) X(clock) X(here) X(set_eval_frame) X(forget) X(report) X(nests)               \
    X(of_calls) X(of_recorder) X(of_layout)

typedef struct {
    PyObject_HEAD
    CALLS(DECLARE) /* each of them NULL once it was collected, and `clock` for the monotonic one */
    /* `of_...` are the attributes of objects, as dictionaries: to ask the object takes longer. */
    Py_ssize_t most_open;
} Calls;

static PyObject *read_clock(const Calls *self)
{
    if (self->clock) return PyObject_CallNoArgs(self->clock);
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return PyLong_FromLongLong((int64_t)time.tv_sec * 1000000000 + time.tv_nsec);
}

/* Whether an attribute is true; -1 with an exception. */
static int read_flag(PyObject *object, PyObject *name)
{
    PyObject *found = PyObject_GetAttr(object, name);
    int flag = found ? PyObject_IsTrue(found) : -1;
    Py_XDECREF(found);
    return flag;
}

/* An attribute, borrowed; NULL with an exception. */
static PyObject *find(PyObject *attributes, PyObject *name)
{
    PyObject *found = PyDict_GetItemWithError(attributes, name);
    if (!found && !PyErr_Occurred()) PyErr_SetObject(PyExc_AttributeError, name);
    return found;
}

static int find_flag(PyObject *attributes, PyObject *name)
{
    PyObject *found = find(attributes, name);
    return found ? PyObject_IsTrue(found) : -1;
}

/* What this thread does, as a dictionary. What is not in it is false or `None`. */
static PyObject *read_here(const Calls *self)
{
    return PyObject_GetAttr(self->here, names.__dict__);
}

static PyObject *here_value(PyObject *here, PyObject *name)
{
    PyObject *found = PyDict_GetItemWithError(here, name);
    return found ? found : Py_None;
}

static int discard(PyObject *result)
{
    Py_XDECREF(result);
    return result ? MADE : FAILED;
}

/* Report an exception, unless it is the job's own, as an interrupt is. */
static PyObject *report_failure(const Calls *self, const char *site)
{
    PyObject *type, *error, *trace;
    if (!PyErr_Occurred()) Py_RETURN_NONE; /* what failed did not say why */
    if (!PyErr_ExceptionMatches(PyExc_Exception)) return NULL;
    PyErr_Fetch(&type, &error, &trace);
    PyErr_NormalizeException(&type, &error, &trace);
    PyObject *done = PyObject_CallFunction(self->report, "sO", site, error);
    Py_XDECREF(type);
    Py_XDECREF(error);
    Py_XDECREF(trace);
    if (!done) {
        if (!PyErr_ExceptionMatches(PyExc_Exception)) return NULL;
        PyErr_Clear();
    }
    Py_XDECREF(done);
    Py_RETURN_NONE;
}

/* Have torch's compiler leave the frames of this thread alone; returns what it did with them. */
static PyObject *pause_compiler(const Calls *self)
{
    return PyObject_CallOneArg(self->set_eval_frame, Py_None);
}

static void resume_compiler(const Calls *self, PyObject *was)
{
    PyObject *type, *error, *trace;
    PyErr_Fetch(&type, &error, &trace);
    PyObject *done = PyObject_CallOneArg(self->set_eval_frame, was);
    Py_DECREF(was);
    Py_XDECREF(done);
    if (!done) PyErr_Clear(); /* it takes what it has returned */
    PyErr_Restore(type, error, trace);
}

/* ---- rows ---- */

/* `SpanRecorder.keep_inner`, in the phase of the gradient exchange. */
static int keep_inner(const Calls *self, const Sent *sent, PyObject *start, PyObject *end)
{
    PyObject *recorder = self->of_recorder, *nest = NULL, *depth = NULL, *open = NULL;
    PyObject *level = NULL, *thread = NULL, *step = NULL, *row = NULL, *rows = NULL;
    PyObject *notes = find(recorder, names.notes);
    int made = FAILED, recording = find_flag(recorder, names.recording);
    if (!notes || recording < 0) return FAILED;
    Py_INCREF(notes);
    Py_ssize_t noted = notes == Py_None ? 0 : PyObject_Size(notes);
    if (noted < 0) goto done;
    if (!noted) { /* only beside other notes is a row noted */
        made = discard(PyObject_CallMethodObjArgs(self->recorder, names.keep_inner, allreduce,
                                                  sent->op, start, end, NULL));
        goto done;
    }
    if (!recording) {
        made = MADE;
        goto done;
    }
    if (!(nest = PyObject_GetAttr(self->nests, names.own))) goto done;
    if (!(depth = PyObject_GetAttr(nest, names.depth))) goto done;
    if (!(thread = PyObject_GetAttr(nest, names.thread))) goto done;
    if (!(open = PyObject_CallMethodNoArgs(notes, names.open_regions))) goto done;
    if (!(level = PyNumber_Add(depth, open))) goto done;
    if (!(step = PyObject_GetAttr(self->recorder, names.step_now))) goto done;
    row = PyTuple_Pack(COUNT(SPAN_ROW), step, allreduce, sent->op, level, thread, start, end,
                       Py_None, Py_None, Py_None, Py_None);
    rows = row ? PyList_New(1) : NULL;
    if (!rows) goto done;
    PyList_SET_ITEM(rows, 0, Py_NewRef(row));
    made = discard(PyObject_CallMethodOneArg(notes, names.keep_rows, rows));
done:
    Py_DECREF(notes);
    Py_XDECREF(nest);
    Py_XDECREF(depth);
    Py_XDECREF(thread);
    Py_XDECREF(open);
    Py_XDECREF(level);
    Py_XDECREF(step);
    Py_XDECREF(row);
    Py_XDECREF(rows);
    return made;
}

static PyObject *or_none(PyObject *value) { return value ? value : Py_None; }

/* Hand a row to the device's timer, until the device has reached the operation's end. */
static int hold(const Calls *self, const Sent *sent, PyObject *row)
{
    PyObject *device = find(self->of_recorder, names.device);
    if (!device || device == Py_None) return device ? MADE : FAILED;
    PyObject *mark = PyObject_CallMethodNoArgs(device, names.mark);
    if (!mark) return FAILED;
    PyObject *has_own_end = sent->is_sync || !sent->ends_with_wait ? Py_True : Py_False;
    PyObject *arguments[] = {device, row, sent->mark, mark, self->append, has_own_end};
    int made = discard(
        PyObject_VectorcallMethod(names.hold_collective, arguments, 5, has_own_end_name));
    Py_DECREF(mark);
    return made;
}

/* `CallLog.end`. */
static int finish(const Calls *self, Sent *sent, int waited)
{
    PyObject *now = read_clock(self);
    if (!now) return FAILED;
    sent->is_over = 1;
    int made = find_flag(self->of_recorder, names.recording);
    if (made <= 0) {
        Py_DECREF(now);
        if (made < 0 || sent->mark == Py_None) return made < 0 ? FAILED : MADE;
        return discard(
            PyObject_CallMethodOneArg(self->recorder, names.drop_marks, sent->mark));
    }
    PyObject *row = PyTuple_Pack(
        COUNT(CALL_ROW), group_field(sent, NAME), sent->sequence, sent->op, sent->size, sent->dtype,
        group_field(sent, SIZE), sent->start_ns, sent->start_ns, now, group_field(sent, BACKEND),
        sent->step, Py_None, group_field(sent, DIMENSION), or_none(sent->module),
        or_none(sent->microbatch));
    if (!row) made = FAILED;
    else if (!blocks(sent)) made = hold(self, sent, row);
    else made = discard(PyObject_CallOneArg(self->append, row));
    Py_XDECREF(row);
    if (made == MADE && waited && blocks(sent)) made = keep_inner(self, sent, sent->start_ns, now);
    Py_DECREF(now);
    return made;
}

/* ---- the end of an operation for whose future we have asked ---- */

typedef struct {
    PyObject_HEAD
    Calls *calls;
    Sent *sent;
    PyObject *work; /* keeps the handle, by which `Work.wait` finds the operation */
} Done;

static PyObject *new_done(Calls *calls, Sent *sent, PyObject *work)
{
    Done *self = PyObject_GC_New(Done, done_type);
    if (!self) return NULL;
    self->calls = (Calls *)Py_NewRef(calls);
    self->sent = (Sent *)Py_NewRef(sent);
    self->work = Py_NewRef(work);
    PyObject_GC_Track(self);
    return (PyObject *)self;
}

static int visit_done(PyObject *object, visitproc visit, void *arg)
{
    Done *self = (Done *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->calls);
    Py_VISIT(self->work);
    return 0;
}

static int clear_done(PyObject *object)
{
    Done *self = (Done *)object;
    Py_CLEAR(self->calls);
    Py_CLEAR(self->sent);
    Py_CLEAR(self->work);
    return 0;
}

static void free_done(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    clear_done(object);
    PyObject_GC_Del(object);
    Py_DECREF(type);
}

/* Nobody may wait for this address any more. */
static int forget_address(const Calls *self, const Sent *sent)
{
    PyObject *address = PyLong_FromLongLong(sent->address);
    if (!address) return FAILED;
    int failed = 0;
    if (PyDict_GetItemWithError(self->in_flight, address) == (PyObject *)sent)
        failed = PyDict_DelItem(self->in_flight, address) < 0;
    Py_DECREF(address);
    return failed || PyErr_Occurred() ? FAILED : MADE;
}

/* A thread of the backend calls this, and the job waits for it. */
static PyObject *call_done(PyObject *object, PyObject *unused, PyObject *names_unused)
{
    Done *self = (Done *)object;
    (void)unused;
    (void)names_unused;
    if (!self->calls || !self->calls->log) Py_RETURN_NONE; /* collected */
    int made = self->sent->address ? forget_address(self->calls, self->sent) : MADE;
    if (made == MADE) made = finish(self->calls, self->sent, 0);
    if (made == FAILED) return report_failure(self->calls, "collective done");
    Py_RETURN_NONE;
}

static PyType_Slot done_slots[] = {
    {Py_tp_doc, "Called when an operation is done."},
    {Py_tp_dealloc, free_done},
    {Py_tp_traverse, visit_done},
    {Py_tp_clear, clear_done},
    {Py_tp_call, call_done},
    {0, NULL},
};

static PyType_Spec done_spec = {"profkit.instrument._calls.Done", sizeof(Done), 0,
                                Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, done_slots};

static PyObject *done(PyObject *object, PyObject *const *arguments, Py_ssize_t count)
{
    if (count != 2 || !is_sent(arguments[0])) {
        PyErr_SetString(PyExc_TypeError, "done takes an operation made here, and its handle");
        return NULL;
    }
    return new_done((Calls *)object, (Sent *)arguments[0], arguments[1]);
}

/* ---- waits ---- */

/* A handle that the job may drop, as `Held`. */
typedef struct {
    PyWeakReference handle;
    Calls *calls;
    PyObject *key;
    Sent *sent;
} Held;

static int visit_held(PyObject *object, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(((Held *)object)->calls);
    return _PyWeakref_RefType.tp_traverse(object, visit, arg);
}

static int clear_held(PyObject *object)
{
    Held *self = (Held *)object;
    Py_CLEAR(self->calls);
    Py_CLEAR(self->key);
    Py_CLEAR(self->sent);
    return _PyWeakref_RefType.tp_clear(object);
}

static void free_held(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    clear_held(object);
    _PyWeakref_RefType.tp_dealloc(object);
    Py_DECREF(type);
}

static PyType_Slot held_slots[] = {
    {Py_tp_doc, "A handle that the job may drop."},
    {Py_tp_dealloc, free_held},
    {Py_tp_traverse, visit_held},
    {Py_tp_clear, clear_held},
    {0, NULL},
};

static PyType_Spec held_spec = {"profkit.instrument._calls.Held", sizeof(Held), 0,
                                Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, held_slots};

/* `CallLog.forget`. */
static int forget_call(const Calls *self, Sent *sent)
{
    if (sent->mark != Py_None || PyObject_Size(sent->together))
        return discard(PyObject_CallMethodOneArg(self->log, names.forget, (PyObject *)sent));
    sent->is_over = 1;
    return MADE;
}

static PyObject *forget(PyObject *object, PyObject *handle)
{
    Calls *self = (Calls *)object;
    if (!Py_IS_TYPE(handle, held_type)) Py_RETURN_NONE;
    Held *held = (Held *)handle;
    if (!self->handles || !held->key) Py_RETURN_NONE; /* collected */
    int made = PyDict_Contains(self->handles, held->key);
    if (made > 0) {
        Sent *sent = (Sent *)Py_NewRef(held->sent); /* the dictionary may have the last reference */
        made = PyDict_DelItem(self->handles, held->key) < 0 ? FAILED : forget_call(self, sent);
        Py_DECREF(sent);
    }
    if (made == FAILED) return report_failure(self, "collective forgotten");
    Py_RETURN_NONE;
}

/* `GroupCalls._remember`. */
static int remember(Calls *self, PyObject *work, Sent *sent)
{
    PyObject *arguments = PyTuple_Pack(2, work, self->forget), *pair = NULL;
    Held *held = NULL;
    if (arguments) held = (Held *)_PyWeakref_RefType.tp_new(held_type, arguments, NULL);
    int made = FAILED;
    if (held && (held->key = PyLong_FromVoidPtr(work))) {
        held->calls = (Calls *)Py_NewRef(self);
        held->sent = (Sent *)Py_NewRef(sent);
        pair = PyTuple_Pack(2, held, sent);
        if (pair && PyDict_SetItem(self->handles, held->key, pair) == 0) made = MADE;
    }
    Py_XDECREF(arguments);
    Py_XDECREF(held);
    Py_XDECREF(pair);
    return made;
}

/* The operation of a handle for which this thread waits now, or NULL. */
static PyObject *take(const Calls *self, PyObject *work)
{
    PyObject *key = PyLong_FromVoidPtr(work), *here = NULL;
    PyObject *pair = key ? PyDict_GetItemWithError(self->handles, key) : NULL, *sent = NULL;
    if (pair) {
        sent = Py_NewRef(PyTuple_GET_ITEM(pair, 1));
        if (PyDict_DelItem(self->handles, key) < 0) goto done;
        if (is_sent(sent)) ((Sent *)sent)->is_waited = 1;
        else if (PyObject_SetAttr(sent, names.is_waited, Py_True) < 0) goto done;
    }
    if (PyErr_Occurred() || !(here = read_here(self))) goto done;
    if (here_value(here, names.work) == work) PyDict_SetItem(here, names.work, Py_None);
done:
    Py_XDECREF(here);
    Py_XDECREF(key);
    if (PyErr_Occurred()) Py_CLEAR(sent);
    return sent;
}

/* `CallLog.end_wait`. */
static int finish_wait(const Calls *self, PyObject *object, PyObject *start)
{
    Sent *sent = (Sent *)object;
    if (!is_sent(object) || PyObject_Size(sent->together))
        return discard(PyObject_CallMethodObjArgs(self->log, names.end_wait, object, start, NULL));
    if (sent->ends_with_wait && finish(self, sent, sent->is_sync) == FAILED) return FAILED;
    if (sent->is_sync) return MADE;
    PyObject *device = find(self->of_recorder, names.device);
    if (!device) return FAILED;
    if (!blocks(sent) && device != Py_None) return MADE; /* the host waits for nothing */
    PyObject *now = read_clock(self);
    int made = now ? keep_inner(self, sent, start, now) : FAILED;
    Py_XDECREF(now);
    return made;
}

static PyObject *end_wait(const Calls *self, PyObject *sent, PyObject *start)
{
    if (!self->log) Py_RETURN_NONE; /* collected */
    PyObject *was = pause_compiler(self);
    int made = was ? finish_wait(self, sent, start) : FAILED;
    if (was) resume_compiler(self, was);
    if (made == FAILED) return report_failure(self, "collective waited for");
    Py_RETURN_NONE;
}

/* The method `wait` of handles, and what describes it. */
typedef struct {
    PyObject_HEAD
    Calls *calls;
    PyObject *original, *name, *doc;
    PyMethodDef method;
} Wait;

static PyObject *wait_timed(PyObject *object, PyObject *const *arguments, Py_ssize_t count,
                            PyObject *keywords)
{
    const Wait *self = (Wait *)object;
    const Calls *calls = self->calls;
    PyObject *sent = NULL, *start = NULL, *noted = NULL;
    if (count && calls->handles && PyDict_GET_SIZE(calls->handles)) {
        sent = take(calls, arguments[0]);
        if (sent && !(start = read_clock(calls))) Py_CLEAR(sent);
        if (PyErr_Occurred() && !(noted = report_failure(calls, "collective waited for")))
            return NULL;
        Py_XDECREF(noted);
    }
    PyObject *result = PyObject_Vectorcall(self->original, arguments, count, keywords);
    if (result && sent) {
        if (!(noted = end_wait(calls, sent, start))) Py_CLEAR(result);
        Py_XDECREF(noted);
    }
    Py_XDECREF(sent);
    Py_XDECREF(start);
    return result;
}

static int visit_wait(PyObject *object, visitproc visit, void *arg)
{
    Wait *self = (Wait *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->calls);
    Py_VISIT(self->original);
    return 0;
}

static void free_wait(PyObject *object)
{
    Wait *self = (Wait *)object;
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    Py_XDECREF(self->calls);
    Py_XDECREF(self->original);
    Py_XDECREF(self->name);
    Py_XDECREF(self->doc);
    PyObject_GC_Del(object);
    Py_DECREF(type);
}

static PyType_Slot wait_slots[] = {
    {Py_tp_doc, "What a replaced method `wait` belongs to."},
    {Py_tp_dealloc, free_wait},
    {Py_tp_traverse, visit_wait},
    {0, NULL},
};

static PyType_Spec wait_spec = {"profkit.instrument._calls.Wait", sizeof(Wait), 0,
                                Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, wait_slots};

/* The text of an attribute, which its owner keeps; NULL if it has none. */
static const char *read_text(PyObject *object, PyObject *name, PyObject **owner)
{
    *owner = PyObject_GetAttr(object, name);
    const char *text = *owner && PyUnicode_Check(*owner) ? PyUnicode_AsUTF8(*owner) : NULL;
    if (!text) PyErr_Clear();
    return text;
}

/* A method is of the kind that torch's own is, so that nobody who inspects it sees another one. */
static PyObject *wrap_wait(PyObject *object, PyObject *original)
{
    Wait *self = PyObject_GC_New(Wait, wait_type);
    if (!self) return NULL;
    PyObject *function = PyInstanceMethod_Check(original)
                             ? PyInstanceMethod_GET_FUNCTION(original)
                             : original;
    self->calls = (Calls *)Py_NewRef(object);
    self->original = Py_NewRef(function);
    const char *name = read_text(original, names.__name__, &self->name);
    self->method.ml_name = name ? name : "wait";
    self->method.ml_meth = (PyCFunction)(void (*)(void))wait_timed;
    self->method.ml_flags = METH_FASTCALL | METH_KEYWORDS;
    self->method.ml_doc = read_text(original, names.__doc__, &self->doc);
    PyObject_GC_Track(self);
    PyObject *module = PyObject_GetAttr(original, names.__module__);
    if (!module) PyErr_Clear();
    PyObject *timed = PyCFunction_NewEx(&self->method, (PyObject *)self, module);
    PyObject *made = timed ? PyInstanceMethod_New(timed) : NULL;
    Py_XDECREF(module);
    Py_XDECREF(timed);
    Py_DECREF(self);
    return made;
}

/* ---- the hooks of one group ---- */

#define HOOKS(X) X(own) X(before) X(operations) X(watched) X(open) X(groups) X(version) X(latest)

typedef struct {
    PyObject_HEAD
    Calls *calls;
    HOOKS(DECLARE) /* `watched` and all after it are NULL until the group was described */
    int is_uniform; /* all kinds of devices have the same backend */
    long long latest_id; /* of the operation `latest`, which is NULL or the last that has begun */
} Hooks;

/* The group as rows name it, once the hook in Python has asked torch. */
static int find_watched(Hooks *self)
{
    PyObject *watched = PyObject_GetAttr(self->own, names.watched);
    if (!watched || watched == Py_None) {
        Py_XDECREF(watched);
        return watched ? LEFT : FAILED;
    }
    PyObject *open = PyObject_GetAttr(watched, names.open), *groups = open ? PyDict_New() : NULL;
    self->is_uniform = read_flag(watched, names.is_uniform);
    if (!groups || self->is_uniform < 0) {
        Py_XDECREF(groups);
        Py_DECREF(watched);
        Py_XDECREF(open);
        return FAILED;
    }
    self->watched = watched;
    self->groups = groups;
    self->version = Py_NewRef(Py_None);
    self->open = open;
    return MADE;
}

/* Whether something that is not usual has to be done first, in Python. */
static int is_unusual(const Calls *self)
{
    PyObject *seen = find(self->of_calls, names.modules_seen);
    Py_ssize_t count = seen ? PyLong_AsSsize_t(seen) : -1;
    if (count < 0 && PyErr_Occurred()) return -1;
    return count != PyDict_Size(PyImport_GetModuleDict());
}

/* The operation that begins; borrowed, or NULL if it makes no row. */
static PyObject *find_operation(const Hooks *self, PyObject *arguments)
{
    PyObject *name = PyObject_GetAttr(arguments, names.name);
    PyObject *value = name ? PyObject_GetAttr(name, names.value) : NULL;
    PyObject *found = value ? PyDict_GetItemWithError(self->operations, value) : NULL;
    Py_XDECREF(name);
    Py_XDECREF(value);
    return found;
}

/* `Watched.group`, kept by the device itself, whose name takes longer to ask for. */
static PyObject *find_group(Hooks *self, PyObject *first, PyObject *op)
{
    PyObject *version = find(self->calls->of_layout, names.version);
    int same = version ? PyObject_RichCompareBool(version, self->version, Py_EQ) : -1;
    if (same == 0) {
        Py_SETREF(self->version, Py_NewRef(version));
        PyDict_Clear(self->groups);
    }
    if (self->is_uniform) first = NULL; /* any device will do */
    PyObject *device = same < 0 ? NULL : first ? PyObject_GetAttr(first, names.device) : Py_None;
    if (!device) return NULL;
    PyObject *group = PyDict_GetItemWithError(self->groups, device);
    if (group) {
        Py_INCREF(group);
    } else if (!PyErr_Occurred()) {
        PyObject *kind = first ? PyObject_GetAttr(device, names.type) : PyUnicode_FromString("");
        if (kind)
            group = PyObject_CallMethodObjArgs(self->watched, names.group, kind, op, no_root, NULL);
        Py_XDECREF(kind);
        if (group && PyDict_SetItem(self->groups, device, group) < 0) Py_CLEAR(group);
    }
    if (first) Py_DECREF(device);
    return group;
}

/* The bytes and the type of a message. Left to Python are tensors that have no bytes of their own,
 * as sparse ones, and the first of each type. */
static int measure(const Calls *self, PyObject *tensors, PyObject **size, PyObject **dtype)
{
    Py_ssize_t count = PyList_GET_SIZE(tensors);
    if (!count) {
        *size = PyLong_FromLong(0);
        *dtype = PyUnicode_FromString("");
        return *size && *dtype ? MADE : FAILED;
    }
    PyObject *type = PyObject_GetAttr(PyList_GET_ITEM(tensors, 0), names.dtype);
    PyObject *name = type ? PyDict_GetItemWithError(self->dtypes, type) : NULL;
    Py_XDECREF(type);
    if (!name) return PyErr_Occurred() ? FAILED : LEFT;
    *dtype = Py_NewRef(name);
    for (Py_ssize_t at = 0; at < count; at++) {
        PyObject *bytes = PyObject_GetAttr(PyList_GET_ITEM(tensors, at), names.nbytes);
        if (!bytes) {
            if (!PyErr_ExceptionMatches(PyExc_RuntimeError)) return FAILED;
            PyErr_Clear();
            return LEFT;
        }
        if (!*size) {
            *size = bytes;
            continue;
        }
        PyObject *sum = PyNumber_Add(*size, bytes);
        Py_DECREF(bytes);
        if (!sum) return FAILED;
        Py_SETREF(*size, sum);
    }
    return MADE;
}

/* Where the result of an asynchronous operation will be, if the job may wait for that. */
static int note_address(const Calls *self, Sent *sent, PyObject *arguments, PyObject *tensors,
                        int in_outputs)
{
    int wanted = find_flag(self->of_calls, names.by_address);
    if (wanted > 0) wanted = read_flag(arguments, names.async_op);
    if (wanted <= 0) return wanted < 0 ? FAILED : MADE;
    PyObject *results = in_outputs ? Py_NewRef(tensors)
                                   : PyObject_GetAttr(arguments, names.output_tensors);
    if (results && PyList_CheckExact(results) && !PyList_GET_SIZE(results))
        Py_SETREF(results, PyObject_GetAttr(arguments, names.input_tensors));
    int made = results ? MADE : FAILED;
    if (made == MADE && PyList_CheckExact(results) && PyList_GET_SIZE(results)) {
        PyObject *address = PyObject_CallMethodNoArgs(PyList_GET_ITEM(results, 0), names.data_ptr);
        sent->address = address ? PyLong_AsLongLong(address) : -1;
        if (sent->address == -1 && PyErr_Occurred()) made = FAILED;
        Py_XDECREF(address);
    }
    Py_XDECREF(results);
    return made;
}

/* `CallLog.begin`. */
static Sent *begin_call(const Calls *self, PyObject *group, PyObject *op, PyObject *size,
                        PyObject *dtype)
{
    PyObject *mark = Py_NewRef(Py_None), *numbers = NULL, *sequence = NULL, *step = NULL;
    PyObject *now = NULL, *kept = NULL;
    Sent *sent = NULL;
    if (PyTuple_GET_ITEM(group, BLOCKS) != Py_True) {
        PyObject *device = find(self->of_recorder, names.device);
        if (device && device != Py_None)
            Py_SETREF(mark, PyObject_CallMethodNoArgs(device, names.mark));
        if (!device || !mark) goto done;
    }
    if (!(numbers = PyObject_GetItem(self->sequences, PyTuple_GET_ITEM(group, NAME)))) goto done;
    if (!(sequence = PyIter_Next(numbers))) goto done;
    if (!(now = read_clock(self))) goto done;
    if (!(step = PyObject_GetAttr(self->recorder, names.step_now))) goto done;
    if (!(sent = (Sent *)sent_type->tp_alloc(sent_type, 0))) goto done;
    sent->group = Py_NewRef(group);
    sent->op = Py_NewRef(op);
    sent->size = Py_NewRef(size);
    sent->dtype = Py_NewRef(dtype);
    sent->sequence = Py_NewRef(sequence);
    sent->step = Py_NewRef(step);
    sent->start_ns = Py_NewRef(now);
    sent->mark = Py_NewRef(mark);
    sent->together = Py_NewRef(nothing);
    if (!(kept = PyObject_CallOneArg(self->remember_last, (PyObject *)sent))) Py_CLEAR(sent);
done:
    Py_XDECREF(mark);
    Py_XDECREF(numbers);
    Py_XDECREF(sequence);
    Py_XDECREF(step);
    Py_XDECREF(now);
    Py_XDECREF(kept);
    return sent;
}

/* The number that both hooks of an operation get; -1 with an exception. */
static long long read_id(PyObject *arguments)
{
    PyObject *number = PyObject_GetAttr(arguments, names.op_id);
    long long read = number ? PyLong_AsLongLong(number) : -1;
    Py_XDECREF(number);
    return read;
}

/* Remember an operation until its second hook. Mostly that is the next one. */
static int keep_open(Hooks *self, Sent *sent, PyObject *arguments)
{
    long long number = read_id(arguments);
    if (number == -1 && PyErr_Occurred()) return FAILED;
    PyObject *earlier = self->latest; /* whatever runs below may take the next one */
    long long earlier_id = self->latest_id;
    self->latest = Py_NewRef(sent);
    self->latest_id = number;
    if (!earlier) return MADE;
    if (PyDict_GET_SIZE(self->open) >= self->calls->most_open) PyDict_Clear(self->open);
    PyObject *key = PyLong_FromLongLong(earlier_id);
    int failed = !key || PyDict_SetItem(self->open, key, earlier) < 0;
    Py_XDECREF(key);
    Py_DECREF(earlier);
    return failed ? FAILED : MADE;
}

/* Take an operation whose second hook this is; NULL if there is none, or with an exception. */
static PyObject *take_open(Hooks *self, PyObject *arguments)
{
    long long number = read_id(arguments);
    if (number == -1 && PyErr_Occurred()) return NULL;
    PyObject *found = self->latest;
    if (found && self->latest_id == number) {
        self->latest = NULL;
        return found;
    }
    PyObject *key = PyLong_FromLongLong(number);
    found = key ? PyDict_GetItemWithError(self->open, key) : NULL;
    Py_XINCREF(found);
    if (found && PyDict_DelItem(self->open, key) < 0) Py_CLEAR(found);
    Py_XDECREF(key);
    return found;
}

/* `GroupHooks._begin` and `GroupCalls.begin`. */
static int begin_operation(Hooks *self, PyObject *here, PyObject *operation, PyObject *arguments)
{
    const Calls *calls = self->calls;
    PyObject *size = NULL, *dtype = NULL, *group = NULL, *op = PyTuple_GET_ITEM(operation, OP);
    Sent *sent = NULL;
    int in_outputs = PyTuple_GET_ITEM(operation, IN_OUTPUTS) == Py_True;
    PyObject *tensors =
        PyObject_GetAttr(arguments, in_outputs ? names.output_tensors : names.input_tensors);
    if (!tensors) return FAILED;
    int made = PyList_CheckExact(tensors) ? measure(calls, tensors, &size, &dtype) : LEFT;
    if (made != MADE) goto done;
    made = FAILED;
    PyObject *first = PyList_GET_SIZE(tensors) ? PyList_GET_ITEM(tensors, 0) : NULL;
    if (!(group = find_group(self, first, op))) goto done;
    if (!(sent = begin_call(calls, group, op, size, dtype))) goto done;
    sent->has_future = PyTuple_GET_ITEM(operation, HAS_FUTURE) == Py_True;
    PyObject *module = here_value(here, names.module);
    if (module != Py_None) sent->module = Py_NewRef(module);
    made = note_address(calls, sent, arguments, tensors, in_outputs);
    if (made == MADE) made = keep_open(self, sent, arguments);
done:
    Py_DECREF(tensors);
    Py_XDECREF(size);
    Py_XDECREF(dtype);
    Py_XDECREF(group);
    Py_XDECREF(sent);
    return made;
}

static int begin(Hooks *self, PyObject *here, PyObject *arguments)
{
    int made = self->open ? MADE : find_watched(self);
    if (made != MADE) return made;
    int unusual = is_unusual(self->calls);
    if (unusual) return unusual < 0 ? FAILED : LEFT;
    PyObject *operation = find_operation(self, arguments);
    if (!operation) return PyErr_Occurred() ? FAILED : MADE;
    if (PyTuple_GET_ITEM(operation, IS_PART) != Py_False) return LEFT;
    if (PyTuple_GET_ITEM(operation, IS_MESSAGE) != Py_False) return LEFT;
    return begin_operation(self, here, operation, arguments);
}

static PyObject *before(PyObject *object, PyObject *arguments)
{
    Hooks *self = (Hooks *)object;
    if (!self->calls || !self->calls->here) Py_RETURN_NONE; /* collected */
    PyObject *here = read_here(self->calls), *was = NULL;
    int inside = here ? PyObject_IsTrue(here_value(here, names.inside)) : -1, made = FAILED;
    if (inside > 0) {
        int is_hook = here_value(here, names.parts) != Py_None; /* whose messages are measured */
        made = is_hook ? LEFT : PyObject_IsTrue(here_value(here, names.sent_ns));
    } else if (!inside && (was = pause_compiler(self->calls))) {
        made = begin(self, here, arguments);
        resume_compiler(self->calls, was);
    }
    Py_XDECREF(here);
    if (made == FAILED) return report_failure(self->calls, "collective begun");
    if (made == LEFT) return PyObject_CallOneArg(self->before, arguments);
    Py_RETURN_NONE;
}

/* ---- what an operation came to ---- */

static int end_in_python(const Calls *self, PyObject *sent, PyObject *work, int is_async)
{
    PyObject *arguments[] = {self->calls, sent, work, is_async ? Py_True : Py_False};
    return discard(PyObject_VectorcallMethod(names.end, arguments, 3, is_async_name));
}

/* `GroupCalls._await` of a call that returns only when it has ended. */
static int await_end(const Calls *self, Sent *sent, PyObject *work, PyObject *here)
{
    if (here_value(here, names.work) != Py_None) /* of a call for which nobody waited */
        return end_in_python(self, (PyObject *)sent, work, 0);
    sent->is_sync = sent->ends_with_wait = 1;
    PyObject *key = PyLong_FromVoidPtr(work), *pair = key ? PyTuple_Pack(2, work, sent) : NULL;
    int failed = !pair || PyDict_SetItem(self->handles, key, pair) < 0;
    Py_XDECREF(key);
    Py_XDECREF(pair);
    return failed || PyDict_SetItem(here, names.work, work) < 0 ? FAILED : MADE;
}

/* Whether the handle may be asked for its future. One that is null ends the process. */
static int may_ask(const Calls *self, const Sent *sent)
{
    if (group_field(sent, HAS_FUTURES) != Py_True) return 0;
    if (!sent->has_future && !blocks(sent)) return 0;
    if (!PySet_GET_SIZE(self->silent)) return 1;
    PyObject *kind = PyTuple_Pack(2, group_field(sent, BACKEND), sent->op);
    int silent = kind ? PySet_Contains(self->silent, kind) : -1;
    Py_XDECREF(kind);
    return silent < 0 ? -1 : !silent;
}

/* `GroupCalls.follow`. */
static int follow(Calls *self, Sent *sent, PyObject *work)
{
    int asked = may_ask(self, sent);
    PyObject *future = asked > 0 ? PyObject_CallMethodNoArgs(work, names.get_future) : NULL;
    if (!future) {
        if (asked > 0) {
            if (!PyErr_ExceptionMatches(PyExc_RuntimeError)) return FAILED;
            PyErr_Clear(); /* it says so again in Python, which remembers it */
        }
        if (asked < 0) return FAILED;
        return discard(PyObject_CallMethodObjArgs(self->calls, names.follow, sent, work, NULL));
    }
    PyObject *end = NULL;
    int made = blocks(sent) ? remember(self, work, sent) : MADE;
    if (made == MADE) {
        end = new_done(self, sent, work);
        made = end ? discard(PyObject_CallMethodOneArg(future, names.add_done_callback, end))
                   : FAILED;
    }
    Py_XDECREF(end);
    Py_DECREF(future);
    return made;
}

static int wait_by_address(const Calls *self, Sent *sent)
{
    PyObject *address = PyLong_FromLongLong(sent->address);
    if (!address) return FAILED;
    if (PyDict_GET_SIZE(self->in_flight) >= self->most_open) PyDict_Clear(self->in_flight);
    int failed = PyDict_SetItem(self->in_flight, address, (PyObject *)sent) < 0;
    Py_DECREF(address);
    return failed ? FAILED : MADE;
}

/* `GroupCalls.end`. */
static int end(Calls *self, PyObject *object, PyObject *work, int is_async, PyObject *here)
{
    Sent *sent = (Sent *)object;
    if (!is_sent(object) || group_field(sent, PEER) != Py_None)
        return end_in_python(self, object, work, is_async);
    PyObject *coalesced = here_value(here, names.coalesced);
    if (!blocks(sent) && coalesced != Py_None) return end_in_python(self, object, work, is_async);
    if (work == Py_None) return finish(self, sent, 1);
    if (!is_async) return await_end(self, sent, work, here);
    if (sent->address && blocks(sent) && wait_by_address(self, sent) == FAILED) return FAILED;
    return follow(self, sent, work);
}

static int end_operation(Hooks *self, PyObject *here, PyObject *arguments)
{
    PyObject *sent = take_open(self, arguments);
    if (!sent) return PyErr_Occurred() ? FAILED : MADE;
    PyObject *work = PyObject_GetAttr(arguments, names.work);
    int is_async = work ? read_flag(arguments, names.async_op) : -1;
    int made = is_async < 0 ? FAILED : end(self->calls, sent, work, is_async, here);
    Py_DECREF(sent);
    Py_XDECREF(work);
    return made;
}

static PyObject *after(PyObject *object, PyObject *arguments)
{
    Hooks *self = (Hooks *)object;
    if (!self->calls || !self->calls->here) Py_RETURN_NONE; /* collected */
    int made = self->open ? MADE : find_watched(self); /* Python may have begun the first */
    PyObject *here = made == MADE ? read_here(self->calls) : NULL, *was = NULL;
    if (made == MADE) {
        int inside = here ? PyObject_IsTrue(here_value(here, names.inside)) : -1;
        if (inside < 0) made = FAILED;
        if (inside == 0) {
            made = FAILED;
            if ((was = pause_compiler(self->calls))) {
                made = end_operation(self, here, arguments);
                resume_compiler(self->calls, was);
            }
        }
    }
    Py_XDECREF(here);
    if (made == FAILED) return report_failure(self->calls, "collective handed over");
    Py_RETURN_NONE;
}

/* ---- the types ---- */

#define FAST(function) ((PyCFunction)(void (*)(void))(function))
#define VISIT(name) Py_VISIT(self->name);
#define CLEAR(name) Py_CLEAR(self->name);

static int visit_calls(PyObject *object, visitproc visit, void *arg)
{
    Calls *self = (Calls *)object;
    Py_VISIT(Py_TYPE(object));
    CALLS(VISIT)
    return 0;
}

static int clear_calls(PyObject *object)
{
    Calls *self = (Calls *)object;
    CALLS(CLEAR)
    return 0;
}

static int visit_hooks(PyObject *object, visitproc visit, void *arg)
{
    Hooks *self = (Hooks *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->calls);
    HOOKS(VISIT)
    return 0;
}

static int clear_hooks(PyObject *object)
{
    Hooks *self = (Hooks *)object;
    Py_CLEAR(self->calls);
    HOOKS(CLEAR)
    return 0;
}

static void free_collected(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    if (type == calls_type) clear_calls(object);
    else clear_hooks(object);
    type->tp_free(object);
    Py_DECREF(type);
}

/* Whether a value is one of those that are used here without a check; raises otherwise. */
static int is_kind(int is_it, const char *name)
{
    if (!is_it && !PyErr_Occurred()) PyErr_Format(PyExc_TypeError, "'%s' is of another type", name);
    return is_it;
}

static PyMethodDef forget_method = {"forget", forget, METH_O,
                                    "Forget the operation of a handle that is gone."};

static int initialise_calls(PyObject *object, PyObject *arguments, PyObject *keywords)
{
    Calls *self = (Calls *)object;
    PyObject *calls, *here, *layout, *set_eval_frame, *report, *last = NULL;
    if (keywords && PyDict_GET_SIZE(keywords)) {
        PyErr_SetString(PyExc_TypeError, "Calls takes no names of arguments");
        return -1;
    }
    if (!PyArg_ParseTuple(arguments, "OOOOOn", &calls, &here, &layout, &set_eval_frame, &report,
                          &self->most_open))
        return -1;
    clear_calls(object);
    self->calls = Py_NewRef(calls);
    self->here = Py_NewRef(here);
    self->set_eval_frame = Py_NewRef(set_eval_frame);
    self->report = Py_NewRef(report);
    if (!(self->log = PyObject_GetAttr(calls, names.log)) ||
        !(self->in_flight = PyObject_GetAttr(calls, names.in_flight)) ||
        !(self->dtypes = PyObject_GetAttr(calls, names.dtypes)) ||
        !(self->silent = PyObject_GetAttr(calls, names.silent)) ||
        !(self->recorder = PyObject_GetAttr(self->log, names.recorder)) ||
        !(self->append = PyObject_GetAttr(self->log, names.append)) ||
        !(self->sequences = PyObject_GetAttr(self->log, names.sequences)) ||
        !(self->handles = PyObject_GetAttr(self->log, names.handles)) ||
        !(self->clock = PyObject_GetAttr(self->log, names.clock)) ||
        !(self->forget = PyCFunction_New(&forget_method, object)) ||
        !(self->nests = PyObject_GetAttr(self->recorder, names.nests)) ||
        !(self->of_calls = PyObject_GetAttr(calls, names.__dict__)) ||
        !(self->of_recorder = PyObject_GetAttr(self->recorder, names.__dict__)) ||
        !(self->of_layout = PyObject_GetAttr(layout, names.__dict__)) ||
        !(last = PyObject_GetAttr(self->log, names.last)))
        return -1;
    self->remember_last = PyObject_GetAttr(last, names.append);
    Py_DECREF(last);
    if (self->clock == now_ns) Py_CLEAR(self->clock);
    return self->remember_last && is_kind(PyDict_Check(self->in_flight), "in_flight") &&
                   is_kind(PyDict_Check(self->dtypes), "dtypes") &&
                   is_kind(PyDict_Check(self->of_calls), "__dict__") &&
                   is_kind(PyDict_Check(self->of_recorder), "__dict__") &&
                   is_kind(PyDict_Check(self->of_layout), "__dict__") &&
                   is_kind(PyDict_Check(self->handles), "handles") &&
                   is_kind(PyAnySet_Check(self->silent), "silent")
               ? 0
               : -1;
}

/* Whether a class of tuples begins with these fields; raises otherwise. */
static int begins_with(PyObject *type, const char *const *fields, Py_ssize_t count)
{
    PyObject *found = PyObject_GetAttrString(type, "_fields");
    int same = found && PyTuple_Check(found) && PyTuple_GET_SIZE(found) >= count;
    for (Py_ssize_t at = 0; same && at < count; at++) {
        PyObject *field = PyTuple_GET_ITEM(found, at);
        same = PyUnicode_Check(field) && !PyUnicode_CompareWithASCIIString(field, fields[at]);
        if (!same)
            PyErr_Format(PyExc_TypeError, "%R has no field '%s' at place %zd, which _calls.c uses",
                         type, fields[at], at);
    }
    Py_XDECREF(found);
    return is_kind(same, "_fields");
}

static int initialise_hooks(PyObject *object, PyObject *arguments, PyObject *keywords)
{
    Hooks *self = (Hooks *)object;
    PyObject *calls, *own, *operation;
    Py_ssize_t place = 0;
    if (keywords && PyDict_GET_SIZE(keywords)) {
        PyErr_SetString(PyExc_TypeError, "Hooks takes no names of arguments");
        return -1;
    }
    if (!PyArg_ParseTuple(arguments, "O!O", calls_type, &calls, &own)) return -1;
    clear_hooks(object);
    self->calls = (Calls *)Py_NewRef(calls);
    self->own = Py_NewRef(own);
    self->before = PyObject_GetAttr(own, names.before);
    self->operations = self->before ? PyObject_GetAttr(own, names.operations) : NULL;
    if (!self->operations || !is_kind(PyDict_Check(self->operations), "operations")) return -1;
    while (PyDict_Next(self->operations, &place, NULL, &operation))
        if (!is_kind(PyTuple_Check(operation), "operations") ||
            !begins_with((PyObject *)Py_TYPE(operation), OPERATION, COUNT(OPERATION)))
            return -1;
    return 0;
}

static PyMethodDef calls_methods[] = {
    {"done", FAST(done), METH_FASTCALL,
     "done(sent, work): return what the future of a handle calls, which ends the operation."},
    {"wrap_wait", wrap_wait, METH_O, "wrap_wait(original): return a timed method of handles."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot calls_slots[] = {
    {Py_tp_doc, "Records the operations of process groups whose `Hooks` and waits call it."},
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_init, initialise_calls},
    {Py_tp_dealloc, free_collected},
    {Py_tp_traverse, visit_calls},
    {Py_tp_clear, clear_calls},
    {Py_tp_methods, calls_methods},
    {0, NULL},
};

static PyType_Spec calls_spec = {"profkit.instrument._calls.Calls", sizeof(Calls), 0,
                                 Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, calls_slots};

static PyMethodDef hooks_methods[] = {
    {"before", before, METH_O, "before(args): note that an operation begins."},
    {"after", after, METH_O, "after(args): note that an operation was handed over."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot hooks_slots[] = {
    {Py_tp_doc, "The hooks of one process group, which leave to `GroupHooks` what is not usual."},
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_init, initialise_hooks},
    {Py_tp_dealloc, free_collected},
    {Py_tp_traverse, visit_hooks},
    {Py_tp_clear, clear_hooks},
    {Py_tp_methods, hooks_methods},
    {0, NULL},
};

static PyType_Spec hooks_spec = {"profkit.instrument._calls.Hooks", sizeof(Hooks), 0,
                                 Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, hooks_slots};

static PyObject *from_module(const char *module_name, const char *name)
{
    PyObject *source = PyImport_ImportModule(module_name);
    PyObject *found = source ? PyObject_GetAttrString(source, name) : NULL;
    Py_XDECREF(source);
    return found;
}

static int check_fields(const char *module, const char *name, const char *const *fields,
                        Py_ssize_t count)
{
    PyObject *type = from_module(module, name);
    int same = type && begins_with(type, fields, count);
    Py_XDECREF(type);
    return same;
}

#define INTERN(word)                                                                               \
    if (!(names.word = PyUnicode_InternFromString(#word))) return -1;

static int prepare(void)
{
    NAMES(INTERN)
    allreduce = PyUnicode_InternFromString("allreduce");
    nothing = PyTuple_New(0);
    no_root = PyLong_FromLong(-1);
    has_own_end_name = Py_BuildValue("(s)", "has_own_end");
    is_async_name = Py_BuildValue("(s)", "is_async");
    now_ns = from_module("profkit.clock", "now_ns");
    if (!allreduce || !nothing || !no_root || !has_own_end_name || !is_async_name) return -1;
    if (!now_ns) return -1;
    const char *rows = "profkit.instrument.rows";
    return check_fields(rows, "CollectiveRow", CALL_ROW, COUNT(CALL_ROW)) &&
                   check_fields(rows, "SpanRow", SPAN_ROW, COUNT(SPAN_ROW)) &&
                   check_fields("profkit.instrument.sent", "Group", GROUP, COUNT(GROUP))
               ? 0
               : -1;
}

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_calls", "The compiled twin of the hooks of process groups.", -1, NULL,
    NULL, NULL, NULL, NULL};

static PyTypeObject *add_type(PyObject *made, const char *name, PyType_Spec *spec)
{
    PyObject *type = PyType_FromSpec(spec);
    if (type && PyModule_AddObjectRef(made, name, type) < 0) Py_CLEAR(type);
    return (PyTypeObject *)type;
}

PyMODINIT_FUNC PyInit__calls(void)
{
    if (is_other_python() || prepare() < 0) return NULL;
    PyObject *made = PyModule_Create(&module);
    if (!made) return NULL;
    if (!(sent_type = add_type(made, "Sent", &sent_spec)) ||
        !(done_type = (PyTypeObject *)PyType_FromSpec(&done_spec)) ||
        !(held_type = (PyTypeObject *)PyType_FromSpecWithBases(
              &held_spec, (PyObject *)&_PyWeakref_RefType)) ||
        !(wait_type = (PyTypeObject *)PyType_FromSpec(&wait_spec)) ||
        !(calls_type = add_type(made, "Calls", &calls_spec)) ||
        !add_type(made, "Hooks", &hooks_spec))
        Py_CLEAR(made);
    return made;
}
