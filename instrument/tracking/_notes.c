/* Buffers the reports of hooks, as `notes.py` does, which specifies this file.
 *
 * Python code may run in every call of Python, at each allocation (a garbage collection in Python
 * 3.10 and 3.11) and at each DECREF: finalizers and signal handlers that make notes, and other
 * threads that take them. So notes leave the array before they are used (`take_out`), and nothing
 * that was checked before such a place is relied on after it.
 *
 * At the boundary of a phase, the job's tensors have driven our code and data out of the caches.
 * A note therefore touches one object, and no other function or dictionary of ours. Nothing here
 * raises, except what the tracker, a clock or a device raises; the hooks that call this are guarded.
 *
 * Only this file times short batches that the loop makes itself (`begin_fetch`); `notes.py` leaves
 * all of them to the meter.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <structmember.h>
#include <time.h>

#include "../../profkit/_same_python.h"

#define ROOM 1000
#define NOBODY 0UL
/* Batches that take more nanoseconds are timed by the meter, which also measures waits for a core. */
#define SHORT 2000000

enum Kind { DATA, COPY, FORWARD, BACKWARD, OPTIMIZER, ZERO_GRAD, ROWS, FETCHED, SKIPPED, STEP, END, KINDS };

static const char *const KIND_NAMES[KINDS] = {"data",      "h2d",  "forward", "backward", "optimizer",
                                              "zero_grad", "rows", "fetched", "skipped",  "step",
                                              "end"};

typedef struct {
    enum Kind kind;
    int64_t at;
    int64_t region;
    PyObject *mark; /* or NULL */
    PyObject *what; /* or NULL: None */
} Note;

typedef struct {
    PyObject_HEAD
    unsigned long thread;
    int copies;
    int quiet;        /* the steps are switched off and make no rows */
    int stepped;      /* an optimizer has stepped since the last batch */
    int called_again; /* a model was called with gradients after that */
    int64_t stepper;  /* the first optimizer that has stepped since the last batch */
    Py_ssize_t ahead; /* number of following steps that are replayed with this one */
    Py_ssize_t step;  /* the number of the step that is noted */
    Py_ssize_t first, count;
    int64_t serial;
    int64_t inside; /* number of noted regions that are open, since this was opened */
    PyObject *mark;  /* or NULL */
    PyObject *clock; /* or NULL: the monotonic clock itself */
    PyObject *tracker;
    PyObject *meter;   /* times batches that this file does not time; or NULL */
    PyObject *fetcher; /* the one that makes a batch now; or NULL */
    PyObject *collate; /* its own function */
    int64_t fetch, fetch_processor, collated, collated_processor, took;
    Note notes[ROOM];
} Notes;

static PyObject *kind_names[KINDS];
static PyObject *collate_name, *now_ns, *count_batch;
static PyObject *meter_begin, *meter_end, *meter_drop;
static PyObject *read_name, *decode_name, *made_name;
static PyObject *tracker_begin_data, *tracker_begin_copy, *tracker_begin_forward, *tracker_begin_backward, *tracker_begin_optimizer, *tracker_begin_reset;
static PyObject *tracker_end, *tracker_end_batch, *tracker_name_skipped, *tracker_keep_rows, *tracker_catch_up;
static PyObject *with_gradients;

/* The fields of `profkit.instrument.rows.SpanRow` that are filled here; all others are `None`. */
enum Field { STEP_INDEX, PHASE, NAME, DEPTH, THREAD, START, FINISH, FIELDS };

static const char *const FIELD_NAMES[FIELDS] = {"step",   "phase",    "name",  "depth",
                                                "thread", "start_ns", "end_ns"};
static Py_ssize_t field_places[FIELDS]; /* read at import, so that their order is defined once */
static Py_ssize_t span_size;

static int is_here(const Notes *self) { return PyThread_get_thread_ident() == self->thread; }

/* Call what may be replaced meanwhile. */
static PyObject *call_held(PyObject *callable)
{
    Py_INCREF(callable);
    PyObject *result = PyObject_CallNoArgs(callable);
    Py_DECREF(callable);
    return result;
}

