/* A pass of messages between the nodes of an energy: see partita.search.bounds.messages, which has
   the same in Python. Both add up in the same order, so that both give the same bits. */

#include "buffers.h"

typedef struct {
    Py_ssize_t count;             /* of nodes */
    const int64_t *first;         /* of every node, where its choices begin, and their end */
    const double *nodes;          /* what choices cost alone */
    const int64_t *ends;          /* of every edge, its two nodes */
    const int64_t *start;         /* of every edge, where its costs begin */
    const double *costs;          /* by choice of the first node, and of the second */
    const int64_t *after_start;   /* of every node, where its edges to later nodes begin */
    const int64_t *after;
    const int64_t *before_start;  /* the same, to earlier nodes */
    const int64_t *before;
    const int64_t *forward_start; /* of every edge, where what is told to its second node begins */
    double *forward;
    const int64_t *backward_start;
    double *backward;
    int64_t *choices;
} Energy;

static Py_ssize_t size(const Energy *e, int64_t node)
{
    return (Py_ssize_t)(e->first[node + 1] - e->first[node]);
}

static void add(double *sum, const double *more, Py_ssize_t count)
{
    for (Py_ssize_t i = 0; i < count; i++)
        sum[i] += more[i];
}

static double least(const double *of, Py_ssize_t count)
{
    double found = of[0];
    for (Py_ssize_t i = 1; i < count; i++)
        found = of[i] < found ? of[i] : found;
    return found;
}

/* What the edge tells its second node: for each of its choices, the least over those of the first. */
static void tell_second(const Energy *e, int64_t edge, const double *belief, double *given)
{
    Py_ssize_t rows = size(e, e->ends[2 * edge]), columns = size(e, e->ends[2 * edge + 1]);
    const double *cost = e->costs + e->start[edge], *back = e->backward + e->backward_start[edge];
    double *told = e->forward + e->forward_start[edge];
    for (Py_ssize_t i = 0; i < rows; i++)
        given[i] = belief[i] - back[i];
    for (Py_ssize_t j = 0; j < columns; j++)
        told[j] = given[0] + cost[j];
    for (Py_ssize_t i = 1; i < rows; i++) {
        const double *row = cost + i * columns, own = given[i];
        for (Py_ssize_t j = 0; j < columns; j++) {
            double now = own + row[j];
            told[j] = now < told[j] ? now : told[j];
        }
    }
}

static void tell_first(const Energy *e, int64_t edge, const double *belief, double *given)
{
    Py_ssize_t rows = size(e, e->ends[2 * edge]), columns = size(e, e->ends[2 * edge + 1]);
    const double *cost = e->costs + e->start[edge], *forth = e->forward + e->forward_start[edge];
    double *told = e->backward + e->backward_start[edge];
    for (Py_ssize_t j = 0; j < columns; j++)
        given[j] = belief[j] - forth[j];
    for (Py_ssize_t i = 0; i < rows; i++) {
        const double *row = cost + i * columns;
        double found = given[0] + row[0];
        for (Py_ssize_t j = 1; j < columns; j++) {
            double now = given[j] + row[j];
            found = now < found ? now : found;
        }
        told[i] = found;
    }
}

/* The best choice of a node, given those of the nodes behind it. */
static int64_t decided(const Energy *e, int64_t node, double *total)
{
    Py_ssize_t count = size(e, node), best = 0;
    memcpy(total, e->nodes + e->first[node], count * sizeof(double));
    for (int64_t n = e->after_start[node]; n < e->after_start[node + 1]; n++) {
        int64_t edge = e->after[n], other = e->ends[2 * edge + 1];
        Py_ssize_t columns = size(e, other);
        const double *cost = e->costs + e->start[edge] + e->choices[other];
        for (Py_ssize_t i = 0; i < count; i++)
            total[i] += cost[i * columns];
    }
    for (int64_t n = e->before_start[node]; n < e->before_start[node + 1]; n++)
        add(total, e->forward + e->forward_start[e->before[n]], count);
    for (Py_ssize_t i = 1; i < count; i++)
        best = total[i] < total[best] ? i : best;
    return best;
}

static double passed(const Energy *e, int upward, double *belief, double *given)
{
    double bound = 0.0;
    for (Py_ssize_t at = 0; at < e->count; at++) {
        int64_t node = upward ? at : e->count - 1 - at;
        int64_t after = e->after_start[node + 1] - e->after_start[node];
        int64_t before = e->before_start[node + 1] - e->before_start[node];
        int64_t ahead = upward ? after : before, behind = upward ? before : after;
        Py_ssize_t count = size(e, node);
        memcpy(belief, e->nodes + e->first[node], count * sizeof(double));
        for (int64_t n = e->after_start[node]; n < e->after_start[node + 1]; n++)
            add(belief, e->backward + e->backward_start[e->after[n]], count);
        for (int64_t n = e->before_start[node]; n < e->before_start[node + 1]; n++)
            add(belief, e->forward + e->forward_start[e->before[n]], count);
        int64_t most = ahead > behind ? ahead : behind;
        double share = 1.0 / (double)(most > 1 ? most : 1), left = 1.0 - (double)ahead * share;
        if (left != 0.0)
            bound += left * least(belief, count);
        for (Py_ssize_t i = 0; i < count; i++)
            belief[i] *= share;
        if (upward) {
            for (int64_t n = e->after_start[node]; n < e->after_start[node + 1]; n++)
                tell_second(e, e->after[n], belief, given);
        } else {
            e->choices[node] = decided(e, node, given);
            for (int64_t n = e->before_start[node]; n < e->before_start[node + 1]; n++)
                tell_first(e, e->before[n], belief, given);
        }
    }
    return bound;
}

