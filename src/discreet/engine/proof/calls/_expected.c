/* The watch's handler for torch calls, for those that come again (known_calls.py); everything else goes to Python.
 *
 * ExpectedCalls.__torch_function__ does what its namesake in expected.py does, step by step, and that file says why. It
 * runs before each torch call of a model, mostly when large products have emptied the caches: a tenth of the time of
 * Python. Whatever is unusual, an error of a look-up included, is left to `watched`, which starts from the beginning:
 * until the call itself is made, nothing has been changed.
 */

#include <Python.h>
#include <structmember.h>
#include <math.h>

typedef struct {
    PyObject_HEAD
    /* What the watch is doing: see RecordWatch. */
    char is_open, is_paused, is_inside, is_backward, is_resumed;
    char flushes; /* whether numbers below the normal ones count as 0 */
    PyObject *calls, *table, *usual, *forward, *recorder;
} ExpectedCalls;

/* Names, and what `configure` was given. */
static PyObject *s_after, *s_again, *s_args, *s_clock, *s_dtype, *s_empties, *s_entries, *s_explain, *s_exported, *s_find,
    *s_followed, *s_frozen, *s_func, *s_grad_fn, *s_held, *s_kwargs, *s_last, *s_mark, *s_marked, *s_next, *s_note, *s_one,
    *s_place, *s_requires_grad, *s_script, *s_shape, *s_states, *s_tensor, *s_tracked, *s_trained, *s_version, *s_watched, *s_writes, *s_bounds[3];
static PyObject *tensor_type, *parameter_type, *quiet, *exact, *seen_type, *new_tuple;

static int is_tensor(PyObject *value)
{
    PyObject *kind = (PyObject *)Py_TYPE(value);
    return kind == tensor_type || kind == parameter_type;
}

/* Whether an attribute is an empty dictionary: 1, 0, or -1 for an error. */
static int is_empty(PyObject *owner, PyObject *name)
{
    PyObject *held = PyObject_GetAttr(owner, name);
    if (held == NULL)
        return -1;
    int empty = PyDict_Check(held) && PyDict_Size(held) == 0;
    Py_DECREF(held);
    return empty;
}

/* Whether an attribute is this very object: 1, 0, or -1 for an error. */
static int attribute_is(PyObject *owner, PyObject *name, PyObject *expected)
{
    PyObject *value = PyObject_GetAttr(owner, name);
    if (value == NULL)
        return -1;
    Py_DECREF(value);
    return value == expected;
}

static int attribute_equals(PyObject *owner, PyObject *name, PyObject *expected)
{
    PyObject *value = PyObject_GetAttr(owner, name);
    if (value == NULL)
        return -1;
    int equal = PyObject_RichCompareBool(value, expected, Py_EQ);
    Py_DECREF(value);
    return equal;
}

static int is_true(PyObject *owner, PyObject *name)
{
    PyObject *value = PyObject_GetAttr(owner, name);
    if (value == NULL)
        return -1;
    int truth = PyObject_IsTrue(value);
    Py_DECREF(value);
    return truth;
}

/* The tables of one call. */
typedef struct {
    PyObject *table, *entries, *held;
    int is_plain; /* no writes, exports or memory of torch.empty in this batch: an entry says all */
    PyObject *tensors, *versions;
} Look;

