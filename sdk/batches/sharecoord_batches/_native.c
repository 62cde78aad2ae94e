/* Opens the records of Kafka's record batches (format v2), once they are decompressed.

   The bytes come from whoever wrote to the topic: nothing that they say is believed before it was
   compared with what is there. Every read is bounded by the end of the record, which is bounded by
   the end of the batch. What is allocated grows with the records that were found, never with a
   number that somebody wrote. What does not fit is a BrokenBatchError that says which record it was.

   The data may be a buffer that Python code can write to (another thread must not, meanwhile). So
   all objects are looked at first, then records are read and written without a call that could run
   Python code, and only then are objects made of what was found (`encode`); or every length is read
   anew, within its bounds (`columns`).

   records.py does the same without C, and says what the functions return; one suite tests both. */

#define Py_LIMITED_API 0x030b0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#define RECORD_BYTES_MIN 7
#define ROWS_AT_FIRST 64

typedef struct {
    const uint8_t *key, *value, *headers, *end;
    int64_t key_size, value_size; /* -1 = null */
    int64_t delta, timestamp, header_count;
} record_t;

/* The records of one batch that are wanted: those with deltas in [first, last]. */
typedef struct {
    Py_buffer view;
    const uint8_t *at, *end;
    int64_t base, count, last_delta, first_timestamp, append_timestamp, first, last;
    int64_t previous_delta, row;
} batch_t;

typedef struct {
    PyObject *error; /* BrokenBatchError */
} state_t;

static int varint(const uint8_t **at, const uint8_t *end, int64_t *out) {
    const uint8_t *p = *at;
    uint64_t found = 0;
    for (int shift = 0; shift < 70; shift += 7) {
        if (p >= end) return -1;
        uint8_t byte = *p++;
        if (shift == 63 && byte > 1) return -1;
        found |= (uint64_t)(byte & 0x7F) << shift;
        if (byte < 0x80) {
            *at = p;
            *out = (int64_t)(found >> 1) ^ -(int64_t)(found & 1);
            return 0;
        }
    }
    return -1;
}

/* A length and so many bytes; any negative length is a null, as Kafka's own reader has it. */
static int sized(const uint8_t **at, const uint8_t *end, const uint8_t **out, int64_t *size) {
    if (varint(at, end, size)) return -1;
    *out = *at;
    if (*size < 0) {
        *size = -1;
        return 0;
    }
    if (*size > end - *at) return -1;
    *at += *size;
    return 0;
}

/* Reads the fields from the key on. Returns what is wrong with the record, or NULL. */
static const char *read_fields(const uint8_t *p, record_t *out) {
    const uint8_t *end = out->end, *bytes;
    int64_t size;
    if (sized(&p, end, &out->key, &out->key_size)) return "its key is longer than the record";
    if (sized(&p, end, &out->value, &out->value_size)) return "its value is longer than the record";
    if (varint(&p, end, &out->header_count) || out->header_count < 0 || out->header_count > end - p)
        return "its number of headers is not possible";
    out->headers = p;
    for (int64_t i = 0; i < out->header_count; i++) {
        if (sized(&p, end, &bytes, &size)) return "the name of a header is longer than the record";
        if (size < 0) return "the name of a header is null";
        if (sized(&p, end, &bytes, &size)) return "the value of a header is longer than the record";
    }
    return p == end ? NULL : "it has bytes behind its headers";
}

/* Reads the next record that is wanted; the others have their offsets looked at alone.
   1 = there is one, 0 = no more, -1 = `why` says what is wrong (NULL: bytes are left behind the last). */
