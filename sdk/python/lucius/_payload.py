"""Decodes payloads for handlers that name what they take."""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from collections.abc import Mapping as AbstractMapping
from collections.abc import Sequence as AbstractSequence
from typing import Any, Callable, Dict, List, Literal, Set, TypeVar, Union

from .errors import Final, LuciusError

_KINDS = {bool: "a boolean", int: "an integer", float: "a number", str: "a string", type(None): "null"}
# The type of X | Y, from Python 3.10 on.
_UNIONS = (Union, getattr(types, "UnionType", Union))
# What may stand around a type; typing_extensions has its own of some.
_AROUND = ("Required", "NotRequired", "ReadOnly", "Final")
_ALIAS: Any = getattr(typing, "TypeAliasType", ())  # From Python 3.12 on.
_ARRAYS = (list, tuple, AbstractSequence)
_OBJECTS = (dict, AbstractMapping)


class _Wrong(Exception):
    """What is wrong with a payload, and where."""

    def __init__(self, pointer: str, what: str) -> None:
        super().__init__(f"{pointer}: {what}" if pointer else what)


def decoder(of: Any) -> Callable[[Any], Any]:
    """The function that decodes a payload: for a dataclass or a TypedDict by its annotations, else as given.

    It raises :class:`Final` for one that does not fit: another attempt would get the same.
    An annotation that no value of JSON fits is a TypeError.
    """
    if _declared(of):
        _check(of, "", set())  # It is wrong now rather than with the first payload.

    def decode(payload: Any) -> Any:
        try:
            return _decoded(of, payload, "") if _declared(of) else of(payload)
        except LuciusError:
            raise
        except Exception as error:
            if _declared(of) and not isinstance(error, _Wrong):
                raise
            raise Final("payload_invalid", str(error) or type(error).__name__) from error
    return decode


def _declared(of: Any) -> bool:
    return isinstance(of, type) and dataclasses.is_dataclass(of) or _is_typed_dict(of)


def _is_typed_dict(of: Any) -> bool:
    return isinstance(of, type) and issubclass(of, dict) and hasattr(of, "__total__")


def _hints(of: Any) -> Dict[str, Any]:
    """The annotations of the fields that a payload may have."""
    hints = typing.get_type_hints(of)
    return hints if _is_typed_dict(of) else {field.name: hints[field.name] for field in dataclasses.fields(of) if field.init}


def _plain(of: Any) -> Any:
    """The type that a NewType, an alias or a qualifier such as NotRequired stands for."""
    while True:
        if hasattr(of, "__supertype__"):
            of = of.__supertype__
        elif isinstance(of, _ALIAS):
            of = of.__value__
        elif getattr(typing.get_origin(of), "_name", "") in _AROUND:
            of, = typing.get_args(of)
        else:
            return of


def _check(of: Any, at: str, seen: Set[Any]) -> None:
    """Raise a TypeError for a type that _decoded does not know: it would pass any value for one of it."""
    if isinstance(of, typing.ForwardRef) or isinstance(of, _ALIAS) and of in seen:
        return  # An alias that contains itself.
    if isinstance(of, _ALIAS):
        seen.add(of)
    of = _plain(of)
    origin, args = typing.get_origin(of), typing.get_args(of)
    kind = origin or of
    if origin is Literal or kind in (Any, object) or kind in _KINDS or isinstance(kind, TypeVar):
        return
    if _declared(of):
        if of not in seen:  # It may contain itself.
            seen.add(of)
            for name, hint in _hints(of).items():
                _check(hint, f"{of.__name__}.{name}", seen)
    elif kind in _OBJECTS and args and _plain(args[0]) not in (str, Any) and typing.get_origin(_plain(args[0])) is not Literal:
        raise TypeError(f"{at} has keys of type {_name(args[0])}, but those of JSON are strings: annotate them as str")
    elif origin in _UNIONS or kind in _ARRAYS or kind in _OBJECTS:
        for arg in args:
            if arg is not Ellipsis:
                _check(arg, at, seen)
    elif not (isinstance(kind, type) and issubclass(kind, enum.Enum)):
        raise TypeError(f"{at} has the type {_name(of)}, which JSON does not have: annotate it as what the payload has, such as str, "
                        "or give payload= a function that makes it")


def _decoded(of: Any, value: Any, at: str) -> Any:
    """The value as the type asks for it. Raises _Wrong."""
    of = _plain(of)
    origin, args = typing.get_origin(of), typing.get_args(of)
    if origin in _UNIONS:
        return _one_of(args, value, at)
    if origin is Literal:
        if not any(value == one and _is(value, type(one)) and _is(one, type(value)) for one in args):
            raise _Wrong(at, f"must be one of {', '.join(map(repr, args))}")
        return value
    if _declared(of):
        return _fields(of, value, at)
    kind = origin or of
    if kind in _ARRAYS:
        if not _is(value, list):
            raise _Wrong(at, "must be an array")
        items: List[Any] = value
        if kind is tuple and args and args[-1] is not Ellipsis:
            if len(items) != len(args):
                raise _Wrong(at, f"must have {len(args)} items")
            return tuple(_decoded(arg, item, f"{at}/{i}") for i, (arg, item) in enumerate(zip(args, items)))
        each = [_decoded(args[0] if args else Any, item, f"{at}/{i}") for i, item in enumerate(items)]
        return tuple(each) if kind is tuple else each
    if kind in _OBJECTS:
        if not _is(value, dict):
            raise _Wrong(at, "must be an object")
        members: Dict[str, Any] = value
        return {name: _decoded(args[1] if args else Any, one, _under(at, name)) for name, one in members.items()}
    if kind in _KINDS:
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        if type(value) is not kind:
            raise _Wrong(at, f"must be {_KINDS[kind]}")
    elif isinstance(kind, type) and issubclass(kind, enum.Enum):
        try:
            return kind(value)
        except ValueError:
            raise _Wrong(at, f"must be one of {', '.join(repr(one.value) for one in kind)}") from None
    return value


def _one_of(args: Any, value: Any, at: str) -> Any:
    if value is None and type(None) in args:
        return None
    others = [arg for arg in args if arg is not type(None)]
    for arg in others:
        try:
            return _decoded(arg, value, at)
        except _Wrong:
            if len(others) == 1:
                raise
    raise _Wrong(at, "must be one of " + ", ".join(map(_name, others)))


def _name(of: Any) -> str:
    kind = typing.get_origin(of) or of  # In Python 3.9 List[str] has no name.
    return getattr(kind, "__name__", str(kind))


def _fields(of: Any, value: Any, at: str) -> Any:
    """The object as the dataclass or TypedDict. What that does not name is left out, or kept in a TypedDict."""
    if not _is(value, dict):
        raise _Wrong(at, "must be an object")
    members: Dict[str, Any] = value
    hints = _hints(of)
    required = set(of.__required_keys__) if _is_typed_dict(of) else {
        field.name for field in dataclasses.fields(of)
        if field.init and field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING}
    for name in sorted(required - set(members)):
        raise _Wrong(_under(at, name), "is missing")
    decoded = {name: _decoded(hints[name], members[name], _under(at, name)) for name in members if name in hints}
    if _is_typed_dict(of):
        return {**members, **decoded}
    try:
        return of(**decoded)
    except (TypeError, ValueError) as error:  # Of its __post_init__.
        raise _Wrong(at, str(error)) from error


def _is(value: Any, kind: type) -> bool:
    """Whether the value is of the type, of which a checker then knows no more."""
    return isinstance(value, kind)


def _under(at: str, name: str) -> str:
    return f"{at}/{name.replace('~', '~0').replace('/', '~1')}"