/* LineageTable.find where it is plain: whether the origin of a tensor is the expected one. */
static int is_of(Look *look, PyObject *tensor, PyObject *expected)
{
    int same = 0;
    PyObject *version = PyObject_GetAttr(tensor, s_version); /* raises for tensors of inference mode */
    PyObject *key = version == NULL ? NULL : PyLong_FromVoidPtr(tensor);
    if (key == NULL) {
        Py_XDECREF(version);
        return -1;
    }
    PyObject *entry = look->is_plain ? PyDict_GetItemWithError(look->entries, key) : NULL;
    PyObject *held = entry == NULL && look->is_plain && !PyErr_Occurred() ? PyDict_GetItemWithError(look->held, key) : NULL;
    Py_XINCREF(entry); /* attributes of tensors may run Python */
    Py_XINCREF(held);
    if (entry != NULL && PyTuple_Check(entry) && PyTuple_Size(entry) == 5
        && PyWeakref_GetObject(PyTuple_GetItem(entry, 0)) == tensor) {
        same = PyTuple_GetItem(entry, 3) == expected;
        if (same) {
            same = PyObject_RichCompareBool(PyTuple_GetItem(entry, 1), version, Py_EQ);
        }
        if (same > 0) {
            PyObject *node = PyObject_GetAttr(tensor, s_grad_fn);
            same = node == NULL ? -1 : (PyObject *)Py_TYPE(node) == PyTuple_GetItem(entry, 2);
            Py_XDECREF(node);
        }
    }
    else if (PyErr_Occurred()) {
        same = -1;
    }
    else if (held != NULL && attribute_is(held, s_tensor, tensor) == 1) {
        int trains = is_true(tensor, s_requires_grad);
        same = trains < 0 ? -1 : attribute_is(held, trains ? s_trained : s_frozen, expected);
    }
    else if (PyErr_Occurred()) {
        same = -1;
    }
    else {
        PyObject *found = PyObject_CallMethodObjArgs(look->table, s_find, tensor, NULL);
        same = found == NULL ? -1 : found == expected;
        Py_XDECREF(found);
    }
    if (same > 0 && (PyList_Append(look->tensors, tensor) < 0 || PyList_Append(look->versions, version) < 0))
        same = -1;
    Py_XDECREF(entry);
    Py_XDECREF(held);
    Py_DECREF(version);
    Py_DECREF(key);
    return same;
}

/* KnownCall's `_is_read_as`: 1, 0, or -1 for an error. */
static int is_read_as(Look *look, PyObject *known, PyObject *tree)
{
    if (is_tensor(tree))
        return is_of(look, tree, known);
    if (Py_TYPE(tree) != Py_TYPE(known))
        return 0;
    if (PyFloat_CheckExact(tree)) {
        double came = PyFloat_AsDouble(tree), was = PyFloat_AsDouble(known);
        return came == was && !signbit(came) == !signbit(was);
    }
    int is_exact = PySet_Contains(exact, (PyObject *)Py_TYPE(tree));
    if (is_exact != 0)
        return is_exact < 0 ? -1 : PyObject_RichCompareBool(tree, known, Py_EQ);
    int is_list = PyList_CheckExact(tree);
    if (is_list || PyTuple_CheckExact(tree)) {
        Py_ssize_t size = is_list ? PyList_Size(tree) : PyTuple_Size(tree);
        if (size != (is_list ? PyList_Size(known) : PyTuple_Size(known)))
            return 0;
        for (Py_ssize_t i = 0; i < size; i++) {
            PyObject *own = is_list ? PyList_GetItem(known, i) : PyTuple_GetItem(known, i);
            PyObject *branch = is_list ? PyList_GetItem(tree, i) : PyTuple_GetItem(tree, i);
            Py_XINCREF(branch); /* a look-up in Python may change the list */
            int same = own == NULL || branch == NULL ? -1 : is_read_as(look, own, branch);
            Py_XDECREF(branch);
            if (same <= 0)
                return same;
        }
        return 1;
    }
    if (!PySlice_Check(tree))
        return -1; /* left to Python */
    for (int i = 0; i < 3; i++) {
        PyObject *came = PyObject_GetAttr(tree, s_bounds[i]), *was = PyObject_GetAttr(known, s_bounds[i]);
        int same = came == NULL || was == NULL ? -1 : Py_TYPE(came) == Py_TYPE(was);
        if (same > 0)
            same = PyObject_RichCompareBool(came, was, Py_EQ);
        Py_XDECREF(came);
        Py_XDECREF(was);
        if (same <= 0)
            return same;
    }
    return 1;
}

