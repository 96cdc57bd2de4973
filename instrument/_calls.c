/* Records collectives and messages of process groups whose backend blocks, such as gloo.
 *
 * `GroupHooks`, `GroupCalls` and `CallLog` specify this file and do everything that it does not: the
 * first operation of a group, devices, sparse tensors, operations without tensors. A call of Python
 * costs a microsecond here, because the job has driven our code out of the caches; a whole operation
 * costs about three.
 *
 * Nothing here raises into the job: a failure is reported, and the operation has no row.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <structmember.h>
#include <time.h>

#define OPERATIONS 64 /* more than torch has names for */

/* The fields of `Group` that are read here. */
enum GroupField { GROUP_NAME, GROUP_SIZE, GROUP_BACKEND, GROUP_DIMENSION, GROUP_FIELDS };

static const char *const GROUP_FIELD_NAMES[GROUP_FIELDS] = {"name", "size", "backend", "dimension"};
static Py_ssize_t group_places[GROUP_FIELDS]; /* read at import, so that their order is defined once */

static PyObject *now_ns;
static PyObject *s_name, *s_inputs, *s_outputs, *s_root, *s_async_op, *s_work;
static PyObject *s_nbytes, *s_dtype, *s_data_ptr, *s_append, *s_pop;
static PyObject *s_step_index, *s_recording, *s_device, *s_version, *s_nests, *s_own, *s_noted;
static PyObject *s_open_regions, *s_keep_rows, *s_keep, *s_depth, *s_thread;
static PyObject *s_get_future, *s_add_done_callback, *s_by_address, *s_before, *s_after;
static PyObject *s_settled, *s_pair, *s_allreduce;

static const struct { PyObject **place; const char *word; } WORDS[] = {
    {&s_name, "name"}, {&s_inputs, "input_tensors"}, {&s_outputs, "output_tensors"},
    {&s_root, "root"}, {&s_async_op, "async_op"}, {&s_work, "work"},
    {&s_nbytes, "nbytes"}, {&s_dtype, "dtype"},
    {&s_data_ptr, "data_ptr"}, {&s_append, "append"}, {&s_pop, "pop"},
    {&s_step_index, "step_index"}, {&s_recording, "recording"}, {&s_device, "device"},
    {&s_version, "version"}, {&s_nests, "nests"}, {&s_own, "own"}, {&s_noted, "_noted"},
    {&s_open_regions, "open_regions"}, {&s_keep_rows, "keep_rows"},
    {&s_keep, "_keep"}, {&s_depth, "depth"}, {&s_thread, "thread"},
    {&s_get_future, "get_future"}, {&s_add_done_callback, "add_done_callback"},
    {&s_by_address, "by_address"}, {&s_before, "before"}, {&s_after, "after"},
    {&s_settled, "settled"}, {&s_pair, "pair"}, {&s_allreduce, "allreduce"},
};

/* ---- what a thread is doing ---- */

static _Thread_local char inside, sends;
static _Thread_local long long sent_ns;
static _Thread_local PyObject *here_work, *here_module, *here_coalesced; /* or NULL: None */

typedef struct { PyObject_HEAD } Here;

/* The operations that have begun on this thread and were not handed over, the innermost last; NULL is
 * one that Python follows. One that fails is never handed over, and stays below the others. */
#define NESTED 8
static _Thread_local PyObject *open[NESTED];
static _Thread_local int opened;

static void push_open(PyObject *sent)
{
    if (opened == NESTED) {
        Py_XDECREF(open[0]);
        memmove(open, open + 1, sizeof *open * (NESTED - 1));
        opened--;
    }
    open[opened++] = sent;
}

static PyObject *get_flag(PyObject *self, void *which)
{
    (void)self;
    return PyBool_FromLong(which ? sends : inside);
}

static int set_flag(PyObject *self, PyObject *value, void *which)
{
    (void)self;
    int flag = value ? PyObject_IsTrue(value) : 0;
    if (flag < 0) return -1;
    if (which) sends = (char)flag;
    else inside = (char)flag;
    return 0;
}

static PyObject *get_sent_ns(PyObject *self, void *unused)
{
    (void)self;
    (void)unused;
    return PyLong_FromLongLong(sent_ns);
}

static int set_sent_ns(PyObject *self, PyObject *value, void *unused)
{
    (void)self;
    (void)unused;
    sent_ns = value ? PyLong_AsLongLong(value) : 0;
    return sent_ns == -1 && PyErr_Occurred() ? -1 : 0;
}

static PyObject **own(void *which)
{
    if (!which) return &here_work;
    return *(const char *)which == 'm' ? &here_module : &here_coalesced;
}

static PyObject *get_own(PyObject *self, void *which)
{
    PyObject *found = *own(which);
    (void)self;
    found = found ? found : Py_None;
    Py_INCREF(found);
    return found;
}

static void keep_own(PyObject **place, PyObject *value)
{
    Py_XINCREF(value);
    Py_XSETREF(*place, value);
}

static int set_own(PyObject *self, PyObject *value, void *which)
{
    (void)self;
    keep_own(own(which), value == Py_None ? NULL : value);
    return 0;
}

static PyGetSetDef here_fields[] = {
    {"inside", get_flag, set_flag, NULL, NULL},
    {"sends", get_flag, set_flag, NULL, "s"},
    {"sent_ns", get_sent_ns, set_sent_ns, NULL, NULL},
    {"work", get_own, set_own, NULL, NULL},
    {"module", get_own, set_own, NULL, "m"},
    {"coalesced", get_own, set_own, NULL, "c"},
    {NULL, NULL, NULL, NULL, NULL},
};

/* ---- the parts ---- */