static int next_wanted(batch_t *batch, record_t *out, const char **why) {
    int64_t length, delta_timestamp;
    while (batch->row < batch->count && batch->previous_delta < batch->last) {
        const uint8_t *p = batch->at;
        *why = "its length can not be read";
        if (varint(&p, batch->end, &length)) return -1;
        *why = "its length is not that of a record";
        if (length < RECORD_BYTES_MIN - 1 || length > batch->end - p) return -1;
        out->end = p + length;
        p++; /* attributes: none is defined */
        *why = "its timestamp can not be read";
        if (varint(&p, out->end, &delta_timestamp)) return -1;
        *why = "its offset can not be read";
        if (varint(&p, out->end, &out->delta)) return -1;
        *why = "its offset is not between those of its neighbours";
        if (out->delta <= batch->previous_delta || out->delta > batch->last_delta) return -1;
        if (out->delta > batch->last) return 0;
        int is_wanted = out->delta >= batch->first;
        if (is_wanted && (*why = read_fields(p, out))) return -1;
        batch->at = out->end;
        batch->previous_delta = out->delta;
        batch->row++;
        if (!is_wanted) continue;
        out->timestamp = batch->append_timestamp >= 0
            ? batch->append_timestamp
            : (int64_t)((uint64_t)batch->first_timestamp + (uint64_t)delta_timestamp);
        return 1;
    }
    *why = NULL;
    return batch->row == batch->count && batch->at != batch->end ? -1 : 0;
}

static PyObject *error_of(PyObject *module) { return ((state_t *)PyModule_GetState(module))->error; }

static void refuse(PyObject *error, const batch_t *batch, const char *why) {
    if (why)
        PyErr_Format(error, "record %lld of the batch at offset %lld: %s", (long long)batch->row,
                     (long long)batch->base, why);
    else
        PyErr_Format(error, "the batch at offset %lld has bytes behind its last record", (long long)batch->base);
}

/* Takes the batch of a tuple (data, position, row, previous_delta, end, count, base_offset,
   last_delta, first_timestamp, append_timestamp, first, last); see records.py. The buffer of an
   object that was not taken is NULL. */
static int take_batch(PyObject *error, PyObject *part, batch_t *out) {
    PyObject *data;
    Py_ssize_t position, end;
    long long row, previous, count, base, last_delta, first_ts, append_ts, first, last;
    memset(out, 0, sizeof(*out));
    if (!PyTuple_Check(part)) {
        PyErr_SetString(PyExc_TypeError, "a part is a tuple");
        return -1;
    }
    if (!PyArg_ParseTuple(part, "OnLLnLLLLLLL", &data, &position, &row, &previous, &end, &count, &base, &last_delta,
                          &first_ts, &append_ts, &first, &last))
        return -1;
    if (PyObject_GetBuffer(data, &out->view, PyBUF_SIMPLE)) {
        memset(&out->view, 0, sizeof(out->view));
        return -1;
    }
    if (position < 0 || position > end || end > out->view.len || row < 0 || count < row || previous < -1
        || count - row > (end - position) / RECORD_BYTES_MIN || base < 0 || last_delta < 0
        || last_delta > INT32_MAX || base > INT64_MAX - last_delta || first < 0 || first > last) {
        PyErr_Format(error, "the batch at offset %lld can not have %lld records in %zd bytes", base, count,
                     end - position);
        return -1;
    }
    out->at = (const uint8_t *)out->view.buf + position;
    out->end = (const uint8_t *)out->view.buf + end;
    out->base = base;
    out->count = count;
    out->row = row;
    out->previous_delta = previous;
    out->last_delta = last_delta;
    out->first_timestamp = first_ts;
    out->append_timestamp = append_ts;
    out->first = first - base;
    out->last = last - base;
    return 0;
}

static PyObject *bytes_or_none(const uint8_t *at, int64_t size) {
    if (size < 0) return Py_NewRef(Py_None);
    return PyBytes_FromStringAndSize((const char *)at, (Py_ssize_t)size);
}

/* Their lengths are read anew: somebody may have written to the buffer since. */
static PyObject *headers_of(const record_t *record) {
    PyObject *found = PyList_New((Py_ssize_t)record->header_count);
    const uint8_t *p = record->headers, *name, *value;
    int64_t name_size, value_size;
    if (!found) return NULL;
    for (int64_t i = 0; i < record->header_count; i++) {
        if (sized(&p, record->end, &name, &name_size) || name_size < 0 || sized(&p, record->end, &value, &value_size)) {
            PyErr_SetString(PyExc_BufferError, "a batch was written to while its records were read");
            Py_DECREF(found);
            return NULL;
        }
        PyObject *text = PyUnicode_DecodeUTF8((const char *)name, (Py_ssize_t)name_size, "surrogateescape");
        PyObject *content = bytes_or_none(value, value_size);
        PyObject *pair = text && content ? PyTuple_Pack(2, text, content) : NULL;
        Py_XDECREF(text);
        Py_XDECREF(content);
        if (!pair || PyList_SetItem(found, (Py_ssize_t)i, pair)) {
            Py_DECREF(found);
            return NULL;
        }
    }
    return found;
}

