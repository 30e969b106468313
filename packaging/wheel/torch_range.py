"""The versions of torch that a wheel requires, for scikit-build-core.

TRAINKIT_PACKAGE_SERIES holds the series that the wheel has programs for ("2.11 2.12"); without it, that of build/.
"""

import os
import pathlib
import re


def requirement(series):
    """torch>=2.11,<2.16 for 2.11 to 2.15; series in between that are missing are excluded."""
    numbers = sorted(tuple(map(int, each.split("."))) for each in series)
    (major, first), (_, last) = numbers[0], numbers[-1]
    if first == last:
        return f"torch=={major}.{first}.*"
    missing = [f",!={major}.{minor}.*" for minor in range(first, last) if (major, minor) not in numbers]
    return f"torch>={major}.{first},<{major}.{last + 1}" + "".join(missing)


def built_with(source):
    cache = source / "build/CMakeCache.txt"
    folder = re.search(r"^Torch_DIR:[A-Z]+=(.*)$", cache.read_text() if cache.exists() else "", re.MULTILINE)
    if folder:
        version = pathlib.Path(folder[1], "TorchConfigVersion.cmake").read_text()
        return re.search(r'PACKAGE_VERSION "([0-9]+\.[0-9]+)', version)[1]
    return re.findall(r"^([0-9]+\.[0-9]+)", (source / "third_party/torch-versions.txt").read_text(), re.MULTILINE)[-1]


def dynamic_metadata(field, settings):
    assert field == "dependencies" and not settings
    series = os.environ.get("TRAINKIT_PACKAGE_SERIES", "").split()
    return [requirement(series or [built_with(pathlib.Path(__file__).resolve().parents[2])])]