typedef struct {
    char is_known, in_outputs, is_part, is_message;
    PyObject *op; /* borrowed from `operations` */
} Operation;

typedef struct {
    PyObject_HEAD
    PyObject *calls, *layout, *modules, *operations, *follow, *end_wait, *report, *set_eval_frame;
    PyObject *recorder, *append, *handles, *last, *in_flight, *dtypes, *microbatches;
    PyObject *clock; /* or NULL: the monotonic clock itself */
    Py_ssize_t most_open;
    unsigned long long serial; /* of its kind, since the next one may be at the same address */
    Operation known[OPERATIONS];
} Calls;

typedef struct {
    PyObject_HEAD
    Calls *calls;
    PyObject *slow;                    /* the `GroupHooks` of the group */
    PyObject *group, *numbers; /* or NULL: `slow` does everything */
    PyObject *pairs;                   /* the groups of messages, and their numbers */
    Py_ssize_t modules, version;
    char by_address, silent[OPERATIONS];
} Hooks;

typedef struct {
    PyObject_HEAD
    PyObject *group, *op, *message, *sequence, *step, *mark, *module, *microbatch;
    long long start_ns;
    unsigned long long address;
    char is_over, is_sync, ends_with_wait;
    unsigned char number; /* of its operation */
    void *handle;         /* where it is, which is its id */
    Hooks *hooks;         /* or NULL: Python made it */
    PyObject *held;       /* its handle, until it has ended */
} Sent;

static PyTypeObject *sent_type;

static int read_clock(const Calls *calls, long long *now)
{
    if (!calls->clock) {
        struct timespec time;
        clock_gettime(CLOCK_MONOTONIC, &time);
        *now = (long long)time.tv_sec * 1000000000 + time.tv_nsec;
        return 0;
    }
    PyObject *read = PyObject_CallNoArgs(calls->clock);
    *now = read ? PyLong_AsLongLong(read) : -1;
    Py_XDECREF(read);
    return *now == -1 && PyErr_Occurred() ? -1 : 0;
}

/* Report the current exception, which ends here. */
static void report(const Calls *calls, const char *site)
{
    PyObject *kind, *error, *trace;
    PyErr_Fetch(&kind, &error, &trace);
    PyErr_NormalizeException(&kind, &error, &trace);
    PyObject *done = error ? PyObject_CallFunction(calls->report, "sO", site, error) : NULL;
    Py_XDECREF(done);
    Py_XDECREF(kind);
    Py_XDECREF(error);
    Py_XDECREF(trace);
    PyErr_Clear();
}

static int call_and_drop(PyObject *function, PyObject *argument)
{
    PyObject *done = PyObject_CallOneArg(function, argument);
    Py_XDECREF(done);
    return done ? 0 : -1;
}

static int is_true(PyObject *owner, PyObject *name)
{
    PyObject *found = PyObject_GetAttr(owner, name);
    int flag = found ? PyObject_IsTrue(found) : -1;
    Py_XDECREF(found);
    return flag;
}

static int read_size(PyObject *owner, PyObject *name, Py_ssize_t *value)
{
    PyObject *found = PyObject_GetAttr(owner, name);
    *value = found ? PyNumber_AsSsize_t(found, PyExc_OverflowError) : -1;
    Py_XDECREF(found);
    return *value == -1 && PyErr_Occurred() ? -1 : 0;
}

static PyObject *of_group(const Sent *sent, enum GroupField field)
{
    return PyTuple_GET_ITEM(sent->group, group_places[field]);
}

/* ---- rows ---- */

/* Make a tuple; an item that is NULL could not be made. */
static PyObject *make_row(PyObject *const *items, Py_ssize_t count)
{
    PyObject *row = PyTuple_New(count);
    int failed = !row;
    for (Py_ssize_t at = 0; row && at < count; at++) {
        failed |= !items[at];
        Py_XINCREF(items[at]);
        PyTuple_SET_ITEM(row, at, items[at]);
    }
    if (failed) Py_CLEAR(row);
    return row;
}

/* The `Nest` of this thread, which stays the same. */
static PyObject *find_nest(const Calls *calls)
{
    static _Thread_local const Calls *nest_of;
    static _Thread_local PyObject *nest;
    static _Thread_local unsigned long long serial;
    if (nest_of == calls && serial == calls->serial) return nest;
    PyObject *nests = PyObject_GetAttr(calls->recorder, s_nests);
    PyObject *found = nests ? PyObject_GetAttr(nests, s_own) : NULL;
    Py_XDECREF(nests);
    if (!found) return NULL;
    Py_XSETREF(nest, found);
    nest_of = calls;
    serial = calls->serial;
    return nest;
}

