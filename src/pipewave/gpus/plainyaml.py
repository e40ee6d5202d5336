"""YAML as a list of numbers and words: what JSON can say, and nothing that grows or converts while it is read.

Anchors let a kilobyte stand for gigabytes, and tags call converters that fail in their own ways. A spec file needs
neither.
"""

from __future__ import annotations

import yaml


class PlainLoader(yaml.SafeLoader):
    """A SafeLoader without anchors, aliases, tags and dates. Raises yaml.YAMLError where it meets one of the former."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """The node that begins with the next event, if it is a plain one."""
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent) or event.anchor is not None or event.tag not in (None, "!"):
            text = "anchors, aliases and tags are not read here: write the value itself"
            raise yaml.composer.ComposerError(None, None, text, event.start_mark)
        return super().compose_node(parent, index)


TIMESTAMP = "tag:yaml.org,2002:timestamp"
PlainLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != TIMESTAMP]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