static int read_clock(Notes *self, int64_t *now)
{
    if (!self->clock) {
        struct timespec time;
        clock_gettime(CLOCK_MONOTONIC, &time);
        *now = (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
        return 0;
    }
    PyObject *read = call_held(self->clock);
    if (!read) return -1;
    *now = PyLong_AsLongLong(read);
    Py_DECREF(read);
    return *now == -1 && PyErr_Occurred() ? -1 : 0;
}

/* Add a note. The reference to what belongs to it is taken in any case. */
static int note(Notes *self, enum Kind kind, int64_t region, PyObject *what)
{
    PyObject *mark = NULL;
    int64_t at;
    if (self->mark && !self->quiet && (kind < ROWS || kind == END)) {
        mark = call_held(self->mark);
        if (!mark) goto failed;
        if (mark == Py_None) Py_CLEAR(mark);
    }
    if (read_clock(self, &at) < 0) goto failed;
    if (self->count >= ROOM) {
        PyObject *done = PyObject_CallMethodObjArgs(self->tracker, tracker_catch_up, NULL);
        if (!done) goto failed;
        Py_DECREF(done);
        if (self->count >= ROOM) {
            PyErr_SetString(PyExc_OverflowError, "too many boundaries are noted");
            goto failed;
        }
    }
    Note *noted = &self->notes[self->count++];
    noted->kind = kind;
    noted->at = at;
    noted->region = region;
    noted->mark = mark;
    noted->what = what;
    return 0;
failed:
    Py_XDECREF(mark);
    Py_XDECREF(what);
    return -1;
}

static PyObject *begin(Notes *self, enum Kind kind, PyObject *what)
{
    int64_t region = ++self->serial;
    self->inside++;
    return note(self, kind, region, what) < 0 ? NULL : PyLong_FromLongLong(region);
}

static int is_number(PyObject *span, int64_t *region)
{
    if (!PyLong_CheckExact(span)) return 0;
    *region = PyLong_AsLongLong(span);
    return 1;
}

static int has_arguments(Py_ssize_t given, Py_ssize_t least, Py_ssize_t most)
{
    if (given >= least && given <= most) return 1;
    PyErr_SetString(PyExc_TypeError, "wrong number of arguments");
    return 0;
}

static PyObject *begin_wait(PyObject *object, PyObject *unused)
{
    (void)unused;
    return begin((Notes *)object, DATA, NULL);
}

static PyObject *begin_batch(PyObject *object, PyObject *unused)
{
    Notes *self = (Notes *)object;
    (void)unused;
    if (!is_here(self) || !self->stepped || self->inside || self->ahead <= 0) return PyObject_CallMethodObjArgs(self->tracker, tracker_begin_data, NULL);
    if (note(self, STEP, 0, NULL) < 0) return NULL;
    self->step++;
    self->ahead--;
    self->stepped = self->copies = self->called_again = 0;
    return begin(self, DATA, NULL);
}

static PyObject *begin_copy(PyObject *object, PyObject *unused)
{
    Notes *self = (Notes *)object;
    (void)unused;
    if (!is_here(self)) return PyObject_CallMethodObjArgs(self->tracker, tracker_begin_copy, NULL);
    if (!self->copies) Py_RETURN_NONE;
    return begin(self, COPY, NULL);
}

static PyObject *begin_forward(PyObject *object, PyObject *const *arguments, Py_ssize_t count, PyObject *names)
{
    Notes *self = (Notes *)object;
    if (!has_arguments(count, 0, 0) || !has_arguments(names ? PyTuple_GET_SIZE(names) : 0, 1, 1)) return NULL;
    if (!self->tracker) Py_RETURN_NONE; /* collected */
    if (!is_here(self) || (self->stepped && arguments[0] == Py_None)) {
        PyObject *call[] = {self->tracker, arguments[0]};
        return PyObject_VectorcallMethod(tracker_begin_forward, call, 1, with_gradients);
    }
    self->copies = 0;
    self->called_again |= self->stepped && arguments[0] == Py_True;
    Py_INCREF(arguments[0]);
    return begin(self, FORWARD, arguments[0]);
}

static PyObject *begin_backward(PyObject *object, PyObject *const *arguments, Py_ssize_t count)
{
    Notes *self = (Notes *)object;
    if (!has_arguments(count, 2, 2)) return NULL;
    if (!is_here(self)) return PyObject_CallMethodObjArgs(self->tracker, tracker_begin_backward, arguments[0], arguments[1], NULL);
    PyObject *what = PyTuple_Pack(2, arguments[0], arguments[1]);
    return what ? begin(self, BACKWARD, what) : NULL;
}

static PyObject *begin_optimizer(PyObject *object, PyObject *optimizer)
{
    Notes *self = (Notes *)object;
    int64_t number = PyLong_CheckExact(optimizer) ? PyLong_AsLongLong(optimizer) : 0;
    if (number == -1) PyErr_Clear(); /* the number is too large */
    if (!is_here(self) || (self->called_again && number == self->stepper))
        return PyObject_CallMethodObjArgs(self->tracker, tracker_begin_optimizer, optimizer, NULL);
    if (!self->stepped) self->stepper = number;
    self->stepped = 1;
    Py_INCREF(optimizer);
    return begin(self, OPTIMIZER, optimizer);
}

static PyObject *begin_reset(PyObject *object, PyObject *unused)
{
    Notes *self = (Notes *)object;
    (void)unused;
    if (!is_here(self)) return PyObject_CallMethodObjArgs(self->tracker, tracker_begin_reset, NULL);
    return begin(self, ZERO_GRAD, NULL);
}

static PyObject *end(PyObject *object, PyObject *const *arguments, Py_ssize_t count)
{
    Notes *self = (Notes *)object;
    int64_t region;
    if (!has_arguments(count, 1, 2)) return NULL;
    PyObject *error = count > 1 ? arguments[1] : Py_None;
    if (arguments[0] == Py_None) Py_RETURN_NONE;
    if (error != Py_None || !is_here(self) || !is_number(arguments[0], &region))
        return PyObject_CallMethodObjArgs(self->tracker, tracker_end, arguments[0], error, NULL);
    self->inside--;
    if (note(self, END, region, NULL) < 0) return NULL;
    Py_RETURN_NONE;
}

/* The samples of a batch: the number that the caller knows, else what Python counts. */
static PyObject *samples_of(PyObject *batch)
{
    if (!PyLong_CheckExact(batch)) return PyObject_CallFunctionObjArgs(count_batch, batch, NULL);
    Py_INCREF(batch);
    return batch;
}

static PyObject *end_batch(PyObject *object, PyObject *const *arguments, Py_ssize_t count)
{
    Notes *self = (Notes *)object;
    int64_t region;
    if (!has_arguments(count, 2, 2)) return NULL;
    if (!is_here(self) || !is_number(arguments[0], &region))
        return PyObject_CallMethodObjArgs(self->tracker, tracker_end_batch, arguments[0], arguments[1], NULL);
    PyObject *samples = samples_of(arguments[1]);
    self->inside--;
    if (!samples || note(self, END, region, samples) < 0) return NULL;
    self->copies = 1;
    Py_RETURN_NONE;
}

static PyObject *allow_copies(PyObject *object, PyObject *unused)
{
    (void)unused;
    ((Notes *)object)->copies = 1;
    Py_RETURN_NONE;
}

static PyObject *keep_rows(PyObject *object, PyObject *rows)
{
    Notes *self = (Notes *)object;
    if (!is_here(self)) return PyObject_CallMethodObjArgs(self->tracker, tracker_keep_rows, rows, NULL);
    Py_INCREF(rows);
    if (note(self, ROWS, 0, rows) < 0) return NULL;
    Py_RETURN_NONE;
}

/* The number of noted regions that are open, less earlier ones that have ended. */
static PyObject *open_regions(PyObject *object, PyObject *unused)
{
    Notes *self = (Notes *)object;
    long open = 0;
    (void)unused;
    if (!is_here(self)) return PyLong_FromLong(0);
    for (Py_ssize_t place = self->first; place < self->count; place++) {
        if (self->notes[place].kind < ROWS) open++;
        else if (self->notes[place].kind == END) open--;
    }
    return PyLong_FromLong(open);
}

/* ---- batches that are made in the loop itself ---- */

static int read_clocks(Notes *self, int64_t *now, int64_t *processor)
{
    struct timespec time;
    if (read_clock(self, now) < 0) return -1;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    *processor = (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
    return 0;
}

/* A fetcher's own `collate_fn`, timed. It holds the notes and that function, so that it still works
 * for a caller that keeps it longer than the batch is made. */
static PyObject *collate(PyObject *belongings, PyObject *const *arguments, Py_ssize_t count, PyObject *names)
{
    Notes *notes = (Notes *)PyTuple_GET_ITEM(belongings, 0);
    PyObject *own = PyTuple_GET_ITEM(belongings, 1);
    if (is_here(notes) && notes->collate == own && read_clocks(notes, &notes->collated, &notes->collated_processor) < 0) PyErr_Clear();
    return PyObject_Vectorcall(own, arguments, count, names);
}

#define FAST(function) ((PyCFunction)(void (*)(void))(function))

static PyMethodDef timed_collate = {"collate_fn", FAST(collate), METH_FASTCALL | METH_KEYWORDS, "The fetcher's `collate_fn`, timed."};

static int replace_collate(PyObject *notes, PyObject *fetcher, PyObject *own)
{
    PyObject *belongings = PyTuple_Pack(2, notes, own);
    PyObject *ours = belongings ? PyCFunction_New(&timed_collate, belongings) : NULL;
    int failed = !ours || PyObject_SetAttr(fetcher, collate_name, ours) < 0;
    Py_XDECREF(belongings);
    Py_XDECREF(ours);
    return failed ? -1 : 0;
}

/* Ask the meter, if there is one. */
static PyObject *ask_meter(Notes *self, PyObject *method, PyObject *argument)
{
    PyObject *meter = self->meter;
    if (!meter) Py_RETURN_NONE;
    Py_INCREF(meter);
    PyObject *answer = PyObject_CallMethodObjArgs(meter, method, argument, NULL);
    Py_DECREF(meter);
    return answer;
}

static PyObject *begin_fetch(PyObject *object, PyObject *fetcher)
{
    Notes *self = (Notes *)object;
    if (is_here(self) && self->fetcher) Py_RETURN_NONE; /* a batch inside another is part of it */
    if (!is_here(self) || self->quiet || self->took >= SHORT) {
        int64_t now = 0;
        if (!self->meter) Py_RETURN_NONE;
        if (is_here(self) && read_clock(self, &now) < 0) return NULL;
        PyObject *making = ask_meter(self, meter_begin, fetcher);
        if (now && making && making != Py_None) self->fetch = now;
        return making;
    }
    int64_t now, processor;
    PyObject *own = PyObject_GetAttr(fetcher, collate_name);
    if (!own || read_clocks(self, &now, &processor) < 0) {
        Py_XDECREF(own);
        return NULL;
    }
    if (self->fetcher) { /* a batch was begun meanwhile */
        Py_DECREF(own);
        Py_RETURN_NONE;
    }
    Py_INCREF(fetcher);
    Py_INCREF(own);
    self->fetcher = fetcher;
    self->collate = own;
    self->fetch = now;
    self->fetch_processor = processor;
    self->collated = 0;
    int failed = own != Py_None && replace_collate(object, fetcher, own) < 0;
    Py_DECREF(own);
    if (!failed) return PyLong_FromLongLong(++self->serial);
    Py_CLEAR(self->fetcher);
    Py_CLEAR(self->collate);
    return NULL;
}

/* Give the fetcher its own function back. */
static int release_fetcher(Notes *self)
{
    PyObject *fetcher = self->fetcher, *collate = self->collate;
    self->fetcher = self->collate = NULL;
    int failed = fetcher && collate != Py_None && PyObject_SetAttr(fetcher, collate_name, collate) < 0;
    Py_XDECREF(fetcher);
    Py_XDECREF(collate);
    return failed ? -1 : 0;
}

static PyObject *end_fetch(PyObject *object, PyObject *making)
{
    Notes *self = (Notes *)object;
    int64_t region, now, processor;
    if (!is_number(making, &region)) {
        if (is_here(self) && !self->fetcher && read_clock(self, &now) == 0) self->took = now - self->fetch;
        if (PyErr_Occurred()) return NULL;
        return ask_meter(self, meter_end, making);
    }
    if (!self->fetcher) Py_RETURN_NONE;
    if (release_fetcher(self) < 0 || read_clocks(self, &now, &processor) < 0) return NULL;
    self->took = now - self->fetch;
    int64_t made = self->collated ? self->collated : now, ran = (self->collated ? self->collated_processor : processor) - self->fetch_processor;
    int64_t blocked = made - self->fetch - ran;
    if (!is_here(self)) Py_RETURN_NONE;
    PyObject *times = Py_BuildValue("(iLLLLL)", 0, (long long)self->fetch, (long long)self->collated, (long long)now,
                                    (long long)(blocked > 0 ? blocked : 0), (long long)ran);
    if (!times || note(self, FETCHED, 0, times) < 0) return NULL;
    Py_RETURN_NONE;
}

static PyObject *drop_fetch(PyObject *object, PyObject *making)
{
    Notes *self = (Notes *)object;
    int64_t region;
    if (!is_number(making, &region)) return ask_meter(self, meter_drop, making);
    if (release_fetcher(self) < 0) return NULL;
    Py_RETURN_NONE;
}

static PyObject *measure_with(PyObject *object, PyObject *meter)
{
    Notes *self = (Notes *)object;
    PyObject *ours = meter == Py_None ? NULL : meter;
    Py_XINCREF(ours);
    Py_XSETREF(self->meter, ours);
    Py_RETURN_NONE;
}

static PyObject *name_skipped(PyObject *object, PyObject *span)
{
    Notes *self = (Notes *)object;
    int64_t region;
    if (!is_here(self) || !is_number(span, &region)) return PyObject_CallMethodObjArgs(self->tracker, tracker_name_skipped, span, NULL);
    if (note(self, SKIPPED, region, NULL) < 0) return NULL;
    Py_RETURN_NONE;
}

static PyObject *open_for(PyObject *object, PyObject *const *arguments, Py_ssize_t count)
{
    Notes *self = (Notes *)object;
    if (!has_arguments(count, 4, 4)) return NULL;
    unsigned long thread = PyLong_AsUnsignedLong(arguments[0]);
    if (PyErr_Occurred()) return NULL;
    Py_ssize_t ahead = PyLong_AsSsize_t(arguments[2]);
    int quiet = PyObject_IsTrue(arguments[3]);
    if (PyErr_Occurred()) return NULL;
    self->quiet = quiet;
    self->ahead = ahead;
    self->stepped = self->called_again = 0;
    self->inside = 0;
    PyObject *mark = arguments[1] == Py_None ? NULL : arguments[1];
    Py_XINCREF(mark);
    Py_XSETREF(self->mark, mark);
    self->copies = 0;
    self->thread = thread;
    Py_RETURN_NONE;
}

static PyObject *close_all(PyObject *object, PyObject *unused)
{
    (void)unused;
    ((Notes *)object)->thread = NOBODY;
    Py_RETURN_NONE;
}

/* Move the first notes out of the array; `drop` takes them. This ends the replaying ahead. */
static Note *take_out(Notes *self, Py_ssize_t count)
{
    Note *taken = PyMem_New(Note, count);
    if (!taken) {
        PyErr_NoMemory();
        return NULL;
    }
    memcpy(taken, self->notes + self->first, count * sizeof *taken);
    self->first += count;
    if (self->first == self->count) self->first = self->count = 0;
    self->ahead = 0;
    return taken;
}

static void drop(Note *taken, Py_ssize_t count)
{
    for (Py_ssize_t at = 0; at < count; at++) {
        Py_XDECREF(taken[at].mark);
        Py_XDECREF(taken[at].what);
    }
    PyMem_Free(taken);
}

static PyObject *as_tuple(const Note *noted)
{
    PyObject *mark = noted->mark ? noted->mark : Py_None, *what = noted->what ? noted->what : Py_None;
    return Py_BuildValue("(OLOLO)", kind_names[noted->kind], (long long)noted->at, mark, (long long)noted->region, what);
}

static PyObject *take(PyObject *object, PyObject *unused)
{
    Notes *self = (Notes *)object;
    Py_ssize_t count = self->count - self->first;
    (void)unused;
    Note *taken = take_out(self, count);
    if (!taken) return NULL;
    PyObject *list = PyList_New(0);
    for (Py_ssize_t at = 0; list && at < count; at++) {
        PyObject *noted = as_tuple(&taken[at]);
        if (!noted || PyList_Append(list, noted) < 0) Py_CLEAR(list);
        Py_XDECREF(noted);
    }
    drop(taken, count);
    return list;
}

static int keep(PyObject *rows, PyObject *row, PyObject *before, PyObject *mark)
{
    PyObject *kept = row ? PyTuple_Pack(3, row, before ? before : Py_None, mark ? mark : Py_None) : NULL;
    int failed = !kept || PyList_Append(rows, kept) < 0;
    Py_XDECREF(kept);
    return failed ? -1 : 0;
}

static int keep_foreign(PyObject *rows, PyObject *foreign)
{
    int failed = 0;
    for (Py_ssize_t at = 0; !failed && at < PyList_GET_SIZE(foreign); at++) {
        PyObject *row = PyList_GET_ITEM(foreign, at);
        Py_INCREF(row);
        failed = keep(rows, row, NULL, NULL) < 0;
        Py_DECREF(row);
    }
    return failed ? -1 : 0;
}

static int fill(PyObject *row, enum Field field, PyObject *value)
{
    if (!value) return -1;
    PyTuple_SET_ITEM(row, field_places[field], value);
    return 0;
}

/* A row of `spans`; `arguments` are those of `take_plain`. Takes the reference to `depth`. */
static PyObject *make_span(PyObject *const *arguments, PyObject *phase, PyObject *name, PyObject *depth, int64_t start, int64_t end)
{
    PyObject *row = PyTuple_New(span_size);
    if (!row) {
        Py_XDECREF(depth);
        return NULL;
    }
    Py_INCREF(arguments[0]);
    Py_INCREF(arguments[2]);
    Py_INCREF(phase);
    Py_INCREF(name);
    fill(row, STEP_INDEX, arguments[0]);
    fill(row, THREAD, arguments[2]);
    fill(row, PHASE, phase);
    fill(row, NAME, name);
    if (fill(row, DEPTH, depth) < 0 || fill(row, START, PyLong_FromLongLong(start)) < 0
        || fill(row, FINISH, PyLong_FromLongLong(end)) < 0) {
        Py_DECREF(row);
        return NULL;
    }
    for (Py_ssize_t place = 0; place < span_size; place++)
        if (!PyTuple_GET_ITEM(row, place)) {
            Py_INCREF(Py_None);
            PyTuple_SET_ITEM(row, place, Py_None);
        }
    return row;
}

static int keep_part(PyObject *rows, PyObject *const *arguments, PyObject *name, int64_t from, int64_t until)
{
    PyObject *row = make_span(arguments, kind_names[DATA], name, PyLong_FromLong(1), from, until);
    int failed = keep(rows, row, NULL, NULL);
    Py_XDECREF(row);
    return failed;
}

/* The rows that `make_rows` in loaders.py makes of a batch. */
static int keep_fetch(PyObject *rows, PyObject *const *arguments, PyObject *times)
{
    long long worker, start, collate, end, blocked, ran;
    if (!PyArg_ParseTuple(times, "LLLLLL", &worker, &start, &collate, &end, &blocked, &ran)) return -1;
    long long decode = start + blocked, made = decode + ran, most = collate ? collate : end;
    if (made > most) made = most;
    if (keep_part(rows, arguments, read_name, start, decode) < 0) return -1;
    if (keep_part(rows, arguments, decode_name, decode, made) < 0) return -1;
    return collate ? keep_part(rows, arguments, made_name, collate, end) : 0;
}

static int keep_span(PyObject *rows, PyObject *const *arguments, const Note *begun, const Note *ended)
{
    PyObject *name = kind_names[begun->kind], *phase = begun->kind == ZERO_GRAD ? kind_names[OPTIMIZER] : name, *depth = arguments[1];
    Py_INCREF(depth);
    PyObject *row = make_span(arguments, phase, name, depth, begun->at, ended->at);
    int failed = keep(rows, row, begun->mark, ended->mark);
    Py_XDECREF(row);
    return failed;
}

/* The number of notes up to the end of a step, or of all; -1 if phases are nested or one is open. */
static Py_ssize_t count_plain(const Notes *self, int used)
{
    const Note *begun = NULL, *first = self->notes + self->first, *end = self->notes + self->count;
    for (const Note *noted = first; noted < end; noted++) {
        if (noted->kind == STEP && !begun) return noted - first + 1;
        if (begun) {
            if (noted->kind == END && noted->region == begun->region)
                begun = NULL;
            else if (noted->kind != FETCHED && (noted->kind != ROWS || !PyList_CheckExact(noted->what)))
                return -1;
        } else if (noted->kind == ROWS) {
            if (!PyList_CheckExact(noted->what)) return -1;
        } else if (noted->kind > ROWS || (noted->kind == COPY && used))
            return -1;
        else {
            begun = noted;
            used |= noted->kind == FORWARD;
        }
    }
    return begun ? -1 : end - first;
}

static PyObject *take_plain(PyObject *object, PyObject *const *arguments, Py_ssize_t count)
{
    Notes *self = (Notes *)object;
    if (!has_arguments(count, 4, 4)) return NULL;
    int used = PyObject_IsTrue(arguments[3]), quiet = self->quiet, trains = 0;
    if (used < 0) return NULL;
    Py_ssize_t plain_count = count_plain(self, used);
    if (plain_count < 0) Py_RETURN_NONE;
    Note *taken = take_out(self, plain_count);
    if (!taken) return NULL;
    PyObject *rows = PyList_New(0), *batches = PyList_New(0), *optimizers = PyList_New(0), *gradients = PyList_New(0), *plain = NULL;
    const Note *begun = NULL;
    int64_t ended = 0, border = 0;
    int failed = !rows || !batches || !optimizers || !gradients;
    for (const Note *noted = taken; !failed && noted < taken + plain_count; noted++) {
        if (noted->kind == STEP)
            border = noted->at;
        else if (noted->kind == ROWS)
            failed = keep_foreign(rows, noted->what) < 0;
        else if (noted->kind == FETCHED)
            failed = keep_fetch(rows, arguments, noted->what) < 0;
        else if (noted->kind == END) {
            failed = !quiet && keep_span(rows, arguments, begun, noted) < 0;
            ended = noted->at;
            if (!failed && noted->what && PyObject_IsTrue(noted->what) == 1) failed = PyList_Append(batches, noted->what) < 0;
        } else {
            begun = noted;
            used |= noted->kind == FORWARD;
            trains |= noted->kind == BACKWARD || noted->kind == OPTIMIZER || (noted->kind == FORWARD && noted->what == Py_True);
            if (noted->kind == BACKWARD) failed = PyList_Append(gradients, noted->what) < 0;
            if (noted->kind == OPTIMIZER) failed = PyList_Append(optimizers, noted->what) < 0;
        }
    }
    if (!failed)
        plain = Py_BuildValue("(OOOOOOLL)", rows, batches, optimizers, gradients, trains ? Py_True : Py_False, used ? Py_True : Py_False, (long long)ended,
                              (long long)border);
    Py_XDECREF(rows);
    Py_XDECREF(batches);
    Py_XDECREF(optimizers);
    Py_XDECREF(gradients);
    drop(taken, plain_count);
    return plain;
}

static Py_ssize_t length(PyObject *object) { return ((Notes *)object)->count - ((Notes *)object)->first; }

static int initialise(PyObject *object, PyObject *arguments, PyObject *names)
{
    Notes *self = (Notes *)object;
    PyObject *tracker, *clock;
    if ((names && PyDict_GET_SIZE(names)) || !PyArg_ParseTuple(arguments, "OO", &tracker, &clock)) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "Notes takes no names of arguments");
        return -1;
    }
    if (self->tracker) { /* a call of it may be under way */
        PyErr_SetString(PyExc_TypeError, "Notes is initialised once");
        return -1;
    }
    Py_INCREF(tracker);
    self->tracker = tracker;
    self->clock = clock == now_ns ? NULL : clock;
    Py_XINCREF(self->clock);
    return 0;
}

