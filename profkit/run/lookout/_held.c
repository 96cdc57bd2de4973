/* Writes the stacks of all threads if native code holds the interpreter for long, and at a crash.
 *
 * Python code calls `beat` again and again. If it cannot, most likely native code holds the
 * interpreter. But a thread may also run Python without a chance for others, and change what is read
 * here. So frames are only read as memory, and several readings must be equal. The thread counts its
 * own turns, not the time: when a process was stopped and goes on, Python code runs again before the
 * count is full.
 *
 * Python's own fault handler is not used. It follows the frames of threads that run, which ends the
 * job with a SIGSEGV. As Python ends, it takes away handlers that another runtime set after it.
 */
#include "../../../collectors/_memory.h"

/* A release that fixes bugs may move what is read here, which is no interface. */
#define COMPILED_FOR PY_VERSION " "
#include "../../_same_python.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>

#ifndef TURN_NS
#define TURN_NS 100000000L
#endif
#define TURNS_PER_SECOND 10
#define READINGS 10
#define CRASH_PAUSE_NS (TURN_NS / 100)
#define STACK_BYTES (256 * 1024)
#define MOST_THREADS 4096
#define MOST_CHARS 500
#define MOST_TEXT (512 * 1024)
#define MAIN_TEXT (64 * 1024) /* kept for the main thread, which comes last */
#define MOST_TABLE (64 * 1024)

static const char HELD[] = "Timeout (no Python code could run)!\n";

static const struct {
    int number;
    const char *head;
} CRASHES[] = {
    {SIGSEGV, "Fatal Python error: Segmentation fault\n\n"},
    {SIGFPE, "Fatal Python error: Floating-point exception\n\n"},
    {SIGABRT, "Fatal Python error: Aborted\n\n"},
    {SIGBUS, "Fatal Python error: Bus error\n\n"},
    {SIGILL, "Fatal Python error: Illegal instruction\n\n"},
};
#define CRASH_COUNT (sizeof CRASHES / sizeof *CRASHES)

typedef struct {
    size_t size;
    uint64_t places; /* which instructions of which code; two may have the same text */
    char text[MOST_TEXT];
} Reading;

static Reading readings[2];
static atomic_int is_writing; /* what is static here has one user */

static const PyInterpreterState *interpreter;
static int file = -1;
static struct stat opened; /* a job that closes all descriptors uses their numbers again */
static long most_turns;
static atomic_long turns;
static atomic_long watch_number; /* the thread of an earlier watch ends */
static struct sigaction before[CRASH_COUNT];
static atomic_int catcher; /* the process whose crashes are written; a forked one is another */

static int is_still_open(void)
{
    struct stat now;
    return !fstat(file, &now) && now.st_dev == opened.st_dev && now.st_ino == opened.st_ino;
}

static void note_place(Reading *reading, uintptr_t number)
{
    reading->places = (reading->places ^ number) * 0x100000001b3;
}

/* Read a string that is encoded as Python does for `faulthandler`; false if it is none. */
static int read_name(int memory, const PyObject *address, char *to)
{
    static Py_UCS4 characters[MOST_CHARS];
    PyASCIIObject head;
    if (!address || !copy(memory, &head, address, sizeof head)) return 0;
    if (Py_TYPE(&head) != &PyUnicode_Type || !head.state.compact || head.length < 0) return 0;
    Py_ssize_t length = head.length < MOST_CHARS ? head.length : MOST_CHARS;
    size_t offset = head.state.ascii ? sizeof(PyASCIIObject) : sizeof(PyCompactUnicodeObject);
    int kind = head.state.kind;
    if (!copy(memory, characters, (const char *)address + offset, length * kind)) return 0;
    for (Py_ssize_t i = 0; i < length; i++) {
        Py_UCS4 character = PyUnicode_READ(kind, characters, i);
        const char *format = "\\U%08x";
        if (character >= ' ' && character <= '~') format = "%c";
        else if (character <= 0xff) format = "\\x%02x";
        else if (character <= 0xffff) format = "\\u%04x";
        to += sprintf(to, format, character);
    }
    strcpy(to, length < head.length ? "..." : "");
    return 1;
}

#if PY_VERSION_HEX < 0x030B0000
/* The line of an instruction, 0 if it has none. The table has lengths and differences of lines. */
static int find_line(const unsigned char *table, Py_ssize_t size, int line, Py_ssize_t at)
{
    Py_ssize_t end = 0;
    for (Py_ssize_t i = 0; at >= 0 && i + 1 < size; i += 2) {
        signed char change = (signed char)table[i + 1];
        end += table[i];
        if (change != -128) line += change;
        if (at * (Py_ssize_t)sizeof(_Py_CODEUNIT) < end) return change == -128 ? 0 : line;
    }
    return at < 0 ? line : 0;
}
#else
static int read_signed(const unsigned char *table, Py_ssize_t size)
{
    unsigned int number = 0;
    for (Py_ssize_t i = 0; i < size && i < 6; i++) {
        number |= (unsigned int)(table[i] & 63) << 6 * i;
        if (!(table[i] & 64)) break;
    }
    return number & 1 ? -(int)(number >> 1) : (int)(number >> 1);
}