/* As `SpanRecorder.keep_inner`. */
static int keep_inner(const Calls *calls, PyObject *name, long long start, long long end)
{
    PyObject *recorder = calls->recorder, *nest = find_nest(calls), *noted = NULL, *open_now = NULL;
    PyObject *thread = NULL, *step = NULL, *row = NULL, *rows = NULL, *done = NULL;
    Py_ssize_t depth;
    int is_noted;
    if (!nest || read_size(nest, s_depth, &depth) < 0 || !(thread = PyObject_GetAttr(nest, s_thread))) goto ended;
    if (!(noted = PyObject_GetAttr(recorder, s_noted)) || (is_noted = PyObject_IsTrue(noted)) < 0) goto ended;
    if (is_noted) {
        if (!(open_now = PyObject_CallMethodNoArgs(noted, s_open_regions))) goto ended;
        depth += PyLong_AsSsize_t(open_now);
    }
    if (!(step = PyObject_GetAttr(recorder, s_step_index))) goto ended;
    PyObject *numbers[] = {PyLong_FromSsize_t(depth), PyLong_FromLongLong(start), PyLong_FromLongLong(end)};
    PyObject *items[] = {step, s_allreduce, name, numbers[0], thread, numbers[1], numbers[2], Py_None, Py_None, Py_None, Py_None};
    row = make_row(items, sizeof items / sizeof *items);
    for (int at = 0; at < 3; at++) Py_XDECREF(numbers[at]);
    if (!row) goto ended;
    if (is_noted) {
        rows = PyList_New(1);
        if (!rows) goto ended;
        PyList_SET_ITEM(rows, 0, row);
        row = NULL;
        done = PyObject_CallMethodOneArg(noted, s_keep_rows, rows);
    } else { /* a function of Python, which torch's compiler must not see */
        PyObject *compiler = PyObject_CallOneArg(calls->set_eval_frame, Py_None);
        if (!compiler) goto ended;
        done = PyObject_CallMethodObjArgs(recorder, s_keep, row, Py_None, Py_None, NULL);
        PyObject *restored = done ? PyObject_CallOneArg(calls->set_eval_frame, compiler) : NULL;
        Py_DECREF(compiler);
        if (!restored) Py_CLEAR(done);
        Py_XDECREF(restored);
    }
ended:
    Py_XDECREF(thread);
    Py_XDECREF(noted);
    Py_XDECREF(open_now);
    Py_XDECREF(step);
    Py_XDECREF(row);
    Py_XDECREF(rows);
    Py_XDECREF(done);
    return done ? 0 : -1;
}

/* As `CallLog.end`, of a backend that blocks. */
static int end_sent(const Calls *calls, Sent *sent, int waited)
{
    long long now;
    if (read_clock(calls, &now) < 0) return -1;
    sent->is_over = 1;
    int recording = is_true(calls->recorder, s_recording);
    if (recording <= 0) return recording;
    PyObject *start = PyLong_FromLongLong(sent->start_ns), *end = PyLong_FromLongLong(now);
    PyObject *items[] = {
        of_group(sent, GROUP_NAME), sent->sequence, sent->op, PyTuple_GET_ITEM(sent->message, 0), PyTuple_GET_ITEM(sent->message, 1),
        of_group(sent, GROUP_SIZE), start, start, end, of_group(sent, GROUP_BACKEND), sent->step, Py_None,
        of_group(sent, GROUP_DIMENSION), sent->module, sent->microbatch};
    PyObject *row = make_row(items, sizeof items / sizeof *items);
    Py_XDECREF(start);
    Py_XDECREF(end);
    if (!row) return -1;
    int failed = call_and_drop(calls->append, row);
    Py_DECREF(row);
    if (failed || !waited) return failed;
    return keep_inner(calls, sent->op, sent->start_ns, now);
}

/* As `CallLog.end_wait`, if the step is recorded. */
static int end_wait(const Calls *calls, Sent *sent, long long start)
{
    long long now;
    if (sent->ends_with_wait && end_sent(calls, sent, sent->is_sync) < 0) return -1;
    if (sent->is_sync) return 0;
    int recording = is_true(calls->recorder, s_recording);
    if (recording <= 0) return recording;
    return read_clock(calls, &now) < 0 ? -1 : keep_inner(calls, sent->op, start, now);
}

/* ---- handles ---- */

static int keep_handle(PyObject *handles, PyObject *work, PyObject *kept, Sent *sent)
{
    PyObject *key = PyLong_FromVoidPtr(work), *entry = PyTuple_Pack(2, kept, (PyObject *)sent);
    int failed = !key || !entry || PyDict_SetItem(handles, key, entry) < 0;
    sent->handle = work;
    Py_XDECREF(key);
    Py_XDECREF(entry);
    return failed ? -1 : 0;
}

/* Find an operation by its handle, as long as the job or a callback keeps that. */
static int remember(PyObject *handles, PyObject *work, Sent *sent)
{
    PyObject *reference = PyWeakref_NewRef(work, (PyObject *)sent);
    int failed = !reference || keep_handle(handles, work, reference, sent) < 0;
    Py_XDECREF(reference);
    return failed ? -1 : 0;
}

/* Remove and return what is known of a handle, with 1, or 0 if nothing is. */
static int pop_handle(PyObject *handles, void *work, PyObject **entry)
{
    *entry = NULL;
    PyObject *key = PyLong_FromVoidPtr(work);
    if (!key) return -1;
    PyObject *found = PyDict_GetItemWithError(handles, key);
    if (found) {
        Py_INCREF(found);
        *entry = found;
        if (PyDict_DelItem(handles, key) < 0) Py_CLEAR(*entry);
    }
    Py_DECREF(key);
    return PyErr_Occurred() ? -1 : *entry != NULL;
}

static int follow(Sent *sent, PyObject *work, const Calls *calls);

/* As `GroupCalls._await`. */
static int await_work(Sent *sent, PyObject *work)
{
    PyObject *handles = sent->hooks->calls->handles, *before = here_work, *entry = NULL;
    if (before) { /* nobody has waited for it yet */
        PyObject *key = PyLong_FromVoidPtr(before);
        PyObject *found = key ? PyDict_GetItemWithError(handles, key) : NULL;
        PyObject *missed = found ? PyTuple_GET_ITEM(found, 1) : NULL;
        int is_missed = missed && Py_TYPE(missed) == sent_type && ((Sent *)missed)->is_sync;
        Py_XDECREF(key);
        if (PyErr_Occurred()) return -1;
        if (is_missed) {
            if (pop_handle(handles, before, &entry) < 0) return -1;
            int failed = follow((Sent *)PyTuple_GET_ITEM(entry, 1), PyTuple_GET_ITEM(entry, 0), sent->hooks->calls);
            Py_DECREF(entry);
            if (failed) return -1;
        }
    }
    sent->ends_with_wait = 1;
    int failed = sent->is_sync ? keep_handle(handles, work, work, sent) : remember(handles, work, sent);
    if (failed) return -1;
    keep_own(&here_work, work);
    return 0;
}