/* KnownCall.is_called */
static int is_called(Look *look, PyObject *known, PyObject *args, PyObject *kwargs)
{
    PyObject *own = PyObject_GetAttr(known, s_args), *named = PyObject_GetAttr(known, s_kwargs);
    int same = own == NULL || named == NULL ? -1 : 1;
    Py_ssize_t names = kwargs == NULL ? 0 : PyDict_Size(kwargs), count = PyTuple_Size(args);
    if (same > 0 && (!PyTuple_Check(own) || !PyTuple_Check(named) || PyTuple_Size(own) != count || PyTuple_Size(named) != names))
        same = 0;
    for (Py_ssize_t i = 0; same > 0 && i < count; i++)
        same = is_read_as(look, PyTuple_GetItem(own, i), PyTuple_GetItem(args, i));
    Py_ssize_t position = 0;
    PyObject *name, *value;
    for (Py_ssize_t i = 0; same > 0 && i < names; i++) {
        PyObject *pair = PyTuple_GetItem(named, i);
        if (!PyDict_Next(kwargs, &position, &name, &value)) {
            same = 0;
            break;
        }
        same = PyObject_RichCompareBool(PyTuple_GetItem(pair, 0), name, Py_EQ);
        if (same > 0) {
            Py_INCREF(value); /* a look-up in Python may change the dictionary */
            same = is_read_as(look, PyTuple_GetItem(pair, 1), value);
            Py_DECREF(value);
        }
    }
    Py_XDECREF(own);
    Py_XDECREF(named);
    return same;
}

/* Surroundings.are_usual */
static int are_usual(ExpectedCalls *self)
{
    volatile double smallest = 5e-324;
    if ((smallest == 0) != self->flushes || !PyTuple_Check(self->usual))
        return 0;
    PyObject *questions = Py_NewRef(self->usual);
    int same = 1;
    for (Py_ssize_t i = 0; same > 0 && i < PyTuple_Size(questions); i++) {
        PyObject *one = PyTuple_GetItem(questions, i); /* question, its arguments, the usual answer */
        PyObject *answer = PyObject_Call(PyTuple_GetItem(one, 0), PyTuple_GetItem(one, 1), NULL);
        PyObject *usual = PyTuple_GetItem(one, 2);
        if (answer != usual)
            same = answer == NULL ? -1 : PyObject_RichCompareBool(answer, usual, Py_EQ);
        Py_XDECREF(answer);
    }
    Py_DECREF(questions);
    return same;
}

/* Recorder.run_again, where the call stands where it stood: 1; 0 for anything else, -1 for an error. */
static int stands_there(PyObject *recorder, PyObject *known, PyObject *tensors)
{
    PyObject *followed = PyObject_GetAttr(known, s_followed);
    if (followed == NULL)
        return -1;
    int same = PyTuple_Check(followed) ? attribute_is(recorder, s_script, PyTuple_GetItem(followed, 0)) : 0;
    if (same > 0)
        same = attribute_equals(recorder, s_place, PyTuple_GetItem(followed, 1));
    Py_DECREF(followed);
    if (same <= 0)
        return same;
    PyObject *tracked = PyObject_GetAttr(recorder, s_tracked), *marked = PyObject_GetAttr(recorder, s_marked);
    int has_records = 0;
    same = tracked == NULL || marked == NULL ? -1 : 1;
    for (Py_ssize_t i = 0; same > 0 && i < PyList_Size(tensors); i++) {
        PyObject *tensor = PyList_GetItem(tensors, i), *key = PyLong_FromVoidPtr(tensor);
        if (key == NULL || PyDict_GetItemWithError(tracked, key) != NULL || PyErr_Occurred()) {
            same = PyErr_Occurred() ? -1 : 0;
        }
        else if (!has_records) {
            int trains = is_true(tensor, s_requires_grad);
            PyObject *mark = trains == 0 ? PyDict_GetItemWithError(marked, key) : NULL; /* borrowed */
            has_records = trains > 0 || (mark != NULL && PyWeakref_GetObject(mark) == tensor);
            if (trains < 0 || PyErr_Occurred())
                same = -1;
        }
        Py_XDECREF(key);
    }
    Py_XDECREF(tracked);
    Py_XDECREF(marked);
    return same > 0 ? has_records : same;
}

