# SPDX-License-Identifier: Apache-2.0
"""What the parity tests of templates share: our driver, and jinja2 as transformers sets it up."""
import json
import re
import subprocess

from transformers.utils.chat_template_utils import _compile_jinja_template


class Driver:
    def __init__(self, path):
        self.process = subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def render(self, template, context=None, **more):
        request = json.dumps({"template": template, "context": context, **more}) + "\n"
        self.process.stdin.write(request.encode())
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the driver ended at {template!r} with {context!r}")
        return json.loads(line)


def reference(template, context):
    """The text, or the exception."""
    try:
        return _compile_jinja_template(template).render(**context), None
    except Exception as error:  # noqa: BLE001  (whatever Python raises is an error of the template)
        return None, error


# What only this interpreter refuses.
REFUSALS = ("a complex number", "the operator % on a text", "beyond 2^63", "the text of a value of type", "the format field")


class Comparison:
    """Counts cases; a difference is printed, and `failed` is the exit status."""

    def __init__(self, driver):
        self.driver = Driver(driver)
        self.cases = self.errors = self.refusals = self.failed = 0

    def check(self, kind, template, context):
        text, error = reference(template, context)
        got = self.driver.render(template, context)
        if text is not None and re.search(r" at 0x[0-9a-f]{6}", text):
            return got  # the text of an object of Python
        self.cases += 1
        self.errors += error is not None
        if got.get("unsupported") and (error is not None or any(refusal in got["error"] for refusal in REFUSALS)):
            self.refusals += 1
            return got
        if (error is not None and "error" in got) or (error is None and got.get("text") == text):
            return got
        self.failed += 1
        if self.failed <= 40:
            print(f"{kind}: {template!r}\n  expected {text if error is None else repr(error)!r}\n  got      {got.get('text', got.get('error'))!r}")
        return got

    def finish(self):
        print(f"{self.cases} cases, {self.errors} of them errors, {self.refusals} refused, {self.failed} differ")
        return self.failed > 0 or self.cases == 0
