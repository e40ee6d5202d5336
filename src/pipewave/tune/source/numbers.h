/* What the text of traced numbers calls, every number a double. What is divided by zero has no answer, as in Python:
   `bad` says so. */
#include <Python.h>
#include <math.h>
#include <string.h>

/* How many bits a whole number takes. */
static inline int bits(double x) {
  long long of;
  memcpy(&of, &x, 8);
  of = of >> 52 & 0x7ff;
  return of ? (int)of - 1022 : 0;
}
static inline double floored(double x) {
  double whole = (double)(long long)x;
  return whole - (whole > x);
}
static inline double least(double a, double b) { return b < a ? b : a; }
static inline double greatest(double a, double b) { return b > a ? b : a; }
static inline double over_(double a, double b, int *bad) {
  *bad |= b == 0;
  return a / b;
}
static inline double rest_(double a, double b, int *bad) { return a - b * floored(over_(a, b, bad)); }
#define over(a, b) over_(a, b, &bad)
#define quotient(a, b) floored(over_(a, b, &bad))
#define rest(a, b) rest_(a, b, &bad)
static inline double up(double a, double b) { return ldexp(a, (int)b); }
static inline double down(double a, double b) { return floored(ldexp(a, -(int)b)); }
static inline double both(double a, double b) { return (double)((long long)a & (long long)b); }
static inline double either(double a, double b) { return (double)((long long)a | (long long)b); }
static inline double one(double a, double b) { return (double)((long long)a ^ (long long)b); }
static inline double power_of_2(double x) { return ldexp(1.0, bits(floored(greatest(x, 1.0)) - 1)); }