/* Add 1 to a whole number that an object holds. */
static int advance(PyObject *owner, PyObject *name)
{
    PyObject *value = PyObject_GetAttr(owner, name);
    if (value == NULL)
        return -1;
    PyObject *next = PyLong_FromLongLong(PyLong_AsLongLong(value) + 1);
    Py_DECREF(value);
    int failed = next == NULL || PyErr_Occurred() ? -1 : PyObject_SetAttr(owner, name, next);
    Py_XDECREF(next);
    return failed;
}

/* Recorder.mark */
static int mark(PyObject *recorder, PyObject *result)
{
    if ((PyObject *)Py_TYPE(result) != tensor_type) {
        PyObject *done = PyObject_CallMethodObjArgs(recorder, s_mark, result, NULL);
        Py_XDECREF(done);
        return done == NULL ? -1 : 0;
    }
    int trains = is_true(result, s_requires_grad);
    if (trains != 0)
        return trains < 0 ? -1 : 0; /* what needs a gradient shows it by itself */
    PyObject *marked = PyObject_GetAttr(recorder, s_marked), *key = PyLong_FromVoidPtr(result);
    PyObject *reference = PyWeakref_NewRef(result, NULL);
    int failed = marked == NULL || key == NULL || reference == NULL ? -1 : PyObject_SetItem(marked, key, reference);
    Py_XDECREF(marked);
    Py_XDECREF(key);
    Py_XDECREF(reference);
    return failed;
}

static PyObject *run(ExpectedCalls *self, PyObject *known, PyObject *func, PyObject *args, PyObject *kwargs, PyObject *tensors)
{
    if (self->forward == Py_None)
        return PyObject_Call(func, args, kwargs);
    PyObject *named = kwargs == NULL ? PyDict_New() : Py_NewRef(kwargs);
    if (named == NULL)
        return NULL;
    if (self->recorder == Py_None) {
        PyObject *result = PyObject_CallFunctionObjArgs(self->forward, func, args, named, NULL);
        Py_DECREF(named);
        return result;
    }
    int same = stands_there(self->recorder, known, tensors);
    if (same != 0)
        Py_DECREF(named);
    if (same < 0)
        return NULL;
    if (same) {
        PyObject *recorder = self->recorder;
        Py_INCREF(recorder);
        PyObject *result = PyObject_Call(func, args, kwargs);
        if (result != NULL && (mark(recorder, result) < 0 || advance(recorder, s_place) < 0))
            Py_CLEAR(result);
        Py_DECREF(recorder);
        return result;
    }
    PyObject *result =
        PyObject_CallMethodObjArgs(self->recorder, s_again, known, self->forward, func, args, named, tensors, NULL);
    Py_DECREF(named);
    return result;
}

/* Whether versions are as they were: 1, 0, or -1 for an error. */
static int are_unwritten(PyObject *tensors, PyObject *versions)
{
    for (Py_ssize_t i = 0; i < PyList_Size(tensors); i++) {
        int same = attribute_equals(PyList_GetItem(tensors, i), s_version, PyList_GetItem(versions, i));
        if (same <= 0)
            return same;
    }
    return 1;
}

/* Whether a known call made what it made before, and wrote to nothing. */
static int is_as_before(PyObject *one, PyObject *result, PyObject *tensors, PyObject *versions)
{
    if (!PyTuple_Check(one) || (PyObject *)Py_TYPE(result) != tensor_type)
        return 0;
    int same = attribute_is(result, s_dtype, PyTuple_GetItem(one, 2));
    if (same > 0)
        same = attribute_equals(result, s_shape, PyTuple_GetItem(one, 1));
    return same > 0 ? are_unwritten(tensors, versions) : same;
}

