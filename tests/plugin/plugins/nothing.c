/* SPDX-License-Identifier: Apache-2.0
 * A shared library that is no plugin. */
int nothing(void);
int nothing(void) { return 0; }
