"""One value of every record that is kept on a disk, in a bucket or in a kernel's memory, with nothing left at its default."""

from __future__ import annotations

import importlib
from typing import Any

import msgspec
from msgspec import inspect

#: Every such record, by module and name.
KEPT = (
    "wire.manifest_records:Manifest",
    "wire.manifest_records:SnapshotInfo",
    "daemon.kernels.kernel_records:KernelRecord",
    "daemon.kernels.resume_times:_Measured",
    "engine.gpu.gpu_processes:_TakenFromGpu",
    "engine.tcp.record:_Mark",
    "engine.tree.standstill:_Journal",
    "wire.protocol:Event",
    "store.annotation_files:_File",
    "remote.epochs:Epoch",
    "remote.epochs:_Condemned",
    "remote.remote_manifests:RemoteManifest",
    "remote.index_objects:_Index",
    "remote.upload_progress:_Entry",
    "remote.store_key:_Body",
    "remote.store_key:_Public",
    "remote.remote_list:_File",
    "remote.seen:_File",
    "remote.remote_sessions:RemoteSession",
    "wire.template_records:Template",
    "wire.template_records:Building",
)
#: What stands for each simple type.
_SIMPLE = {
    inspect.StrType: "text",
    inspect.IntType: 11,
    inspect.FloatType: 1.5,
    inspect.AnyType: "anything",
    inspect.RawType: "raw",
    inspect.NoneType: None,
}


def kind_of(name: str) -> type[Any]:
    """Return the record type that an entry of `KEPT` names."""
    module, _, attribute = name.partition(":")
    found: type[Any] = getattr(importlib.import_module(f"jupyter_gpuckpt.{module}"), attribute)
    return found


def filled(kind: object) -> object:
    """Return a value of a type in built-in types, with every field set to another value than its default."""
    return _value(inspect.type_info(kind))


def enumerated(kind: object) -> dict[str, list[object]]:
    """Return the values of all enumerations in a type, by their names."""
    found: dict[str, list[object]] = {}
    _value(inspect.type_info(kind), enums=found)
    return found


def _value(  # noqa: PLR0911 - a line for each kind of type
    info: inspect.Type, default: object = None, enums: dict[str, list[object]] | None = None
) -> object:
    if isinstance(info, inspect.StructType):
        values = {
            field.encode_name: _value(field.type, field.default, enums) for field in info.fields
        }
        return list(values.values()) if info.array_like else values
    if isinstance(info, inspect.UnionType):
        return _value(
            next(each for each in info.types if not isinstance(each, inspect.NoneType)),
            default,
            enums,
        )
    if isinstance(info, inspect.EnumType):
        if enums is not None:
            enums[info.cls.__name__] = [member.value for member in info.cls]
        return next(member.value for member in info.cls if member is not default)
    if isinstance(info, inspect.DictType):
        key = _value(info.key_type, enums=enums)
        return {str(key): _value(info.value_type, enums=enums)}
    if isinstance(info, inspect.TupleType):
        return [_value(each, enums=enums) for each in info.item_types]
    if isinstance(info, inspect.ListType | inspect.VarTupleType | inspect.SetType):
        return [_value(info.item_type, enums=enums)]
    if isinstance(info, inspect.BoolType):
        return default is not True
    if isinstance(info, inspect.BytesType):
        return msgspec.to_builtins(bytes(range(info.min_length or 32)))
    if isinstance(info, inspect.LiteralType):
        return next(value for value in info.values if value != default)
    return _SIMPLE[type(info)]
