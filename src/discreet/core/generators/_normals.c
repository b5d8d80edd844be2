/* Standard normals from AES-256 in counter mode, added to an array: the compiled twin of normals.py.

   Same words, positions and formula as there. It needs a processor with AES, AVX2 and FMA instructions; elsewhere the
   import fails and normals.py does the work.

   Threads live for one call only, so none is missing after a fork. They take small pieces from a common counter, so a
   busy core delays a call by one piece at most. They run without the interpreter lock and block all signals. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#if !(defined(__x86_64__) && defined(__GNUC__) && defined(__unix__))
PyMODINIT_FUNC PyInit__normals(void) {
    PyErr_SetString(PyExc_ImportError, "compiled noise needs an x86-64 processor, and gcc or clang");
    return NULL;
}
#else

#include <immintrin.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))
#define PI 3.14159265358979323846
#define GROUP 32    /* normals made at once: 16 blocks */
#define PIECE 16384 /* normals that a thread takes at a time: a multiple of PART */
#define PART 2048   /* normals between cipher and target: they fit the fastest cache */
#define ROUNDS 14
#define MOST_THREADS 64

typedef struct {
    __m128i rounds[ROUNDS + 1];
} Key;

typedef struct {
    void (*draw)(const Key *, uint64_t lane, uint64_t first, size_t groups, double *out);
    void (*transform)(const uint64_t *words, size_t groups, double *out);
} Kernel;

#define BYTES 64
#define TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,vaes,fma,prefer-vector-width=512")))
#include "_normals_lanes.h"
#define BYTES 32
#define TARGET __attribute__((target("aes,avx2,fma")))
#include "_normals_lanes.h"

static const Kernel *kernel; /* the widest that the processor has */

/* The key schedule ----------------------------------------------------------------------------------------------- */

__attribute__((target("aes"))) INLINE __m128i next_key(__m128i key, __m128i assist) {
    key = _mm_xor_si128(key, _mm_slli_si128(key, 4));
    key = _mm_xor_si128(key, _mm_slli_si128(key, 8));
    return _mm_xor_si128(key, assist);
}

#define EXPAND(r, constant)                                                                              \
    k[r] = next_key(k[(r) - 2], _mm_shuffle_epi32(_mm_aeskeygenassist_si128(k[(r) - 1], constant), 0xff)); \
    if ((r) < ROUNDS)                                                                                    \
        k[(r) + 1] = next_key(k[(r) - 1], _mm_shuffle_epi32(_mm_aeskeygenassist_si128(k[r], 0), 0xaa));

__attribute__((target("aes"))) static void expand(const char bytes[32], Key *key) {
    __m128i k[ROUNDS + 2];
    memcpy(k, bytes, 32);
    EXPAND(2, 0x01)
    EXPAND(4, 0x02)
    EXPAND(6, 0x04)
    EXPAND(8, 0x08)
    EXPAND(10, 0x10)
    EXPAND(12, 0x20)
    EXPAND(14, 0x40)
    memcpy(key->rounds, k, sizeof key->rounds);
}

/* The work of one call ------------------------------------------------------------------------------------------- */

typedef struct {
    Key key;
    uint64_t lane, first;
    void *target;
    size_t count, taken; /* `taken` is shared: the values that some thread has begun or done */
    double std;
    int is_double;
} Job;

/* target[start .. stop-1] += std * normals: product and sum in double as in normals.py, so without FMA; rounded once. */
__attribute__((target("avx2"))) static void add_part(const Job *job, size_t start, size_t stop) {
    double noise[PART] __attribute__((aligned(64)));
    kernel->draw(&job->key, job->lane, job->first + start / 2, (stop - start + GROUP - 1) / GROUP, noise);
    if (job->is_double) {
        double *out = (double *)job->target + start;
        for (size_t i = 0; i < stop - start; i++) out[i] += job->std * noise[i];
    } else {
        float *out = (float *)job->target + start;
        for (size_t i = 0; i < stop - start; i++) out[i] = (float)(out[i] + job->std * noise[i]);
    }
}

static void *work(void *given) {
    Job *job = given;
    for (;;) {
        size_t start = __atomic_fetch_add(&job->taken, PIECE, __ATOMIC_RELAXED);
        if (start >= job->count) return NULL;
        size_t stop = job->count - start < PIECE ? job->count : start + PIECE;
        for (; start < stop; start += PART) add_part(job, start, stop - start < PART ? stop : start + PART);
    }
}

