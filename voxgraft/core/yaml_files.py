"""Strict YAML: plain values, lists and mappings; no aliases, no tags, no duplicate keys.

Not in `files.py`, so that models can be opened where PyYAML is not installed.
"""

from __future__ import annotations

from collections import Counter
from copy import deepcopy
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from voxgraft.core.errors import ConfigError
from voxgraft.core.files import MAX_NESTING_DEPTH, MAX_NUMBER_DIGITS, format_error_reason, is_encodable_text, read_text

# A settings file has a few kilobytes, and YAML is slow to parse.
MAX_YAML_BYTES = 1 << 17


def read_yaml(path: Path) -> Any:
    """YAML without aliases, tags or duplicate keys: only plain values, lists and mappings."""
    return parse_yaml(read_text(path, MAX_YAML_BYTES), path)


def parse_yaml(text: str, where: Path | str) -> Any:
    """YAML text to Python values, with the same strictness as `read_yaml`."""
    return deepcopy(_parse_yaml_cached(text, where))


def find_yaml_keys(text: str) -> dict[str, tuple[yaml.ScalarNode, yaml.Node]]:
    """Keys of the first two levels, dotted, with their nodes: `start_mark.index` and `end_mark.index` are offsets.

    Edits at these offsets keep comments, order and layout, which loading and dumping the values would lose.
    """
    found: dict[str, tuple[yaml.ScalarNode, yaml.Node]] = {}

    def visit(node: yaml.Node, prefix: str) -> None:
        for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
            if isinstance(key, yaml.ScalarNode):
                found[prefix + key.value] = (key, value)
                if not prefix:
                    visit(value, f"{key.value}.")

    visit(yaml.compose(text, yaml.SafeLoader), "")
    return found


@lru_cache(maxsize=16)
def _parse_yaml_cached(text: str, where: Path | str) -> Any:
    # Every stage of `go` reads the run's settings again, and YAML is slow to parse.
    try:
        return yaml.load(text, _make_strict_loader(where))  # noqa: S506 (a SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        at = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise ConfigError("yaml-broken", f"{at}{problem}", where=where) from None
    except (ValueError, RecursionError, OverflowError) as error:
        raise ConfigError("yaml-broken", format_error_reason(error), where=where) from None


def _make_strict_loader(where: Path | str) -> type[yaml.SafeLoader]:
    class StrictLoader(yaml.SafeLoader):
        depth = 0

        def compose_node(self, parent: Any, index: Any) -> Any:
            event = self.peek_event()  # type: ignore[no-untyped-call]
            line = event.start_mark.line + 1
            if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
                raise ConfigError("yaml-alias", f"line {line} uses an anchor or alias", where=where)
            if getattr(event, "tag", None):
                raise ConfigError("yaml-tag", f"line {line} uses the tag {event.tag}", where=where)
            self.depth += 1
            if self.depth > MAX_NESTING_DEPTH:
                raise ConfigError("yaml-broken", f"nested more than {MAX_NESTING_DEPTH} levels deep", where=where)
            node = super().compose_node(parent, index)
            self.depth -= 1
            return node

        def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
            if len(node.value) > MAX_NUMBER_DIGITS:
                raise ConfigError("yaml-broken", f"a number of {len(node.value):,} digits", where=where)
            return super().construct_yaml_int(node)

        def construct_yaml_str(self, node: yaml.ScalarNode) -> str:
            if not is_encodable_text(node.value):
                line = node.start_mark.line + 1
                found = f"line {line} contains half of a character (a lone surrogate)"
                raise ConfigError("yaml-broken", found, where=where)
            return str(super().construct_yaml_str(node))

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            keys = Counter(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
            if len(keys) != keys.total():
                twice = keys.most_common(1)[0][0]
                raise ConfigError("yaml-duplicate-key", f"the key {twice!r} appears twice", where=where)
            return super().construct_mapping(node, deep)

    StrictLoader.add_constructor("tag:yaml.org,2002:int", StrictLoader.construct_yaml_int)
    StrictLoader.add_constructor("tag:yaml.org,2002:str", StrictLoader.construct_yaml_str)
    return StrictLoader
