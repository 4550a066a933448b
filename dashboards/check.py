"""Parses dashboards with the pinned grafana-foundation-sdk, and demands that nothing of them is lost.

The SDK is made from the schemas of Grafana's own panels. It ignores fields that it does not know and
takes any value for the others; so what it writes again is compared with what it was given, and each
value with the type that the schema gives its field. Prints a line for each difference; exits with 1
if there is one.

usage: check.py DASHBOARD.json ...
"""

import enum
import json
import sys
import types
import typing

from grafana_foundation_sdk.cog import plugins, runtime
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard


def encoded(thing):
    """What the SDK makes of it again."""
    return json.loads(json.dumps(thing, cls=JSONEncoder))


def lost(ours, theirs, path):
    """Where `ours` holds something that `theirs` does not."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key, value in ours.items():
            # The SDK leaves a null out: to Grafana it is the same.
            if value is None and theirs.get(key) is None:
                continue
            if key not in theirs:
                yield f"{path}.{key}: not a field of the schema"
            else:
                yield from lost(value, theirs[key], f"{path}.{key}")
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for place, (value, other) in enumerate(zip(ours, theirs)):
            yield from lost(value, other, f"{path}[{place}]")
    elif ours != theirs or isinstance(ours, bool) != isinstance(theirs, bool):
        yield f"{path}: {ours!r} became {theirs!r}"


def fits(value, hint):
    """Whether `value`, as JSON gives it, is one of `hint`; what the schema leaves open fits always."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, one) for one in arguments)
    if origin is typing.Literal:
        return value in arguments
    if origin is list:
        return isinstance(value, list) and all(fits(one, arguments[0]) for one in value)
    if origin is dict:
        return isinstance(value, dict) and all(fits(one, arguments[1]) for one in value.values())
    if hint is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return value in [one.value for one in hint]
    if hasattr(hint, "from_json") and isinstance(value, dict):
        # The SDK takes some lists as they come.
        made = hint.from_json(value)
        return not any(unfit(made, "")) and not any(lost(value, encoded(made), ""))
    return isinstance(value, hint) if isinstance(hint, type) else True


def unfit(thing, path):
    """Where a field of `thing`, which the SDK made, has a value that its schema does not allow."""
    if isinstance(thing, list):
        for place, one in enumerate(thing):
            yield from unfit(one, f"{path}[{place}]")
    elif isinstance(thing, dict):
        for key, one in thing.items():
            yield from unfit(one, f"{path}.{key}")
    elif hasattr(thing, "to_json"):
        hints = typing.get_type_hints(type(thing))
        for name, value in vars(thing).items():
            if value is not None and not fits(value, hints.get(name, typing.Any)):
                yield f"{path}.{name}: {value!r} is none of {hints[name]}"
            yield from unfit(value, f"{path}.{name}")


def panels(dashboard):
    """All panels, those in rows that are folded too."""
    for panel in dashboard.get("panels", []):
        yield panel
        yield from panel.get("panels") or []


def check(file):
    with open(file, encoding="utf-8") as text:
        ours = json.load(text)
    for panel in panels(ours):
        # What a panel's options mean is checked only where the SDK knows its type.
        if panel["type"] != "row" and runtime.panelcfg_config(panel["type"]) is None:
            yield f"panel {panel['id']}: {panel['type']} is not a panel of Grafana's"
    dashboard = Dashboard.from_json(ours)
    yield from unfit(dashboard, "dashboard")
    yield from lost(ours, encoded(dashboard), "dashboard")


def main(files):
    if not files:
        sys.exit(__doc__)
    plugins.register_default_plugins()
    problems = [f"{file}: {problem}" for file in files for problem in check(file)]
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