/* Whether there are `count` items from `start` on among `held`; a ValueError that says whose if not. */
static int within(const char *what, int64_t edge, int64_t start, int64_t count, Py_ssize_t held)
{
    if (0 <= start && start <= held && count <= held - start)
        return 1;
    PyErr_Format(PyExc_ValueError, "edge %lld has %lld %s from %lld on, of %zd", (long long)edge,
                 (long long)count, what, (long long)start, held);
    return 0;
}

/* Whether edges that are listed for a node are edges of it, with it on this side. */
static int listed(const Energy *e, int64_t node, const int64_t *starts, const int64_t *numbers,
                  Py_ssize_t held, Py_ssize_t edges, int side)
{
    Span span;
    if (!span_of("node", starts, node, held, &span))
        return 0;
    for (int64_t n = span.begin; n < span.end; n++) {
        if (0 <= numbers[n] && numbers[n] < edges && e->ends[2 * numbers[n] + side] == node)
            continue;
        PyErr_Format(PyExc_ValueError, "edge %lld is listed for node %lld, and is none of it",
                     (long long)numbers[n], (long long)node);
        return 0;
    }
    return 1;
}

/* Whether all indices are within the arrays that they are for; a ValueError that says which not. */
static int consistent(const Energy *e, const Buffers *all, Py_ssize_t edges)
{
    for (Py_ssize_t node = 0; node < e->count; node++) {
        Span span;
        if (!span_of("node", e->first, node, items(all, 1), &span))
            return 0;
        if (span.end == span.begin || span.end - span.begin > INT32_MAX) {
            PyErr_Format(PyExc_ValueError, "node %zd has %s choices", node,
                         span.end == span.begin ? "no" : "too many");
            return 0;
        }
    }
    for (Py_ssize_t edge = 0; edge < edges; edge++) {
        int64_t one = e->ends[2 * edge], other = e->ends[2 * edge + 1];
        if (one < 0 || one >= other || other >= e->count) {
            PyErr_Format(PyExc_ValueError, "edge %zd is between nodes %lld and %lld, of %zd", edge,
                         (long long)one, (long long)other, e->count);
            return 0;
        }
        int64_t rows = size(e, one), columns = size(e, other);
        if (!within("costs", edge, e->start[edge], rows * columns, items(all, 4))
            || !within("messages", edge, e->forward_start[edge], columns, items(all, 10))
            || !within("messages", edge, e->backward_start[edge], rows, items(all, 12)))
            return 0;
    }
    for (Py_ssize_t node = 0; node < e->count; node++)
        if (!listed(e, node, e->after_start, e->after, items(all, 6), edges, 0)
            || !listed(e, node, e->before_start, e->before, items(all, 8), edges, 1))
            return 0;
    return 1;
}

static PyObject *pass_messages(PyObject *self, PyObject *args)
{
    PyObject *a[15];
    int upward;
    if (!PyArg_ParseTuple(args, "pOOOOOOOOOOOOOO", &upward, &a[0], &a[1], &a[2], &a[3], &a[4],
                          &a[5], &a[6], &a[7], &a[8], &a[9], &a[10], &a[11], &a[12], &a[13]))
        return NULL;
    Buffers all = {.count = 0};
    Energy e;
    PyObject *result = NULL;
    double *scratch = NULL;
    if (!(e.first = opened(&all, a[0], INTEGERS, 0, 1)))
        goto done;
    e.count = items(&all, 0) - 1;
    if (!(e.nodes = opened(&all, a[1], FLOATS, 0, e.first[e.count]))
        || !(e.ends = opened(&all, a[2], INTEGERS, 0, 0)))
        goto done;
    Py_ssize_t edges = items(&all, 2) / 2;
    if (!(e.start = opened(&all, a[3], INTEGERS, 0, edges + 1))
        || !(e.costs = opened(&all, a[4], FLOATS, 0, e.start[edges]))
        || !(e.after_start = opened(&all, a[5], INTEGERS, 0, e.count + 1))
        || !(e.after = opened(&all, a[6], INTEGERS, 0, edges))
        || !(e.before_start = opened(&all, a[7], INTEGERS, 0, e.count + 1))
        || !(e.before = opened(&all, a[8], INTEGERS, 0, edges))
        || !(e.forward_start = opened(&all, a[9], INTEGERS, 0, edges + 1))
        || !(e.forward = opened(&all, a[10], FLOATS, 1, e.forward_start[edges]))
        || !(e.backward_start = opened(&all, a[11], INTEGERS, 0, edges + 1))
        || !(e.backward = opened(&all, a[12], FLOATS, 1, e.backward_start[edges]))
        || !(e.choices = opened(&all, a[13], INTEGERS, 1, e.count)))
        goto done;
    if (!apart(&all) || !consistent(&e, &all, edges))
        goto done;
    Py_ssize_t most = 1;
    for (Py_ssize_t node = 0; node < e.count; node++)
        most = size(&e, node) > most ? size(&e, node) : most;
    scratch = PyMem_Malloc(2 * most * sizeof(double));
    if (!scratch) {
        PyErr_NoMemory();
        goto done;
    }
    result = PyFloat_FromDouble(passed(&e, upward, scratch, scratch + most));
done:
    PyMem_Free(scratch);
    close_buffers(&all);
    return result;
}

static PyMethodDef methods[] = {
    {"pass_messages", pass_messages, METH_VARARGS, "A pass over all nodes; returns the bound."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_messages", NULL, 0, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__messages(void)
{
    return PyModuleDef_Init(&module);
}
