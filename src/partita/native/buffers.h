/* Arrays that Python passes: numpy's, C-contiguous, without copying them. Python's stable interface
   alone, so that one build serves every version of it, and no header of numpy is needed. */

#ifndef PARTITA_BUFFERS_H
#define PARTITA_BUFFERS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

/* What an array holds, by the first letter of its kind in numpy. */
typedef enum { FLOATS, INTEGERS, HALVES, FLAGS } Kind;

/* Whether an array holds 64-bit floats, integers of 64 or 32 bits, signed or not, or booleans. */
static int holds(const Py_buffer *view, Kind kind)
{
    const char *format = view->format ? view->format : "B";
    if (strchr("@=<", format[0]))
        format++;
    switch (kind) {
    case FLOATS:
        return !strcmp(format, "d");
    case INTEGERS:
        return view->itemsize == 8 && strlen(format) == 1 && strchr("lqLQ", format[0]);
    case FLAGS:
        return !strcmp(format, "?");
    default:
        return view->itemsize == 4 && strlen(format) == 1 && strchr("ilIL", format[0]);
    }
}

typedef struct {
    Py_buffer view[16];
    int count;
} Buffers;

/* The items of an array, which `close_buffers` lets go of; NULL with an exception if it holds
   others, or fewer than `least`. */
static inline void *opened(Buffers *all, PyObject *array, Kind kind, int writable, Py_ssize_t least)
{
    static const char *names[] = {"float64", "int64", "int32", "bool"};
    int flags = PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | (writable ? PyBUF_WRITABLE : 0);
    Py_buffer *view = &all->view[all->count];
    if (PyObject_GetBuffer(array, view, flags) < 0)
        return NULL;
    all->count++;
    if (!holds(view, kind)) {
        PyErr_Format(PyExc_TypeError, "expected an array of %s, got format %s", names[kind],
                     view->format ? view->format : "B");
        return NULL;
    }
    if (view->len / view->itemsize < least) {
        PyErr_Format(PyExc_ValueError, "expected at least %zd items, got %zd", least,
                     view->len / view->itemsize);
        return NULL;
    }
    return view->buf;
}

/* Whether an object is an array of 64-bit floats. */
static inline int floats(PyObject *array)
{
    Py_buffer view;
    if (PyObject_GetBuffer(array, &view, PyBUF_FORMAT | PyBUF_ND) < 0) {
        PyErr_Clear();
        return 0;
    }
    int found = holds(&view, FLOATS);
    PyBuffer_Release(&view);
    return found;
}

static Py_ssize_t items(const Buffers *all, int number)
{
    return all->view[number].len / all->view[number].itemsize;
}

static void close_buffers(Buffers *all)
{
    for (int number = 0; number < all->count; number++)
        PyBuffer_Release(&all->view[number]);
}

#endif
