/* Reads the events of a Chrome trace out of JSON text into columns of numbers.
 *
 * `scan_python.py` does the same in Python, slowly, for installations without a compiler, and is
 * the description of what this file must do: a test feeds both with whole, torn and mutated files
 * and compares every column. Times never pass through a double. Nothing here allocates by what a
 * file claims, only by what it holds.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#include "../../_same_python.h"

#define MISSING INT64_MIN
#define MISSING_SMALL INT32_MIN
#define DEEPEST 512
#define LONGEST_EVENT (1 << 20)   /* an event that is longer is broken */
#define LARGEST_EXTRAS (64 << 20) /* bytes of arguments that are kept as text */
#define MOST_BROKEN 1000          /* a file with more is not read on: each may cost a megabyte of reading */
#define RESYNC_TAIL 64

typedef const unsigned char *Text;

typedef struct { char *data; size_t used, room; } Buffer;

static int reserve(Buffer *buffer, size_t more)
{
    if (buffer->room - buffer->used >= more) return 1;
    size_t room = buffer->room + buffer->room / 2 + more + 4096;
    char *data = realloc(buffer->data, room);
    if (!data) return 0;
    buffer->data = data;
    buffer->room = room;
    return 1;
}

static int append(Buffer *buffer, const void *data, size_t size)
{
    if (!reserve(buffer, size)) return 0;
    if (size) memcpy(buffer->data + buffer->used, data, size);
    buffer->used += size;
    return 1;
}

/* ---- names by number ---- */

typedef struct {
    Buffer text;    /* all names, one after the other */
    Buffer ends;    /* int64: where each one ends */
    int32_t *slots; /* open addressing: name + 1, or 0 */
    uint64_t *hashes;
    size_t size;
    int32_t count;
} Names;

static uint64_t hash_of(Text text, size_t length)
{
    uint64_t hash = 0x9E3779B97F4A7C15u ^ length;
    while (length >= 8) {
        uint64_t word;
        memcpy(&word, text, 8);
        hash = (hash ^ word) * 0xD6E8FEB86659FD93u;
        hash ^= hash >> 32;
        text += 8;
        length -= 8;
    }
    uint64_t rest = 0;
    memcpy(&rest, text, length);
    hash = (hash ^ rest) * 0xD6E8FEB86659FD93u;
    return hash ^ (hash >> 29);
}

static int grow_names(Names *names)
{
    size_t size = names->size ? names->size * 2 : 1024;
    int32_t *slots = calloc(size, sizeof *slots);
    uint64_t *hashes = malloc(size * sizeof *hashes);
    if (!slots || !hashes) { free(slots); free(hashes); return 0; }
    for (size_t i = 0; i < names->size; i++) {
        if (!names->slots[i]) continue;
        size_t at = names->hashes[i] & (size - 1);
        while (slots[at]) at = (at + 1) & (size - 1);
        slots[at] = names->slots[i];
        hashes[at] = names->hashes[i];
    }
    free(names->slots);
    free(names->hashes);
    names->slots = slots;
    names->hashes = hashes;
    names->size = size;
    return 1;
}

static int32_t intern(Names *names, Text text, size_t length)
{
    if ((size_t)names->count * 2 >= names->size && !grow_names(names)) return -1;
    uint64_t hash = hash_of(text, length);
    size_t at = hash & (names->size - 1);
    while (names->slots[at]) {
        if (names->hashes[at] == hash) {
            int32_t id = names->slots[at] - 1;
            int64_t *ends = (int64_t *)names->ends.data, from = id ? ends[id - 1] : 0;
            if ((size_t)(ends[id] - from) == length && (!length || !memcmp(names->text.data + from, text, length))) return id;
        }
        at = (at + 1) & (names->size - 1);
    }
    if (names->count == INT32_MAX - 1 || !append(&names->text, text, length)) return -1;
    int64_t end = (int64_t)names->text.used;
    if (!append(&names->ends, &end, sizeof end)) return -1;
    names->slots[at] = ++names->count;
    names->hashes[at] = hash;
    return names->count - 1;
}

/* ---- the columns ---- */

typedef struct {
    int64_t start, duration, correlation, external;
    int32_t name, category, process, thread;
    int32_t kind; /* the character of "ph" */
    int32_t extra;
} Event;

typedef struct {
    int64_t event, stream, bytes;
    int32_t device, registers, shared, grid[3], block[3], spare;
} Work;

