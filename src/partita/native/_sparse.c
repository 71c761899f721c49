/* Rows of a sparse matrix, added to an array: see partita.sparse, which has the same in numpy. */

#include "buffers.h"

static Py_ssize_t least(Py_ssize_t one, Py_ssize_t other)
{
    return one < other ? one : other;
}

static int out_of_range(const char *what, int64_t number)
{
    PyErr_Format(PyExc_IndexError, "%s %lld is out of range", what, (long long)number);
    return 0;
}

/* Adds rows of one type of numbers; 0 with an exception if a row or a column is none. */
#define ADD_ROWS(NAME, TYPE)                                                                       \
    static int NAME(TYPE *out, Py_ssize_t size, const int64_t *starts, Py_ssize_t count,           \
                    const int64_t *columns, const TYPE *values, Py_ssize_t held,                   \
                    const int64_t *rows, const TYPE *factors, Py_ssize_t chosen)                   \
    {                                                                                              \
        for (Py_ssize_t n = 0; n < chosen; n++) {                                                  \
            Span span;                                                                             \
            if (rows[n] < 0 || rows[n] >= count)                                                   \
                return out_of_range("row", rows[n]);                                               \
            if (!span_of("row", starts, rows[n], held, &span))                                     \
                return 0;                                                                          \
            for (int64_t at = span.begin; at < span.end; at++) {                                   \
                if (columns[at] < 0 || columns[at] >= size)                                        \
                    return out_of_range("column", columns[at]);                                    \
                out[columns[at]] += factors[n] * values[at];                                       \
            }                                                                                      \
        }                                                                                          \
        return 1;                                                                                  \
    }

ADD_ROWS(add_floats, double)
ADD_ROWS(add_integers, uint64_t)

static PyObject *add_rows(PyObject *self, PyObject *args)
{
    PyObject *a[6];
    if (!PyArg_ParseTuple(args, "OOOOOO", &a[0], &a[1], &a[2], &a[3], &a[4], &a[5]))
        return NULL;
    Buffers all = {.count = 0};
    PyObject *result = NULL;
    const int64_t *starts, *columns, *rows;
    if (!(starts = opened(&all, a[1], INTEGERS, 0, 1)))
        goto done;
    Py_ssize_t count = items(&all, 0) - 1;
    if (!(columns = opened(&all, a[2], INTEGERS, 0, starts[count]))
        || !(rows = opened(&all, a[4], INTEGERS, 0, 0)))
        goto done;
    Py_ssize_t chosen = items(&all, 2);
    Kind kind = floats(a[0]) ? FLOATS : INTEGERS;
    void *out, *values, *factors;
    if (!(out = opened(&all, a[0], kind, 1, 0))
        || !(values = opened(&all, a[3], kind, 0, starts[count]))
        || !(factors = opened(&all, a[5], kind, 0, chosen)) || !apart(&all))
        goto done;
    Py_ssize_t size = items(&all, 3), held = least(items(&all, 1), items(&all, 4));
    int done = kind == FLOATS
        ? add_floats(out, size, starts, count, columns, values, held, rows, factors, chosen)
        : add_integers(out, size, starts, count, columns, values, held, rows, factors, chosen);
    if (!done)
        goto done;
    Py_INCREF(Py_None);
    result = Py_None;
done:
    close_buffers(&all);
    return result;
}

