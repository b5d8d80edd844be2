/* Whether tensors are as they were seen: what `_is_untouched` of model_state.py asks for each, a tenth of the time. */

#include <Python.h>
#include <string.h>

static PyObject *s_content, *s_data_ptr, *s_memory, *s_shape, *s_stride, *s_dtype, *s_tensor, *s_version, *s_own_version;
static const Py_ssize_t END = 4096; /* _END of model_state.py */

/* Compare and let go of a value: 1, 0, or -1 for an error. */
static int equals(PyObject *value, PyObject *expected)
{
    if (value == NULL || expected == NULL) {
        Py_XDECREF(value);
        return -1;
    }
    int same = value == expected ? 1 : PyObject_RichCompareBool(value, expected, Py_EQ);
    Py_DECREF(value);
    return same;
}

/* _Memory.is_of, then the content: address, dtype, size, stride, nbytes, is_whole. */
static int holds(PyObject *memory, PyObject *tensor, PyObject *content)
{
    if (!PyTuple_Check(memory) || PyTuple_Size(memory) != 6 || !PyBytes_Check(content))
        return 0; /* looked at in Python */
    PyObject *address = PyTuple_GetItem(memory, 0);
    int same = equals(PyObject_CallMethodObjArgs(tensor, s_data_ptr, NULL), address);
    if (same > 0)
        same = equals(PyObject_GetAttr(tensor, s_dtype), PyTuple_GetItem(memory, 1));
    if (same > 0)
        same = equals(PyObject_GetAttr(tensor, s_shape), PyTuple_GetItem(memory, 2));
    if (same > 0)
        same = equals(PyObject_CallMethodObjArgs(tensor, s_stride, NULL), PyTuple_GetItem(memory, 3));
    if (same <= 0)
        return same;
    const char *start = PyLong_AsVoidPtr(address), *known = PyBytes_AsString(content);
    Py_ssize_t size = PyLong_AsSsize_t(PyTuple_GetItem(memory, 4)), length = PyBytes_Size(content);
    int is_whole = PyObject_IsTrue(PyTuple_GetItem(memory, 5));
    if (PyErr_Occurred() || is_whole < 0)
        return -1;
    if (is_whole)
        return length == size && (size == 0 || memcmp(start, known, size) == 0);
    return length == 2 * END && size >= 2 * END && memcmp(start, known, END) == 0
           && memcmp(start + size - END, known + END, END) == 0;
}

static int is_untouched(PyObject *seen, PyObject *tensor)
{
    PyObject *own = PyObject_GetAttr(seen, s_tensor);
    int same = own == NULL ? -1 : own == tensor; /* tensors are not compared by value */
    Py_XDECREF(own);
    PyObject *was = same > 0 ? PyObject_GetAttr(seen, s_version) : NULL;
    if (same > 0)
        same = equals(PyObject_GetAttr(tensor, s_own_version), was);
    Py_XDECREF(was);
    if (same <= 0)
        return same;
    PyObject *memory = PyObject_GetAttr(seen, s_memory), *content = PyObject_GetAttr(seen, s_content);
    same = memory == NULL || content == NULL ? -1 : holds(memory, tensor, content);
    Py_XDECREF(memory);
    Py_XDECREF(content);
    return same;
}

/* untouched(seen, tensors): for each, whether it is as it was; False where only Python can tell. */
static PyObject *untouched(PyObject *module, PyObject *args)
{
    PyObject *seen, *tensors;
    if (!PyArg_UnpackTuple(args, "untouched", 2, 2, &seen, &tensors))
        return NULL;
    if (!PyList_Check(seen) || !PyList_Check(tensors) || PyList_Size(seen) != PyList_Size(tensors)) {
        PyErr_SetString(PyExc_ValueError, "two lists of one length");
        return NULL;
    }
    PyObject *answers = PyList_New(0);
    for (Py_ssize_t i = 0; answers != NULL && i < PyList_Size(seen) && i < PyList_Size(tensors); i++) {
        int same = -1;
        PyObject *one = PyList_GetItem(seen, i), *tensor = PyList_GetItem(tensors, i);
        Py_INCREF(one);
        Py_INCREF(tensor);
        if ((same = is_untouched(one, tensor)) < 0 && PyErr_ExceptionMatches(PyExc_Exception)) {
            PyErr_Clear(); /* a tensor without a version, such as one of inference mode */
            same = 0;
        }
        Py_DECREF(one);
        Py_DECREF(tensor);
        if (same < 0 || PyList_Append(answers, same ? Py_True : Py_False) < 0)
            Py_CLEAR(answers);
    }
    return answers;
}

static PyMethodDef functions[] = {
    {"untouched", untouched, METH_VARARGS, "For each tensor, whether it is as it was seen."}, {NULL}};
static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "_untouched", .m_doc = "Compares tensors with what was seen of them.", .m_size = -1,
    .m_methods = functions};

PyMODINIT_FUNC PyInit__untouched(void)
{
    struct { PyObject **place; const char *name; } names[] = {
        {&s_content, "content"}, {&s_data_ptr, "data_ptr"}, {&s_memory, "memory"}, {&s_shape, "shape"},
        {&s_stride, "stride"}, {&s_dtype, "dtype"}, {&s_tensor, "tensor"}, {&s_version, "version"},
        {&s_own_version, "_version"}};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if ((*names[i].place = PyUnicode_InternFromString(names[i].name)) == NULL)
            return NULL;
    return PyModule_Create(&definition);
}
