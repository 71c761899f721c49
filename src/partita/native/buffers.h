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
    static const char *letters[] = {"d", "lqLQ", "ilIL", "?"};
    static const Py_ssize_t sizes[] = {sizeof(double), 8, 4, 1};
    const char *format = view->format ? view->format : "B";
    if (format[0] && strchr("@=<", format[0]))
        format++;
    return view->itemsize == sizes[kind] && strlen(format) == 1
        && strchr(letters[kind], format[0]);
}

typedef struct {
    Py_buffer view[16];
    int written[16];
    int count;
} Buffers;

/* The items of an array, which `close_buffers` lets go of; NULL with an exception if it holds
   others, fewer than `least`, or some that are not aligned. */
static inline void *opened(Buffers *all, PyObject *array, Kind kind, int writable, Py_ssize_t least)
{
    static const char *names[] = {"float64", "int64", "int32", "bool"};
    static double nothing;
    int flags = PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | (writable ? PyBUF_WRITABLE : 0);
    Py_buffer *view = &all->view[all->count];
    if (PyObject_GetBuffer(array, view, flags) < 0)
        return NULL;
    all->written[all->count++] = writable;
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
    if (view->len && (uintptr_t)view->buf % (uintptr_t)view->itemsize) {
        PyErr_SetString(PyExc_ValueError, "the items of an array are not aligned");
        return NULL;
    }
    return view->buf ? view->buf : &nothing;
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

/* Whether no array that is written shares memory with another; a ValueError if one does. Indices
   that were checked stay as they were then. */
static inline int apart(const Buffers *all)
{
    for (int n = 0; n < all->count; n++) {
        uintptr_t begin = (uintptr_t)all->view[n].buf, end = begin + (uintptr_t)all->view[n].len;
        for (int other = 0; all->written[n] && other < all->count; other++) {
            uintptr_t first = (uintptr_t)all->view[other].buf;
            if (other != n && begin < first + (uintptr_t)all->view[other].len && first < end) {
                PyErr_SetString(PyExc_ValueError,
                                "an array that is written shares memory with another");
                return 0;
            }
        }
    }
    return 1;
}

/* Part of an array: from `begin` to before `end`. */
typedef struct {
    int64_t begin, end;
} Span;

/* The part that belongs to a row, or a node, which must be within `held` items; 0 with a ValueError
   if it is not. */
static inline int span_of(const char *what, const int64_t *starts, int64_t number, Py_ssize_t held,
                          Span *span)
{
    span->begin = starts[number], span->end = starts[number + 1];
    if (0 <= span->begin && span->begin <= span->end && span->end <= held)
        return 1;
    PyErr_Format(PyExc_ValueError, "%s %lld begins at %lld and ends at %lld, of %zd items", what,
                 (long long)number, (long long)span->begin, (long long)span->end, held);
    return 0;
}

static void close_buffers(Buffers *all)
{
    for (int number = 0; number < all->count; number++)
        PyBuffer_Release(&all->view[number]);
}

#endif
