/* Norms of the rows of small matrices and questions about short vectors, for which a call of torch takes longer than
   what it computes. All of them read memory whose address and size lengths.py gives. */

#include <Python.h>
#include <float.h>
#include <math.h>
#include <stdint.h>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define FOR_EACH_PROCESSOR __attribute__((target_clones("avx2", "default")))
#else
#define FOR_EACH_PROCESSOR
#endif

enum { LANES = 16 };

/* Squares of float32 neither overflow nor vanish in float64. Lanes are added in one order, whatever the processor. */
#define DEFINE_NORMS(NAME, TYPE)                                                                                       \
    FOR_EACH_PROCESSOR static void NAME(const TYPE *values, int64_t rows, int64_t columns, double *norms)              \
    {                                                                                                                  \
        for (int64_t row = 0; row < rows; row++, values += columns) {                                                  \
            double sums[LANES] = {0}, total = 0;                                                                       \
            int64_t i = 0;                                                                                             \
            for (; i + LANES <= columns; i += LANES)                                                                   \
                for (int lane = 0; lane < LANES; lane++)                                                               \
                    sums[lane] += (double)values[i + lane] * (double)values[i + lane];                                 \
            for (; i < columns; i++)                                                                                   \
                total += (double)values[i] * (double)values[i];                                                        \
            for (int lane = 0; lane < LANES; lane++)                                                                   \
                total += sums[lane];                                                                                   \
            norms[row] = sqrt(total);                                                                                  \
        }                                                                                                              \
    }

DEFINE_NORMS(norms_of_floats, float)
DEFINE_NORMS(norms_of_doubles, double)

/* row_norms(address, is_double, rows, columns, norms): writes the norms of all rows. */
static PyObject *row_norms(PyObject *module, PyObject *args)
{
    unsigned long long values, norms;
    long long rows, columns;
    int is_double;
    if (!PyArg_ParseTuple(args, "KpLLK", &values, &is_double, &rows, &columns, &norms))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    if (is_double)
        norms_of_doubles((const double *)(uintptr_t)values, rows, columns, (double *)(uintptr_t)norms);
    else
        norms_of_floats((const float *)(uintptr_t)values, rows, columns, (double *)(uintptr_t)norms);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static double at(unsigned long long address, int is_double, long long i)
{
    return is_double ? ((const double *)(uintptr_t)address)[i] : ((const float *)(uintptr_t)address)[i];
}

/* is_within(address, is_double, count, least, most): whether all values lie there; a NaN lies nowhere. */
static PyObject *is_within(PyObject *module, PyObject *args)
{
    unsigned long long values;
    long long count;
    int is_double;
    double least, most;
    if (!PyArg_ParseTuple(args, "KpLdd", &values, &is_double, &count, &least, &most))
        return NULL;
    for (long long i = 0; i < count; i++) {
        double value = at(values, is_double, i);
        if (!(value >= least && value <= most))
            Py_RETURN_FALSE;
    }
    Py_RETURN_TRUE;
}

/* are_products_above(weights, is_double, left, right, count, least): whether min(left, right) * min(|weight|, 1) is at
   least that for every record; a NaN is not. */
static PyObject *are_products_above(PyObject *module, PyObject *args)
{
    unsigned long long weights, left, right;
    long long count;
    int is_double;
    double least;
    if (!PyArg_ParseTuple(args, "KpKKLd", &weights, &is_double, &left, &right, &count, &least))
        return NULL;
    for (long long i = 0; i < count; i++) {
        double a = at(left, 1, i), b = at(right, 1, i), weight = fabs(at(weights, is_double, i));
        double product = (weight > 1 ? 1 : weight) * (a < b ? a : b);
        if (!(product >= least) || isnan(a) || isnan(b))
            Py_RETURN_FALSE;
    }
    Py_RETURN_TRUE;
}

/* root_of_squares(addresses, count, roots): for each place, the root of the sum of squares over all vectors. */
static PyObject *root_of_squares(PyObject *module, PyObject *args)
{
    PyObject *addresses;
    long long count;
    unsigned long long roots;
    if (!PyArg_ParseTuple(args, "O!LK", &PyTuple_Type, &addresses, &count, &roots))
        return NULL;
    Py_ssize_t vectors = PyTuple_Size(addresses);
    const double **values = PyMem_Malloc((vectors + 1) * sizeof(*values));
    if (values == NULL)
        return PyErr_NoMemory();
    for (Py_ssize_t v = 0; v < vectors; v++)
        values[v] = (const double *)PyLong_AsVoidPtr(PyTuple_GetItem(addresses, v));
    for (long long i = 0; i < count && !PyErr_Occurred(); i++) {
        double scale = DBL_MIN, total = 0;
        for (Py_ssize_t v = 0; v < vectors; v++)
            scale = values[v][i] > scale ? values[v][i] : scale;
        for (Py_ssize_t v = 0; v < vectors; v++)
            total += (values[v][i] / scale) * (values[v][i] / scale);
        ((double *)(uintptr_t)roots)[i] = sqrt(total) * scale;
    }
    PyMem_Free(values);
    if (PyErr_Occurred())
        return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"root_of_squares", root_of_squares, METH_VARARGS, "The root of the sum of squares of several vectors."},
    {"row_norms", row_norms, METH_VARARGS, "The norms of the rows of a matrix."},
    {"is_within", is_within, METH_VARARGS, "Whether all values lie in a range."},
    {"are_products_above", are_products_above, METH_VARARGS, "Whether weighted lengths are large enough."},
    {NULL}};
static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "_lengths", .m_doc = "Norms and ranges of small tensors.", .m_size = -1,
    .m_methods = functions};

PyMODINIT_FUNC PyInit__lengths(void)
{
    return PyModule_Create(&definition);
}
