/* What every step asks of a model, a tenth of the time: which modules and tensors it holds (support.py), what steers
   its modules (known_traces.py), and whether its tensors are as they were seen (model/state.py). */

#include <Python.h>
#include <string.h>

static PyObject *s_modules, *s_parameters, *s_buffers, *s_training, *s_dict, *s_own_module, *s_torch_nn;
static PyObject *s_content, *s_data_ptr, *s_memory, *s_shape, *s_stride, *s_dtype, *s_tensor, *s_version, *s_own_version;
static PyObject *s_is_conj, *s_is_neg;
static const Py_ssize_t END = 4096; /* _END of model/state.py */

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
    for (int i = 0; i < 2 && same > 0; i++) /* `.data` can be set to such a view */
        same = equals(PyObject_CallMethodObjArgs(tensor, i ? s_is_neg : s_is_conj, NULL), Py_False);
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

/* The values of a dictionary that an object holds, in order; a new list. */
static PyObject *values_of(PyObject *object, PyObject *name)
{
    PyObject *held = PyObject_GetAttr(object, name);
    PyObject *values = held == NULL ? NULL : PyMapping_Values(held);
    Py_XDECREF(held);
    return values;
}

/* modules_in(model): every module once, in the order of named_modules. */
static PyObject *modules_in(PyObject *unused, PyObject *model)
{
    PyObject *found = PyDict_New(), *ahead = PyList_New(0), *modules = NULL;
    int failed = found == NULL || ahead == NULL || PyList_Append(ahead, model) < 0;
    while (!failed && PyList_Size(ahead) > 0) {
        Py_ssize_t last = PyList_Size(ahead) - 1;
        PyObject *module = PyList_GetItem(ahead, last), *parts = NULL;
        Py_INCREF(module);
        failed = PyList_SetSlice(ahead, last, last + 1, NULL) < 0;
        int is_known = failed ? 1 : PyDict_Contains(found, module);
        failed = failed || is_known < 0;
        if (!failed && !is_known) {
            failed = PyDict_SetItem(found, module, Py_None) < 0 || (parts = values_of(module, s_modules)) == NULL;
            for (Py_ssize_t i = failed ? 0 : PyList_Size(parts); !failed && i > 0; i--) {
                PyObject *part = PyList_GetItem(parts, i - 1);
                failed = part != Py_None && PyList_Append(ahead, part) < 0;
            }
        }
        Py_XDECREF(parts);
        Py_DECREF(module);
    }
    if (!failed)
        modules = PyDict_Keys(found);
    Py_XDECREF(found);
    Py_XDECREF(ahead);
    return modules;
}

/* tensors_of(modules): every parameter and buffer, module by module. */
static PyObject *tensors_of(PyObject *unused, PyObject *modules)
{
    PyObject *tensors = PyList_New(0), *module = NULL, *steps = PyObject_GetIter(modules);
    PyObject *names[] = {s_parameters, s_buffers};
    int failed = tensors == NULL || steps == NULL;
    while (!failed && (module = PyIter_Next(steps)) != NULL) {
        for (int kind = 0; kind < 2 && !failed; kind++) {
            PyObject *held = values_of(module, names[kind]);
            failed = held == NULL;
            for (Py_ssize_t i = 0; !failed && i < PyList_Size(held); i++) {
                PyObject *tensor = PyList_GetItem(held, i);
                failed = tensor != Py_None && PyList_Append(tensors, tensor) < 0;
            }
            Py_XDECREF(held);
        }
        Py_DECREF(module);
    }
    Py_XDECREF(steps);
    if (failed || PyErr_Occurred())
        Py_CLEAR(tensors);
    return tensors;
}

static int is_plain(PyObject *value)
{
    PyTypeObject *type = Py_TYPE(value);
    return type == &PyBool_Type || type == &PyLong_Type || type == &PyFloat_Type || type == &PyUnicode_Type;
}

/* The plain attributes of a module of torch; whether any other module trains. */
static PyObject *settings_of_one(PyObject *module)
{
    PyObject *home = PyObject_GetAttr((PyObject *)Py_TYPE(module), s_own_module);
    Py_ssize_t is_torch = home == NULL ? -1 : PyUnicode_Check(home) ? PyUnicode_Tailmatch(home, s_torch_nn, 0, PY_SSIZE_T_MAX, -1) : 0;
    Py_XDECREF(home);
    if (is_torch < 0)
        return NULL;
    if (!is_torch)
        return PyObject_GetAttr(module, s_training);
    PyObject *values = values_of(module, s_dict), *plain = PyList_New(0), *settings = NULL;
    int failed = values == NULL || plain == NULL;
    for (Py_ssize_t i = 0; !failed && i < PyList_Size(values); i++) {
        PyObject *value = PyList_GetItem(values, i);
        failed = is_plain(value) && PyList_Append(plain, value) < 0;
    }
    if (!failed)
        settings = PyList_AsTuple(plain);
    Py_XDECREF(values);
    Py_XDECREF(plain);
    return settings;
}

/* settings_of(modules): what steers each module, in a tuple. */
static PyObject *settings_of(PyObject *unused, PyObject *modules)
{
    PyObject *all = PyList_New(0), *module = NULL, *steps = PyObject_GetIter(modules), *answer = NULL;
    int failed = all == NULL || steps == NULL;
    while (!failed && (module = PyIter_Next(steps)) != NULL) {
        PyObject *settings = settings_of_one(module);
        failed = settings == NULL || PyList_Append(all, settings) < 0;
        Py_XDECREF(settings);
        Py_DECREF(module);
    }
    if (!failed && !PyErr_Occurred())
        answer = PyList_AsTuple(all);
    Py_XDECREF(steps);
    Py_XDECREF(all);
    return answer;
}

static PyMethodDef functions[] = {
    {"untouched", untouched, METH_VARARGS, "For each tensor, whether it is as it was seen."},
    {"modules_in", modules_in, METH_O, "Every module once."},
    {"tensors_of", tensors_of, METH_O, "Every parameter and buffer."},
    {"settings_of", settings_of, METH_O, "What steers each module."},
    {NULL}};
static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "_state", .m_doc = "What a model holds, and whether it is as it was.", .m_size = -1,
    .m_methods = functions};

PyMODINIT_FUNC PyInit__state(void)
{
    struct { PyObject **place; const char *name; } names[] = {
        {&s_content, "content"}, {&s_data_ptr, "data_ptr"}, {&s_memory, "memory"}, {&s_shape, "shape"},
        {&s_stride, "stride"}, {&s_dtype, "dtype"}, {&s_tensor, "tensor"}, {&s_version, "version"},
        {&s_own_version, "_version"}, {&s_modules, "_modules"}, {&s_parameters, "_parameters"},
        {&s_buffers, "_buffers"}, {&s_training, "training"}, {&s_dict, "__dict__"}, {&s_own_module, "__module__"},
        {&s_torch_nn, "torch.nn."}, {&s_is_conj, "is_conj"}, {&s_is_neg, "is_neg"}};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if ((*names[i].place = PyUnicode_InternFromString(names[i].name)) == NULL)
            return NULL;
    return PyModule_Create(&definition);
}