static int traverse(PyObject *object, visitproc visit, void *arg)
{
    Notes *self = (Notes *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->tracker);
    Py_VISIT(self->clock);
    Py_VISIT(self->meter);
    Py_VISIT(self->fetcher);
    Py_VISIT(self->collate);
    Py_VISIT(self->mark);
    for (Py_ssize_t at = self->first; at < self->count; at++) {
        Py_VISIT(self->notes[at].mark);
        Py_VISIT(self->notes[at].what);
    }
    return 0;
}

static int clear(PyObject *object)
{
    Notes *self = (Notes *)object;
    self->thread = NOBODY;
    while (self->first < self->count) {
        Note noted = self->notes[self->first++];
        Py_XDECREF(noted.mark);
        Py_XDECREF(noted.what);
    }
    self->first = self->count = 0;
    Py_CLEAR(self->tracker);
    Py_CLEAR(self->clock);
    Py_CLEAR(self->meter);
    Py_CLEAR(self->fetcher);
    Py_CLEAR(self->collate);
    Py_CLEAR(self->mark);
    return 0;
}

static void release(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    clear(object);
    type->tp_free(object);
    Py_DECREF(type);
}

static PyMethodDef methods[] = {
    {"open", FAST(open_for), METH_FASTCALL, "open(thread, mark, ahead, quiet): buffer the reports of this thread from now on."},
    {"close", close_all, METH_NOARGS, "close(): forward every report from now on."},
    {"take", take, METH_NOARGS, "take() -> list: remove and return all notes, in their order."},
    {"take_plain", FAST(take_plain), METH_FASTCALL, "take_plain(step, depth, thread, used): remove and return notes as rows."},
    {"begin_batch", begin_batch, METH_NOARGS, "begin_batch(): begin waiting for the next batch."},
    {"begin_wait", begin_wait, METH_NOARGS, "begin_wait() -> int: begin waiting for a batch, while this is open."},
    {"end_batch", FAST(end_batch), METH_FASTCALL, "end_batch(span, batch): end the wait for this batch."},
    {"allow_copies", allow_copies, METH_NOARGS, "allow_copies(): note that a batch was reported to the tracker itself."},
    {"keep_rows", keep_rows, METH_O, "keep_rows(rows): take rows from the inside of loaders."},
    {"open_regions", open_regions, METH_NOARGS, "open_regions() -> int: return how many noted regions of this thread are open."},
    {"measure_with", measure_with, METH_O, "measure_with(meter): time long batches that are made in the loop with `meter`."},
    {"begin_fetch", begin_fetch, METH_O, "begin_fetch(fetcher): begin making a batch in the loop."},
    {"end_fetch", end_fetch, METH_O, "end_fetch(making): end a batch that was made in the loop."},
    {"drop_fetch", drop_fetch, METH_O, "drop_fetch(making): end a batch that raised."},
    {"begin_copy", begin_copy, METH_NOARGS, "begin_copy(): begin copying a batch to the device."},
    {"begin_forward", FAST(begin_forward), METH_FASTCALL | METH_KEYWORDS, "begin_forward(*, with_gradients): begin a call of a model."},
    {"begin_backward", FAST(begin_backward), METH_FASTCALL, "begin_backward(framework, loss): begin computing gradients."},
    {"begin_optimizer", begin_optimizer, METH_O, "begin_optimizer(optimizer): begin an optimizer's step."},
    {"begin_reset", begin_reset, METH_NOARGS, "begin_reset(): begin resetting gradients."},
    {"end", FAST(end), METH_FASTCALL, "end(span, error=None): end a region."},
    {"name_skipped", name_skipped, METH_O, "name_skipped(span): note that the optimizer did not step."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef members[] = {
    {"step", T_PYSSIZET, offsetof(Notes, step), 0, "The number of the step that is noted. It is set before this is opened."},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "Buffers the reports of one thread while it is open for it; forwards all others."},
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_init, initialise},
    {Py_tp_dealloc, release},
    {Py_tp_traverse, traverse},
    {Py_tp_clear, clear},
    {Py_tp_methods, methods},
    {Py_tp_members, members},
    {Py_sq_length, length},
    {0, NULL},
};