/* The line of an instruction, 0 if it has none. `Objects/locations.md` of Python has the format. */
static int find_line(const unsigned char *table, Py_ssize_t size, int line, Py_ssize_t at)
{
    Py_ssize_t end = 0;
    for (Py_ssize_t i = 0; at >= 0 && i < size;) {
        int kind = table[i] >> 3 & 15;
        end += (table[i++] & 7) + 1;
        if (kind == 13 || kind == 14) line += read_signed(table + i, size - i);
        if (kind >= 10 && kind <= 12) line += kind - 10;
        if (at < end) return kind == 15 ? 0 : line;
        while (i < size && !(table[i] & 128)) i++;
    }
    return at < 0 ? line : 0;
}
#endif

static int read_line(int memory, const PyCodeObject *code, Py_ssize_t at)
{
    static unsigned char table[MOST_TABLE];
    PyVarObject head;
    const char *address = (const char *)code->co_linetable;
    if (!address || !copy(memory, &head, address, sizeof head)) return -1;
    if (Py_TYPE(&head) != &PyBytes_Type || head.ob_size < 0) return -1;
    Py_ssize_t size = head.ob_size < MOST_TABLE ? head.ob_size : MOST_TABLE;
    if (!copy(memory, table, address + offsetof(PyBytesObject, ob_sval), size)) return -1;
    return find_line(table, size, code->co_firstlineno, at);
}

static void add_text(Reading *reading, const char *text, size_t room)
{
    size_t size = strlen(text);
    if (reading->size + size > room) return;
    memcpy(reading->text + reading->size, text, size);
    reading->size += size;
}

/* Add where a frame is. One that has not begun is left out, as Python does. */
static int add_frame(int memory, Reading *reading, const Seen *seen, size_t room)
{
    static char name[MOST_CHARS * 10 + 4], path[sizeof name], text[2 * sizeof name + 40];
    PyCodeObject code;
    if (!is_code(memory, seen->code) || !copy(memory, &code, seen->code, sizeof code)) return 0;
    note_place(reading, (uintptr_t)seen->code);
    note_place(reading, (uintptr_t)seen->at);
#if PY_VERSION_HEX >= 0x030B0000
    if (!seen->is_generators && seen->at < code._co_firsttraceable) return 1;
#endif
    int line = read_line(memory, &code, seen->at);
    if (line < 0 || !read_name(memory, code.co_filename, path)) return 0;
    if (!read_name(memory, code.co_name, name)) return 0;
    sprintf(text, "  File \"%s\", line %d in %s\n", path, line, name);
    add_text(reading, text, room);
    return 1;
}

static int add_thread(int memory, Reading *reading, const PyThreadState *thread, size_t room)
{
    static Seen seen[MOST_DEPTH];
    int count = follow(memory, thread, seen, MOST_DEPTH);
    for (int place = 0; place < count; place++)
        if (!add_frame(memory, reading, &seen[place], room)) return 0;
    add_text(reading, "\n", room);
    return count >= 0;
}

/* Read the stacks of all threads, or of one; false if they changed meanwhile. */
static int read_threads(int memory, Reading *reading, unsigned long crashed, int alone)
{
    PyThreadState thread, *next;
    char head[80];
    reading->size = reading->places = 0;
#if PY_VERSION_HEX < 0x030B0000
    if (!copy(memory, &next, &interpreter->tstate_head, sizeof next)) return 0;
#else
    if (!copy(memory, &next, &interpreter->threads.head, sizeof next)) return 0;
#endif
    for (int count = 0; next && count < MOST_THREADS; count++) {
        const PyThreadState *now = next;
        if (!copy(memory, &thread, now, sizeof thread)) return 0;
        next = thread.next;
        if (alone && thread.thread_id != crashed) continue;
        size_t room = next ? MOST_TEXT - MAIN_TEXT : MOST_TEXT;
        sprintf(head, "%s 0x%016lx (most recent call first):\n",
                thread.thread_id == crashed ? "Current thread" : "Thread", thread.thread_id);
        add_text(reading, head, room);
        if (!add_thread(memory, reading, now, room)) return 0;
    }
    return 1;
}

/* A thread that runs Python may stand still shortly, too: it waits for a processor. */
static int is_still(int memory, unsigned long crashed, int alone)
{
    const struct timespec pause = {0, crashed ? CRASH_PAUSE_NS : TURN_NS};
    if (!read_threads(memory, &readings[0], crashed, alone)) return 0;
    for (int number = 1; number < READINGS; number++) {
        nanosleep(&pause, NULL);
        if (!read_threads(memory, &readings[1], crashed, alone)) return 0;
        size_t size = offsetof(Reading, text) + readings[0].size;
        if (memcmp(&readings[0], &readings[1], size)) return 0;
    }
    return 1;
}

