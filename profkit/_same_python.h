/* Refuses each Python for which a module was not compiled. Include it after `Python.h`.
 *
 * All modules in C are optional. Without them profkit works in Python, or measures less.
 */
#ifndef PROFKIT_SAME_PYTHON_H
#define PROFKIT_SAME_PYTHON_H

#include <string.h>

#ifdef Py_GIL_DISABLED
#error "not for free-threaded Python: importing this module would switch the GIL on for the job"
#endif

/* What the version of the running Python begins with. A module may need more of it. */
#ifndef COMPILED_FOR
#define AS_TEXT(number) #number
#define VERSION(major, minor) AS_TEXT(major) "." AS_TEXT(minor) "."
#define COMPILED_FOR VERSION(PY_MAJOR_VERSION, PY_MINOR_VERSION)
#endif

/* Set an ImportError and return true in another Python. */
static inline int is_other_python(void)
{
    if (!strncmp(Py_GetVersion(), COMPILED_FOR, strlen(COMPILED_FOR))) return 0;
    PyErr_Format(PyExc_ImportError, "compiled for Python %s, and this is %s", COMPILED_FOR,
                 Py_GetVersion());
    return 1;
}

#endif