/* As `GroupCalls.follow`. */
static int follow(Sent *sent, PyObject *work, const Calls *calls)
{
    Hooks *hooks = sent->hooks;
    PyObject *future = NULL;
    if (!hooks) {
        PyObject *done = PyObject_CallFunctionObjArgs(calls->follow, (PyObject *)sent, work, NULL);
        Py_XDECREF(done);
        return done ? 0 : -1;
    }
    if (!hooks->silent[sent->number]) {
        future = PyObject_CallMethodNoArgs(work, s_get_future);
        if (!future) { /* gloo has none for messages and some collectives */
            if (!PyErr_ExceptionMatches(PyExc_RuntimeError)) return -1;
            PyErr_Clear();
            hooks->silent[sent->number] = 1;
        }
    }
    if (!future) return sent->is_sync ? 0 : await_work(sent, work);
    int failed = remember(calls->handles, work, sent) < 0;
    if (!failed) {
        keep_own(&sent->held, work);
        PyObject *done = PyObject_CallMethodOneArg(future, s_add_done_callback, (PyObject *)sent);
        failed = !done;
        Py_XDECREF(done);
    }
    Py_DECREF(future);
    return failed ? -1 : 0;
}

/* A handle is gone, or its operation has ended. */
static int call_sent(Sent *sent, PyObject *argument)
{
    const Calls *calls = sent->hooks->calls;
    PyObject *entry = NULL, *key;
    if (PyWeakref_Check(argument)) {
        if (pop_handle(calls->handles, sent->handle, &entry) < 0) return -1;
        Py_XDECREF(entry);
        return 0;
    }
    if (sent->address) {
        if (!(key = PyLong_FromUnsignedLongLong(sent->address))) return -1;
        PyObject *found = PyDict_GetItemWithError(calls->in_flight, key);
        int failed = found == (PyObject *)sent && PyDict_DelItem(calls->in_flight, key) < 0;
        Py_DECREF(key);
        if (failed || PyErr_Occurred()) return -1;
    }
    return end_sent(calls, sent, 0);
}

/* A thread of the backend calls this, and the job waits for it. */
static PyObject *sent_called(PyObject *self, PyObject *arguments, PyObject *names)
{
    Sent *sent = (Sent *)self;
    (void)names;
    if (sent->hooks && PyTuple_GET_SIZE(arguments) == 1) {
        if (call_sent(sent, PyTuple_GET_ITEM(arguments, 0)) < 0) report(sent->hooks->calls, "collective done");
        if (!PyWeakref_Check(PyTuple_GET_ITEM(arguments, 0))) Py_CLEAR(sent->held);
    }
    Py_RETURN_NONE;
}