/* Write the stacks if they stand still. At a crash, the thread's own stack does. */
static void write_stacks(const char *head, unsigned long crashed)
{
    int memory = open("/proc/self/mem", O_RDONLY | O_CLOEXEC);
    int has_all = is_still(memory, crashed, 0);
    if (crashed && !has_all && !is_still(memory, crashed, 1)) readings[0].size = 0;
    close(memory);
    if (!crashed && (!has_all || atomic_load(&turns) <= most_turns)) return;
    const struct iovec parts[] = {{(void *)head, strlen(head)}, {readings[0].text, readings[0].size}};
    if (is_still_open() && writev(file, parts, 2) < 0) return; /* the disk is full */
}

static void write_once(const char *head, unsigned long crashed)
{
    if (atomic_exchange(&is_writing, 1)) return;
    write_stacks(head, crashed);
    atomic_store(&is_writing, 0);
}

static void *count_turns(void *own_number)
{
    const struct timespec turn = {0, TURN_NS};
    pthread_setname_np(pthread_self(), "profkit-held"); /* as our other threads are called */
    while (atomic_load(&watch_number) == (long)(intptr_t)own_number) {
        nanosleep(&turn, NULL);
        if (atomic_fetch_add(&turns, 1) != most_turns) continue;
        if (!Py_IsFinalizing()) write_once(HELD, 0);
    }
    return NULL;
}

/* A signal is for the job's own threads, whose calls it interrupts: here all are blocked. */
static int start_thread(void *number)
{
    sigset_t all, earlier;
    pthread_attr_t attributes;
    pthread_t thread;
    sigfillset(&all);
    if (pthread_attr_init(&attributes)) return -1;
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_sigmask(SIG_SETMASK, &all, &earlier);
    int failed = pthread_create(&thread, &attributes, count_turns, number);
    pthread_sigmask(SIG_SETMASK, &earlier, NULL);
    pthread_attr_destroy(&attributes);
    return failed;
}

/* Write the stacks, and have the signal do what it would have done without us. */
static void at_crash(int number)
{
    size_t known = 0;
    while (CRASHES[known].number != number) known++;
    if (getpid() == atomic_load(&catcher)) write_once(CRASHES[known].head, pthread_self());
    sigaction(number, &before[known], NULL);
    raise(number);
}

static int is_ours(int number, struct sigaction *now)
{
    return !sigaction(number, NULL, now) && now->sa_handler == at_crash;
}

/* A handler that somebody set after ours stays. It may call ours, which then writes nothing. */
static void release_crashes(void)
{
    struct sigaction now;
    atomic_store(&catcher, 0);
    for (size_t known = 0; known < CRASH_COUNT; known++)
        if (is_ours(CRASHES[known].number, &now))
            sigaction(CRASHES[known].number, &before[known], NULL);
}

/* In a new process, no thread watches, and a crash is not one of the rank. */
static void forget(void)
{
    atomic_store(&is_writing, 0);
    release_crashes();
}

static PyObject *write_to(PyObject *self, PyObject *number)
{
    int descriptor = PyObject_AsFileDescriptor(number);
    if (descriptor < 0) return NULL;
    if (file >= 0 && is_still_open()) close(file);
    file = fcntl(descriptor, F_DUPFD_CLOEXEC, 0); /* kept: it may be written to after the last watch */
    interpreter = PyInterpreterState_Get();
    return PyBool_FromLong(file >= 0 && !fstat(file, &opened));
}

static PyObject *watch(PyObject *self, PyObject *args)
{
    double seconds;
    if (!PyArg_ParseTuple(args, "d", &seconds)) return NULL;
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

static PyObject *unwatch(PyObject *self, PyObject *ignored)
{
    atomic_fetch_add(&watch_number, 1);
    Py_RETURN_NONE;
}

static PyObject *catch(PyObject *self, PyObject *ignored)
{
    struct sigaction now, ours = {.sa_handler = at_crash, .sa_flags = SA_NODEFER | SA_ONSTACK};
    for (size_t known = 0; known < CRASH_COUNT; known++) {
        if (is_ours(CRASHES[known].number, &now)) continue;
        before[known] = now;
        sigaction(CRASHES[known].number, &ours, NULL);
    }
    atomic_store(&catcher, getpid());
    Py_RETURN_NONE;
}

static PyObject *release(PyObject *self, PyObject *ignored)
{
    release_crashes();
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"write_to", write_to, METH_O, "Write stacks into this file from now on; false if impossible."},
    {"watch", watch, METH_VARARGS,
     "Write stacks after so many seconds without a beat; false if impossible."},
    {"beat", beat, METH_NOARGS, "Note that Python code can run."},
    {"unwatch", unwatch, METH_NOARGS, "Watch no longer."},
    {"catch", catch, METH_NOARGS, "Write stacks at a signal that ends the process."},
    {"release", release, METH_NOARGS, "Take our handlers of signals away, and only ours."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_held", "Sees that native code holds the interpreter.", -1, methods,
    NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__held(void)
{
    if (is_other_python()) return NULL;
    pthread_atfork(NULL, NULL, forget);
    return PyModule_Create(&module);
}