typedef struct {
    PyObject_HEAD
    Buffer events, works, extras, extra_ends;
    Names names;
    int64_t event_count, work_count, extra_count, broken, ignored, lost_extras;
    int resyncing, out_of_memory;
} Scanner;

/* ---- JSON ---- */

typedef enum { GOOD, TORN, WRONG } Outcome;

typedef struct { Text at, end; int tolerant; } Cursor;

static inline int is_space(unsigned char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

static inline void skip_space(Cursor *cursor)
{
    while (cursor->at < cursor->end && is_space(*cursor->at)) cursor->at++;
}

static int is_hex(unsigned char c) { return (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'f'); }

/* In a text whose quotes were not escaped, the quote that ends a string is followed by punctuation. */
static Outcome ends_string(const Cursor *cursor, Text quote)
{
    Text next = quote + 1;
    while (next < cursor->end && is_space(*next)) next++;
    if (next == cursor->end) return TORN;
    return strchr(",:}]", *next) && *next ? GOOD : WRONG;
}

static Outcome read_string(Cursor *cursor, Text *text, size_t *length)
{
    Text from = cursor->at + 1, at = from;
    for (;;) {
        Text quote = memchr(at, '"', (size_t)(cursor->end - at));
        Text limit = quote ? quote : cursor->end;
        Text escape = memchr(at, '\\', (size_t)(limit - at));
        if (escape) {
            if (cursor->end - escape < 6 && (cursor->end - escape < 2 || escape[1] == 'u')) return TORN;
            int known = strchr("\"\\/bfnrt", escape[1]) && escape[1];
            if (escape[1] == 'u') known = is_hex(escape[2]) && is_hex(escape[3]) && is_hex(escape[4]) && is_hex(escape[5]);
            if (!known && !cursor->tolerant) return WRONG;
            at = escape + (known ? (escape[1] == 'u' ? 6 : 2) : 1);
            continue;
        }
        if (!quote) return TORN;
        if (cursor->tolerant) {
            Outcome ends = ends_string(cursor, quote);
            if (ends == TORN) return TORN;
            if (ends == WRONG) { at = quote + 1; continue; }
        }
        *text = from;
        *length = (size_t)(quote - from);
        cursor->at = quote + 1;
        return GOOD;
    }
}

static inline int is_digit(Text at, Text end) { return at < end && *at >= '0' && *at <= '9'; }

static Outcome read_number(Cursor *cursor, Text *text, size_t *length)
{
    Text at = cursor->at, end = cursor->end;
    if (at < end && *at == '-') at++;
    if (at == end) return TORN;
    if (*at == '0') at++;
    else if (is_digit(at, end)) while (is_digit(at, end)) at++;
    else return WRONG;
    if (at < end && *at == '.') {
        if (at + 1 == end) return TORN;
        if (is_digit(at + 1, end)) { at++; while (is_digit(at, end)) at++; }
    }
    if (at < end && (*at | 32) == 'e') {
        Text sign = at + 1;
        if (sign < end && (*sign == '+' || *sign == '-')) sign++;
        if (sign == end) return TORN;
        if (is_digit(sign, end)) { at = sign; while (is_digit(at, end)) at++; }
    }
    if (at == end) return TORN; /* the number may go on */
    *text = cursor->at;
    *length = (size_t)(at - cursor->at);
    cursor->at = at;
    return GOOD;
}

static Outcome read_word(Cursor *cursor)
{
    static const char *const words[] = {"null", "true", "false", "NaN", "Infinity", "-Infinity"};
    size_t left = (size_t)(cursor->end - cursor->at);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        size_t length = strlen(words[i]), compared = left < length ? left : length;
        if (memcmp(cursor->at, words[i], compared)) continue;
        if (compared < length) return TORN;
        cursor->at += length;
        return GOOD;
    }
    return WRONG;
}

/* A scalar's text: of a string without its quotes, of a number as it stands, of a word nothing. */
static Outcome read_scalar(Cursor *cursor, Text *text, size_t *length)
{
    *text = NULL;
    *length = 0;
    if (cursor->at == cursor->end) return TORN;
    unsigned char c = *cursor->at;
    if (c == '"') return read_string(cursor, text, length);
    if (c == '-' && cursor->at + 1 < cursor->end && cursor->at[1] == 'I') return read_word(cursor);
    if (c == '-' || (c >= '0' && c <= '9')) return read_number(cursor, text, length);
    return read_word(cursor);
}

static Outcome skip_value(Cursor *cursor, int depth);

