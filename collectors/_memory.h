/* Reads frames of Python from `/proc/self/mem`, which gives an error where there is no memory.
 *
 * Nothing here needs the interpreter, and no function of Python is called. What was read of a thread
 * that runs may be anything. `process_vm_readv` would do the same, but some containers do not allow
 * it. Frames differ between versions of Python. Only those of 3.10 to 3.13 were tried.
 */
#define PY_SSIZE_T_CLEAN
#define Py_BUILD_CORE_MODULE 1
#include <Python.h>

#if PY_VERSION_HEX < 0x030A0000 || PY_VERSION_HEX >= 0x030E0000 || !defined(__linux__)
#error "no frames of this version of Python are known: stacks are read when they can be"
#endif

#if PY_VERSION_HEX < 0x030B0000
#include <frameobject.h>
#else
#include <internal/pycore_code.h>
#include <internal/pycore_frame.h>
#endif
#include <internal/pycore_interp.h>
#if PY_VERSION_HEX < 0x030D0000
#define Py_IsFinalizing _Py_IsFinalizing
#endif
#include <stddef.h>
#include <unistd.h>

#define MOST_DEPTH 128
/* No pointer to Python's memory is that low. Some code has 1,000,000,001 references. */
#define MOST_REFERENCES ((Py_ssize_t)1 << 32)

typedef struct {
    PyCodeObject *code;
    Py_ssize_t at; /* the instruction's number, -1 before the first one */
    int is_generators;
} Seen;

/* Copy memory of this process; false if there is none. */
static int copy(int memory, void *to, const void *from, size_t size)
{
    return pread(memory, to, size, (off_t)(uintptr_t)from) == (ssize_t)size;
}

static int is_code(int memory, const PyCodeObject *address)
{
    PyCodeObject code;
    if (!address || !copy(memory, &code, address, sizeof code)) return 0;
    if (Py_TYPE(&code) != &PyCode_Type) return 0;
    return Py_REFCNT(&code) > 0 && Py_REFCNT(&code) < MOST_REFERENCES;
}

/* The frames of each version: `first_frame`, `copy_frame`, and what is read of them. */
#if PY_VERSION_HEX < 0x030B0000
typedef PyFrameObject Frame;

static int first_frame(int memory, const PyThreadState *thread, Frame **first)
{
    return copy(memory, first, &thread->frame, sizeof *first);
}

static int copy_frame(int memory, Frame *frame, const Frame *from)
{
    if (!copy(memory, frame, from, offsetof(Frame, f_localsplus))) return 0;
    return Py_TYPE(frame) == &PyFrame_Type && Py_REFCNT(frame) > 0;
}

static Frame *outer_frame(const Frame *frame) { return frame->f_back; }

static int is_of_python(const Frame *frame) { (void)frame; return 1; }

static Seen see(const Frame *frame) { return (Seen){frame->f_code, frame->f_lasti, 0}; }
#else
typedef _PyInterpreterFrame Frame;

static int first_frame(int memory, const PyThreadState *thread, Frame **first)
{
#if PY_VERSION_HEX < 0x030D0000
    _PyCFrame *entered;
    if (!copy(memory, &entered, &thread->cframe, sizeof entered)) return 0;
    return copy(memory, first, &entered->current_frame, sizeof *first);
#else
    return copy(memory, first, &thread->current_frame, sizeof *first);
#endif
}

static int copy_frame(int memory, Frame *frame, const Frame *from)
{
    return copy(memory, frame, from, offsetof(Frame, localsplus));
}

static Frame *outer_frame(const Frame *frame) { return frame->previous; }

/* False for a frame that only marks where C called the interpreter. */
static int is_of_python(const Frame *frame)
{
#if PY_VERSION_HEX < 0x030C0000
    (void)frame;
    return 1;
#else
    return frame->owner != FRAME_OWNED_BY_CSTACK;
#endif
}

static Seen see(const Frame *frame)
{
#if PY_VERSION_HEX < 0x030D0000
    PyCodeObject *code = frame->f_code;
    const _Py_CODEUNIT *instruction = frame->prev_instr;
#else
    PyCodeObject *code = (PyCodeObject *)frame->f_executable;
    const _Py_CODEUNIT *instruction = frame->instr_ptr;
#endif
    return (Seen){code, instruction - _PyCode_CODE(code), frame->owner == FRAME_OWNED_BY_GENERATOR};
}
#endif

/* Follow the frames of a thread from the innermost one; returns their number, or -1. */
static int follow(int memory, const PyThreadState *thread, Seen *seen, int most)
{
    Frame frame, *next;
    int count = 0;
    if (!first_frame(memory, thread, &next)) return -1;
    for (int walked = 0; next && count < most; next = outer_frame(&frame)) {
        if (walked++ > 2 * most) return -1; /* what was read may be a circle */
        if (!copy_frame(memory, &frame, next)) return -1;
        if (!is_of_python(&frame)) continue;
        seen[count] = see(&frame);
        if (!is_code(memory, seen[count++].code)) return -1;
    }
    return count;
}
