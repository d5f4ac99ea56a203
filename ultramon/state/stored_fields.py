"""What one program keeps beside the fields of every state: a JSON object with typed fields.

Standard library only and cheap: every hook loads it.
"""

from __future__ import annotations

from ultramon.state.record import MAX_INTEGER, member_name
from ultramon.system.ids import is_agent_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Self

    Read = Callable[[Any], Any]
    Field = tuple[str, Read, object]


class StoredFields:
    """A JSON object whose members are read and written as attributes.

    A subclass names its fields and their kinds by annotations, see `KINDS` and `part`. A field
    whose member is missing or of another kind is empty: None where that is allowed, else False, 0,
    "" or nothing in it. What is assigned is stored, ``del`` removes it; members that are no field
    stay as they are. A program pays only for the fields that it uses.
    """

    if TYPE_CHECKING:

        def __init__(self, **values: Any) -> None: ...

    else:

        def __init__(self, **values: Any) -> None:
            self.__dict__["members"] = {}
            for name, value in values.items():
                setattr(self, name, value)

        def __getattr__(self, name: str) -> Any:
            member, read, empty = _FOUND.get((type(self), name)) or _find(type(self), name)
            value = self.__dict__["members"].get(member)
            if value is not None:
                value = read(value)
            return empty if value is None else value

        def __setattr__(self, name: str, value: object) -> None:
            member, _, _ = _FOUND.get((type(self), name)) or _find(type(self), name)
            part = isinstance(value, StoredFields)
            self.__dict__["members"][member] = value.to_json() if part else value

        def __delattr__(self, name: str) -> None:
            member, _, _ = _FOUND.get((type(self), name)) or _find(type(self), name)
            self.__dict__["members"].pop(member, None)

    @classmethod
    def of(cls, members: object) -> Self:
        """Return the fields of a JSON value; of one that is no object, those of a new one."""
        fields = cls()
        if isinstance(members, dict):
            fields.__dict__["members"] = members
        return fields

    @classmethod
    def part(cls, kind: str) -> type[StoredFields]:
        """Return the class that is a kind of a field: asked only for fields that are used."""
        raise TypeError(f"{cls.__name__} has no part {kind!r}")

    def to_json(self) -> dict[str, object]:
        """Return the object itself: what is changed later is changed in it."""
        members: dict[str, object] = self.__dict__["members"]
        return members


# Filled at the first use of a field: descriptors made at import would cost each call of a hook half
# a million instructions.
_FOUND: dict[tuple[type, str], Field] = {}


def _find(cls: type[StoredFields], attribute: str) -> Field:
    """Return the member of a field, how it is read, and what an empty one is."""
    for one in cls.__mro__[:-1]:
        annotation = one.__annotations__.get(attribute)
        if annotation is not None:
            kind = annotation.removesuffix(" | None")
            read = KINDS.get(kind) or _part_of(cls, kind)
            empty = _EMPTY.get(kind.partition("[")[0]) if kind == annotation else None
            found = _FOUND[cls, attribute] = member_name(attribute), read, empty
            return found
    raise AttributeError(f"{cls.__name__} has no field {attribute!r}")


def _part_of(cls: type[StoredFields], kind: str) -> Read:
    return lambda value: cls.part(kind).of(value) if isinstance(value, dict) else None


def _whole(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value <= MAX_INTEGER else None


def _number(value: Any) -> float | None:
    return value if type(value) in (int, float) and abs(value) <= MAX_INTEGER else None


def _text(value: Any) -> str | None:
    return value if type(value) is str else None


def _pair(value: Any) -> list[float] | None:
    is_pair = type(value) is list and len(value) == 2
    return value if is_pair and None not in map(_number, value) else None


def _list_of(read: Read) -> Read:
    def read_list(value: Any) -> list[Any] | None:
        return [one for one in value if read(one) is not None] if type(value) is list else None

    return read_list


def _mapping_to(read: Read) -> Read:
    def read_mapping(value: Any) -> dict[str, Any] | None:
        if type(value) is not dict:
            return None
        return {name: one for name, one in value.items() if read(one) is not None}

    return read_mapping


KINDS: dict[str, Read] = {
    "object": lambda value: value,
    "bool": lambda value: value if type(value) is bool else None,
    "int": _whole,
    "Positive": lambda value: _whole(value) or None,
    "float": _number,
    "str": _text,
    "Sequence[str]": _list_of(_text),
    "Sequence[AgentId]": _list_of(lambda value: value if is_agent_id(value) else None),
    "Mapping[str, str]": _mapping_to(_text),
    "Mapping[str, int]": _mapping_to(_whole),
    "Mapping[str, object]": lambda value: value if type(value) is dict else None,
    "list[list[float]]": _list_of(_pair),
}
"""How the value of a member is read, by the annotation of its field; None = of another kind.

An ``int`` is 0 or more, a ``Positive`` 1 or more; a list or mapping lacks what does not fit in it.
"""
_EMPTY: dict[str, object] = {
    "bool": False, "int": 0, "float": 0.0, "str": "", "Sequence": (), "Mapping": {}, "list": (),
}  # fmt: skip
