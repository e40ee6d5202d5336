/* The fastest on the short list of a launch's cell; `compiled_chooser` writes what stands before: sizes, counts of the
   configurations, their law, cells. A record of a configuration: number of its function, of its tile, blocks that an SM
   holds, then law and tile. */

/* The launches of a list that are nearest in size, and the share of each: how many they are. */
static int nearest(const double *v, const double *sizes, int s, int *near, double *share) {
  double x[SIZES + 1], total = 0;
  int found = 0;
  placed(v, x);
  for (int i = 0; i < s; i++) {
    double away = AWAY;
    for (int j = 0; j < SIZES; j++) away += fabs(x[j] - sizes[i * SIZES + j]);
    if (found == NEAREST && away >= share[found - 1]) continue;
    int at = found < NEAREST ? found++ : found - 1;
    for (; at > 0 && share[at - 1] > away; at--) {
      share[at] = share[at - 1];
      near[at] = near[at - 1];
    }
    share[at] = away;
    near[at] = i;
  }
  for (int i = 0; i < found; i++) total += share[i] = 1 / share[i];
  for (int i = 0; i < found; i++) share[i] /= total;
  return found;
}

/* Of short lists by cell, a tuple by octaves; records of all configurations, bytes; a launch, a tuple. */
static PyObject *choose(PyObject *self, PyObject *const *args, Py_ssize_t given) {
  if (given != 3 || !PyTuple_Check(args[2]) || PyTuple_GET_SIZE(args[2]) != INPUTS) Py_RETURN_NONE;
  double v[INPUTS + 1], w[6], best = INFINITY, tile = -1;
  for (int i = 0; i < INPUTS; i++) {
    v[i] = PyFloat_AsDouble(PyTuple_GET_ITEM(args[2], i));
    if (v[i] == -1 && PyErr_Occurred()) {
      PyErr_Clear();
      Py_RETURN_NONE;
    }
  }
  PyObject *listed = NULL;
  for (int i = 0; i < LEVELS && !listed; i++) {
    PyObject *cell = PyLong_FromLongLong(cell_of(v, octaves[i]));
    listed = PyDict_GetItem(PyTuple_GET_ITEM(args[0], i), cell);
    Py_DECREF(cell);
  }
  if (!listed) Py_RETURN_NONE;
  const double *records = (const double *)PyBytes_AS_STRING(args[1]);
  const double *at = (const double *)PyBytes_AS_STRING(listed);
  int n = (int)at[0], s = (int)at[1], near[NEAREST] = {0}, several = 1;
  const double *configs = at + 2, *factors = configs + n;
  double share[NEAREST] = {1};
  if (s > 1) several = nearest(v, factors + (long)s * n, s, near, share);
  long index = (long)configs[0];
  if (n > 1) for (int i = 0; i < n; i++) {
    const double *of = records + (long)configs[i] * RECORD;
    if (of[1] != tile) {
      if (!counts[(int)of[0]](v, of + 3 + LAW, w)) Py_RETURN_NONE;
      tile = of[1];
    }
    double factor = 0;
    for (int j = 0; j < several; j++) factor += share[j] * factors[(long)near[j] * n + i];
    double us = factor * law_us(w, of[2], of + 3);
    if (us < best) {
      best = us;
      index = (long)configs[i];
    }
  }
  return PyLong_FromLong(index);
}

static PyMethodDef methods[] = {{"choose", (PyCFunction)(void *)choose, METH_FASTCALL, ""}, {0}};
static struct PyModuleDef decide = {PyModuleDef_HEAD_INIT, "pipewave_decide", 0, -1, methods};
PyMODINIT_FUNC PyInit_pipewave_decide(void) { return PyModule_Create(&decide); }