static void release_sent(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    Sent *sent = (Sent *)self;
    Py_XDECREF(sent->group);
    Py_XDECREF(sent->op);
    Py_XDECREF(sent->message);
    Py_XDECREF(sent->sequence);
    Py_XDECREF(sent->step);
    Py_XDECREF(sent->mark);
    Py_XDECREF(sent->module);
    Py_XDECREF(sent->microbatch);
    Py_XDECREF(sent->hooks);
    Py_XDECREF(sent->held);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyObject *or_none(PyObject *value)
{
    value = value ? value : Py_None;
    Py_INCREF(value);
    return value;
}

static int initialise_sent(PyObject *self, PyObject *arguments, PyObject *names)
{
    Sent *sent = (Sent *)self;
    PyObject *group, *op, *message, *sequence, *step, *mark;
    static char *fields[] = {"group", "op", "message", "sequence", "step", "start_ns", "mark", NULL};
    if (!PyArg_ParseTupleAndKeywords(arguments, names, "OOOOOLO", fields, &group, &op, &message, &sequence, &step, &sent->start_ns, &mark)) return -1;
    Py_XSETREF(sent->group, or_none(group));
    Py_XSETREF(sent->op, or_none(op));
    Py_XSETREF(sent->message, or_none(message));
    Py_XSETREF(sent->sequence, or_none(sequence));
    Py_XSETREF(sent->step, or_none(step));
    Py_XSETREF(sent->mark, or_none(mark));
    return 0;
}

static PyMemberDef sent_members[] = {
    {"group", T_OBJECT, offsetof(Sent, group), 0, NULL},
    {"op", T_OBJECT, offsetof(Sent, op), 0, NULL},
    {"message", T_OBJECT, offsetof(Sent, message), 0, NULL},
    {"sequence", T_OBJECT, offsetof(Sent, sequence), 0, NULL},
    {"step", T_OBJECT, offsetof(Sent, step), 0, NULL},
    {"mark", T_OBJECT, offsetof(Sent, mark), 0, NULL},
    {"module", T_OBJECT, offsetof(Sent, module), 0, NULL},
    {"microbatch", T_OBJECT, offsetof(Sent, microbatch), 0, NULL},
    {"start_ns", T_LONGLONG, offsetof(Sent, start_ns), 0, NULL},
    {"address", T_ULONGLONG, offsetof(Sent, address), 0, NULL},
    {"is_over", T_BOOL, offsetof(Sent, is_over), 0, NULL},
    {"is_sync", T_BOOL, offsetof(Sent, is_sync), 0, NULL},
    {"ends_with_wait", T_BOOL, offsetof(Sent, ends_with_wait), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

/* ---- hooks of a group ---- */

/* Ask the hooks in Python what is known of the group now. */
static int settle(Hooks *hooks)
{
    PyObject *known = PyObject_CallMethodNoArgs(hooks->slow, s_settled);
    if (!known) return -1;
    Py_CLEAR(hooks->group);
    Py_CLEAR(hooks->numbers);
    PyDict_Clear(hooks->pairs);
    if (known != Py_None && PyArg_ParseTuple(known, "OO", &hooks->group, &hooks->numbers)) {
        Py_INCREF(hooks->group);
        Py_INCREF(hooks->numbers);
    }
    Py_DECREF(known);
    int by_address = is_true(hooks->calls->calls, s_by_address);
    hooks->by_address = (char)(by_address > 0);
    hooks->modules = PyDict_GET_SIZE(hooks->calls->modules);
    return PyErr_Occurred() ? -1 : read_size(hooks->calls->layout, s_version, &hooks->version);
}

/* Return 1 if nothing has changed since, else 0. */
static int is_settled(const Hooks *hooks)
{
    Py_ssize_t version;
    if (PyDict_GET_SIZE(hooks->calls->modules) != hooks->modules) return 0;
    if (read_size(hooks->calls->layout, s_version, &version) < 0) return -1;
    return version == hooks->version;
}

static int has_device(const Calls *calls)
{
    PyObject *device = PyObject_GetAttr(calls->recorder, s_device);
    Py_XDECREF(device);
    return device ? device != Py_None : -1;
}

/* Add up the message; return 1, or 0 if Python must. */
static int measure(const Hooks *hooks, PyObject *tensors, PyObject **name, long long *size)
{
    *size = 0;
    if (!PyList_CheckExact(tensors) || !PyList_GET_SIZE(tensors)) return 0;
    for (Py_ssize_t at = 0; at < PyList_GET_SIZE(tensors); at++) {
        PyObject *tensor = PyList_GET_ITEM(tensors, at);
        Py_ssize_t bytes;
        if (read_size(tensor, s_nbytes, &bytes) < 0) { /* a sparse one has none */
            if (!PyErr_ExceptionMatches(PyExc_RuntimeError)) return -1;
            PyErr_Clear();
            return 0;
        }
        *size += bytes;
    }
    PyObject *dtype = PyObject_GetAttr(PyList_GET_ITEM(tensors, 0), s_dtype);
    *name = dtype ? PyDict_GetItemWithError(hooks->calls->dtypes, dtype) : NULL;
    Py_XDECREF(dtype);
    return PyErr_Occurred() ? -1 : *name != NULL;
}

static PyObject *address_of(PyObject *tensors)
{
    return PyObject_CallMethodNoArgs(PyList_GET_ITEM(tensors, 0), s_data_ptr);
}

/* Find the sender and the receiver of a message, and the iterator of its numbers. */
static PyObject *find_pair(const Hooks *hooks, PyObject *args, PyObject *op)
{
    PyObject *root = PyObject_GetAttr(args, s_root), *key = root ? PyTuple_Pack(2, op, root) : NULL, *pair = NULL;
    if (key) {
        pair = PyDict_GetItemWithError(hooks->pairs, key);
        Py_XINCREF(pair);
        if (!pair && !PyErr_Occurred()) {
            pair = PyObject_CallMethodObjArgs(hooks->slow, s_pair, op, root, NULL);
            if (pair && PyDict_SetItem(hooks->pairs, key, pair) < 0) Py_CLEAR(pair);
        }
    }
    Py_XDECREF(key);
    Py_XDECREF(root);
    return pair;
}

static int note_address(PyObject *args, Sent *sent, PyObject *tensors, int in_outputs)
{
    int is_async = is_true(args, s_async_op);
    if (is_async <= 0) return is_async;
    PyObject *outputs = in_outputs ? NULL : PyObject_GetAttr(args, s_outputs);
    if (!in_outputs && !outputs) return -1;
    PyObject *results = outputs && PyList_CheckExact(outputs) && PyList_GET_SIZE(outputs) ? outputs : NULL;
    PyObject *inputs = NULL;
    if (!results) results = in_outputs ? tensors : (inputs = PyObject_GetAttr(args, s_inputs));
    PyObject *address = results && PyList_GET_SIZE(results) ? address_of(results) : NULL;
    if (address) sent->address = PyLong_AsUnsignedLongLong(address);
    Py_XDECREF(address);
    Py_XDECREF(inputs);
    Py_XDECREF(outputs);
    return PyErr_Occurred() ? -1 : 0;
}

static Sent *make_sent(Hooks *hooks, const Operation *operation, PyObject *args, long long size, PyObject *dtype)
{
    PyObject *group = hooks->group, *numbers = hooks->numbers, *pair = NULL;
    if (operation->is_message) {
        if (!(pair = find_pair(hooks, args, operation->op))) return NULL;
        group = PyTuple_GET_ITEM(pair, 0);
        numbers = PyTuple_GET_ITEM(pair, 1);
    }
    Sent *sent = (Sent *)sent_type->tp_alloc(sent_type, 0);
    if (sent) {
        Py_INCREF(hooks);
        sent->hooks = hooks;
        sent->group = or_none(group);
        sent->op = or_none(operation->op);
        if (operation->is_part) size *= PyLong_AsLongLong(of_group(sent, GROUP_SIZE));
        sent->message = Py_BuildValue("(LO)", size, dtype);
        sent->sequence = PyIter_Next(numbers);
        sent->step = PyObject_GetAttr(hooks->calls->recorder, s_step_index);
        sent->mark = or_none(NULL);
        sent->module = or_none(here_module);
        sent->microbatch = or_none(NULL);
        if (!sent->message || !sent->sequence || !sent->step || read_clock(hooks->calls, &sent->start_ns) < 0) Py_CLEAR(sent);
    }
    Py_XDECREF(pair);
    return sent;
}

static int note_microbatch(const Calls *calls, Sent *sent, PyObject *tensors)
{
    if (!PyDict_GET_SIZE(calls->microbatches)) return 0;
    PyObject *address = address_of(tensors);
    PyObject *found = address ? PyObject_CallMethodObjArgs(calls->microbatches, s_pop, address, Py_None, NULL) : NULL;
    Py_XDECREF(address);
    if (found) Py_SETREF(sent->microbatch, found);
    return found ? 0 : -1;
}

/* As `GroupHooks._begin`; return 1, or 0 if Python must do it. */
static int begin(Hooks *hooks, PyObject *args)
{
    Calls *calls = hooks->calls;
    Py_ssize_t number;
    PyObject *dtype, *tensors = NULL;
    long long size;
    if (read_size(args, s_name, &number) < 0) return -1;
    if (number < 0 || number >= OPERATIONS) return 0;
    const Operation *operation = &calls->known[number];
    if (!operation->is_known) return 0;
    if (!(tensors = PyObject_GetAttr(args, operation->in_outputs ? s_outputs : s_inputs))) return -1;
    int done = measure(hooks, tensors, &dtype, &size);
    Sent *sent = done > 0 ? make_sent(hooks, operation, args, size, dtype) : NULL;
    if (done > 0) {
        done = -1;
        if (!sent) goto ended;
        sent->number = (unsigned char)number;
        if (operation->is_message && note_microbatch(calls, sent, tensors) < 0) goto ended;
        if (hooks->by_address && note_address(args, sent, tensors, operation->in_outputs) < 0) goto ended;
        PyObject *appended = PyObject_CallMethodOneArg(calls->last, s_append, (PyObject *)sent);
        Py_XDECREF(appended);
        if (!appended) goto ended;
        push_open((PyObject *)sent);
        sent = NULL;
        done = 1;
    }
ended:
    Py_XDECREF(tensors);
    Py_XDECREF(sent);
    return done;
}

static PyObject *before(PyObject *self, PyObject *args)
{
    Hooks *hooks = (Hooks *)self;
    if (inside) {
        if (!sent_ns && read_clock(hooks->calls, &sent_ns) < 0) PyErr_Clear();
        Py_RETURN_NONE;
    }
    int settled = is_settled(hooks), done = settled < 0 ? -1 : 0;
    if (settled > 0 && hooks->group) {
        int device = has_device(hooks->calls);
        done = device ? -(device < 0) : begin(hooks, args);
    }
    if (done <= 0) push_open(NULL);
    if (!done) {
        PyObject *returned = PyObject_CallMethodOneArg(hooks->slow, s_before, args);
        Py_XDECREF(returned);
        done = !returned || (!settled && settle(hooks) < 0) ? -1 : 1;
    }
    if (done < 0) report(hooks->calls, "collective begun");
    Py_RETURN_NONE;
}

static int keep_in_flight(const Calls *calls, Sent *sent)
{
    PyObject *key = PyLong_FromUnsignedLongLong(sent->address);
    if (PyDict_GET_SIZE(calls->in_flight) >= calls->most_open) PyDict_Clear(calls->in_flight); /* mostly waited for by their handles */
    int failed = !key || PyDict_SetItem(calls->in_flight, key, (PyObject *)sent) < 0;
    Py_XDECREF(key);
    return failed ? -1 : 0;
}

/* As `GroupCalls.end`. */
static int hand_over(const Calls *calls, Sent *sent, PyObject *work, int is_async)
{
    long long now;
    if (work == Py_None) return end_sent(calls, sent, 1);
    sent->is_sync = (char)!is_async;
    if (!is_async) return await_work(sent, work);
    if (sent->address && keep_in_flight(calls, sent) < 0) return -1;
    if (calls->known[sent->number].is_message && !sends) { /* it wakes threads of the backend */
        int recording = is_true(calls->recorder, s_recording);
        if (recording < 0 || read_clock(calls, &now) < 0) return -1;
        if (recording && keep_inner(calls, sent->op, sent->start_ns, now) < 0) return -1;
    }
    return follow(sent, work, calls);
}

static int end_operation(const Hooks *hooks, Sent *sent, PyObject *args)
{
    int is_async = is_true(args, s_async_op);
    PyObject *work = is_async < 0 ? NULL : PyObject_GetAttr(args, s_work);
    int failed = !work || hand_over(hooks->calls, sent, work, is_async) < 0;
    Py_XDECREF(work);
    return failed ? -1 : 0;
}

static PyObject *after(PyObject *self, PyObject *args)
{
    Hooks *hooks = (Hooks *)self;
    int failed;
    if (inside) Py_RETURN_NONE;
    PyObject *sent = opened ? open[--opened] : NULL;
    if (sent)
        failed = end_operation(hooks, (Sent *)sent, args) < 0;
    else {
        PyObject *done = PyObject_CallMethodOneArg(hooks->slow, s_after, args);
        failed = !done;
        Py_XDECREF(done);
    }
    if (failed) report(hooks->calls, "collective handed over");
    Py_XDECREF(sent);
    Py_RETURN_NONE;
}

static int initialise_hooks(PyObject *self, PyObject *arguments, PyObject *names)
{
    Hooks *hooks = (Hooks *)self;
    PyObject *calls, *slow;
    if ((names && PyDict_GET_SIZE(names)) || !PyArg_ParseTuple(arguments, "OO", &calls, &slow)) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "Hooks takes no names of arguments");
        return -1;
    }
    Py_INCREF(calls);
    Py_INCREF(slow);
    hooks->calls = (Calls *)calls;
    hooks->slow = slow;
    hooks->pairs = PyDict_New();
    return hooks->pairs ? 0 : -1;
}

static void release_hooks(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    Hooks *hooks = (Hooks *)self;
    Py_XDECREF(hooks->calls);
    Py_XDECREF(hooks->slow);
    Py_XDECREF(hooks->group);
    Py_XDECREF(hooks->numbers);
    Py_XDECREF(hooks->pairs);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMethodDef hooks_methods[] = {
    {"before", before, METH_O, "before(args): note that an operation begins."},
    {"after", after, METH_O, "after(args): note that an operation was handed over."},
    {NULL, NULL, 0, NULL},
};

/* ---- calls ---- */

static int read_operations(Calls *calls)
{
    PyObject *key, *value;
    Py_ssize_t place = 0;
    while (PyDict_Next(calls->operations, &place, &key, &value)) {
        Py_ssize_t number = PyNumber_AsSsize_t(key, PyExc_OverflowError);
        if (number < 0 || number >= OPERATIONS) continue;
        Operation *known = &calls->known[number];
        int in_outputs, is_part, is_message;
        if (!PyArg_ParseTuple(value, "Oppp", &known->op, &in_outputs, &is_part, &is_message)) return -1;
        known->is_known = 1;
        known->in_outputs = (char)in_outputs;
        known->is_part = (char)is_part;
        known->is_message = (char)is_message;
    }
    return PyErr_Occurred() ? -1 : 0;
}

static int initialise_calls(PyObject *self, PyObject *arguments, PyObject *names)
{
    Calls *calls = (Calls *)self;
    PyObject *clock;
    static char *fields[] = {"calls", "layout", "modules", "operations", "follow", "end_wait", "report", "set_eval_frame",
                             "recorder", "append", "handles", "last", "in_flight", "dtypes", "microbatches", "clock", "most_open", NULL};
    PyObject **places[] = {&calls->calls, &calls->layout, &calls->modules, &calls->operations, &calls->follow, &calls->end_wait, &calls->report,
                           &calls->set_eval_frame, &calls->recorder, &calls->append, &calls->handles, &calls->last, &calls->in_flight,
                           &calls->dtypes, &calls->microbatches};
    PyObject *given[15];
    if (!PyArg_ParseTupleAndKeywords(arguments, names, "$OOO!O!OOOOOOO!OO!O!O!On", fields, &given[0], &given[1], &PyDict_Type, &given[2],
                                     &PyDict_Type, &given[3], &given[4], &given[5], &given[6], &given[7], &given[8], &given[9], &PyDict_Type, &given[10],
                                     &given[11], &PyDict_Type, &given[12], &PyDict_Type, &given[13], &PyDict_Type, &given[14], &clock, &calls->most_open))
        return -1;
    for (int at = 0; at < 15; at++) Py_XSETREF(*places[at], or_none(given[at]));
    static unsigned long long made;
    calls->serial = ++made;
    Py_XSETREF(calls->clock, clock == now_ns ? NULL : or_none(clock));
    return read_operations(calls);
}

static void release_calls(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    Calls *calls = (Calls *)self;
    PyObject *parts[] = {calls->calls, calls->layout, calls->modules, calls->operations, calls->follow, calls->end_wait, calls->report,
                         calls->set_eval_frame, calls->recorder, calls->append, calls->handles, calls->last, calls->in_flight,
                         calls->dtypes, calls->microbatches, calls->clock};
    for (size_t at = 0; at < sizeof parts / sizeof *parts; at++) Py_XDECREF(parts[at]);
    type->tp_free(self);
    Py_DECREF(type);
}

/* ---- the wait for a handle ---- */

typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    Calls *calls;
    PyObject *original;
} Wait;

/* Note what the wait of this handle's operation took. */
static void note_wait(const Calls *calls, PyObject *found, long long start)
{
    int failed;
    if (Py_TYPE(found) == sent_type && ((Sent *)found)->hooks)
        failed = end_wait(calls, (Sent *)found, start);
    else {
        PyObject *done = PyObject_CallFunction(calls->end_wait, "OL", found, start);
        Py_XDECREF(done);
        failed = done ? 0 : -1;
    }
    if (failed) report(calls, "collective waited for");
}

static PyObject *call_wait(PyObject *self, PyObject *const *arguments, size_t count, PyObject *names)
{
    Wait *wait = (Wait *)self;
    const Calls *calls = wait->calls;
    PyObject *entry = NULL, *result;
    long long start;
    if (PyVectorcall_NARGS(count) > 0 && PyDict_GET_SIZE(calls->handles)) {
        if (pop_handle(calls->handles, arguments[0], &entry) < 0) report(calls, "collective waited for");
        if (here_work == arguments[0]) Py_CLEAR(here_work);
    }
    if (!entry) return PyObject_Vectorcall(wait->original, arguments, count, names);
    if (read_clock(calls, &start) < 0) report(calls, "collective waited for");
    result = PyObject_Vectorcall(wait->original, arguments, count, names);
    if (result) note_wait(calls, PyTuple_GET_ITEM(entry, 1), start);
    Py_DECREF(entry);
    return result;
}

static PyObject *bind_wait(PyObject *self, PyObject *work, PyObject *type)
{
    (void)type;
    if (work) return PyMethod_New(self, work);
    Py_INCREF(self);
    return self;
}

/* Its name and all else that it does not have are the original's. */
static PyObject *get_of_wait(PyObject *self, PyObject *name)
{
    PyObject *found = PyObject_GenericGetAttr(self, name);
    if (found || !PyErr_ExceptionMatches(PyExc_AttributeError)) return found;
    PyErr_Clear();
    return PyObject_GetAttr(((Wait *)self)->original, name);
}

static int initialise_wait(PyObject *self, PyObject *arguments, PyObject *names)
{
    Wait *wait = (Wait *)self;
    PyObject *calls, *original;
    if ((names && PyDict_GET_SIZE(names)) || !PyArg_ParseTuple(arguments, "OO", &calls, &original)) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "Wait takes no names of arguments");
        return -1;
    }
    wait->call = call_wait;
    Py_INCREF(calls);
    wait->calls = (Calls *)calls;
    Py_INCREF(original);
    wait->original = original;
    return 0;
}

