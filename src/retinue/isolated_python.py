"""Start Python interpreters that import nothing from the current folder.

An interpreter that is started with `-m`, or with a PYTHONPATH that has an empty or relative entry, imports from the
current folder first. That folder may be a repository that somebody else wrote. Every interpreter that Retinue starts
therefore goes through this module: with `-I`, Python ignores the current folder, all PYTHON* variables and the user's
site-packages. The new interpreter searches where this process does, in the same order.

This file is also the program that such an interpreter starts with. It imports only `os` and `sys`, which Python itself
has loaded before: nothing else may be imported until the current folder is out of the search path.
"""

import os
import sys

_PACKAGE_FOLDER = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))  # noqa: PTH120  (see above)
_STANDARD_LIBRARY = os.path.dirname(os.__file__)  # noqa: PTH120


def module_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module like `python -m`, but isolated."""
    search_path = os.pathsep.join([_PACKAGE_FOLDER, *_safe_search_path()])
    return [sys.executable, "-I", __file__, search_path, module, *arguments]


def script_command(script: str, *arguments: str) -> list[str]:
    """Return the command that runs a file that needs only the standard library."""
    return [sys.executable, "-I", "-S", script, *arguments]


def inherited_environment(
    names: tuple[str, ...] | None = None, prefixes: tuple[str, ...] = ()
) -> dict[str, str]:
    """Return variables of this process for a new interpreter, without those that change how Python works.

    Args:
        names: The variables to keep; by default all.
        prefixes: Also keep variables whose names begin with one of these.
    """
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("PYTHON") and (names is None or name in names or name.startswith(prefixes))
    }


def remove_current_folder() -> None:
    """Stop importing from the current folder in this process.

    Python itself put it there, because of `-m` or of a relative entry of PYTHONPATH. An absolute entry of PYTHONPATH
    stays, even if it names the current folder.
    """
    sys.path[:] = _safe_search_path()


def relative_entries(python_path: str) -> list[str]:
    """Return the entries of a PYTHONPATH that depend on the current folder; an empty one is the folder itself."""
    return (
        [entry for entry in python_path.split(os.pathsep) if not entry.startswith("/")] if python_path else []
    )


def _safe_search_path() -> list[str]:
    if sys.flags.isolated:
        return [entry for entry in sys.path if entry.startswith("/")]
    try:
        current_folder = os.getcwd()  # noqa: PTH109
    except OSError:  # the folder was removed, so nothing can be imported from it
        current_folder = ""
    python_path = os.environ.get("PYTHONPATH", "")
    own_entries = {_PACKAGE_FOLDER, _STANDARD_LIBRARY}
    absolute_entries = set(python_path.split(os.pathsep))
    unsafe = {current_folder}
    unsafe |= {os.path.normpath(f"{current_folder}/{entry}") for entry in relative_entries(python_path)}
    return [
        entry
        for entry in sys.path
        if entry.startswith("/") and (entry in own_entries | absolute_entries or entry not in unsafe)
    ]


def _run_module(arguments: list[str]) -> None:
    """Run the module that `module_command` named, as the main program."""
    import runpy  # noqa: PLC0415  (only here)

    search_path, module, *module_arguments = arguments
    inherited = search_path.split(os.pathsep)
    sys.path[:] = [*inherited, *(entry for entry in sys.path if entry not in inherited)]
    sys.argv[:] = [module, *module_arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _run_module(sys.argv[1:])