/* Adds every row times what a figure of its new number is more than that of its old one. */
static PyObject *add_differences(PyObject *self, PyObject *args)
{
    PyObject *a[6];
    if (!PyArg_ParseTuple(args, "OOOOOO", &a[0], &a[1], &a[2], &a[3], &a[4], &a[5]))
        return NULL;
    Buffers all = {.count = 0};
    PyObject *result = NULL;
    uint64_t *out;
    const uint64_t *figures;
    const int64_t *starts, *columns;
    const int32_t *old, *new;
    if (!(starts = opened(&all, a[1], INTEGERS, 0, 1)))
        goto done;
    Py_ssize_t count = items(&all, 0) - 1;
    if (!(columns = opened(&all, a[2], INTEGERS, 0, starts[count]))
        || !(figures = opened(&all, a[3], INTEGERS, 0, 0))
        || !(old = opened(&all, a[4], HALVES, 0, count))
        || !(new = opened(&all, a[5], HALVES, 0, count))
        || !(out = opened(&all, a[0], INTEGERS, 1, 0)) || !apart(&all))
        goto done;
    Py_ssize_t held = items(&all, 1), known = items(&all, 2), size = items(&all, 5);
    for (Py_ssize_t row = 0; row < count; row++) {
        if (old[row] == new[row])
            continue;
        if (old[row] < 0 || old[row] >= known || new[row] < 0 || new[row] >= known) {
            PyErr_Format(PyExc_IndexError, "row %zd has a number out of range", row);
            goto done;
        }
        Span span;
        if (!span_of("row", starts, row, held, &span))
            goto done;
        uint64_t more = figures[new[row]] - figures[old[row]];
        for (int64_t at = span.begin; at < span.end; at++) {
            if (columns[at] < 0 || columns[at] >= size) {
                PyErr_Format(PyExc_IndexError, "row %zd has a column out of range", row);
                goto done;
            }
            out[columns[at]] += more;
        }
    }
    Py_INCREF(Py_None);
    result = Py_None;
done:
    close_buffers(&all);
    return result;
}

/* Marks what is reached from some rows, where columns are rows again, as far as each of them can. */
static PyObject *reach(PyObject *self, PyObject *args)
{
    PyObject *a[5];
    if (!PyArg_ParseTuple(args, "OOOOO", &a[0], &a[1], &a[2], &a[3], &a[4]))
        return NULL;
    Buffers all = {.count = 0};
    PyObject *result = NULL;
    char *found;
    const char *can;
    const int64_t *starts, *columns, *seeds;
    int64_t *queue = NULL;
    if (!(starts = opened(&all, a[1], INTEGERS, 0, 1)))
        goto done;
    Py_ssize_t count = items(&all, 0) - 1;
    if (!(columns = opened(&all, a[2], INTEGERS, 0, starts[count]))
        || !(can = opened(&all, a[3], FLAGS, 0, count))
        || !(seeds = opened(&all, a[4], INTEGERS, 0, 0))
        || !(found = opened(&all, a[0], FLAGS, 1, count)) || !apart(&all))
        goto done;
    Py_ssize_t held = items(&all, 1), given = items(&all, 3), length = 0;
    queue = PyMem_Malloc((count + 1) * sizeof(int64_t));
    if (!queue) {
        PyErr_NoMemory();
        goto done;
    }
    for (Py_ssize_t n = 0; n < given + length; n++) {
        /* Seeds first, then where those lead that have been reached. */
        const int64_t *next = n < given ? seeds : columns;
        Span span = {n, n + 1};
        if (n >= given && !span_of("row", starts, queue[n - given], held, &span))
            goto done;
        for (int64_t at = span.begin; at < span.end; at++) {
            if (next[at] < 0 || next[at] >= count) {
                PyErr_Format(PyExc_IndexError, "there is no row %lld", (long long)next[at]);
                goto done;
            }
            if (can[next[at]] && !found[next[at]]) {
                found[next[at]] = 1;
                queue[length++] = next[at];
            }
        }
    }
    Py_INCREF(Py_None);
    result = Py_None;
done:
    PyMem_Free(queue);
    close_buffers(&all);
    return result;
}

static PyMethodDef methods[] = {
    {"reach", reach, METH_VARARGS, "Marks what is reached from some rows."},
    {"add_rows", add_rows, METH_VARARGS, "Adds some rows, each times a factor."},
    {"add_differences", add_differences, METH_VARARGS, "Adds rows whose numbers have changed."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_sparse", NULL, 0, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__sparse(void)
{
    return PyModuleDef_Init(&module);
}