/* After a value in a container: 1 where another follows, 0 at the end; the outcome says if that is so. */
static Outcome next_item(Cursor *cursor, unsigned char close, int *more)
{
    skip_space(cursor);
    if (cursor->at == cursor->end) return TORN;
    unsigned char c = *cursor->at++;
    if (c == close) { *more = 0; return GOOD; }
    if (c != ',') return WRONG;
    skip_space(cursor);
    if (cursor->at == cursor->end) return TORN;
    *more = 1;
    return GOOD;
}

/* Behind an opening bracket: whether the container is empty. */
static Outcome first_item(Cursor *cursor, unsigned char close, int *more)
{
    cursor->at++;
    skip_space(cursor);
    if (cursor->at == cursor->end) return TORN;
    *more = *cursor->at != close;
    if (!*more) cursor->at++;
    return GOOD;
}

static Outcome read_key(Cursor *cursor, Text *key, size_t *length)
{
    if (*cursor->at != '"') return WRONG;
    Outcome outcome = read_string(cursor, key, length);
    if (outcome != GOOD) return outcome;
    skip_space(cursor);
    if (cursor->at == cursor->end) return TORN;
    if (*cursor->at++ != ':') return WRONG;
    skip_space(cursor);
    return cursor->at == cursor->end ? TORN : GOOD;
}

static Outcome skip_container(Cursor *cursor, int depth)
{
    int is_object = *cursor->at == '{', more;
    unsigned char close = is_object ? '}' : ']';
    if (depth > DEEPEST) return WRONG;
    Outcome outcome = first_item(cursor, close, &more);
    while (outcome == GOOD && more) {
        Text key;
        size_t length;
        if (is_object) outcome = read_key(cursor, &key, &length);
        if (outcome == GOOD) outcome = skip_value(cursor, depth + 1);
        if (outcome == GOOD) outcome = next_item(cursor, close, &more);
    }
    return outcome;
}

static Outcome skip_value(Cursor *cursor, int depth)
{
    Text text;
    size_t length;
    if (cursor->at == cursor->end) return TORN;
    if (*cursor->at == '{' || *cursor->at == '[') return skip_container(cursor, depth);
    return read_scalar(cursor, &text, &length);
}

/* ---- numbers, exactly ---- */

/* The decimal number in `text` times ten to the `scale`, rounded half up; MISSING where it is none. */
static int64_t exact(Text text, size_t length, int scale)
{
    Text at = text, end = text + length;
    int negative = 0, digits = 0, seen = 0, point = 0;
    long exponent = scale;
    unsigned __int128 value = 0;
    if (at < end && *at == '-') { negative = 1; at++; }
    for (; at < end && ((*at >= '0' && *at <= '9') || (*at == '.' && !point)); at++) {
        if (*at == '.') { point = 1; continue; }
        seen = 1;
        if (digits < 36) { value = value * 10 + (*at - '0'); digits += value != 0; exponent -= point; }
        else exponent += !point;
    }
    if (!seen) return MISSING;
    if (at < end && (*at | 32) == 'e') {
        int down = 0, any = 0;
        long power = 0;
        at++;
        if (at < end && (*at == '+' || *at == '-')) down = *at++ == '-';
        for (; is_digit(at, end); at++) { any = 1; if (power < 100000) power = power * 10 + (*at - '0'); }
        if (!any) return MISSING;
        exponent += down ? -power : power;
    }
    if (at != end) return MISSING;
    if (!value) return 0;
    for (; exponent > 0; exponent--) {
        if (value > (unsigned __int128)INT64_MAX) return MISSING;
        value *= 10;
    }
    if (exponent < -60) return 0;
    for (; exponent < -1; exponent++) value /= 10;
    if (exponent == -1) value = value / 10 + (value % 10 >= 5);
    if (value > (unsigned __int128)INT64_MAX) return MISSING;
    return negative ? -(int64_t)value : (int64_t)value;
}

static int32_t small(Text text, size_t length)
{
    int64_t value = text ? exact(text, length, 0) : MISSING;
    return value > INT32_MIN && value <= INT32_MAX ? (int32_t)value : MISSING_SMALL;
}

static int64_t whole(Text text, size_t length) { return text ? exact(text, length, 0) : MISSING; }

/* ---- one event ---- */

typedef struct {
    Event event;
    Work work;
    int on_stream, keep_extra;
    Text name, category, process, thread, args, args_end, id;
    size_t name_length, category_length, process_length, thread_length, id_length;
} Draft;