/* LineageTable.put_again */
static int put_again(PyObject *table, PyObject *result, PyObject *origin, PyObject *tensors)
{
    if (advance(table, s_clock) < 0)
        return -1;
    for (Py_ssize_t i = 0; i < PyList_Size(tensors); i++)
        if (PyList_GetItem(tensors, i) == result)
            return 0;
    PyObject *reference = PyWeakref_NewRef(result, NULL), *version = PyObject_GetAttr(result, s_version);
    if (version == NULL && PyErr_ExceptionMatches(PyExc_RuntimeError)) {
        PyErr_Clear(); /* tensors of inference mode do not count writes */
        version = PyLong_FromLong(-1);
    }
    PyObject *node = PyObject_GetAttr(result, s_grad_fn), *clock = PyObject_GetAttr(table, s_clock);
    PyObject *entries = PyObject_GetAttr(table, s_entries), *key = PyLong_FromVoidPtr(result);
    PyObject *values = NULL, *seen = NULL;
    if (reference != NULL && version != NULL && node != NULL && clock != NULL && entries != NULL && key != NULL)
        values = PyTuple_Pack(5, reference, version, (PyObject *)Py_TYPE(node), origin, clock);
    if (values != NULL)
        seen = PyObject_CallFunctionObjArgs(new_tuple, seen_type, values, NULL);
    int failed = seen == NULL ? -1 : PyObject_SetItem(entries, key, seen);
    Py_XDECREF(reference);
    Py_XDECREF(version);
    Py_XDECREF(node);
    Py_XDECREF(clock);
    Py_XDECREF(entries);
    Py_XDECREF(key);
    Py_XDECREF(values);
    Py_XDECREF(seen);
    return failed;
}

/* Tell the watch of an error that a call raised; it may add a note. */
static void explain(ExpectedCalls *self)
{
    PyObject *kind, *value, *trace;
    PyErr_Fetch(&kind, &value, &trace);
    PyErr_NormalizeException(&kind, &value, &trace);
    if (value != NULL && PyObject_IsInstance(value, PyExc_Exception) == 1) {
        PyObject *done = PyObject_CallMethodObjArgs((PyObject *)self, s_explain, value, NULL);
        Py_XDECREF(done);
        if (done == NULL && !PyErr_ExceptionMatches(PyExc_Exception)) { /* Ctrl-C */
            Py_XDECREF(kind);
            Py_XDECREF(value);
            Py_XDECREF(trace);
            return;
        }
    }
    PyErr_Clear();
    PyErr_Restore(kind, value, trace);
}

/* The states of generators before a call that may draw, None for others: a new reference. */
static PyObject *states_before(ExpectedCalls *self, PyObject *known)
{
    PyObject *after = PyObject_GetAttr(known, s_after);
    if (after == NULL || after == Py_None)
        return after;
    Py_DECREF(after);
    return PyObject_CallMethodObjArgs((PyObject *)self, s_states, NULL);
}

/* RecordWatch._expected: the call is known, and nothing stands against it. */
static PyObject *make_again(
    ExpectedCalls *self, PyObject *known, PyObject *func, PyObject *args, PyObject *kwargs, PyObject *tensors, PyObject *versions)
{
    PyObject *table = self->table;
    Py_INCREF(table);
    PyObject *started = PyObject_GetAttr(table, s_clock), *one = PyObject_GetAttr(known, s_one), *result = NULL;
    PyObject *states = states_before(self, known);
    if (started == NULL || one == NULL || states == NULL || PyObject_SetAttr(self->calls, s_last, known) < 0)
        goto done;
    result = run(self, known, func, args, kwargs, tensors);
    if (result == NULL) {
        explain(self);
        goto done;
    }
    int same = attribute_equals(table, s_clock, started);
    if (same == 0)
        goto done; /* taken apart into calls that were watched */
    if (same > 0)
        same = is_as_before(one, result, tensors, versions);
    if (same > 0)
        same = put_again(table, result, PyTuple_GetItem(one, 0), tensors);
    else if (same == 0) {
        PyObject *named = kwargs == NULL ? PyDict_New() : Py_NewRef(kwargs);
        PyObject *noted = named == NULL ? NULL
                                        : PyObject_CallMethodObjArgs((PyObject *)self, s_note, known, args, named, tensors,
                                                                     versions, states, result, NULL);
        same = noted == NULL ? -1 : 0;
        Py_XDECREF(named);
        Py_XDECREF(noted);
    }
    if (same < 0)
        Py_CLEAR(result);
done:
    Py_XDECREF(started);
    Py_XDECREF(one);
    Py_XDECREF(states);
    Py_DECREF(table);
    return result;
}