static PyType_Spec spec = {"profkit.instrument.tracking._notes.Notes", sizeof(Notes), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, slots};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_notes", "The compiled twin of `notes.py`.", -1, NULL, NULL, NULL, NULL, NULL};

static PyObject *from_module(const char *module_name, const char *name)
{
    PyObject *source = PyImport_ImportModule(module_name);
    PyObject *found = source ? PyObject_GetAttrString(source, name) : NULL;
    Py_XDECREF(source);
    return found;
}

/* Fails the import if `SpanRow` has no longer the fields that are filled here. */
static int prepare_spans(void)
{
    PyObject *type = from_module("profkit.instrument.rows", "SpanRow");
    PyObject *fields = type ? PyObject_GetAttrString(type, "_fields") : NULL;
    span_size = fields ? PyObject_Length(fields) : -1;
    int failed = span_size < 0;
    for (int field = 0; !failed && field < FIELDS; field++) {
        PyObject *name = PyUnicode_FromString(FIELD_NAMES[field]);
        field_places[field] = name ? PySequence_Index(fields, name) : -1;
        Py_XDECREF(name);
        failed = field_places[field] < 0;
        if (failed) PyErr_Format(PyExc_TypeError, "SpanRow has no field '%s', which _notes.c fills", FIELD_NAMES[field]);
    }
    Py_XDECREF(fields);
    Py_XDECREF(type);
    return failed ? -1 : 0;
}