static int append(PyObject *list, PyObject *item) {
    if (!item) return -1;
    int failed = PyList_Append(list, item);
    Py_DECREF(item);
    return failed;
}

/* columns(part) -> (deltas, timestamps, keys, values, headers) */
static PyObject *columns(PyObject *self, PyObject *part) {
    batch_t batch;
    record_t record;
    const char *why = NULL;
    int any_key = 0, more;
    PyObject *deltas = PyList_New(0), *timestamps = PyList_New(0), *keys = PyList_New(0), *values = PyList_New(0);
    PyObject *headers = PyDict_New(), *result = NULL;
    memset(&batch, 0, sizeof(batch));
    if (!deltas || !timestamps || !keys || !values || !headers) goto out;
    if (take_batch(error_of(self), part, &batch)) goto out;
    while ((more = next_wanted(&batch, &record, &why)) > 0) {
        if (append(deltas, PyLong_FromLongLong(record.delta)) || append(timestamps, PyLong_FromLongLong(record.timestamp))
            || append(keys, bytes_or_none(record.key, record.key_size))
            || append(values, bytes_or_none(record.value, record.value_size)))
            goto out;
        any_key |= record.key_size >= 0;
        if (record.header_count) {
            PyObject *index = PyLong_FromSsize_t(PyList_Size(values) - 1), *found = headers_of(&record);
            int failed = !index || !found || PyDict_SetItem(headers, index, found);
            Py_XDECREF(index);
            Py_XDECREF(found);
            if (failed) goto out;
        }
    }
    if (more)
        refuse(error_of(self), &batch, why);
    else
        result = PyTuple_Pack(5, deltas, timestamps, any_key ? keys : Py_None, values, headers);
out:
    if (batch.view.obj) PyBuffer_Release(&batch.view);
    Py_XDECREF(deltas);
    Py_XDECREF(timestamps);
    Py_XDECREF(keys);
    Py_XDECREF(values);
    Py_XDECREF(headers);
    return result;
}

/* Whether a record has a header whose name begins so. Its fields were read before. */
static int has_name(const record_t *record, const char *beginning, int64_t size) {
    const uint8_t *p = record->headers, *bytes;
    int64_t name_size, value_size;
    for (int64_t i = 0; i < record->header_count; i++) {
        if (sized(&p, record->end, &bytes, &name_size)) return 0;
        if (name_size >= size && !memcmp(bytes, beginning, size)) return 1;
        if (sized(&p, record->end, &bytes, &value_size)) return 0;
    }
    return 0;
}

/* has_header(part, beginning) -> bool */
static PyObject *has_header(PyObject *self, PyObject *args) {
    PyObject *part;
    const char *beginning, *why = NULL;
    Py_ssize_t size;
    batch_t batch;
    record_t record;
    int found = 0;
    if (!PyArg_ParseTuple(args, "Oy#", &part, &beginning, &size)) return NULL;
    if (!take_batch(error_of(self), part, &batch))
        while (!found && next_wanted(&batch, &record, &why) > 0) found = has_name(&record, beginning, size);
    if (batch.view.obj) PyBuffer_Release(&batch.view);
    return PyErr_Occurred() ? NULL : PyBool_FromLong(found);
}

/* -- columns in protobuf's encoding --------------------------------------------------------- */

typedef struct {
    long deltas, timestamps, keys, values, null_keys, null_values, headers;
    long index, entries, name, value; /* of the messages behind `headers` */
} fields_t;

typedef struct {
    record_t *rows;
    int64_t *offsets;
    Py_ssize_t used, room;
} rows_t;

static int varint_size(uint64_t number) {
    int size = 1;
    while (number > 0x7F) number >>= 7, size++;
    return size;
}

static uint8_t *put_varint(uint8_t *out, uint64_t number) {
    while (number > 0x7F) {
        *out++ = (uint8_t)(number | 0x80);
        number >>= 7;
    }
    *out++ = (uint8_t)number;
    return out;
}

static uint8_t *put_head(uint8_t *out, long field, uint64_t size) {
    return put_varint(put_varint(out, (uint64_t)field << 3 | 2), size);
}