#define KEY(word) (length == sizeof(word) - 1 && !memcmp(key, word, sizeof(word) - 1))

static Outcome read_triple(Cursor *cursor, int32_t *triple)
{
    int more, count = 0;
    triple[0] = triple[1] = triple[2] = MISSING_SMALL;
    if (*cursor->at != '[') return skip_value(cursor, 3);
    Outcome outcome = first_item(cursor, ']', &more);
    while (outcome == GOOD && more) {
        Text text;
        size_t length;
        if (*cursor->at == '{' || *cursor->at == '[') {
            outcome = skip_value(cursor, 4);
            count = 4;
        } else {
            outcome = read_scalar(cursor, &text, &length);
            if (outcome == GOOD && count < 3) triple[count] = small(text, length);
            count++;
        }
        if (outcome == GOOD) outcome = next_item(cursor, ']', &more);
    }
    if (count != 3) triple[0] = MISSING_SMALL;
    return outcome;
}

static Outcome read_argument(Cursor *cursor, Draft *draft, Text key, size_t length)
{
    Text text;
    size_t size;
    if (KEY("grid")) return read_triple(cursor, draft->work.grid);
    if (KEY("block")) return read_triple(cursor, draft->work.block);
    if (KEY("Collective name") || KEY("Input type")) draft->keep_extra |= key[0] == 'C' ? 1 : 2;
    if (*cursor->at == '{' || *cursor->at == '[') return skip_value(cursor, 3);
    Outcome outcome = read_scalar(cursor, &text, &size);
    if (outcome != GOOD) return outcome;
    if (KEY("correlation")) draft->event.correlation = whole(text, size);
    else if (KEY("External id") || KEY("external id")) draft->event.external = whole(text, size);
    else if (KEY("stream")) { draft->work.stream = whole(text, size); draft->on_stream = 1; }
    else if (KEY("device")) draft->work.device = small(text, size);
    else if (KEY("bytes")) draft->work.bytes = whole(text, size);
    else if (KEY("registers per thread")) draft->work.registers = small(text, size);
    else if (KEY("shared memory")) draft->work.shared = small(text, size);
    return GOOD;
}

static Outcome read_arguments(Cursor *cursor, Draft *draft)
{
    int more;
    draft->args = cursor->at;
    if (*cursor->at != '{') return skip_value(cursor, 2);
    Outcome outcome = first_item(cursor, '}', &more);
    while (outcome == GOOD && more) {
        Text key;
        size_t length;
        outcome = read_key(cursor, &key, &length);
        if (outcome == GOOD) outcome = read_argument(cursor, draft, key, length);
        if (outcome == GOOD) outcome = next_item(cursor, '}', &more);
    }
    draft->args_end = cursor->at;
    return outcome;
}

static Outcome read_member(Cursor *cursor, Draft *draft, Text key, size_t length)
{
    Text text;
    size_t size;
    if (KEY("args")) return read_arguments(cursor, draft);
    if (*cursor->at == '{' || *cursor->at == '[') return skip_value(cursor, 2);
    Outcome outcome = read_scalar(cursor, &text, &size);
    if (outcome != GOOD) return outcome;
    if (KEY("ph")) draft->event.kind = text && size == 1 ? text[0] : 0;
    else if (KEY("ts")) draft->event.start = text ? exact(text, size, 3) : MISSING;
    else if (KEY("dur")) draft->event.duration = text ? exact(text, size, 3) : MISSING;
    else if (KEY("name")) { draft->name = text; draft->name_length = size; }
    else if (KEY("cat")) { draft->category = text; draft->category_length = size; }
    else if (KEY("pid")) { draft->process = text; draft->process_length = size; }
    else if (KEY("tid")) { draft->thread = text; draft->thread_length = size; }
    else if (KEY("id")) { draft->id = text; draft->id_length = size; }
    return GOOD;
}

static void clear_draft(Draft *draft)
{
    memset(draft, 0, sizeof *draft);
    draft->event.start = draft->event.duration = draft->event.correlation = draft->event.external = MISSING;
    draft->event.extra = -1;
    draft->work.stream = draft->work.bytes = MISSING;
    draft->work.device = draft->work.registers = draft->work.shared = MISSING_SMALL;
    draft->work.grid[0] = draft->work.block[0] = MISSING_SMALL;
}