/* The known call that is expected next, if this is it: a new reference, NULL otherwise. */
static PyObject *expected(ExpectedCalls *self, PyObject *func)
{
    PyObject *last = PyObject_GetAttr(self->calls, s_last);
    PyObject *next = last == NULL ? NULL : PyObject_GetAttr(last, s_next);
    Py_XDECREF(last);
    if (next == NULL || next == Py_None || attribute_is(next, s_func, func) != 1 || are_usual(self) != 1)
        Py_CLEAR(next);
    return next;
}

static PyObject *torch_function(ExpectedCalls *self, PyObject *call)
{
    PyObject *func, *types, *args = NULL, *kwargs = NULL;
    if (!PyArg_UnpackTuple(call, "__torch_function__", 2, 4, &func, &types, &args, &kwargs))
        return NULL;
    if (kwargs == Py_None || (kwargs != NULL && PyDict_Check(kwargs) && PyDict_Size(kwargs) == 0))
        kwargs = NULL;
    int is_complete = self->calls && self->table && self->usual && self->forward && self->recorder && quiet != NULL;
    int is_plain = args != NULL && PyTuple_CheckExact(args) && (kwargs == NULL || PyDict_Check(kwargs));
    if (!is_complete || !is_plain || (self->is_backward && !self->is_resumed))
        return PyObject_CallMethodObjArgs((PyObject *)self, s_watched, func, types, args, kwargs, NULL);
    if (self->is_paused || !self->is_open || PySet_Contains(quiet, func) == 1)
        return PyObject_Call(func, args, kwargs);
    if (!self->is_inside && !self->is_resumed && !PyErr_Occurred()) {
        PyObject *known = expected(self, func);
        if (known != NULL) {
            Look look = {.table = Py_NewRef(self->table)};
            look.entries = PyObject_GetAttr(look.table, s_entries);
            look.held = PyObject_GetAttr(look.table, s_held);
            look.tensors = PyList_New(0);
            look.versions = PyList_New(0);
            look.is_plain = is_empty(look.table, s_writes) == 1 && is_empty(look.table, s_exported) == 1
                            && is_empty(look.table, s_empties) == 1;
            int is_ready = look.entries && look.held && look.tensors && look.versions && !PyErr_Occurred();
            int same = is_ready ? is_called(&look, known, args, kwargs) : -1;
            PyObject *result = NULL;
            if (same > 0)
                result = make_again(self, known, func, args, kwargs, look.tensors, look.versions);
            Py_DECREF(look.table);
            Py_XDECREF(look.entries);
            Py_XDECREF(look.held);
            Py_XDECREF(look.tensors);
            Py_XDECREF(look.versions);
            Py_DECREF(known);
            if (same > 0)
                return result;
        }
    }
    if (PyErr_Occurred()) {
        if (!PyErr_ExceptionMatches(PyExc_Exception))
            return NULL; /* Ctrl-C */
        PyErr_Clear(); /* of a look-up: Python looks again */
    }
    return PyObject_CallMethodObjArgs((PyObject *)self, s_watched, func, types, args, kwargs, NULL);
}

/* configure(Tensor, Parameter, QUIET, EXACT, SeenTensor): what the handler needs of Python. */
static PyObject *configure(PyObject *module, PyObject *given)
{
    PyObject *values[5];
    if (!PyArg_UnpackTuple(given, "configure", 5, 5, values, values + 1, values + 2, values + 3, values + 4))
        return NULL;
    PyObject **places[5] = {&tensor_type, &parameter_type, &quiet, &exact, &seen_type};
    for (int i = 0; i < 5; i++) {
        PyObject *before = *places[i];
        *places[i] = Py_NewRef(values[i]);
        Py_XDECREF(before);
    }
    Py_RETURN_NONE;
}

static int init(ExpectedCalls *self, PyObject *args, PyObject *kwargs)
{
    PyObject **held[5] = {&self->calls, &self->table, &self->usual, &self->forward, &self->recorder};
    for (int i = 0; i < 5; i++)
        if (*held[i] == NULL)
            *held[i] = Py_NewRef(Py_None);
    return 0;
}