static uint64_t field_size(long field, uint64_t size) {
    return varint_size((uint64_t)field << 3 | 2) + varint_size(size) + size;
}

/* How many bytes from `p` on are one character of UTF-8; 0 = none is. */
static int character(const uint8_t *p, int64_t left) {
    uint8_t a = *p;
    if (a < 0x80) return 1;
    int size = a >= 0xC2 && a <= 0xDF ? 2 : a >= 0xE0 && a <= 0xEF ? 3 : a >= 0xF0 && a <= 0xF4 ? 4 : 0;
    if (!size || left < size) return 0;
    if (a == 0xE0 ? p[1] < 0xA0 : a == 0xED ? p[1] > 0x9F : a == 0xF0 ? p[1] < 0x90 : a == 0xF4 ? p[1] > 0x8F : 0) return 0;
    for (int i = 1; i < size; i++)
        if ((p[i] & 0xC0) != 0x80) return 0;
    return size;
}

/* A name of a header as text: \xff for each byte that is not UTF-8. `out` NULL = only its size. */
static uint64_t put_name(uint8_t *out, const uint8_t *name, int64_t size) {
    static const char digits[] = "0123456789abcdef";
    uint64_t done = 0;
    for (int64_t i = 0; i < size;) {
        int n = character(name + i, size - i);
        if (out && n) memcpy(out + done, name + i, n);
        if (out && !n) {
            uint8_t escape[4] = {'\\', 'x', (uint8_t)digits[name[i] >> 4], (uint8_t)digits[name[i] & 15]};
            memcpy(out + done, escape, 4);
        }
        done += n ? n : 4;
        i += n ? n : 1;
    }
    return done;
}

static uint64_t entry_size(const fields_t *f, uint64_t name_size, int64_t value_size) {
    return field_size(f->name, name_size) + (value_size < 0 ? 0 : field_size(f->value, value_size));
}

/* The size of a record's RecordHeaders; `out` not NULL = writes it, without its own tag. */
static uint64_t put_headers(const fields_t *f, const record_t *record, uint64_t index, uint8_t *out) {
    const uint8_t *p = record->headers, *name, *value;
    int64_t name_bytes, value_size;
    uint64_t size = index ? varint_size((uint64_t)f->index << 3) + varint_size(index) : 0;
    if (out && index) out = put_varint(put_varint(out, (uint64_t)f->index << 3), index);
    for (int64_t i = 0; i < record->header_count; i++) {
        if (sized(&p, record->end, &name, &name_bytes) || sized(&p, record->end, &value, &value_size)) return size; /* never: they were read before */
        uint64_t name_size = put_name(NULL, name, name_bytes), entry = entry_size(f, name_size, value_size);
        size += field_size(f->entries, entry);
        if (!out) continue;
        out = put_head(put_head(out, f->entries, entry), f->name, name_size);
        out += put_name(out, name, name_bytes);
        if (value_size < 0) continue;
        out = put_head(out, f->value, value_size);
        memcpy(out, value, value_size);
        out += value_size;
    }
    return size;
}

/* Makes room for one more row, at least. */
static int reserve(rows_t *rows) {
    if (rows->used < rows->room) return 0;
    Py_ssize_t room = rows->room ? rows->room * 2 : ROWS_AT_FIRST;
    if ((size_t)room > PY_SSIZE_T_MAX / sizeof(record_t)) return -1;
    record_t *records = PyMem_Realloc(rows->rows, room * sizeof(record_t));
    if (!records) return -1;
    rows->rows = records;
    int64_t *offsets = PyMem_Realloc(rows->offsets, room * sizeof(int64_t));
    if (!offsets) return -1;
    rows->offsets = offsets;
    rows->room = room;
    return 0;
}