/* This thread works too, so a thread that cannot be had costs time only. */
static void share_out(Job *job, long threads) {
    pthread_t others[MOST_THREADS];
    sigset_t all, before;
    long begun = 0;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (begun < threads - 1 && pthread_create(&others[begun], NULL, work, job) == 0) begun++;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    work(job);
    while (begun) pthread_join(others[--begun], NULL);
}

/* Python --------------------------------------------------------------------------------------------------------- */

static PyObject *add(PyObject *module, PyObject *args) {
    const char *key;
    Py_ssize_t key_bytes;
    unsigned long long lane, first;
    PyObject *array;
    double std;
    long threads;
    Job job = {0};
    Py_buffer view;
    if (!PyArg_ParseTuple(args, "y#KKOdl", &key, &key_bytes, &lane, &first, &array, &std, &threads)) return NULL;
    if (PyObject_GetBuffer(array, &view, PyBUF_WRITABLE | PyBUF_FORMAT | PyBUF_C_CONTIGUOUS) != 0) return NULL;
    job.is_double = strcmp(view.format, "d") == 0;
    if (key_bytes != 32 || !(job.is_double || strcmp(view.format, "f") == 0)) {
        PyBuffer_Release(&view);
        PyErr_SetString(PyExc_ValueError, "add takes a key of 32 bytes and an array of float32 or float64");
        return NULL;
    }
    job.lane = lane, job.first = first, job.std = std;
    job.target = view.buf, job.count = (size_t)(view.len / view.itemsize);
    Py_BEGIN_ALLOW_THREADS
    expand(key, &job.key);
    long useful = (long)((job.count + PIECE - 1) / PIECE);
    threads = threads < useful ? threads : useful;
    share_out(&job, threads < MOST_THREADS ? threads : MOST_THREADS);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&view);
    Py_RETURN_NONE;
}

/* For tests: the transform of chosen words, and the narrower kernel on a processor that has both. */

static PyObject *transform(PyObject *module, PyObject *args) {
    PyObject *given, *made;
    Py_buffer words, normals;
    if (!PyArg_ParseTuple(args, "OO", &given, &made)) return NULL;
    if (PyObject_GetBuffer(given, &words, PyBUF_C_CONTIGUOUS) != 0) return NULL;
    if (PyObject_GetBuffer(made, &normals, PyBUF_WRITABLE | PyBUF_C_CONTIGUOUS) != 0) {
        PyBuffer_Release(&words);
        return NULL;
    }
    int fits = words.len == normals.len && words.len % (8 * GROUP) == 0;
    if (fits) kernel->transform(words.buf, (size_t)words.len / (8 * GROUP), normals.buf);
    PyBuffer_Release(&words);
    PyBuffer_Release(&normals);
    if (fits) Py_RETURN_NONE;
    PyErr_SetString(PyExc_ValueError, "transform takes arrays of 64-bit words and float64, a multiple of 32 each");
    return NULL;
}

static const Kernel *widest(long bytes) {
    if (bytes >= 64 && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("vaes"))
        return &kernel64;
    if (__builtin_cpu_supports("aes") && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return &kernel32;
    return NULL;
}

static PyObject *use_width(PyObject *module, PyObject *args) {
    long bytes;
    if (!PyArg_ParseTuple(args, "l", &bytes)) return NULL;
    kernel = widest(bytes);
    return PyLong_FromLong(kernel == &kernel64 ? 64 : 32);
}

static PyMethodDef methods[] = {
    {"add", add, METH_VARARGS,
     "add(key, lane, first, array, std, threads): array += std * the normals from pair `first` on."},
    {"transform", transform, METH_VARARGS, "transform(words, normals): Box-Muller, pair by pair."},
    {"use_width", use_width, METH_VARARGS, "use_width(bytes): use vectors of at most so many bytes; the size used."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_normals", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__normals(void) {
    __builtin_cpu_init();
    kernel = widest(64);
    if (kernel) return PyModule_Create(&definition);
    PyErr_SetString(PyExc_ImportError, "compiled noise needs a processor with AES, AVX2 and FMA instructions");
    return NULL;
}
#endif