static int traverse(ExpectedCalls *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE((PyObject *)self));
    Py_VISIT(self->calls);
    Py_VISIT(self->table);
    Py_VISIT(self->usual);
    Py_VISIT(self->forward);
    Py_VISIT(self->recorder);
    return 0;
}

static int clear(ExpectedCalls *self)
{
    Py_CLEAR(self->calls);
    Py_CLEAR(self->table);
    Py_CLEAR(self->usual);
    Py_CLEAR(self->forward);
    Py_CLEAR(self->recorder);
    return 0;
}

static void dealloc(ExpectedCalls *self)
{
    PyTypeObject *kind = Py_TYPE((PyObject *)self);
    PyObject_GC_UnTrack(self);
    clear(self);
    freefunc release = (freefunc)PyType_GetSlot(kind, Py_tp_free);
    release(self);
    Py_DECREF(kind);
}

#define FLAG(name) {#name, T_BOOL, offsetof(ExpectedCalls, name), 0, NULL}
#define HELD(name) {#name, T_OBJECT_EX, offsetof(ExpectedCalls, name), 0, NULL}
static PyMemberDef members[] = {
    FLAG(is_open), FLAG(is_paused), FLAG(is_inside), FLAG(is_backward), FLAG(is_resumed), FLAG(flushes),
    HELD(calls), HELD(table), HELD(usual), HELD(forward), HELD(recorder), {NULL}};
static PyMethodDef methods[] = {
    {"__torch_function__", (PyCFunction)torch_function, METH_VARARGS, "Run one torch call."}, {NULL}};
static PyType_Slot slots[] = {
    {Py_tp_doc, "Handles torch calls; see expected.py."},
    {Py_tp_init, init},
    {Py_tp_dealloc, dealloc},
    {Py_tp_traverse, traverse},
    {Py_tp_clear, clear},
    {Py_tp_members, members},
    {Py_tp_methods, methods},
    {0, NULL}};
static PyType_Spec spec = {
    .name = "discreet.engine.proof.calls._expected.ExpectedCalls",
    .basicsize = sizeof(ExpectedCalls),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = slots};
static PyMethodDef functions[] = {
    {"configure", configure, METH_VARARGS, "Name the types and sets that the handler compares with."}, {NULL}};
static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "_expected", .m_doc = "The watch's handler for calls that come again.", .m_size = -1,
    .m_methods = functions};

PyMODINIT_FUNC PyInit__expected(void)
{
    struct { PyObject **place; const char *name; } names[] = {
        {&s_after, "after"}, {&s_again, "run_again"}, {&s_args, "args"}, {&s_clock, "clock"}, {&s_dtype, "dtype"},
        {&s_empties, "empties"}, {&s_entries, "entries"}, {&s_explain, "explain"}, {&s_exported, "exported"},
        {&s_find, "find"}, {&s_followed, "followed"}, {&s_frozen, "frozen"}, {&s_func, "func"}, {&s_grad_fn, "grad_fn"},
        {&s_held, "held"}, {&s_kwargs, "kwargs"}, {&s_last, "last"}, {&s_mark, "mark"}, {&s_marked, "marked"},
        {&s_next, "next"}, {&s_note, "note"}, {&s_one, "one"}, {&s_place, "place"}, {&s_requires_grad, "requires_grad"},
        {&s_script, "script"}, {&s_shape, "shape"}, {&s_states, "states"}, {&s_tensor, "tensor"}, {&s_tracked, "tracked"},
        {&s_trained, "trained"}, {&s_version, "_version"}, {&s_watched, "watched"}, {&s_writes, "writes"}, {&s_bounds[0], "start"},
        {&s_bounds[1], "stop"}, {&s_bounds[2], "step"}};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if ((*names[i].place = PyUnicode_InternFromString(names[i].name)) == NULL)
            return NULL;
    new_tuple = PyObject_GetAttrString((PyObject *)&PyTuple_Type, "__new__");
    PyObject *module = PyModule_Create(&definition), *kind = PyType_FromSpec(&spec);
    if (new_tuple == NULL || module == NULL || kind == NULL || PyModule_AddObjectRef(module, "ExpectedCalls", kind) < 0)
        return NULL;
    Py_DECREF(kind);
    return module;
}