/* Reads the wanted records of a batch; they come behind those that are there. */
static int read_rows(PyObject *error, batch_t *batch, rows_t *rows) {
    Py_ssize_t start = rows->used;
    const char *why = NULL;
    for (;;) {
        if (reserve(rows)) {
            PyErr_NoMemory();
            return -1;
        }
        int more = next_wanted(batch, &rows->rows[rows->used], &why);
        if (more < 0) {
            refuse(error, batch, why);
            return -1;
        }
        if (!more) break;
        rows->offsets[rows->used] = batch->base + rows->rows[rows->used].delta;
        rows->used++;
    }
    int64_t *offsets = rows->offsets;
    if (start == 0 || start == rows->used) return 0;
    if (offsets[start] <= offsets[start - 1] || offsets[rows->used - 1] - offsets[0] > (int64_t)UINT32_MAX) {
        PyErr_Format(error, "records %lld and %lld are not in order of offset, or too far apart",
                     (long long)offsets[0], (long long)offsets[start]);
        return -1;
    }
    return 0;
}

typedef struct {
    uint64_t deltas, timestamps, keys, values, headers, payload, null_keys, null_values;
    int contiguous;
} sizes_t;

static void measure(const fields_t *f, const rows_t *rows, sizes_t *s) {
    *s = (sizes_t){.contiguous = 1};
    for (Py_ssize_t i = 0; i < rows->used; i++) {
        const record_t *r = &rows->rows[i];
        uint64_t delta = (uint64_t)(rows->offsets[i] - rows->offsets[0]);
        uint64_t key = r->key_size < 0 ? 0 : r->key_size, value = r->value_size < 0 ? 0 : r->value_size;
        s->contiguous &= delta == (uint64_t)i;
        s->deltas += varint_size(delta);
        s->timestamps += varint_size((uint64_t)r->timestamp);
        s->keys += field_size(f->keys, key);
        s->values += field_size(f->values, value);
        s->payload += key + value;
        s->null_keys += r->key_size < 0;
        s->null_values += r->value_size < 0;
        if (r->header_count) s->headers += field_size(f->headers, put_headers(f, r, i, NULL));
    }
}

static uint8_t *put_bits(uint8_t *out, long field, const rows_t *rows, int keys) {
    Py_ssize_t size = (rows->used + 7) / 8;
    out = put_head(out, field, size);
    memset(out, 0, size);
    for (Py_ssize_t i = 0; i < rows->used; i++)
        if ((keys ? rows->rows[i].key_size : rows->rows[i].value_size) < 0) out[i >> 3] |= 1 << (i & 7);
    return out + size;
}

static uint8_t *put_entry(uint8_t *out, long field, const uint8_t *bytes, int64_t size) {
    out = put_head(out, field, size < 0 ? 0 : size);
    if (size > 0) {
        memcpy(out, bytes, size);
        out += size;
    }
    return out;
}

/* The columns, in the order of their numbers in proto/sharecoord/v1/share_types.proto. */
static PyObject *put_columns(const fields_t *f, const rows_t *rows, const sizes_t *s) {
    uint64_t bits = (rows->used + 7) / 8;
    int has_keys = s->null_keys < (uint64_t)rows->used;
    uint64_t size = field_size(f->timestamps, s->timestamps) + s->values + s->headers
        + (s->contiguous ? 0 : field_size(f->deltas, s->deltas)) + (has_keys ? s->keys : 0)
        + (has_keys && s->null_keys ? field_size(f->null_keys, bits) : 0)
        + (s->null_values ? field_size(f->null_values, bits) : 0);
    PyObject *result = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size);
    if (!result) return NULL;
    uint8_t *out = (uint8_t *)PyBytes_AsString(result);
    const record_t *r = rows->rows, *end = r + rows->used;
    if (!s->contiguous) {
        out = put_head(out, f->deltas, s->deltas);
        for (Py_ssize_t i = 0; i < rows->used; i++) out = put_varint(out, (uint64_t)(rows->offsets[i] - rows->offsets[0]));
    }
    out = put_head(out, f->timestamps, s->timestamps);
    for (r = rows->rows; r < end; r++) out = put_varint(out, (uint64_t)r->timestamp);
    if (has_keys)
        for (r = rows->rows; r < end; r++) out = put_entry(out, f->keys, r->key, r->key_size);
    for (r = rows->rows; r < end; r++) out = put_entry(out, f->values, r->value, r->value_size);
    if (has_keys && s->null_keys) out = put_bits(out, f->null_keys, rows, 1);
    if (s->null_values) out = put_bits(out, f->null_values, rows, 0);
    if (s->headers)
        for (r = rows->rows; r < end; r++) {
            if (!r->header_count) continue;
            uint64_t index = r - rows->rows, length = put_headers(f, r, index, NULL);
            out = put_head(out, f->headers, length);
            out += put_headers(f, r, index, out);
        }
    return result;
}