static void release_wait(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    Py_XDECREF(((Wait *)self)->calls);
    Py_XDECREF(((Wait *)self)->original);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMemberDef wait_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Wait, call), READONLY, NULL},
    {"__wrapped__", T_OBJECT, offsetof(Wait, original), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

/* ---- the module ---- */

#define CAST(function) ((void *)(function))

static PyType_Slot here_slots[] = {{Py_tp_doc, "What this thread is doing."}, {Py_tp_getset, here_fields}, {Py_tp_new, CAST(PyType_GenericNew)}, {0, NULL}};
static PyType_Slot sent_slots[] = {
    {Py_tp_doc, "A collective that a process has entered."}, {Py_tp_members, sent_members}, {Py_tp_call, CAST(sent_called)},
    {Py_tp_init, CAST(initialise_sent)}, {Py_tp_dealloc, CAST(release_sent)}, {Py_tp_new, CAST(PyType_GenericNew)}, {0, NULL}};
static PyType_Slot calls_slots[] = {
    {Py_tp_doc, "Makes rows of what process groups do."}, {Py_tp_init, CAST(initialise_calls)}, {Py_tp_dealloc, CAST(release_calls)},
    {Py_tp_new, CAST(PyType_GenericNew)}, {0, NULL}};
static PyType_Slot hooks_slots[] = {
    {Py_tp_doc, "The two hooks of one group."}, {Py_tp_methods, hooks_methods}, {Py_tp_init, CAST(initialise_hooks)},
    {Py_tp_dealloc, CAST(release_hooks)}, {Py_tp_new, CAST(PyType_GenericNew)}, {0, NULL}};
static PyType_Slot wait_slots[] = {
    {Py_tp_doc, "`Work.wait`, timed."}, {Py_tp_members, wait_members}, {Py_tp_call, CAST(PyVectorcall_Call)}, {Py_tp_descr_get, CAST(bind_wait)}, {Py_tp_getattro, CAST(get_of_wait)},
    {Py_tp_init, CAST(initialise_wait)}, {Py_tp_dealloc, CAST(release_wait)}, {Py_tp_new, CAST(PyType_GenericNew)}, {0, NULL}};

#define MODULE "profkit.instrument._calls"

static PyType_Spec specs[] = {
    {MODULE ".Here", sizeof(Here), 0, Py_TPFLAGS_DEFAULT, here_slots},
    {MODULE ".Calls", sizeof(Calls), 0, Py_TPFLAGS_DEFAULT, calls_slots},
    {MODULE ".Hooks", sizeof(Hooks), 0, Py_TPFLAGS_DEFAULT, hooks_slots},
    {MODULE ".Wait", sizeof(Wait), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR, wait_slots},
};
static PyType_Spec sent_spec = {MODULE ".Sent", sizeof(Sent), 0, Py_TPFLAGS_DEFAULT, sent_slots};

static PyObject *from_module(const char *module_name, const char *name)
{
    PyObject *source = PyImport_ImportModule(module_name);
    PyObject *found = source ? PyObject_GetAttrString(source, name) : NULL;
    Py_XDECREF(source);
    return found;
}

/* Fails the import if `Group` has no longer the fields that are read here. */
static int prepare(void)
{
    for (size_t at = 0; at < sizeof WORDS / sizeof *WORDS; at++)
        if (!(*WORDS[at].place = PyUnicode_InternFromString(WORDS[at].word))) return -1;
    if (!(now_ns = from_module("profkit.clock", "now_ns"))) return -1;
    PyObject *type = from_module("profkit.instrument.sent", "Group");
    PyObject *fields = type ? PyObject_GetAttrString(type, "_fields") : NULL;
    int failed = !fields;
    for (int field = 0; !failed && field < GROUP_FIELDS; field++) {
        PyObject *name = PyUnicode_FromString(GROUP_FIELD_NAMES[field]);
        group_places[field] = name ? PySequence_Index(fields, name) : -1;
        Py_XDECREF(name);
        failed = group_places[field] < 0;
        if (failed) PyErr_Format(PyExc_TypeError, "Group has no field '%s', which _calls.c reads", GROUP_FIELD_NAMES[field]);
    }
    Py_XDECREF(fields);
    Py_XDECREF(type);
    return failed ? -1 : 0;
}

static int add_type(PyObject *made, PyType_Spec *spec, PyTypeObject **kept)
{
    PyObject *type = PyType_FromSpec(spec);
    if (!type) return -1;
    if (kept) *kept = (PyTypeObject *)type;
    Py_INCREF(type); /* of the module, which never goes */
    return PyModule_AddObject(made, strrchr(spec->name, '.') + 1, type);
}

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_calls", "The compiled twin of the hooks of process groups.", -1, NULL, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__calls(void)
{
    if (prepare() < 0) return NULL;
    PyObject *made = PyModule_Create(&module);
    int failed = !made || add_type(made, &sent_spec, &sent_type) < 0;
    for (size_t at = 0; !failed && at < sizeof specs / sizeof *specs; at++) failed = add_type(made, &specs[at], NULL) < 0;
    if (failed) Py_CLEAR(made);
    return made;
}