static Outcome read_event(Cursor *cursor, Draft *draft)
{
    int more;
    clear_draft(draft);
    Outcome outcome = first_item(cursor, '}', &more);
    while (outcome == GOOD && more) {
        Text key;
        size_t length;
        outcome = read_key(cursor, &key, &length);
        if (outcome == GOOD) outcome = read_member(cursor, draft, key, length);
        if (outcome == GOOD) outcome = next_item(cursor, '}', &more);
    }
    return outcome;
}

/* ---- keeping it ---- */

/* A flow's end stands right behind the event that it belongs to, and knows what that one may lack. */
static void tell_correlation(Scanner *self, const Draft *draft)
{
    if (!self->event_count || !draft->id) return;
    Event *last = (Event *)self->events.data + self->event_count - 1;
    if (last->correlation == MISSING && last->start == draft->event.start) last->correlation = whole(draft->id, draft->id_length);
}

static int keep_extra(Scanner *self, Draft *draft)
{
    int wanted = draft->event.kind == 'M' || (draft->keep_extra & 1);
    if ((draft->keep_extra & 2) && draft->name_length > 5 && !memcmp(draft->name, "nccl:", 5)) wanted = 1;
    if (!wanted || !draft->args_end) return 1;
    size_t size = (size_t)(draft->args_end - draft->args);
    if (self->extras.used + size > LARGEST_EXTRAS) { self->lost_extras++; return 1; }
    if (!append(&self->extras, draft->args, size)) return 0;
    int64_t end = (int64_t)self->extras.used;
    if (!append(&self->extra_ends, &end, sizeof end)) return 0;
    draft->event.extra = (int32_t)self->extra_count++;
    return 1;
}

static int keep_event(Scanner *self, Draft *draft)
{
    Names *names = &self->names;
    static const unsigned char nothing[1] = "";
    draft->event.name = intern(names, draft->name ? draft->name : nothing, draft->name_length);
    draft->event.category = intern(names, draft->category ? draft->category : nothing, draft->category_length);
    draft->event.process = intern(names, draft->process ? draft->process : nothing, draft->process_length);
    draft->event.thread = intern(names, draft->thread ? draft->thread : nothing, draft->thread_length);
    if (draft->event.name < 0 || draft->event.category < 0 || draft->event.process < 0 || draft->event.thread < 0) return 0;
    if (!keep_extra(self, draft)) return 0;
    draft->work.event = self->event_count;
    if (draft->on_stream && !append(&self->works, &draft->work, sizeof draft->work)) return 0;
    self->work_count += draft->on_stream;
    if (!append(&self->events, &draft->event, sizeof draft->event)) return 0;
    self->event_count++;
    return 1;
}

/* Shorter frames of Python are ignored: a longer one may show what a device waited for. */
#define LONG_FRAME_NS 100000

static void take_event(Scanner *self, Draft *draft)
{
    int kind = draft->event.kind;
    int is_stack = draft->category_length == 15 && !memcmp(draft->category, "python_function", 15);
    is_stack &= draft->event.duration < LONG_FRAME_NS || kind != 'X';
    if (kind == 's' || kind == 'f') tell_correlation(self, draft);
    else if (is_stack || !(kind == 'X' || kind == 'B' || kind == 'E' || kind == 'M')) self->ignored++;
    else if (!keep_event(self, draft)) self->out_of_memory = 1;
}

/* The next place that looks like the beginning of an event, or NULL. */
static Text find_event(Text at, Text end)
{
    while (at < end && (at = memchr(at, '{', (size_t)(end - at)))) {
        Text next = at + 1;
        while (next < end && is_space(*next)) next++;
        if (end - next >= 6 && !memcmp(next, "\"name\"", 6)) return at;
        if (end - next >= 4 && !memcmp(next, "\"ph\"", 4)) return at;
        at++;
    }
    return NULL;
}

/* Reads events from `at` on. What is left unread is where the next call must begin. */
static Text scan(Scanner *self, Text at, Text end, int final, int *done)
{
    Draft draft;
    while (!self->out_of_memory) {
        if (self->resyncing) {
            Text found = find_event(at, end);
            if (!found) {
                if (final) { *done = 1; return end; }
                return end - at > RESYNC_TAIL ? end - RESYNC_TAIL : at;
            }
            at = found;
            self->resyncing = 0;
        }
        while (at < end && (is_space(*at) || *at == ',')) at++;
        if (at == end) { *done = final; self->broken += final; return at; }
        if (*at == ']') { *done = 1; return at + 1; }
        Text limit = end - at > LONGEST_EVENT ? at + LONGEST_EVENT : end;
        Cursor cursor = {at, limit, 0};
        if (*at == '{' && read_event(&cursor, &draft) == GOOD) {
            take_event(self, &draft);
            at = cursor.at;
            continue;
        }
        if (!final && end - at <= LONGEST_EVENT) return at;
        Cursor second = {at, limit, 1};
        if (*at == '{' && read_event(&second, &draft) == GOOD) {
            take_event(self, &draft);
            at = second.at;
            continue;
        }
        if (++self->broken >= MOST_BROKEN) { *done = 1; return end; }
        self->resyncing = 1;
        at++;
    }
    return at;
}

