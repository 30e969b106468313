"""Runs scripts of this folder, each in a forked copy of one Python that has already imported what they import.

usage: serve.py DESCRIPTOR < REQUESTS

Each line of stdin is a JSON array: script, arguments as one line of a shell, file for stdout, file for stderr. After
each script, its exit status is written as a line to the file descriptor DESCRIPTOR.
"""
import ast
import json
import os
import runpy
import shlex
import sys
import traceback


def import_modules(script):
    """Imports the modules that the script imports first. A missing one is the script's error, not ours."""
    for statement in ast.parse(open(script).read()).body:
        if not isinstance(statement, (ast.Import, ast.ImportFrom)):
            continue
        try:
            exec(compile(ast.Module([statement], []), script, "exec"), {})
        except Exception:
            return


def run(script, arguments, out, err):
    for path, descriptor in (out, 1), (err, 2):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), descriptor)
    sys.argv = [script] + shlex.split(arguments)
    try:
        runpy.run_path(script, run_name="__main__")
        status = 0
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def main():
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    for line in sys.stdin:
        script, arguments, out, err = json.loads(line)
        import_modules(script)
        child = os.fork()
        if child == 0:
            run(script, arguments, out, err)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        os.write(int(sys.argv[1]), f"{status}\n".encode())


main()