static int prepare(void)
{
    static const struct { PyObject **place; const char *name; } words[] = {
        {&collate_name, "collate_fn"}, {&meter_begin, "begin"}, {&meter_end, "end"},
        {&meter_drop, "drop"}, {&read_name, "read"}, {&decode_name, "decode"}, {&made_name, "collate"}, {&tracker_begin_data, "begin_data"}, {&tracker_begin_copy, "begin_copy"}, {&tracker_begin_forward, "begin_forward"},
        {&tracker_begin_backward, "begin_backward"}, {&tracker_begin_optimizer, "begin_optimizer"}, {&tracker_begin_reset, "begin_reset"}, {&tracker_end, "end"},
        {&tracker_end_batch, "end_batch"}, {&tracker_name_skipped, "name_skipped"}, {&tracker_keep_rows, "keep_rows"},
        {&tracker_catch_up, "catch_up"},
    };
    for (size_t at = 0; at < sizeof words / sizeof *words; at++)
        if (!(*words[at].place = PyUnicode_InternFromString(words[at].name))) return -1;
    for (int kind = 0; kind < KINDS; kind++)
        if (!(kind_names[kind] = PyUnicode_InternFromString(KIND_NAMES[kind]))) return -1;
    with_gradients = Py_BuildValue("(s)", "with_gradients");
    now_ns = from_module("profkit.clock", "now_ns");
    count_batch = from_module("profkit.instrument.batches", "count_batch");
    return with_gradients && now_ns && count_batch ? prepare_spans() : -1;
}

PyMODINIT_FUNC PyInit__notes(void)
{
    if (is_other_python() || prepare() < 0) return NULL;
    PyObject *made = PyModule_Create(&module);
    PyObject *type = made ? PyType_FromSpec(&spec) : NULL;
    if (!type || PyModule_AddObject(made, "Notes", type) < 0) {
        Py_XDECREF(type);
        Py_XDECREF(made);
        return NULL;
    }
    return made;
}