/* ---- Python's view ---- */

static PyObject *feed(PyObject *object, PyObject *arguments)
{
    Scanner *self = (Scanner *)object;
    Py_buffer block;
    Py_ssize_t start;
    int final, done = 0;
    if (!PyArg_ParseTuple(arguments, "y*np", &block, &start, &final)) return NULL;
    if (start < 0 || start > block.len) {
        PyBuffer_Release(&block);
        PyErr_SetString(PyExc_ValueError, "start lies outside of the block");
        return NULL;
    }
    Text base = block.buf, stopped;
    Py_BEGIN_ALLOW_THREADS
    stopped = scan(self, base + start, base + block.len, final, &done);
    Py_END_ALLOW_THREADS
    Py_ssize_t position = stopped - base;
    PyBuffer_Release(&block);
    if (self->out_of_memory) return PyErr_NoMemory();
    return Py_BuildValue("nO", position, done ? Py_True : Py_False);
}

static PyObject *as_bytearray(Buffer *buffer)
{
    PyObject *bytes = PyByteArray_FromStringAndSize(buffer->data ? buffer->data : "", (Py_ssize_t)buffer->used);
    free(buffer->data);
    memset(buffer, 0, sizeof *buffer);
    return bytes;
}

static PyObject *texts(Buffer *text, Buffer *ends)
{
    size_t count = ends->used / sizeof(int64_t);
    PyObject *list = PyList_New((Py_ssize_t)count);
    int64_t from = 0, *bounds = (int64_t *)ends->data;
    for (size_t i = 0; list && i < count; i++) {
        PyObject *one = PyBytes_FromStringAndSize(text->data + from, (Py_ssize_t)(bounds[i] - from));
        if (!one) { Py_CLEAR(list); break; }
        PyList_SET_ITEM(list, (Py_ssize_t)i, one);
        from = bounds[i];
    }
    return list;
}

static PyObject *take(PyObject *object, PyObject *unused)
{
    Scanner *self = (Scanner *)object;
    (void)unused;
    return Py_BuildValue("{s:N,s:N,s:N,s:N,s:L,s:L,s:L}", "events", as_bytearray(&self->events), "works", as_bytearray(&self->works), "names",
                         texts(&self->names.text, &self->names.ends), "extras", texts(&self->extras, &self->extra_ends), "broken",
                         (long long)self->broken, "ignored", (long long)self->ignored, "lost_extras", (long long)self->lost_extras);
}

static void release(PyObject *object)
{
    Scanner *self = (Scanner *)object;
    PyTypeObject *type = Py_TYPE(object);
    free(self->events.data);
    free(self->works.data);
    free(self->extras.data);
    free(self->extra_ends.data);
    free(self->names.text.data);
    free(self->names.ends.data);
    free(self->names.slots);
    free(self->names.hashes);
    type->tp_free(object);
    Py_DECREF(type);
}

static PyMethodDef methods[] = {
    {"feed", feed, METH_VARARGS, "feed(block, start, final) -> (position, done): read what is whole from `start` on."},
    {"take", take, METH_NOARGS, "take() -> dict: everything that was read; the scanner is empty afterwards."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "Reads the events of a Chrome trace into columns, block by block."},
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_dealloc, release},
    {Py_tp_methods, methods},
    {0, NULL},
};

static PyType_Spec spec = {"profkit.importers.reading._scan.Scanner", sizeof(Scanner), 0, Py_TPFLAGS_DEFAULT, slots};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_scan", "The compiled twin of `scan_python`.", -1, NULL, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__scan(void)
{
    if (is_other_python()) return NULL;
    PyObject *made = PyModule_Create(&module);
    PyObject *type = made ? PyType_FromSpec(&spec) : NULL;
    if (!type || PyModule_AddObject(made, "Scanner", type) < 0) {
        Py_XDECREF(type);
        Py_XDECREF(made);
        return NULL;
    }
    return made;
}