/* All columns, once each batch was taken. */
static PyObject *encode_batches(PyObject *error, const fields_t *f, batch_t *batches, Py_ssize_t count) {
    PyObject *body = NULL, *cursors = NULL, *cursor, *result = NULL;
    rows_t rows = {0};
    sizes_t sizes;
    for (Py_ssize_t i = 0; i < count; i++)
        if (read_rows(error, &batches[i], &rows)) goto out;
    if (!rows.used) {
        PyErr_SetString(error, "the batches have none of the records that are wanted");
        goto out;
    }
    measure(f, &rows, &sizes);
    if (!(body = put_columns(f, &rows, &sizes)) || !(cursors = PyList_New(count))) goto out;
    for (Py_ssize_t i = 0; i < count; i++) {
        Py_ssize_t position = batches[i].at - (const uint8_t *)batches[i].view.buf;
        cursor = Py_BuildValue("(nLL)", position, (long long)batches[i].row, (long long)batches[i].previous_delta);
        if (!cursor || PyList_SetItem(cursors, i, cursor)) goto out;
    }
    result = Py_BuildValue("(OnLLKO)", body, rows.used, (long long)rows.offsets[0],
                           (long long)rows.offsets[rows.used - 1], (unsigned long long)sizes.payload, cursors);
out:
    Py_XDECREF(body);
    Py_XDECREF(cursors);
    PyMem_Free(rows.rows);
    PyMem_Free(rows.offsets);
    return result;
}

/* encode(parts, fields) -> (columns, rows, first offset, last offset, payload bytes, cursors) */
static PyObject *encode(PyObject *self, PyObject *args) {
    PyObject *given, *parts, *result = NULL;
    fields_t f;
    if (!PyArg_ParseTuple(args, "O(lllllllllll)", &given, &f.deltas, &f.timestamps, &f.keys, &f.values, &f.null_keys,
                          &f.null_values, &f.headers, &f.index, &f.entries, &f.name, &f.value))
        return NULL;
    /* A tuple of our own: nobody takes a part away while another one is looked at. */
    if (!(parts = PySequence_Tuple(given))) return NULL;
    Py_ssize_t count = PyTuple_Size(parts), taken = 0;
    batch_t *batches = PyMem_Calloc(count + 1, sizeof(batch_t));
    if (!batches) PyErr_NoMemory();
    while (batches && taken < count && !take_batch(error_of(self), PyTuple_GetItem(parts, taken), &batches[taken]))
        taken++;
    if (batches && taken == count) result = encode_batches(error_of(self), &f, batches, count);
    /* The one that was refused may have its buffer, too. */
    for (Py_ssize_t i = 0; batches && i < count && i <= taken; i++)
        if (batches[i].view.obj) PyBuffer_Release(&batches[i].view);
    PyMem_Free(batches);
    Py_DECREF(parts);
    return result;
}

static int start(PyObject *module) {
    PyObject *errors = PyImport_ImportModule("sharecoord_batches.errors");
    if (!errors) return -1;
    state_t *state = PyModule_GetState(module);
    state->error = PyObject_GetAttrString(errors, "BrokenBatchError");
    Py_DECREF(errors);
    return state->error ? 0 : -1;
}

static int traverse(PyObject *module, visitproc visit, void *arg) {
    Py_VISIT(((state_t *)PyModule_GetState(module))->error);
    return 0;
}

static int clear(PyObject *module) {
    Py_CLEAR(((state_t *)PyModule_GetState(module))->error);
    return 0;
}

static void free_module(void *module) { clear(module); }

static PyMethodDef methods[] = {
    {"columns", columns, METH_O, "See records.columns."},
    {"encode", encode, METH_VARARGS, "See records.encode."},
    {"has_header", has_header, METH_VARARGS, "See records.has_header."},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, start},
    {0, NULL},
};

static struct PyModuleDef module = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "_native",
    .m_size = sizeof(state_t),
    .m_methods = methods,
    .m_slots = slots,
    .m_traverse = traverse,
    .m_clear = clear,
    .m_free = free_module,
};

PyMODINIT_FUNC PyInit__native(void) { return PyModuleDef_Init(&module); }
